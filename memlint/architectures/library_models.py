"""Models of libraries that see images, by name: which program a name stands for.

Source: timm 1.0.31 (``timm/models/_registry.py``, ``split_model_name_tag``) and open_clip 3.3.0
(``open_clip/factory.py``).
"""

from __future__ import annotations

import re


def timm_program(model: str) -> tuple[str, str]:
    """Of a model's name in timm: that of its program, and the tag of its weights, which changes nothing but how many
    classes there are."""
    bare = model.removeprefix("hf_hub:").removeprefix("hf-hub:").removeprefix("timm/")
    name, _, tag = bare.partition(".")
    return f"timm/{name}", tag


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
