"""A value that a key does not take is said on its line, and nothing stands in its place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from memlint.check import check_text
from memlint.reports.report import RunReport
from memlint.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


class Change(NamedTuple):
    """An example in which one text stands for another, and the key that this is about."""

    path: str
    old: str
    new: str
    key: str


def checked(change: Change) -> RunReport:
    """The only run of the changed example."""
    path = EXAMPLES / change.path
    text = path.read_text(encoding="utf-8")
    assert text.count(change.old) >= 1
    (run,) = check_text(str(path), text.replace(change.old, change.new, 1), Settings()).runs
    return run


def codes(run: RunReport) -> set[str]:
    return {finding.code for finding in run.findings}


def said(run: RunReport, code: str) -> str:
    """The messages of one code."""
    return "; ".join(finding.message for finding in run.findings if finding.code == code)


REFUSED = [
    pytest.param(
        Change("video_llm/config.yaml", "tokens_per_frame: 64", "tokens_per_frame: 0", "data.tokens_per_frame"),
        id="no tokens in a frame",
    ),
    pytest.param(
        Change("video_llm/config.yaml", "optimizer: ", "optimizer: 3 # ", "training.optimizer"),
        id="an optimizer that is a number",
    ),
    pytest.param(
        Change("dit3d/config.py", "TEXT_MAX_LENGTH = ", "TEXT_MAX_LENGTH = -", "TEXT_MAX_LENGTH"),
        id="texts of negative length",
    ),
]


@pytest.mark.parametrize("change", REFUSED)
def test_a_value_that_is_refused_ends_in_unknown_that_names_it(change: Change) -> None:
    run = checked(change)
    assert "MEM001" not in codes(run)
    assert change.key in said(run, "MEM008")
    assert run.estimate is None
    assert change.key in said(run, "MEM007")
