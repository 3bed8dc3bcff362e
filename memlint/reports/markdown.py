"""Markdown, for a comment or a step's summary: verdicts and what to do, then findings, the worst first."""

from __future__ import annotations

import re

from memlint.reports.overview import sorted_runs
from memlint.reports.report import Report
from memlint.reports.text import clean
from memlint.reports.verdict import action, verdict_of, why_unknown, worst_first
from memlint.units import format_bytes

# Whatever Markdown, HTML or a table could take for its own, and what links or mentions are made of.
_ENTITIES = {ord(character): f"&#{ord(character)};" for character in "&<>\\`*_{}[]()#+-!|~@:$"}
_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)  # a link without any of them


def cell(text: str) -> str:
    """Foreign text as plain text of a table cell."""
    return _ADDRESS.sub(r"\1&#46;", clean(" ".join(text.split())).translate(_ENTITIES))


def rows(report: Report) -> list[str]:
    """The document in pieces that may be cut between any two."""
    lines = ["### memlint\n\n| verdict | run | peak | interval | budget | what to do |\n|---|---|---:|---:|---:|---|\n"]
    for run in sorted_runs(report):
        name = cell(run.path if run.run == "train" else f"{run.path} {run.run}")
        peak, interval, said = "unknown", "", action(run)
        if run.estimate is None:
            said = why_unknown(run)
        else:
            low, high = run.estimate.device_interval
            peak, interval = format_bytes(run.estimate.device_bytes), f"{format_bytes(low)} to {format_bytes(high)}"
        budget = "" if run.budget is None else format_bytes(run.budget.size_bytes)
        lines.append(f"| {verdict_of(run)} | {name} | {peak} | {interval} | {budget} | {cell(said)} |\n")
    if report.findings:
        lines.append("\n| severity | code | place | message |\n|---|---|---|---|\n")
    for finding in worst_first(report.findings):
        place = cell(f"{finding.span.path}:{finding.span.line}")
        lines.append(f"| {finding.severity} | {finding.code} | {place} | {cell(finding.message)} |\n")
    return lines


def render(report: Report) -> str:
    return "".join(rows(report))
