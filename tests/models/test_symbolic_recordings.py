"""A recording whose sizes keep their formulas is the recording that a plain check makes, whatever the family."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import models
from memlint.dialects import registry
from memlint.documents.load import load
from tests.hostile import sweep

SAMPLES = [place for place in sweep.configs() if sweep.FOLDERS[place[0]].name == "samples"]


@pytest.mark.parametrize("place", SAMPLES, ids=lambda place: place[1])
def test_a_report_with_formulas_is_of_the_same_step(place: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = place
    monkeypatch.chdir(sweep.FOLDERS[folder])
    for spec in registry.specs(load(str(Path(path)))):
        if spec.architecture is None:
            continue
        plain, symbolic = models.record(spec).tape, models.record(spec, symbolic=True).tape
        assert symbolic.marks == plain.marks
        assert symbolic.events == plain.events
        assert list(map(int, symbolic.sizes)) == plain.sizes
