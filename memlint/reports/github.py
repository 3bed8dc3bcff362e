"""GitHub Actions: annotations on the changed lines, and a job summary.

Escaping as in actions/toolkit (packages/core/src/command.ts). A step shows 10 annotations per level and drops
the rest without a word, so the gravest 9 are printed and one notice counts the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from memlint.plugin import ERROR, INFO, SEVERITIES, WARNING, Finding
from memlint.reports.full import describe_fix
from memlint.reports.report import Report
from memlint.reports.text import clean, harmless_in_actions, lines_of
from memlint.units import format_bytes

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


def relative(path: str, environment: Mapping[str, str]) -> str:
    """A path from the repository's root with forward slashes: others make the annotation vanish."""
    try:
        root = os.path.realpath(environment.get("GITHUB_WORKSPACE") or os.getcwd())
        seen = os.path.relpath(os.path.realpath(path), root)
    except (OSError, ValueError):  # no working directory; characters that no path has
        seen = os.pardir
    inside = not seen.startswith(os.pardir)
    return (seen if inside else os.path.normpath(path)).replace(os.sep, "/")


def command(finding: Finding, environment: Mapping[str, str]) -> str:
    """One ``::error file=...::message`` line."""
    span = finding.span
    properties = [("file", relative(span.path, environment)), ("line", str(span.line))]
    properties.append(("endLine", str(max(span.end_line, span.line))))
    if span.line == span.end_line:  # columns on a span of several lines are refused
        properties.append(("col", str(span.column)))
        if span.end_column > span.column:
            properties.append(("endColumn", str(span.end_column)))
    properties.append(("title", f"{finding.code} {finding.name}"))
    message = "\n".join([finding.message, *(f"fix: {describe_fix(fix)}" for fix in finding.fixes)])
    joined = ",".join(f"{name}={escape_property(value)}" for name, value in properties)
    return f"::{LEVELS[finding.severity]} {joined}::{escape_data(message)}"


def render(report: Report, environment: Mapping[str, str] | None = None) -> str:
    """The annotations: gravest first, at most nine per level, and a notice that counts what is left out."""
    environment = os.environ if environment is None else environment
    lines = []
    left_out = 0
    for severity in SEVERITIES:
        findings = sorted(
            (finding for finding in report.findings if finding.severity == severity),
            key=lambda finding: -finding.size_bytes,
        )
        lines += [command(finding, environment) for finding in findings[:PER_LEVEL]]
        left_out += len(findings[PER_LEVEL:])
    if left_out:
        where = ", see the job summary" if environment.get("GITHUB_STEP_SUMMARY") else ""
        lines.append(f"::notice title=memlint::{left_out} more findings{where}")
    return "\n".join(lines) + "\n" if lines else ""


# Whatever Markdown, HTML or a table could take for its own, and what links or mentions are made of.
_ENTITIES = {ord(character): f"&#{ord(character)};" for character in "&<>\\`*_{}[]()#+-!|~@:$"}


_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)  # a link without any of them


def cell(text: str) -> str:
    """Foreign text as plain text of a table cell."""
    return _ADDRESS.sub(r"\1&#46;", clean(" ".join(text.split())).translate(_ENTITIES))


def summary(report: Report) -> str:
    """The job summary in Markdown: runs, then findings; cut where GitHub would drop it all."""
    rows = ["### memlint\n\n| run | peak | budget | verdict |\n|---|---:|---:|---|\n"]
    for run in report.runs:
        if run.estimate is not None:
            budget = "" if run.budget is None else format_bytes(run.budget.size_bytes)
            peak = format_bytes(run.estimate.device_bytes)
            name = run.path if run.run == "train" else f"{run.path} {run.run}"
            rows.append(f"| {cell(name)} | {peak} | {budget} | {run.verdict} |\n")
    rows.append("\n| severity | code | place | message |\n|---|---|---|---|\n")
    for finding in report.findings:
        place = cell(f"{finding.span.path}:{finding.span.line}")
        rows.append(f"| {finding.severity} | {finding.code} | {place} | {cell(finding.message)} |\n")
    size = 0
    for index, row in enumerate(rows):
        size += len(row.encode("utf-8", "replace"))
        if size > SUMMARY_BYTES:
            return "".join(rows[:index]) + f"\n{len(rows) - index} more rows are left out.\n"
    return "".join(rows)


def write_summary(report: Report, environment: Mapping[str, str] | None = None) -> None:
    """Append the summary to the file that GitHub names; nothing outside of Actions. Raises OSError."""
    environment = os.environ if environment is None else environment
    path = environment.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(summary(report))
