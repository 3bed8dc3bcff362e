"""The one function that every front end calls: paths and settings in, a Report out.

Per file: read, compose, recognise, estimate, rules; then, over all files, suppressions and de-duplication. Each
step of each file is fenced: what raises becomes finding MEM001 and the rest goes on. Each file has its share of work
(:mod:`memlint.work`): where that is used up the file ends in finding MEM011. Nothing that is read is run.

The module can be called like a function, because ``memlint.check`` is both this module and the Python API:
``memlint.check("configs", budget="16GB")``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memlint import files, work
from memlint.discover import Found, Refused, display, matches, walk
from memlint.documents.node import Document, Edit, Fault, Span
from memlint.estimates import EqualRuns
from memlint.named_tuple import NamedTuple
from memlint.plugin import ERROR, Finding, Fix, Run, Spelled
from memlint.reports.report import (
    Budget,
    Measured,
    Report,
    RunReport,
    StatedFact,
    UnresolvedValue,
    bounded,
    bounded_findings,
    shortened,
)
from memlint.rules_registry import INTERNAL_ERROR, WORK_LIMIT, RuleInfo
from memlint.selection import Selected, known_rules, select_rules, without_ignored
from memlint.settings import FILE_NAMES, Allowance, Resolver, Settings, SettingsError, allowance
from memlint.trust import is_within

if TYPE_CHECKING:
    from memlint.documents.hydra import Trees
    from memlint.estimates import Estimates
    from memlint.facts.spec import Name, TrainingSpec
    from memlint.partial import Partial
    from memlint.profiles.measurement import Measurement
    from memlint.tape.estimate import Estimate

    Measure = Callable[[TrainingSpec, Settings, Allowance], Measured | None]
    Each = Callable[[RunReport, TrainingSpec, Estimates, Settings], None]
    Progress = Callable[[int, Sequence[Found]], None]

OVERRIDE_PATH = "<override>"  # as memlint.documents.overrides names it, which is imported for overrides only

MEASURED_SUFFIX = ".memlint-measured.json"  # as in memlint.profiles.measurement, which is imported where there is one

# Of a file's steps, as many as reading it again with its fixes may take: 1 / TRIED_SHARE.
TRIED_SHARE = 16

NOT_A_CONFIG = "no known family of training configs (`memlint record` makes a model of your own known)"

# A run takes a third of a second: as many as end within what one file may take.
MAX_FRAGMENT_RUNS = 20
_MORE_RUNS = (
    f"is part of more runs than are checked for group files ({MAX_FRAGMENT_RUNS}): name their primary configs instead"
)

DATA_SUFFIXES = (".yaml", ".yml", ".json", ".toml")  # an empty program is none, an empty config has lost its text

# Families of files that name no model.
_COMPANIONS = frozenset(("accelerate", "deepspeed"))
FAILED = "it failed with an internal error"
_NO_MODEL = {"MEM007"}

# Rules that a document without a known family can still be judged by.
_TEXT_RULES = frozenset(("MEM003", "MEM006"))


class _Draft(NamedTuple):
    """A run before suppression: ``judged`` are the rules that could have spoken about it."""

    report: RunReport
    findings: list[Finding]
    judged: list[RuleInfo]
    settings: Settings


class _Checker:
    """One invocation. ``formulas`` records symbolically, which explain and JSON want; without ``lint`` files are
    recognised, and neither estimated nor judged. ``measure`` is asked for every run, and for
    a file without a family that is named. ``details``: findings have fixes and notes. ``each`` is shown every run,
    ``equal_runs`` are those of checks before this one, and ``look`` sees every run when its rules are done. Of
    ``changed`` files (absolute paths) the runs that read none are left out."""

    def __init__(
        self,
        settings: Settings | Resolver | None,
        formulas: bool,
        lint: bool,
        measure: Measure | None = None,
        details: bool = True,
        each: Each | None = None,
        equal_runs: EqualRuns | None = None,
        changed: Collection[str] | None = None,
        look: Callable[[Run], None] | None = None,
    ) -> None:
        self.settings_of: Callable[[str], Settings]
        if isinstance(settings, Settings):
            fixed = settings
            self.settings_of = lambda path: fixed
        else:
            self.settings_of = (settings or Resolver()).for_path
        self.formulas = formulas
        self.lint = lint
        self.measure = measure
        self.details = details
        self.equal_runs = equal_runs or EqualRuns()
        self.each = each
        self.changed = None if changed is None else frozenset(map(os.path.realpath, changed))
        self.look = look
        self.drafts: list[_Draft] = []
        self.errors: list[tuple[str, str]] = []
        self.skipped: list[tuple[str, str]] = []
        self.unparsed: list[tuple[str, str]] = []
        self.empty: list[str] = []
        self.seconds: dict[str, float] = {}
        self.crashed = False
        self.broken: set[tuple[str, str]] = set()  # settings files of the tree that cannot be used
        self.done: set[tuple[str, tuple[str, ...]]] = set()
        self.given: set[str] = set()  # files that the paths mean
        self.walked: set[str] = set()  # those of them that no path names
        self.told: set[str] = set()  # of these, those whose commands a reader is told, and nobody runs as they stand
        self.trees: Trees | None = None  # that named group files are part of
        self.fragment_runs = 0  # that were checked for their sake
        self.fragments: dict[str, set[str]] = {}  # a root that is not among them -> its fragments that are
        self._reading_steps = 0  # that the file at hand took before its runs were looked at
        self._trying_steps = 0  # that are left to try its fixes
        self._formats: dict[str, bool] = {}
        self._selected: dict[tuple[Any, ...], list[Selected]] = {}

    # -- files

    def file(self, found: Found, text: str | None = None, chosen: tuple[str, ...] = ()) -> None:
        """Check one file, with the group files of ``chosen``; whatever goes wrong stays inside it."""
        identity = os.path.realpath(found.path) if text is None else found.path
        if (identity, chosen) in self.done:
            return
        self.done.add((identity, chosen))
        settings = self.settings_at(found.path)
        if settings is None:
            return
        settings = settings._replace(override=(*chosen, *settings.override))
        try:
            self.select(settings)  # unknown codes are an error of the settings, not of this file
            with stated_model(settings):
                with work.limited(settings.file_steps):
                    document = self._file(found, text, settings)
                if document is not None and (text is not None or not self._fragment(document, settings)):
                    with work.limited(settings.file_steps):
                        self._without_family(document, settings)
        except SettingsError as error:
            self._unusable(error)
        except work.OutOfWork as error:
            self._lost(found.path, settings, work_limit(found.path, error))
        except Exception as error:
            self._lost(found.path, settings, self._internal(found.path, "reading the file", error))

    def settings_at(self, path: str) -> Settings | None:
        """The settings in force for a path; None, and an error in the report, where the tree's own cannot be used."""
        try:
            return self.settings_of(path)
        except SettingsError as error:
            self._unusable(error)
        except work.OutOfWork as error:
            self.errors.append((path, f"not checked: {error}"))
        return None

    def _unusable(self, error: SettingsError) -> None:
        """A settings file of the tree costs the files that it governs; any other error of settings, the invocation."""
        if not error.in_tree:
            raise error
        if (error.place, error.reason) not in self.broken:
            self.broken.add((error.place, error.reason))
            self.errors.append((error.place, f"{error.reason}; what this file governs is not checked"))

    def _file(self, found: Found, text: str | None, settings: Settings) -> Document | None:
        """Check a file's runs. A named file that has none is given back: it may be a part of others."""
        from memlint.documents.load import Unreadable, format_of, load

        path = found.path
        if not found.named and not self._has_families(path):
            return None
        try:
            document = load(path, text)
        except Unreadable as error:
            self.errors.append((path, error.reason))
            return None
        if document.faults and format_of(path, document.text) is None:
            if found.named:
                self.skipped.append((path, document.faults[0].message))
            return None
        specs, document = self._specs(document, settings)
        if not specs and not document.faults:
            specs = _recorded(document)
        if not specs and document.format == "python":
            specs, document = self._remarked(document, settings)
        folder = self._defaults_of(specs, document) if not found.named else ""
        if folder:
            self.skipped.append((path, f"defaults of a program in {display(folder)}, whose commands are its runs"))
            return None
        specs = self._launched(specs, document, settings)
        if not found.named and specs:
            specs = [spec for spec in specs if not _is_on_cpu(spec)]
            if not specs:
                self.skipped.append((path, "it runs on the CPU"))
                return None
        if not found.named and any(spec.document.told for spec in specs):
            self.told.add(os.path.realpath(path))
            # The run of a config that is itself among the files is reported there.
            others = self.given - {os.path.realpath(path)}
            specs = [
                spec
                for spec in specs
                if spec.of_several
                or spec.document.format == "shell"  # a script that is called with arguments is another run
                or os.path.realpath(spec.document.path) not in others
            ]
        if specs:
            self._reading_steps = work.meter().used
            self._trying_steps = settings.file_steps // TRIED_SHARE
            for spec in specs:
                self._run(spec, document, settings)
                if work.meter().left <= 0 and any(found.code == WORK_LIMIT for found in self.drafts[-1].findings):
                    break  # each further run would say the same
        elif found.named:
            return document
        else:
            unread = next((fault for fault in document.faults if fault.code in ("MEM003", WORK_LIMIT)), None)
            if unread is not None:
                self.unparsed.append((path, f"line {unread.span.line}: {unread.message}"))
            elif path.lower().endswith(DATA_SUFFIXES) and not document.text.strip():
                self.empty.append(path)
        return None

    def _without_family(self, document: Document, settings: Settings) -> None:
        """A named file that is no training config, nor a part of one."""
        if document.faults or self.measure is not None:
            self._run(_no_family(document), document, settings)
        else:
            self.skipped.append((document.path, NOT_A_CONFIG))

    def _has_families(self, path: str) -> bool:
        """Whether any family is written in the format that a suffix stands for; if none, why parse it."""
        from memlint.documents.load import format_of

        kind = format_of(path)
        if kind is None:
            return True
        if kind not in self._formats:
            from memlint.dialects import registry

            self._formats[kind] = bool(registry.candidates(kind))
        return self._formats[kind] or _has_profile(path)

    def _specs(self, document: Document, settings: Settings) -> tuple[list[TrainingSpec], Document]:
        """The runs of a document, and the document after composition and overrides."""
        from memlint.dialects import registry

        overrides = settings.override
        root = document.root.value
        try:
            defaults = root.get("defaults") if isinstance(root, dict) else None
            if document.format == "yaml" and defaults is not None and defaults.is_list:
                from memlint.documents import hydra

                document = hydra.compose(document, overrides=overrides)
                return registry.specs(document, ()), document
            if overrides and document.format != "shell":
                from memlint.documents.overrides import apply

                changed = document._replace(root=apply(document.root, overrides, document.path))
                return registry.specs(changed, ()), changed
            return registry.specs(document, overrides), document
        except Exception as error:
            # A mistyped -o is the caller's mistake, whichever file it meets first.
            if overrides and type(error).__name__ == "OverrideError":
                raise settings.error("override", str(error)) from None
            raise

    def _remarked(self, document: Document, settings: Settings) -> tuple[list[TrainingSpec], Document]:
        """The runs that a program's docstring and comments tell a reader to start; none, and the program, else."""
        from memlint.dialects import registry
        from memlint.documents import remarks

        if remarks.PROGRAM.search(document.text) is None:
            return [], document
        told = remarks.read(document)
        specs = registry.specs(told, settings.override)
        return (specs, told) if specs else ([], document)

    def _launched(self, specs: list[TrainingSpec], document: Document, settings: Settings) -> list[TrainingSpec]:
        """The runs of a config as commands near it start them, where there are any and they say something more."""
        if len(specs) != 1 or document.format == "shell" or not specs[0].family or specs[0].family in _COMPANIONS:
            return specs
        from memlint.dialects import launches, registry

        overrides = [] if document.format == "yaml" and document.root.get("defaults") else settings.override
        found = launches.of(document, overrides)
        if len(found) == 1 and registry.identity(found[0]) == registry.identity(specs[0]):
            return specs
        return found or specs

    def _defaults_of(self, specs: list[TrainingSpec], document: Document) -> str:
        """The folder of the program whose defaults a config is; "" where it is a run."""
        from memlint.dialects import launches

        if len(specs) != 1 or not specs[0].family:
            return ""
        return launches.defaults_of(document, specs[0].family)

    def _fragment(self, document: Document, settings: Settings) -> bool:
        """A named Hydra group file stands for the runs that compose it. Whether there are any.

        Of a run that is checked for its fragment's sake alone, findings on other lines are left out, except errors:
        what the fragment sets may be too much somewhere else. Group files may stand for thousands of runs, so the
        first ``MAX_FRAGMENT_RUNS`` are checked, and of each other group file it is said.
        """
        if document.format != "yaml":
            return False
        from memlint.documents import hydra

        self.trees = self.trees or hydra.Trees()
        with work.limited(settings.file_steps):
            runs = self.trees.runs_of(document.path)
        before = len(self.drafts)
        known = False
        for root, chosen in runs:
            shown = display(root if os.path.isabs(document.path) else os.path.relpath(root))
            identity = os.path.realpath(shown)
            if identity in self.given and not chosen:
                known = True  # checked in its own right
                continue
            known = known or identity in self.fragments
            self.fragments.setdefault(identity, set()).add(os.path.realpath(document.path))
            if (identity, chosen) in self.done:
                continue
            if self.fragment_runs >= MAX_FRAGMENT_RUNS:
                self.skipped.append((document.path, _MORE_RUNS))
                return True
            self.fragment_runs += 1
            self.file(Found(shown, named=False), chosen=chosen)
        return known or len(self.drafts) > before

    def _in_scope(self, draft: _Draft, findings: list[Finding]) -> list[Finding]:
        """The findings of a run that concern the fragments for whose sake it was checked; all, if it was named."""
        fragments = self.fragments.get(os.path.realpath(draft.report.path))
        if fragments is None:
            return findings
        return [
            finding
            for finding in findings
            if finding.severity == ERROR or os.path.realpath(finding.span.path) in fragments
        ]

    # -- one run

    def _run(self, spec: TrainingSpec, document: Document, settings: Settings) -> None:
        path = document.path
        if self.changed is not None and not reads_any(spec, document, self.changed):
            return
        allowed = allowance(settings, path)
        spec = _with_devices(spec, allowed)
        findings = [_cut_short(fault) for fault in document.faults if fault.code == WORK_LIMIT]
        estimate: Estimate | None = None
        if spec.family and spec.architecture is None:
            spec = next(iter(_recorded(document, spec)), spec)
        # A prediction that a new measurement is held against knows nothing of old ones.
        measured = self._measurements(path) if spec.family and self.lint and self.measure is None else ()
        estimates = self.equal_runs.estimates(spec, allowed.gpu, measured)
        if spec.family and self.lint:
            try:
                estimate = estimates.own(self.formulas)
            except _unknown_model() as error:
                spec.unknown_reason = spec.unknown_reason or str(error)
            except work.OutOfWork as error:
                findings.append(work_limit(path, error))
                spec.unknown_reason = "the estimate takes more work than a config may ask for"
            except Exception as error:
                findings.append(self._internal(path, "the estimate", error))
                spec.unknown_reason = FAILED
        part = self._partial(spec, estimates, allowed) if estimate is None and self.lint else None
        judged: list[RuleInfo] = []
        if self.lint:
            run = Run(
                spec,
                estimate,
                allowed.size_bytes,
                estimates.totals,
                _spell,
                host_budget_bytes=allowed.host_bytes,
                gpu=allowed.gpu,
                faults=dict.fromkeys((*document.faults, *spec.document.faults)),
                saved=estimates.saved_bytes,
                allocated=estimates.allocated_bytes,
                packed=lambda: estimates.packed_bytes(estimate) if estimate is not None else 0,
                first_pass=estimates.first_pass_bytes,
                whole=estimates.whole,
                partial=part,
                again=lambda edits: self._edited(edits, spec, document, settings, allowed),
                details=self.details,
            )
            for selected in self.select(settings):
                self._rule(selected, run, findings, judged)
            if self.look is not None:
                self.look(run)
        report = _run_report(spec, document, estimate, allowed)
        if part is not None:
            report = report._replace(partial=part, verdict=part.rows[0].verdict if part.at_least else report.verdict)
        if self.measure is not None and self.lint:
            report = report._replace(measured=self._measured(self.measure, spec, settings, allowed, findings))
        self.drafts.append(_Draft(report, findings, judged, settings))
        if self.each is not None:
            self.each(report, spec, estimates, settings)

    def _partial(self, spec: TrainingSpec, estimates: Estimates, allowed: Allowance) -> Partial | None:
        if not spec.family or spec.derivation is None or spec.unknown_reason == FAILED:
            return None
        from memlint.partial import at_least, partial

        try:
            with work.limited(work.meter().left // 2):  # the rest is for what the rules ask
                try:
                    found = partial(spec, estimates.whole, allowed.size_bytes)
                except _unknown_model() as error:  # to state what is not stated would not be enough
                    spec.unknown_reason, found = str(error), None
                return found or at_least(spec, estimates.states_bytes, allowed.size_bytes)
        except work.OutOfWork:
            return None

    def _edited(
        self, edits: Sequence[Edit], spec: TrainingSpec, document: Document, settings: Settings, allowed: Allowance
    ) -> TrainingSpec | None:
        """A run as it is read from the texts with some edits. None where they cannot be made, the run is not there any
        more, or more is wrong than before: a fault, or a value that is not known. Raises OutOfWork, at once where what
        was read the first time cannot be read again.

        beside  the runs of the file
        """
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
            found, again = self._same_run(spec, document, again, settings)
            if found is None or found.family != spec.family:
                return None
            found = _with_devices(found, allowed)
            if found.architecture is None:
                found = next(iter(_recorded(again, found)), found)
        if {entry.key for entry in found.missing} - {entry.key for entry in spec.missing}:
            return None
        faults = [fault.code for fault in again.faults]
        was = [fault.code for fault in document.faults]
        return None if any(faults.count(code) > was.count(code) for code in faults) else found

    def _same_run(
        self, spec: TrainingSpec, document: Document, again: Document, settings: Settings
    ) -> tuple[TrainingSpec | None, Document]:
        """A run of one document in another that has as many; and that document, composed."""
        places = [at for at, command in enumerate(document.commands) if command is spec.launch]
        if places and document.format == "shell":
            from memlint.dialects import registry

            if len(again.commands) != len(document.commands):
                return None, again
            return registry.started(again, again.commands[places[0]], settings.override, spec.run), again
        specs, again = self._specs(again, settings)
        if spec.launch is not None:
            specs = self._launched(specs, again, settings)
        return next((one for one in specs or _recorded(again) if one.run == spec.run), None), again

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
            if (where, wrong.reason) not in self.errors:  # a file may hold several runs
                self.errors.append((where, wrong.reason))
        return found

    def _measured(
        self, measure: Measure, spec: TrainingSpec, settings: Settings, allowed: Allowance, findings: list[Finding]
    ) -> Measured | None:
        from memlint.measure.child import MeasureError

        path = spec.document.path
        try:
            return measure(spec, settings, allowed)
        except MeasureError as error:
            name = path if spec.run == "train" else f"{path} [{spec.run}]"
            self.errors.append((name, str(error)))
        except Exception as error:
            findings.append(self._internal(path, "the measurement", error))
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
            findings.append(self._internal(run.spec.document.path, f"rule {info.code}", error))
        self.seconds[info.code] = self.seconds.get(info.code, 0.0) + time.perf_counter() - begin

    def _held(self, finding: Finding, run: Run) -> Finding:
        """A finding with those of its fixes that the texts with them bear out, as far as the steps for that go."""
        held: list[Fix] = []
        for fix in finding.fixes:
            with work.limited(self._trying_steps) as meter:
                kept = run.held(fix)
            self._trying_steps -= min(meter.used, meter.limit)
            held += [kept] if kept is not None else []
        return finding._replace(fixes=tuple(held))

    def select(self, settings: Settings) -> list[Selected]:
        """The rules that are on, imported. Raises SettingsError for codes and plugins that do not exist."""
        if not self.lint:
            return []
        key = (settings.selected, settings.ignored, settings.preview, settings.plugins, repr(settings.rules))
        if key not in self._selected:
            self._selected[key] = select_rules(settings)
        return self._selected[key]

    # -- what went wrong

    def _internal(self, path: str, where: str, error: Exception) -> Finding:
        self.crashed = True
        return internal_error(path, where, error)

    def _lost(self, path: str, settings: Settings, finding: Finding) -> None:
        """A file of which nothing is known but why."""
        report = RunReport(path, "train", "", "", None, "UNKNOWN", None, ())
        self.drafts.append(_Draft(report, [finding], [], settings))

    # -- the end

    def _only_read(self) -> set[str]:
        """Files of launchers' settings that were met in a walk, or that other runs of this check read: no runs."""
        own = {os.path.realpath(draft.report.path) for draft in self.drafts if draft.report.companion}
        return own & {
            *self.walked,
            *(
                os.path.realpath(path)
                for draft in self.drafts
                for path in draft.report.sources
                if path != draft.report.path
            ),
        }

    def _is_talk(self, report: RunReport) -> bool:
        """A command of a document met in a walk that has no estimate for what its author left out (a path to fill in, a
        program that nobody knows): a reader is told how it goes, and nobody runs it as it stands."""
        if report.estimate is not None or report.partial is not None or os.path.realpath(report.path) not in self.told:
            return False
        return not _is_stated(report)

    def report(self, seconds: float) -> Report:
        from memlint import suppress

        by_path: dict[str, suppress.Suppressions] = {}
        judged: dict[str, dict[str, RuleInfo]] = {}
        use: dict[str, Settings] = {}
        for draft in self.drafts:
            for path, text in draft.report.sources.items():
                judged.setdefault(path, {}).update((info.code, info) for info in draft.judged)
                if path not in by_path and not draft.settings.no_ignores and suppress.MARK in text:
                    rules = known_rules(draft.settings)
                    try:
                        with work.limited(draft.settings.file_steps):
                            reasons = draft.settings.require_ignore_reason
                            by_path[path] = suppress.scan(path, text, rules, reasons)
                    except work.OutOfWork as error:
                        draft.findings.append(work_limit(path, error))
                    except Exception as error:
                        draft.findings.append(self._internal(path, "reading suppressions", error))
                    use[path] = draft.settings
        used: set[tuple[Span, str]] = set()
        kept: list[list[Finding]] = []
        for draft in self.drafts:
            findings, here = suppress.apply(draft.findings, by_path)
            used |= here
            kept.append(self._in_scope(draft, without_ignored(findings, draft.settings)))
        for path, suppressions in by_path.items():
            late = list(suppressions.bad)
            late += suppress.unused(suppressions, used, list(judged[path].values()))
            on = {selected.info.code for selected in self.select(use[path])}
            late = [finding for finding in late if finding.code in on]
            late, here = suppress.apply(bounded_findings(late), by_path)
            home = next(index for index, draft in enumerate(self.drafts) if path in draft.report.sources)
            kept[home] += without_ignored(late, use[path])
        read = self._only_read()
        runs = [
            bounded(draft.report._replace(findings=tuple(findings), unknown=_why_unknown(draft)))
            for draft, findings in zip(self.drafts, _without_doubles(kept))
            # What is wrong in such a file is said nowhere else.
            if not (os.path.realpath(draft.report.path) in read and {one.code for one in findings} <= _NO_MODEL)
        ]
        unlisted = tuple(_without_estimate(run) for run in runs if self._is_talk(run))
        runs = [run for run in runs if not self._is_talk(run)]
        skipped, unparsed, errors = (
            tuple((path, shortened(why)) for path, why in listed)
            for listed in (self.skipped, self.unparsed, self.errors)
        )
        crashed = self.crashed or bool(errors)
        return Report(
            tuple(runs), seconds, crashed, skipped, unparsed, errors, self.seconds, unlisted, tuple(self.empty)
        )


# -- pieces ------------------------------------------------------------------------------------------


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


def stated_model(settings: Settings) -> AbstractContextManager[None]:
    """While it lasts, the file that the setting ``model-config`` names describes the model of every run."""
    path, key = settings.model_config, "model-config"
    if not path:
        return nullcontext()
    from memlint.data import hub

    if settings.in_tree and settings.origins.get(key) in settings.files:
        folder = os.path.dirname(os.path.abspath(settings.files[0]))
        if not files.inside(path, files.repository_root(folder)):
            raise settings.error(key, f"names {path!r}, which is not in the tree")
    found = hub.read_file(path, f"{hub.STATED} {path}")
    if found.reason:
        raise settings.error(key, found.reason)
    return hub.stating(found)


def _unknown_model() -> type[Exception]:
    from memlint.models import UnknownModel

    return UnknownModel


def _recorded(document: Document, spec: TrainingSpec | None = None) -> list[TrainingSpec]:
    """The run of a config whose model only a profile knows."""
    from memlint.profiles.profile import find
    from memlint.profiles.runs import adopt

    if spec is None:
        if find(document.path) is None:
            return []
        from memlint.dialects.companions import prepared

        document = prepared(document)
    found = adopt(document, spec)
    return [] if found is None else [found]


def _has_profile(path: str) -> bool:
    from memlint.profiles.profile import find

    return find(path) is not None


def _spell(spec: TrainingSpec, changes: Mapping[Name, Any]) -> Iterable[Spelled]:
    if spec.architecture == "recorded":
        from memlint.models.recorded import can_change

        # No fix may change what the recording knows nothing about.
        changes = {name: value for name, value in changes.items() if can_change(spec, name)}
    from memlint.dialects.spelling import spell_each

    return spell_each(spec, changes)


def _with_devices(spec: TrainingSpec, allowed: Allowance) -> TrainingSpec:
    """``--gpu h100-80gb x8`` says how many cards there are, unless the config does, and to families that ask which."""
    if not allowed.gpu:
        return spec
    from memlint.data.catalogue import parse_gpu
    from memlint.dialects import schema as schemas

    card, count = parse_gpu(allowed.gpu)
    written = spec.fact("world_size")
    changes: dict[Name, Any] = {}
    if spec.family in schemas.families() and (asked := schemas.header(spec.family).get("card")):
        changes[asked] = card.capability
    if count > 1 and (written is None or written.node is None):
        changes |= {"device_count": count, "world_size": count}
    if not changes:
        return spec
    spec = spec.with_facts(changes)
    if spec.architecture is None and spec.architecture_on_devices and "device_count" in changes:
        spec.architecture, spec.unknown_reason = spec.architecture_on_devices, ""
    return spec


def _no_family(document: Document) -> TrainingSpec:
    """Something for the text rules to look at where no family was recognised."""
    from memlint.facts.spec import TrainingSpec

    if not document.faults:
        from memlint.dialects.companions import prepared

        document = prepared(document)
    return TrainingSpec("", document, document.root, {}, None)


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


def _run_report(spec: TrainingSpec, document: Document, estimate: Estimate | None, allowed: Allowance) -> RunReport:
    budget = None if allowed.size_bytes is None else Budget(allowed.size_bytes, allowed.source)
    facts: dict[str, StatedFact] = {}
    for name, fact in spec.facts.items():
        line, path = 0, ""
        if fact.span is not None and fact.span.path != OVERRIDE_PATH:
            line, path = fact.span.line, fact.span.path
        facts[name] = StatedFact(fact.key or name, fact.value, line, path)
    return RunReport(
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
        companion=spec.family in _COMPANIONS and document.format != "shell",
    )


# Files that say something of every run below their folder, whether a run's facts stand in them or not.
_GOVERNING = frozenset((*FILE_NAMES, "pyproject.toml", "requirements.txt", "uv.lock", "poetry.lock", "Pipfile.lock"))


def reads_any(spec: TrainingSpec, document: Document, changed: Collection[str]) -> bool:
    """Whether a run is made of any of these files (real paths): the config, what it is composed of and what it names,
    where its releases are pinned, and settings and pins above it."""
    read = {document.path, *document.sources, spec.document.path, *spec.document.sources}
    read.update(fact.span.path for fact in spec.facts.values() if fact.span is not None)
    if any(os.path.realpath(path) in changed for path in read):
        return True
    folder = os.path.dirname(os.path.realpath(document.path))
    return any(os.path.basename(path) in _GOVERNING and is_within(folder, os.path.dirname(path)) for path in changed)


def _launch(spec: TrainingSpec, document: Document) -> Span | None:
    """The command that starts a config's run, where a reader of the config does not see it."""
    if spec.launch is None or document.format == "shell":
        return None
    return spec.launch.span


def _is_on_cpu(spec: TrainingSpec) -> bool:
    """Whether a run takes no card: by a switch, or by the name of its file where nothing else says what it runs on."""
    from memlint.dialects import programs

    if spec.unknown_reason.endswith("the run is not on a GPU") and "cpu" in spec.unknown_reason.partition(":")[0]:
        return True
    half = spec.get("compute_dtype") not in (None, "float32")
    return programs.is_named_after_the_cpu(spec.document.path) and not half and spec.get("device_count", 1) == 1


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


def _cut_short(fault: Fault) -> Finding:
    """MEM011 for a file whose reader stopped early."""
    return Finding(WORK_LIMIT, "work-limit", ERROR, fault.message, fault.span)


def _why_unknown(draft: _Draft) -> str:
    return next((finding.message for finding in draft.findings if finding.code == "MEM007"), "")


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


# -- the API -----------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """The files that paths mean, in order and once each; (path, why) of those that cannot be looked at, and of those
    that hold no config, whatever they are called."""

    found: list[Found]
    errors: list[tuple[str, str]]
    skipped: list[tuple[str, str]]


def find_files(
    paths: Iterable[str], settings_at: Callable[[str], Settings | None], steps: int = work.FILE_STEPS
) -> Wanted:
    """What the paths on the command line mean. A walk that takes more work than ``steps`` ends in one error.

    settings_at  None where a path has no settings that can be used, which is said elsewhere
    """
    wanted = Wanted([], [], [])
    known: set[str] = set()

    def add(path: str, named: bool) -> None:
        if path not in known:
            known.add(path)
            wanted.found.append(Found(path, named))

    path = ""
    try:
        with work.limited(steps):
            for path in paths:
                settings = settings_at(path)
                if settings is None:
                    continue
                excluded = settings.exclude + settings.extend_exclude
                if os.path.isdir(path):
                    if settings.force_exclude and matches(excluded, path, is_folder=True):
                        continue
                    refused: list[Refused] = []
                    try:
                        for below in walk(path, excluded, refused):
                            add(below, named=False)
                    finally:
                        for entry in refused:
                            (wanted.errors if entry.is_error else wanted.skipped).append((entry.path, entry.why))
                elif not os.path.lexists(path):
                    wanted.errors.append((path, "no such file or folder"))
                elif os.path.exists(path) and not os.path.isfile(path):
                    wanted.errors.append((path, "is not a regular file"))
                elif not (settings.force_exclude and matches(excluded, path)):
                    add(display(path), named=True)
    except work.OutOfWork as error:
        wanted.errors.append((path, f"{error}: the files that were not reached by then are not checked"))
    return wanted


def _overridden(settings: Settings | Resolver | None) -> list[str]:
    """The values that the user gave with ``-o``: a model may lie wherever one of them says."""
    given = settings.override if isinstance(settings, Settings) else () if settings is None else settings.given
    return [entry.partition("=")[2].strip("'\"") for entry in given]


def check_paths(
    paths: Iterable[str],
    settings: Settings | Resolver | None = None,
    *,
    formulas: bool = False,
    lint: bool = True,
    measure: Measure | None = None,
    details: bool = True,
    each: Each | None = None,
    equal_runs: EqualRuns | None = None,
    changed: Collection[str] | None = None,
    named: Iterable[str] = (),
    look: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check files and folders.

    settings  fixed settings, or a Resolver that finds those of each file (None: as on the command line, no options)
    formulas  record symbolically, so that the parts of an estimate carry closed forms
    lint      False only recognises the runs: no estimates, no findings
    measure   (spec, settings, allowance) -> Measured (None: pass), called for every run; a MeasureError is reported and
              the rest goes on. This alone may run the linted code (memlint.measure does, in a process of its own)
    details   False leaves fixes and notes out of the findings, for who does not read them: most of the work is theirs
    each      (run, spec, estimates, settings) -> None, called for every run, for who wants what-ifs of it
    equal_runs  of a check before this one: what was estimated there is not estimated again
    changed   files that changed: runs that read none of them are left out
    named     what else the command line names, where these paths are a part of it
    look      called with every run once the rules are done with it, while the work of its file is still counted
    progress  called with how many files are done, and all of them, before each file
    Raises SettingsError for settings that cannot be used, and Interrupted for Ctrl-C. Anything wrong with a config, or
    with a settings file of the linted tree, is in the report.
    """
    begin = time.perf_counter()
    paths = list(paths)
    checker = _Checker(settings, formulas, lint, measure, details, each, equal_runs, changed, look)
    wanted = Wanted([], [], [])
    done = 0
    try:
        steps = _file_steps(map(checker.settings_at, paths))
        with work.limited(_invocation_steps(steps)), files.named([*paths, *named], _overridden(settings)):
            wanted = find_files(paths, checker.settings_at, steps)
            checker.errors += wanted.errors
            checker.skipped += wanted.skipped
            checker.given.update(os.path.realpath(file.path) for file in wanted.found)
            checker.walked = checker.given.difference(
                os.path.realpath(file.path) for file in wanted.found if file.named
            )
            for file in wanted.found:
                if progress is not None:
                    progress(done, wanted.found)
                checker.file(file)
                done += 1
            return checker.report(time.perf_counter() - begin)
    except KeyboardInterrupt:
        checker.errors.append(("interrupted", f"{done} of {len(wanted.found)} files are checked"))
        raise Interrupted(checker.report(time.perf_counter() - begin)) from None
    finally:
        checker.equal_runs.save()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a check. ``report`` has what was found until then, and says that it is not all."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


def _file_steps(settings: Iterable[Settings | None]) -> int:
    """Most steps of work that any of the paths' settings grant a file."""
    return max((one.file_steps for one in settings if one is not None), default=work.FILE_STEPS)


def _invocation_steps(file_steps: int) -> int:
    """Steps of work of a whole check, in proportion to those of a file."""
    return work.INVOCATION_STEPS * file_steps // work.FILE_STEPS


def check_text(
    path: str,
    text: str,
    settings: Settings | Resolver | None = None,
    *,
    formulas: bool = False,
    lint: bool = True,
    measure: Measure | None = None,
    details: bool = True,
) -> Report:
    """Check a text as if it were the content of the file ``path`` (which decides format and settings)."""
    begin = time.perf_counter()
    checker = _Checker(settings, formulas, lint, measure, details)
    steps = _file_steps([checker.settings_at(path)])
    try:
        with work.limited(_invocation_steps(steps)), files.named([path], _overridden(settings)):
            checker.file(Found(path, named=True), text)
            return checker.report(time.perf_counter() - begin)
    finally:
        checker.equal_runs.save()


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Report:
        from memlint.api import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
