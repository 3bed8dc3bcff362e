"""A tower in front of Megatron's decoder: transformers' own module, whole on each device, whose features stand in the
embeddings before those are shared. Source: mcore-bridge 1.6 ``model/mm_gpt_model.py``, ``model/mm_gpts/{utils,qwen_vl,
qwen3_vl}.py``.

Shapes: N features of all images together, W the decoder's width, (B, S', W) states of this rank's tokens.
"""

from __future__ import annotations

from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models.language.image_features import ImageFeatures
from memlint.models.language.multimodal import QwenTower


class MegatronSight(Module):
    def __init__(self, tower: QwenTower) -> None:
        self.visual = tower

    def forward(self, pixels: Tensor) -> ImageFeatures:
        """Those for the decoder's first layers are brought into one tensor."""
        features, deep, _ = self.visual(pixels)
        return ImageFeatures(features, F.unbind(F.stack(deep, 0)) if deep else ())


def added(x: Tensor, deep: Tensor, ranks: int) -> Tensor:
    """A layer's result, with what is added where images stand among this rank's tokens (``_deepstack_process``)."""
    seen = to(deep[: max(deep.shape[0] // ranks, 1)], x.dtype)
    rows, columns = empty((seen.shape[0],), int64), empty((seen.shape[0],), int64)
    there = F.clone(F.index(x, rows, columns)) + seen
    return F.index_put_(x, there, rows, columns)
