"""Findings that say the same of several files of a folder: one of them is shown, with the places of the others."""

from __future__ import annotations

import os

from memlint.plugin import Finding
from memlint.reports.report import Report
from memlint.reports.text import clean

MAX_PLACES = 4  # of the others that are named

Key = tuple[str, str, str, str]


def key_of(finding: Finding) -> Key:
    return (os.path.dirname(finding.span.path), finding.code, finding.key, finding.message)


class Equal:
    """The findings of a report by what they say: folder, code, key and message."""

    def __init__(self, report: Report) -> None:
        self._by_key: dict[Key, list[Finding]] = {}
        for run in report.runs:
            for finding in run.findings:
                self._by_key.setdefault(key_of(finding), []).append(finding)

    def is_first(self, finding: Finding) -> bool:
        return self._by_key[key_of(finding)][0] is finding

    def others(self, finding: Finding) -> str:
        """``also in b.yaml:3, c.yaml:3 and 20 more places``; "" where no other says the same."""
        places = [
            f"{os.path.basename(other.span.path)}:{other.span.line}" for other in self._by_key[key_of(finding)][1:]
        ]
        if not places:
            return ""
        more = len(places) - MAX_PLACES
        rest = f" and {more} more {'places' if more > 1 else 'place'}" if more > 0 else ""
        return clean(f"also in {', '.join(places[:MAX_PLACES])}{rest}")
