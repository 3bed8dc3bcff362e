"""Activation checkpointing: keep a block's inputs, recompute its activations when backward reaches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.meta import autograd, replay
from memlint.meta.amp import autocast
from memlint.meta.autograd import Node, enable_grad, no_grad
from memlint.meta.tensor import Storage, Tensor, state


class _Enough(Exception):
    """Everything that backward needs has been recomputed (torch's early stop)."""


class _Frame:
    """One non-reentrant checkpointed call. Its nodes exist from the forward pass on, but saved nothing; the first
    one that backward reaches recomputes what all of them saved (``torch.utils.checkpoint._CheckpointFrame``)."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.autocast = state.autocast
        self.count = 0
        self.recomputed: list[tuple[Storage, ...]] | None = None
        self.recomputing = False

    def held(self) -> list[Storage]:
        return [x.storage for x in self.args if isinstance(x, Tensor)]

    def pack(self, node: Node, outs: tuple[Tensor, ...]) -> None:
        if self.recomputing:
            assert self.recomputed is not None
            self.recomputed.append(node.saved)
            if len(self.recomputed) == self.count:
                for out in outs:
                    _never_made(out, node.saved)
                raise _Enough
        else:
            node.frame = self
            node.slot = self.count
            node.saved = ()
            self.count += 1

    def unpack(self, node: Node) -> None:
        if self.recomputed is None:
            replay.recompute(self)
        assert self.recomputed is not None
        node.saved = self.recomputed[node.slot]
        self.recomputed[node.slot] = ()

    def recompute(self) -> None:
        self.recomputed = []
        self.recomputing = True
        outer, state.frame = state.frame, self
        # Detached: recomputation must not reach into the graph before the block.
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


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False) -> Any:
    """``function(*args)`` without keeping its activations; both of torch's implementations."""
    if not state.grad_enabled:
        return function(*args)
    if use_reentrant:
        return _reentrant(function, args)
    outer, frame = state.frame, _Frame(function, args)
    state.frame = frame
    try:
        return function(*args)
    finally:
        state.frame = outer


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
    cell: list[Node] = []

    def backward(grads: Any) -> list[Tensor | None]:
        storages = iter(cell.pop().saved)
        detached: list[Any] = []
        for item, is_tensor in zip(kept, where):
            if is_tensor:
                shape, dtype, strides, requires_grad = item
                detached.append(Tensor(shape, dtype, next(storages), strides).requires_grad_(requires_grad))
            else:
                detached.append(item)
        with enable_grad(), autocast(context):
            again = function(*detached)
        results = (again,) if isinstance(again, Tensor) else tuple(again)
        incoming = [grads] if isinstance(grads, Tensor) else grads
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
    cell.append(node)
    return out
