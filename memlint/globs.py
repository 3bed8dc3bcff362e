"""Globs in the language of .gitignore (gitignore(5), and git's wildmatch.c), matched without backtracking.

A glob is split at its slashes. Within a part a star runs to the nearest place where the rest fits, and where that goes
wrong only the last star is given more; parts are laid along a path's names in the same way, with ``**`` as their star.
So a match costs at most (characters of the glob) x (characters of the path), whoever wrote the glob. Lists are indexed
by what their globs spell out (a name, how it begins or ends, a path): a path is tried against the others alone.

A character is one of the text's, where git goes by bytes: ``?`` stands for a letter with an accent, too.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from memlint import work
from memlint.named_tuple import NamedTuple

# What stands between the letters of a part; a letter is a text of one character.
_STAR = "**"
_ANY = ""
_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, range(32))) + "\x7f",
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": string.whitespace,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


class _Set(NamedTuple):
    """``[...]``: characters, and ranges that do not overlap, in order."""

    members: frozenset[str]
    lows: tuple[str, ...]
    highs: tuple[str, ...]
    inverse: bool

    def has(self, character: str) -> bool:
        at = bisect_right(self.lows, character) - 1
        found = character in self.members or (at >= 0 and character <= self.highs[at])
        return found is not self.inverse


class _Part(NamedTuple):
    """What stands between two slashes, where that is not letters alone. ``least``: the shortest name that fits."""

    tokens: tuple[str | _Set, ...]
    least: int

    def fits(self, name: str) -> bool:
        if len(name) < self.least:
            return False
        work.spend(1 + len(name) * self.least // 8, "matching a glob")
        tokens = self.tokens
        token = at = 0
        star, mark = -1, 0  # the last star, and where what it stands for ends
        while at < len(name):
            if token < len(tokens):
                one = tokens[token]
                if one == _STAR:
                    star, mark = token, at
                    token += 1
                    continue
                if one == name[at] or one == _ANY or (isinstance(one, _Set) and one.has(name[at])):
                    token += 1
                    at += 1
                    continue
            if star < 0:
                return False
            mark += 1
            at = mark
            token = star + 1
        return token == len(tokens) or (token == len(tokens) - 1 and tokens[token] == _STAR)


class Glob(NamedTuple):
    """One line. ``parts``: names to be met in turn, None for any number of folders; a glob without a slash has one,
    and goes by the last name of a path."""

    parts: tuple[str | _Part | None, ...]
    anchored: bool
    negated: bool
    folders_only: bool

    def fits(self, names: Sequence[str]) -> bool:
        """Whether it means the path of these names, as seen from the folder that it is relative to."""
        if not self.anchored:
            return _fits(self.parts[0], names[-1])
        parts = self.parts
        part = at = 0
        stars, mark = -1, 0
        while at < len(names):
            if part < len(parts):
                one = parts[part]
                if one is None:
                    stars, mark = part, at
                    part += 1
                    continue
                work.spend(1, "matching a glob")
                if _fits(one, names[at]):
                    part += 1
                    at += 1
                    continue
            if stars < 0:
                return False
            mark += 1
            at = mark
            part = stars + 1
        return part == len(parts)


def _fits(part: str | _Part | None, name: str) -> bool:
    return part == name if isinstance(part, str) else part is None or part.fits(name)


# -- reading -----------------------------------------------------------------------------------------------------------


def parse(line: str) -> Glob | None:
    """One line of a .gitignore; None for blank lines, comments, and what can match nothing."""
    text = line.partition("\0")[0]
    if text.endswith(" "):
        bare = text.rstrip(" ")
        slashes = len(bare) - len(bare.rstrip("\\"))
        text = bare + " " * (slashes % 2)  # the first of them may be escaped
    if not text or text[0] == "#":
        return None
    negated = text[0] == "!"
    text = text[negated:]
    folders_only = text.endswith("/")
    text = text[: len(text) - folders_only]
    anchored = "/" in text
    parts = _parts(text.removeprefix("/"))
    if parts is None or (len(parts) == 1 and not parts[0] and parts[0] is not None):
        return None
    if parts[-1] is None:
        parts.append(_Part((_STAR,), 0))  # everything inside of a folder, and not the folder
        if not anchored:
            parts = parts[1:]
    return Glob(tuple(parts), anchored, negated, folders_only)


def _parts(text: str) -> list[str | _Part | None] | None:
    """The parts of a glob; None where nothing can match it: a bracket that stays open, a backslash at the end."""
    parts: list[str | _Part | None] = []
    tokens: list[str | _Set] = []
    stars = 0  # of the part, as they are written
    at = 0
    while at <= len(text):
        character = text[at : at + 1]
        at += 1
        if character == "\\":
            character = text[at : at + 1]
            at += 1
            if not character:
                return None
            if character != "/":
                tokens.append(character)
                continue
        if character in ("", "/"):
            parts.append(_part(tokens, stars))
            tokens, stars = [], 0
        elif character == "*":
            stars += 1
            if tokens[-1:] != [_STAR]:
                tokens.append(_STAR)
        elif character == "?":
            tokens.append(_ANY)
        elif character == "[":
            found = _set(text, at)
            if found is None:
                return None
            tokens.append(found[0])
            at = found[1]
        else:
            tokens.append(character)
    return parts


def _part(tokens: list[str | _Set], stars: int) -> str | _Part | None:
    if tokens == [_STAR] and stars > 1:
        return None
    if all(isinstance(token, str) and len(token) == 1 for token in tokens):
        return "".join(str(token) for token in tokens)
    return _Part(tuple(tokens), len(tokens) - tokens.count(_STAR))


def _set(text: str, at: int) -> tuple[_Set, int] | None:
    """What stands in brackets, and where it ends; None where they stay open or name a class that is none."""
    inverse = text[at : at + 1] in ("!", "^")
    at += inverse
    members: set[str] = set()
    ranges: list[tuple[str, str]] = []
    before = ""  # what a range would begin with
    first = True
    while first or text[at : at + 1] != "]":
        first = False
        character = text[at : at + 1]
        following = text[at + 1 : at + 2]
        at += 1
        if character == "-" and before and following not in ("", "]"):
            at += 1 + (following == "\\")
            high = text[at - 1 : at]
            if not high:
                return None
            ranges.append((before, high))
            before = ""
            continue
        if character == "[" and following == ":":
            end = text.find("]", at + 1)
            if end < 0:
                return None
            if end > at + 1 and text[end - 1] == ":":
                named = _CLASSES.get(text[at + 1 : end - 1])
                if named is None:
                    return None
                members.update(named)
                at = end + 1
                before = ""
                continue
        if character == "\\":
            character = following
            at += 1
        if not character:
            return None
        members.add(character)
        before = character
    lows: list[str] = []
    highs: list[str] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if highs and low <= highs[-1]:
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return _Set(frozenset(members), tuple(lows), tuple(highs), inverse), at + 1


# -- lists -------------------------------------------------------------------------------------------------------------


class _Index:
    """Spelled-out text -> the number of the last line that has it, and the lengths that there are."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.lengths: list[int] = []

    def close(self) -> None:
        self.lengths = sorted({len(text) for text in self.numbers})


class Globs:
    """The lines of one .gitignore, or of a list like it: the last one that means a path decides."""

    def __init__(self, lines: Iterable[str]) -> None:
        # Each for all paths, and for folders alone.
        self._names: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._paths: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._begins = (_Index(), _Index())
        self._ends = (_Index(), _Index())
        self._others: list[tuple[int, Glob]] = []
        self._negated: set[int] = set()
        for number, line in enumerate(lines):
            work.spend(4 + len(line) // 8, "reading globs")
            glob = parse(line)
            if glob is None:
                continue
            if glob.negated:
                self._negated.add(number)
            self._file(number, glob)
        for index in (*self._begins, *self._ends):
            index.close()
        self.anchored = bool(self._paths[0] or self._paths[1]) or any(glob.anchored for _, glob in self._others)

    def _file(self, number: int, glob: Glob) -> None:
        which = int(glob.folders_only)
        if glob.anchored:
            texts = [part for part in glob.parts if isinstance(part, str)]
            if len(texts) == len(glob.parts):
                self._paths[which]["/".join(texts)] = number
                return
        else:
            part = glob.parts[0]
            if isinstance(part, str):
                self._names[which][part] = number
                return
            letters = [token for token in part.tokens if isinstance(token, str) and len(token) == 1] if part else []
            if part is not None and len(letters) == len(part.tokens) - 1:
                if part.tokens[0] == _STAR:
                    self._ends[which].numbers["".join(letters)] = number
                    return
                if part.tokens[-1] == _STAR:
                    self._begins[which].numbers["".join(letters)] = number
                    return
        self._others.append((number, glob))

    def says(self, name: str, path: str, is_folder: bool) -> bool | None:
        """True: ignored, False: taken back, None: nothing is said.

        name  the last name of the path
        path  from the folder that the globs are relative to, with forward slashes; only read if ``anchored``
        """
        best = -1
        for which in range(1 + is_folder):
            best = max(best, self._names[which].get(name, -1), self._paths[which].get(path, -1))
            for index, begins in ((self._begins[which], True), (self._ends[which], False)):
                for length in index.lengths:
                    if length > len(name):
                        break
                    text = name[:length] if begins else name[len(name) - length :]
                    best = max(best, index.numbers.get(text, -1))
        work.spend(2, "matching globs")
        names: list[str] = []
        for number, glob in reversed(self._others):
            if number < best:
                break
            if glob.folders_only and not is_folder:
                continue
            if glob.anchored and not names:
                names = path.split("/")
                work.spend(len(names) // 16, "matching globs")
            work.spend(1, "matching globs")
            if glob.fits(names if glob.anchored else (name,)):
                best = number
                break
        return None if best < 0 else best not in self._negated
