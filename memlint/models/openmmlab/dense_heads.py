"""Heads of mmdet 3.3 and 2.28 over every place of a map, without anchors or with one of them (``models/dense_heads``:
fcos_head.py, atss_head.py, gfl_head.py). What they say of a place with an object is small, and only its gradient is as
large as the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Conv, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.openmmlab.bricks import Config, ConvModule
from memlint.models.openmmlab.context_heads import Scale
from memlint.models.openmmlab.detection import AnchorHead, Boxes, Maps, focal_loss, overlaps, targets
from memlint.models.openmmlab.registry import register

GROUPS: Config = {"type": "GN", "num_groups": 32}
ON_LAST: Config = {"type": "DCNv2"}


def tower(convs: int, inputs: int, width: int, last: Config, conv_cfg: Config, **common: Any) -> list[ConvModule]:
    """Convolutions one after the other; ``last``: what the last one is, where it is another."""
    kinds = [conv_cfg] * convs if last is None else [*[conv_cfg] * (convs - 1), last]
    return [
        ConvModule(inputs if number == 0 else width, width, 3, padding=1, conv_cfg=kind, **common)
        for number, kind in enumerate(kinds)
    ]


def through(layers: Sequence[ConvModule], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def rows(x: Tensor, width: int) -> Tensor:
    """(N, k * width, H, W) -> (N * H * W * k, width), which is a copy."""
    return F.reshape(F.permute(x, 0, 2, 3, 1), -1, width)


def of_objects(x: Tensor, count: int) -> Tensor:
    """The loss of those rows that have an object, of which an image has one at least for each of its own."""
    chosen = F.index(x, empty((min(count, x.shape[0]),), int64))
    return F.sum(F.abs(chosen - empty(chosen.shape)))


@register()
class FCOSHead(Module):
    """Scores, distances to the sides of a box, and how far in its middle each place is."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        feat_channels: int = 256,
        stacked_convs: int = 4,
        strides: Sequence[int] = (4, 8, 16, 32, 64),
        dcn_on_last_conv: bool = False,
        conv_bias: bool | str = "auto",
        regress_ranges: Any = None,
        center_sampling: bool = False,
        center_sample_radius: float = 1.5,
        norm_on_bbox: bool = False,
        centerness_on_reg: bool = False,
        loss_cls: Any = None,
        loss_bbox: Any = None,
        loss_centerness: Any = None,
        bbox_coder: Any = None,
        conv_cfg: Config = None,
        norm_cfg: Config = GROUPS,
        train_cfg: Any = None,
        test_cfg: Any = None,
    ) -> None:
        self.num_classes, self.near_the_centre = num_classes, center_sampling
        self.norm_on_bbox, self.centerness_on_reg = norm_on_bbox, centerness_on_reg
        last = ON_LAST if dcn_on_last_conv else None
        both = stacked_convs, in_channels, feat_channels, last, conv_cfg
        self.cls_convs = tower(*both, norm_cfg=norm_cfg, bias=conv_bias)
        self.reg_convs = tower(*both, norm_cfg=norm_cfg, bias=conv_bias)
        self.conv_cls = Conv(feat_channels, num_classes, (3, 3), 1, 1)
        self.conv_reg = Conv(feat_channels, 4, (3, 3), 1, 1)
        self.conv_centerness = Conv(feat_channels, 1, (3, 3), 1, 1)
        self.scales = [Scale() for _ in strides]

    def one_level(self, x: Tensor, scale: Scale) -> tuple[Tensor, Tensor, Tensor]:
        classes = through(self.cls_convs, x)
        scores = self.conv_cls(classes)
        places = through(self.reg_convs, x)
        sides = self.conv_reg(places)
        centers = self.conv_centerness(places if self.centerness_on_reg else classes)
        sides = F.to(scale(sides), float32)
        return scores, F.relu(sides) if self.norm_on_bbox else F.exp(sides), centers

    def loss(self, maps: Maps, boxes: Boxes) -> tuple[list[Tensor], list[Tensor]]:
        """Losses over all maps at once, and the scores."""
        levels = [self.one_level(x, scale) for x, scale in zip(maps, self.scales)]
        wide = [tuple(boxes.wide(x) for x in level) for level in levels]
        images = maps[0].shape[0]
        count = sum(scores.shape[2] * scores.shape[3] for scores, _, _ in levels)
        wanted = [self._targets(count, boxes.each) for _ in range(images)]
        with boxes.losses():
            scores = F.cat([rows(level[0], self.num_classes) for level in wide])
            sides = F.cat([rows(level[1], 4) for level in wide])
            centers = F.cat([rows(level[2], 1) for level in wide])
            put_together = empty((images * count,), int64), empty((images * count, 4)), empty((images * count, 2))
            losses = [F.sum(focal_loss(scores))]
            losses += [of_objects(x, images * boxes.each) for x in (sides, centers)]
            del wanted, put_together
        return losses, [level[0] for level in levels]

    def _targets(self, places: int, boxes: int) -> tuple[Tensor, Tensor]:
        """``_get_targets_single``: of each place and object the distances to the four sides, whether it lies within
        (or near the middle), whether the map is for as large an object, and how large that is."""
        areas = empty((places, boxes))
        sides = [empty((places, boxes)) for _ in range(4)]
        distances = empty((places, boxes, 4))
        middle: list[Tensor] = []
        if self.near_the_centre:
            middle = [empty((places, boxes)) for _ in range(7)]  # two coordinates, a stride, and four borders
            middle += [empty((places, boxes, 4)), *(empty((places, boxes)) for _ in range(4))]
            middle.append(empty((places, boxes, 4)))
        nearest = empty((places, boxes)), empty((places, boxes), int64)
        within = empty((places, boxes), bool_)
        del nearest
        farthest = empty((places, boxes)), empty((places, boxes), int64)
        fitting = empty((places, boxes), bool_)
        del areas, sides, distances, middle, within, farthest, fitting
        return empty((places,), int64), empty((places, 4))


def nearest(boxes: int, anchors: int) -> Tensor:
    """``ATSSAssigner``: overlaps and distances of all anchors and objects, the centres of anchors for each object, and
    the overlaps of those that are taken, which lie the other way round."""
    found = overlaps(boxes, anchors)
    away = empty((anchors, boxes, 2))
    squares = empty((anchors, boxes, 2))
    del away
    sums = empty((anchors, boxes))
    del squares
    distances = empty((anchors, boxes))
    del sums
    centres = [empty((boxes, anchors)) for _ in range(2)]
    filled = empty((anchors, boxes))
    taken = empty((boxes, anchors))
    del filled
    turned = empty((boxes, anchors))
    del distances, centres, taken, turned
    return found


class DenseAnchorHead(AnchorHead):
    """Two towers over anchors, and a number for each map that its boxes are scaled by."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        stacked_convs: int = 4,
        conv_cfg: Config = None,
        norm_cfg: Config = GROUPS,
        anchor_generator: Any = None,
        **base: Any,
    ) -> None:
        super().__init__(num_classes, in_channels, anchor_generator=anchor_generator, **base)
        width = self.feat_channels
        self.cls_convs = tower(stacked_convs, in_channels, width, None, conv_cfg, norm_cfg=norm_cfg)
        self.reg_convs = tower(stacked_convs, in_channels, width, None, conv_cfg, norm_cfg=norm_cfg)
        self.scales = [Scale() for _ in (anchor_generator or {}).get("strides", (4, 8, 16, 32, 64))]

    def targets(self, images: int, anchors: int, boxes: Boxes) -> list[Tensor]:
        return targets(images, anchors, boxes, self.sides, nearest)

    def levels(self, maps: Maps) -> list[tuple[Tensor, ...]]:
        return [self.one_scaled(x, scale) for x, scale in zip(maps, self.scales)]

    def one_scaled(self, x: Tensor, scale: Scale) -> tuple[Tensor, ...]:
        raise NotImplementedError


@register()
class ATSSHead(DenseAnchorHead):
    """Scores, boxes, and how far in its middle each place is."""

    def __init__(self, num_classes: int, in_channels: int, loss_centerness: Any = None, **base: Any) -> None:
        loss = base.pop("loss_cls", None) or {"type": "FocalLoss", "use_sigmoid": True}
        super().__init__(num_classes, in_channels, loss_cls=loss, **base)
        width = self.feat_channels
        self.atss_cls = Conv(width, self.each * self.classes, (3, 3), 1, 1)
        self.atss_reg = Conv(width, self.each * 4, (3, 3), 1, 1)
        self.atss_centerness = Conv(width, self.each, (3, 3), 1, 1)

    def one_scaled(self, x: Tensor, scale: Scale) -> tuple[Tensor, ...]:
        classes, places = through(self.cls_convs, x), through(self.reg_convs, x)
        sides = F.to(scale(self.atss_reg(places)), float32)
        return self.atss_cls(classes), sides, self.atss_centerness(places)

    def of_level(self, level: tuple[Tensor, ...], boxes: Boxes) -> list[Tensor]:
        scores, sides, centers = (rows(x, width) for x, width in zip(level, (self.classes, 4, 1)))
        classes = F.sum(focal_loss(scores) * empty((scores.shape[0], 1)))
        objects = level[0].shape[0] * boxes.each
        return [classes, of_objects(sides, objects), of_objects(centers, objects)]


@register()
class GFLHead(DenseAnchorHead):
    """Scores that say how good a box is as well, and of each side how likely each of ``reg_max`` distances is."""

    def __init__(
        self, num_classes: int, in_channels: int, loss_dfl: Any = None, reg_max: int = 16, **base: Any
    ) -> None:
        loss = base.pop("loss_cls", None) or {"type": "QualityFocalLoss", "use_sigmoid": True}
        super().__init__(num_classes, in_channels, loss_cls=loss, **base)
        width, self.distances = self.feat_channels, 4 * (reg_max + 1)
        self.gfl_cls = Conv(width, self.classes, (3, 3), 1, 1)
        self.gfl_reg = Conv(width, self.distances, (3, 3), 1, 1)

    def one_scaled(self, x: Tensor, scale: Scale) -> tuple[Tensor, ...]:
        classes, places = through(self.cls_convs, x), through(self.reg_convs, x)
        return self.gfl_cls(classes), F.to(scale(self.gfl_reg(places)), float32)

    def of_level(self, level: tuple[Tensor, ...], boxes: Boxes) -> list[Tensor]:
        scores, sides = rows(level[0], self.classes), rows(level[1], self.distances)
        objects = of_objects(sides, level[0].shape[0] * boxes.each)
        return [objects, self._quality(scores)]

    def _quality(self, scores: Tensor) -> Tensor:
        """``quality_focal_loss``: a loss of each logit, by how far off it is."""
        likely = F.sigmoid(scores)
        loss = F.mse_loss(scores, empty(scores.shape, scores.dtype), reduction="none") * F.pow(likely, 2.0)
        return F.sum(F.sum(loss, 1) * empty((scores.shape[0],)))
