"""The catalogue of models: hub id -> hyper-parameters, as their ``config.json`` names them, and parameter counts.

The figures are facts of the models' public repositories; where they were read elsewhere, ``sources`` says so.
``models.json`` keeps what the entries of one ``model_type`` share under ``types``, an entry holds what differs; a
string stands for the entry of that id, and ``like`` names the entry of which another is a variant. ``copies.json`` has
the ids by which other publishers hold the same models, whole or quantised, and those of models that no reader
describes.
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
_copies: dict[str, Any] = {}  # copies.json

LEAST_NAME = 4  # characters: a folder ``t0`` may be anything

# Where a config.json says how many tokens or patches the model takes at most, by the age of its architecture.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length")


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
        name = _lower.get(name.lower()) or _mirrored(name.lower())
    entry = _models.get(name)
    if isinstance(entry, str):
        name, entry = entry, _models[entry]
    return None if entry is None else Model(name, *_whole(entry))


def is_mirror(name: str) -> bool:
    """Whether the organisation of an id publishes other organisations' models under their names."""
    return name.lower().partition("/")[0] in _stand_ins("mirrors")


def _mirrored(name: str) -> str:
    """The id on the hub that a mirror's is of, both in lower case; "" where it is none, or of several models."""
    last = name.partition("/")[2]
    if not last or not is_mirror(name) or name.startswith(tuple(_stand_ins("but"))):
        return ""
    known = [one for lower, one in _lower.items() if lower.rpartition("/")[2] == last]
    shapes = {entry if isinstance(entry := _models[one], str) else one for one in known}
    return known[0] if len(shapes) == 1 else ""


def quantised(name: str) -> Model | None:
    """The quantised copy of a model, by the name that its publisher gives such copies; None where it is no such name.

    Its ``config`` has the copy's ``quantization_config``; ``parameters`` are the original's.
    """
    lower = name.lower()
    copy = _stand_ins("copies").get(lower, {})
    original, how = copy.get("of", ""), copy.get("config", {})
    for copies in _stand_ins("quantised"):  # the longest end stands last
        if lower.startswith(copies["begins"]) and lower.endswith(copies["ends"]):
            original, how = name[: -len(copies["ends"])], copies["config"]
    found = find(original) if original else None
    if found is None:
        return None
    dtype = "bfloat16" if how["quant_method"] == "bitsandbytes" else "float16"
    return Model(found.name, found.parameters, {**found.config, "dtype": dtype, "quantization_config": dict(how)})


def named(folder: str) -> Model | None:
    """The model whose name on the hub a folder has; None where no model has it, or several that differ.

    Who downloads a model keeps it under its name, whoever published it there: ``./pretrained/vicuna-7b-v1.5``, or the
    cache's own ``models--lmsys--vicuna-7b-v1.5/snapshots/...``.
    """
    _load()
    folder = pointed(folder)
    for part in folder.split("/"):
        if part.startswith("models--"):
            name = part.removeprefix("models--").replace("--", "/")
            known = find(name)
            return None if known is None else known._replace(name=name)
    last = folder.rstrip("/").rpartition("/")[2].lower()
    if len(last) < LEAST_NAME:
        return None
    names = [name for name in _models if f"/{name.lower()}".endswith(f"/{last}")]
    found = [model for name in names if (model := find(name)) is not None]
    if not found or any(model != found[0] for model in found):
        return None
    # Called as the folder is, and not as a model of the same shapes.
    return found[0] if found[0].name in names else found[0]._replace(name=names[0])


def pointed(name: str) -> str:
    """A name with its points, which ModelScope's cache writes in three lines (its hub's file_download.py,
    ``name.replace(".", "___")``)."""
    return name.replace("___", ".")


def undescribed(name: str) -> str:
    """Of an id whose model no reader describes, its ``model_type`` or a few words; "" for any other."""
    lower = name.lower()
    return next((kind for begins, kind in _stand_ins("undescribed").items() if lower.startswith(begins)), "")


def unlisted(name: str) -> str:
    """Of an id whose model's code is described, and whose sizes the catalogue has not, its ``model_type``; "" for any
    other."""
    lower = name.lower()
    return next((kind for begins, kind in _stand_ins("unlisted").items() if lower.startswith(begins)), "")


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


def _stand_ins(part: str) -> Any:
    if not _copies:
        _copies.update(_json("copies.json"))
    return _copies[part]


def _json(name: str) -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        contents: dict[str, Any] = json.load(file)
    return contents


def _load() -> None:
    if _models:
        return
    catalogue = _json("models.json")
    _types.update(catalogue["types"])
    _models.update(catalogue["models"])
