"""One line per finding: ``path:line:col: CODE message``, which editors and grep understand."""

from __future__ import annotations

from memlint.reports.full import Style, finish
from memlint.reports.report import Report
from memlint.reports.text import clean


def render(report: Report, style: Style = Style()) -> str:  # noqa: B008  (immutable)
    return finish(
        [
            f"{clean(finding.span.path)}:{finding.span.line}:{finding.span.column}: "
            f"{finding.code} {clean(' '.join(finding.message.split()))}"
            for finding in report.findings
        ],
        style,
    )
