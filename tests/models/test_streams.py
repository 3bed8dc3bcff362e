"""Which of a rank's storages belong to streams of their own: DeepSpeed's, as its sources have it; all others', by name.

PyTorch's own wrappers are traced (``tests/differential/test_parallel.py``, ``test_fsdp1.py``). DeepSpeed 0.18:
``partitioned_param_coordinator.py`` (``__all_gather_params_``, ``fetch_sub_module``), ``stage3.py``
(``__reduce_and_partition_ipg_grads``) and ``stage_1_and_2.py`` (``reduce_ipg_grads``).
"""

from __future__ import annotations

from typing import Any

import pytest

from memlint.models.parallel.run import CASTS, DEFAULT_STREAM, GATHERS, REDUCES, REPLICAS
from tests.models.test_parallel import FSDP1, FSDP2, WIDTH, ZERO, made

THIRD = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": WIDTH}
SECOND = {**ZERO, "parallelism.zero_stage": 2}
REDUCED = {"parallelism.reduce_dtype": "float32"}
HYBRID = {"device_count": 8, "parallelism.shard": 4}

STREAMS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ZeRO-3 fetches in one stream and reduces in another": (
        THIRD,
        {"all_gather": GATHERS, "unsharded": GATHERS, "reduce_scatter": REDUCES},
    ),
    "ZeRO-3 without overlap has one": ({**THIRD, "parallelism.overlap": False}, {}),
    "ZeRO-2's share of the gradients is made where they are reduced": (
        {**SECOND, "parallelism.overlap": True},
        {"partition": REDUCES},
    ),
    "ZeRO-2 does not overlap unless told to": (SECOND, {}),
    "ZeRO-1": ({**ZERO, "parallelism.zero_stage": 1}, {}),
    "FSDP2": (FSDP2, {"cast": GATHERS, "all_gather": GATHERS, "reduced": REDUCES, "shard": REDUCES}),
    "FSDP2, hybrid": (
        {**FSDP2, **HYBRID, **REDUCED},
        {"cast": GATHERS, "all_gather": GATHERS, "shard": REDUCES},
    ),
    "FSDP2, hybrid, reduced in 16 bits": (
        {**FSDP2, **HYBRID},
        {"cast": GATHERS, "all_gather": GATHERS, "reduced": REDUCES, "shard": REPLICAS},
    ),
    "FSDP1": ({**FSDP1}, {"cast": CASTS, "unsharded": GATHERS, "reduced": REDUCES, "shard": REDUCES}),
    "FSDP1, reduced in fp32": (
        {**FSDP1, **REDUCED},
        {"cast": CASTS, "unsharded": GATHERS, "reduce_scatter": REDUCES, "shard": REDUCES},
    ),
    "DDP": ({"parallelism.strategy": "ddp", "device_count": 4}, {}),
    "tensor and sequence parallelism": (
        {"parallelism.tensor": 2, "parallelism.sequence": True, "device_count": 2},
        {},
    ),
    "context parallelism": ({"parallelism.context": 2, "device_count": 2}, {}),
}


@pytest.mark.parametrize(("facts", "expected"), STREAMS.values(), ids=STREAMS)
def test_streams_by_name(facts: dict[str, Any], expected: dict[str, int]) -> None:
    tape = made({**facts, "checkpointing": "full"}).tape
    found: dict[str, set[int]] = {}
    for storage, label in enumerate(tape.labels):
        if tape.sizes[storage] and label.component in ("communication", "gradients"):
            found.setdefault(label.name, set()).add(tape.streams.get(storage, DEFAULT_STREAM))
    # FSDP1's unsharded gradients have the name of its unsharded weights.
    beside = {name: streams - {DEFAULT_STREAM} for name, streams in found.items()}
    assert {name: stream for name, streams in beside.items() for stream in streams} == expected
    assert all(tape.labels[storage].component != "activations" for storage in tape.streams)


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2", "ddp", "zero", "none"])
def test_only_optimizers_of_pytorch_make_their_states_late(strategy: str) -> None:
    """DeepSpeed's make them when they are built (``initialize_optimizer_states``)."""
    facts = {"parallelism.strategy": strategy, "device_count": 4, "parallelism.zero_stage": 3}
    assert made(facts).tape.states_late == (strategy in ("fsdp1", "fsdp2"))


@pytest.mark.parametrize("facts", [FSDP1, FSDP2, THIRD], ids=["FSDP1", "FSDP2", "ZeRO-3"])
def test_streams_only_add_to_reserved_bytes(facts: dict[str, Any]) -> None:
    from memlint.tape.allocator import simulate

    tape = made(facts).tape
    apart = simulate(tape)
    tape.streams.clear()
    together = simulate(tape)
    assert apart.allocated_bytes == together.allocated_bytes
    assert apart.reserved_peak_bytes >= together.reserved_peak_bytes
