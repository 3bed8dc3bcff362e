"""Losses over maps (mmseg 1.2, ``models/losses``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, bool_, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.registry import register


@register()
class CrossEntropyLoss(Module):
    """(N, classes, H, W) and labels (N, H, W): one loss per pixel, then their sum."""

    def __init__(
        self,
        use_sigmoid: bool = False,
        use_mask: bool = False,
        reduction: str = "mean",
        class_weight: Sequence[float] | None = None,
        loss_weight: float = 1.0,
        loss_name: str = "loss_ce",
        avg_non_ignore: bool = False,
        place: str = "",
    ) -> None:
        if use_sigmoid or use_mask:
            raise UnknownModel(f"{place}.use_sigmoid is a way to this loss that memlint does not know")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(logits, labels, reduction="none")
        return F.sum(each) * 1.0


def accuracy(logits: Tensor, labels: Tensor) -> None:
    """Which class each pixel would get, and whether it is the right one: for the log, gone at once."""
    packed = None if logits.strides is None else empty(logits.shape, logits.dtype)
    shape = (logits.shape[0], 1, *logits.shape[2:])
    values, found = empty(shape, logits.dtype), empty(shape, int64)
    del packed
    right = empty(labels.shape, bool_)
    del values, found, right


def of_one(config: Any) -> list[Any]:
    """One dictionary, or several."""
    return list(config) if isinstance(config, (list, tuple)) else [config]
