"""Models of libraries that see images, by name: which program a name stands for.

Source: timm 1.0.31 (``timm/models/_registry.py``, ``split_model_name_tag``) and open_clip 3.3.0
(``open_clip/factory.py``). What timm says of its names is in ``memlint/data/timm.json``, which ``tools/timm_names.py``
writes.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import memlint.data

CLASSES = 1000  # of timm's weights for ImageNet, and of a model that is made without a number
_table: dict[str, Any] = {}


def timm_program(model: str) -> tuple[str, str]:
    """Of a model's name in timm: that of its program, and the tag of its weights, which changes nothing but how many
    classes there are and how large their images were."""
    name, _, tag = _bare(model).partition(".")
    name, _, named = _said("names").get(name, name).partition(".")
    return f"timm/{name}", tag or named


def timm_side(model: str) -> int | None:
    """Of the images that a name's weights were made with, where that is not the side that its program is for."""
    sides = _said("sides")
    program, tag = timm_program(model)
    name = program.removeprefix("timm/")
    side: int | None = sides.get(_bare(model)) or sides.get(f"{name}.{tag}")
    return side


def timm_classes(model: str) -> int | None:
    """How many classes a model has that is made by its name alone; None where that is not known, or it has none."""
    bare = _bare(model)
    if bare in _said("classes"):
        return _said("classes")[bare] or None
    _, tag = timm_program(model)
    return None if tag and "in1k" not in tag.split("_")[-1] else CLASSES


# torchvision 0.28, torchvision/models: names of classifiers that timm 1.0 spells in another way, or has not.
_TORCHVISION_ALONE = re.compile(
    r"alexnet|googlenet|maxvit_t|mnasnet\d_\d+|mobilenet_v2|mobilenet_v3_(large|small)|efficientnet_v2_[sml]"
    r"|regnet_[xy]_\d+(_\d)?[gm]f|shufflenet_v2_x\d_\d|squeezenet1_\d|swin(_v2)?_[tsb]|vit_([bl]_(16|32)|h_14)"
)


def is_torchvisions_alone(model: str) -> bool:
    """Whether a model's name is one of torchvision's, and none of timm's."""
    return _TORCHVISION_ALONE.fullmatch(model) is not None


def open_clip_program(model: str) -> str:
    """Of a model's name in open_clip, which may have slashes where its config's has none: that of its program."""
    return f"open_clip/{model.replace('/', '-')}"


def _bare(model: str) -> str:
    return model.removeprefix("hf_hub:").removeprefix("hf-hub:").removeprefix("timm/")


def _said(what: str) -> dict[str, Any]:
    if not _table:
        path = os.path.join(os.path.dirname(memlint.data.__file__), "timm.json")
        with open(path, encoding="utf-8") as file:
            _table.update(json.load(file))
    found: dict[str, Any] = _table[what]
    return found
