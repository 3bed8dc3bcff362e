"""One line per run with its verdict, and one per finding: ``path:line:col: CODE message``, which editors and grep
understand."""

from __future__ import annotations

from memlint.reports.full import Style, finish
from memlint.reports.report import Report
from memlint.reports.text import clean
from memlint.reports.verdict import name_of, reason, verdict_of


def render(report: Report, style: Style = Style()) -> str:  # noqa: B008  (immutable)
    lines = []
    for run in report.runs:
        lines.append(f"{name_of(run)}: {verdict_of(run)}: {reason(run)}")
        lines += [
            f"{clean(finding.span.path)}:{finding.span.line}:{finding.span.column}: "
            f"{finding.code} {clean(' '.join(finding.message.split()))}"
            for finding in run.findings
        ]
    return finish(lines, style)
