"""Lines for IPython among those of Python: ``!pip install trl``, ``%matplotlib inline``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MAGIC = re.compile(r"(\s*)[!%]")


def as_python(lines: Sequence[str]) -> list[str]:
    """The same lines: those for IPython do nothing, and those on which their shell commands go on are blank."""
    found: list[str] = []
    shell = False
    for line in lines:
        magic = _MAGIC.match(line)
        went_on, shell = shell, (shell or magic is not None) and line.rstrip().endswith("\\")
        if went_on:
            line = "\n"
        elif magic is not None:
            line = f"{magic[1]}pass\n"
        found.append(line)
    return found
