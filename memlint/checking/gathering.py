"""The report of a check: its drafts, each finding once, without those that are suppressed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memlint import work
from memlint.checking.invocation import Draft, Invocation, work_limit
from memlint.documents.node import Span
from memlint.named_tuple import NamedTuple
from memlint.plugin import ERROR, Finding
from memlint.reports.report import Report, RunReport, bounded, bounded_findings, shortened
from memlint.reports.verdict import worst_first
from memlint.rules_registry import WORK_LIMIT, RuleInfo
from memlint.selection import known_rules, without_ignored
from memlint.settings import Settings

if TYPE_CHECKING:
    from memlint import suppress

_NO_MODEL = {"MEM007"}


class Scope(NamedTuple):
    """What is known of the files of a check, by their real paths.

    walked     those that no path of the command line names
    told       of these, those whose commands a reader is told, and nobody runs as they stand
    fragments  a root that is not among the files -> its group files that are, for whose sake it was checked
    """

    walked: set[str]
    told: set[str]
    fragments: dict[str, set[str]]


def report(invocation: Invocation, scope: Scope, seconds: float) -> Report:
    """All that was found, as front ends tell it. ``seconds``: that the check took."""
    read = _only_read(invocation.drafts, scope)
    runs = []
    for draft, findings in zip(invocation.drafts, _without_doubles(_unsuppressed(invocation, scope))):
        if os.path.realpath(draft.report.path) in read:
            findings = [one for one in findings if one.code not in _NO_MODEL]
            if not findings:
                continue  # what is wrong in such a file is said nowhere else
        runs.append(bounded(draft.report._replace(findings=tuple(findings), unknown=_why_unknown(draft))))
    built_on = _built_on(invocation.drafts)
    talk = [_is_talk(run, scope) or _is_a_base(run, scope, built_on) or _says_nothing(run, scope) for run in runs]
    skipped, unparsed, errors = (
        tuple((path, shortened(why)) for path, why in listed)
        for listed in (invocation.skipped, invocation.unparsed, invocation.errors)
    )
    return Report(
        tuple(run for run, is_talk in zip(runs, talk) if not is_talk),
        seconds,
        invocation.crashed or bool(errors),
        skipped,
        unparsed,
        errors,
        invocation.seconds,
        tuple(_without_estimate(run) for run, is_talk in zip(runs, talk) if is_talk),
        tuple(invocation.empty),
    )


class _Comments(NamedTuple):
    """The suppression comments of one file. ``judged``: the rules that could have spoken on its lines."""

    found: suppress.Suppressions
    settings: Settings
    judged: dict[str, RuleInfo]


def _comments(invocation: Invocation) -> dict[str, _Comments]:
    """By the path of each file that has any."""
    from memlint import suppress

    scanned: dict[str, tuple[suppress.Suppressions, Settings]] = {}
    judged: dict[str, dict[str, RuleInfo]] = {}
    for draft in invocation.drafts:
        for path, text in draft.report.sources.items():
            judged.setdefault(path, {}).update((info.code, info) for info in draft.judged)
            if path in scanned or draft.settings.no_ignores or suppress.MARK not in text:
                continue
            rules = known_rules(draft.settings)
            try:
                with work.limited(draft.settings.file_steps):
                    reasons = draft.settings.require_ignore_reason
                    scanned[path] = suppress.scan(path, text, rules, reasons), draft.settings
            except work.OutOfWork as error:
                draft.findings.append(work_limit(path, error))
            except Exception as error:
                draft.findings.append(invocation.internal(path, "reading suppressions", error))
    return {path: _Comments(*found, judged[path]) for path, found in scanned.items()}


def _unsuppressed(invocation: Invocation, scope: Scope) -> list[list[Finding]]:
    """Of each draft, the findings that no comment suppresses, and what is wrong with the comments of its files."""
    from memlint import suppress

    comments = _comments(invocation)
    by_path = {path: one.found for path, one in comments.items()}
    used: set[tuple[Span, str]] = set()
    kept: list[list[Finding]] = []
    for draft in invocation.drafts:
        findings, here = suppress.apply(draft.findings, by_path)
        used |= here
        kept.append(_in_scope(draft, without_ignored(findings, draft.settings), scope))
    for path, (found, settings, judged) in comments.items():
        late = [*found.bad, *suppress.unused(found, used, list(judged.values()))]
        on = {selected.info.code for selected in invocation.select(settings)}
        late = [finding for finding in late if finding.code in on]
        late, _ = suppress.apply(bounded_findings(late), by_path)
        home = next(index for index, draft in enumerate(invocation.drafts) if path in draft.report.sources)
        kept[home] += without_ignored(late, settings)
    return kept


def _in_scope(draft: Draft, findings: list[Finding], scope: Scope) -> list[Finding]:
    """The findings of a run that concern the fragments for whose sake it was checked; all, if it was named."""
    fragments = scope.fragments.get(os.path.realpath(draft.report.path))
    if fragments is None:
        return findings
    return [
        finding for finding in findings if finding.severity == ERROR or os.path.realpath(finding.span.path) in fragments
    ]


def _only_read(drafts: Sequence[Draft], scope: Scope) -> set[str]:
    """Files of launchers' settings that were met in a walk, or that other runs of this check read: no runs."""
    own = {os.path.realpath(draft.report.path) for draft in drafts if draft.report.companion}
    return own & {
        *scope.walked,
        *(os.path.realpath(path) for draft in drafts for path in draft.report.sources if path != draft.report.path),
    }


def _is_talk(report: RunReport, scope: Scope) -> bool:
    """A command of a document met in a walk that has no estimate for what its author left out (a path to fill in, a
    program that nobody knows): a reader is told how it goes, and nobody runs it as it stands."""
    if report.estimate is not None or report.partial is not None or os.path.realpath(report.path) not in scope.told:
        return False
    return not _is_stated(report)


def _says_nothing(report: RunReport, scope: Scope) -> bool:
    """A program met in a walk that trains a model of its own, by itself, and is not followed, or whose weights and
    states take less than CUDA does without any: nobody asks whether that fits."""
    path = os.path.realpath(report.path)
    if report.estimate is not None or "own_model" not in report.facts or path not in scope.walked:
        return False
    if report.partial is None:
        return path.endswith((".py", ".ipynb"))
    from memlint.tape.overhead import least_context_bytes

    return max(row.device_bytes for row in report.partial.rows) < least_context_bytes()


# What a file is called that only others build on: detectron2's Base-RCNN-FPN.yaml, the parts below _base_ of OpenMMLab.
_BASE = re.compile(r"^_?base[-_.]|^_base_$", re.IGNORECASE)


def _is_a_base(report: RunReport, scope: Scope, built_on: set[str]) -> bool:
    """A file met in a walk that is called a base, is one of another run of this check, and has no estimate, or only a
    bound: what it leaves to the files that build on it is why."""
    path = os.path.realpath(report.path)
    is_told = report.partial is not None and not report.partial.at_least
    if report.estimate is not None or is_told or path not in scope.walked & built_on:
        return False
    return any(_BASE.search(part) for part in path.split(os.sep)[-3:])


def _built_on(drafts: Sequence[Draft]) -> set[str]:
    """The files that runs of this check read beside their own."""
    return {os.path.realpath(path) for draft in drafts for path in draft.report.sources if path != draft.report.path}


def _is_stated(report: RunReport) -> bool:
    """Whether a run without an estimate names a model that the hub may have, and nothing that it leaves open is why."""
    from memlint.data import hub

    model = report.facts.get("model")
    if model is None or not model.line or not isinstance(model.value, str) or not hub.is_id(model.value):
        return False
    why = _without_estimate(report)[1]
    return not any(gap.reason in why for gap in report.unresolved)


def _without_estimate(run: RunReport) -> tuple[str, str]:
    """Where a run stands, and why it has no estimate."""
    why = next((finding for finding in run.findings if finding.code == "MEM007"), None)
    return (run.path, "no estimate") if why is None else (f"{run.path}:{why.span.line}", why.message)


def _why_unknown(draft: Draft) -> str:
    """Kept with the run: what is said once of several runs stands among the findings of one of them."""
    if draft.report.estimate is not None:
        return ""
    no_model = [finding for finding in draft.findings if finding.code in _NO_MODEL]
    return next((finding.message for finding in [*no_model, *worst_first(tuple(draft.findings))]), "")


def _without_doubles(groups: Sequence[Sequence[Finding]]) -> list[list[Finding]]:
    """One finding per code and place over all runs, the gravest of them, each group in the order of its lines."""
    from memlint.plugin import SEVERITIES

    def gravity(finding: Finding) -> tuple[int, int]:
        return -SEVERITIES.index(finding.severity), finding.size_bytes

    best: dict[tuple[Any, ...], tuple[int, Finding]] = {}
    for index, group in enumerate(groups):
        for finding in group:
            # What was under way when the work was used up differs between runs, and that it was is said once.
            key = (finding.code, finding.span, "" if finding.code == WORK_LIMIT else finding.key)
            if key not in best or gravity(finding) > gravity(best[key][1]):
                best[key] = (index, finding)
    result: list[list[Finding]] = [[] for _ in groups]
    for index, finding in best.values():
        result[index].append(finding)
    for group in result:
        group.sort(key=lambda f: (f.span.path, f.span.line, f.span.column, f.code, f.message))
    return result
