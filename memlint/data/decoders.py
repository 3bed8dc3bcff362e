"""The catalogue of decoder language models: hub id -> hyper-parameters, as their ``config.json`` names them."""

from __future__ import annotations

import json
import os
from typing import Any

_models: dict[str, Any] | None = None


def _load() -> dict[str, Any]:
    global _models
    if _models is None:
        path = os.path.join(os.path.dirname(__file__), "decoders.json")
        with open(path, encoding="utf-8") as file:
            _models = json.load(file)["models"]
    return _models


def names() -> list[str]:
    """Every hub id that is known, aliases included."""
    return list(_load())


def find(name: str) -> dict[str, Any] | None:
    """The hyper-parameters of a model by its hub id, in any case; None where it is not known."""
    models = _load()
    entry = models.get(name)
    if entry is None:
        lower = name.lower()
        entry = next((value for known, value in models.items() if known.lower() == lower), None)
    return models[entry] if isinstance(entry, str) else entry
