"""A folder at a glance: verdicts and what to do first, on one screen however many runs there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from memlint.partial import LENGTH, Partial, Row
from memlint.plugin import DISPLAY, ERROR, INFO, SAFE, UNSAFE, WARNING, Fix
from memlint.reports import concise, full, overview
from memlint.reports.full import Style
from memlint.reports.report import Budget, Report, RunReport
from memlint.reports.text import width
from memlint.reports.verdict import way_out
from memlint.tape.estimate import Interval
from memlint.units import GiB

from .conftest import make_estimate, make_finding, make_run

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


# -- the table to the last column


def run_of(path: str, size: int = 20, verdict: str = "OOM", **fields: Any) -> RunReport:
    """A run with a budget of 16 GiB, of which nothing is said."""
    run = make_run(path=path)._replace(estimate=make_estimate()._replace(device_bytes=size * GiB), verdict=verdict)
    return run._replace(**fields)


def rows(*runs: RunReport, **style: Any) -> list[str]:
    return list(overview.table(Report(runs, 0.1), Style(**style)))


def reason(path: str, said: str) -> RunReport:
    """A run without an estimate, and why."""
    return run_of(path, verdict="UNKNOWN", estimate=None, unknown=said)


def partial(*sizes: int, at_least: bool = False) -> Partial:
    found = tuple(Row((size,), size * GiB, Interval(size * GiB, size * GiB), "UNKNOWN") for size in sizes)
    return Partial((LENGTH,), ("max_length",), found, at_least=at_least)


def test_a_table_is_in_columns() -> None:
    found = (make_finding(9, message="less"), make_finding(code="MEM101")._replace(name="over-budget"))
    assert rows(
        run_of("a.yaml", 9, "FITS"),
        run_of("longer/b.yaml", 100, findings=found),
        run_of("c.yaml", budget=None, verdict="UNKNOWN"),
        reason("d.yaml", "no model"),
        *(run_of(f"{name}.yaml", 9, "FITS", run="eval") for name in "xyz"),
    ) == [
        "verdict        peak    budget  run                worst finding",
        "OOM         100 GiB  16.0 GiB  longer/b.yaml      MEM101 over-budget",
        "UNKNOWN     unknown  16.0 GiB  d.yaml             no model",
        "NO BUDGET  20.0 GiB            c.yaml",
        "FITS       9.00 GiB  16.0 GiB  a.yaml and 3 more",
    ]


def test_what_to_do_about_equal_runs_is_told_of_the_first() -> None:
    ways = [(make_finding(fixes=(Fix(title, SAFE, (), GiB, 19 * GiB, True),)),) for title in ("one", "another")]
    _, row, way = rows(run_of("a.yaml", findings=ways[0]), run_of("b.yaml", findings=ways[1]))
    assert "a.yaml and 1 more" in row
    assert way == "         to fit: one (safe: the run learns the same), peak 1.00 GiB after"


def test_a_report_of_no_runs_has_no_table() -> None:
    assert rows() == []


@pytest.mark.parametrize(
    ("found", "size"),
    [
        pytest.param(partial(8, 4, 32, 6), "4.00 GiB to 32.0 GiB", id="from the least to the most"),
        pytest.param(partial(8, 8), "8.00 GiB", id="one size, where they are the same"),
        pytest.param(partial(8, 4, 32, at_least=True), "over 4.00 GiB", id="a bound is the least of them"),
    ],
)
def test_a_peak_that_is_a_function_is_a_range(found: Partial, size: str) -> None:
    run = run_of("a.yaml", verdict="UNKNOWN", estimate=None, partial=found)
    _, row, _ = rows(run, run_of("b.yaml", 9, "FITS"))
    assert f"UNKNOWN  {size}  16.0 GiB  a.yaml  " in row


@pytest.mark.parametrize("columns", [0, 59])
def test_without_the_width_of_a_terminal_names_have_sixty_columns_and_reasons_more(columns: int) -> None:
    run = reason("d/" * 29 + "xyz", "w" * 150)
    way = Fix("t" * 200, SAFE, (), GiB, 19 * GiB, True)
    fit = run_of("e" * 60, findings=(make_finding(fixes=(way,)),))
    header, first, below, second = rows(run, fit, columns=columns)
    assert header.index("worst finding") == first.index("MEM201") == second.index("www") == 29 + 60 + 2
    assert f"  {'e' * 60}  MEM201" in first
    assert f"  ...{'d/' * 27}xyz  " in second
    assert second.endswith(f"  {'w' * 137}...")
    assert below.endswith(" after"), "what to do is whole"


@pytest.mark.parametrize("columns", [60, 61, 100])
@pytest.mark.parametrize("letter", ["x", "\u4f60"], ids=["latin", "of two columns each"])
def test_a_row_ends_before_the_last_column_of_the_terminal(columns: int, letter: str) -> None:
    way = Fix(letter * 200, SAFE, (), GiB, 19 * GiB, True)
    budget = Budget(500 * GiB, "")
    fit = run_of(letter * 90, budget=budget, findings=(make_finding(fixes=(way,)),))
    unknown = reason(letter * 91, letter * 150)._replace(budget=budget)
    header, first, below, second = rows(unknown, fit, columns=columns)
    room = columns - len("UNKNOWN") - len("20.0 GiB") - len("500 GiB") - 4 * len("  ")
    at = width(second[: second.index("  ...")]) + 2
    assert header.index("worst finding") == at + room // 2 + 2
    for line in (below, second):
        assert columns - 1 - (width(letter) - 1) <= width(line) <= columns - 1
    assert width(first) <= columns - 1
    assert "  ..." in first, "of a name the end is shown"
    assert second.count("...") == 2


def test_names_that_are_short_leave_their_room_to_what_is_said() -> None:
    _, _, second = rows(run_of("a.yaml"), reason("b.yaml", "w" * 150), columns=100)
    assert len(second) == 99
    assert second.count("...") == 1


@pytest.mark.parametrize(
    ("count", "last"),
    [
        pytest.param(12, "OOM      20.0 GiB  16.0 GiB  0.yaml", id="twelve rows are shown"),
        pytest.param(13, "and 1 OOM more run (-v shows every one)", id="one more is counted"),
        pytest.param(14, "and 2 OOM more runs (-v shows every one)", id="two more are"),
    ],
)
def test_the_table_is_cut_at_twelve_rows(count: int, last: str) -> None:
    runs = [run_of(f"{number}.yaml", 20 + number) for number in range(count)]
    assert rows(*runs)[-1] == last
    assert len(rows(*runs)) == 1 + min(count, 13)
    assert rows(*runs, verbose=True)[-1] == "OOM      20.0 GiB  16.0 GiB  0.yaml"


def test_what_is_left_out_is_counted_by_verdict_and_the_worst_first() -> None:
    shown = [run_of(f"{number}.yaml", 20 + number) for number in range(12)]
    left = [run_of("f.yaml", 9, "FITS"), *(reason(f"{name}.yaml", "no model") for name in "uv")]
    assert rows(*left, *shown)[-1] == "and 2 UNKNOWN, 1 FITS more runs (-v shows every one)"
    assert overview.counted(Report((*left, *shown), 0.1), Style()) == "12 OOM, 2 UNKNOWN, 1 FITS; "
    assert overview.counted(Report((left[0], left[1]), 0.1), Style()) == "1 UNKNOWN, 1 FITS; "
    assert overview.counted(Report((left[0],), 0.1), Style()) == ""


GRAVE = run_of("c.yaml", findings=(make_finding(9), make_finding(9, severity=INFO)))


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(run_of("a.yaml", 99, "TIGHT"), id="a better verdict"),
        pytest.param(run_of("a.yaml", 19), id="less over the budget"),
        pytest.param(
            run_of("a.yaml", findings=(make_finding(1, "MEM101", WARNING), make_finding(1, severity=WARNING))),
            id="findings that are less grave",
        ),
        pytest.param(run_of("a.yaml"), id="no findings"),
        pytest.param(GRAVE._replace(path="d.yaml"), id="a path behind it"),
        pytest.param(GRAVE._replace(run="warmup"), id="the same path and a name behind it"),
    ],
)
def test_a_run_comes_later_for(later: RunReport) -> None:
    for runs in ((GRAVE, later), (later, GRAVE)):
        assert overview.sorted_runs(Report(runs, 0.1)) == [GRAVE, later]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(3, {"0.yaml", "1.yaml", "2.yaml"}, id="all of three, also where they fit"),
        pytest.param(4, {"1.yaml", "2.yaml", "3.yaml"}, id="of four those that do not fit"),
        pytest.param(7, {"3.yaml", "4.yaml", "5.yaml", "6.yaml"}, id="the worst four of many"),
    ],
)
def test_whose_fixes_are_made(count: int, expected: set[str]) -> None:
    runs = [run_of("0.yaml", 9, "FITS"), *(run_of(f"{number}.yaml", 20 + number) for number in range(1, count))]
    assert overview.looked_at(Report(tuple(runs), 0.1)) == expected
    again = [*runs, *(run._replace(path="z" + run.path) for run in runs[1:])]
    if count > 3:
        assert overview.looked_at(Report(tuple(again), 0.1)) == expected, "of equal runs the first"


# -- findings by rule


def by_rule(*found: Any, **style: Any) -> list[str]:
    return list(overview.by_rule(Report((make_run(*found),), 0.1), Style(**style)))


def test_two_findings_of_a_rule_are_counted() -> None:
    found = by_rule(make_finding(message="one\n more\x07"), make_finding(9), make_finding(code="MEM300"))
    assert found == [
        "error MEM201 token-explosion x 2: one more\\x07, in configs/demo.yaml:3 and others",
        "error MEM300 token-explosion: 128 samples x 64 groups dominate, in configs/demo.yaml:3",
        "(-v tells each finding with its line and fixes, as `memlint check FILE` does)",
    ]
    assert by_rule() == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param([], None, id="five are shown"),
        pytest.param(["MEM306"], "and 1 finding of 1 more rule", id="one more is counted"),
        pytest.param(["MEM306", "MEM306"], "and 2 findings of 1 more rule", id="with all its findings"),
        pytest.param(["MEM306", "MEM307"], "and 2 findings of 2 more rules", id="two more are"),
    ],
)
def test_rules_beyond_the_fifth_are_counted(more: list[str], said: str | None) -> None:
    codes = [f"MEM30{number}" for number in range(1, 6)]
    *lines, _ = by_rule(*(make_finding(code=code) for code in (*codes, *more)))
    assert [line.split()[1] for line in lines[:5]] == codes
    assert lines[5:] == ([] if said is None else [said])


@pytest.mark.parametrize("columns", [60, 61, 100])
@pytest.mark.parametrize("letter", ["x", "\u4f60"], ids=["latin", "of two columns each"])
def test_what_a_rule_said_ends_before_the_last_column(columns: int, letter: str) -> None:
    line = by_rule(make_finding(message=letter * 200), columns=columns)[0]
    assert line.startswith(f"error MEM201 token-explosion: {letter}")
    assert line.endswith(letter + "...")
    assert columns - 1 - (width(letter) - 1) <= width(line) <= columns - 1


@pytest.mark.parametrize("columns", [0, 59])
def test_what_a_rule_said_is_cut_without_a_terminal(columns: int) -> None:
    line = by_rule(make_finding(message="x" * 200), columns=columns)[0]
    assert len(line) == len("error MEM201 token-explosion") + 140
