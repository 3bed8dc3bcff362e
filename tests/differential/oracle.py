"""One operation, run in torch (fake tensors with CUDA's semantics) and over meta tensors; bytes at five points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode

from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.tracker import SavedTensors, StorageTracker
from memlint.meta import amp, autograd
from memlint.meta import functional as F
from memlint.meta import tensor as meta


class Operand(NamedTuple):
    """A tensor that an operation is given.

    order   the dimensions as they lie in memory, outermost first; () for contiguous
    extra   so many more elements lie after each run of the last dimension (a slice of something wider)
    buffer  it belongs to the model: never trains, and does not count as saved
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    order: tuple[int, ...] = ()
    extra: int = 0
    buffer: bool = False

    @property
    def is_floating(self) -> bool:
        return meta.DTYPES[self.dtype].is_floating

    def stored(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape in memory, and for each dimension its place in memory."""
        order = self.order or tuple(range(len(self.shape)))
        stored = [self.shape[d] for d in order]
        if self.extra:
            stored[-1] += self.extra
        return tuple(stored), tuple(order.index(d) for d in range(len(order)))

    def in_torch(self) -> torch.Tensor:
        stored, places = self.stored()
        tensor = torch.empty(stored, dtype=getattr(torch, self.dtype))
        if self.extra:
            tensor = tensor[..., : -self.extra]
        return tensor.permute(places).detach()

    def in_meta(self) -> meta.Tensor:
        stored, places = self.stored()
        base = meta.empty(stored, meta.DTYPES[self.dtype])
        strides = meta.contiguous_strides(stored)
        leaf = base.alias(self.shape, tuple(strides[place] for place in places))
        leaf.is_view = False  # as torch's ``detach`` has it: autocast keeps the casts of such leaves
        return leaf


class Bytes(NamedTuple):
    """Beyond what the operands take.

    forward        alive after the forward pass
    forward_peak   the most alive during it
    saved          distinct storages that autograd holds after it, operands included
    backward_peak  the most alive during backward
    backward       alive after it: results and gradients
    """

    forward: int
    forward_peak: int
    saved: int
    backward_peak: int
    backward: int


Operation = Callable[..., Any]


@contextmanager
def fake_cuda(granularity_bytes: int = 1) -> Iterator[StorageTracker]:
    """Fake tensors, the tracker, CUDA's semantics."""
    tracker = StorageTracker(granularity_bytes)
    with FakeTensorMode(), tracker, CudaSemantics(tracker):
        yield tracker


def _flat(outputs: Any) -> list[Any]:
    return [outputs] if not isinstance(outputs, (tuple, list)) else list(outputs)


def in_torch(
    operation: Operation, operands: Sequence[Operand], trainable: Sequence[bool], hidden: bool, autocast: str
) -> Bytes:
    """``hidden``: the first operand that trains is not a leaf but the result of a negation."""
    with fake_cuda() as tracker, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [o.in_torch().requires_grad_(t) for o, t in zip(operands, trainable)]
        leaves = list(tensors)
        start = tracker.live_bytes
        if hidden:
            first = trainable.index(True)
            tensors[first] = -tensors[first]
        tracker.reset_peak()
        context = torch.autocast("cpu", getattr(torch, autocast)) if autocast else nullcontext()
        buffers = [t for t, o in zip(tensors, operands) if o.buffer]
        with SavedTensors(buffers, tracker) as saved, context:
            outputs = operation(*tensors)
        del tensors, context, buffers
        forward, forward_peak = tracker.live_bytes - start, tracker.peak_bytes - start
        saved_bytes = saved.bytes
        roots = [x for x in _flat(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        gradients = [torch.empty(x.shape, dtype=x.dtype) for x in roots]
        tracker.reset_peak()
        if roots:
            torch.autograd.backward(roots, gradients)
        backward, backward_peak = tracker.live_bytes - start, tracker.peak_bytes - start
        del leaves, outputs, roots, gradients
    return Bytes(forward, forward_peak, saved_bytes, backward_peak, backward)


def live_and_peak(tape: Any, begin: int) -> tuple[int, int]:
    """Bytes alive now, and the most alive since the event ``begin``."""
    live = peak = 0
    for number, event in enumerate(tape.events):
        if number == begin:
            peak = live
        live += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        if number >= begin:
            peak = max(peak, live)
    return live, max(peak, live) if begin < len(tape.events) else live


def in_meta(
    operation: Operation, operands: Sequence[Operand], trainable: Sequence[bool], hidden: bool, autocast: str
) -> Bytes:
    with meta.recording() as tape:
        tensors = [o.in_meta().requires_grad_(t) for o, t in zip(operands, trainable)]
        leaves = list(tensors)
        start, _ = live_and_peak(tape, 0)
        if hidden:
            first = trainable.index(True)
            tensors[first] = F.neg(tensors[first])
        begin = len(tape.events)
        with amp.autocast(meta.DTYPES[autocast]) if autocast else nullcontext():
            outputs = operation(*tensors)
        del tensors
        live, peak = live_and_peak(tape, begin)
        forward, forward_peak = live - start, peak - start
        roots = [x for x in _flat(outputs) if isinstance(x, meta.Tensor) and x.requires_grad]
        held: dict[int, int] = {}
        for root in roots:
            held.update(autograd.saved_storages(root))
        gradients = [meta.Tensor(x.shape, x.dtype) for x in roots]
        begin = len(tape.events)
        if roots and roots[0].node is None:
            autograd.backward(roots[0], gradients[0])
        elif roots:
            autograd.run([(x.node, x.output_nr, g) for x, g in zip(roots, gradients)], hold=gradients)
        live, peak = live_and_peak(tape, begin)
        backward, backward_peak = live - start, peak - start
        del leaves, outputs, roots, gradients
    return Bytes(forward, forward_peak, sum(held.values()), backward_peak, backward)
