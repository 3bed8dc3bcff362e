"""Fixes applied: which of those that findings offer are written, in which order, and whether they keep their word.

One fix after the other, each on the texts as the ones before it left them, and all of it in memory: after each one the
runs that read an edited file are checked again. A fix stays where its run then has the promised peak to the byte, and
nothing else is worse. Nothing is written here: who calls gets the texts (:class:`Fixed`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memlint import files
from memlint.check import check_paths
from memlint.documents.node import Edit
from memlint.estimates import EqualRuns
from memlint.fixes.edits import EditError, apply_edits
from memlint.named_tuple import NamedTuple
from memlint.plugin import DISPLAY, ERROR, SAFE, SEVERITIES, Finding, Fix
from memlint.rules_registry import IN_FULL, covers, require, specificity
from memlint.tape.estimate import FITS, OOM, TIGHT, UNKNOWN

if TYPE_CHECKING:
    from memlint.fixes.search import Plan
    from memlint.plugin import Run
    from memlint.reports.report import Report, RunReport
    from memlint.rules_registry import RuleInfo
    from memlint.settings import Resolver

MAX_FIXES = 100  # of one file: each lowers its peak, and none has as many levers

_WORSE = {FITS: 0, UNKNOWN: 0, TIGHT: 1, OOM: 2}


class Permission(NamedTuple):
    """Which fixes may be applied.

    unsafe  also those that may change numerics or speed
    codes   of the rules whose fixes may be; None for all
    named   of the rules that the user named one by one: of these also what changes the optimisation
    """

    unsafe: bool = False
    codes: frozenset[str] | None = None
    named: frozenset[str] = frozenset()

    def why_not(self, finding: Finding, fix: Fix, run: RunReport) -> str:
        """Why a fix may not be applied; "" where it may. An option where one would permit it."""
        if self.codes is not None and finding.code not in self.codes:
            return "rule"
        if fix.safety != SAFE and not self.unsafe:
            return "--unsafe-fixes"
        if fix.safety != DISPLAY:
            return ""
        if finding.code not in self.named:
            return "--fixable"
        # Without a budget that is in question nothing would say when to stop halving a batch.
        uses_room = bool(fix.fits) and (fix.saved_bytes or 0) < 0
        return "" if run.verdict in (OOM, TIGHT) or uses_room else "budget"


def permission(unsafe: bool, fixable: Sequence[str], unfixable: Sequence[str], rules: Sequence[RuleInfo]) -> Permission:
    """What the options mean, given the rules that there are. Raises UnknownRule for a selector that names none."""
    require((*fixable, *unfixable), rules)
    if not fixable and not unfixable:
        return Permission(unsafe)
    on = {info.code for info in rules if not fixable or covers(fixable, info)}
    on -= {info.code for info in rules if covers(unfixable, info)}
    named = {info.code for info in rules if any(specificity(word, info) == IN_FULL for word in fixable)}
    return Permission(unsafe, frozenset(on), frozenset(named & on))


class Applied(NamedTuple):
    """A fix that is in the texts. ``before_bytes`` is the peak without it, None where there is no estimate."""

    path: str
    run: str
    finding: Finding
    fix: Fix
    before_bytes: int | None


class Refused(NamedTuple):
    """A fix that is permitted, and left out: ``why``."""

    path: str
    finding: Finding
    fix: Fix
    why: str


class Fixed(NamedTuple):
    """What came of it.

    texts    path -> (text as it was read, text with the fixes), of files that differ
    waiting  option -> how many findings have a fix that only it permits
    report   of the runs as they are with the fixes
    """

    texts: dict[str, tuple[str, str]]
    applied: tuple[Applied, ...]
    refused: tuple[Refused, ...]
    waiting: dict[str, int]
    report: Report


def fix_paths(paths: Iterable[str], resolver: Resolver, permission: Permission, report: Report | None = None) -> Fixed:
    """The fixes of files and folders that may be applied, applied. Reads files, writes none.

    report  of these very paths, where there is one. Raises SettingsError and Interrupted as ``check_paths`` does.
    """
    return _Fixing(tuple(paths), resolver, permission).fixed(report)


class _Fixing:
    def __init__(self, paths: tuple[str, ...], resolver: Resolver, permission: Permission) -> None:
        self.paths = paths
        self.resolver = resolver
        self.permission = permission
        self.equal_runs = EqualRuns()  # most of what is checked again is as it was
        self.texts: dict[str, str] = {}  # with the fixes so far, by the name that a file was first edited under
        self.originals: dict[str, str] = {}
        self.applied: list[Applied] = []
        self.refused: dict[tuple[str, tuple[Edit, ...]], Refused] = {}

    def fixed(self, report: Report | None) -> Fixed:
        first = report or check_paths(self.paths, self.resolver, equal_runs=self.equal_runs)
        readers = _readers(first)
        waiting = dict.fromkeys(run.path for run in first.runs if any(found.fixes for found in run.findings))
        while waiting:
            path = next(iter(waiting))
            del waiting[path]
            edited = self._file(path, readers)
            waiting.update(dict.fromkeys(other for name in edited for other in readers.get(name, ()) if other != path))
        last = self._checked(self.paths, self.texts) if self.texts else first
        return Fixed(
            {name: (self.originals[name], text) for name, text in self.texts.items() if text != self.originals[name]},
            tuple(self.applied),
            tuple(self.refused.values()),
            self._waiting(last),
            last,
        )

    def _file(self, path: str, readers: Mapping[str, Sequence[str]]) -> set[str]:
        """Apply what may be applied for the sake of one file's runs. The files that were edited, links followed."""
        edited: set[str] = set()
        report = self._checked([path], self.texts)
        for _ in range(MAX_FIXES):
            step = next(self._candidates(report), None)
            if step is None:
                break
            run, finding, fix = step
            after = self._tried(report, run, finding, fix, readers)
            if isinstance(after, str):
                self.refused[run.path, fix.edits] = Refused(run.path, finding, fix, after)
                continue
            peak = None if run.estimate is None else run.estimate.device_bytes
            self.applied.append(Applied(run.path, run.run, finding, fix, peak))
            edited.update(os.path.realpath(edit.span.path) for edit in fix.edits)
            report = after
        return edited

    def _candidates(self, report: Report) -> Iterator[tuple[RunReport, Finding, Fix]]:
        """What may be applied, the gravest finding first, and of each finding the first fix that may."""
        every = [(run, finding) for run in report.runs for finding in run.findings]
        every.sort(key=lambda entry: (SEVERITIES.index(entry[1].severity), entry[1].code))
        return iter(
            [
                (run, finding, fix)
                for run, finding in every
                for fix in finding.fixes
                if fix.edits
                and (run.path, fix.edits) not in self.refused
                and not self.permission.why_not(finding, fix, run)
            ]
        )

    def _tried(
        self, report: Report, run: RunReport, finding: Finding, fix: Fix, readers: Mapping[str, Sequence[str]]
    ) -> Report | str:
        """The report of the file with a fix, which is kept; why it is not, as text."""
        texts = dict(self.texts)
        originals = dict(self.originals)
        for path in dict.fromkeys(edit.span.path for edit in fix.edits):
            text = run.sources.get(path)
            if text is None:
                return f"{path} was not read"
            why = self.unwritable(path, run.path)
            if why:
                return why
            name = next((known for known in texts if _same_file(known, path)), path)
            originals.setdefault(name, text)
            try:
                texts[name] = apply_edits(text, [edit for edit in fix.edits if edit.span.path == path])
            except EditError as error:
                return str(error)
        after = self._checked([run.path], texts)
        why = _broken_word(report, after, run, finding, fix)
        others = {
            other
            for edit in fix.edits
            for other in readers.get(os.path.realpath(edit.span.path), ())
            if not _same_file(other, run.path)
        }
        for other in sorted(others) if not why else ():
            why = why or _harm(self._checked([other], self.texts), self._checked([other], texts))
        if why:
            return why
        self.texts, self.originals = texts, originals
        return after

    def unwritable(self, path: str, config: str) -> str:
        """Why a file is not memlint's to write: it is not in the tree of the config, and nobody named it; or a link."""
        if os.path.islink(path):
            return f"{path} is a symbolic link, and memlint writes through none"
        with files.named(self.paths):
            if not files.inside(path, files.repository_root(os.path.dirname(config))):
                return f"{path} is not in the tree of {config}"
        return ""

    def _checked(self, paths: Iterable[str], texts: Mapping[str, str]) -> Report:
        with files.edited(texts):
            return check_paths(paths, self.resolver, equal_runs=self.equal_runs, named=self.paths)

    def _waiting(self, report: Report) -> dict[str, int]:
        """How many findings have fixes that nothing but an option keeps from being applied."""
        found: dict[str, int] = {}
        for run in report.runs:
            for finding in run.findings:
                reasons = {self.permission.why_not(finding, fix, run) for fix in finding.fixes if fix.edits}
                option = next((word for word in ("--unsafe-fixes", "--fixable") if word in reasons), "")
                if option and "" not in reasons:
                    found[option] = found.get(option, 0) + 1
        return found


def _readers(report: Report) -> dict[str, list[str]]:
    """Real path of a file -> the configs whose runs read it."""
    found: dict[str, list[str]] = {}
    for run in report.runs:
        for path in run.sources:
            entry = found.setdefault(os.path.realpath(path), [])
            if run.path not in entry:
                entry.append(run.path)
    return found


def _same_file(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _broken_word(before: Report, after: Report, run: RunReport, finding: Finding, fix: Fix) -> str:
    """How a run with a fix is not what the fix says; "" where it is."""
    now = next((one for one in after.runs if (one.path, one.run) == (run.path, run.run)), None)
    if now is None:
        return "the run is not there any more"
    if fix.device_bytes_after is not None:
        peak = None if now.estimate is None else now.estimate.device_bytes
        if peak != fix.device_bytes_after:
            return f"the peak after it is {peak}, not the {fix.device_bytes_after} bytes that it promises"
    elif any((other.code, other.span[:3]) == (finding.code, finding.span[:3]) for other in now.findings):
        return "what it should mend is still there"
    return _harm(before, after)


def _harm(before: Report, after: Report) -> str:
    """What is worse in the runs of a file with a fix: an error that was not there, a worse verdict, no estimate."""
    if len(after.errors) > len(before.errors):
        return after.errors[-1][1]
    known = {(run.path, run.run): run for run in before.runs}
    for run in after.runs:
        was = known.get((run.path, run.run))
        if was is None:
            return f"there is a run more: {run.run}"
        if _WORSE[run.verdict] > _WORSE[was.verdict]:
            return f"{run.path} would be {run.verdict}"
        if was.estimate is not None and run.estimate is None:
            return f"{run.path} would have no estimate"
        errors = {found.code for found in run.findings if found.severity == ERROR}
        new = errors - {found.code for found in was.findings}
        if new:
            return f"{run.path} would have {', '.join(sorted(new))}"
    return "" if len(after.runs) == len(before.runs) else "a run is not there any more"


def planned(path: str, resolver: Resolver, run: Run, plan: Plan) -> dict[str, tuple[str, str]] | str:
    """path -> (text, text with a plan), of the files that it changes; why it is not to be written, as text: the whole
    file is checked once more with it, and its run has the promised peak and verdict, or it is not."""
    fixing = _Fixing((path,), resolver, Permission())
    before = check_paths([path], resolver, details=False, equal_runs=fixing.equal_runs)
    own = next((one for one in before.runs if one.run == run.spec.run), None)
    if own is None:
        return "the run is not there any more"
    texts: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(edit.span.path for edit in plan.edits):
        why = "" if name in own.sources else f"{name} was not read"
        why = why or fixing.unwritable(name, path)
        if why:
            return why
        try:
            after = apply_edits(own.sources[name], [edit for edit in plan.edits if edit.span.path == name])
        except EditError as error:
            return str(error)
        texts[name] = (own.sources[name], after)
    with files.edited({name: after for name, (_, after) in texts.items()}):
        report = check_paths([path], resolver, details=False, equal_runs=fixing.equal_runs)
    now = next((one for one in report.runs if (one.path, one.run) == (own.path, own.run)), None)
    if now is None or now.estimate is None or now.estimate.device_interval != plan.estimate.device_interval:
        return "the files with it do not give the peak that it promises"
    return _harm(before, report) or texts
