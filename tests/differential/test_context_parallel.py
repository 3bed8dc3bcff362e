"""Ring attention beside PyTorch's own, around a fake process group: what is alive at once beside its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from memlint.measure.distributed import Collectives
from memlint.measure.tracker import StorageTracker
from memlint.meta import autograd
from memlint.meta.nn import Module
from memlint.meta.tape import Tape
from memlint.meta.tensor import Tensor, bfloat16, empty, float32, recording
from memlint.models.split import RingScores

ROWS, HEADS, LENGTH, WIDTH = 1, 4, 64, 32
ELEMENTS = ROWS * HEADS * LENGTH * WIDTH
SUMS = ROWS * HEADS * LENGTH * 4  # of exponentials, one for each row


@pytest.fixture(params=[2, 4, 8])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    from torch.distributed import _functional_collectives as collectives
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # On fake tensors waiting makes another tensor; on a card it is the same.
    monkeypatch.setattr(collectives, "_maybe_wrap_tensor", lambda tensor: tensor)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def in_torch() -> tuple[int, int]:
    """Most bytes beside the arguments in the forward and the backward function, around kernels that only allocate."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    def attend(query: Any, key: Any, value: Any, **_: Any) -> tuple[Any, Any]:
        return torch.empty_like(query), torch.empty(query.shape[:3], dtype=torch.float32)

    def differentiate(query: Any, key: Any, value: Any, **_: Any) -> tuple[Any, Any, Any]:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    group = dist.group.WORLD
    peaks = []
    with FakeTensorMode(allow_non_fake_inputs=True), StorageTracker(1) as tracker, Collectives(tracker):
        q, k, v, out, gradient = (torch.zeros(ROWS, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16) for _ in range(5))
        sums = torch.zeros(ROWS, HEADS, LENGTH)
        before = tracker.live_bytes
        tracker.reset_peak()
        ring._templated_ring_attention(group, 2, attend, q, k, v, is_causal=True)
        peaks.append(tracker.peak_bytes - before)
        tracker.reset_peak()
        ring._templated_ring_attention_backward(group, 2, differentiate, gradient, "grad_out", q, k, v, out, sums, True)
        peaks.append(tracker.peak_bytes - before)
    return peaks[0], peaks[1]


class Attention(Module):
    """A kernel that gives a result and sums."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: None) -> tuple[Tensor, None]:
        out, sums = empty(query.shape, bfloat16), empty(query.shape[:3], float32)
        shapes = query.shape, key.shape, value.shape
        autograd.record(out, (query, key, value), (sums,), lambda g: tuple(empty(shape, bfloat16) for shape in shapes))
        return out, None


def most(tape: Tape, begin: int, end: int) -> int:
    live = peak = 0
    for event in tape.events[begin:end]:
        live += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        peak = max(peak, live)
    return peak


def in_meta(ranks: int) -> tuple[int, int]:
    with recording() as tape:
        q, k, v = (empty((ROWS, HEADS, LENGTH, WIDTH), bfloat16).requires_grad_() for _ in range(3))
        begin = len(tape.events)
        out, _ = RingScores(Attention(), ranks)(q, k, v, None)
        forward = most(tape, begin, len(tape.events))
        gradient = empty(out.shape, bfloat16)
        begin = len(tape.events)
        autograd.run([(out.node, 0, gradient)], None)
        return forward, most(tape, begin, len(tape.events))


def test_the_most_that_is_alive_at_once(ranks: int) -> None:
    """Within half of a result in 16 bits, of which a turn has but one half, and what rows are summed to."""
    found, expected = in_meta(ranks), in_torch()
    for ours, theirs in zip(found, expected):
        assert abs(ours - theirs) <= ELEMENTS + 2 * SUMS, (ours / ELEMENTS, theirs / ELEMENTS)


def test_gathered_keys_and_values_grow_with_the_ranks() -> None:
    small, large = in_meta(2), in_meta(10)
    assert [b - a for a, b in zip(small, large)] == [8 * 2 * 2 * ELEMENTS] * 2
