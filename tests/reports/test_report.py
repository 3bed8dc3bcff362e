"""The report itself: its exit code, its bounds, and how a measured run differs from a predicted one."""

from __future__ import annotations

import pytest

from memlint.plugin import DISPLAY, ERROR, INFO, SEVERITIES, WARNING, Finding, Fix
from memlint.reports import report as reports
from memlint.reports.report import (
    MAX_ENTRIES,
    MAX_OF_A_KIND,
    MAX_RELATED,
    MAX_TEXT,
    Budget,
    Machine,
    Measured,
    Report,
    RunReport,
    StatedFact,
    UnresolvedValue,
    bounded,
    bounded_findings,
    shortened,
)
from memlint.tape.estimate import OOM, TIGHT, UNKNOWN, Component, Estimate, Part
from tests.reports.conftest import make_estimate, make_finding


def run_with(*findings: Finding, estimate: Estimate | None = None, measured: Measured | None = None) -> RunReport:
    return RunReport("a.yaml", "train", "demo", "model", estimate, "FITS", None, findings, measured=measured)


# -- the exit code


@pytest.mark.parametrize(
    ("severities", "fail_on", "code"),
    [
        pytest.param([], ERROR, 0, id="nothing"),
        pytest.param([ERROR], ERROR, 1, id="an error"),
        pytest.param([WARNING, INFO], ERROR, 0, id="less than an error"),
        pytest.param([WARNING], WARNING, 1, id="a warning, where warnings count"),
        pytest.param([ERROR], WARNING, 1, id="an error, where warnings count"),
        pytest.param([INFO], WARNING, 0, id="less than a warning"),
        pytest.param([INFO], INFO, 1, id="anything, where all counts"),
    ],
)
def test_exit_code(severities: list[str], fail_on: str, code: int) -> None:
    found = Report((run_with(*(make_finding(severity=severity) for severity in severities)),), 0.1)
    assert found.exit_code(fail_on) == code
    assert found.exit_code(fail_on, exit_zero=True) == 0
    assert found._replace(crashed=True).exit_code(fail_on) == 2
    assert found._replace(crashed=True).exit_code(fail_on, exit_zero=True) == 2


def test_a_measured_run_that_does_not_fit_is_a_finding() -> None:
    for verdict, code in ((OOM, 1), ("FITS", 0), ("TIGHT", 0)):
        measured = Measured(make_estimate(), verdict, "model.py")
        found = Report((run_with(), run_with(measured=measured)), 0.1)
        assert found.exit_code() == code
        assert found.exit_code(exit_zero=True) == 0


MIXED = Report(
    (
        run_with(make_finding(), make_finding(), make_finding(severity=WARNING), make_finding(severity=INFO)),
        run_with()._replace(verdict=OOM),
        run_with()._replace(verdict=OOM),
        run_with()._replace(verdict=TIGHT),
        run_with()._replace(verdict=UNKNOWN),
        run_with(measured=Measured(make_estimate(), OOM, "model.py")),
        run_with(measured=Measured(make_estimate(), OOM, "model.py"))._replace(verdict=UNKNOWN, companion=True),
    ),
    0.1,
    unparsed=(("b.yaml", "a tab"),),
    empty=("c.yaml", "d.yaml"),
    skipped=(("e.yaml", "no config"),) * 3,
)
ALWAYS = ("2 errors",)
MEASURED = ("1 measured not to fit",)
UNSEEN = ("1 not parsed", "2 empty", "3 skipped")


@pytest.mark.parametrize(
    ("fail_on", "strict", "failures"),
    [
        pytest.param(ERROR, False, (*ALWAYS, *MEASURED), id="errors, and what was measured"),
        pytest.param(WARNING, False, (*ALWAYS, "1 warning", *MEASURED), id="warnings as well"),
        pytest.param(INFO, False, (*ALWAYS, "1 warning", "1 info", *MEASURED), id="notes as well"),
        pytest.param("tight", False, (*ALWAYS, *MEASURED, "2 OOM", "1 TIGHT"), id="errors and what may not fit"),
        pytest.param(
            "unknown", False, (*ALWAYS, *MEASURED, "2 OOM", "1 TIGHT", "1 UNKNOWN"), id="and what has no verdict"
        ),
        pytest.param(ERROR, True, (*ALWAYS, *MEASURED, "1 UNKNOWN", *UNSEEN), id="strictly, what was not looked at"),
        pytest.param(
            "unknown",
            True,
            (*ALWAYS, *MEASURED, "2 OOM", "1 TIGHT", "1 UNKNOWN", *UNSEEN),
            id="strictly, and what has no verdict is counted once",
        ),
    ],
)
def test_what_fails_the_check_is_counted(fail_on: str, strict: bool, failures: tuple[str, ...]) -> None:
    assert MIXED.failures(fail_on, strict) == failures
    assert MIXED.exit_code(fail_on, strict=strict) == 1
    assert MIXED.exit_code(fail_on, exit_zero=True, strict=strict) == 0


def test_strictly_nothing_to_check_is_a_failure() -> None:
    nothing = Report((), 0.1)
    assert nothing.failures(strict=True) == ("no training configs",)
    assert nothing.failures() == ()
    assert nothing.exit_code(strict=True) == 1
    assert nothing.exit_code() == 0


def test_a_clean_check_does_not_fail() -> None:
    clean = Report((run_with(), run_with()._replace(verdict=UNKNOWN, companion=True)), 0.1)
    assert clean.failures("unknown", strict=True) == ()
    unknown = Report((run_with()._replace(verdict=UNKNOWN),), 0.1, empty=("b.yaml",))
    assert unknown.failures() == (), "it is not strict by itself"
    assert unknown.exit_code() == 0
    assert not unknown.crashed


def test_a_report_is_printed_as_the_command_does_without_colours() -> None:
    text = str(Report((run_with(make_finding(), estimate=make_estimate()),), 0.1))
    assert "\u2588" in text
    assert "\x1b" not in text
    assert text.endswith("1 error in 1 file (100 ms)\n")
    assert str(Report((), 0.1)) == "no training configs found"


def test_a_measured_step_did_not_run_out_unless_it_is_said() -> None:
    assert not Machine("cuda", "a card", {}).ran_out
    assert not run_with().companion


def test_findings_are_counted_over_all_runs() -> None:
    found = Report((run_with(make_finding(), make_finding(severity=INFO)), run_with(make_finding())), 0.1)
    assert [found.count(severity) for severity in SEVERITIES] == [2, 0, 1]
    assert len(found.findings) == 3


# -- a measured run beside the predicted one


def test_a_measured_run_differs_by_component() -> None:
    static = make_estimate()
    grown = static.components[0]._replace(size_bytes=static.components[0].size_bytes + 5)
    other = static._replace(components=(grown, Component("logits", 7)))
    measured = Measured(other, "FITS", "model.py")
    assert measured.difference(None) == {}
    assert measured.difference(static) == {
        "parameters": 5,
        "activations": -static.components[1].size_bytes,
        "context": -static.components[2].size_bytes,
        "logits": 7,
    }


# -- bounds


LONG, CUT = "x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 3) + "..."


def test_a_text_is_cut_where_it_is_too_long() -> None:
    assert shortened("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert shortened(LONG) == CUT
    assert len(CUT) == MAX_TEXT == 2000


def test_texts_of_a_finding_are_cut() -> None:
    fix = Fix(LONG, DISPLAY, ())
    span = make_finding().span
    finding = make_finding(
        message=LONG, key=LONG, related=((span, LONG),) * (MAX_RELATED + 1), fixes=(fix,), notes=(LONG,)
    )
    [found] = bounded_findings([finding])
    assert (found.message, found.key, found.notes) == (CUT, CUT, (CUT,))
    assert found.related == ((span, CUT),) * MAX_RELATED
    assert [each.title for each in found.fixes] == [CUT]
    assert bounded_findings(iter([make_finding()])) == (make_finding(),), "however they come"


def test_of_many_findings_of_a_kind_the_gravest_stay_and_the_last_counts_the_others() -> None:
    many = [make_finding(line, severity=INFO) for line in range(1, MAX_OF_A_KIND + 3)]
    many[-1] = many[-1]._replace(severity=ERROR)
    other_code, other_file = make_finding(code="MEM101"), make_finding(path="b.yaml")
    found = bounded_findings([*many, other_code, other_file])
    assert found[-2:] == (other_code, other_file)
    assert [finding.span.line for finding in found[:-2]] == [*range(1, MAX_OF_A_KIND), MAX_OF_A_KIND + 2]
    assert [finding.notes for finding in found[:-3]] == [()] * (MAX_OF_A_KIND - 1)
    assert found[-3].notes == ("2 more findings of MEM201 in this file are left out",)
    assert bounded_findings(many[1:])[-1].notes == ("1 more finding of MEM201 in this file is left out",)


def test_as_many_as_there_may_be_stay_as_they_are() -> None:
    assert (MAX_OF_A_KIND, MAX_ENTRIES, MAX_RELATED) == (200, 1_000, 100)
    many = [make_finding(line) for line in range(1, MAX_OF_A_KIND + 1)]
    assert list(bounded_findings(many)) == many


def test_a_run_is_bounded_in_all_that_it_holds() -> None:
    estimate = make_estimate()._replace(
        peak_phase=LONG,
        assumptions=((LONG, LONG, LONG),) * (MAX_ENTRIES + 1),
        modules=(("model", 1, 1),) * (MAX_ENTRIES + 1),
        components=(Component(LONG, 4, (Part(LONG, 4, LONG),)),),
    )
    run = run_with(make_finding(message=LONG), estimate=estimate, measured=Measured(estimate, OOM, "model.py"))
    run = run._replace(
        run=LONG,
        model_name=LONG,
        budget=Budget(16, LONG),
        unknown=LONG,
        unresolved=(UnresolvedValue(LONG, 1, LONG, "a.yaml"),) * (MAX_ENTRIES + 1),
        facts={"a": StatedFact(LONG, LONG, 1, "a.yaml"), "b": StatedFact("b", [LONG], 1, "a.yaml")},
    )
    found = bounded(run)
    assert (found.run, found.model_name, found.budget, found.unknown) == (CUT, CUT, Budget(16, CUT), CUT)
    assert found.findings[0].message == CUT
    assert found.unresolved == (UnresolvedValue(CUT, 1, CUT, "a.yaml"),) * MAX_ENTRIES
    assert found.facts["a"] == StatedFact(CUT, CUT, 1, "a.yaml")
    assert found.facts["b"] == StatedFact("b", shortened(str([LONG])), 1, "a.yaml")
    assert found.measured is not None
    for each in (found.estimate, found.measured.estimate):
        assert each is not None
        assert each.peak_phase == CUT
        assert each.assumptions == ((CUT, CUT, CUT),) * MAX_ENTRIES
        assert each.modules == (("model", 1, 1),) * MAX_ENTRIES
        assert each.components == (Component(CUT, 4, (Part(CUT, 4, CUT),)),)


def test_what_is_within_bounds_stays_as_it_is() -> None:
    facts = {
        "a": StatedFact("a", [1, 2], 1, "a.yaml"),
        "b": StatedFact("b", {"x": "y" * 1985}, 1, "a.yaml"),  # as long as a text may be
        "c": StatedFact("c", 7, 1, "a.yaml"),
    }
    assert len(str(facts["b"].value)) == MAX_TEXT - 6
    run = run_with(make_finding(), estimate=make_estimate())._replace(facts=facts)
    assert bounded(run) == run
    assert bounded(run_with()) == run_with()


def test_a_list_as_long_as_a_text_may_be_stays() -> None:
    value = ["y" * (MAX_TEXT - 4)]
    assert len(str(value)) == MAX_TEXT
    assert reports._value(value) is value
    assert reports._value(["y" * (MAX_TEXT - 3)]) == shortened(str(["y" * (MAX_TEXT - 3)]))


def test_the_largest_parts_stay_and_one_adds_up_the_others() -> None:
    parts = tuple(Part(f"part {size}", size) for size in range(MAX_ENTRIES + 3))
    found = reports._parts(parts)
    assert found[-1] == Part("3 more", 0 + 1 + 2)
    assert found[0].size_bytes == MAX_ENTRIES + 2
    assert sum(part.size_bytes for part in found) == sum(part.size_bytes for part in parts)
    assert reports._parts(parts[:MAX_ENTRIES]) == parts[:MAX_ENTRIES]
    long = Part("n" * 1000, 1, "f" * 1000)
    assert reports._parts((long,)) == (long,)
    assert reports._parts((Part("n", 1, "f" * 2000),)) == (Part("n", 1, "f" * 2000),)
