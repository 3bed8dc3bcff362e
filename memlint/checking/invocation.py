"""What one check is asked for, and what it has found so far."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memlint import work
from memlint.documents.node import Fault, Span
from memlint.estimates import EqualRuns
from memlint.named_tuple import NamedTuple
from memlint.plugin import ERROR, Finding, Run
from memlint.reports.report import Measured, RunReport
from memlint.rules_registry import INTERNAL_ERROR, WORK_LIMIT, RuleInfo
from memlint.selection import Selected, select_rules
from memlint.settings import Allowance, Settings

if TYPE_CHECKING:
    from memlint.discover import Found
    from memlint.estimates import Estimates
    from memlint.facts.spec import TrainingSpec

    Measure = Callable[[TrainingSpec, Settings, Allowance], Measured | None]
    Each = Callable[[RunReport, TrainingSpec, Estimates, Settings], None]
    Progress = Callable[[int, Sequence[Found]], None]


class Draft(NamedTuple):
    """A run before suppression: ``judged`` are the rules that could have spoken about it."""

    report: RunReport
    findings: list[Finding]
    judged: list[RuleInfo]
    settings: Settings


class Asked(NamedTuple):
    """What one check is asked for.

    formulas  record symbolically, which explain and JSON want
    lint      without it files are recognised, and neither estimated nor judged
    measure   is asked for every run, and for a file without a family that is named
    details   findings have fixes and notes
    spans     intervals hold what older releases take, of a run without a budget and a card as well
    each      is shown every run
    changed   real paths of files that changed: runs that read none of them are left out
    look      sees every run when its rules are done
    """

    formulas: bool = False
    lint: bool = True
    measure: Measure | None = None
    details: bool = True
    spans: bool = True
    each: Each | None = None
    changed: frozenset[str] | None = None
    look: Callable[[Run], None] | None = None

    @property
    def is_elsewhere_too(self) -> bool:
        """Whether another process finds the same: nothing of this one's is to see it."""
        return self.lint and self.measure is None and self.each is None and self.look is None


class Outcome(NamedTuple):
    """What one file adds to an invocation, whose lists these are.

    is_told  a reader is told its commands (:class:`memlint.checking.gathering.Scope`)
    steps    of work that it took
    """

    drafts: list[Draft]
    errors: list[tuple[str, str]]
    skipped: list[tuple[str, str]]
    unparsed: list[tuple[str, str]]
    empty: list[str]
    seconds: dict[str, float]
    crashed: bool
    is_told: bool
    steps: int


class Invocation:
    """One check, while it goes on.

    equal_runs  what was estimated for the runs of checks before this one as well
    drafts      of its runs, in the order of the report
    errors      (where, what) cannot be read or used; the check goes on
    skipped     (path, why) of files that are no run
    unparsed    (path, why) of files that a walk met and nobody could read
    empty       configs without a text
    seconds     that each rule took, by its code
    crashed     whether something of ours raised
    """

    def __init__(self, asked: Asked, equal_runs: EqualRuns | None = None) -> None:
        self.asked = asked
        self.equal_runs = equal_runs or EqualRuns()
        self.drafts: list[Draft] = []
        self.errors: list[tuple[str, str]] = []
        self.skipped: list[tuple[str, str]] = []
        self.unparsed: list[tuple[str, str]] = []
        self.empty: list[str] = []
        self.seconds: dict[str, float] = {}
        self.crashed = False
        self._selected: dict[tuple[Any, ...], list[Selected]] = {}

    def select(self, settings: Settings) -> list[Selected]:
        """The rules that are on, imported. Raises SettingsError for codes and plugins that do not exist."""
        if not self.asked.lint:
            return []
        key = (settings.selected, settings.ignored, settings.preview, settings.plugins, repr(settings.rules))
        if key not in self._selected:
            self._selected[key] = select_rules(settings)
        return self._selected[key]

    def beside(self) -> Invocation:
        """One that has found nothing so far, for a part of this one."""
        found = Invocation(self.asked, self.equal_runs)
        found._selected = self._selected
        return found

    def add(self, outcome: Outcome) -> None:
        """What another process has found."""
        self.drafts += outcome.drafts
        self.errors += outcome.errors
        self.skipped += outcome.skipped
        self.unparsed += outcome.unparsed
        self.empty += outcome.empty
        self.crashed = self.crashed or outcome.crashed
        for code, seconds in outcome.seconds.items():
            self.seconds[code] = self.seconds.get(code, 0.0) + seconds

    def internal(self, path: str, where: str, error: Exception) -> Finding:
        self.crashed = True
        return internal_error(path, where, error)

    def lost(self, path: str, settings: Settings, finding: Finding) -> None:
        """A file of which nothing is known but why."""
        report = RunReport(path, "train", "", "", None, "UNKNOWN", None, ())
        self.drafts.append(Draft(report, [finding], [], settings))


def internal_error(path: str, where: str, error: Exception) -> Finding:
    """MEM001 for something of ours that raised: what, and the innermost line of our code."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    text = str(error)
    text = text if len(text) <= 300 else text[:297] + "..."
    return Finding(
        INTERNAL_ERROR,
        "internal-error",
        ERROR,
        f"{where} raised {type(error).__name__}{': ' if text else ''}{text}",
        Span(path, 1, 1, 1, 1),
        key=where,
        notes=((f"raised at {place}",) if place else ())
        + ("this is a fault of memlint or of a plugin, not of the config; the other findings stand",),
    )


def work_limit(path: str, error: work.OutOfWork) -> Finding:
    """MEM011 for a file whose steps are used up: what was under way, and so is not in the report."""
    return Finding(
        WORK_LIMIT,
        "work-limit",
        ERROR,
        f"{error}: the rest of this file is not checked",
        Span(path, 1, 1, 1, 1),
        key=error.doing,
        notes=("every other file is checked; --work-limit raises the limit",),
    )


def cut_short(fault: Fault) -> Finding:
    """MEM011 for a file whose reader stopped early."""
    return Finding(WORK_LIMIT, "work-limit", ERROR, fault.message, fault.span)
