"""What each format for a program says of one report, to the last character: the numbers of a place, what is left out
where there is nothing to say, and where the rest of a group is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from memlint.documents.node import Edit, Span
from memlint.plugin import ERROR, INFO, SAFE, UNSAFE, WARNING, Fix
from memlint.reports import full, gitlab, json_lines, junit, markdown, overview, rdjson, sarif, verdict
from memlint.reports.report import Budget, Report, RunReport
from memlint.reports.style import Style
from memlint.tape.estimate import OOM, TIGHT, UNKNOWN
from memlint.units import GiB
from tests.reports.conftest import make_estimate, make_finding

OTHER = "conf/other file.yaml"


def run_of(path: str = "configs/demo.yaml", **fields: Any) -> RunReport:
    run = RunReport(path, "train", "demo", "a model", make_estimate(), OOM, Budget(16 * GiB, "--budget 16GB"), ())
    return run._replace(**fields)


def reported(*findings: Any, **fields: Any) -> Report:
    return Report((run_of(findings=findings),), 0.0, **{"crashed": False, **fields})


# -- SARIF


def result_of(finding: Any) -> dict[str, Any]:
    (found,) = json.loads(sarif.render(reported(finding)))["runs"][0]["results"]
    return dict(found)


@pytest.mark.parametrize(
    ("span", "region"),
    [
        pytest.param(Span("a", 3, 3, 3, 13), (3, 3, 3, 13), id="within a line"),
        pytest.param(Span("a", 3, 3, 5, 1), (3, 3, 5, 1), id="to the beginning of another"),
        pytest.param(Span("a", 0, 0, 0, 0), (1, 1, 1, 1), id="nowhere is the first character"),
        pytest.param(Span("a", 3, 7, 3, 2), (3, 7, 3, 7), id="an end before the start is the start"),
        pytest.param(Span("a", 3, 7, 2, 9), (3, 7, 3, 9), id="an end on a line above"),
        pytest.param(Span("a", 3, 7, 4, 0), (3, 7, 4, 1), id="an end before the first column"),
        pytest.param(Span("a", 2, 1, 2, 1), (2, 1, 2, 1), id="the beginning of a line"),
    ],
)
def test_a_region_of_sarif_is_one(span: Span, region: tuple[int, int, int, int]) -> None:
    names = ("startLine", "startColumn", "endLine", "endColumn")
    place = result_of(make_finding()._replace(span=span))["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a"}, "region": dict(zip(names, region))}


def test_sarif_has_related_places_and_fixes_where_there_are_some() -> None:
    plain = result_of(make_finding())
    assert not {"relatedLocations", "fixes"} & set(plain)
    edits = (Edit(Span("configs/demo.yaml", 3, 3, 3, 6), "32"), Edit(Span(OTHER, 1, 1, 1, 2), "b: 2"))
    finding = make_finding(
        related=((Span(OTHER, 4, 1, 4, 9), "frames: 16"),),
        fixes=(Fix("smaller", SAFE, edits), Fix("unwritten", SAFE, ())),
    )
    found = result_of(finding)
    uri = "conf/other%20file.yaml"
    assert found["relatedLocations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": uri},
                "region": {"startLine": 4, "startColumn": 1, "endLine": 4, "endColumn": 9},
            },
            "message": {"text": "frames: 16"},
        }
    ]
    (fix,) = found["fixes"]
    assert fix["description"] == {"text": "smaller"}
    assert [
        (change["artifactLocation"]["uri"], [one["insertedContent"]["text"] for one in change["replacements"]])
        for change in fix["artifactChanges"]
    ] == [("configs/demo.yaml", ["32"]), (uri, ["b: 2"])]


@pytest.mark.parametrize("crashed", [True, False])
def test_sarif_says_whether_the_check_came_to_its_end(crashed: bool) -> None:
    (run,) = json.loads(sarif.render(reported(crashed=crashed)))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is not crashed


def test_sarif_has_as_many_results_as_code_scanning_keeps() -> None:
    many = reported(*(make_finding(line=number) for number in range(1, 5_011)))
    assert len(json.loads(sarif.render(many))["runs"][0]["results"]) == 5_000


@pytest.mark.parametrize(("severity", "level"), [(ERROR, "error"), (WARNING, "warning"), (INFO, "note")])
def test_a_severity_is_a_level_of_sarif(severity: str, level: str) -> None:
    assert result_of(make_finding(severity=severity))["level"] == level


def test_sarif_names_each_rule_once_and_tells_verdicts_and_broken_files_apart() -> None:
    findings = (make_finding(), make_finding(code="MEM214")._replace(name="unused-lever"), make_finding(9))
    (run,) = json.loads(sarif.render(reported(*findings, errors=(("b.yaml", "cannot be\x07read"),))))["runs"]
    assert [
        (rule["id"], rule["name"], rule["shortDescription"]["text"]) for rule in run["tool"]["driver"]["rules"]
    ] == [
        ("MEM201", "token-explosion", "token explosion"),
        ("MEM214", "unused-lever", "unused lever"),
    ]
    assert [(result["ruleId"], result["ruleIndex"]) for result in run["results"]] == [
        ("MEM201", 0),
        ("MEM214", 1),
        ("MEM201", 0),
    ]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [(note["level"], note["message"]["text"].partition(": ")[0]) for note in notes] == [
        ("error", "b.yaml"),
        ("note", "OOM configs/demo.yaml"),
    ]
    assert notes[0]["message"]["text"] == "b.yaml: cannot be\\x07read"


# -- GitLab


@pytest.mark.parametrize(
    ("span", "lines"),
    [
        pytest.param(Span("a", 3, 3, 3, 13), (3, 3), id="one line"),
        pytest.param(Span("a", 3, 3, 6, 1), (3, 6), id="several"),
        pytest.param(Span("a", 0, 0, 0, 0), (1, 1), id="nowhere is the first line"),
        pytest.param(Span("a", 5, 1, 2, 1), (5, 5), id="an end above"),
    ],
)
def test_gitlab_s_lines(span: Span, lines: tuple[int, int]) -> None:
    (found,) = json.loads(gitlab.render(reported(make_finding()._replace(span=span))))
    assert found["location"] == {"path": "a", "lines": dict(zip(("begin", "end"), lines))}


def test_gitlab_s_second_fingerprint_is_as_long_as_the_first() -> None:
    first, second = json.loads(gitlab.render(reported(make_finding(), make_finding(line=9))))
    assert first["fingerprint"] != second["fingerprint"]
    assert {len(found["fingerprint"]) for found in (first, second)} == {16}


@pytest.mark.parametrize(("severity", "word"), [(ERROR, "major"), (WARNING, "minor"), (INFO, "info")])
def test_gitlab_s_severities_and_descriptions(severity: str, word: str) -> None:
    (found,) = json.loads(gitlab.render(reported(make_finding(severity=severity, message="too\x07much"))))
    assert (found["severity"], found["check_name"]) == (word, "MEM201")
    assert found["description"] == "MEM201 token-explosion: too\\x07much"


# -- rdjson

# The first and the last line are wide in UTF-8: e with an accent is two bytes, a Chinese character three.
WIDE = "\u00e9\u00e9: 1\nb: 2\n\u4f60: 3"


def diagnostic_of(finding: Any, text: str = WIDE) -> dict[str, Any]:
    run = run_of(findings=(finding,), sources={"a.toml": text})
    (found,) = json.loads(rdjson.render(Report((run,), 0.0)))["diagnostics"]
    return dict(found)


@pytest.mark.parametrize(
    ("span", "place"),
    [
        pytest.param((1, 1, 1, 3), (1, 1, 1, 5), id="from the first character"),
        pytest.param((2, 2, 2, 4), (2, 2, 2, 4), id="a line of ASCII between others"),
        pytest.param((1, 3, 2, 2), (1, 5, 2, 2), id="two lines, each counted by itself"),
        pytest.param((3, 2, 3, 5), (3, 4, 3, 7), id="the last line, which has no end"),
        pytest.param((1, 9, 1, 12), (1, 11, 1, 14), id="beyond a line's end columns are counted on"),
        pytest.param((3, 0, 3, 0), (3, 1, 3, 1), id="before a line is its first column"),
        pytest.param((0, 3, 0, 4), (1, 3, 1, 4), id="nowhere is the first line"),
        pytest.param((9, 3, 9, 4), (9, 3, 9, 4), id="a line that is not there has the columns that it is said to have"),
    ],
)
def test_rdjson_counts_each_line_in_bytes(span: tuple[int, ...], place: tuple[int, ...]) -> None:
    found = diagnostic_of(make_finding()._replace(span=Span("a.toml", *span)))["location"]["range"]
    assert tuple(found[end][what] for end in ("start", "end") for what in ("line", "column")) == place


def test_rdjson_suggests_the_first_fix_that_is_written() -> None:
    edits = [Edit(Span("a.toml", 1, 5, 1, 6), "32"), Edit(Span("a.toml", 3, 4, 3, 5), "16")]
    fixes = (Fix("unwritten", SAFE, ()), Fix("both", SAFE, tuple(edits)), Fix("another", SAFE, (edits[1],)))
    found = diagnostic_of(make_finding(path="a.toml", fixes=fixes))
    places = [(one["range"]["start"], one["text"]) for one in found["suggestions"]]
    assert places == [({"line": 1, "column": 7}, "32"), ({"line": 3, "column": 6}, "16")]
    assert diagnostic_of(make_finding(path="a.toml", fixes=fixes[:1]))["suggestions"] == []


@pytest.mark.parametrize(("severity", "word"), [(ERROR, "ERROR"), (WARNING, "WARNING"), (INFO, "INFO")])
def test_rdjson_s_severities_and_messages(severity: str, word: str) -> None:
    found = diagnostic_of(make_finding(severity=severity, message="too\x07much"))
    assert (found["severity"], found["code"], found["message"]) == (word, {"value": "MEM201"}, "too\\x07much")
    assert found["location"]["path"] == "configs/demo.yaml"


def test_a_report_of_nothing_has_no_entries() -> None:
    nothing = Report((), 0.0)
    assert json.loads(gitlab.render(nothing)) == []
    assert json.loads(rdjson.render(nothing)) == {"source": {"name": "memlint"}, "diagnostics": []}
    (run,) = json.loads(sarif.render(nothing))["runs"]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


# -- Markdown


def test_markdown_to_the_last_character() -> None:
    unknown = run_of("b.yaml", run="eval", estimate=None, verdict=UNKNOWN, budget=None, unknown="no model is stated")
    report = Report((run_of(findings=(make_finding(),)), unknown), 0.0, crashed=False)
    lines = markdown.render(report).splitlines()
    assert lines == [
        "### memlint",
        "",
        "| verdict | run | peak | interval | budget | what to do |",
        "|---|---|---:|---:|---:|---|",
        "| OOM | configs/demo.yaml | 22.5 GiB | 22.4 GiB to 23.5 GiB | 16.0 GiB |  |",
        "| UNKNOWN | b.yaml eval | unknown |  |  | no model is stated |",
        "",
        "| severity | code | place | message |",
        "|---|---|---|---|",
        "| error | MEM201 | configs/demo.yaml&#58;3 | 128 samples x 64 groups dominate |",
    ]
    assert "severity" not in markdown.render(report._replace(runs=(unknown,)))


# -- JUnit


def suites_of(report: Report) -> dict[str, tuple[dict[str, str], list[tuple[str, str, str, str]]]]:
    """Suite -> its counts, and of each case name, class, outcome and what is said."""
    found = {}
    for suite in ElementTree.fromstring(junit.render(report).encode()):
        counts = {name: suite.attrib[name] for name in ("tests", "failures", "errors")}
        cases = []
        for case in suite:
            (outcome,) = case
            cases.append((case.attrib["name"], case.attrib["classname"], outcome.tag, outcome.text or ""))
            assert (
                outcome.get("message", outcome.text) == " ".join((outcome.text or "").split("\n")) or not outcome.text
            )
        found[suite.attrib["name"]] = counts, cases
    return found


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_verdict_and_finding() -> None:
    warning, note = make_finding(9, severity=WARNING, message="a\nb"), make_finding(7, severity=INFO, message="c")
    runs = (
        run_of("a.yaml", findings=(note, warning)),
        run_of("b.yaml", verdict=TIGHT, run="eval"),
        run_of("a.yaml", estimate=None, verdict=UNKNOWN, unknown="no model", run="other"),
    )
    found = suites_of(Report(runs, 0.0, errors=(("c.yaml", "cannot be read"),)))
    peak = "peak 22.5 GiB (22.4 GiB to 23.5 GiB), budget 16.0 GiB (--budget 16GB): over by 6.49 GiB"
    assert found == {
        "a.yaml": (
            {"tests": "4", "failures": "2", "errors": "0"},
            [
                ("verdict train", "a.yaml", "failure", f"OOM a.yaml: {peak}"),
                ("MEM201 token-explosion line 9", "configs/demo.yaml", "failure", "a\nb"),
                ("MEM201 token-explosion line 7", "configs/demo.yaml", "system-out", "c"),
                ("verdict other", "a.yaml", "system-out", "UNKNOWN a.yaml [other]: peak unknown, no model"),
            ],
        ),
        "b.yaml": (
            {"tests": "1", "failures": "0", "errors": "0"},
            [
                (
                    "verdict eval",
                    "b.yaml",
                    "system-out",
                    f"TIGHT b.yaml [eval]: {peak}; may not fit: the upper end of the interval is 7.49 GiB over",
                )
            ],
        ),
        "c.yaml": ({"tests": "1", "failures": "0", "errors": "1"}, [("read", "c.yaml", "error", "cannot be read")]),
    }


def test_junit_says_below_a_verdict_what_to_do() -> None:
    run = run_of(findings=(make_finding(fixes=(fixed("smaller", 8 * GiB, True),)),))
    _, [(_, _, _, said), _] = suites_of(Report((run,), 0.0))["configs/demo.yaml"]
    assert said.split("\n")[1:] == ["to fit: smaller (safe: the run learns the same), peak 8.00 GiB after"]


def test_junit_of_nothing_is_a_case_that_passes() -> None:
    counts = {"tests": "1", "failures": "0", "errors": "0"}
    assert suites_of(Report((), 0.0)) == {"memlint": (counts, [("no training configs", "memlint", "system-out", "")])}


# -- JSON and its lines


@pytest.mark.parametrize(
    ("render", "begin"),
    [
        pytest.param(sarif.render, '{\n  "$schema": ', id="SARIF"),
        pytest.param(rdjson.render, '{\n  "source": {\n    "name": ', id="rdjson"),
        pytest.param(gitlab.render, '[\n  {\n    "check_name": ', id="GitLab"),
    ],
)
def test_json_is_ascii_and_indented_by_two(render: Callable[[Report], str], begin: str) -> None:
    text = render(reported(make_finding(message="\u4f60 \x7f")))
    assert text.startswith(begin)
    assert text.isascii()
    assert "\x7f" not in text
    assert text.endswith(("\n}\n", "\n]\n"))


def test_json_lines_are_ascii_and_end_with_the_summary() -> None:
    text = json_lines.render(reported(make_finding(message="\u4f60\x7f")))
    first, last, rest = text.split("\n")
    assert "\\u4f60\\u007f" in first
    assert rest == ""
    assert [json.loads(line)["type"] for line in (first, last)] == ["run", "summary"]


# -- the first screen


def fixed(title: str, after: int, fits: bool, safety: str = SAFE) -> Fix:
    edit = Edit(Span("configs/demo.yaml", 3, 3, 3, 6), "1")
    return Fix(title, safety, (edit,), device_bytes_after=after, saved_bytes=GiB, fits=fits)


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        pytest.param((), "", id="no fix"),
        pytest.param(
            (fixed("a", 15 * GiB, True, UNSAFE), fixed("b", 14 * GiB, True)),
            "to fit: b (safe: the run learns the same), peak 14.0 GiB after",
            id="the least intrusive that fits",
        ),
        pytest.param(
            (fixed("a", 21 * GiB, False), fixed("b", 18 * GiB, False), fixed("c", 20 * GiB, False)),
            "no single fix here fits for sure, `memlint fit` looks for several; "
            "the most is saved by b, peak 18.0 GiB after",
            id="the one that saves most",
        ),
        pytest.param(
            (fixed("a", 0, False), fixed("b", 18 * GiB, False)),
            "no single fix here fits for sure, `memlint fit` looks for several; the most is saved by a, peak 0 B after",
            id="nothing is left of it",
        ),
    ],
)
def test_what_to_do(fixes: tuple[Fix, ...], said: str) -> None:
    assert verdict.action(run_of(findings=(make_finding(fixes=fixes),))) == said


def test_a_headline_says_what_the_run_is_and_who_starts_it() -> None:
    run = run_of(launch=Span("run.sh", 7, 1, 7, 9), also_lines=(9, 11))
    narrow = verdict.headline(run, Style(columns=70)).splitlines()
    assert narrow[0].startswith("OOM configs/demo.yaml: peak 22.5 GiB (22.4 GiB to 23.5 GiB),")
    assert all(len(line) <= 70 for line in narrow)
    assert narrow[1].startswith("  ")
    assert not narrow[1].startswith("   ")
    wide = verdict.headline(run, Style(columns=0)).splitlines()
    assert wide[1] == (
        "  demo, a model, 261,609,114 parameters, 6,384,448 trainable, peak in backward, the same run 3 times: also on "
        "lines 9, 11, as run.sh:7 starts it"
    )


def test_names_are_cut_where_a_reader_stops() -> None:
    run = run_of(family="f" * 90, model_name="m" * 90)
    about = verdict.headline(run, Style()).splitlines()[1].strip().split(", ")
    assert [len(text) for text in about[:2]] == [80, 80]
    assert len(verdict.title("p" * 90)) == 60
    assert len(verdict.why_unknown(run_of(estimate=None, unknown="w" * 300))) == verdict.REASON_CHARACTERS == 240


def test_the_worst_runs_come_first_and_those_without_a_budget_by_their_size() -> None:
    small, large = (make_estimate()._replace(device_bytes=size * GiB) for size in (3, 9))
    runs = (
        run_of("small.yaml", estimate=small, verdict=UNKNOWN, budget=None),
        run_of("large.yaml", estimate=large, verdict=UNKNOWN, budget=None),
        run_of("tight.yaml", verdict=TIGHT),
        run_of("over.yaml"),
    )
    ordered = overview.sorted_runs(Report(runs, 0.0, crashed=False))
    assert [run.path for run in ordered] == ["over.yaml", "tight.yaml", "large.yaml", "small.yaml"]
    assert overview.looked_at(Report((*runs, runs[0]._replace(path="c.yaml")), 0.0, crashed=False)) == {
        "over.yaml",
        "tight.yaml",
    }


def test_a_folder_counts_what_a_rule_said_and_shows_the_worst_of_it() -> None:
    worst = make_finding(message="the worst", size_bytes=9 * GiB)
    other = make_finding(line=5, message="the other", size_bytes=GiB)
    note = make_finding(code="MEM214", severity=INFO, message="a note")._replace(name="unused-lever")
    report = Report((run_of(findings=(other, worst, note)),), 0.0, crashed=False)
    assert list(overview.by_rule(report, Style()))[:2] == [
        "error MEM201 token-explosion x 2: the worst, in configs/demo.yaml:3 and others",
        "info MEM214 unused-lever: a note, in configs/demo.yaml:3",
    ]
    rows = full.render(report._replace(runs=(*report.runs, run_of("b.yaml", findings=(note,)))))
    assert "configs/demo.yaml  MEM201 token-explosion" in rows
    assert "b.yaml             MEM214 unused-lever" in rows


@pytest.mark.parametrize(("severity", "code"), [(ERROR, "MEM101"), (WARNING, "MEM102")])
def test_a_verdict_s_own_finding_comes_before_others_as_grave(severity: str, code: str) -> None:
    other = make_finding(severity=severity, size_bytes=99 * GiB)
    own = make_finding(severity=severity, code=code, size_bytes=GiB)
    assert verdict.worst_first((other, own)) == [own, other]
