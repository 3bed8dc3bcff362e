"""What each format for a program says of one report, to the last character: the numbers of a place, what is left out
where there is nothing to say, and where the rest of a group is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memlint.documents.node import Edit, Span
from memlint.plugin import ERROR, INFO, SAFE, UNSAFE, WARNING, Fix
from memlint.reports import full, gitlab, markdown, overview, sarif, verdict
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
