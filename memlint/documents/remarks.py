"""The commands in a file's comments and in a Python module's docstring: how its author says that it is started."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memlint.documents.lines import lines_of
from memlint.documents.node import Document

if TYPE_CHECKING:
    from memlint.documents import quoted

_COMMENT = re.compile(r"[ \t]*(?:#|//)[ \t]*")
# What a training command begins with, or has in it.
PROGRAM = re.compile(
    r"\b(?:accelerate|torchrun|deepspeed|python3?|axolotl|composer|litgpt|llamafactory-cli|swift|trl|tune|xtuner)\b|\.py\b"
)
_TYPED = re.compile(r"(?:\$ )?(?:[A-Z][A-Z0-9_]*=\S+ )*(?:" + PROGRAM.pattern + ")")
# Behind lines that are blank or a comment, each of which matches in one way: there may be thousands.
_DOCSTRING = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*[ \t]*[rR]?(\"\"\"|''')([\s\S]*?)\1")


def read(document: Document) -> Document:
    """A config's or program's remarks, as a script whose commands stand where they do there. Raises OutOfWork."""
    from memlint.documents import markdown, quoted

    text = document.text
    lines = [_said(_COMMENT.match(line), line) for line in lines_of(text)]
    script = quoted.Script(text)
    _put_typed(script, lines, 0)
    found = _DOCSTRING.match(text) if document.format == "python" else None
    if found is not None:
        inner = lines_of(text[: found.end(2)])
        first = len(lines_of(text[: found.start(2)])) - 1
        inner = inner[first:]
        inner[0] = inner[0].replace(found[1], "   ", 1)
        _put_typed(script, inner, first)
        fenced = markdown.blocks("\n".join(inner)).split("\n")
        script.put({first + index: line for index, line in enumerate(fenced) if line.strip()})
    return script.read(document.path, text, told=True)


def _said(mark: re.Match[str] | None, line: str) -> str:
    return "" if mark is None else " " * mark.end() + line[mark.end() :]


def _put_typed(script: quoted.Script, lines: list[str], first: int) -> None:
    """Lines that begin as a command does, each with those that it goes on in."""
    command: dict[int, str] = {}
    for index, line in enumerate(lines, first):
        bare = line.strip()
        if not command and not (_TYPED.match(bare) and _is_long(bare)):
            continue
        command[index] = line.replace("$ ", "  ", 1) if not command and bare.startswith("$ ") else line
        if not bare.endswith("\\"):
            script.put(command)
            command = {}
    if command:
        script.put(command)


def _is_long(line: str) -> bool:
    """Prose may begin with such a word; a command has an option, a file, or goes on."""
    return " -" in line or ".py" in line or ".yaml" in line or line.endswith("\\")
