"""Models of libraries that see images, by name: which program a name stands for.

Source: timm 1.0.31 (``timm/models/_registry.py``, ``split_model_name_tag``) and open_clip 3.3.0
(``open_clip/factory.py``).
"""

from __future__ import annotations


def timm_program(model: str) -> tuple[str, str]:
    """Of a model's name in timm: that of its program, and the tag of its weights, which changes nothing but how many
    classes there are."""
    bare = model.removeprefix("hf_hub:").removeprefix("hf-hub:").removeprefix("timm/")
    name, _, tag = bare.partition(".")
    return f"timm/{name}", tag


def open_clip_program(model: str) -> str:
    """Of a model's name in open_clip, which may have slashes where its config's has none: that of its program."""
    return f"open_clip/{model.replace('/', '-')}"
