"""SARIF, GitLab, JUnit, rdjson and JSON lines: the structure that their readers publish, whatever foreign text says.

The structures below state what the published schemas ask of what memlint writes, in our own words: SARIF 2.1.0 (OASIS,
section 3), GitLab's "Code Quality report format", the JUnit schema of Jenkins' xunit plugin (junit-10.xsd), and
reviewdog's DiagnosticResult.
"""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.documents.node import Edit, Span
from memlint.plugin import DISPLAY, Finding, Fix
from memlint.reports import gitlab, json_lines, junit, rdjson, sarif
from memlint.reports.report import Report

from .conftest import make_finding, make_run


def record(required: str, optional: str = "", **properties: object) -> dict[str, object]:
    """An object with these properties and no others."""
    names = [*required.split(), *optional.split()]
    return {
        "type": "object",
        "required": required.split(),
        "properties": {name: properties.get(name, TEXT) for name in names},
        "additionalProperties": False,
    }


def list_of(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
NAME = {"type": "string", "minLength": 1}
WHOLE = {"type": "integer", "minimum": 1}
URI = {"type": "string", "pattern": r"^[A-Za-z0-9._~/%-]+$"}

MESSAGE = record("text")
REGION = record(
    "startLine startColumn endLine endColumn", startLine=WHOLE, startColumn=WHOLE, endLine=WHOLE, endColumn=WHOLE
)
ARTIFACT = record("uri", uri=URI)
PHYSICAL = record("artifactLocation region", artifactLocation=ARTIFACT, region=REGION)
LOCATION = record("physicalLocation", "message", physicalLocation=PHYSICAL, message=MESSAGE)
REPLACEMENT = record("deletedRegion insertedContent", deletedRegion=REGION, insertedContent=record("text"))
CHANGE = record(
    "artifactLocation replacements",
    artifactLocation=ARTIFACT,
    replacements={**list_of(REPLACEMENT), "minItems": 1},
)
RESULT = record(
    "ruleId ruleIndex level message locations partialFingerprints properties",
    "relatedLocations fixes",
    ruleIndex={"type": "integer", "minimum": 0},
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations=list_of(LOCATION),
    relatedLocations=list_of(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties={"type": "object"},
    fixes=list_of(
        record(
            "description artifactChanges",
            description=MESSAGE,
            artifactChanges={**list_of(CHANGE), "minItems": 1},
        )
    ),
)
RULE = record("id name shortDescription help", shortDescription=MESSAGE, help=MESSAGE)
INVOCATION = record(
    "executionSuccessful toolExecutionNotifications",
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=list_of(record("level message", level={"enum": ["note", "error"]}, message=MESSAGE)),
)
RUN = record(
    "tool columnKind invocations results",
    tool=record(
        "driver",
        driver=record("name version semanticVersion rules", rules={**list_of(RULE), "uniqueItems": True}),
    ),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations=list_of(INVOCATION),
    results=list_of(RESULT),
)
SARIF = record("$schema version runs", version={"const": "2.1.0"}, runs=list_of(RUN))

GITLAB = list_of(
    record(
        "check_name description severity fingerprint location",
        check_name=NAME,
        description=NAME,
        fingerprint=NAME,
        severity={"enum": ["info", "minor", "major", "critical", "blocker"]},
        location=record(
            "path lines",
            path={**NAME, "pattern": r"^(?!\./)"},
            lines=record("begin end", begin=WHOLE, end=WHOLE),
        ),
    )
)

POSITION = record("line column", line=WHOLE, column=WHOLE)
RANGE = record("start end", start=POSITION, end=POSITION)
DIAGNOSTIC = record(
    "message location severity code suggestions",
    location=record("path range", range=RANGE),
    severity={"enum": ["ERROR", "WARNING", "INFO"]},
    code=record("value"),
    suggestions=list_of(record("range text", range=RANGE)),
)
RDJSON = record("source diagnostics", source=record("name"), diagnostics=list_of(DIAGNOSTIC))

JSON_FORMATS = {"SARIF": (sarif.render, SARIF), "GitLab": (gitlab.render, GITLAB), "rdjson": (rdjson.render, RDJSON)}


def sound(text: str) -> None:
    """Raises AssertionError where XML is not what JUnit's readers take."""
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    kinds = {"testsuite": {"testcase"}, "testcase": {"failure", "error", "skipped", "system-out"}}
    for suite in root:
        assert {"name", "tests", "failures", "errors"} == set(suite.attrib)
        assert len(suite) == int(suite.attrib["tests"])
        for outcome, total in (("failure", "failures"), ("error", "errors")):
            assert len(suite.findall(f"testcase/{outcome}")) == int(suite.attrib[total])
        for element in (suite, *suite):
            assert {child.tag for child in element} <= kinds[element.tag]
        for case in suite:
            assert set(case.attrib) == {"name", "classname"}
            assert all(set(outcome.attrib) <= {"type", "message"} and not len(outcome) for outcome in case)
    for total in ("tests", "failures", "errors"):
        assert int(root.attrib[total]) == sum(int(suite.attrib[total]) for suite in root)


def of(text: str) -> Report:
    """A report with a text wherever foreign text comes to stand."""
    path = text or "x"
    edit = Edit(Span(path, 3, 15, 3, 18), text)
    finding = Finding("MEM201", "token-explosion", "error", text, Span(path, 3, 3, 3, 13), text)
    finding = finding._replace(
        related=((Span(path, 1, 1, 1, 2), text),), fixes=(Fix(text, DISPLAY, (edit,), 1, 1, True),), notes=(text,)
    )
    run = make_run(finding, finding._replace(code="MEM007"), path=path, text=text * 3, run=path)
    run = run._replace(family=text, model_name=text)
    return Report((run, run._replace(estimate=None, verdict="UNKNOWN")), 0.1, errors=((path, text),))


HOSTILE = [
    pytest.param("", id="nothing"),
    pytest.param("]]> --> <!-- <![CDATA[ &amp; \"'", id="marks of XML"),
    pytest.param("a\x00b\x1b[31m\x7f\x9f", id="controls"),
    pytest.param("a\u202eb\u2066c", id="bidirectional marks"),
    pytest.param("a\r\nb\x85c\u2028d\u2029e", id="line breaks"),
    pytest.param("::error::x ##[error]y", id="workflow commands"),
    pytest.param("\ud800 \udcff \ufffe \uffff", id="what no encoding has"),
    pytest.param("javascript:alert(1) file:///etc/passwd?x#y", id="addresses"),
    pytest.param("| a | `b` <b> [c](d)", id="Markdown"),
    pytest.param('"} , {"x": "', id="quotes and braces"),
]


def check(report: Report) -> None:
    for render, schema in JSON_FORMATS.values():
        text = render(report)
        assert text.isascii()
        Draft202012Validator(schema).validate(json.loads(text))
    for line in json_lines.render(report).removesuffix("\n").split("\n"):
        assert line.isascii()
        assert json.loads(line)["type"] in ("run", "summary")
    sound(junit.render(report))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_foreign_text_breaks_a_format(text: str) -> None:
    check(of(text))


@settings(deadline=None)
@given(text=st.text(max_size=40) | st.text(alphabet="]>&<\"':#\n\r\x00\x85\u2028\u202e\ud800\ufffe", max_size=20))
def test_no_drawn_text_breaks_a_format(text: str) -> None:
    check(of(text))


def test_every_format_takes_a_report_of_nothing_and_a_whole_one(report: Report) -> None:
    check(report)
    check(Report((), 0.0))
    check(Report((), 0.0, errors=(("a.yaml", "cannot be read"),), crashed=True))


def parsed(render: Any, report: Report) -> Any:
    return json.loads(render(report))


def test_sarif_points_at_the_place_and_carries_fix_and_fingerprint(report: Report) -> None:
    [run] = parsed(sarif.render, report)["runs"]
    first = run["results"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["MEM201", "MEM501", "MEM007"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("MEM201", 0, "error")
    [place] = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "configs/demo.yaml"},
        "region": {"startLine": 3, "startColumn": 3, "endLine": 3, "endColumn": 13},
    }
    assert first["partialFingerprints"] == {"memlint/v1": report.findings[0].fingerprint}
    [replacement] = first["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["insertedContent"] == {"text": "32"}
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert notes[0].startswith("OOM configs/demo.yaml: peak 22.5 GiB")


def test_a_path_is_a_relative_reference_whatever_is_in_it() -> None:
    assert sarif.uri("a b/c#d?e%.yaml") == "a%20b/c%23d%3Fe%25.yaml"
    assert ":" not in sarif.uri("javascript:x.yaml")


def test_gitlab_gets_a_fingerprint_for_each_finding_that_stays_when_lines_move() -> None:
    same = [make_finding(3), make_finding(4), make_finding(5)]
    moved = [finding._replace(span=finding.span._replace(line=finding.span.line + 9)) for finding in same]
    one, other = (
        [entry["fingerprint"] for entry in parsed(gitlab.render, Report((make_run(*findings),), 0.1))]
        for findings in (same, moved)
    )
    assert len(set(one)) == 3
    assert one == other


def test_junit_fails_the_verdict_and_each_finding_but_notes(report: Report) -> None:
    root = ElementTree.fromstring(junit.render(report).encode())
    failed = [case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is not None]
    passed = [case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is None]
    assert failed == ["verdict train", "MEM201 token-explosion line 3", "MEM501 token-explosion line 4"]
    assert passed == ["verdict train", "MEM007 token-explosion line 1"]


def test_rdjson_counts_columns_in_bytes() -> None:
    finding = make_finding(span=Span("x.yaml", 1, 4, 1, 5), path="x.yaml")
    report = Report((make_run(finding, path="x.yaml", text="ä𐐀: 1\n"),), 0.1)
    [diagnostic] = parsed(rdjson.render, report)["diagnostics"]
    assert diagnostic["location"]["range"] == {"start": {"line": 1, "column": 8}, "end": {"line": 1, "column": 9}}


def test_rdjson_suggests_no_half_of_a_fix_of_two_files() -> None:
    edits = (Edit(Span("x.yaml", 1, 1, 1, 2), "a"), Edit(Span("y.yaml", 1, 1, 1, 2), "b"))
    finding = make_finding(path="x.yaml", fixes=(Fix("both", DISPLAY, edits),))
    [diagnostic] = parsed(rdjson.render, Report((make_run(finding, path="x.yaml"),), 0.1))["diagnostics"]
    assert diagnostic["suggestions"] == []


def test_json_lines_are_the_runs_and_the_summary(report: Report) -> None:
    *runs, summary = map(json.loads, json_lines.render(report).splitlines())
    assert [run["path"] for run in runs] == ["configs/demo.yaml", "configs/other.yaml"]
    assert (summary["type"], summary["errors"], summary["version"]) == ("summary", 1, 1)
