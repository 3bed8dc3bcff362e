"""Image classifiers of libraries, by name: which program a name stands for.

Source: timm 1.0.31 (``timm/models/_registry.py``, ``split_model_name_tag``).
"""

from __future__ import annotations


def timm_program(model: str) -> tuple[str, str]:
    """Of a model's name in timm: that of its program, and the tag of its weights, which changes nothing but how many
    classes there are."""
    bare = model.removeprefix("hf_hub:").removeprefix("hf-hub:").removeprefix("timm/")
    name, _, tag = bare.partition(".")
    return f"timm/{name}", tag
