"""Jupyter notebooks: the commands that code cells give to a shell, in ``!`` lines and in ``%%bash`` cells.

A notebook is JSON (nbformat 4, https://nbformat.readthedocs.io/en/latest/format_description.html): a cell's source is a
list of its lines, each a string, which Jupyter writes on a line of its own. ``{name}`` in such a command is a variable
of Python's, whose value is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memlint.documents import json, quoted
from memlint.documents.lines import Lines
from memlint.documents.node import Document, Node

_COMMANDS = re.compile(r'"\s*(?:!|%%(?:bash|sh)\b|%%script +(?:bash|sh)\b)')
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script +(?:bash|sh))\b")
# Escapes of a JSON string, and Python's variables.
_REPLACED = re.compile(r"\\.|\{[A-Za-z_][\w.]*\}")
_ESCAPES = {r"\"": '"', r"\\": "\\", r"\/": "/", r"\t": " ", r"\n": "", r"\r": ""}


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
