"""The line that a reader sees first: the verdict at the borders of a budget, why there is none, and what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from memlint.documents.node import Edit, Span
from memlint.partial import LENGTH, Partial, Row
from memlint.plugin import DISPLAY, ERROR, INFO, SAFE, UNSAFE, WARNING, Finding, Fix
from memlint.reports import verdict
from memlint.reports.report import Budget, RunReport
from memlint.reports.style import Style
from memlint.tape.estimate import FITS, OOM, TIGHT, UNKNOWN, Interval
from memlint.units import GiB
from tests.reports.conftest import make_estimate, make_finding

PLACE = Span("a.yaml", 3, 3, 3, 6)


def run_of(budget: int | None = 16 * GiB, low: int = 9 * GiB, high: int = 11 * GiB, **fields: Any) -> RunReport:
    """A run whose peak is 10 GiB."""
    estimate = make_estimate()._replace(device_bytes=10 * GiB, device_interval=Interval(low, high))
    known = None if budget is None else Budget(budget, "--gpu x")
    run = RunReport("a.yaml", "train", "demo", "a model", estimate, estimate.verdict(budget), known, ())
    return run._replace(**fields)


def unknown(*findings: Finding, **fields: Any) -> RunReport:
    return run_of(estimate=None, verdict=UNKNOWN, findings=findings, **fields)


# -- the line


@pytest.mark.parametrize(
    ("run", "line"),
    [
        pytest.param(
            run_of(11 * GiB),
            "FITS a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 11.0 GiB (--gpu x): 1.00 GiB free",
            id="a budget of just the upper end is enough",
        ),
        pytest.param(
            run_of(11 * GiB - 1),
            "TIGHT a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 11.0 GiB (--gpu x): 1.00 GiB free; "
            "may not fit: the upper end of the interval is 1 B over",
            id="one byte less may not be",
        ),
        pytest.param(
            run_of(9 * GiB),
            "TIGHT a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 9.00 GiB (--gpu x): over by 1.00 GiB; "
            "may not fit: the upper end of the interval is 2.00 GiB over",
            id="a budget of just the lower end may be enough",
        ),
        pytest.param(
            run_of(9 * GiB - 1),
            "OOM a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 9.00 GiB (--gpu x): over by 1.00 GiB",
            id="one byte less is not",
        ),
        pytest.param(
            run_of(10 * GiB, low=10 * GiB, high=10 * GiB),
            "FITS a.yaml: peak 10.0 GiB, budget 10.0 GiB (--gpu x): 0 B free",
            id="an interval of one size is not shown, and a budget of that size is met",
        ),
        pytest.param(
            run_of(10 * GiB - 1, low=10 * GiB, high=10 * GiB),
            "OOM a.yaml: peak 10.0 GiB, budget 10.0 GiB (--gpu x): over by 1 B",
            id="a peak of one byte more is over by it",
        ),
        pytest.param(
            run_of(10 * GiB + 1, low=10 * GiB, high=10 * GiB),
            "FITS a.yaml: peak 10.0 GiB, budget 10.0 GiB (--gpu x): 1 B free",
            id="a peak of one byte less leaves it free",
        ),
        pytest.param(
            run_of(None),
            "NO BUDGET a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB); --gpu NAME or --budget SIZE says whether it fits",
            id="without a budget it says how to get a verdict",
        ),
        pytest.param(
            run_of(budget=None)._replace(verdict=FITS, budget=Budget(16 * GiB, "")),
            "FITS a.yaml: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 16.0 GiB: 6.00 GiB free",
            id="a budget that comes from nowhere has no source",
        ),
        pytest.param(
            run_of(run="eval"),
            "FITS a.yaml [eval]: peak 10.0 GiB (9.00 GiB to 11.0 GiB), budget 16.0 GiB (--gpu x): 6.00 GiB free",
            id="a run that is not the training is named",
        ),
        pytest.param(
            unknown(),
            "UNKNOWN a.yaml: peak unknown, the model is not known",
            id="an unknown peak is held against no budget",
        ),
    ],
)
def test_the_line_of_a_run(run: RunReport, line: str) -> None:
    assert verdict.verdict_line(run) == line


BOUND = Partial(
    (LENGTH,), ("max_length",), tuple(Row((size,), size * GiB, Interval(0, 0), OOM) for size in (10, 12)), at_least=True
)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(
            unknown(partial=BOUND)._replace(verdict=OOM, budget=Budget(8 * GiB, "--gpu x")),
            "; budget 8.00 GiB: over by 2.00 GiB already",
            id="what it takes at least is more than the budget",
        ),
        pytest.param(unknown(partial=BOUND), "", id="it is not, or the verdict would say so"),
        pytest.param(unknown(partial=BOUND, budget=None), "", id="there is no budget"),
        pytest.param(
            unknown(partial=BOUND._replace(at_least=False))._replace(verdict=OOM), "", id="no bound is known of it"
        ),
        pytest.param(unknown()._replace(verdict=OOM), "", id="nothing is known of it"),
    ],
)
def test_what_is_over_the_budget_whatever_the_rest(run: RunReport, said: str) -> None:
    assert verdict.reason(run) == f"peak unknown, the model is not known{said}"


# -- why a peak is unknown


NO_ESTIMATE = make_finding(9, "MEM007", INFO, "no estimate: the model\n is a\x07 call")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(
            unknown(NO_ESTIMATE, companion=True),
            "it says how a launcher runs others and is no run of its own",
            id="it is a launcher's settings",
        ),
        pytest.param(
            unknown(make_finding(), NO_ESTIMATE, unknown="another reason"),
            "the model is a\\x07 call",
            id="the finding of its own says so, on one line, whatever graver ones there are",
        ),
        pytest.param(
            unknown(make_finding(), unknown="no estimate: said before"), "said before", id="another run's finding does"
        ),
        pytest.param(
            unknown(make_finding(severity=WARNING, message="grave"), make_finding(message="graver"), make_finding(9)),
            "graver",
            id="no finding does, and the gravest is the closest to it",
        ),
        pytest.param(unknown(), "the model is not known", id="nothing was found"),
    ],
)
def test_why_a_peak_is_unknown(run: RunReport, said: str) -> None:
    assert verdict.why_unknown(run) == said


# -- the order of findings


LAST = make_finding(severity=ERROR, code="MEM300", size_bytes=5, path="b.yaml")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(make_finding(9, code="MEM101", path="c.yaml"), id="that of the verdict"),
        pytest.param(make_finding(9, code="MEM400", size_bytes=6, path="c.yaml"), id="the one with more at stake"),
        pytest.param(make_finding(9, code="MEM400", size_bytes=5, path="a.yaml"), id="that of the first file"),
        pytest.param(make_finding(2, code="MEM400", size_bytes=5, path="b.yaml"), id="that of the first line"),
    ],
)
def test_of_two_findings_as_grave_the_first_is(first: Finding) -> None:
    note = make_finding(1, code="MEM100", severity=INFO, size_bytes=9, path="a.yaml")
    warning = make_finding(1, code="MEM100", severity=WARNING, size_bytes=9, path="a.yaml")
    assert verdict.worst_first((note, LAST, warning, first)) == [first, LAST, warning, note]


# -- what to do


def fixed(title: str, after: int | None = 8 * GiB, safety: str = SAFE, edits: int = 1, **fields: Any) -> Fix:
    fix = Fix(title, safety, (Edit(PLACE, "1"),) * edits, after, None if after is None else GiB, after is not None)
    return fix._replace(**fields)


@pytest.mark.parametrize(
    ("fixes", "title"),
    [
        pytest.param([fixed("a", safety=UNSAFE), fixed("b", edits=3), fixed("c", safety=DISPLAY)], "b", id="is safe"),
        pytest.param([fixed("a", edits=2, saved_bytes=9 * GiB), fixed("b")], "b", id="has the fewest edits"),
        pytest.param([fixed("a"), fixed("b", saved_bytes=2 * GiB)], "b", id="saves most"),
        pytest.param([fixed("a", None, fits=True), fixed("b", edits=2)], "b", id="has a known effect"),
        pytest.param([fixed("a", fits=False), fixed("b", edits=2)], "b", id="is enough"),
        pytest.param([fixed("a", fits=None)], None, id="is not there where none is enough"),
    ],
)
def test_the_way_out(fixes: list[Fix], title: str | None) -> None:
    findings = tuple(make_finding(fixes=(fix,)) for fix in fixes)
    for budget in (8 * GiB, 10 * GiB):
        found = verdict.way_out(run_of(budget, findings=findings))
        assert (found and found.title) == title
    assert verdict.way_out(run_of(findings=findings)) is None, "it fits as it is"


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        pytest.param((), "", id="no fix is known"),
        pytest.param((fixed("a", None),), "", id="the effect of none is known"),
        pytest.param(
            (fixed("a", 0),), "to fit: a (safe: the run learns the same), peak 0 B after", id="one is enough of all"
        ),
        pytest.param(
            (fixed("a\x07", 3 * GiB, UNSAFE),),
            "to fit: a\\x07 (unsafe: may change numerics or speed), peak 3.00 GiB after",
            id="one may change speed",
        ),
        pytest.param(
            (fixed("a", None), fixed("b", 20 * GiB, fits=False), fixed("c", 0, fits=False)),
            "no single fix here fits for sure, `memlint fit` looks for several; the most is saved by c, peak 0 B after",
            id="none is known to be enough",
        ),
    ],
)
def test_what_to_do_about_a_run_that_may_not_fit(fixes: tuple[Fix, ...], said: str) -> None:
    findings = (make_finding(fixes=fixes),)
    assert verdict.action(run_of(8 * GiB, findings=findings)) == said
    assert verdict.action(run_of(10 * GiB, findings=findings)) == said
    assert verdict.action(run_of(16 * GiB, findings=findings)) == "", "it fits as it is"


# -- the lines about a run


def about(run: RunReport) -> list[str]:
    """Lines of the headline below the verdict."""
    return verdict.headline(run, Style()).splitlines()[1:]


def test_a_run_of_which_nothing_is_known_has_its_verdict_alone() -> None:
    assert about(unknown()._replace(family="", model_name="")) == []
    assert about(unknown()._replace(family="")) == ["  a model"]


def assumed(value: str, why: str) -> RunReport:
    run = run_of()
    assert run.estimate is not None
    assumptions = (("precision", "bf16", "a guess"), ("same_model_as", value, why))
    return run._replace(estimate=run.estimate._replace(assumptions=assumptions))


@pytest.mark.parametrize(
    ("run", "end"),
    [
        pytest.param(run_of(), "", id="nothing more where it starts by itself"),
        pytest.param(run_of(launch=PLACE), ", as a.yaml:3 starts it", id="what starts it"),
        pytest.param(
            run_of(launch=PLACE, launched_with="ds.json"),
            ", as a.yaml:3 starts ds.json beside it",
            id="what is started in its place",
        ),
        pytest.param(
            assumed("org/model", "the folder has its name in the hub"),
            ", taken for org/model, whose name the folder has",
            id="which model its folder is called after",
        ),
        pytest.param(
            assumed("org/model", "its owner's copy\x07"),
            ", taken for org/model, its owner's copy\\x07",
            id="which model it is taken for, and why",
        ),
    ],
)
def test_a_headline_ends_with(run: RunReport, end: str) -> None:
    (line,) = about(run)
    assert line == f"  demo, a model, 261,609,114 parameters, 6,384,448 trainable, peak in backward{end}"


def test_what_trains_is_counted_where_it_is_not_all() -> None:
    run = run_of()
    assert run.estimate is not None
    (line,) = about(run._replace(estimate=run.estimate._replace(trainable_parameters=run.estimate.parameters)))
    assert line == "  demo, a model, 261,609,114 parameters, peak in backward"


@pytest.mark.parametrize(
    ("run", "pattern", "length"),
    [
        pytest.param(run_of(launch=PLACE, launched_with="x" * 90), r"starts (x+\.\.\.) beside", 80, id="a config"),
        pytest.param(run_of(launch=PLACE._replace(path="x" * 130)), r"as (x+\.\.\.):3 starts", 120, id="a path"),
        pytest.param(assumed("x" * 90, "why"), r"taken for (x+\.\.\.), why", 80, id="a model's name"),
        pytest.param(run_of(model_name="x" * 90), r"demo, (x+\.\.\.), 261", 80, id="the run's own model"),
    ],
)
def test_a_name_of_any_length_is_cut(run: RunReport, pattern: str, length: int) -> None:
    (found,) = re.findall(pattern, about(run)[0])
    assert len(found) == length


@pytest.mark.parametrize("columns", [60, 61])
def test_each_line_is_as_long_as_the_terminal_takes(columns: int) -> None:
    # Words of one letter and a blank fill a line up to its last column or the one before.
    letters = " ".join("x" * 70)
    run = run_of(8 * GiB, family="", model_name=letters[:79], findings=(make_finding(fixes=(fixed(letters),)),))
    lines = verdict.headline(run, Style(columns=columns)).splitlines()
    first = next(number for number, line in enumerate(lines) if "to fit" in line)
    assert lines[first].startswith("  to fit: x x")
    assert lines[first + 1].startswith("    x x"), "what goes on is indented further"
    named = next(number for number, line in enumerate(lines) if number > first and line.startswith("  x"))
    assert lines[named + 1].startswith("  x x"), "a list goes on where it begins"
    # Both paragraphs stand two columns in and leave the last one free.
    assert {len(lines[at]) for at in (first, named)} == {59}


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (OOM, "\x1b[1;31mOOM\x1b[0m"),
        (TIGHT, "\x1b[1;33mTIGHT\x1b[0m"),
        (FITS, "\x1b[1;32mFITS\x1b[0m"),
        (UNKNOWN, "\x1b[1;36mUNKNOWN\x1b[0m"),
        (verdict.NO_BUDGET, "\x1b[1mNO BUDGET\x1b[0m"),
    ],
)
def test_a_verdict_has_its_colour_and_is_filled_up_without_any(word: str, shown: str) -> None:
    assert verdict.painted(word, Style(color=True)) == shown
    assert verdict.painted(word, Style(color=True), 12) == shown + " " * (12 - len(word))
    assert verdict.painted(word, Style(), 12) == word.ljust(12)
