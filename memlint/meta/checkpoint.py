"""Activation checkpointing: keep a block's inputs, recompute its activations when backward reaches it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

from memlint.meta import autograd
from memlint.meta.amp import autocast
from memlint.meta.autograd import Node, enable_grad, no_grad
from memlint.meta.compiled import Compiled
from memlint.meta.nn import Module
from memlint.meta.offload import Offload, fetch_arguments, send_arguments
from memlint.meta.tensor import Storage, Tensor, state
from memlint.named_tuple import NamedTuple


class _Enough(Exception):
    """Everything that backward needs has been recomputed (torch's early stop)."""


class Policy(NamedTuple):
    """Operations whose results a checkpointed block keeps, for selective checkpointing
    (``torch.utils.checkpoint.create_selective_checkpoint_contexts``).

    every_product  of so many matrix products, all but the last: 2 for every other one, 0 for none
    attention      whether fused attention is kept
    """

    every_product: int = 0
    attention: bool = False

    def keeps(self, kind: str, number: int) -> bool:
        """``number``: how many of this kind the block has had, this one included."""
        if kind == "attention":
            return self.attention
        return self.every_product > 0 and number % self.every_product != 0


# torchtitan's and torchtune's policy: every other product, and fused attention (``_save_list`` of
# ``parallelize_llama.py`` and of ``training/checkpointing/_checkpoint_wrapper.py``).
EVERY_OTHER_PRODUCT = Policy(2, True)


class _Look:
    """A tensor without its storage."""

    def __init__(self, x: Tensor) -> None:
        self.shape, self.dtype, self.strides, self.requires_grad = x.shape, x.dtype, x.strides, x.requires_grad
        self.is_view = x.is_view or x.node is not None

    def over(self, storage: Storage) -> Tensor:
        made = Tensor(self.shape, self.dtype, storage, self.strides).requires_grad_(self.requires_grad)
        made.is_view = self.is_view
        return made


def _nothing(_: Any) -> tuple[()]:
    return ()


class _Frame:
    """One non-reentrant checkpointed call. Its nodes exist from the forward pass on, but saved nothing; the first
    one that backward reaches recomputes what all of them saved (``torch.utils.checkpoint._CheckpointFrame``)."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], policy: Policy | None = None) -> None:
        self.function = function
        self.policy = policy
        self.seen: dict[str, int] = {}
        self.kept: dict[tuple[str, int], tuple[Tensor, ...]] = {}
        self.fresh: list[tuple[str, int]] = []  # kept, and nothing was saved since that could depend on it
        self.args = args
        self.inputs: Node | None = None  # where a block around this one keeps its arguments
        self.offload: Offload | None = None
        self.autocast = state.autocast
        self.count = 0
        self.nodes: dict[int, ReferenceType[Node]] = {}
        self.recomputed: list[tuple[Storage, ...]] | None = None
        self.recomputing = False

    def held(self) -> list[Storage]:
        found = [x.storage for x in self.args if isinstance(x, Tensor)]
        if self.inputs is not None:
            found += self.inputs.saved if self.inputs.frame is None else self.inputs.frame.held()
        return found + [x.storage for kept in self.kept.values() for x in kept]

    def keep_within(self, outer: _Frame) -> None:
        """A block within another one: its tensors are saved as an operation's are, by the hooks of the block around it
        (``_CheckpointFrame.save_inputs``), which recomputes them before this one recomputes its own."""
        tensors = [x for x in self.args if isinstance(x, Tensor)]
        self.args = tuple(_Look(x) if isinstance(x, Tensor) else x for x in self.args)
        self.inputs = Node(_nothing, [], tuple(x.storage for x in tensors), 0)
        outer.pack(self.inputs, ())

    def arguments(self) -> tuple[Any, ...]:
        if self.inputs is None:
            return self.args
        if self.inputs.frame is not None:
            self.inputs.frame.unpack(self.inputs)
        storages = iter(self.inputs.saved)
        self.inputs.saved = ()
        return tuple(x.over(next(storages)) if isinstance(x, _Look) else x for x in self.args)

    def operation(self, kind: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The results of an operation that ``policy`` may keep: made in the forward pass, and when they are recomputed
        either made again or handed out, once."""
        assert self.policy is not None
        number = self.seen[kind] = self.seen.get(kind, 0) + 1
        if self.recomputing:
            kept = self.kept.pop((kind, number), None)
            return make() if kept is None else kept
        outs = make()
        if self.policy.keeps(kind, number):
            self.kept[kind, number] = tuple(x.alias(x.shape, x.strides) for x in outs)
            self.fresh.append((kind, number))
        return outs

    def pack(self, node: Node, outs: tuple[Tensor, ...]) -> None:
        if self.recomputing:
            assert self.recomputed is not None
            slot = len(self.recomputed)
            alive = self.nodes[slot]() is not None
            self.recomputed.append(node.saved if alive else ())
            if len(self.recomputed) == self.count:
                for out in outs:
                    _never_made(out, node.saved)
                raise _Enough
        else:
            if self.fresh:
                own = [x.storage for x in outs]
                self.fresh = [key for key in self.fresh if self.kept[key][0].storage in own]
            node.frame = self
            node.slot = self.count
            node.saved = ()
            self.nodes[self.count] = ref(node)
            self.count += 1

    def settle(self) -> None:
        """A compiled block keeps nothing that its backward pass does without."""
        for key in self.fresh:
            del self.kept[key]
        self.fresh = []

    def unpack(self, node: Node) -> None:
        if self.recomputed is None:
            sent = self.args
            if self.offload is not None:
                self.args = fetch_arguments(self.offload, sent)
            self.args = self.arguments()
            self.recompute()
            self.args = sent
        assert self.recomputed is not None
        node.saved = self.recomputed[node.slot]
        self.recomputed[node.slot] = ()

    def recompute(self) -> None:
        self.recomputed = []
        self.seen = {}
        self.recomputing = True
        outer, state.frame = state.frame, self
        # Detached: recomputation must not reach into the graph before the block. To torch they are no leaves, whose
        # casts autocast would keep: they count as views.
        args = tuple(
            x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.node is not None else x
            for x in self.args
        )
        try:
            with enable_grad(), autocast(self.autocast):
                self.function(*args)
        except _Enough:
            pass
        finally:
            state.frame = outer
            self.recomputing = False


def _never_made(out: Tensor, saved: tuple[Storage, ...]) -> None:
    """torch saves an operation's inputs before it runs, so it stops before the last one has a result."""
    storage = out.storage
    if storage not in saved and storage.events and storage.events[-1] == storage.index:
        storage.events.pop()
        storage.events = []  # its end is no event either


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = False, policy: Policy | None = None
) -> Any:
    """``function(*args)`` without keeping its activations; both of torch's implementations. ``policy``: what it keeps
    all the same, which the older one does not know."""
    if not state.grad_enabled:
        return function(*args)
    if use_reentrant:
        return _reentrant(function, args)
    outer, frame = state.frame, _Frame(function, args, policy)
    if state.offload is not None and outer is None:
        frame.offload = state.offload
        frame.args = send_arguments(frame.offload, args)
    if outer is not None:
        frame.keep_within(outer)
    state.frame = frame
    try:
        out = function(*args)
        if isinstance(function, Compiled):
            frame.settle()
        return out
    finally:
        state.frame = outer


_recomputing: dict[type[Module], type[Module]] = {}


def recompute(module: Module) -> None:
    """From now on each call of the module is checkpointed, by the newer implementation, whoever calls it.
    (torch's ``checkpoint_wrapper``)"""
    kind = type(module)
    if kind not in _recomputing:

        def forward(self: Module, *args: Any) -> Any:
            return checkpoint(partial(kind.forward, self), *args)

        _recomputing[kind] = type(kind.__name__, (kind,), {"forward": forward})
    module.__class__ = _recomputing[kind]


def _reentrant(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """One node for the whole block; its backward runs a forward and a backward of its own."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    with no_grad():
        out = function(*args)
    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    if not any(x.requires_grad for x in tensors):
        return out  # torch warns: nothing inside can get a gradient
    context = state.autocast
    # The node must hold tensors, not only storages, to rebuild the inputs: views keep their shapes.
    kept = [(x.shape, x.dtype, x.strides, x.requires_grad) if isinstance(x, Tensor) else x for x in args]
    where = [isinstance(x, Tensor) for x in args]
    looks = [(x.shape, x.dtype) if isinstance(x, Tensor) else None for x in outs]
    # Weakly, as the node holds this function: a result that nobody asks for is to let go of what it kept at once.
    cell: list[ReferenceType[Node]] = []

    def backward(grads: Any) -> list[Tensor | None]:
        # A result that nothing was made from gets zeros (``set_materialize_grads``).
        incoming = [grads] if isinstance(grads, Tensor) else list(grads)
        for number, look in enumerate(looks):
            if look is not None and incoming[number] is None:
                incoming[number] = Tensor(*look)
        del grads
        own = cell.pop()()
        assert own is not None  # it is asked
        storages = iter(own.saved)
        del own
        detached: list[Any] = []
        for item, is_tensor in zip(kept, where):
            if is_tensor:
                shape, dtype, strides, requires_grad = item
                leaf = Tensor(shape, dtype, next(storages), strides).requires_grad_(requires_grad)
                leaf.is_view = False  # ``detach_variable``
                detached.append(leaf)
            else:
                detached.append(item)
        with enable_grad(), autocast(context):
            again = function(*detached)
        results = (again,) if isinstance(again, Tensor) else tuple(again)
        roots = [
            (result.node, result.output_nr, grad)
            for result, grad in zip(results, incoming)
            if result.node is not None and grad is not None
        ]
        autograd.run(roots, hold=(results, incoming))
        gradients = [x.grad if isinstance(x, Tensor) else None for x in detached]
        for x in detached:
            if isinstance(x, Tensor):
                x.grad = None
        return [g for g, is_tensor in zip(gradients, where) if is_tensor]

    autograd.record(outs if len(outs) > 1 else outs[0], tensors, tensors, backward)
    node = outs[0].node
    assert node is not None
    cell.append(ref(node))
    return out
