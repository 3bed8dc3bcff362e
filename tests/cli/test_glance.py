"""A folder at a glance: no more is estimated for it than it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import work
from memlint.check import check_paths
from memlint.plugin import Run
from memlint.reports.overview import looked_at
from memlint.reports.report import Report
from memlint.settings import Resolver
from memlint.tape import summary

CONFIG = """\
model_name_or_path: Qwen/Qwen2.5-1.5B
max_length: 1024
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
gradient_checkpointing: false
bf16: true
output_dir: out
"""


def folder(path: Path, runs: int) -> list[str]:
    for number in range(runs):
        (path / f"f{number}.yaml").write_text(CONFIG.replace("1024", str(1024 + number)), encoding="utf-8")
    return [str(path)]


def said(report: Report) -> list[tuple[Any, ...]]:
    """Of each run, what an overview has of it."""
    return [
        (run.path, run.estimate and run.estimate.device_bytes, [(one.code, one.message) for one in run.findings])
        for run in report.runs
    ]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The simulations of the allocator, by the bytes that each came to."""
    found: list[int] = []
    simulate = summary.simulate

    def counted(*arguments: Any, **options: Any) -> Any:
        result = simulate(*arguments, **options)
        found.append(result.reserved_peak_bytes)
        return result

    monkeypatch.setattr(summary, "simulate", counted)
    return found


def test_of_a_run_that_an_overview_only_lists_one_step_is_simulated(tmp_path: Path, simulated: list[int]) -> None:
    paths = folder(tmp_path, 5)
    glance = check_paths(paths, Resolver({}), details=False, closer=looked_at)
    assert len(simulated) == 5
    assert said(glance) == said(check_paths(paths, Resolver({})))
    assert len(simulated) > 10  # older releases, and the fix


def test_of_the_rows_of_a_run_without_an_estimate_the_ends_are_simulated(tmp_path: Path, simulated: list[int]) -> None:
    """With one device and with eight, where nobody says how many share the run."""
    for number in range(5):
        shared = CONFIG + f"deepspeed: zero.json\nseed: {number}\n"
        (tmp_path / f"f{number}.yaml").write_text(shared.replace("1024", str(1024 + number)), encoding="utf-8")
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    glance = check_paths([str(tmp_path)], Resolver({}), details=False, closer=looked_at)
    rows = [run.partial.rows for run in glance.runs if run.partial is not None]
    assert len(rows) == 5
    assert len(simulated) == sum(map(len, rows))
    whole = check_paths([str(tmp_path)], Resolver({}))
    every = [run.partial.rows for run in whole.runs if run.partial is not None]
    assert [len(of_one) for of_one in every] == [4] * 5
    assert [[row.device_bytes for row in of_one] for of_one in rows] == [
        [of_one[0].device_bytes, of_one[-1].device_bytes] for of_one in every
    ]
    assert said(glance) == said(whole)


def test_the_few_runs_that_are_told_one_by_one_are_told_whole(tmp_path: Path) -> None:
    paths = folder(tmp_path, 2)
    glance, whole = check_paths(paths, Resolver({}), details=False, closer=looked_at), check_paths(paths, Resolver({}))
    assert glance.runs == whole.runs
    assert glance.runs[0].findings[0].fixes


def test_a_closer_look_that_no_work_is_left_for_is_said(tmp_path: Path) -> None:
    """The check ended with exit code 2, and no word why."""
    paths = folder(tmp_path, 5)

    def closer(report: Report) -> list[str]:
        work.meter().left = 0
        return [run.path for run in report.runs]

    seen = check_paths(paths, Resolver({}), details=False, closer=closer)
    assert seen.crashed
    assert len(seen.runs) == 5
    [(_, why)] = seen.errors
    assert why.startswith("this file and 4 more after it are not checked")


def test_a_verdict_takes_all_of_the_interval(tmp_path: Path) -> None:
    paths, given = folder(tmp_path, 5), Resolver({"budget": "16GB"})
    glance, whole = check_paths(paths, given, details=False, closer=looked_at), check_paths(paths, given)
    assert [(run.verdict, run.estimate) for run in glance.runs] == [(run.verdict, run.estimate) for run in whole.runs]


def test_what_checkpointing_leaves_live_says_whether_it_is_worthwhile(tmp_path: Path) -> None:
    seen: list[Run] = []
    report = check_paths(folder(tmp_path, 1), Resolver({}), look=seen.append)
    (finding,) = [one for one in report.findings if one.code == "MEM202"]
    assert seen[0].estimate is not None
    live = seen[0].estimate.allocated_bytes - seen[0].allocated_if(checkpointing="full")
    assert finding.size_bytes == live
