"""Jupyter notebooks: the commands that code cells give to a shell, in ``!`` lines and in ``%%bash`` cells, and the
program that the other cells are, one after the other.

A notebook is JSON (nbformat 4, https://nbformat.readthedocs.io/en/latest/format_description.html): a cell's source is a
list of its lines, each a string, which Jupyter writes on a line of its own. ``{name}`` in such a command is a variable
of Python's, whose value is not known.
"""

from __future__ import annotations

import ast
import bisect
import re
import warnings
from collections.abc import Iterator

from memlint import work
from memlint.documents import json, quoted
from memlint.documents.lines import Lines
from memlint.documents.node import Document, Node, Span
from memlint.documents.python import ipython

_COMMANDS = re.compile(r'"\s*(?:!|%%(?:bash|sh)\b|%%script +(?:bash|sh)\b)')
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script +(?:bash|sh))\b")
# Escapes of a JSON string, and Python's variables.
_REPLACED = re.compile(r"\\.|\{[A-Za-z_][\w.]*\}")
_ESCAPES = {r"\"": '"', r"\\": "\\", r"\/": "/", r"\t": " ", r"\n": "", r"\r": ""}
# A cell that is Python behind its first line, and one that is something else.
_PYTHON_CELL = re.compile(r"%%(?:capture|time|timeit|prun)\b")
_ESCAPED = re.compile(r"\\u[dD][89abAB]..\\u....|\\u....|\\.", re.DOTALL)
SUFFIX = ".ipynb"


class Program:
    """The Python of a notebook's cells, as one text, whose places are places of the notebook.

    A cell that is no Python is left out. Lines begin where they do in the notebook's file, where each has one of its
    own, so that both count them alike.
    """

    def __init__(self, path: str, raw: str) -> None:
        """Raises OutOfWork."""
        self._raw = Lines(path, raw)
        self._pieces: list[str] = []
        self._length = self._lines = 0
        self._starts: list[int] = []  # of stretches that stand in the file as they do here
        self._places: list[int] = []  # where in the file
        for cell in _cells(json.read(path, raw).root):
            self._put(cell)
        self.text = "".join(self._pieces)

    def span(self, start: int, end: int) -> Span:
        """Where in the notebook a stretch of the text stands."""
        return self._raw.span(self._place(start), self._place(end))

    def _place(self, offset: int) -> int:
        at = bisect.bisect_right(self._starts, offset) - 1
        return min(self._places[at] + offset - self._starts[at], len(self._raw.text)) if at >= 0 else 0

    def _put(self, cell: list[Node]) -> None:
        lines = [str(line.value) for line in cell]
        work.spend(10 * work.KILOBYTE * sum(map(len, lines)) >> 10, "reading a notebook's Python")
        if lines and lines[0].startswith("%%"):
            if _PYTHON_CELL.match(lines[0]) is None:
                return
            lines[0] = "\n"
        lines = ipython.as_python(lines)
        if not _is_python("".join(lines)):
            return
        for node, line in zip(cell, lines):
            self._write("\n" * (node.span.line - 1 - self._lines))
            if line == str(node.value):
                self._copy(node, line)
            else:
                self._mark(self._raw.offset(node.span.line, node.span.column))
                self._write(line)
        if self._pieces and not self._pieces[-1].endswith("\n"):
            self._write("\n")

    def _copy(self, node: Node, line: str) -> None:
        """A line as it is, and where each part of it stands between the quotes of its string."""
        begin = self._raw.offset(node.span.line, node.span.column) + 1
        written = self._raw.slice(node.span)[1:-1]
        self._mark(begin)
        last, shorter = 0, 0
        for escape in _ESCAPED.finditer(written):
            shorter += escape.end() - escape.start() - 1
            last = escape.end() - shorter
            self._mark(begin + escape.end(), ahead=last)
        self._write(line)

    def _mark(self, place: int, ahead: int = 0) -> None:
        self._starts.append(self._length + ahead)
        self._places.append(place)

    def _write(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._length += len(text)
            self._lines += text.count("\n")


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def read(path: str, text: str) -> Document:
    """The commands of a notebook. Raises OutOfWork."""
    script = quoted.Script(text)
    if _COMMANDS.search(text) is not None:
        raw = Lines(path, text)
        for cell in _cells(json.read(path, text).root):
            for command in _commands(cell):
                script.put(dict(_typed(raw, node, node is command[0]) for node in command))
    return script.read(path, text, told=True)


def _cells(root: Node) -> Iterator[list[Node]]:
    """The lines of each code cell."""
    cells = root.get("cells")
    for cell in cells.value if cells is not None and isinstance(cells.value, list) else ():
        kind, source = cell.get("cell_type"), cell.get("source")
        if kind is not None and kind.value == "code" and source is not None and isinstance(source.value, list):
            yield [line for line in source.value if isinstance(line.value, str)]


def _commands(cell: list[Node]) -> Iterator[list[Node]]:
    """The commands of a cell, each with the lines that it goes on in."""
    if cell and _SHELL_CELL.match(str(cell[0].value)):
        yield cell[1:]
        return
    command: list[Node] = []
    for node in cell:
        said = str(node.value)
        if command or said.lstrip().startswith("!"):
            command.append(node)
        if command and not said.rstrip().endswith("\\"):
            yield command
            command = []
    if command:
        yield command


def _typed(raw: Lines, node: Node, first: bool) -> tuple[int, str]:
    """Index of a line, and what a shell is given of it."""
    inner = raw.slice(node.span)[1:-1]
    if first and inner.lstrip().startswith("!"):
        inner = inner.replace("!", " ", 1)
    return node.span.line - 1, " " * node.span.column + quoted.substituted(inner, _REPLACED, _ESCAPES)
