"""What would lower the peak is said of runs whose budget is in question, not of those with room for twice as much."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.check import check_text
from memlint.settings import Settings
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


SMALL = """\
trl sft --model_name_or_path gpt2 --dataset_name trl-lib/Capybara --per_device_train_batch_size 1 --max_length 512 \\
    --optim adamw_torch --gradient_checkpointing False --output_dir out
"""


def test_what_saves_little_is_said_of_a_budget_and_not_of_anybody_s_card() -> None:
    without = check_text("run.sh", SMALL, Settings())
    assert {finding.code for finding in without.findings} & SAVES == set()
    peak = without.runs[0].estimate
    assert peak is not None
    within = check_text("run.sh", SMALL, Settings(budget=f"{peak.device_bytes}B"))
    assert {finding.code for finding in within.findings} & SAVES


def test_errors_and_what_a_run_does_not_survive_are_no_matter_of_room() -> None:
    assert SAVES.isdisjoint({info.code for info, rule in RULES if rule.severity == "error"})
