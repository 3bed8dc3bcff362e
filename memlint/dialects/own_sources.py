"""The texts that a model of a repository's own is made of: its program, and the modules that this imports."""

from __future__ import annotations

from typing import Any

from memlint.dialects import own_code

MAX_SOURCES = 12
PROGRAM = "__main__"  # under which the program itself is kept


def told(own: own_code.Module) -> dict[str, Any]:
    """``program`` and ``sources`` of the fact ``own_model``."""
    sources, waiting = {PROGRAM: own.text}, [own]
    while waiting and len(sources) < MAX_SOURCES:
        one = waiting.pop(0)
        for source in dict.fromkeys(source for source, _ in one.imported.values()):
            made = own_code.imported(source, one.path) if source not in sources else None
            if made is not None:
                sources[source] = made[1]
                inner = own_code.module(made[0])
                waiting += [inner] if inner is not None else []
    return {"program": PROGRAM, "sources": sources}
