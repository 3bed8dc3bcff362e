"""Dockerfiles: the commands that ``RUN``, ``CMD`` and ``ENTRYPOINT`` give to a shell, or name word by word.

https://docs.docker.com/reference/dockerfile/#shell-and-exec-form
"""

from __future__ import annotations

import re

from memlint.documents import quoted
from memlint.documents.lines import lines_of
from memlint.documents.node import Document

_INSTRUCTION = re.compile(r"[ \t]*(?:RUN|CMD|ENTRYPOINT)[ \t]+(?:--\w+=\S+[ \t]+)*", re.IGNORECASE)
_SET = re.compile(r"[ \t]*(?:ENV|ARG)[ \t]+([A-Za-z_]\w*)[= ][\"']?([^\"'\s$]*)[\"']?[ \t]*$", re.IGNORECASE)
_BETWEEN = re.compile(r"\[[ \t]*(?=\")|(?<=\")[ \t]*,[ \t]*(?=\")|(?<=\")[ \t]*\][ \t]*$")


def read(path: str, text: str) -> Document:
    """The commands of a Dockerfile. Raises OutOfWork."""
    script = quoted.Script(text)
    lines = lines_of(text)
    at = 0
    while at < len(lines):
        begin = at
        while at < len(lines) - 1 and lines[at].rstrip().endswith("\\"):
            at += 1
        at += 1
        known = _SET.match(lines[begin])
        if known is not None:
            script.put({begin: f'{known[1]}="{known[2]}"'.rjust(known.end(2) + 1)})
        instruction = _INSTRUCTION.match(lines[begin])
        if instruction is None:
            continue
        command = dict(enumerate(lines[begin:at], begin))
        command[begin] = " " * instruction.end() + lines[begin][instruction.end() :]
        if command[begin].lstrip().startswith("["):
            command = {index: _BETWEEN.sub(lambda found: " " * len(found[0]), line) for index, line in command.items()}
        script.put(command)
    return script.read(path, text, told=False)
