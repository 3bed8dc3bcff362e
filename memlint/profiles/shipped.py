"""The programs that ship with the package (``memlint/data/programs``), each read when a run needs it."""

from __future__ import annotations

from memlint.data import programs
from memlint.profiles.program import Program, read

_read: dict[str, Program] = {}


def program(name: str) -> Program:
    """The program of a model by the name of its file without its ending (``timm/resnet50``): one file is read, once.
    Raises KeyError for one that does not ship."""
    if name not in _read:
        _read[name] = read(programs.value(name))
    return _read[name]
