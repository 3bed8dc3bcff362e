"""The sides of a comparison: what is read, and as what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from memlint import files, work
from memlint.check import check_paths
from memlint.comparison.model import Figure, Key, Side, numbered
from memlint.discover import Pattern
from memlint.estimates import EqualRuns
from memlint.named_tuple import NamedTuple
from memlint.reports.report import RunReport, StatedFact
from memlint.revisions import Repository, extracted
from memlint.settings import Resolver, Settings, SettingsError
from memlint.trust import is_within

if TYPE_CHECKING:
    from memlint.estimates import Estimates
    from memlint.facts.spec import TrainingSpec

MAX_REPORT_BYTES = 256 << 20  # a saved report of thousands of runs
RULES = ("MEM001", "MEM003", "MEM007", "MEM011")  # what can stand in the way of an estimate


class NoSide(ValueError):
    """What is named as a side is none; the message says why."""


class Tried(NamedTuple):
    """A run of a side, for what-ifs of it."""

    spec: TrainingSpec
    estimates: Estimates
    settings: Settings


class Tree:
    """Files as they lie, or as they were: where they lie now, what they are called, and the settings for them.

    folder   what the names of its runs are relative to; "" for names as they are
    paths    that are checked
    """

    def __init__(self, name: str, folder: str, paths: Sequence[str], settings: Resolver) -> None:
        self.name = name
        self.folder = folder
        self.paths = list(paths)
        self.settings = settings
        self.tried: dict[Key, Tried] = {}

    def read(self, equal_runs: EqualRuns) -> Side:
        """Check the files. Raises SettingsError for settings of the caller that cannot be used."""
        seen: dict[tuple[str, str], list[Tried]] = {}

        def each(report: RunReport, spec: TrainingSpec, estimates: Estimates, settings: Settings) -> None:
            seen.setdefault((report.path, report.run), []).append(Tried(spec, estimates, settings))

        present = [path for path in self.paths if os.path.lexists(path)]
        if not present:
            return Side(self.name, {})
        report = check_paths(present, self.settings, details=False, each=each, equal_runs=equal_runs)
        found = numbered(
            ((self.shown(run.path), run.run), self._figure(run)) for run in report.runs if run.family or run.findings
        )
        for key, figure in found.items():
            waiting = seen.get((figure.path, figure.run), [])
            if waiting:
                self.tried[key] = waiting.pop(0)
        figures = {key: figure._replace(path=key[0]) for key, figure in found.items()}
        errors = tuple((self.shown(path), self._without_folder(why)) for path, why in report.errors)
        return Side(self.name, figures, errors)

    def shown(self, path: str) -> str:
        """What a file is called on this side: the same as its counterpart is called on the other."""
        if not self.folder:
            return path
        real = os.path.realpath(path)
        below = os.path.relpath(real, self.folder) if is_within(real, self.folder) else path
        return below.replace(os.sep, "/")

    def _without_folder(self, text: str) -> str:
        return text.replace(self.folder + os.sep, "") if self.folder else text

    def _figure(self, run: RunReport) -> Figure:
        estimate = run.estimate
        budget = run.budget.size_bytes if run.budget is not None else None
        facts = {
            name: fact._replace(path=self.shown(fact.path)) if fact.path else fact for name, fact in run.facts.items()
        }
        names = run.path, run.run, run.family, run.model_name
        if estimate is None:
            said = [finding.message for finding in run.findings if finding.code in RULES]
            why = self._without_folder(said[0]) if said else "no estimate"
            return Figure(*names, None, budget_bytes=budget, facts=facts, why=why)
        low, high = estimate.device_interval
        return Figure(
            *names,
            estimate.device_bytes,
            low,
            high,
            run.verdict,
            budget,
            {component.name: component.size_bytes for component in estimate.components},
            facts,
        )


class _Elsewhere(Resolver):
    """Settings of a tree that lies in a folder of its own: those that came with it, else those that the caller named or
    that hold around the repository that it is of."""

    def __init__(self, inner: Resolver, folder: str, root: str) -> None:
        self._inner = inner
        self._folder = folder
        self._root = root

    @property
    def given(self) -> tuple[str, ...]:
        return self._inner.given

    def for_folder(self, folder: str) -> Settings:
        try:
            found = self._inner.for_folder(folder)
            if any(is_within(os.path.abspath(path), self._folder) for path in found.files[:1]):
                return found
        except SettingsError as error:
            place = os.path.abspath(error.place.rpartition(":")[0] or error.place)
            if not error.in_tree or is_within(place, self._folder):
                raise
        return self._moved(self._inner.for_folder(os.path.dirname(self._root)))

    def _moved(self, settings: Settings) -> Settings:
        """Settings of the repository, for the folder that stands for it: patterns are relative to where they stand."""

        def one(pattern: Pattern) -> Pattern:
            if not is_within(pattern.base, self._root):
                return pattern
            return pattern._replace(base=os.path.normpath(self._folder + pattern.base[len(self._root) :]))

        def moved(patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
            return tuple(map(one, patterns))

        return settings._replace(
            exclude=moved(settings.exclude),
            extend_exclude=moved(settings.extend_exclude),
            budgets=tuple((moved(patterns), budget) for patterns, budget in settings.budgets),
            per_file_ignores=tuple((one(pattern), codes) for pattern, codes in settings.per_file_ignores),
            policies=tuple(policy._replace(paths=moved(policy.paths)) for policy in settings.policies),
            waivers=tuple(waiver._replace(paths=moved(waiver.paths)) for waiver in settings.waivers),
        )


class Sides(NamedTuple):
    """Both sides, each a tree or what a saved report says; ``title`` says what is compared."""

    before: Tree | Side
    after: Tree | Side
    title: str


def find(words: Sequence[str], paths: Sequence[str], settings: Resolver, stack: ExitStack) -> Sides:
    """What the words of a command line mean. Trees of revisions are there until ``stack`` is closed.

    words  ``A B``, ``A..B``, ``A...B`` or ``A``; a file or folder goes before a revision of that name
    paths  of a repository's trees, what is compared
    Raises NoSide, RevisionError.
    """
    if len(words) == 2 and not all(os.path.exists(word) for word in words):
        known = [word for word in words if os.path.exists(word)]
        if any(os.path.isfile(word) and _saved(word) is not None for word in known):
            missing = next(word for word in words if not os.path.exists(word))
            raise NoSide(f"{missing}: no such file or folder, and a saved report is compared with no revision")
        paths = known or paths
        repository = Repository.of(_folder(paths[0]))
        named = [None if word in known else repository.commit(word) for word in words]
        trees = [_tree(repository, word, commit, paths, settings, stack) for word, commit in zip(words, named)]
        return Sides(trees[0], trees[1], f"{words[0]}..{words[1]}")
    if len(words) == 2:
        return _of_files(words[0], words[1], settings)
    if os.path.exists(words[0]):
        raise NoSide(f"{words[0]} is one side: name the other one, a file, a folder or a revision")
    repository = Repository.of(_folder(paths[0]))
    first, dots, second = words[0].partition("...") if "..." in words[0] else words[0].partition("..")
    old = repository.commit(first or "HEAD")
    new = repository.commit(second or "HEAD")
    title = words[0]
    if dots != "..":
        old = repository.merge_base(old, new)
        title = f"{words[0]} (from {old[:12]}, where they parted)"
    before = _tree(repository, first or "HEAD", old, paths, settings, stack)
    after = _tree(repository, second or "HEAD", new if dots else None, paths, settings, stack)
    return Sides(before, after, title)


def _folder(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))


def _tree(
    repository: Repository, name: str, commit: str | None, paths: Sequence[str], settings: Resolver, stack: ExitStack
) -> Tree:
    """The files of a repository that ``paths`` mean, as they were in a commit; None: as they are."""
    root = os.path.realpath(repository.root)
    below = [os.path.relpath(os.path.realpath(path), root) for path in paths]
    if any(path.split(os.sep)[0] == os.pardir for path in below):
        raise NoSide(f"{', '.join(paths)}: not all of it is in the repository {repository.root}")
    if commit is None:
        return Tree("the working tree", root, paths, settings)
    folder = stack.enter_context(extracted(repository, commit))
    placed = [os.path.normpath(os.path.join(folder, path)) for path in below]
    return Tree(name, folder, placed, _Elsewhere(settings, folder, root))


def _of_files(before: str, after: str, settings: Resolver) -> Sides:
    folders = [os.path.isdir(path) for path in (before, after)]
    if any(folders) and not all(folders) and _saved(before if folders[1] else after) is None:
        raise NoSide(f"{before} and {after}: a folder is compared with a folder, a saved report or a revision")
    sides: list[Tree | Side] = []
    for path in (before, after):
        said = None if os.path.isdir(path) else _saved(path)
        if said is not None:
            sides.append(Side(path, said))
        else:
            own = os.path.realpath(path) if all(folders) else ""
            sides.append(Tree(path, own, [path], settings))
    return Sides(sides[0], sides[1], f"{before} and {after}")


def side(of: Tree | Side, equal_runs: EqualRuns) -> Side:
    return of.read(equal_runs) if isinstance(of, Tree) else of


# -- saved reports -----------------------------------------------------------------------------------------------------


def _saved(path: str) -> dict[Key, Figure] | None:
    """The runs of a report that ``check --output-format json`` wrote; None for any other file. Raises NoSide for a
    report that is damaged, or of another version."""
    if not path.lower().endswith(".json"):
        return None
    import json

    try:
        with work.limited(work.INVOCATION_STEPS):
            said: Any = json.loads(files.read(path, MAX_REPORT_BYTES))
    except (OSError, ValueError, RecursionError, work.OutOfWork):
        return None  # whoever reads configs says what is wrong with it
    tool = said.get("tool") if isinstance(said, dict) else None
    if not isinstance(tool, dict) or tool.get("name") != "memlint":
        return None
    if said.get("version") != 1:
        raise NoSide(f"{path}: a report of version {said.get('version')!r}, and memlint reads version 1")
    try:
        return numbered(_figure(entry) for entry in said["files"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NoSide(f"{path}: the report is damaged") from None


def _figure(entry: Mapping[str, Any]) -> tuple[Key, Figure]:
    path, run = str(entry["path"]), str(entry["run"])
    estimate, budget = entry["estimate"], entry["budget"]
    size = int(budget["bytes"]) if budget else None
    family, model = str(entry["family"] or ""), str(entry["model"]["name"] or "")
    if estimate is None:
        said = [str(finding["message"]) for finding in entry["findings"] if finding["code"] in RULES]
        why = said[0] if said else "no estimate"
        return (path, run), Figure(path, run, family, model, None, budget_bytes=size, why=why)
    facts = {
        str(fact["key"]): StatedFact(str(fact["key"]), fact["value"], int(fact["line"] or 0), path)
        for component in estimate["components"]
        for part in component["parts"]
        for fact in part["facts"]
    }
    return (path, run), Figure(
        path,
        run,
        family,
        model,
        int(estimate["device_bytes"]),
        int(estimate["low_bytes"]),
        int(estimate["high_bytes"]),
        str(estimate["verdict"]),
        size,
        {str(component["name"]): int(component["bytes"]) for component in estimate["components"]},
        facts,
    )
