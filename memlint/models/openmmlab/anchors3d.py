"""Heads over anchors that stand in space (mmdet3d 1.4 and 0.18, ``models/dense_heads/anchor3d_head.py`` and
``train_mixins.py``, ``models/task_modules``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Conv, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64, uint8
from memlint.models import UnknownModel
from memlint.models.openmmlab.detection import focal_loss, overlaps
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import Scenes

CODE = 7  # numbers of a box that no coder says: centre, sides, angle
FLAT = 4  # of a box that is seen from above, turned to the nearest axis
GENERATORS = ("Anchor3DRangeGenerator", "AlignedAnchor3DRangeGenerator")


class Anchors:
    """``Anchor3DRangeGenerator``: how many there are at a place, and on how many maps."""

    def __init__(self, config: Any, place: str) -> None:
        stated: Mapping[str, Any] = config or {}
        kind = stated.get("type", GENERATORS[0])
        if kind not in GENERATORS:
            raise UnknownModel(f"{place}.type {kind} makes anchors in a way that memlint does not know")
        self.sizes = len(stated.get("sizes", (None,)))
        self.turns = len(stated.get("rotations", (0, 1.57)))
        self.levels = len(stated.get("scales", (1,)))
        self.flat = bool(stated.get("reshape_out", True))

    @property
    def each(self) -> int:
        return self.sizes * self.turns


def targets_of_a_scene(anchors: int, code: int, boxes: int) -> list[Tensor]:
    """``anchor_target_single_assigner`` with ``Max3DIoUAssigner`` and ``PseudoSampler``: for each anchor what its class
    is, how it lies to its object, which way it looks, and a weight of each; and which anchors are of nothing."""
    kept = [empty((anchors, code)), empty((anchors, code)), empty((anchors,), int64), empty((anchors,))]
    kept += [empty((anchors,), int64), empty((anchors,))]
    seen = empty((anchors, FLAT))
    matrix = overlaps(boxes, anchors)
    best = [empty((anchors,)), empty((anchors,), int64)]
    assigned = [empty((anchors,), int64), empty((anchors,), int64)]
    same = empty((anchors,), bool_)
    del matrix, same, seen
    nothing = empty((anchors,), int64)
    flags = empty((anchors,), uint8)
    of_nothing = empty((anchors, code))  # ``SamplingResult.neg_priors``
    del flags, best, assigned, of_nothing
    return [*kept, nothing]


@register()
class Anchor3DHead(Module):
    """Maps (B, C, H, W) -> losses of classes, boxes and directions."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        feat_channels: int = 256,
        use_direction_classifier: bool = True,
        anchor_generator: Any = None,
        assigner_per_size: bool = False,
        assign_per_class: bool = False,
        diff_rad_by_sin: bool = True,
        dir_offset: float = 0.0,
        dir_limit_offset: float = 0.0,
        bbox_coder: Any = None,
        loss_cls: Any = None,
        loss_bbox: Any = None,
        loss_dir: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.bbox_head",
    ) -> None:
        if "Focal" not in str((loss_cls or {}).get("type")):
            raise UnknownModel(f"{place}.loss_cls.type is a loss of classes that memlint does not know")
        self.anchors = Anchors(anchor_generator, f"{place}.anchor_generator")
        self.code = (bbox_coder or {}).get("code_size", CODE)
        self.classes = num_classes if (loss_cls or {}).get("use_sigmoid", False) else num_classes + 1
        assigner = (train_cfg or {}).get("assigner")
        self.assigners = len(assigner) if isinstance(assigner, (list, tuple)) else 1
        self.per_class = assign_per_class
        each = self.anchors.each
        self.conv_cls = Conv(feat_channels, each * self.classes, (1, 1))
        self.conv_reg = Conv(feat_channels, each * self.code, (1, 1))
        self.conv_dir_cls = Conv(feat_channels, each * 2, (1, 1)) if use_direction_classifier else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.conv_cls(x), self.conv_reg(x), None if self.conv_dir_cls is None else self.conv_dir_cls(x)

    def loss(self, maps: Sequence[Tensor], scenes: Scenes) -> list[Tensor]:
        levels = [self(x) for x in maps]
        samples = maps[0].shape[0]
        counts = [x.shape[2] * x.shape[3] * self.anchors.each for x, _, _ in levels]
        grids = [empty((count, self.code)) for count in counts]
        every = sum(counts)
        copies = [empty((every, self.code)) for _ in range(samples)]  # ``torch.cat`` of the levels, for each scene
        wanted = [self._targets(every, scenes) for _ in range(samples)]
        stacked = [empty((samples, *one.shape), one.dtype) for one in wanted[0][:-1]]
        del wanted
        losses = []
        for (scores, places, turns), count in zip(levels, counts):
            losses += self._of_a_level(scores, places, turns, samples * count, scenes)
        del stacked, grids, copies
        return losses

    def _targets(self, anchors: int, scenes: Scenes) -> list[Tensor]:
        """One assigner for all anchors, or one for each size: then they are put together."""
        if self.assigners == 1:
            boxes = scenes.boxes
            return targets_of_a_scene(anchors, self.code, boxes)
        own = anchors // self.assigners
        boxes = -(-scenes.boxes // self.assigners) if self.per_class else scenes.boxes
        parts = []
        for _ in range(self.assigners):
            taken = empty((own, self.code))
            parts.append(targets_of_a_scene(own, self.code, boxes))
            del taken
        return [F.cat(list(one)) for one in zip(*parts)]

    def _of_a_level(
        self, scores: Tensor, places: Tensor, turns: Tensor | None, anchors: int, scenes: Scenes
    ) -> list[Tensor]:
        """In fp32. Only anchors of an object have losses of boxes and directions; they are taken as many as objects."""
        rows = F.reshape(F.permute(F.to(scores, float32), 0, 2, 3, 1), anchors, self.classes)
        losses = [F.sum(F.mul(focal_loss(rows), empty((anchors, 1))))]
        del rows
        positive = empty((scores.shape[0] * scenes.boxes,), int64)
        boxes = F.reshape(F.permute(F.to(places, float32), 0, 2, 3, 1), anchors, self.code)
        chosen = F.index(boxes, positive)
        losses.append(F.sum(F.abs(F.sub(chosen, empty(chosen.shape)))))
        if turns is not None:
            ways = F.reshape(F.permute(F.to(turns, float32), 0, 2, 3, 1), anchors, 2)
            losses.append(F.sum(F.cross_entropy(F.index(ways, positive), positive, reduction="none")))
        return losses
