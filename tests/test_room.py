"""What would lower the peak is said of runs whose budget is in question, not of those with room for twice as much."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from tests.test_rules import RULES

pytestmark = pytest.mark.usefixtures("answers_kept")

EXAMPLES = Path(__file__).parent.parent / "examples"
SAVES = {info.code for info, rule in RULES if rule.saves}


def codes(path: str, budget: str) -> set[str]:
    return {finding.code for finding in memlint.check(str(EXAMPLES / path), budget=budget, isolated=True).findings}


@pytest.mark.parametrize(
    "path", ["language_models/full_llamafactory.yaml", "uni3d_dp/uni3d+dp.yaml", "language_models/run_clm_ddp.sh"]
)
def test_what_saves_memory_is_silent_where_twice_as_much_fits(path: str) -> None:
    report = memlint.check(str(EXAMPLES / path), isolated=True)
    (run,) = report.runs
    assert run.estimate is not None
    assert {finding.code for finding in report.findings} & SAVES
    high = run.estimate.device_interval.high_bytes
    assert codes(path, f"{2 * high}B") & SAVES == set()
    assert codes(path, f"{2 * high - 1}B") & SAVES


def test_errors_and_what_a_run_does_not_survive_are_no_matter_of_room() -> None:
    assert SAVES.isdisjoint({info.code for info, rule in RULES if rule.severity == "error"})
