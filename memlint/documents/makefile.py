"""Makefiles and justfiles: the commands of their recipes, with the variables that they set.

A variable of make or just becomes one of the shell's, of the same length: ``$(BATCH)`` is ``${BATCH}``, and
``{{batch}}`` is ``${_batch}``. One that depends on a condition, is made of a call, or holds quotes is not known. Each
line of a recipe has a shell of its own (GNU make 4.4, "Recipe Execution"; just, "Multi-Line Constructs").
"""

from __future__ import annotations

import re

from memlint.documents import quoted
from memlint.documents.lines import lines_of
from memlint.documents.node import Document

_RECIPE = re.compile(r"(\t|[ ]{2,})(?=\S)")
_ASSIGNED = re.compile(r"(?:export |override )*[ ]*([A-Za-z_]\w*)[ ]*(\+|\?|::?)?=[ ]*(.*)")
_CONDITION = re.compile(r"[ \t]*(ifn?eq|ifn?def|endif)\b")
_PLAIN = re.compile(r"[^\"'`$(){};&|<>]*")
# What a recipe of make's is written with: a variable in round brackets, its own names of one character, a dollar.
_MAKE = re.compile(r"\$\([A-Za-z_]\w*\)|\$[@<^?*+|%]|\$\$")
_JUST = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}")
_JUST_NAME = re.compile(r"\{\{([A-Za-z_]\w*)\}\}")


def read(path: str, text: str) -> Document:
    """The commands of a makefile. Raises OutOfWork."""
    just = path.lower().endswith("justfile")
    script = quoted.Script(text)
    lines = lines_of(text)
    depth = at = 0
    while at < len(lines):
        begin = at
        while at < len(lines) - 1 and lines[at].endswith("\\"):
            at += 1
        at += 1
        condition = None if just else _CONDITION.match(lines[begin])
        if condition is not None:
            depth += -1 if condition[1] == "endif" else 1
        elif _RECIPE.match(lines[begin]):
            script.put(dict(enumerate(_typed(lines[begin:at], just), begin)))
        else:
            assigned = _ASSIGNED.match(lines[begin])
            if assigned is not None:
                script.put(_assignment(assigned, lines[begin + 1 : at], begin, just, depth > 0))
    return script.read(path, text, told=False)


def _typed(lines: list[str], just: bool) -> list[str]:
    """What a shell is given of the lines of one command: in brackets, as a shell of its own."""
    first = lines[0].lstrip(" \t")
    command = first.lstrip("@-+")
    bracketed = not any("#" in line for line in lines)
    lines = [("(" if bracketed else " ") + command.rjust(len(lines[0]) - 1), *lines[1:]]
    names = _JUST if just else _MAKE
    typed = [quoted.substituted(line, names, {word: _variable(word) for word in names.findall(line)}) for line in lines]
    return [*typed[:-1], typed[-1] + " )" * bracketed]


def _variable(word: str) -> str:
    if word == "$$":
        return "$"
    name = _JUST_NAME.fullmatch(word)
    if name is not None:
        return f"${{_{name[1]}}}"
    return f"${{{word[2:-1]}}}" if word.startswith("$(") else quoted.unknown(len(word))


def _assignment(assigned: re.Match[str], more: list[str], begin: int, just: bool, depends: bool) -> dict[int, str]:
    """As the shell says it, the value where it was."""
    name, how, value = assigned.groups()
    lines = [line.rstrip() if more else line.split(" #")[0].rstrip() for line in (value, *more)]
    if just and len(lines[0]) > 1 and lines[0][0] == lines[0][-1] and lines[0][0] in "\"'":
        lines[0] = lines[0][1:-1]
    if depends or not all(_PLAIN.fullmatch(_MAKE.sub("", line)) for line in lines):
        return {begin: f"{name}=$(make)"}
    lines = [quoted.substituted(line, _MAKE, {word: _variable(word) for word in _MAKE.findall(line)}) for line in lines]
    opened = {"?": f'{name}="${{{name}:-', "+": f'{name}+=" '}.get(how, f'{"_" if just else ""}{name}="')
    lines[0] = opened.rjust(assigned.start(3)) + lines[0]
    lines[-1] += '}"' if how == "?" else '"'
    return dict(enumerate(lines, begin))
