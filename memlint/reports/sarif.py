"""SARIF 2.1.0 (OASIS), for code scanning: one run, a rule for each code that spoke, a result for each finding."""

from __future__ import annotations

import os
from typing import Any

from memlint import __version__
from memlint.documents.node import Span
from memlint.plugin import ERROR, INFO, WARNING, Finding
from memlint.reports.report import Report
from memlint.reports.text import clean, encoded, repository_path
from memlint.reports.verdict import verdict_line, worst_first

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {ERROR: "error", WARNING: "warning", INFO: "note"}
MAX_RESULTS = 5_000  # of a run, as many as code scanning keeps


def render(report: Report) -> str:
    findings = worst_first(report.findings)[:MAX_RESULTS]
    codes = list(dict.fromkeys(finding.code for finding in findings))
    rules = [_rule(next(finding for finding in findings if finding.code == code)) for code in codes]
    notes = [{"level": "error", "message": {"text": clean(f"{path}: {why}")}} for path, why in report.errors]
    notes += [{"level": "note", "message": {"text": verdict_line(run)}} for run in report.runs[:MAX_RESULTS]]
    run = {
        "tool": {"driver": {"name": "memlint", "version": __version__, "semanticVersion": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not report.crashed, "toolExecutionNotifications": notes}],
        "results": [_result(finding, codes.index(finding.code)) for finding in findings],
    }
    return encoded({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.code,
        "name": finding.name,
        "shortDescription": {"text": finding.name.replace("-", " ")},
        "help": {"text": f"memlint rule {finding.code} prints the manual page."},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": clean(finding.message)},
        "locations": [_location(finding.span)],
        "partialFingerprints": {"memlint/v1": finding.fingerprint},
        "properties": {"key": clean(finding.key), "bytes": finding.size_bytes, "confidence": finding.confidence},
    }
    if finding.related:
        result["relatedLocations"] = [
            {**_location(span), "message": {"text": clean(said)}} for span, said in finding.related
        ]
    fixes = [_fix(fix.title, [(edit.span, edit.text) for edit in fix.edits]) for fix in finding.fixes if fix.edits]
    if fixes:
        result["fixes"] = fixes
    return result


def _location(span: Span) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": uri(span.path)}, "region": _region(span)}}


def _region(span: Span) -> dict[str, int]:
    """Numbers below 1 are refused, and so is an end before the start."""
    line, column = max(span.line, 1), max(span.column, 1)
    end = max(span.end_line, line)
    last = max(span.end_column, column if end == line else 1)
    return {"startLine": line, "startColumn": column, "endLine": end, "endColumn": last}


def _fix(title: str, edits: list[tuple[Span, str]]) -> dict[str, Any]:
    changes = [
        {
            "artifactLocation": {"uri": uri(path)},
            "replacements": [
                {"deletedRegion": _region(span), "insertedContent": {"text": text}}
                for span, text in edits
                if span.path == path
            ],
        }
        for path in dict.fromkeys(span.path for span, _ in edits)
    ]
    return {"description": {"text": clean(title)}, "artifactChanges": changes}


def uri(path: str) -> str:
    """A path as a relative reference: whatever is more than a path to a URI's reader is written as its bytes."""
    from urllib.parse import quote

    return quote(repository_path(path, os.environ).encode("utf-8", "surrogatepass")) or "."
