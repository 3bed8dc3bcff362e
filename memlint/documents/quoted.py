"""Commands that stand among other text (a document, a comment, a recipe) are read as the script that they make.

In that script every line is where it is in the text, and so is every word: all else is blank. A command whose syntax
bash would refuse is left out, and what is wrong with it is not said: the text is no script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from memlint import work
from memlint.documents import shell, shell_syntax
from memlint.documents.lines import line_starts
from memlint.documents.node import Document

BLOCK = 60  # steps to look at a command, and one for each of so many characters
CHARACTERS_PER_STEP = 50

# A name that no script sets: what takes its place is not known.
_UNKNOWN = "_"


class Script:
    """The lines of a text, all blank until a command is put where it stands."""

    def __init__(self, text: str) -> None:
        self.starts = line_starts(text)
        self.lines = [""] * len(self.starts)

    def put(self, command: dict[int, str]) -> None:
        """Lines of a command by their index, unless bash would refuse it. Raises OutOfWork."""
        block = "\n".join(command.values())
        work.spend(BLOCK + len(block) // CHARACTERS_PER_STEP, "looking for commands in a document")
        if is_shell(block):
            for index, line in command.items():
                self.lines[index] = line

    def read(self, path: str, text: str, told: bool) -> Document:
        return read(path, text, "\n".join(self.lines), told)


def read(path: str, text: str, script: str, told: bool) -> Document:
    """The commands of ``script``, which stand in ``text``. ``told``: a reader is told them, and no program runs any."""
    return shell.read(path, script)._replace(text=text, faults=(), sources={path: text}, told=told)


def is_shell(block: str) -> bool:
    """Whether bash would take it."""
    try:
        return shell_syntax.judge(block).broken is None
    except RecursionError:
        return False


def blank(line: str) -> str:
    """A line as long as it was, with nothing on it: the next one begins where it did."""
    bare = line.rstrip("\r\n")
    return " " * len(bare) + line[len(bare) :]


def unknown(length: int) -> str:
    """A word of so many characters (at least 2) whose value is not known."""
    return "$" + _UNKNOWN * (length - 1)


def substituted(line: str, pattern: re.Pattern[str], replaced: dict[str, str] | None = None) -> str:
    """A line with what ``pattern`` matches written as ``replaced`` has it, or else as a word that is not known.

    The columns that a shorter word leaves are given back at the next blank between words: what follows it stays in its
    place.
    """
    return _fitted(_pieces(line, pattern, replaced or {}))


def _pieces(line: str, pattern: re.Pattern[str], replaced: dict[str, str]) -> Iterator[tuple[int, str]]:
    at = 0
    for match in pattern.finditer(line):
        yield match.start() - at, line[at : match.start()]
        word = replaced.get(match[0])
        yield len(match[0]), unknown(len(match[0])) if word is None else word
        at = match.end()
    yield len(line) - at, line[at:]


def _fitted(pieces: Iterable[tuple[int, str]]) -> str:
    """Texts one after another, each of which took the place of so many characters."""
    written, owed, quote = "", 0, ""
    for length, text in pieces:
        owed += length - len(text)
        for character in text:
            if quote:
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote = character
            elif character == " ":
                character, owed = " " * (1 + owed), 0
            written += character
    return written
