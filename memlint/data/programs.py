"""The files of programs that ship (docs/programs.md), each found by its name: no index to read, one file for each."""

from __future__ import annotations

import json
import os
import re
from typing import Any

_FOLDER = os.path.join(os.path.dirname(__file__), "programs")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
MAX_BYTES = 4_000_000
_read: dict[str, Any] = {}


def value(name: str) -> Any:
    """The JSON value of a program's file (``timm/resnet50``), read once. Raises KeyError for one that does not ship."""
    if name not in _read:
        if not _NAME.fullmatch(name) or ".." in name:
            raise KeyError(name)
        try:
            with open(os.path.join(_FOLDER, *f"{name}.json".split("/")), "rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError:  # no such file, or a name that is too long for one
            raise KeyError(name) from None
        if len(text) > MAX_BYTES:
            raise KeyError(name)
        _read[name] = json.loads(text)
    return _read[name]


def names(library: str) -> list[str]:
    """Of a library's models that ship, without its own name."""
    try:
        found = os.listdir(os.path.join(_FOLDER, library))
    except OSError:
        return []
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))
