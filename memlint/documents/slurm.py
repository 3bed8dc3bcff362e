"""What Slurm sets for a script that sbatch submits: the variables that its ``#SBATCH`` lines lead to.

Source: the sbatch manual, "OUTPUT ENVIRONMENT VARIABLES" (Slurm 25.05). Only what a line states becomes a variable;
what the cluster's own settings decide stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from memlint.documents.shell.words import is_number
from memlint.named_tuple import NamedTuple

_MARK = "#SBATCH"
# option -> variables
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "gpus": ("SLURM_GPUS",),
    "G": ("SLURM_GPUS",),
}

MAX_TASKS = 16  # of an array, each of which is followed, as the turns of a loop are
TASK = "SLURM_ARRAY_TASK_ID"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?")


class Setting(NamedTuple):
    """A variable, and where in the text its value was written."""

    name: str
    value: str
    start: int
    end: int


def settings(text: str, submission: Sequence[str] = ()) -> list[Setting]:
    """What the ``#SBATCH`` lines at the top of a script set; a later line goes before, and what the command that
    submits it says goes before all of them.

    submission  the words of that command; what they set stands at no place of the text (-1)
    """
    found: dict[str, Setting] = {}
    given = [(option, value, -1, -1) for option, value, _, _ in _of_line([(word, 0) for word in submission])]
    for option, value, start, end in [*(_options(text) if _MARK in text else ()), *given]:
        names = _VARIABLES.get(option, ())
        if option == "gres" and not value.startswith("gpu"):
            continue
        last = value.rsplit(":", 1)[-1]  # a100:4, gpu:a100:4
        if names and is_number(last):
            for name in names:
                found[name] = Setting(name, str(int(last)), start + len(value) - len(last) if end >= 0 else -1, end)
    nodes, each = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if "SLURM_NTASKS" not in found and nodes is not None and each is not None:
        total = str(int(nodes.value) * int(each.value))
        for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
            found[name] = Setting(name, total, each.start, each.end)
    return list(found.values())


def tasks(text: str) -> list[Setting]:
    """The number of each task of an array (``--array=0-11%4``), of which each runs the script; none where there is no
    array, or it is of more tasks than are followed."""
    found: list[Setting] = []
    for option, value, start, end in _options(text) if _MARK in text else ():
        if option in ("array", "a"):
            numbers = list(islice(_numbers(value.partition("%")[0]), MAX_TASKS + 1))
            found = [Setting(TASK, str(number), start, end) for number in numbers]
    return found if len(found) <= MAX_TASKS else []


def _numbers(said: str) -> Iterator[int]:
    """Of ``1,4-12:4``; none where a part of it is anything else."""
    parts = [_RANGE.fullmatch(part) for part in said.split(",")]
    for part in parts if all(parts) else ():
        assert part is not None
        yield from range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))


def _options(text: str) -> Iterator[tuple[str, str, int, int]]:
    """(option, value, start, end) in the order in which they are written."""
    at = 0
    for line in text.split("\n"):
        start, at = at, at + len(line) + 1
        if line.strip() and not line.startswith("#"):
            return  # sbatch looks no further than the first command
        if not line.startswith(_MARK):
            continue
        words: list[tuple[str, int]] = []
        place = start + len(_MARK)
        for word in line[len(_MARK) :].split(" "):
            if word.startswith("#"):
                break
            if word.strip():
                words.append((word.strip(), place))
            place += len(word) + 1
        yield from _of_line(words)


def _of_line(words: list[tuple[str, int]]) -> Iterator[tuple[str, str, int, int]]:
    for (word, place), following in zip(words, [*words[1:], ("", 0)]):
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            begin = place + 3 + len(option)
        elif word.startswith("-") and len(word) > 1:
            option, equals, value = word[1], word[2:], word[2:].lstrip("=")
            begin = place + len(word) - len(value)
        else:
            continue
        if not equals:
            value, begin = following
        yield option, value, begin, begin + len(value)
