"""Models that are known by a recorded program, as transformers' scripts train them: by hub id and task.

Which ids there are, and what is known of each, is in ``memlint/data/recorded.json``, which ``tools/zoo.py --index``
writes of its recipes. A model whose weights are of timm has timm's own program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import memlint.data
from memlint.architectures.adapters import NOTHING, Adapters
from memlint.architectures.library_models import timm_program, timm_side
from memlint.architectures.sizes import Sizes
from memlint.data import programs
from memlint.facts.spec import UnknownModel
from memlint.named_tuple import NamedTuple

MODEL_TYPE = "program"  # in the place of a ``model_type``
TASKS = ("image_classification", "semantic_segmentation", "audio_classification")


class Recorded(NamedTuple):
    """A program, and what a batch for it is made of.

    task   what the class is for: a value of ``TASKS``
    side   of the images, as the image processor of the checkpoint has it; 0 where it takes none
    samples  numbers of a sample of sound, where it takes sound as it is
    frozen   whether what makes features of sound is frozen
    labels   classes, where the run does not say how many there are
    """

    program: str
    task: str
    side: int
    samples: int = 0
    frozen: bool = False
    labels: int = 2
    adapters: Adapters = NOTHING


_table: dict[str, Any] = {}


def known(name: str, task: str) -> dict[str, Any] | None:
    """What stands in the place of the ``config.json`` of a hub id, for a task; None where no program is for it."""
    if not _table:
        path = os.path.join(os.path.dirname(memlint.data.__file__), "recorded.json")
        with open(path, encoding="utf-8") as file:
            _table.update(json.load(file))
    one = _table["models"].get(name.strip("/").lower(), {}).get(task)
    if one is not None:
        return {"model_type": MODEL_TYPE, "program": f"transformers/{one}", "task": task, **_table["programs"][one]}
    return _of_timm(name) if task == "image_classification" and name.startswith("timm/") else None


def _of_timm(name: str) -> dict[str, Any] | None:
    """transformers' ``TimmWrapperForImageClassification`` calls timm's model, and nothing beside it."""
    program, _ = timm_program(name)
    try:
        side = programs.value(program)["sizes"]["H"]
    except KeyError:
        return None
    side = timm_side(name) or side
    return {"model_type": MODEL_TYPE, "program": program, "task": "image_classification", "side": side}


def recorded(config: Mapping[str, Any]) -> Recorded:
    """From what :func:`known` says. Raises UnknownModel."""
    sizes = Sizes(config)
    program, task = sizes.get("program"), sizes.get("task")
    if not isinstance(program, str) or task not in TASKS:
        raise UnknownModel("a config.json of type 'program' is none of transformers'")
    samples, frozen = int(sizes.get("samples") or 0), bool(sizes.get("frozen"))
    return Recorded(program, str(task), int(sizes.get("side") or 0), samples, frozen)
