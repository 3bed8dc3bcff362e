"""A draw of findings is the same for a seed, no repository dominates it, and each row of a committed one is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.findings import draw

FOLDER = Path(draw.__file__).parent
TABLES = sorted(path for path in FOLDER.glob("*.csv") if path.name != "clones.csv")


def report(findings: int, code: str = "MEM201", fixes: int = 1) -> dict[str, Any]:
    """A report of one file, with findings that differ in their lines."""
    fix = {"title": "batch 2 -> 1", "device_bytes_after": 2**30}
    found = [
        {"code": code, "severity": "warning", "message": f"m {line}", "key": "k", "path": "a", "line": line}
        | {"fixes": [fix] * fixes}
        for line in range(findings)
    ]
    return {"files": [{"path": "a", "run": None, "findings": found}]}


def test_a_seed_draws_the_same_rows_whatever_the_order_of_the_clones() -> None:
    one = draw.draw({"a": report(9), "b": report(9)}, 3, 6, 2, [])
    assert one == draw.draw({"b": report(9), "a": report(9)}, 3, 6, 2, [])
    assert one != draw.draw({"a": report(9), "b": report(9)}, 4, 6, 2, [])


def test_no_repository_gives_more_than_another_before_that_one_has_given_all() -> None:
    drawn = draw.draw({"large": report(300), "small": report(2), "other": report(50)}, 1, 12, 0, ["small"])
    counts = [sum(row["repository"] == name for row in drawn) for name in ("large", "small", "other")]
    assert counts == [5, 2, 5]
    assert {row["repository"] for row in drawn if row["class"] == "new"} == {"small"}


def test_equal_findings_of_a_folder_are_drawn_once() -> None:
    told = report(1)
    (one,) = told["files"][0]["findings"]
    told["files"][0]["findings"] = [{**one, "path": path} for path in ("x/a", "x/b", "y/a")]
    assert [row["path"] for row in draw.draw({"a": told}, 1, 9, 0, [])] == ["x/a", "y/a"]


@pytest.mark.parametrize("code", draw.NOT_DRAWN)
def test_a_run_without_an_estimate_is_no_finding_to_judge(code: str) -> None:
    assert draw.draw({"a": report(3, code)}, 1, 3, 3, []) == []


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    drawn = draw.draw({"a": report(3)}, 1, 2, 1, [])
    draw.write(tmp_path / "t.csv", drawn)
    assert draw.read(tmp_path / "t.csv") == drawn
    assert [row["text"] for row in drawn if row["kind"] == "fix"] == ["batch 2 -> 1 (peak 1.0 GiB)"]


def test_figures_count_judgements_by_class_and_severity() -> None:
    drawn = draw.draw({"a": report(2)}, 1, 2, 0, ["a"])
    drawn[0] |= {"judged": "useful", "severity": "error"}
    drawn[1]["judged"] = "noise"
    lines = draw.figures(drawn)
    assert lines[0] == "findings, all: 2: useful 1 (50%), noise 1 (50%), wrong 0 (0%)"
    assert "findings, error: 1: useful 1 (100%), noise 0 (0%), wrong 0 (0%)" in lines


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_each_row_of_a_committed_table_is_judged_with_a_reason(path: Path) -> None:
    for row in draw.read(path):
        assert row["judged"] in draw.JUDGEMENTS[row["kind"]], row
        assert row["why"], row
