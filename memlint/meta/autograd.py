"""The autograd engine's lifetimes: what a backward pass keeps, makes and lets go, node by node.

A node holds the storages that its formula saved. Running it makes the gradients of its inputs, then lets go of
what was saved and of the gradient that came in, as ``torch/csrc/autograd/engine.cpp`` does
(``call_function`` then ``release_variables``). Gradients of leaves stay until ``zero_grad(set_to_none=True)``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

from memlint.meta.ops.shapes import fresh, layout_of
from memlint.meta.tape import Label
from memlint.meta.tensor import Deferred, Storage, Tensor, is_dense, origins, relabel, state, stored

# The engine adds a second gradient in place when nobody else holds the first one
# (engine input buffers, `can_accumulate_inplace`). Fake tensors count as tensor subclasses, for which torch always
# adds out of place; the differential tests switch this off to compare like with like.
ACCUMULATE_IN_PLACE = True

# Leaves whose gradients are the run's; other leaves are inputs of checkpointed blocks, detached for a while.
TRAINED = ("parameters", "helper_models", "communication")  # the last: a sharded parameter, gathered

Grad = Tensor | None
Edge = tuple["Node", int] | Tensor | None  # where an input's gradient goes: a node's slot, a leaf, nowhere


class Node:
    """One recorded operation. ``backward`` maps the gradient of its output (a list, for several outputs) to the
    gradients of its inputs; it may allocate, and must not hold tensors other than through ``saved``."""

    __slots__ = (
        "__weakref__", "backward", "buffer", "edges", "frame", "fused", "label", "outputs", "saved", "sequence", "slot",
    )  # fmt: skip

    def __init__(
        self,
        backward: Callable[[Any], Sequence[Grad]],
        edges: list[Edge],
        saved: tuple[Storage, ...],
        outputs: int,
    ) -> None:
        self.backward: Callable[[Any], Sequence[Grad]] | None = backward
        self.edges = edges
        self.saved = saved
        self.outputs = outputs
        self.label = state.label
        self.fused = state.fusing
        self.sequence = state.sequence
        state.sequence += 1
        self.buffer: list[Grad] | None = None
        self.frame: Any = None
        self.slot = 0

    def __lt__(self, other: Node) -> bool:
        return self.sequence > other.sequence  # the engine runs the youngest node first


def tracked(*inputs: Tensor | None) -> bool:
    """Whether an op on these inputs is recorded."""
    if state.grad_enabled:
        for x in inputs:
            if x is not None and x.requires_grad:
                return True
    return False


def record(
    out: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    saved: Sequence[Tensor | Storage | None],
    backward: Callable[[Any], Sequence[Grad]],
) -> None:
    """Make ``out`` (one tensor or several) the result of a node. Call only when ``tracked``."""
    edges: list[Edge] = []
    for x in inputs:
        if x is None or not x.requires_grad:
            edges.append(None)
        elif x.node is not None:
            edges.append((x.node, x.output_nr))
        else:
            edges.append(x)
    kept: list[Storage] = []
    for item in saved:
        if item is not None:
            kept.append(item if isinstance(item, Storage) else item.storage)
    storages = tuple(kept)
    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    if state.fusing:
        for item in kept:
            # What is not in memory weighs double (``get_node_weight``): kept itself where what it is made of, such as a
            # product and its adapter's, is twice as much.
            if type(item) is Deferred and item.index < 0 and 2 * item.nbytes <= sum(o.nbytes for o in origins([item])):
                item.store()
        _derive(outs, [x.storage for x in inputs if x is not None])
        if any(x.node is not None and getattr(x.storage, "passed", False) for x in inputs if x is not None):
            # It was read before a kernel of its own and is read behind it: the partitioner bans what is made of it then
            # from being made again (``ban_recompute_used_far_apart``), such as the second half of a layer's stream.
            for x in outs:
                stored(x)
    node = Node(backward, edges, storages, len(outs))
    for number, tensor in enumerate(outs):
        tensor.node = node
        tensor.output_nr = number
        tensor.requires_grad = True
    if state.frame is not None and storages:
        state.frame.pack(node, outs)
    elif state.offload is not None and storages:
        if state.fusing:
            node.saved = origins(storages)
        state.offload.pack(node)


def _derive(outs: Sequence[Grad], sources: Sequence[Storage]) -> None:
    """Results that are not in memory can be made from ``sources``."""
    for x in outs:
        if x is not None and type(x.storage) is Deferred and x.storage.index < 0:
            own = x.storage
            own.sources = (*own.sources, *[source for source in sources if source is not own])


@contextmanager
def no_grad() -> Iterator[None]:
    saved = state.grad_enabled
    state.grad_enabled = False
    try:
        yield
    finally:
        state.grad_enabled = saved


@contextmanager
def enable_grad() -> Iterator[None]:
    saved = state.grad_enabled
    state.grad_enabled = True
    try:
        yield
    finally:
        state.grad_enabled = saved


def _accumulate_leaf(leaf: Tensor, results: list[Grad], position: int) -> None:
    """AccumulateGrad: keep the incoming gradient if nobody else holds it and its layout is the leaf's, else copy
    it; a later gradient is added in place. (``torch/csrc/autograd/functions/accumulate_grad.h``)"""
    if leaf.grad is not None:
        return
    fusing, state.fusing = state.fusing, False  # a leaf's gradient leaves the compiled function
    # The list's own reference and the argument's: a third holder would see its gradient change.
    stealable = getrefcount(results[position]) <= 2
    grad = results[position]
    assert grad is not None
    if grad.shape != leaf.shape or grad.dtype is not leaf.dtype:  # the engine's validate_outputs
        grad = Tensor(leaf.shape, leaf.dtype)
    else:
        # A leaf that is dense wants its own layout; any other wants contiguous rows.
        layout = leaf.strides if leaf.strides is not None and is_dense(leaf.shape, leaf.strides) else None
        if not stealable or grad.strides != layout:
            grad = Tensor(leaf.shape, grad.dtype, strides=layout)
    leaf.grad = stored(grad)
    state.fusing = fusing
    old = state.tape.labels[leaf.storage.index]
    if old.component in TRAINED:
        if grad.storage is not state.bucket:
            relabel(grad.storage, Label("gradients", old.module, old.name))
        if state.bucket is not None:
            leaf.grad = Tensor(leaf.shape, leaf.dtype, state.bucket)
        if state.updated is not None:
            state.updated(leaf)


def _merge(slots: list[Grad], number: int, new: Tensor) -> None:
    """The input buffer's accumulation of a second gradient."""
    sole = getrefcount(slots[number]) <= 2 and getrefcount(slots[number].storage) <= 2  # type: ignore[union-attr]
    held = slots[number]
    assert held is not None
    packed = held.strides is None or is_dense(held.shape, held.strides)
    if ACCUMULATE_IN_PLACE and not state.adds_apart and sole and packed and not held.is_view:
        if state.fusing:
            _derive((held,), (new.storage,))
        return
    slots[number] = fresh(held.shape, held.dtype, layout_of(held), layout_of(new))
    if state.fusing:
        _derive((slots[number],), (held.storage, new.storage))


def backward(root: Tensor, grad: Tensor | None = None) -> None:
    """Run the graph behind a scalar (or behind ``root`` with its gradient given) once, releasing it."""
    node = root.node
    if grad is None:
        grad = Tensor(root.shape, root.dtype)  # ones_like(root), held by the caller for the whole pass
    if node is None:
        if root.requires_grad:
            _accumulate_leaf(root, [grad], 0)
        return
    run([(node, root.output_nr, grad)], hold=grad)


class _Waiting:
    """A leaf that the graph uses several times (a tied weight): the input buffer of its AccumulateGrad node, which
    runs when the last of its gradients is there."""

    __slots__ = ("remaining", "slots")

    def __init__(self) -> None:
        self.remaining = 1
        self.slots: list[Grad] = [None]


def _count_dependencies(roots: list[Node]) -> tuple[dict[Node, int], dict[int, _Waiting]]:
    """How many gradients each node waits for; and each leaf that waits for more than one, by id."""
    dependencies: dict[Node, int] = dict.fromkeys(roots, 0)
    leaves: dict[int, _Waiting] = {}
    stack = list(dependencies)
    while stack:
        for edge in stack.pop().edges:
            if type(edge) is tuple:
                child = edge[0]
                if child in dependencies:
                    dependencies[child] += 1
                else:
                    dependencies[child] = 1
                    stack.append(child)
            elif edge is not None:
                known = leaves.get(id(edge))
                if known is None:
                    leaves[id(edge)] = _Waiting()
                else:
                    known.remaining += 1
    return dependencies, {key: leaf for key, leaf in leaves.items() if leaf.remaining > 1}


def run(roots: list[tuple[Node, int, Tensor]], hold: Any = None) -> None:
    """The engine's loop. ``hold`` keeps what the Python caller keeps alive while it runs."""
    dependencies, leaves = _count_dependencies([node for node, _, _ in roots])
    ready: list[Node] = []
    for node, number, gradient in roots:
        if node.buffer is None:
            node.buffer = [None] * node.outputs
            if dependencies[node] == 0:
                heapq.heappush(ready, node)
        node.buffer[number] = gradient
        del gradient
    del roots
    saved_label, saved_grad = state.label, state.grad_enabled
    state.grad_enabled = False
    try:
        while ready:
            _evaluate(heapq.heappop(ready), dependencies, leaves, ready)
    finally:
        state.label, state.grad_enabled = saved_label, saved_grad


def _evaluate(node: Node, dependencies: dict[Node, int], leaves: dict[int, _Waiting], ready: list[Node]) -> None:
    """Run one node: its results exist before what it saved and its incoming gradient go."""
    state.label = node.label
    if node.frame is not None:
        node.frame.unpack(node)
        state.label = node.label
    if node.backward is None:
        raise RuntimeError("backward through the same graph a second time")
    state.unpacked = node if node.frame is not None else None
    if state.compiled:
        results = _call_compiled(node)
    else:
        results = _call(node)
    state.unpacked = None
    node.saved = ()
    node.frame = None
    edges, node.edges = node.edges, []
    for position, edge in enumerate(edges):
        if edge is None:
            results[position] = None
        elif type(edge) is not tuple:
            waiting = leaves.get(id(edge))
            if waiting is not None:
                _wait(edge, waiting, results, position)  # type: ignore[arg-type]
            elif results[position] is not None:
                _accumulate_leaf(edge, results, position)  # type: ignore[arg-type]
                results[position] = None
        else:
            child, number = edge
            slots = child.buffer
            if slots is None:
                slots = child.buffer = [None] * child.outputs
            result = results[position]
            results[position] = None
            if result is not None:
                if slots[number] is None:
                    slots[number] = result
                else:
                    _merge(slots, number, result)
                del result
            dependencies[child] -= 1
            if dependencies[child] == 0:
                heapq.heappush(ready, child)
    state.fusing = False


def _call_compiled(node: Node) -> list[Grad]:
    """A kernel of its own reads gradients from memory and writes them there; a fused one hands on what later kernels
    compute with, and which storages they then read. Leaves ``state.fusing`` as the node has it."""
    buffer = node.buffer
    assert buffer is not None
    if not node.fused:
        for gradient in buffer:
            if gradient is not None:
                stored(gradient)
        return _call(node)
    sources = [*[x.storage for x in buffer if x is not None], *node.saved]
    del buffer
    state.fusing = True
    results = _call(node)
    _derive(results, sources)
    return results


def _wait(leaf: Tensor, waiting: _Waiting, results: list[Grad], position: int) -> None:
    """One of several gradients of a leaf has come, or turned out not to exist."""
    slots = waiting.slots
    waiting.remaining -= 1
    result = results[position]
    results[position] = None
    if result is not None:
        if slots[0] is None:
            slots[0] = result
        else:
            _merge(slots, 0, result)
        del result
        old = state.tape.labels[leaf.storage.index]
        assert slots[0] is not None
        if old.component in TRAINED:
            relabel(slots[0].storage, Label("gradients", old.module, old.name))
    if waiting.remaining == 0 and slots[0] is not None:
        _accumulate_leaf(leaf, slots, 0)
        slots[0] = None


def _call(node: Node) -> list[Grad]:
    buffer, node.buffer = node.buffer, None
    backward, node.backward = node.backward, None
    assert buffer is not None
    assert backward is not None
    if all(gradient is None for gradient in buffer):
        return [None] * len(node.edges)
    return list(backward(buffer if node.outputs > 1 else buffer[0]))


def saved_storages(root: Tensor) -> dict[int, int]:
    """Distinct storages that the graph behind ``root`` holds: storage number -> bytes."""
    found: dict[int, int] = {}
    stack = [root.node] if root.node is not None else []
    seen = set(stack)
    frames = set()
    while stack:
        node = stack.pop()
        for storage in origins(node.saved) if state.compiled else node.saved:
            found[storage.index] = storage.nbytes
        if node.frame is not None and id(node.frame) not in frames:
            frames.add(id(node.frame))
            for storage in node.frame.held():
                found[storage.index] = storage.nbytes
        for edge in node.edges:
            if type(edge) is tuple and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return found
