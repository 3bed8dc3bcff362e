"""JSON text to a Document. The standard library's reader gives no positions, so this is one that does.

It accepts what :func:`json.loads` accepts. Comments and trailing commas, which people write all the same, are
faults that do not stop the reading (and no faults in ``.jsonc``).
"""

from __future__ import annotations

import re
from typing import Any

from memlint import work
from memlint.documents.lines import Lines
from memlint.documents.node import MAX_DIGITS, TOO_LONG, Document, Fault, Faults, Keys, Node, Span, shown

MAX_DEPTH = 100

_BLANK = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"-?[A-Za-z_]+")
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


def read(path: str, text: str) -> Document:
    """Read JSON. What is no JSON yields MEM003 and an empty root; a key written twice yields MEM006."""
    if text.startswith("\ufeff"):
        text = text[1:]
    reader = _Reader(path, text)
    root = reader.read()
    return Document(path, "json", text, root, reader.faults.told(), (), {path: text})


class _Stop(Exception):
    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = Lines(path, text)
        self.faults = Faults()
        self.lenient = path.endswith(".jsonc")
        self.offset = 0
        self.spend = work.meter().spend

    def read(self) -> Node:
        try:
            self.spend(work.KILOBYTE * len(self.text) >> 10, "reading JSON")
            self.skip()
            root = self.value("", None, 0)
            self.skip()
            if self.offset < len(self.text):
                raise self.stop("there is more text after the end of the JSON value")
        except _Stop as stop:
            self.fault("MEM003", f"not valid JSON: {stop.message}", stop.start, stop.end)
        else:
            if root.is_mapping:
                return root
        return Node({}, Span(self.path, 1, 1, 1, 1))

    def stop(self, message: str, start: int | None = None) -> _Stop:
        at = self.offset if start is None else start
        end = at + 1 if at < len(self.text) and self.text[at] not in "\r\n" else at
        return _Stop(message, at, end)

    def fault(self, code: str, message: str, start: int, end: int, related: tuple[Span, ...] = ()) -> None:
        self.spend(work.NODE, "reading JSON")
        self.faults.append(Fault(code, message, self.lines.span(start, end), related))

    def skip(self) -> None:
        """Behind blanks, and behind comments, which are reported."""
        while True:
            match = _BLANK.match(self.text, self.offset)
            self.offset = match.end() if match else self.offset
            if not self.text.startswith(("//", "/*"), self.offset):
                return
            start = self.offset
            if self.text[start + 1] == "/":
                end = min(e for e in (self.text.find("\n", start), len(self.text)) if e >= 0)
            else:
                end = self.text.find("*/", start + 2) + 2
                if end < 2:
                    raise self.stop("a comment that never ends")
            if not self.lenient:
                message = "not valid JSON: it has no comments, and strict readers stop here"
                self.fault("MEM003", message, start, start + len(self.text[start:end].rstrip()))
            self.offset = end

    def value(self, keys: Keys, key_span: Span | None, depth: int) -> Node:
        """The value at the offset, which stands behind it afterwards."""
        self.spend(work.NODE, "reading JSON")
        text, start = self.text, self.offset
        first = text[start : start + 1]
        value: Any
        if first == '"':
            value = self.string()
        elif first == "{":
            value = self.mapping(keys, depth)
        elif first == "[":
            value = self.items(keys, depth)
        elif (number := _NUMBER.match(text, start)) is not None:
            if number.end() - start > MAX_DIGITS:
                raise self.stop(TOO_LONG)
            self.offset = number.end()
            value = float(number[0]) if number[1] or number[2] else int(number[0])
        else:
            word = _WORD.match(text, start)
            if word is None or word[0] not in _WORDS:
                raise self.stop(_expected("a value", first))
            self.offset = word.end()
            value = _WORDS[word[0]]
        return Node(value, self.lines.span(start, self.offset), key_span, keys)

    def string(self) -> str:
        match = _STRING.match(self.text, self.offset)
        if match is None:
            raise self.stop("a string that is not closed on its line, or holds an unknown escape")
        self.offset = match.end()
        if "\\" not in match[0]:
            return match[0][1:-1]
        import json

        return str(json.loads(match[0]))

    def mapping(self, keys: Keys, depth: int) -> dict[str, Node]:
        if depth >= MAX_DEPTH:
            raise self.stop(f"nested deeper than {MAX_DEPTH} levels")
        children: dict[str, Node] = {}
        written: dict[str, Span] = {}
        self.offset += 1
        self.skip()
        while not self.closed("}"):
            if children:
                self.comma("}")
                if self.closed("}"):
                    break
            start = self.offset
            if not self.text.startswith('"', start):
                raise self.stop(_expected("a key in double quotes", self.text[start : start + 1]))
            name = self.string()
            key_span = self.lines.span(start, self.offset)
            if name in written:
                message = (
                    f"{shown(name)!r} is written twice in this object: this one wins over line {written[name].line}"
                )
                self.fault("MEM006", message, start, self.offset, (written[name],))
            written[name] = key_span
            self.skip()
            if not self.text.startswith(":", self.offset):
                raise self.stop(_expected("':'", self.text[self.offset : self.offset + 1]))
            self.offset += 1
            self.skip()
            children[name] = self.value((keys, name), key_span, depth + 1)
            self.skip()
        self.offset += 1
        return children

    def items(self, keys: Keys, depth: int) -> list[Node]:
        if depth >= MAX_DEPTH:
            raise self.stop(f"nested deeper than {MAX_DEPTH} levels")
        items: list[Node] = []
        self.offset += 1
        self.skip()
        while not self.closed("]"):
            if items:
                self.comma("]")
                if self.closed("]"):
                    break
            items.append(self.value((keys, len(items)), None, depth + 1))
            self.skip()
        self.offset += 1
        return items

    def closed(self, bracket: str) -> bool:
        return self.text.startswith(bracket, self.offset)

    def comma(self, bracket: str) -> None:
        start = self.offset
        if not self.text.startswith(",", start):
            raise self.stop(_expected(f"',' or '{bracket}'", self.text[start : start + 1]))
        self.offset += 1
        self.skip()
        if self.closed(bracket) and not self.lenient:
            self.fault("MEM003", f"not valid JSON: a comma before '{bracket}'", start, start + 1)


def _expected(what: str, found: str) -> str:
    return f"{what} is expected, not {found!r}" if found else f"{what} is expected, but the text ends"
