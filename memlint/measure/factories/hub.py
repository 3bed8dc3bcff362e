"""Models that a config names: a folder, or a hub id that is in the local cache. Nothing is downloaded."""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories.base import Request
from memlint.named_tuple import NamedTuple

# Keys under which configs name a model of the hub, or its folder.
KEYS = (
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "model.pretrained_model_name_or_path",
    "model.model_name_or_path",
    "model.name_or_path",
    "model.name",
    "model.llm.name",
    "model_name",
    "base_model",
)
CONFIG = "config.json"
PIPELINE = "model_index.json"  # of diffusers: a folder of several models


class Named(NamedTuple):
    """A model that the config names.

    key       where: ``model.name``
    name      what is written there
    folder    where its files are; "" where they are not at hand
    contents  of its config.json, or of its model_index.json where it is a pipeline; without a folder what the facts
              know of its config.json, if anything
    """

    key: str
    name: str
    folder: str
    contents: dict[str, Any]

    @property
    def library(self) -> str:
        """Whose files they are: diffusers, timm or transformers; "" where they are not at hand."""
        if not self.contents:
            return ""
        if "_class_name" in self.contents:
            return "diffusers"
        return "timm" if "architecture" in self.contents and "model_type" not in self.contents else "transformers"


def value_at(config: Any, key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def named(request: Request) -> Named | None:
    """The model that the facts name, else the first that is named under one of the usual keys: a folder, or what looks
    like a hub id."""
    known = request["facts"].get("hyperparameters.config")
    places = [(request["keys"].get("model", "model"), request["facts"].get("model"))]
    places += [(key, value_at(request["config"], key)) for key in KEYS]
    for key, name in places:
        if isinstance(name, str) and name:
            folder = _local(request, name) or _cached(name)
            if folder:
                return Named(key, name, folder, contents(folder))
            if isinstance(known, dict) and known.get("model_type"):
                return Named(key, name, "", known)
            if name.count("/") == 1:
                return Named(key, name, "", {})
    if isinstance(known, dict) and known.get("model_type"):
        return Named(request["keys"].get("hyperparameters.config", "model"), known["model_type"], "", known)
    return None


def contents(folder: str) -> dict[str, Any]:
    """What the folder's model_index.json, or its config.json, holds. Raises MeasureError where that is no object."""
    path = next(p for p in (os.path.join(folder, PIPELINE), os.path.join(folder, CONFIG)) if os.path.isfile(p))
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, OSError, RecursionError) as error:
        raise MeasureError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise MeasureError(f"{path}:1: holds a {type(found).__name__} where the model's settings should be")
    return found


def _is_model(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, file)) for file in (CONFIG, PIPELINE))


def _local(request: Request, name: str) -> str:
    for base in (os.path.dirname(os.path.abspath(request["path"])), os.getcwd()):
        folder = os.path.join(base, os.path.expanduser(name))
        if _is_model(folder):
            return folder
    return ""


def _cached(name: str) -> str:
    if name.count("/") > 1:
        return ""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return ""
    for file in (PIPELINE, CONFIG):
        try:
            found = try_to_load_from_cache(name, file)
        except HFValidationError:
            return ""
        if isinstance(found, str):
            return os.path.dirname(found)
    return ""
