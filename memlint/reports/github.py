"""GitHub Actions: annotations on the changed lines, and a job summary.

Escaping as in actions/toolkit (packages/core/src/command.ts). A step shows 10 annotations per level and drops
the rest without a word, so the gravest 9 are printed and one notice counts the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from memlint.plugin import ERROR, INFO, SEVERITIES, WARNING, Finding
from memlint.reports.full import describe_fix
from memlint.reports.markdown import rows
from memlint.reports.report import Report
from memlint.reports.text import clean, harmless_in_actions, lines_of, repository_path
from memlint.reports.verdict import worst_first

LEVELS = {ERROR: "error", WARNING: "warning", INFO: "notice"}
PER_LEVEL = 9
# A step's summary may hold 1,024 KiB; one byte more and GitHub keeps nothing of it.
SUMMARY_BYTES = 900 * 1024


def escape_data(text: str) -> str:
    """Text as the message of a command: its lines stay lines, and nothing else in it is more than text."""
    shown = "\n".join(harmless_in_actions(line) for line in lines_of(text))
    return shown.replace("%", "%25").replace("\n", "%0A")


def escape_property(text: str) -> str:
    return escape_data(clean(text)).replace(":", "%3A").replace(",", "%2C")


def command(finding: Finding, environment: Mapping[str, str]) -> str:
    """One ``::error file=...::message`` line."""
    span = finding.span
    line, column = max(span.line, 1), max(span.column, 1)  # a finding about no line is one about the first
    properties = [("file", repository_path(span.path, environment)), ("line", str(line))]
    properties.append(("endLine", str(max(span.end_line, line))))
    if span.line == span.end_line:  # columns on a span of several lines are refused
        properties.append(("col", str(column)))
        if span.end_column > column:
            properties.append(("endColumn", str(span.end_column)))
    properties.append(("title", f"{finding.code} {finding.name}"))
    message = "\n".join([finding.message, *(f"fix: {describe_fix(fix)}" for fix in finding.fixes)])
    joined = ",".join(f"{name}={escape_property(value)}" for name, value in properties)
    return f"::{LEVELS[finding.severity]} {joined}::{escape_data(message)}"


def render(report: Report, environment: Mapping[str, str] | None = None) -> str:
    """The annotations: gravest first, at most nine per level, and a notice that counts what is left out."""
    environment = os.environ if environment is None else environment
    lines = []
    findings = worst_first(report.findings)
    for severity in SEVERITIES:
        shown = [finding for finding in findings if finding.severity == severity][:PER_LEVEL]
        lines += [command(finding, environment) for finding in shown]
    missing = left_out(report)
    if missing:
        where = ", see the job summary" if environment.get("GITHUB_STEP_SUMMARY") else ""
        lines.append(f"::notice title=memlint::{missing} more finding{'s' * (missing > 1)}{where}")
    return "\n".join(lines) + "\n" if lines else ""


def left_out(report: Report) -> int:
    """Findings that have no annotation, as a step shows no more."""
    return sum(max(report.count(severity) - PER_LEVEL, 0) for severity in SEVERITIES)


def summary(report: Report) -> str:
    """The job summary in Markdown: runs, then findings; cut where GitHub would drop it all."""
    pieces = rows(report)
    missing = left_out(report)
    if missing:
        have = "have" if missing > 1 else "has"
        pieces.append(f"\n{missing} of these findings {have} no annotation: a step shows ten of a kind.\n")
    size = 0
    for index, piece in enumerate(pieces):
        size += len(piece.encode("utf-8", "replace"))
        if size > SUMMARY_BYTES:
            rows_are = "rows are" if len(pieces) - index > 1 else "row is"
            return "".join(pieces[:index]) + f"\n{len(pieces) - index} more {rows_are} left out.\n"
    return "".join(pieces)


def write_summary(report: Report, environment: Mapping[str, str] | None = None) -> None:
    """Append the summary to the file that GitHub names; nothing outside of Actions. Raises OSError."""
    environment = os.environ if environment is None else environment
    path = environment.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(summary(report))
