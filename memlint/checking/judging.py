"""One run: its estimate, what the rules say of it, and which of their fixes hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlint import files, work
from memlint.checking import reading
from memlint.checking.invocation import Draft, Invocation, cut_short, work_limit
from memlint.documents.node import Document, Edit, Span
from memlint.plugin import Finding, Fix, Run, Spelled
from memlint.reports.report import Budget, Measured, RunReport, StatedFact, UnresolvedValue, bounded_findings
from memlint.rules_registry import WORK_LIMIT, RuleInfo
from memlint.selection import Selected
from memlint.settings import Allowance, Settings, allowance

if TYPE_CHECKING:
    from memlint.checking.invocation import Measure
    from memlint.estimates import Estimates
    from memlint.facts.spec import Name, TrainingSpec
    from memlint.partial import Partial
    from memlint.profiles.measurement import Measurement
    from memlint.tape.estimate import Estimate

OVERRIDE_PATH = "<override>"  # as memlint.documents.overrides names it, which is imported for overrides only

MEASURED_SUFFIX = ".memlint-measured.json"  # as in memlint.profiles.measurement, which is imported where there is one

# Of a file's steps, as many as reading it again with its fixes may take: 1 / TRIED_SHARE.
TRIED_SHARE = 16

FAILED = "it failed with an internal error"

# Rules that a document without a known family can still be judged by.
_TEXT_RULES = frozenset(("MEM003", "MEM006"))


class Judge:
    """Of the runs of one file, whose reading has taken the steps that the meter shows by now."""

    def __init__(self, invocation: Invocation, document: Document, settings: Settings) -> None:
        self._invocation = invocation
        self._document = document
        self._settings = settings
        self._reading_steps = work.meter().used
        self._trying_steps = settings.file_steps // TRIED_SHARE  # that are left to try its fixes

    def run(self, spec: TrainingSpec) -> None:
        """Estimate a run and judge it: one more draft, unless none of its files is among those that changed."""
        invocation, asked, document, settings = self._invocation, self._invocation.asked, self._document, self._settings
        path = document.path
        if asked.changed is not None and not reading.reads_any(spec, document, asked.changed):
            return
        allowed = allowance(settings, path)
        spec = reading.with_devices(spec, allowed)
        findings = [cut_short(fault) for fault in document.faults if fault.code == WORK_LIMIT]
        estimate: Estimate | None = None
        if spec.family and spec.architecture is None:
            spec = next(iter(reading.recorded(document, spec)), spec)
        # A prediction that a new measurement is held against knows nothing of old ones.
        measured = self._measurements(path) if spec.family and asked.lint and asked.measure is None else ()
        estimates = invocation.equal_runs.estimates(spec, allowed.gpu, measured)
        spans = asked.spans or allowed.size_bytes is not None or bool(allowed.gpu)
        if spec.family and asked.lint:
            try:
                estimate = _with_unread(estimates.own(asked.formulas, spans), spec)
            except _unknown_model() as error:
                spec.unknown_reason = spec.unknown_reason or str(error)
            except work.OutOfWork as error:
                findings.append(work_limit(path, error))
                spec.unknown_reason = "the estimate takes more work than a config may ask for"
            except Exception as error:
                findings.append(invocation.internal(path, "the estimate", error))
                spec.unknown_reason = FAILED
        part = self._partial(spec, measured, allowed, spans) if estimate is None and asked.lint else None
        judged: list[RuleInfo] = []
        if asked.lint:
            run = Run(
                spec,
                estimate,
                allowed.size_bytes,
                estimates.newest,
                _spell,
                host_budget_bytes=allowed.host_bytes,
                gpu=allowed.gpu,
                faults=dict.fromkeys((*document.faults, *spec.document.faults)),
                saved=estimates.saved_bytes,
                allocated=estimates.allocated_bytes,
                within=estimates.newest_within,
                packed=lambda: estimates.packed_bytes(estimate) if estimate is not None else 0,
                first_pass=estimates.first_pass_bytes,
                whole=estimates.whole,
                fitting=estimates.fitting,
                partial=part,
                again=lambda edits: self._edited(edits, spec, allowed),
                details=asked.details,
            )
            for selected in invocation.select(settings):
                self._rule(selected, run, findings, judged)
            if asked.look is not None:
                asked.look(run)
        report = _run_report(spec, document, estimate, allowed, part)
        if asked.measure is not None and asked.lint:
            report = report._replace(measured=self._measured(asked.measure, spec, allowed, findings))
        invocation.drafts.append(Draft(report, findings, judged, settings))
        if asked.each is not None:
            asked.each(report, spec, estimates, settings)

    def _partial(
        self, spec: TrainingSpec, measured: Sequence[Measurement], allowed: Allowance, spans: bool
    ) -> Partial | None:
        if not spec.family or spec.derivation is None or spec.unknown_reason == FAILED:
            return None
        from memlint.partial import STATES, at_least, partial

        def estimates(stated: TrainingSpec) -> Estimates:
            """Each run of the table is one of its own, which others may equal."""
            return self._invocation.equal_runs.estimates(stated, allowed.gpu, measured, in_table=True)

        def whole(stated: TrainingSpec) -> Estimate:
            return estimates(stated).own(spans=spans)

        def states(stated: TrainingSpec) -> int:
            found = estimates(stated)
            return (found.states_bytes if stated.architecture == STATES else found.allocated_bytes)(stated)

        try:
            with work.limited(work.meter().left // 2):  # the rest is for what the rules ask
                try:
                    found = partial(spec, whole, allowed.size_bytes, ends=not spans)
                except _unknown_model() as error:  # to state what is not stated would not be enough
                    spec.unknown_reason, found = str(error), None
                return found or at_least(spec, states, allowed.size_bytes, ends=not spans)
        except work.OutOfWork:
            return None

    def _edited(self, edits: Sequence[Edit], spec: TrainingSpec, allowed: Allowance) -> TrainingSpec | None:
        """A run as it is read from the texts with some edits. None where they cannot be made, the run is not there any
        more, or more is wrong than before: a fault, or a value that is not known. Raises OutOfWork, at once where what
        was read the first time cannot be read again."""
        document = self._document
        if self._reading_steps > work.meter().left:
            raise work.OutOfWork("reading the file again", work.meter().left)
        from memlint.documents.load import load
        from memlint.fixes.edits import EditError, apply_edits

        texts = {**document.sources, **spec.document.sources, document.path: document.text}
        try:
            after = {
                path: apply_edits(texts[path], [edit for edit in edits if edit.span.path == path])
                for path in {edit.span.path for edit in edits}
            }
        except (KeyError, EditError):
            return None
        with files.edited(after):
            again = load(document.path, after.get(document.path, document.text))
            found, again = self._same_run(spec, again)
            if found is None or found.family != spec.family:
                return None
            found = reading.with_devices(found, allowed)
            if found.architecture is None:
                found = next(iter(reading.recorded(again, found)), found)
        if {entry.key for entry in found.missing} - {entry.key for entry in spec.missing}:
            return None
        faults = [fault.code for fault in again.faults]
        was = [fault.code for fault in document.faults]
        return None if any(faults.count(code) > was.count(code) for code in faults) else found

    def _same_run(self, spec: TrainingSpec, again: Document) -> tuple[TrainingSpec | None, Document]:
        """A run of the document in another that has as many; and that document, composed."""
        document, settings = self._document, self._settings
        places = [at for at, command in enumerate(document.commands) if command is spec.launch]
        if places and document.format == "shell":
            from memlint.dialects import registry

            if len(again.commands) != len(document.commands):
                return None, again
            return registry.started(again, again.commands[places[0]], settings.override, spec.run), again
        specs, again = reading.specs_of(again, settings)
        if spec.launch is not None:
            specs = reading.launched(specs, again, settings)
        return next((one for one in specs or reading.recorded(again) if one.run == spec.run), None), again

    def _measurements(self, path: str) -> Sequence[Measurement]:
        """What ``memlint probe --save`` kept of a config."""
        kept = path + MEASURED_SUFFIX
        if not os.path.lexists(kept):
            return ()
        from memlint.profiles.measurement import MeasurementError, load

        bad: list[MeasurementError] = []
        found: Sequence[Measurement] = ()
        if files.inside(kept, files.repository_root(os.path.dirname(path))):
            try:
                found = load(kept, bad)
            except MeasurementError as error:
                bad.append(error)
        else:
            bad.append(MeasurementError(kept, "lies outside of this repository"))
        for wrong in bad:
            where = f"{wrong.path}:{wrong.line}" if wrong.line else wrong.path
            if (where, wrong.reason) not in self._invocation.errors:  # a file may hold several runs
                self._invocation.errors.append((where, wrong.reason))
        return found

    def _measured(
        self, measure: Measure, spec: TrainingSpec, allowed: Allowance, findings: list[Finding]
    ) -> Measured | None:
        from memlint.measure.child import MeasureError

        path = spec.document.path
        try:
            return measure(spec, self._settings, allowed)
        except MeasureError as error:
            name = path if spec.run == "train" else f"{path} [{spec.run}]"
            self._invocation.errors.append((name, str(error)))
        except Exception as error:
            findings.append(self._invocation.internal(path, "the measurement", error))
        return None

    def _rule(self, selected: Selected, run: Run, findings: list[Finding], judged: list[RuleInfo]) -> None:
        info, rule, options = selected
        if not run.spec.family and info.code not in _TEXT_RULES:
            return
        if rule.needs_estimate and run.estimate is None:
            return
        if any(run.fact(name) is None for name in rule.facts):
            return
        if rule.saves and run.has_room:
            return
        run.options = options
        begin = time.perf_counter()
        try:
            found: list[Finding] = []
            try:
                found.extend(rule.check(run))
            except _unknown_model():
                pass  # it asked a recording about something that was not recorded
            worth = [finding for finding in found if not rule.saves or run.is_worth_saving(finding)]
            # Silence for want of a budget says nothing of suppressions.
            if run.budget_bytes is not None or not (info.code.startswith("MEM1") or len(worth) < len(found)):
                judged.append(info)
            found = [self._held(_on_a_file(finding, run), run) for finding in worth]
            if "severity" in options:
                found = [finding._replace(severity=options["severity"]) for finding in found]
            findings += bounded_findings(found)
        except work.OutOfWork as error:
            if not any(finding.code == WORK_LIMIT for finding in findings):
                findings.append(work_limit(run.spec.document.path, error))
        except Exception as error:
            findings.append(self._invocation.internal(run.spec.document.path, f"rule {info.code}", error))
        seconds = self._invocation.seconds
        seconds[info.code] = seconds.get(info.code, 0.0) + time.perf_counter() - begin

    def _held(self, finding: Finding, run: Run) -> Finding:
        """A finding with those of its fixes that the texts with them bear out, as far as the steps for that go."""
        held: list[Fix] = []
        for fix in finding.fixes:
            with work.limited(self._trying_steps) as meter:
                kept = run.held(fix)
            self._trying_steps -= min(meter.used, meter.limit)
            held += [kept] if kept is not None else []
        return finding._replace(fixes=tuple(held))


def _with_unread(estimate: Estimate, spec: TrainingSpec) -> Estimate:
    """An estimate that says which keys it is made without. Raises OutOfWork."""
    from memlint.dialects.unread import unread

    why = "not read: the estimate is made without it"
    said = tuple((one.name, one.value, why) for one in unread(spec))
    return estimate._replace(assumptions=(*estimate.assumptions, *said)) if said else estimate


def _unknown_model() -> type[Exception]:
    from memlint.models import UnknownModel

    return UnknownModel


def _spell(spec: TrainingSpec, changes: Mapping[Name, Any]) -> Iterable[Spelled]:
    if spec.architecture == "recorded":
        from memlint.models.recorded import can_change

        # No fix may change what the recording knows nothing about.
        changes = {name: value for name, value in changes.items() if can_change(spec, name)}
    from memlint.dialects.spelling import spell_each

    return spell_each(spec, changes)


def _on_a_file(finding: Finding, run: Run) -> Finding:
    """A finding on a value that ``-o`` added stands on no file: it goes to the run's first line, and says why."""
    fixes = tuple(
        fix._replace(edits=()) if any(edit.span.path == OVERRIDE_PATH for edit in fix.edits) else fix
        for fix in finding.fixes
    )
    related = tuple(entry for entry in finding.related if entry[0].path != OVERRIDE_PATH)
    finding = finding._replace(fixes=fixes, related=related)
    if finding.span.path != OVERRIDE_PATH:
        return finding
    place = run.root_span()
    if place.path == OVERRIDE_PATH:
        place = Span(run.spec.document.path, 1, 1, 1, 1)
    return finding._replace(span=place, notes=(*finding.notes, f"{finding.key or 'the value'} is set with -o"))


def _run_report(
    spec: TrainingSpec, document: Document, estimate: Estimate | None, allowed: Allowance, part: Partial | None
) -> RunReport:
    budget = None if allowed.size_bytes is None else Budget(allowed.size_bytes, allowed.source)
    facts: dict[str, StatedFact] = {}
    for name, fact in spec.facts.items():
        line, path = 0, ""
        if fact.span is not None and fact.span.path != OVERRIDE_PATH:
            line, path = fact.span.line, fact.span.path
        facts[name] = StatedFact(fact.key or name, fact.value, line, path)
    report = RunReport(
        path=document.path,
        run=spec.run,
        family=spec.family,
        model_name=spec.model_name or spec.architecture or "",
        estimate=estimate,
        verdict="UNKNOWN" if estimate is None else estimate.verdict(allowed.size_bytes),
        budget=budget,
        findings=(),
        unresolved=tuple(
            UnresolvedValue(entry.key, entry.span.line, entry.reason, entry.span.path)
            for entry in spec.missing
            if not entry.ours
        ),
        facts=facts,
        sources={
            **document.sources,
            **spec.document.sources,
            spec.document.path: spec.document.text,
            document.path: document.text,
        },
        also_lines=tuple(span.line for span in spec.also),
        launch=_launch(spec, document),
        launched_with=spec.launched_with,
        companion=spec.family in reading.COMPANIONS and document.format != "shell",
    )
    if part is None:
        return report
    return report._replace(partial=part, verdict=part.rows[0].verdict if part.at_least else report.verdict)


def _launch(spec: TrainingSpec, document: Document) -> Span | None:
    """The command that starts a config's run, where a reader of the config does not see it."""
    if spec.launch is None or document.format == "shell":
        return None
    return spec.launch.span
