"""A schema's defaults, and whose they are: what the library's own code is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


def stated(family: str, whose: str) -> dict[str, Any]:
    """Key, with dots -> the default that ``schemas/<family>.schema.json`` states, where ``default_of`` begins with
    ``whose``."""
    schema = json.loads((SCHEMAS / f"{family}.schema.json").read_text(encoding="utf-8"))
    return dict(_stated(schema, "", whose))


def _stated(schema: dict[str, Any], path: str, whose: str) -> Iterator[tuple[str, Any]]:
    for key, below in schema.get("properties", {}).items():
        if not isinstance(below, dict):
            continue
        note = below.get("x-memlint", {})
        if str(note.get("default_of", "")).startswith(whose):
            yield path + key, note.get("default")
        yield from _stated(below, f"{path}{key}.", whose)
