"""The text of a Python file that is read: the place of each part of its syntax tree; its values, which are counted."""

from __future__ import annotations

import ast
import contextlib
import re
from itertools import accumulate
from typing import Any, cast

from memlint import files, work
from memlint.documents.lines import Lines
from memlint.documents.merge import moved
from memlint.documents.node import Fault, Faults, Keys, Node, Span, Unresolved
from memlint.documents.python import ipython

MAX_DEPTH = 60  # of expressions; of blocks within blocks; of values within values

MAX_NODES = 100_000

MOST_KEPT = 3_000_000  # characters of programs whose trees are kept; a tree takes some forty times its text

_BLOCK = 1_024  # bytes of a long line that are counted at once

_CONTINUATION = bytes(range(0x80, 0xC0))


class Stop(Exception):
    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.fault = Fault("MEM003", message, span)


class Reading:
    """What all files that one of them draws in have in common: how much is read, faults, texts."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.sources: dict[str, str] = {}
        self.nodes = 0

    def parse(self, path: str, text: str) -> ast.Module | None:
        import warnings

        # A program is followed anew with the options of each command that starts it; its tree stays as it is.
        kept = files.kept("syntax trees")
        if kept is not None and text in kept:
            work.meter().spend_again(work.to_parse(text), "reading Python")
            kept[text] = found = kept.pop(text)
            return cast(ast.Module, found)
        work.spend(work.to_parse(text), "reading Python")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes are the config's business
                tree = _tree(text)
            if kept is not None:
                kept[text] = tree
                while sum(map(len, kept)) > MOST_KEPT and len(kept) > 1:
                    del kept[next(iter(kept))]
            return tree
        except SyntaxError as error:
            line = error.lineno or 1
            column = max(error.offset or 1, 1)
            lines = Lines(path, text)
            start = lines.offset(line, column)
            end = start + 1 if start < len(text) and text[start] not in "\r\n" else start
            self.faults.append(Fault("MEM003", f"not valid Python: {error.msg}", lines.span(start, end)))
        except (ValueError, RecursionError, MemoryError) as error:
            why = "it holds a null character" if isinstance(error, ValueError) else "nested too deep"
            self.faults.append(Fault("MEM003", f"not readable as Python: {why}", Span(path, 1, 1, 1, 1)))
        return None


class Source:
    """The text of one file, by the places of its syntax tree."""

    def __init__(self, project: Reading, path: str, text: str) -> None:
        self.project = project
        self.path = path
        self.lines = Lines(path, text)
        self.text = text
        self.ascii = text.isascii()
        self.spend = work.meter().spend
        # Of a line: its bytes, and how many characters begin before each block of them.
        self.encoded: dict[int, tuple[bytes, list[int]]] = {}

    def offset(self, line: int, byte_column: int) -> int:
        start = self.lines.starts[line - 1]
        if self.ascii:
            return start + byte_column
        if line not in self.encoded:
            end = self.lines.starts[line] if line < len(self.lines.starts) else len(self.text)
            encoded = self.text[start:end].encode("utf-8", "surrogatepass")
            lengths = (_characters(encoded[at : at + _BLOCK]) for at in range(0, len(encoded) + 1, _BLOCK))
            self.encoded[line] = encoded, [0, *accumulate(lengths)]
        encoded, before = self.encoded[line]
        block = min(byte_column, len(encoded)) // _BLOCK
        return start + before[block] + _characters(encoded[block * _BLOCK : byte_column])

    def bounds(self, node: Any) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
        )

    def span(self, node: Any) -> Span:
        return self.lines.span(*self.bounds(node))

    def name_span(self, node: ast.ClassDef | ast.FunctionDef) -> Span:
        """The name in ``class Name`` or ``def name``."""
        word = "class" if isinstance(node, ast.ClassDef) else "def"
        start = self.text.find(node.name, self.offset(node.lineno, node.col_offset) + len(word))
        return self.lines.span(start, start + len(node.name))

    def source(self, node: Any) -> str:
        start, end = self.bounds(node)
        return self.text[start:end]

    def unresolved(self, reason: str, node: Any) -> Unresolved:
        text = self.source(node)
        return Unresolved(reason, text if len(text) <= 200 else text[:200] + "...")

    def count(self, node: Any) -> None:
        self.project.nodes += 1
        self.spend(work.NODE, "reading Python")
        if self.project.nodes > MAX_NODES:
            raise Stop(f"more than {MAX_NODES:,} values: not read any further", self.span(node))

    def moved(self, node: Node, keys: Keys, key_span: Span | None, via: tuple[Span, ...], depth: int = 0) -> Node:
        self.project.nodes += 1
        self.spend(work.NODE, "following values of Python")
        if self.project.nodes > MAX_NODES or depth > MAX_DEPTH:
            message = f"more than {MAX_NODES:,} values, or nested deeper than {MAX_DEPTH} levels"
            raise Stop(message, via[0] if via else node.span)
        value = node.value
        if not isinstance(value, (dict, list)):
            return moved(node, keys, key_span, via)
        if isinstance(value, dict):
            copied: Any = {
                name: self.moved(child, (keys, name), child.key_span, via, depth + 1) for name, child in value.items()
            }
        else:
            copied = [self.moved(child, (keys, index), None, via, depth + 1) for index, child in enumerate(value)]
        return Node(copied, node.span, key_span, keys, via + node.via)

    def placed(self, items: list[Node], keys: Keys) -> list[Node]:
        """Copies of values as the items of a list."""
        return [self.moved(item, (keys, index), None, ()) for index, item in enumerate(items)]

    def named(self, children: dict[str, Node], keys: Keys, via: tuple[Span, ...] = ()) -> dict[str, Node]:
        """Copies of values as what a mapping holds."""
        return {name: self.moved(child, (keys, name), child.key_span, via) for name, child in children.items()}


def _characters(encoded: bytes) -> int:
    """How many characters begin in a stretch of UTF-8."""
    return len(encoded.translate(None, _CONTINUATION))


def _tree(text: str) -> ast.Module:
    """Of a text that is no Python, as it is without its lines for IPython: Colab leaves them in a notebook that it
    exports as a script. Raises SyntaxError."""
    try:
        return ast.parse(text)
    except SyntaxError:
        plain = "".join(ipython.as_python(re.findall(r"[^\n]*\n|[^\n]+", text)))
        if plain == text:
            raise
        work.spend(work.to_parse(text), "reading Python")
        with contextlib.suppress(SyntaxError):
            return ast.parse(plain)
        raise
