"""DeiT's models by their names (facebookresearch/deit 7e160fe, ``models.py``): patches of 16 pixels, a token for the
class."""

from __future__ import annotations

from memlint.architectures.mae import Shape

PATCH = 16
_SIZES = {"tiny": Shape(192, 12, 3, PATCH), "small": Shape(384, 12, 6, PATCH), "base": Shape(768, 12, 12, PATCH)}
# The side at a name's end is that of published weights; the program makes the model for --input-size.
MODELS = {f"deit_{name}_patch{PATCH}_{side}": shape for name, shape in _SIZES.items() for side in (224, 384)}
