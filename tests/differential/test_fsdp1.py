"""FSDP1's streams beside PyTorch's own wrapper, traced around a fake process group on the host."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from memlint.measure import distributed
from memlint.meta.tape import Tape
from tests.differential.test_parallel import FROZEN, FSDP2, HALF, in_meta, in_torch, most

LAST = "parallelism.reduces_last_only"
AHEAD = "parallelism.forward_prefetch"
MIXED = {FROZEN: True, "parallelism.mixed_units": True}
RUNS: dict[str, dict[str, Any]] = {
    "in fp32": FSDP2,
    "over three ranks, which divide nothing": {**FSDP2, "device_count": 3},
    "in bf16": {**FSDP2, **HALF},
    "in bf16, reduced in fp32": {**FSDP2, **HALF, "parallelism.reduce_dtype": "float32"},
    "gathered weights stay": {**FSDP2, **HALF, "parallelism.reshard_after_forward": False},
    "one unit": {**FSDP2, **HALF, "parallelism.wrap": "none"},
    "the ends are units, too": {**FSDP2, **HALF, "parallelism.wrap": ["Layer", "Embedding", "head"]},
    "recomputed layers": {**FSDP2, **HALF, "checkpointing": "full"},
    "recomputed layers in fp32": {**FSDP2, "checkpointing": "full"},
    "the next unit gathered ahead": {**FSDP2, **HALF, AHEAD: True},
    "the next unit gathered ahead, recomputed layers": {**FSDP2, **HALF, AHEAD: True, "checkpointing": "full"},
    "the next unit gathered ahead, recomputed layers in the older way": {
        **FSDP2,
        **HALF,
        **{AHEAD: True, "checkpointing": "full", "checkpointing_reentrant": True},
    },
    "two micro batches": {**FSDP2, **HALF, "gradient_accumulation_steps": 2},
    "two micro batches, reduced in the last": {**FSDP2, **HALF, LAST: True, "gradient_accumulation_steps": 2},
    "hybrid": {**FSDP2, **HALF, "device_count": 8, "parallelism.shard": 4},
    "layers that train in part": {**FSDP2, **HALF, **MIXED},
    "layers that train in part, two micro batches": {**FSDP2, **HALF, **MIXED, "gradient_accumulation_steps": 2},
    "layers that train in part, two micro batches, reduced in the last": {
        **FSDP2,
        **HALF,
        **MIXED,
        **{LAST: True, "gradient_accumulation_steps": 2},
    },
    "layers that train in part, recomputed": {**FSDP2, **HALF, **MIXED, "checkpointing": "full"},
}


@pytest.fixture
def fsdp1(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    """Where a trace wraps a model with FSDP2, it is wrapped with FSDP1."""

    def wrapped(sharding: distributed.Sharding, mesh: Any, model: Any, loss: Any, tracker: Any) -> distributed.Parallel:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import CustomPolicy

        dtype = sharding.parameter_dtype
        parts = [part for name, part in model.named_children() if name in (sharding.wrap or ())]
        classes = None if sharding.wrap is None else tuple(name for name in sharding.wrap if name[:1].isupper())
        units = {*parts, *(unit for _, unit in distributed.units_of(model, classes))}
        whole = FullyShardedDataParallel(
            model,
            device_mesh=mesh,
            device_id=torch.device("cpu"),
            auto_wrap_policy=CustomPolicy(lambda module: module in units),
            sharding_strategy=(
                ShardingStrategy.HYBRID_SHARD
                if sharding.shard != sharding.ranks
                else ShardingStrategy.FULL_SHARD
                if sharding.reshard_after_forward
                else ShardingStrategy.SHARD_GRAD_OP
            ),
            mixed_precision=MixedPrecision(
                param_dtype=dtype, reduce_dtype=sharding.reduce_dtype or dtype, cast_root_forward_inputs=True
            )
            if dtype is not None
            else None,
            use_orig_params=True,
            forward_prefetch=bool(facts.get(AHEAD)),
        )
        passes = count()

        def loss(_: Any, batch: Any) -> Any:
            if facts.get(LAST):  # as under ``no_sync()``; the first step has one micro batch, the second has two
                synchronises = next(passes) != 1
                for unit in FullyShardedDataParallel.fsdp_modules(whole):
                    unit._sync_gradients = synchronises
            return whole(batch)

        return distributed.Parallel(loss, lambda: iter(()), lambda: None, lambda: None)

    monkeypatch.setattr(distributed, "_fsdp2", wrapped)
    # It compares addresses, which fake tensors do not have.
    monkeypatch.setenv("FSDP_SKIP_WRITEBACK_CHECK", "1")


def beside(tape: Tape) -> list[tuple[int, int]]:
    """(stream, bytes, negative for a free) of each event of the step outside of the default stream, which begins with
    an allocation: PyTorch lets go of the gradients of the step before when the next one begins. Streams are numbered as
    they are met; what lives on at the end is the next step's to free."""
    begin = next(at for at, name in tape.marks if name == "forward")
    numbers: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for event in tape.events[begin:]:
        storage = event if event >= 0 else ~event
        if storage in tape.streams and (found or event >= 0):
            stream = numbers.setdefault(tape.streams[storage], len(numbers))
            found.append((stream, tape.sizes[storage] if event >= 0 else -tape.sizes[storage]))
    while found[-1][1] < 0 and len(numbers) == found[-1][0] + 1:
        found.pop()
    return found


def states(tape: Tape) -> int:
    """Bytes of the optimizer's states, which are there before the step."""
    begin = next(at for at, name in tape.marks if name == "forward")
    return sum(tape.sizes[at] for at in tape.events[:begin] if at >= 0 and tape.labels[at].component == "optimizer")


@pytest.mark.usefixtures("fsdp1")
@pytest.mark.parametrize("facts", RUNS.values(), ids=RUNS)
def test_what_pytorch_allocates_in_streams_of_its_own(facts: dict[str, Any], tmp_path: Path) -> None:
    truth, ours = in_torch(tmp_path, facts), in_meta({**facts, "parallelism.strategy": "fsdp1"})
    found = beside(ours)
    assert found == beside(truth)
    assert {stream for stream, _ in found} == set(range(len(set(ours.streams.values()))))
    assert ours.states_late
    peaks, expected = most(ours), most(truth)
    padding = 8 * facts["device_count"]  # flat parameters are aligned to 16 bytes each, ours only as a whole
    # A rank's piece of a flat parameter may be what trains or what does not: PyTorch's first rank has fewer states.
    found_bytes, expected_bytes = (peak["backward"] - states(tape) for peak, tape in ((peaks, ours), (expected, truth)))
    assert abs(found_bytes - expected_bytes) <= padding
