"""Where a script lies, as scripts find that out: ``$(cd "$(dirname "$0")/.." && pwd)`` and its relatives.

The folder of a script is ``.`` here: the files that its commands name are looked for from there. Bash prints the
absolute path of that folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from memlint import work

MOST_CHARACTERS, MAX_DEPTH = 400, 6

_PRINTED = re.compile(r" ?(?:(?:1|&)?> ?/dev/null(?: 2>&1)?)? ?(?:&&|;) ?(?:builtin )?pwd(?: -[LP])?$")
_ENTERED = re.compile(r"(?:builtin |command )?cd (?:-[LP] |-- )*")
_LINKED = re.compile(r"(?:realpath|readlink) (?:-[a-z]+ |-- )*")
_ABOVE = re.compile(r"dirname (?:-- )?")
_OWN = re.compile(r"\$(?:0|\{0\}|BASH_SOURCE\b|\{BASH_SOURCE(?:\[0\])?(?::?-\$\{?0\}?)?\})")
_OWN_FOLDER = re.compile(r"\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}")
_NAMED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_REST = re.compile(r"(?:/[\w.-]+)*/?")


def output(text: str, own: str, known: Callable[[str], str | None], depth: int = 0) -> str | None:
    """What a command substitution prints, where that is a folder or a file told by where the script lies, or by what a
    variable holds; None for any other.

    own    the name of the script's file
    known  name -> what a variable holds; None where that is not known
    """
    if len(text) > MOST_CHARACTERS or depth > MAX_DEPTH:
        return None
    work.spend(20, "looking for the folder of a script")
    inner = text[2:-1] if text.startswith("$(") else text[1:-1]
    inner = " ".join(inner.replace('"', "").split())
    printed = _PRINTED.search(inner)
    if printed is not None and (entered := _ENTERED.match(inner)) is not None:
        return _path(inner[entered.end() : printed.start()], own, known, depth)
    if (linked := _LINKED.match(inner)) is not None:
        return _path(inner[linked.end() :], own, known, depth)
    if (above := _ABOVE.match(inner)) is not None:
        path = _path(inner[above.end() :], own, known, depth)
        if path is None:
            return None
        return os.path.normpath(os.path.join(path, os.pardir))
    return None


def _path(word: str, own: str, known: Callable[[str], str | None], depth: int) -> str | None:
    """A word without its quotes that is a path."""
    word = word.strip()
    begin: str | None = None
    end = 0
    if word.startswith("$("):
        end = _closed(word)
        begin = output(word[:end], own, known, depth + 1) if end else None
    elif (found := _OWN_FOLDER.match(word)) is not None:
        begin, end = os.curdir, found.end()
    elif (found := _OWN.match(word)) is not None:
        begin, end = own, found.end()
    elif (found := _NAMED.match(word)) is not None:
        begin, end = known(found[1] or found[2]), found.end()
    if begin is None or _REST.fullmatch(word, end) is None:
        return None
    return os.path.normpath(begin + word[end:])


def _closed(word: str) -> int:
    """Where the substitution that begins a word ends; 0 where it does not."""
    depth = 0
    for at, sign in enumerate(word):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign == ")":
            return at + 1
    return 0
