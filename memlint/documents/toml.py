"""TOML text to a Document. Values come from ``tomllib``; where they stand, from a scan of the same text.

The scan only runs on text that ``tomllib`` has accepted, so it follows the grammar without checking it.
"""

from __future__ import annotations

import sys
from typing import Any

from memlint import work
from memlint.documents.lines import Lines
from memlint.documents.node import TOO_LONG, Document, Fault, Keys, Node, Span, too_long

MAX_DEPTH = 100

_BARE_ENDS = " \t\r\n=.]#,}"


def read(path: str, text: str) -> Document:
    """Read TOML. What is no TOML (a key written twice included) yields MEM003 and an empty root."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if text.startswith("\ufeff"):
        text = text[1:]
    lines = Lines(path, text)
    root = Node({}, Span(path, 1, 1, 1, 1))
    faults: tuple[Fault, ...] = ()
    # tomllib takes apart character by character, and so does the scan.
    work.spend(20 * work.KILOBYTE * len(text) >> 10, "reading TOML")
    deep = _too_deep(text)
    if deep is not None:
        message = f"not readable as TOML: a key of more than {MAX_DEPTH} parts"
        return Document(path, "toml", text, root, (Fault("MEM003", message, lines.span(*deep)),), (), {path: text})
    try:
        values = tomllib.loads(text)
        root = _node(values, _Scan(text).table(), lines, "", None, 0)
    except tomllib.TOMLDecodeError as error:
        faults = (_parse_fault(error, lines),)
    except _TooLong as error:
        faults = (Fault("MEM003", f"not readable as TOML: {TOO_LONG}", lines.span(error.start, error.end)),)
    except (RecursionError, ValueError):  # ValueError: an integer that Python does not convert
        message = f"not readable as TOML: nested deeper than {MAX_DEPTH} levels, or {TOO_LONG}"
        faults = (Fault("MEM003", message, Span(path, 1, 1, 1, 1)),)
    return Document(path, "toml", text, root, faults, (), {path: text})


class _TooLong(Exception):
    def __init__(self, start: int, end: int) -> None:
        super().__init__(TOO_LONG)
        self.start = start
        self.end = end


# Strings and comments whole, and what ends a key or divides its parts. As text: few files need it.
_KEY_MARKS = r'''(?s)"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*|[.=,\[\]{}\n]'''


def _too_deep(text: str) -> tuple[int, int] | None:
    """Where a dotted key of too many parts stands: tomllib takes time with their square."""
    if text.count(".") <= MAX_DEPTH or all(line.count(".") <= MAX_DEPTH for line in text.split("\n")):
        return None
    import re

    dots = start = 0
    for mark in re.finditer(_KEY_MARKS, text):
        if mark[0] == ".":
            start = start if dots else mark.start()
            dots += 1
            if dots >= MAX_DEPTH:
                return start, mark.end()
        elif mark[0] in "=,[]{}\n":
            dots = 0
    return None


def _parse_fault(error: ValueError, lines: Lines) -> Fault:
    message, _, place = str(error).rpartition(" (at ")
    line, column = len(lines.starts), len(lines.text) - lines.starts[-1] + 1
    words = place.rstrip(")").replace(",", "").split()  # "line 3 column 5" or "end of document"
    if len(words) == 4 and words[0] == "line":
        line, column = int(words[1]), int(words[3])
    offset = lines.offset(line, column)
    end = offset + 1 if offset < len(lines.text) and lines.text[offset] not in "\r\n" else offset
    return Fault("MEM003", f"not valid TOML: {message or error}", lines.span(offset, end))


class _Place:
    """Where a value stands: its offsets, those of its key, and the places below it by key or in order."""

    __slots__ = ("children", "end", "key", "start")

    def __init__(self, start: int, end: int, key: tuple[int, int] | None = None) -> None:
        self.start = start
        self.end = end
        self.key = key
        self.children: dict[str, _Place] | list[_Place] | None = None

    def table(self) -> dict[str, _Place]:
        """The children of a table; of an array of tables, those of its last one."""
        if isinstance(self.children, list):
            return self.children[-1].table()
        if self.children is None:
            self.children = {}
        return self.children


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0

    def table(self) -> _Place:
        """The whole document."""
        root = _Place(0, 0)
        root.table()
        current = root
        text = self.text
        while True:
            self.blank()
            if self.offset >= len(text):
                return root
            if text[self.offset] == "[":
                current = self.header(root)
            else:
                self.pair(current, 0)

    def header(self, root: _Place) -> _Place:
        start = self.offset
        array = self.text.startswith("[[", start)
        self.offset += 2 if array else 1
        keys = self.keys()
        self.offset = self.text.index("]", self.offset) + (2 if array else 1)
        table = self.descend(root, keys[:-1])
        name, key_start, key_end = keys[-1]
        places = table.table()
        place = places.get(name)
        if array:
            if place is None:
                place = places[name] = _Place(start, self.offset, (key_start, key_end))
                place.children = []
            element = _Place(start, self.offset)
            element.table()
            assert isinstance(place.children, list)
            place.children.append(element)
            return element
        if place is None:
            place = places[name] = _Place(start, self.offset, (key_start, key_end))
        place.table()
        return place

    def descend(self, table: _Place, keys: list[tuple[str, int, int]]) -> _Place:
        for name, start, end in keys:
            places = table.table()
            place = places.get(name)
            if place is None:
                place = places[name] = _Place(start, end, (start, end))
                place.table()
            table = place
        return table

    def pair(self, table: _Place, depth: int) -> None:
        keys = self.keys()
        self.offset = self.text.index("=", self.offset) + 1
        self.spaces()
        target = self.descend(table, keys[:-1])
        name, start, end = keys[-1]
        target.table()[name] = self.value((start, end), depth)

    def keys(self) -> list[tuple[str, int, int]]:
        """A dotted key: the name and the offsets of each part."""
        parts = []
        while True:
            self.spaces()
            start = self.offset
            if self.text[start] in "\"'":
                self.string()
                name = _unquoted(self.text[start : self.offset])
            else:
                while self.text[self.offset] not in _BARE_ENDS:
                    self.offset += 1
                name = self.text[start : self.offset]
            parts.append((name, start, self.offset))
            self.spaces()
            if self.text[self.offset] != ".":
                return parts
            self.offset += 1

    def value(self, key: tuple[int, int] | None, depth: int) -> _Place:
        if depth > MAX_DEPTH:
            raise RecursionError
        text, start = self.text, self.offset
        place = _Place(start, start, key)
        first = text[start]
        if first in "\"'":
            self.string()
        elif first == "[":
            place.children = []
            self.offset += 1
            while True:
                self.blank()
                if text[self.offset] == "]":
                    break
                place.children.append(self.value(None, depth + 1))
                self.blank()
                if text[self.offset] == ",":
                    self.offset += 1
            self.offset += 1
        elif first == "{":
            place.children = {}
            self.offset += 1
            while True:
                self.blank()
                if text[self.offset] == "}":
                    break
                self.pair(place, depth + 1)
                self.blank()
                if text[self.offset] == ",":
                    self.offset += 1
            self.offset += 1
        else:
            while self.offset < len(text) and text[self.offset] not in ",]}#\r\n":
                self.offset += 1
            self.offset = start + len(text[start : self.offset].rstrip(" \t"))
        place.end = self.offset
        return place

    def string(self) -> None:
        text = self.text
        quote = text[self.offset]
        if text.startswith(quote * 3, self.offset):
            end = self.offset + 3
            while not text.startswith(quote * 3, end):
                end += 2 if text[end] == "\\" and quote == '"' else 1
            end += 3
            while end < len(text) and text[end] == quote:  # up to two quotes may stand before the closing three
                end += 1
        else:
            end = self.offset + 1
            while text[end] != quote:
                end += 2 if text[end] == "\\" and quote == '"' else 1
            end += 1
        self.offset = end

    def spaces(self) -> None:
        while self.offset < len(self.text) and self.text[self.offset] in " \t":
            self.offset += 1

    def blank(self) -> None:
        """Behind blanks, line breaks and comments."""
        text = self.text
        while self.offset < len(text):
            character = text[self.offset]
            if character == "#":
                end = text.find("\n", self.offset)
                self.offset = len(text) if end < 0 else end
            elif character in " \t\r\n":
                self.offset += 1
            else:
                return


def _unquoted(text: str) -> str:
    if text[0] == "'" or "\\" not in text:
        return text[1:-1]
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return str(tomllib.loads(f"key = {text}")["key"])


def _node(value: Any, place: _Place, lines: Lines, keys: Keys, key: Span | None, depth: int) -> Node:
    work.spend(2 * work.NODE, "reading TOML")
    if depth > MAX_DEPTH:
        raise RecursionError
    span = lines.span(place.start, place.end)
    if isinstance(value, dict):
        assert isinstance(place.children, dict)
        below = place.children
        children = {
            name: _node(child, below[name], lines, (keys, name), lines.span(*(below[name].key or (0, 0))), depth + 1)
            for name, child in value.items()
        }
        return Node(children, _cover(span, children.values(), place), key, keys)
    if isinstance(value, list):
        assert isinstance(place.children, list)
        items = [
            _node(child, below_, lines, (keys, index), None, depth + 1)
            for index, (child, below_) in enumerate(zip(value, place.children))
        ]
        return Node(items, _cover(span, items, place), key, keys)
    if too_long(value):
        raise _TooLong(place.start, place.end)
    if not isinstance(value, (str, int, float, bool)):  # dates and times: their text
        value = lines.text[place.start : place.end]
    return Node(value, span, key, keys)


def _cover(span: Span, children: Any, place: _Place) -> Span:
    """From the header or bracket of a table or array to the end of what is below it."""
    line, column, end_line, end_column = span[1:]
    first = place.key is None and place.start == place.end == 0  # the root: it has no text of its own
    for child in children:
        start = child.key_span or child.span
        if first or (start.line, start.column) < (line, column):
            line, column, first = start.line, start.column, False
        if (child.span.end_line, child.span.end_column) > (end_line, end_column):
            end_line, end_column = child.span.end_line, child.span.end_column
    return Span(span.path, line, column, end_line, end_column)
