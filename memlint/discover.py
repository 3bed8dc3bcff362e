"""Which files a path on the command line means: globs, ``.gitignore``, and the walk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from memlint.named_tuple import NamedTuple

# What a walk looks at; a file given by name may have any suffix.
SUFFIXES = frozenset((".yaml", ".yml", ".json", ".toml", ".py", ".sh", ".bash", ".slurm", ".sbatch"))

# Folders that never hold a project's own configs.
NEVER = frozenset(
    (".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".nox", "site-packages")
)

# Settings of tools, ours among them.
NEVER_FILES = frozenset(("pyproject.toml", "memlint.toml", ".memlint.toml", "package.json", "package-lock.json"))

# A walk leaves larger files alone: tokenizers and data sets are JSON too; no one writes a config this long.
WALK_LIMIT_BYTES = 1024 * 1024


class Pattern(NamedTuple):
    """A glob in .gitignore's language, and the folder (absolute) that it is relative to."""

    base: str
    glob: str


class Found(NamedTuple):
    """A file to look at. ``named``: given on the command line, not met in a walk."""

    path: str
    named: bool


class _Matcher(NamedTuple):
    regex: re.Pattern[str]
    negated: bool
    folders_only: bool


_NOTHING = r"(?!)"
_MATCHERS: dict[str, _Matcher | None] = {}


def matcher(line: str) -> _Matcher | None:
    """One line of a .gitignore; None for blank lines and comments."""
    if line not in _MATCHERS:
        _MATCHERS[line] = _translate(line)
    return _MATCHERS[line]


def _translate(line: str) -> _Matcher | None:
    glob = line.rstrip("\r\n")
    while glob.endswith(" ") and not glob.endswith("\\ "):
        glob = glob[:-1]
    if not glob or glob.startswith("#"):
        return None
    negated = glob.startswith("!")
    glob = glob[negated:]
    folders_only = glob.endswith("/")
    if folders_only:
        glob = glob[:-1]
    anchored = "/" in glob
    glob = glob[1:] if glob.startswith("/") else glob
    if not glob:
        return None
    expression = "" if anchored else "(?:.*/)?"
    at = 0
    while at < len(glob):
        rest = glob[at:]
        at_start_of_part = at == 0 or glob[at - 1] == "/"
        if at_start_of_part and rest.startswith("**/"):
            expression += "(?:.*/)?"
            at += 3
        elif at_start_of_part and rest == "**":
            expression += ".+"
            at += 2
        elif rest[0] == "*":
            expression += "[^/]*"
            at += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            expression += "[^/]"
            at += 1
        elif rest[0] == "[":
            end = rest.find("]", 3 if rest[1:2] in ("!", "^") else 2)
            if end < 0:
                return _Matcher(re.compile(_NOTHING), negated, folders_only)  # as in git
            members = rest[1:end]
            inverse = members[:1] in ("!", "^")
            members = members[inverse:].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            members = members.replace("]", "\\]").replace("&&", "&\\&").replace("||", "|\\|").replace("~~", "~\\~")
            expression += f"(?!/)[{'^' if inverse else ''}{members}]"
            at += end + 1
        else:
            if rest[0] == "\\" and len(rest) > 1:
                at += 1
            expression += re.escape(glob[at])
            at += 1
    try:
        return _Matcher(re.compile(expression, re.DOTALL), negated, folders_only)
    except re.error:
        return _Matcher(re.compile(_NOTHING), negated, folders_only)


def verdict(globs: Iterable[str], relative: str, is_folder: bool) -> bool | None:
    """What a list of .gitignore lines says of one path: True ignored, False taken back, None nothing."""
    said: bool | None = None
    for glob in globs:
        found = matcher(glob)
        if found is None or (found.folders_only and not is_folder):
            continue
        if found.regex.fullmatch(relative):
            said = not found.negated
    return said


def matches(patterns: Sequence[Pattern], path: str, is_folder: bool = False) -> bool:
    """Whether patterns cover a file, by its own name or by one of its folders."""
    if not patterns:
        return False
    absolute = os.path.abspath(path)
    said = False
    for base in dict.fromkeys(pattern.base for pattern in patterns):
        relative = _relative(absolute, base)
        if relative is None:
            continue
        globs = [pattern.glob for pattern in patterns if pattern.base == base]
        parts = relative.split("/")
        for end in range(1, len(parts) + 1):
            own = verdict(globs, "/".join(parts[:end]), is_folder or end < len(parts))
            if own is not None:
                said = own
            if said and end < len(parts):
                return True  # as git has it: nothing below an excluded folder comes back
    return said


def _relative(absolute: str, base: str) -> str | None:
    """``absolute`` seen from ``base`` with forward slashes; None when it lies outside."""
    prefix = base.rstrip(os.sep) + os.sep
    if not absolute.startswith(prefix):
        return None
    return absolute[len(prefix) :].replace(os.sep, "/")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(WALK_LIMIT_BYTES).splitlines()
    except OSError:
        return []


def _outer_ignores(folder: str) -> list[tuple[str, list[str]]]:
    """The .gitignore files above a folder, outermost first, up to its repository's root."""
    levels: list[tuple[str, list[str]]] = []
    current = folder
    while True:
        root = os.path.exists(os.path.join(current, ".git"))
        if current != folder:
            levels.append((current, _lines(os.path.join(current, ".gitignore"))))
        if root:
            levels.append((current, _lines(os.path.join(current, ".git", "info", "exclude"))))
            return levels[::-1]
        parent = os.path.dirname(current)
        if parent == current:
            return []  # not in a repository: no .gitignore above counts
        current = parent


def _ignored(levels: Sequence[tuple[str, list[str]]], absolute: str, is_folder: bool) -> bool:
    for base, globs in reversed(levels):
        relative = _relative(absolute, base)
        said = None if relative is None else verdict(globs, relative, is_folder)
        if said is not None:
            return said
    return False


def _hidden(levels: Sequence[tuple[str, list[str]]], folder: str) -> bool:
    """Whether the folder or one above it is ignored."""
    if not levels:
        return False
    root = levels[0][0]
    while folder != root:
        if _ignored(levels, folder, True):
            return True
        folder = os.path.dirname(folder)
    return False


def display(path: str) -> str:
    """A path as reports print it: as it was given, without ``./``, with forward slashes."""
    return os.path.normpath(path).replace(os.sep, "/") if path != "-" else path


def walk(folder: str, excluded: Sequence[Pattern] = ()) -> Iterator[str]:
    """Files below a folder that might be configs, in order. Links to folders are not followed."""
    top = os.path.abspath(folder)
    levels = _outer_ignores(top)
    if _hidden(levels, top):
        levels = []  # a folder named on the command line is walked even if .gitignore hides it
    stack: list[tuple[str, str, list[tuple[str, list[str]]]]] = [(folder, top, levels)]
    while stack:
        shown, absolute, outer = stack.pop()
        try:
            with os.scandir(absolute) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        inner = outer
        if any(entry.name == ".gitignore" for entry in entries):
            inner = [*outer, (absolute, _lines(os.path.join(absolute, ".gitignore")))]
        folders = []
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name in NEVER:
                continue
            if not is_folder and (os.path.splitext(entry.name)[1].lower() not in SUFFIXES or entry.name in NEVER_FILES):
                continue
            if _ignored(inner, entry.path, is_folder) or matches(excluded, entry.path, is_folder):
                continue
            below = os.path.join(shown, entry.name)
            if is_folder:
                folders.append((below, entry.path, inner))
            elif entry.is_file() and entry.stat().st_size <= WALK_LIMIT_BYTES:
                yield display(below)
        stack.extend(reversed(folders))
