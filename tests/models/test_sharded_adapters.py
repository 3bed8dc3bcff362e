"""Frozen weights beside adapters, packed into 4 bits or not, where a strategy shards them."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.models import parallel
from tests.models.test_parallel import CONFIG, FSDP1, FSDP2, INNER, LAYERS, RANKS, WIDTH, ZERO, made, run, storages

KEYS = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
LINEAR = (WIDTH * WIDTH, WIDTH * WIDTH, WIDTH * KEYS, WIDTH * KEYS, WIDTH * INNER, WIDTH * INNER, INNER * WIDTH)
ADAPTED = {"tuning": "lora", "lora.r": 4, "lora.targets": "all-linear", "frozen_dtype": "bfloat16"}
PACKED = {**ADAPTED, "quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True}
MIXED = {"parameter_dtype": "float32", "lora.dtype": "float32", "autocast": True, "checkpointing": "full"}
STAGE3 = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0, "lora.dtype": "bfloat16"}


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({**STAGE3, **PACKED}, id="ZeRO-3"),
        pytest.param({**FSDP1, **MIXED, **PACKED}, id="FSDP1"),
        pytest.param({**FSDP2, **MIXED, **PACKED}, id="FSDP2"),
    ],
)
def test_packed_weights_are_sharded_by_their_bytes(facts: dict[str, Any]) -> None:
    tape = made(facts).tape
    found = sorted(
        size
        for size, label in zip(tape.sizes, tape.labels)
        if label.component == "parameters" and label.module.endswith("base_layer")
    )
    assert found == sorted(-(-count // 2 // RANKS) for count in LINEAR * LAYERS)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({**STAGE3, **PACKED}, id="ZeRO-3"),
        pytest.param({**FSDP1, **MIXED, **PACKED}, id="FSDP1"),
        pytest.param({**FSDP2, **MIXED, **PACKED}, id="FSDP2"),
    ],
)
def test_scales_of_packed_weights_are_whole_on_every_rank(facts: dict[str, Any]) -> None:
    tape = made(facts).tape
    scales = sorted(size for size in storages(tape, "buffers", "absmax") if size > 1)
    assert scales == sorted(count // 64 for count in LINEAR * LAYERS)


def test_more_ranks_take_less_of_packed_weights_and_no_less_of_scales() -> None:
    def of(ranks: int) -> tuple[int, int]:
        tape = made({**FSDP1, **MIXED, **PACKED, "device_count": ranks}).tape
        return sum(storages(tape, "parameters")), sum(storages(tape, "buffers"))

    (two, scales_of_two), (four, scales_of_four) = of(2), of(4)
    assert two > four > two // 3
    assert scales_of_two == scales_of_four


def test_fsdp1_gathers_weights_that_have_the_dtype_already_as_they_are() -> None:
    """Only adapters, which train in fp32, are brought to 16 bits before they are gathered."""
    tape = made({**FSDP1, **MIXED, **ADAPTED}).tape
    trained = sum(4 * (a + b) for a, b in ((WIDTH, WIDTH),) * 2 + ((WIDTH, KEYS),) * 2 + ((WIDTH, INNER),) * 3)
    casts = storages(tape, "communication", "cast")
    assert casts
    assert max(casts) == 2 * -(-trained // RANKS)


def test_fsdp1_gathers_everything_in_another_dtype_than_it_is_kept_in() -> None:
    tape = made({**FSDP1, **MIXED, **ADAPTED, "frozen_dtype": "float32"}).tape
    layer = sum(LINEAR) + 2 * WIDTH
    assert max(storages(tape, "communication", "cast")) > 2 * layer // RANKS


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(STAGE3, (("data", RANKS), ("all", RANKS)), id="DeepSpeed talks in a copy of the group of all"),
        pytest.param({**STAGE3, "device_count": 1}, (), id="nobody to talk to"),
        pytest.param(
            {**STAGE3, "parallelism.ulysses": 2},
            (("data", RANKS), ("ulysses", 2), ("all", RANKS)),
            id="ranks that share a sequence are among those that share the states",
        ),
        pytest.param(
            {**ZERO, "parallelism.zero_stage": 1, "optimizer_library": "megatron"},
            (("data", RANKS),),
            id="Megatron's distributed optimizer is not DeepSpeed's",
        ),
        pytest.param(FSDP1, (("data", RANKS),), id="FSDP talks in the group of all"),
    ],
)
def test_groups_that_a_rank_talks_in(facts: dict[str, Any], expected: tuple[tuple[str, int], ...]) -> None:
    assert parallel.process_groups(run(**facts)) == expected
