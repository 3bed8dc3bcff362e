"""Findings that are known: written to a file once, and not reported again.

A finding is known by its code, its file and its key, as often as the file says, and no graver than it was. Neither
lines nor figures count, so a config may grow above a finding, and a finding that becomes an error is told.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from memlint import __version__, files
from memlint.named_tuple import NamedTuple
from memlint.plugin import SEVERITIES, Finding
from memlint.reports.report import Report
from memlint.rules_registry import NEVER_HIDDEN
from memlint.settings import Settings

VERSION = 1
MAX_BYTES = 64 << 20

Identity = tuple[str, str, str]  # code, path from the baseline's folder, key
Known = dict[Identity, list[int]]  # -> how grave each is, as an index of SEVERITIES


class BaselineError(ValueError):
    """A file that is no baseline; the message says why."""


class Held(NamedTuple):
    """A report without what is known. ``hidden`` findings are left out; ``gone`` ones were known of files that were
    checked, and are there no more."""

    report: Report
    hidden: int
    gone: int


def stated(settings: Settings) -> str:
    """The path of the baseline in force; "" for none. Raises SettingsError for one that a tree's own settings name
    outside of it."""
    path = settings.baseline
    if path and settings.in_tree and settings.origins.get("baseline") in settings.files:
        folder = os.path.dirname(os.path.abspath(settings.files[0]))
        if not files.inside(path, files.repository_root(folder)):
            raise settings.error("baseline", f"names {path!r}, which is not in the tree")
    return path


def _identity(finding: Finding, folder: str) -> Identity:
    path = os.path.relpath(os.path.realpath(finding.span.path), folder).replace(os.sep, "/")
    return finding.code, path, finding.key


def _folder(path: str) -> str:
    return os.path.dirname(os.path.realpath(path))


def render(report: Report, path: str) -> str:
    """The findings of a report as a baseline that is to lie at ``path``."""
    import json

    folder = _folder(path)
    counted = Counter(
        (*_identity(finding, folder), finding.severity)
        for finding in report.findings
        if finding.code not in NEVER_HIDDEN
    )
    entries = [
        {"code": code, "path": name, "key": key, "severity": severity, "count": count}
        for (code, name, key, severity), count in sorted(counted.items(), key=lambda item: (item[0][1], item[0]))
    ]
    said = {"version": VERSION, "tool": {"name": "memlint", "version": __version__}, "findings": entries}
    return json.dumps(said, indent=2, ensure_ascii=True) + "\n"


def read(path: str) -> Known:
    """Raises BaselineError."""
    import json

    try:
        said: Any = json.loads(files.read(path, MAX_BYTES))
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error} (check --write-baseline makes it)") from None
    except (ValueError, RecursionError):
        raise BaselineError(f"{path}: is not JSON") from None
    if not isinstance(said, dict) or said.get("version") != VERSION or not isinstance(said.get("findings"), list):
        raise BaselineError(f"{path}: is no baseline of version {VERSION}")
    known: Known = {}
    for number, entry in enumerate(said["findings"], 1):
        try:
            identity = tuple(entry[name] for name in ("code", "path", "key"))
            grave, count = SEVERITIES.index(entry["severity"]), entry["count"]
        except (KeyError, TypeError, ValueError):
            raise BaselineError(f"{path}: entry {number} is damaged") from None
        is_text = all(isinstance(part, str) for part in identity)
        if not is_text or isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= 1_000_000:
            raise BaselineError(f"{path}: entry {number} is damaged")
        known.setdefault(identity, []).extend([grave] * count)
    return known


def without(report: Report, known: Known, path: str) -> Held:
    """A report without the findings that the baseline at ``path`` knows."""
    folder = _folder(path)
    left = {identity: sorted(graves) for identity, graves in known.items()}
    here = {
        os.path.relpath(os.path.realpath(name), folder).replace(os.sep, "/")
        for run in report.runs
        for name in (run.path, *run.sources)
    }
    hidden = 0
    kept: set[int] = set()
    # The gravest first: each takes of the known ones the least grave that covers it.
    for finding in sorted(report.findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        graves = left.get(_identity(finding, folder), [])
        grave = SEVERITIES.index(finding.severity)
        covering = [known_grave for known_grave in graves if known_grave <= grave]
        if covering and finding.code not in NEVER_HIDDEN:
            graves.remove(covering[-1])
            hidden += 1
        else:
            kept.add(id(finding))
    runs = tuple(
        run._replace(findings=tuple(finding for finding in run.findings if id(finding) in kept)) for run in report.runs
    )
    gone = sum(len(graves) for (_, name, _), graves in left.items() if name in here)
    return Held(report._replace(runs=runs), hidden, gone)
