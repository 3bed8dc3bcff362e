"""Offsets in a text to 1-based lines and columns, and back.

Lines end at ``\\n``, ``\\r\\n`` and ``\\r``, as editors and Python have it; other Unicode line separators do not.
"""

from __future__ import annotations

from bisect import bisect_right

from memlint.documents.node import Span


def lines_of(text: str, keepends: bool = False) -> list[str]:
    """The lines of a text by the same rule as :func:`line_starts`, and so as many."""
    starts = line_starts(text)
    lines = [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)])]
    return lines if keepends else [line.rstrip("\r\n") for line in lines]


def line_starts(text: str, path: str = "") -> list[int]:
    """Offset of the first character of every line; the rule is the same for every format (and ``path``)."""
    starts = [0]
    if "\r" not in text:
        offset = text.find("\n")
        while offset >= 0:
            starts.append(offset + 1)
            offset = text.find("\n", offset + 1)
        return starts
    offset = 0
    for line in text.splitlines(keepends=True):
        offset += len(line)
        if line[-1] in "\r\n":
            starts.append(offset)
    return starts


def position(starts: list[int], offset: int) -> tuple[int, int]:
    """Line and column of an offset."""
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


def bounds(starts: list[int], span: Span) -> tuple[int, int]:
    """Offsets of a span's start and end."""
    return starts[span.line - 1] + span.column - 1, starts[span.end_line - 1] + span.end_column - 1


class Lines:
    """The lines of one text. Offsets are code points from 0; lines and columns count from 1."""

    __slots__ = ("path", "starts", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.starts = line_starts(text)

    def position(self, offset: int) -> tuple[int, int]:
        return position(self.starts, offset)

    def offset(self, line: int, column: int) -> int:
        """Offset of a position; one beyond the last line is the end of the text."""
        if line > len(self.starts):
            return len(self.text)
        return min(self.starts[line - 1] + column - 1, len(self.text))

    def span(self, start: int, end: int) -> Span:
        return Span(self.path, *self.position(start), *self.position(end))

    def slice(self, span: Span) -> str:
        """The text that a span covers."""
        return self.text[self.offset(span.line, span.column) : self.offset(span.end_line, span.end_column)]
