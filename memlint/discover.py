"""Which files a path on the command line means: globs, ``.gitignore``, and the walk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from functools import lru_cache

from memlint import files, tracked, work
from memlint.globs import Globs
from memlint.named_tuple import NamedTuple

# What a walk looks at; a file given by name may have any suffix.
SUFFIXES = frozenset(
    (
        *(".yaml", ".yml", ".json", ".toml", ".py", ".sh", ".bash", ".slurm", ".sbatch"),
        *(".md", ".markdown", ".mdx", ".ipynb"),
    )
)
NAMES = frozenset(("makefile", "gnumakefile", "justfile", ".justfile", "dockerfile", "containerfile"))

# Folders that never hold a project's own configs.
NEVER = frozenset(
    (".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".nox", "site-packages")
)
# What wandb keeps of a run that was, its config.yaml among it (wandb 0.22: sdk/wandb_settings.py, sync_dir).
_RECORD = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-\w+")

# Settings of tools, ours among them.
NEVER_FILES = frozenset(("pyproject.toml", "memlint.toml", ".memlint.toml", "package.json", "package-lock.json"))

# A walk leaves larger files alone: tokenizers and data sets are JSON too; no one writes a config this long.
WALK_LIMIT_BYTES = 1024 * 1024

ENTRY = 5  # steps: an entry of a folder, listed and looked at
USUAL_DEPTH = 32
DEPTH_SQUARED_PER_STEP = 4  # measured: 33 ms for a file in 900 folders, and it is done four times

# Where a link goes wrong of itself, and no right to read would help.
_NOWHERE = (ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR)


class Pattern(NamedTuple):
    """A glob in .gitignore's language, and the folder (absolute) that it is relative to."""

    base: str
    glob: str


class Found(NamedTuple):
    """A file to look at. ``named``: given on the command line, not met in a walk."""

    path: str
    named: bool


class Excludes:
    """Patterns, by the folder that they are relative to."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        lines: dict[str, list[str]] = {}
        for pattern in patterns:
            lines.setdefault(pattern.base, []).append(pattern.glob)
        self.levels = tuple(_Level(base, Globs(globs)) for base, globs in lines.items())

    def says(self, absolute: str, is_folder: bool) -> bool | None:
        """What they say of a path itself: True excluded, False taken back, None nothing. The last folder's go first."""
        return _says(self.levels, absolute, is_folder)

    def cover(self, absolute: str, is_folder: bool) -> bool:
        """Whether they exclude a path, or one of the folders that it is in: nothing below one comes back, as in git."""
        if not self.levels:
            return False
        nearest = min(len(level.prefix) for level in self.levels)
        end = absolute.find(os.sep, nearest)
        while end >= 0:
            if self.says(absolute[:end], True):
                return True
            end = absolute.find(os.sep, end + 1)
        return bool(self.says(absolute, is_folder))


class _Level:
    """Globs, and the folder (absolute) that they are relative to."""

    def __init__(self, base: str, globs: Globs) -> None:
        self.prefix = base.rstrip(os.sep) + os.sep
        self.globs = globs


def _says(levels: Sequence[_Level], absolute: str, is_folder: bool) -> bool | None:
    name = os.path.basename(absolute)
    for level in reversed(levels):
        globs, prefix = level.globs, level.prefix
        if not absolute.startswith(prefix):
            continue
        path = absolute[len(prefix) :].replace(os.sep, "/") if globs.anchored else ""
        said = globs.says(name, path, is_folder)
        if said is not None:
            return said
    return None


@lru_cache(maxsize=1024)
def excludes(patterns: tuple[Pattern, ...]) -> Excludes:
    return Excludes(patterns)


def matches(patterns: Sequence[Pattern], path: str, is_folder: bool = False) -> bool:
    """Whether patterns cover a file, by its own name or by one of its folders."""
    return bool(patterns) and excludes(tuple(patterns)).cover(os.path.abspath(path), is_folder)


@lru_cache(maxsize=64)
def _globs(text: str) -> Globs:
    return Globs(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"))


def _level(folder: str, *names: str) -> _Level | None:
    """The .gitignore of a folder; None where there is none to go by. As in git, a link is not followed to one."""
    try:
        data = files.read(os.path.join(folder, *names), WALK_LIMIT_BYTES, follow=False)
    except OSError:
        return None
    return _Level(folder, _globs(data.decode("utf-8", "surrogateescape")))


def _outer_ignores(folder: str) -> list[_Level]:
    """The .gitignore files above a folder, outermost first, up to its repository's root."""
    levels: list[_Level | None] = []
    current = folder
    while True:
        root = os.path.lexists(os.path.join(current, ".git"))
        if current != folder:
            levels.append(_level(current, ".gitignore"))
        if root:
            levels.append(_level(current, ".git", "info", "exclude"))
            return [level for level in reversed(levels) if level is not None]
        parent = os.path.dirname(current)
        if parent == current:
            return []  # not in a repository: no .gitignore above counts
        current = parent


def _is_ours(name: str) -> bool:
    lower = name.lower()
    return (os.path.splitext(lower)[1] in SUFFIXES or lower in NAMES) and name not in NEVER_FILES


def _hidden(levels: Sequence[_Level], folder: str) -> bool:
    """Whether the folder or one above it is ignored."""
    if not levels:
        return False
    root = levels[0].prefix.rstrip(os.sep)
    while len(folder) > len(root):
        if _says(levels, folder, True):
            return True
        folder = os.path.dirname(folder)
    return False


def display(path: str) -> str:
    """A path as reports print it: as it was given, without ``./``, with forward slashes."""
    return os.path.normpath(path).replace(os.sep, "/") if path != "-" else path


class Refused(NamedTuple):
    """Something that a walk met and did not look at, and why. ``is_error``: it may hold a config."""

    path: str
    why: str
    is_error: bool


def walk(folder: str, excluded: Sequence[Pattern] = (), refused: list[Refused] | None = None) -> Iterator[str]:
    """Files below a folder that might be configs, in order. Links to folders are not followed, nor links out of the
    repository. What cannot be looked at goes to ``refused``. Raises OutOfWork."""
    top = os.path.abspath(folder)
    own = excludes(tuple(excluded))
    if own.cover(top, True):
        return
    levels = _outer_ignores(top)
    if _hidden(levels, top):
        levels = []  # a folder named on the command line is walked even if .gitignore hides it
    root = files.repository_root(top)
    refused = [] if refused is None else refused
    known: tracked.Tracked | None = None  # what git tracks, read once something is ignored
    # hidden: a .gitignore names the folder, so only what is tracked in it counts
    stack: list[tuple[str, str, list[_Level], bool]] = [(folder, top, levels, False)]
    while stack:
        shown, absolute, outer, hidden = stack.pop()
        try:
            with os.scandir(absolute) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            refused.append(Refused(display(shown), _reason(error), error.errno != ENOENT))
            continue
        work.spend(ENTRY * (1 + len(entries)), "walking the folders")
        inner = outer
        if any(entry.name == ".gitignore" for entry in entries):
            level = _level(absolute, ".gitignore")
            inner = outer if level is None else [*outer, level]
        folders = []
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and (entry.name in NEVER or _RECORD.fullmatch(entry.name)):
                continue
            if not is_folder and not _is_ours(entry.name):
                continue
            if own.says(entry.path, is_folder):
                continue
            ignored = hidden or bool(_says(inner, entry.path, is_folder))
            if ignored:
                if known is None:
                    known = tracked.read(root)
                if not _tracks(known, entry, root, is_folder):
                    continue
            below = os.path.join(shown, entry.name)
            if is_folder:
                folders.append((below, entry.path, inner, ignored))
                continue
            found = _candidate(entry, display(below), root)
            if isinstance(found, Refused):
                refused.append(found)
            elif found:
                # To follow the links on the way to a file takes every folder on it, and each from the first one on.
                depth = max(entry.path.count(os.sep) - USUAL_DEPTH, 0)
                work.spend(depth * depth // DEPTH_SQUARED_PER_STEP, "walking the folders")
                yield display(below)
        stack.extend(reversed(folders))


def _tracks(known: tracked.Tracked, entry: os.DirEntry[str], root: str, is_folder: bool) -> bool:
    """Whether git tracks a file, or a file below a folder."""
    if not known.paths:
        return False
    # A walk follows no link to a folder, but the way to where it begins may lead through one.
    real = os.path.join(os.path.realpath(os.path.dirname(entry.path)), entry.name)
    return known.holds(os.path.relpath(real, root).replace(os.sep, "/"), is_folder)


def _candidate(entry: os.DirEntry[str], shown: str, root: str) -> bool | Refused:
    """Whether an entry is a file that a walk looks at; why not, where a reader of the report would ask."""
    try:
        status = entry.stat()
    except OSError as error:
        if entry.is_symlink() and error.errno in _NOWHERE:
            return Refused(shown, "a link that leads nowhere", False)
        return error.errno != ENOENT and Refused(shown, _reason(error), True)
    if stat.S_ISDIR(status.st_mode):
        return False  # a link to a folder: its files are met where they lie, if that is in this repository
    if not stat.S_ISREG(status.st_mode):
        return Refused(shown, "not a regular file", False)
    if entry.is_symlink() and not files.inside(entry.path, root):
        return Refused(shown, "a link that leads out of this repository", False)
    if status.st_size <= WALK_LIMIT_BYTES:
        return True
    from memlint.documents.load import limit_bytes

    limit = limit_bytes(entry.path)  # notebooks hold the pictures that they have drawn
    if status.st_size <= limit:
        return True
    # Of JSON there is nothing to say: most of what is as long is tokenizers and data.
    return not entry.name.lower().endswith(".json") and Refused(shown, f"larger than {limit // 2**20} MiB", False)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
