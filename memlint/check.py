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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memlint import files, work
from memlint.checking import reading
from memlint.checking.gathering import Scope, report
from memlint.checking.invocation import Asked, Invocation, Outcome, work_limit
from memlint.checking.judging import Judge
from memlint.discover import Found, Refused, display, matches, walk
from memlint.documents.node import Document, Span
from memlint.estimates import EqualRuns
from memlint.named_tuple import NamedTuple
from memlint.plugin import Finding, Run
from memlint.reports.report import Report
from memlint.rules_registry import WORK_LIMIT
from memlint.settings import Resolver, Settings, SettingsError

if TYPE_CHECKING:
    from memlint.checking.invocation import Each, Measure, Progress
    from memlint.documents.hydra.composition import Trees

NOT_A_CONFIG = "no known family of training configs (`memlint record` makes a model of your own known)"

# A run takes a third of a second: as many as end within what one file may take.
MAX_FRAGMENT_RUNS = 20
_MORE_RUNS = (
    f"is part of more runs than are checked for group files ({MAX_FRAGMENT_RUNS}): name their primary configs instead"
)

DATA_SUFFIXES = (".yaml", ".yml", ".json", ".toml")  # an empty program is none, an empty config has lost its text


class _Checker:
    """The files of one check, and what is known of them: absolute paths, with links followed."""

    def __init__(self, settings: Settings | Resolver | None, invocation: Invocation) -> None:
        self.settings_of: Callable[[str], Settings]
        if isinstance(settings, Settings):
            fixed = settings
            self.settings_of = lambda path: fixed
        else:
            self.settings_of = (settings or Resolver()).for_path
        self.invocation = invocation
        self.broken: set[tuple[str, str]] = set()  # settings files of the tree that cannot be used
        self.done: set[tuple[str, tuple[str, ...]]] = set()
        self.given: set[str] = set()  # files that the paths mean
        self.scope = Scope(set(), set(), {})
        self.trees: Trees | None = None  # that named group files are part of
        self.fragment_runs = 0  # that were checked for their sake
        self.checked = 0  # files, from the first on
        self._formats: dict[str, bool] = {}

    def begin(self, wanted: Wanted) -> None:
        """What the paths mean, and what of that they only lead to."""
        self.invocation.errors += wanted.errors
        self.invocation.skipped += wanted.skipped
        self.given.update(os.path.realpath(file.path) for file in wanted.found)
        named_ones = (os.path.realpath(file.path) for file in wanted.found if file.named)
        self.scope.walked.update(self.given.difference(named_ones))

    def all(
        self, wanted: Wanted, files: Sequence[Found], share: Share | None, progress: Progress | None = None
    ) -> None:
        """Check some of the files that are wanted, in order. Of those that other processes have checked, what they
        found is taken, where this one could have spent as much work on it."""
        asked = self.invocation.asked
        with share(wanted, files, asked) if share and asked.is_elsewhere_too else nullcontext() as outcome_of:
            for at, found in enumerate(files):
                if work.meter().left <= 0:  # each further file would say the same
                    self.invocation.errors.append(_unreached(found.path, len(files) - at))
                    break
                if progress is not None:
                    progress(at, files)
                outcome = outcome_of(at) if outcome_of is not None else None
                if outcome is None or outcome.steps > work.meter().left:
                    self.file(found)
                elif (once := (os.path.realpath(found.path), ())) not in self.done:
                    self.done.add(once)
                    work.spend(outcome.steps, "checking a file")
                    self.invocation.add(outcome)
                    if outcome.is_told:
                        self.scope.told.add(once[0])
                self.checked = max(self.checked, at + 1)

    def outcome(self, found: Found) -> Outcome | None:
        """What one file adds to a check, apart from all others; None where that depends on them: it has no settings of
        its own, it stands for runs that others stand for as well, or it ends where the work does."""
        whole, self.invocation = self.invocation, self.invocation.beside()
        self.done.clear()
        self.scope.told.clear()
        try:
            with work.limited(work.meter().left) as meter:
                self.file(found)
            if meter.ran_out or self.broken or self.scope.fragments:
                self.broken.clear()
                self.scope.fragments.clear()
                self.fragment_runs = 0
                return None
            own = self.invocation
            return Outcome(
                own.drafts,
                own.errors,
                own.skipped,
                own.unparsed,
                own.empty,
                own.seconds,
                own.crashed,
                bool(self.scope.told),
                meter.used,
            )
        finally:
            self.invocation = whole

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
            self.invocation.select(settings)  # unknown codes are an error of the settings, not of this file
            with reading.stated_model(settings):
                with work.limited(settings.file_steps, whole_file=True):
                    document = self._file(found, text, settings)
                if document is not None and (text is not None or not self._fragment(document, settings)):
                    with work.limited(settings.file_steps, whole_file=True):
                        self._without_family(document, settings)
        except SettingsError as error:
            self._unusable(error)
        except work.OutOfWork as error:
            self.invocation.lost(found.path, settings, work_limit(found.path, error))
        except Exception as error:
            self.invocation.lost(found.path, settings, self.invocation.internal(found.path, "reading the file", error))

    def with_details(self, seen: Report, paths: Collection[str], wanted: Wanted, share: Share | None) -> Report:
        """A report whose runs in some files have whole intervals, and their findings fixes and notes: these files are
        judged once more, with what was estimated for them."""
        first = self.invocation
        self.invocation = Invocation(first.asked._replace(details=True, spans=True), first.equal_runs)
        self.done.clear()
        first.equal_runs.save()
        self.all(wanted, [found for found in wanted.found if found.path in paths], share)
        again = report(self.invocation, self.scope, seen.seconds)
        made = {_told(finding): finding for finding in again.findings}
        whole = {(run.path, run.run): run.estimate for run in again.runs}
        runs = [
            run._replace(
                estimate=whole.get((run.path, run.run), run.estimate),
                findings=tuple(made.get(_told(finding), finding) for finding in run.findings),
            )
            for run in seen.runs
        ]
        errors = tuple(dict.fromkeys((*seen.errors, *again.errors)))
        return seen._replace(runs=tuple(runs), crashed=seen.crashed or again.crashed, errors=errors)

    def settings_at(self, path: str) -> Settings | None:
        """The settings in force for a path; None, and an error in the report, where the tree's own cannot be used."""
        try:
            return self.settings_of(path)
        except SettingsError as error:
            self._unusable(error)
        except work.OutOfWork as error:
            self.invocation.errors.append((path, f"not checked: {error}"))
        return None

    def _unusable(self, error: SettingsError) -> None:
        """A settings file of the tree costs the files that it governs; any other error of settings, the invocation."""
        if not error.in_tree:
            raise error
        if (error.place, error.reason) not in self.broken:
            self.broken.add((error.place, error.reason))
            self.invocation.errors.append((error.place, f"{error.reason}; what this file governs is not checked"))

    def _file(self, found: Found, text: str | None, settings: Settings) -> Document | None:
        """Check a file's runs. A named file that has none is given back: it may be a part of others."""
        from memlint.documents.load import Unreadable, format_of, load

        invocation, path = self.invocation, found.path
        if not found.named and not self._has_families(path):
            return None
        try:
            document = load(path, text)
        except Unreadable as error:
            invocation.errors.append((path, error.reason))
            return None
        if document.faults and format_of(path, document.text) is None:
            if found.named:
                invocation.skipped.append((path, document.faults[0].message))
            return None
        specs, document = reading.specs_of(document, settings)
        if not specs and not document.faults:
            specs = reading.recorded(document)
        if not specs and document.format == "python":
            specs, document = reading.remarked(document, settings)
        folder = reading.defaults_of(specs, document) if not found.named else ""
        if folder:
            invocation.skipped.append(
                (path, f"defaults of a program in {display(folder)}, whose commands are its runs")
            )
            return None
        specs = reading.launched(specs, document, settings)
        if not found.named and specs:
            specs = [spec for spec in specs if not reading.is_on_cpu(spec)]
            if not specs:
                invocation.skipped.append((path, "it runs on the CPU"))
                return None
        if not found.named and any(spec.document.told for spec in specs):
            self.scope.told.add(os.path.realpath(path))
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
            judge = Judge(invocation, document, settings)
            for spec in specs:
                judge.run(spec)
                if work.meter().left <= 0 and any(found.code == WORK_LIMIT for found in invocation.drafts[-1].findings):
                    break  # each further run would say the same
        elif found.named:
            return document
        else:
            unread = next((fault for fault in document.faults if fault.code in ("MEM003", WORK_LIMIT)), None)
            if unread is not None:
                invocation.unparsed.append((path, f"line {unread.span.line}: {unread.message}"))
            elif path.lower().endswith(DATA_SUFFIXES) and not document.text.strip():
                invocation.empty.append(path)
        return None

    def _without_family(self, document: Document, settings: Settings) -> None:
        """A named file that is no training config, nor a part of one."""
        if document.faults or self.invocation.asked.measure is not None:
            Judge(self.invocation, document, settings).run(reading.no_family(document))
        else:
            from memlint.dialects import registry

            self.invocation.skipped.append((document.path, registry.part(document) or NOT_A_CONFIG))

    def _has_families(self, path: str) -> bool:
        """Whether any family is written in the format that a suffix stands for; if none, why parse it."""
        from memlint.documents.load import format_of

        kind = format_of(path)
        if kind is None:
            return True
        if kind not in self._formats:
            from memlint.dialects import registry

            self._formats[kind] = bool(registry.candidates(kind))
        return self._formats[kind] or reading.has_profile(path)

    def _fragment(self, document: Document, settings: Settings) -> bool:
        """A named Hydra group file stands for the runs that compose it. Whether there are any.

        Of a run that is checked for its fragment's sake alone, findings on other lines are left out, except errors:
        what the fragment sets may be too much somewhere else. Group files may stand for thousands of runs, so the
        first ``MAX_FRAGMENT_RUNS`` are checked, and of each other group file it is said.
        """
        if document.format != "yaml":
            return False
        from memlint.documents.hydra import composition as hydra

        self.trees = self.trees or hydra.Trees()
        with work.limited(settings.file_steps):
            runs = self.trees.runs_of(document.path)
        before = len(self.invocation.drafts)
        known = False
        for root, chosen in runs:
            shown = display(root if os.path.isabs(document.path) else os.path.relpath(root))
            identity = os.path.realpath(shown)
            if identity in self.given and not chosen:
                known = True  # checked in its own right
                continue
            known = known or identity in self.scope.fragments
            self.scope.fragments.setdefault(identity, set()).add(os.path.realpath(document.path))
            if (identity, chosen) in self.done:
                continue
            if self.fragment_runs >= MAX_FRAGMENT_RUNS:
                self.invocation.skipped.append((document.path, _MORE_RUNS))
                return True
            self.fragment_runs += 1
            self.file(Found(shown, named=False), chosen=chosen)
        return known or len(self.invocation.drafts) > before


def _told(finding: Finding) -> tuple[str, Span, str, str]:
    return finding.code, finding.span, finding.key, finding.message


class Wanted(NamedTuple):
    """The files that paths mean, once each; (path, why) of those that cannot be looked at, and of those that hold no
    config, whatever they are called.

    Texts that quote commands come last: their commands start configs that are mostly in the same folder, each of which
    is then estimated at the cost of its own file, and of dozens none is left out for what the others took."""

    found: list[Found]
    errors: list[tuple[str, str]]
    skipped: list[tuple[str, str]]


if TYPE_CHECKING:
    # Files that a check wants, those of them that are checked now, and what it is asked for -> what one of the latter,
    # by its number, adds to the report; None for one that is to be checked here, and in place of that, for all.
    OutcomeOf = Callable[[int], Outcome | None]
    Share = Callable[[Wanted, Sequence[Found], Asked], AbstractContextManager[OutcomeOf | None]]


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
    from memlint.documents.load import quoting

    wanted.found.sort(key=lambda file: quoting(file.path) is not None)
    return wanted


def _unreached(first: str, count: int) -> tuple[str, str]:
    files = "this file is" if count == 1 else f"this file and {count - 1:,} more after it are"
    return first, f"{files} not checked: the work that one check may do is done; --work-limit raises the limit"


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
    closer: Callable[[Report], Collection[str]] | None = None,
    each: Each | None = None,
    equal_runs: EqualRuns | None = None,
    changed: Collection[str] | None = None,
    named: Iterable[str] = (),
    look: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
    share: Share | None = None,
) -> Report:
    """Check files and folders.

    settings  fixed settings, or a Resolver that finds those of each file (None: as on the command line, no options)
    formulas  record symbolically, so that the parts of an estimate carry closed forms
    lint      False only recognises the runs: no estimates, no findings
    measure   (spec, settings, allowance) -> Measured (None: pass), called for every run; a MeasureError is reported and
              the rest goes on. This alone may run the linted code (memlint.measure does, in a process of its own)
    details   False leaves fixes and notes out of the findings, for who does not read them: most of the work is theirs
    closer    of a report without details, and without a budget without older releases' peaks: the files that have both
    each      (run, spec, estimates, settings) -> None, called for every run, for who wants what-ifs of it
    equal_runs  of a check before this one: what was estimated there is not estimated again
    changed   files that changed: runs that read none of them are left out
    named     what else the command line names, where these paths are a part of it
    look      called with every run once the rules are done with it, while the work of its file is still counted
    progress  called with how many files are done, and all of them, before each file
    share     gives a part of the files to other processes (:class:`memlint.cli.jobs.Jobs`)
    Raises SettingsError for settings that cannot be used, and Interrupted for Ctrl-C. Anything wrong with a config, or
    with a settings file of the linted tree, is in the report.
    """
    begin, paths = time.perf_counter(), list(paths)
    among = None if changed is None else frozenset(map(os.path.realpath, changed))
    asked = Asked(formulas, lint, measure, details, closer is None, each, among, look)
    invocation = Invocation(asked, equal_runs)
    checker = _Checker(settings, invocation)
    wanted = Wanted([], [], [])
    try:
        steps = _file_steps(map(checker.settings_at, paths))
        with work.limited(_invocation_steps(steps)), files.named([*paths, *named], _overridden(settings)):
            wanted = find_files(paths, checker.settings_at, steps)
            checker.begin(wanted)
            checker.all(wanted, wanted.found, share, progress)
            seen = report(invocation, checker.scope, 0.0)
            seen = seen if closer is None else checker.with_details(seen, closer(seen), wanted, share)
            return seen._replace(seconds=time.perf_counter() - begin)
    except KeyboardInterrupt:
        invocation.errors.append(("interrupted", f"{checker.checked} of {len(wanted.found)} files are checked"))
        raise Interrupted(report(invocation, checker.scope, time.perf_counter() - begin)) from None
    finally:
        invocation.equal_runs.save()


@contextmanager
def outcomes(
    paths: Iterable[str], settings: Resolver, asked: Asked, wanted: Wanted, equal_runs: EqualRuns
) -> Iterator[Callable[[Found], Outcome | None]]:
    """What the files of a check add to it, one by one, for another process."""
    paths = list(paths)
    checker = _Checker(settings, Invocation(asked, equal_runs))
    steps = _file_steps(map(checker.settings_at, paths))
    with work.limited(_invocation_steps(steps)), files.named(paths, _overridden(settings)):
        checker.begin(wanted)
        checker.broken.clear()
        yield checker.outcome


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
    invocation = Invocation(Asked(formulas, lint, measure, details))
    checker = _Checker(settings, invocation)
    steps = _file_steps([checker.settings_at(path)])
    try:
        with work.limited(_invocation_steps(steps)), files.named([path], _overridden(settings)):
            checker.file(Found(path, named=True), text)
            return report(invocation, checker.scope, time.perf_counter() - begin)
    finally:
        invocation.equal_runs.save()


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Report:
        from memlint.api import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
