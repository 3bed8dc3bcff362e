"""What the text formats share: source lines, safe printing of foreign text, and column arithmetic."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# What a reader would not see as it is, or would see elsewhere: controls, line separators, surrogates, what re-orders
# text (bidirectional controls, after the "Trojan Source" paper, CVE-2021-42574), and what takes no room on the screen
# (the Unicode Standard, chapter 23: format characters, fillers, variation selectors, tags).
_UNSEEN = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xD800, 0xDFFF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
_FOUND = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSEEN) + "]")


def clean(text: str) -> str:
    """Foreign text on one line: what is not seen is written (``\\x1b``, ``\\u202e``), and not sent to the reader. A tab
    is a blank."""
    return text if text.isascii() and text.isprintable() else _FOUND.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == 0x09:
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def lines_of(text: str) -> list[str]:
    """Text of ours with foreign text in it, cleaned line by line: at least one."""
    return [clean(line) for line in text.split("\n")]


@lru_cache(maxsize=8)  # of the files that findings stand in, one after the other
def source_lines(text: str, path: str) -> tuple[str, ...]:
    """The lines of a file without their ends, numbered as the readers number them.

    YAML 1.1 has three more line breaks than other formats (chapter 4.2), and PyYAML counts by them.
    """
    more = ("\x85", "\u2028", "\u2029") if path.lower().endswith((".yaml", ".yml")) else ()
    for line_break in ("\r\n", "\r", *more):
        text = text.replace(line_break, "\n")
    return tuple(text.split("\n"))


def width(text: str) -> int:
    """Terminal columns of cleaned text: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def folded(text: str, columns: int, indent: int) -> list[str]:
    """A cleaned line in as many as the terminal needs, those after the first indented; as it is where ``columns``
    leave no room for prose."""
    if columns < 40 or width(text) < columns:
        return [text]
    from textwrap import wrap

    # A word may be longer than the line: a path is not broken, so that it can be copied.
    return wrap(text, columns - 1, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False) or [
        text
    ]


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def head(text: str, columns: int) -> str:
    """The beginning of a cleaned text in so many columns of the terminal; dots stand for what has no room."""
    if width(text) <= columns:
        return text
    room, end = columns - 3, 0
    while (room := room - width(text[end])) >= 0:
        end += 1
    return text[:end] + "..."


def tail(text: str, columns: int) -> str:
    """The end of a cleaned text in so many columns of the terminal; dots stand for what has no room."""
    if width(text) <= columns:
        return text
    room, begin = columns - 3, len(text)
    while (room := room - width(text[begin - 1])) >= 0:
        begin -= 1
    return "..." + text[begin:]


_OLD_COMMAND = re.compile(r"##(vso)?\[")  # and that of Azure Pipelines, the same runner's elder


def harmless_in_actions(line: str) -> str:
    """A line that the GitHub Actions runner cannot take for a workflow command.

    The runner trims blanks and looks for ``::`` at the start, and for the older ``##[`` anywhere in the line
    (actions/runner, ActionCommand.cs: TryParseV2 and TryParse).
    """
    line = _OLD_COMMAND.sub(r"##\1\\[", line)
    return "\\" + line if line.lstrip().startswith("::") else line


def repository_path(path: str, environment: Mapping[str, str], root_variable: str = "GITHUB_WORKSPACE") -> str:
    """A path from the repository's root with forward slashes, as services want it; what lies outside as it is."""
    try:
        root = os.path.realpath(environment.get(root_variable) or os.getcwd())
        seen = os.path.relpath(os.path.realpath(path), root)
    except (OSError, ValueError):  # no working directory; characters that no path has
        seen = os.pardir
    inside = not seen.startswith(os.pardir)
    return (seen if inside else os.path.normpath(path)).replace(os.sep, "/")


def encoded(value: Any) -> str:
    """JSON of ASCII alone, so that no program on the way takes a part of it for more than text."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=True).replace("\x7f", "\\u007f") + "\n"
