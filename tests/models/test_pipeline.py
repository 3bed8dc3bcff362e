"""A pipeline's ranks under FSDP2, as torch.distributed.pipelining runs them: closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.models import Recording, split
from memlint.models import record as recorded
from memlint.models.split import FIRST, LAST, SECOND, candidates, in_flight, layers_of
from tests.models.test_parallel import (
    CONFIG,
    FSDP2,
    HALF,
    LAYER,
    LAYERS,
    LENGTH,
    ROWS,
    TABLE,
    WIDTH,
    WORDS,
    held,
    most_alive,
    run,
    storages,
)

MICRO_BATCHES, STAGES, SHARD = 4, 2, 4
PIPELINE: dict[str, Any] = {
    **FSDP2,
    "implementation": "torchtitan",
    "parallelism.reduce_dtype": "float32",
    "parallelism.reshard_after_forward": False,
    "parallelism.pipeline": STAGES,
    "parallelism.micro_batches": MICRO_BATCHES,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "device_count": STAGES * SHARD,
    "loss": "full",
    "optimizer_implementation": "fused",
}
HIDDEN = ROWS * LENGTH * WIDTH * 2
CONFIGURED = "hyperparameters.config"


def record(stage: str, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> Recording:
    """What is recorded of one rank."""
    monkeypatch.setattr(split, "candidates", lambda spec: (stage,))
    facts = {**PIPELINE, **facts}
    return recorded(run(facts.pop(CONFIGURED, None), **facts))


def own(stage: str) -> int:
    """Parameters of a rank: half of the layers, and the embedding, or the last norm and the head."""
    return LAYERS // STAGES * LAYER + TABLE + (WIDTH if stage == LAST else 0)


@pytest.mark.parametrize("stage", [FIRST, LAST])
def test_gradients_of_all_micro_batches_wait_whole_in_the_dtype_of_reduction(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = record(stage, monkeypatch).tape
    most = most_alive(tape, "backward", "gradients", but="shard")
    assert 4 * own(stage) <= most <= 4 * own(stage) + 4 * TABLE  # and for a moment one gradient as it comes
    reduced = storages(tape, "communication", "reduce_scatter")
    assert sum(reduced) == 4 * own(stage)  # every unit once


@pytest.mark.parametrize("stage", [FIRST, LAST])
def test_weights_are_gathered_once_in_a_step(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tape = record(stage, monkeypatch).tape
    assert sum(storages(tape, "communication", "all_gather")) == 2 * own(stage)
    assert sum(storages(tape, "communication", "unsharded")) == 2 * own(stage)
    assert most_alive(tape, "backward", "communication", but="reduce_scatter") >= 2 * own(stage)


def test_without_a_pipeline_weights_are_let_go_of_after_each_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"parallelism.pipeline": 1, "device_count": SHARD, "framework": "transformers"}
    tape = record("", monkeypatch, **facts).tape
    total = 2 * (LAYERS * LAYER + 2 * TABLE + WIDTH)
    assert sum(storages(tape, "communication", "unsharded")) == 2 * total  # two micro-batches are recorded


@pytest.mark.parametrize(
    ("stage", "pieces", "places"),
    [
        pytest.param(FIRST, 1, MICRO_BATCHES, id="the first stage receives gradients"),
        pytest.param(SECOND, 1, 2 * MICRO_BATCHES, id="one in the middle receives both"),
        pytest.param(LAST, 1, MICRO_BATCHES, id="the last stage receives hidden states"),
        pytest.param(FIRST, 2, 3 * MICRO_BATCHES, id="of two stages per rank only the very first has no input"),
    ],
)
def test_each_micro_batch_has_a_place_for_what_is_received(
    stage: str, pieces: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"parallelism.virtual_stages": pieces, "parallelism.schedule": "interleaved" if pieces > 1 else "1f1b"}
    tape = record(stage, monkeypatch, **facts).tape
    assert storages(tape, "communication", "received") == [HIDDEN] * places
    received = {n for n, label in enumerate(tape.labels) if label.name == "received" and label.component != "gradients"}
    assert not {~event for event in tape.events if event < 0} & received, "they stay"


def test_the_last_stage_keeps_the_outputs_of_all_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches are recorded; two more have gone by when the second comes."""
    tape = record(LAST, monkeypatch).tape
    output = ROWS * LENGTH * WORDS * 2
    assert storages(tape, "logits", "kept output") == [output] * (MICRO_BATCHES - 2)
    step_begins = next(at for at, name in tape.marks if name == "optimizer_step")
    kept = {n for n, label in enumerate(tape.labels) if label.name == "kept output"}
    assert {~event for event in tape.events[:step_begins] if event < 0} >= kept, "until the optimizer steps"


def test_elsewhere_nothing_is_kept_or_received_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = record(LAST, monkeypatch, **{"parallelism.micro_batches": None}).tape
    assert storages(tape, "logits", "kept output") == storages(tape, "communication", "received") == []


def test_an_interleaved_last_rank_has_one_loss_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"parallelism.virtual_stages": 2, "parallelism.schedule": "interleaved"}
    found = in_flight(run(**{**PIPELINE, **facts}), LAST)
    assert found == 2  # (2 - 1) * 2 + 1 pieces of half a rank
    tape = record(LAST, monkeypatch, **facts).tape
    whole = ROWS * LENGTH * WORDS * 4
    assert storages(tape, "logits").count(whole) == storages(record(LAST, monkeypatch).tape, "logits").count(whole) / 2
    assert len(storages(tape, "logits", "kept output")) == MICRO_BATCHES - 1


@pytest.mark.parametrize(
    ("layers", "stages", "ranks", "names"),
    [
        pytest.param((15, *[16] * 6, 15), 8, (15, 16, 15), (FIRST, SECOND, LAST), id="more layers in the middle"),
        pytest.param((4, 4, 4, 4), 4, (4, 4, 4), (FIRST, LAST), id="as many everywhere"),
        pytest.param((3, 4, 4, 5), 2, (7, 0, 9), (FIRST, LAST), id="two ranks of two stages, taken in turn"),
        pytest.param((1, 3, 3, 1, 3, 1), 3, (2, 6, 4), (FIRST, SECOND, LAST), id="three ranks of two stages"),
        pytest.param(None, 4, (0, 0, 0), (FIRST, LAST), id="not said"),
    ],
)
def test_layers_of_the_ranks(
    layers: tuple[int, ...] | None, stages: int, ranks: tuple[int, int, int], names: tuple[str, ...]
) -> None:
    facts: dict[str, Any] = {"parallelism.pipeline": stages, "parallelism.stage_layers": layers}
    spec = run(**facts)
    assert (layers_of(spec, FIRST), layers_of(spec, SECOND), layers_of(spec, LAST)) == ranks
    assert candidates(spec) == names


def test_a_rank_has_the_layers_that_its_stages_have(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"parallelism.pipeline": 3, "device_count": 3 * SHARD, "parallelism.stage_layers": (1, 2, 1)}
    weights = {
        stage: held(record(stage, monkeypatch, **facts).tape, "forward")["parameters"]
        for stage in (FIRST, SECOND, LAST)
    }
    assert {stage: size * SHARD for stage, size in weights.items()} == {
        FIRST: 4 * (LAYER + TABLE),
        SECOND: 4 * 2 * LAYER,
        LAST: 4 * (LAYER + TABLE + WIDTH),
    }


def test_the_second_stage_has_one_micro_batch_less_in_flight() -> None:
    facts: dict[str, Any] = {"parallelism.pipeline": 4, "gradient_accumulation_steps": 8}
    assert [in_flight(run(**facts), stage) for stage in (FIRST, SECOND, LAST)] == [4, 3, 1]
    interleaved = {**facts, "parallelism.schedule": "interleaved", "parallelism.virtual_stages": 2}
    assert [in_flight(run(**interleaved), stage) for stage in (FIRST, SECOND, LAST)] == [6, 5, 3]


# -- interleaved, one round: fewer micro-batches than twice as many as there are ranks

ROUND = {
    "parallelism.virtual_stages": 2,
    "parallelism.schedule": "interleaved",
    "parallelism.micro_batches": 3,
    "gradient_accumulation_steps": 3,
}


@pytest.mark.parametrize("stage", [FIRST, LAST])
def test_in_one_round_a_stage_is_reduced_before_the_next_has_gradients(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, several = record(stage, monkeypatch, **ROUND).tape, record(stage, monkeypatch).tape
    half = LAYERS // STAGES // 2 * LAYER
    fullest = 4 * (own(stage) - half)  # embedding or head, and one of two layers
    most = most_alive(rounds, "backward", "gradients", but="shard")
    before = most_alive(several, "backward", "gradients", but="shard")
    assert 4 * own(stage) <= before
    if stage == LAST:  # the last phase of it is of its other stage
        assert 4 * half <= most <= before - fullest + 4 * half
    else:
        assert fullest <= most <= before - 4 * half + 4 * LAYER // 2
    for tape in (rounds, several):
        assert sum(storages(tape, "communication", "reduce_scatter")) == 4 * own(stage)
        assert sum(storages(tape, "communication", "all_gather")) == 2 * own(stage)


def test_in_one_round_all_micro_batches_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are real ones, then, and live until the last backward pass is over."""
    tape = record(LAST, monkeypatch, **ROUND).tape
    assert storages(tape, "logits", "kept output") == []
    outputs = {
        storage
        for storage, label in enumerate(tape.labels)
        if label.component == "logits" and tape.sizes[storage] == ROWS * LENGTH * WORDS * 2
    }
    step_begins = next(at for at, name in tape.marks if name == "optimizer_step")
    freed = [event for event in tape.events[:step_begins] if event < 0]
    last = [~event for event in freed[-8:]]
    assert len(outputs & set(last)) == 3
    assert outputs <= {~event for event in freed}


def test_in_one_round_a_rank_holds_what_its_stages_hold_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage layers 1 and 2 of the second of three ranks."""
    facts = {**ROUND, "parallelism.pipeline": 3, "device_count": 3 * SHARD}
    facts["parallelism.stage_layers"] = (1, 1, 1, 1, 3, 1)
    facts[CONFIGURED] = {**CONFIG, "num_hidden_layers": 8}
    tape = record(SECOND, monkeypatch, **facts).tape
    assert held(tape, "forward")["parameters"] == 4 * 4 * LAYER // SHARD
    assert storages(tape, "communication", "received") == [HIDDEN] * 3 * 4
    reduced = storages(tape, "communication", "reduce_scatter")
    assert [size // (4 * LAYER) for size in reduced] == [1] * 4


@pytest.mark.parametrize(
    ("accumulation", "kept"),
    [
        pytest.param(1, 1, id="one micro-batch comes into one buffer"),
        pytest.param(8, 2, id="several come into two in turn"),
    ],
)
def test_deepspeed_keeps_the_logits_of_the_last_micro_batches(accumulation: int, kept: int) -> None:
    """deepspeed/runtime/pipe/engine.py, _exec_backward_pass: only stages before the last let outputs go."""
    facts = {**HALF, "loss": "full", "gradient_accumulation_steps": accumulation}
    logits = ROWS * LENGTH * WORDS
    without = held(recorded(run(None, **facts)).tape, "optimizer_step").get("logits", 0)
    tape = recorded(run(None, **facts, **{"parallelism.buffered_outputs": "float32"})).tape
    assert held(tape, "optimizer_step")["logits"] == without + kept * 4 * logits
    assert most_alive(tape, "forward", "logits", but="none") >= (kept + 1) * 4 * logits


def test_of_a_pipeline_the_last_stage_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"parallelism.buffered_outputs": "bfloat16", "parallelism.micro_batches": None}
    for stage, kept in ((FIRST, 0), (LAST, 2)):
        logits = held(record(stage, monkeypatch, **facts).tape, "optimizer_step").get("logits", 0)
        assert logits // (2 * ROWS * LENGTH * WORDS) == kept
