"""Which model of the catalogue a repository's documents say that one of its own was made from.

Who publishes a model says in a table, or in a sentence, what it is built on: ``| Ours-8B | Llama-3.1-8B |``. That a
line names both is no proof: what follows from it is a partial answer, which names the model that it is of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from memlint import files, work
from memlint.data import resemblance
from memlint.documents import load

MAX_FILES = 12  # that are looked into, nearest first
MAX_BYTES = 256 * 1024  # of one of them
_LEAST = 5  # letters and digits of a name that is looked for
_WORD = re.compile(r"[A-Za-z][\w.]*(?:-[\w.]+)*")
# What a line has that says what a model is made from, and does not compare it: a table's bars, or one of these words.
_MADE = re.compile(
    r"\||\b(?:base[ds]?|from|initiali[sz]ed|fine-?tun\w*|built|backbone|checkpoint|derived|upon)\b|基于|基座|底座|微调|训练",
    re.IGNORECASE,
)


def said_of(name: str, beside: str) -> tuple[str, ...]:
    """Hub ids of the one shape that documents around a file name beside a model of this name; () where they name none,
    or several. Raises OutOfWork."""
    own = _plain(name.strip("[]<>{}/").rpartition("/")[2])
    if len(own) < _LEAST or not beside:
        return ()
    found = {ids for path in _documents(beside) for line in _lines(path, own) if (ids := _others(line, own))}
    return found.pop() if len(found) == 1 else ()


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _others(line: str, own: str) -> tuple[str, ...]:
    """The models of a line beside that one."""
    words = dict.fromkeys(_WORD.findall(line))
    if own not in map(_plain, words):
        return ()
    named = {ids for word in words if not _plain(word).startswith(own) and (ids := resemblance.of_its_family(word))}
    return named.pop() if len(named) == 1 else ()


def _lines(path: str, own: str) -> Iterator[str]:
    try:
        size = os.stat(path).st_size
        if size > MAX_BYTES:
            return
        work.spend(work.KILOBYTE * size >> 10, "looking for what a model was made from")
        text = load.read_text(path)
    except (OSError, load.Unreadable):
        return
    for line in text.splitlines():
        if _MADE.search(line) is not None and own in _plain(line):
            yield line


def _documents(beside: str) -> Iterator[str]:
    """The documents of a file's folder and of those above it, up to the repository's."""
    left = MAX_FILES
    root = files.repository_root(os.path.dirname(beside) or os.curdir)
    for above in files.above(os.path.dirname(beside)):
        try:
            names = sorted(one for one in os.listdir(above or os.curdir) if one.lower().endswith(".md"))
        except OSError:
            continue
        work.spend(1 + len(names), "looking for what a model was made from")
        for one in names:
            path = os.path.join(above, one)
            if left and files.inside(path, root):
                left -= 1
                yield path
