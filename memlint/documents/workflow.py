"""Workflows of GitHub Actions and of GitLab CI, and jobs of clusters: the commands of their steps.

Of GitHub, ``run:`` of a step (https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax); of
GitLab, ``script:`` of a job; of SkyPilot ``run:`` and of MosaicML's mcli ``command:``, at the top of a YAML that also
says what machines it takes; of Beaker the one of a task's ``arguments:`` that its shell is told
(https://beaker-docs.apps.allenai.org/concept/experiments.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memlint.documents import quoted
from memlint.documents.lines import lines_of
from memlint.documents.node import Document

_STEP = re.compile(r"(?P<before>[ \t]*(?:- +)*)(?:run|script|before_script)[ \t]*:[ \t]*(?P<value>.*)$")
_JOB = re.compile(r"(?P<before>)(?:run|command)[ \t]*:[ \t]*(?P<value>.*)$")  # at the top of the file
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?[ \t]*(?:#.*)?$")
_EXPRESSION = re.compile(r"\$\{\{(?:(?!\$\{\{).)*?\}\}")
_ITEM = re.compile(r"[ \t]*- +")
# A job's block of commands, and the machines that it takes.
_COMMANDS = re.compile(r"^(?:run|command)[ \t]*:[ \t]*[|>]", re.MULTILINE)
_MACHINES = re.compile(r"^(?:resources|compute)[ \t]*:", re.MULTILINE)
# A task of Beaker's whose command is a shell, and what that is told: one text in quotes, which may go over lines.
_TASKS = re.compile(r"^tasks[ \t]*:", re.MULTILINE)
_TOLD = re.compile(
    r"""^[ \t-]*command[ \t]*:\s*\[[^\]\n]*(?:\n[^\]\n]*)?-c["']?\s*\]\s*"""
    r"""arguments[ \t]*:\s*\[\s*(?P<quote>["'])(?P<command>[^"'\\]*(?:(?!(?P=quote))["'][^"'\\]*)*)(?P=quote)\s*\]""",
    re.MULTILINE,
)


def is_job(text: str) -> bool:
    """Whether a YAML says which commands run on which machines."""
    if _TASKS.search(text) is not None:
        return _TOLD.search(text) is not None
    return _COMMANDS.search(text) is not None and _MACHINES.search(text) is not None


def read(path: str, text: str, step_of: re.Pattern[str] = _STEP) -> Document:
    """The commands of a workflow. Raises OutOfWork."""
    script = quoted.Script(text)
    lines = lines_of(text)
    for begin, line in enumerate(lines):
        step = step_of.match(line)
        if step is None:
            continue
        value = step["value"]
        if value and not _BLOCK.match(value):
            if value[0] not in "\"'[{&*!":
                script.put({begin: " " * step.start("value") + quoted.substituted(value, _EXPRESSION)})
            continue
        block = _below(lines, begin, len(step["before"]))
        if not value:  # a list of commands, each on a line
            for index, item in block.items():
                if _ITEM.match(item):
                    script.put({index: quoted.substituted(item.replace("-", " ", 1), _EXPRESSION)})
            continue
        folded = " \\" if value[0] == ">" else ""
        script.put({index: quoted.substituted(one, _EXPRESSION) + folded for index, one in block.items()})
    return script.read(path, text, told=False)


def read_job(path: str, text: str) -> Document:
    """The commands of a job. Raises OutOfWork."""
    if _TASKS.search(text) is None:
        return read(path, text, _JOB)
    script = quoted.Script(text)
    for told in _TOLD.finditer(text):
        script.put(dict(_folded(text, *told.span("command"))))
    return script.read(path, text, told=False)


def _folded(text: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """The lines of a text in quotes, each where it stands: as one line, which YAML makes of them."""
    index = text.count("\n", 0, begin)
    lead = begin - (text.rfind("\n", 0, begin) + 1)
    *lines, last = text[begin:end].splitlines() or [""]
    for line in lines:
        yield index, " " * lead + line + " \\"
        index, lead = index + 1, 0
    yield index, " " * lead + last


def _below(lines: list[str], begin: int, column: int) -> dict[int, str]:
    """The lines of the value of a key that stands at a column, by their index."""
    block = {}
    for index in range(begin + 1, len(lines)):
        line = lines[index]
        indentation = len(line) - len(line.lstrip(" \t"))
        if line.strip() and indentation <= column and not (indentation == column and line[column] == "-"):
            break
        block[index] = line
    return block
