"""Lag mode with many images in a set: as many passes of the encoder, of which a few are written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import work
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.meta.fold import Folded
from memlint.models import fsdm_lag, saved_bytes

EXAMPLES = Path(__file__).parents[2] / "examples" / "lag_mode"
MODE = "hyperparameters.mode_conditioning"


def of_images(count: int, script: str = "train_lag_mode.sh", **changes: Any) -> TrainingSpec:
    """A run with so many images in a set."""
    (spec,) = registry.specs(load(str(EXAMPLES / script)))
    return spec.with_facts(sample_size=count, **changes)


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        pytest.param("train_lag_mode.sh", {}, id="lag mode"),
        pytest.param("train_lag_mode.sh", {MODE: "film"}, id="film mode"),
        pytest.param("train_lag_mode.sh", {"checkpointing": "full"}, id="with rematerialisation"),
        pytest.param("train_lag_mode.sh", {"attention": "sdpa"}, id="with fused attention"),
        pytest.param("train_lag_mode.sh", {"compute_dtype": "bfloat16"}, id="in 16 bits"),
        pytest.param("train_lag_mode.sh", {"hyperparameters.encoder_tokenize_mode": "mean"}, id="not stacked"),
        pytest.param("train_lag_mode.sh", {"hyperparameters.dropout": 0.1}, id="with dropout"),
        pytest.param("train_lag_mode_low_mem.sh", {}, id="tuned"),
        pytest.param("train_lag_mode_ultra_low_mem.sh", {}, id="tuned further"),
    ],
)
def test_few_passes_stand_for_many(script: str, changes: dict[str, Any]) -> None:
    spec = of_images(fsdm_lag.WORTHWHILE + 5, script, **changes)
    whole, made = fsdm_lag.record(spec), fsdm_lag.record_folded(spec, symbolic=False)
    assert made is not None
    for folded, tape in (
        (made.folded, whole.tape),
        (fsdm_lag.upper(spec, folded=True), fsdm_lag.upper(spec, folded=False)),
    ):
        assert isinstance(folded, Folded)
        assert not isinstance(tape, Folded)
        found = folded.unfold()
        assert found.events == tape.events
        assert found.sizes == tape.sizes
        assert found.marks == tape.marks
        assert found.saved_bytes == tape.saved_bytes
        assert [label[:2] for label in found.labels] == [label[:2] for label in tape.labels]
    assert saved_bytes(spec) == whole.tape.saved_bytes


def test_the_estimate_is_that_of_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = of_images(fsdm_lag.WORTHWHILE)
    one = estimate_spec(spec)
    monkeypatch.setattr(fsdm_lag, "WORTHWHILE", 1_000_000)
    assert estimate_spec(spec) == one


def test_a_thousand_images_cost_no_more_work_than_fifty() -> None:
    def steps(count: int) -> int:
        with work.limited(work.FILE_STEPS) as meter:
            estimate_spec(of_images(count))
        return meter.used

    assert 0 < steps(1000) <= steps(50)


def test_so_many_images_have_an_answer_and_no_formulas() -> None:
    few, many = (estimate_spec(of_images(count), symbolic=True) for count in (6, fsdm_lag.WITHOUT_FORMULAS))
    formulas = [[part.formula for component in one.components for part in component.parts] for one in (few, many)]
    assert any(formulas[0])
    assert not any(formulas[1])
    assert many == estimate_spec(of_images(fsdm_lag.WITHOUT_FORMULAS))


def test_repeating_passes_takes_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdm_lag, "WORTHWHILE", 1_000_000)
    with pytest.raises(work.OutOfWork, match="passes of a JAX program"), work.limited(1_000_000):
        estimate_spec(of_images(1000))
