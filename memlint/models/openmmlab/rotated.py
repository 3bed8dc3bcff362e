"""Heads of mmrotate 0.3.4 over anchors that are turned (``models/dense_heads``: rotated_anchor_head.py,
rotated_retina_head.py, rotated_atss_head.py): a box is five numbers, and one kernel gives the overlaps of two sets.
"""

from __future__ import annotations

from typing import Any

from memlint.meta.tensor import Tensor, empty
from memlint.models.openmmlab.detection import Boxes, RetinaHead, targets
from memlint.models.openmmlab.registry import register

SIDES = 5  # centre, width, height and angle


def turned_overlaps(boxes: int, anchors: int) -> Tensor:
    """``rbbox_overlaps``: both sets are copied before the kernel gives a number for each two of them."""
    copies = empty((anchors, SIDES)), empty((boxes, SIDES))
    made = empty((boxes, anchors))
    del copies
    return made


def nearest_first(boxes: int, anchors: int) -> Tensor:
    """``ATSSObbAssigner``: overlaps, then distances of all centres, which centres are inside, and the overlaps of those
    that are taken, as a matrix that lies the other way round."""
    found = turned_overlaps(boxes, anchors)
    away = empty((anchors, boxes, 2))
    squares = empty((anchors, boxes, 2))
    del away
    sums = empty((anchors, boxes))
    del squares
    distances = empty((anchors, boxes))
    del sums
    inside = empty((anchors, boxes))
    filled = empty((anchors, boxes))
    taken = empty((boxes, anchors))
    del filled
    copied = empty((boxes, anchors))
    del distances, inside, taken, copied
    return found


@register()
class RotatedRetinaHead(RetinaHead):
    """``assign_by_circumhbbox`` says how angles are meant where straight boxes are matched instead."""

    sides = SIDES

    def __init__(
        self, num_classes: int, in_channels: int, assign_by_circumhbbox: str | None = "oc", **base: Any
    ) -> None:
        generator = base.pop("anchor_generator", None) or {"octave_base_scale": 4, "scales_per_octave": 3}
        loss = base.pop("loss_cls", None) or {"type": "FocalLoss", "use_sigmoid": True}
        super().__init__(num_classes, in_channels, anchor_generator=generator, loss_cls=loss, **base)

    def targets(self, images: int, anchors: int, boxes: Boxes) -> list[Tensor]:
        return targets(images, anchors, boxes, self.sides, turned_overlaps)


@register()
class RotatedATSSHead(RotatedRetinaHead):
    """The same layers; which anchors an object is of is found otherwise, by distances first."""

    def targets(self, images: int, anchors: int, boxes: Boxes) -> list[Tensor]:
        return targets(images, anchors, boxes, self.sides, nearest_first)
