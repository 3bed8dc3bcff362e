"""GitLab's code quality report: an array of violations, each with a fingerprint of its own.

GitLab shows the description and not the check's name, so the description begins with the code.
"""

from __future__ import annotations

import os
from typing import Any

from memlint.plugin import ERROR, INFO, WARNING
from memlint.reports.report import Report
from memlint.reports.text import clean, encoded, repository_path
from memlint.reports.verdict import worst_first

SEVERITY = {ERROR: "major", WARNING: "minor", INFO: "info"}


def render(report: Report) -> str:
    seen: set[str] = set()
    return encoded([_violation(finding, seen) for finding in worst_first(report.findings)])


def _violation(finding: Any, seen: set[str]) -> dict[str, Any]:
    span = finding.span
    line = max(span.line, 1)
    return {
        "check_name": finding.code,
        "description": f"{finding.code} {finding.name}: {clean(finding.message)}",
        "severity": SEVERITY[finding.severity],
        "fingerprint": _fingerprint(finding.fingerprint, seen),
        "location": {
            "path": repository_path(span.path, os.environ, "CI_PROJECT_DIR"),
            "lines": {"begin": line, "end": max(span.end_line, line)},
        },
    }


def _fingerprint(found: str, seen: set[str]) -> str:
    """GitLab drops all but one violation with the same fingerprint: a second one is hashed on from the first."""
    from hashlib import sha256

    while found in seen:
        found = sha256(found.encode()).hexdigest()[:16]
    seen.add(found)
    return found
