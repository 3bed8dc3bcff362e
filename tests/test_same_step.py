"""A what-if that only changes how the allocator serves a step reuses the step's recording."""

from __future__ import annotations

from typing import Any

import pytest

from memlint import models
from memlint.estimates import Estimates, _same_step, estimate_spec
from memlint.facts.spec import Fact, TrainingSpec
from memlint.models import Recording

FACTS: dict[str, Any] = {
    "hyperparameters.config": {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    },
    "micro_batch_size": 8,
    "sequence_length": 512,
}


def spec() -> TrainingSpec:
    made = {name: Fact(name, value) for name, value in FACTS.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


def test_the_totals_are_those_of_a_recording_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    record = models.record

    def counted(*args: Any, **options: Any) -> Recording:
        nonlocal calls
        calls += 1
        return record(*args, **options)

    monkeypatch.setattr(models, "record", counted)
    recordings: list[Recording] = []
    base = estimate_spec(spec(), recordings=recordings)
    changed = spec().with_facts(allocator_conf="expandable_segments:True")
    shared = estimate_spec(changed, recordings=recordings)
    assert calls == 1
    assert shared == estimate_spec(changed)
    assert shared.reserved_bytes != base.reserved_bytes


def test_a_symbolic_recording_is_not_kept() -> None:
    recordings: list[Recording] = []
    estimate_spec(spec(), symbolic=True, recordings=recordings)
    assert recordings == []


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        pytest.param({"allocator_conf": "expandable_segments:True"}, True, id="settings of the allocator"),
        pytest.param({}, True, id="nothing"),
        pytest.param({"micro_batch_size": 4}, False, id="another batch"),
        pytest.param({"allocator_conf": "max_split_size_mb:64", "ema": True}, False, id="more than the allocator"),
    ],
)
def test_the_step_is_the_same_where_only_the_allocator_is_told_otherwise(changes: dict[str, Any], same: bool) -> None:
    assert _same_step(spec(), spec().with_facts(**changes)) is same


def test_what_is_live_and_what_the_allocator_makes_of_it_take_one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    record = models.record

    def counted(*args: Any, **options: Any) -> Recording:
        nonlocal calls
        calls += 1
        return record(*args, **options)

    changed = spec().with_facts(micro_batch_size=2)
    expected = estimate_spec(changed)
    monkeypatch.setattr(models, "record", counted)
    estimates = Estimates(spec())
    assert estimates.allocated_bytes(changed) == expected.allocated_bytes
    assert estimates.newest(spec().with_facts(micro_batch_size=2)) == expected
    assert calls == 1
    estimates.newest(spec().with_facts(micro_batch_size=4))
    assert calls == 2


@pytest.mark.parametrize(
    ("changes", "gone", "recorded"),
    [
        pytest.param({"hyperparameters.note": "x"}, "", 1, id="a fact that no model asks for"),
        pytest.param({"micro_batch_size": 4}, "", 2, id="a size"),
        pytest.param({}, "ema", 2, id="a copy of the weights that is gone"),
    ],
)
def test_a_run_that_is_read_again_is_recorded_where_something_differs_that_is_asked_for(
    changes: dict[str, Any], gone: str, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    record = models.record

    def counted(*args: Any, **options: Any) -> Recording:
        nonlocal calls
        calls += 1
        return record(*args, **options)

    own = spec().with_facts(ema=True, packing=True)  # rows of one length, whose step is recorded once
    other = own.read_as(own.with_facts(**changes))
    other.facts.pop(gone, None)
    expected = estimate_spec(other)
    monkeypatch.setattr(models, "record", counted)
    estimates = Estimates(own)
    estimates.own()
    estimates.newest(own)
    assert estimates.newest(other) == expected
    assert calls == recorded


def test_a_run_that_is_read_again_keeps_its_own_facts_where_both_say_the_same() -> None:
    own = spec()
    again = own.read_as(spec().with_facts(micro_batch_size=8.0, ema=True))
    assert {name for name in again.facts if again.facts[name] is own.facts.get(name)} == {*FACTS} - {"micro_batch_size"}
