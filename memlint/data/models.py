"""The catalogue of models: hub id -> hyper-parameters, as their ``config.json`` names them, and parameter counts.

The figures are facts of the models' public repositories. ``models.json`` keeps what the entries of one ``model_type``
share under ``types``, an entry holds what differs; a string stands for the entry of that id, and ``like`` names
the entry of which another is a variant.
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.named_tuple import NamedTuple


class Model(NamedTuple):
    """One model.

    name        its hub id, aliases resolved
    parameters  of the class that ``config["architectures"]`` names, each shared tensor once
    config      what of its config.json decides shapes, to read and not to change; ``dtype``, where known, is the
                checkpoint's
    """

    name: str
    parameters: int
    config: dict[str, Any]


_models: dict[str, Any] = {}
_types: dict[str, dict[str, Any]] = {}
_lower: dict[str, str] = {}  # id in lower case -> id

# Where a config.json says how many tokens or patches the model takes at most, by the age of its architecture.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def names() -> list[str]:
    """Every hub id that is known, aliases included, sorted."""
    _load()
    return list(_models)


def find(name: str) -> Model | None:
    """The model of a hub id, in any case; None where it is not known."""
    _load()
    if name not in _models:
        if not _lower:
            _lower.update((known.lower(), known) for known in _models)
        name = _lower.get(name.lower(), "")
    entry = _models.get(name)
    if isinstance(entry, str):
        name, entry = entry, _models[entry]
    return None if entry is None else Model(name, *_whole(entry))


def context(config: dict[str, Any]) -> int | None:
    """Positions that a ``config.json`` states; of the text model, where it nests one. None where it states none."""
    for mapping in (config, config.get("text_config")):
        if isinstance(mapping, dict):
            for key in _CONTEXT:
                value = mapping.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
    return None


def _whole(entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    changes = dict(entry)
    parameters = changes.pop("parameters", None)
    like = changes.pop("like", None)
    if like is None:
        return parameters, {**_types.get(entry["model_type"], {}), **changes}
    same, config = _whole(_models[like])
    for part, value in changes.items():
        if isinstance(value, dict):  # a nested config changes field by field, too
            changes[part] = {**config.get(part, {}), **value}
    return same if parameters is None else parameters, {**config, **changes}


def _load() -> None:
    if _models:
        return
    with open(os.path.join(os.path.dirname(__file__), "models.json"), encoding="utf-8") as file:
        catalogue = json.load(file)
    _types.update(catalogue["types"])
    _models.update(catalogue["models"])
