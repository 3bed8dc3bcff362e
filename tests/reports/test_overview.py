"""A folder at a glance: verdicts and what to do first, on one screen however many runs there are."""

from __future__ import annotations

import re

import pytest

from memlint.plugin import DISPLAY, ERROR, SAFE, UNSAFE, Fix
from memlint.reports import concise, full, overview
from memlint.reports.full import Style
from memlint.reports.report import Report, RunReport
from memlint.reports.text import width
from memlint.reports.verdict import way_out
from memlint.units import GiB

from .conftest import make_finding, make_run

FIX = Fix("batch_size 128 -> 32", DISPLAY, (), 8 * GiB, 14 * GiB, True)


def oom(name: str, over_bytes: int = 0) -> RunReport:
    run = make_run(make_finding(path=name, code="MEM101", fixes=(FIX,)), path=name)
    assert run.budget is not None
    return run._replace(budget=run.budget._replace(size_bytes=run.budget.size_bytes - over_bytes))


def fits(name: str) -> RunReport:
    run = make_run(path=name)
    assert run.budget is not None
    return run._replace(verdict="FITS", budget=run.budget._replace(size_bytes=80 * GiB))


def unknown(name: str) -> RunReport:
    run = make_run(
        make_finding(1, "MEM007", "info", f"no estimate: the model of {name} is not known", path=name), path=name
    )
    return run._replace(estimate=None, verdict="UNKNOWN", model_name="")


def folder(count: int) -> Report:
    kinds = (fits, unknown, oom)
    return Report(tuple(kinds[number % 3](f"configs/{number:03}.yaml") for number in range(count)), 0.1)


def test_the_worst_verdict_is_first_and_the_largest_overshoot_first_among_equals() -> None:
    report = Report((fits("a.yaml"), unknown("b.yaml"), oom("c.yaml"), oom("d.yaml", GiB)), 0.1)
    rows = [line.split() for line in overview.table(report, Style()) if "to fit" not in line][1:]
    assert [row[0] for row in rows] == ["OOM", "OOM", "UNKNOWN", "FITS"]
    assert ["d.yaml" in row for row in rows] == [True, False, False, False]


def test_below_a_run_that_does_not_fit_stands_what_to_do() -> None:
    _, row, way, _ = overview.table(Report((oom("c.yaml"), fits("a.yaml")), 0.1), Style())
    assert row.endswith("c.yaml  MEM101 token-explosion")
    assert way.strip() == "to fit: batch_size 128 -> 32 (changes the optimisation), peak 8.00 GiB after"


def test_the_ways_out_of_the_worst_runs_are_shown_and_all_of_them_on_request() -> None:
    report = Report(tuple(oom(f"{number}.yaml", number * GiB) for number in range(9)), 0.1)
    for verbose, expected in ((False, overview.MAX_ACTIONS), (True, 9)):
        lines = list(overview.table(report, Style(verbose=verbose)))
        assert sum("to fit: " in line for line in lines) == expected


@pytest.mark.parametrize("count", [4, 60, 250])
def test_a_folder_is_one_screen_with_all_its_verdicts(count: int) -> None:
    text = full.render(folder(count), Style(columns=100))
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(width, lines)) <= 100
    assert lines[1].startswith("OOM")
    assert "to fit: batch_size 128 -> 32 (changes the optimisation)" in lines[2]
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (OOM|UNKNOWN|FITS)", lines[-1])}
    assert counted == {word: (count + 2 - at) // 3 for at, word in enumerate(("FITS", "UNKNOWN", "OOM"))}


def test_verbose_unfolds_every_run_and_every_finding() -> None:
    text = full.render(folder(60), Style(verbose=True))
    for number in range(60):
        assert f"configs/{number:03}.yaml" in text
    assert text.count("-->") == 40


def test_what_the_table_leaves_out_is_counted_by_verdict() -> None:
    report = Report(tuple(unknown(f"configs/{number}.yaml") for number in range(40)), 0.1)
    assert list(overview.table(report, Style()))[-1] == "and 28 UNKNOWN more runs (-v shows every one)"


def test_quiet_and_concise_carry_the_verdict_of_every_run() -> None:
    report = Report((fits("a.yaml"), unknown("b.yaml"), oom("c.yaml")), 0.1)
    for text in (full.render(report, Style(quiet=True)), concise.render(report)):
        assert [word in text for word in ("FITS", "UNKNOWN", "OOM")] == [True, True, True]


def test_a_run_without_a_budget_says_how_to_get_a_verdict() -> None:
    run = make_run()._replace(budget=None, verdict="UNKNOWN")
    first = full.render(Report((run,), 0.1)).splitlines()[0]
    assert first == (
        "NO BUDGET configs/demo.yaml: peak 22.5 GiB (22.4 GiB to 23.5 GiB); "
        "--gpu NAME or --budget SIZE says whether it fits"
    )


FIXES = {
    "the least intrusive one": ([FIX, FIX._replace(title="x", safety=SAFE), FIX._replace(safety=UNSAFE)], "x"),
    "none that does not fit": ([FIX._replace(fits=False, safety=SAFE), FIX._replace(title="y")], "y"),
    "nothing where nothing fits": ([FIX._replace(fits=False)], None),
}


@pytest.mark.parametrize("case", FIXES)
def test_the_way_out_is(case: str) -> None:
    fixes, expected = FIXES[case]
    found = way_out(make_run(make_finding(severity=ERROR, fixes=tuple(fixes))))
    assert (found.title if found else None) == expected


def test_a_terminal_is_not_written_beyond_its_width() -> None:
    notes = ("a note of many words " * 20,)
    finding = make_finding(message="a message of many words " * 12, notes=notes, fixes=(FIX._replace(title="b " * 90),))
    lines = full.render(Report((make_run(finding),), 0.1), Style(columns=100)).splitlines()
    assert max(map(width, lines)) <= 100
    assert "\n".join(lines).count("many") == 32
