"""reviewdog's diagnostic format (rdjson): findings as comments of a review, edits as suggestions to be taken."""

from __future__ import annotations

import os
from typing import Any

from memlint.documents.node import Span
from memlint.plugin import ERROR, INFO, WARNING, Finding
from memlint.reports.report import Report
from memlint.reports.text import clean, encoded, repository_path, source_lines
from memlint.reports.verdict import worst_first

SEVERITY = {ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO"}


def render(report: Report) -> str:
    sources = {path: text for run in report.runs for path, text in run.sources.items()}
    diagnostics = [_diagnostic(finding, sources) for finding in worst_first(report.findings)]
    return encoded({"source": {"name": "memlint"}, "diagnostics": diagnostics})


def _diagnostic(finding: Finding, sources: dict[str, str]) -> dict[str, Any]:
    # A suggestion changes the commented file alone, so a fix of several files is told and not suggested; and all
    # suggestions of one comment are taken together, so only the first fix can be one.
    edits = next((fix.edits for fix in finding.fixes if fix.edits), ())
    if any(edit.span.path != finding.span.path for edit in edits):
        edits = ()
    return {
        "message": clean(finding.message),
        "location": {
            "path": repository_path(finding.span.path, os.environ),
            "range": _range(finding.span, sources),
        },
        "severity": SEVERITY[finding.severity],
        "code": {"value": finding.code},
        "suggestions": [{"range": _range(edit.span, sources), "text": edit.text} for edit in edits],
    }


def _range(span: Span, sources: dict[str, str]) -> dict[str, Any]:
    return {
        "start": {"line": max(span.line, 1), "column": _column(span.path, span.line, span.column, sources)},
        "end": {"line": max(span.end_line, 1), "column": _column(span.path, span.end_line, span.end_column, sources)},
    }


def _column(path: str, line: int, column: int, sources: dict[str, str]) -> int:
    """A column as reviewdog counts: bytes of UTF-8 from 1."""
    lines = source_lines(sources.get(path, ""), path)
    before = lines[line - 1][: max(column - 1, 0)] if 1 <= line <= len(lines) else ""
    return len(before.encode("utf-8", "surrogatepass")) + max(column - len(before), 1)
