"""Parts of mmdet 3.3's and 2.28's detectors: FPN, heads over anchors, and heads over regions (``models/necks/fpn.py``,
``dense_heads``, ``roi_heads``).

How many boxes an image has, and how many regions come of it, is the data's. Regions are at their configured maxima
(``train_cfg.rcnn.sampler``, ``train_cfg.rpn_proposal``); boxes are those that :class:`Boxes` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memlint.architectures.sizes import PARTS, check
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Conv, ConvTranspose, Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64, uint8
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import Config, ConvModule, pair, resize
from memlint.models.openmmlab.registry import build, register
from memlint.models.regions import roi_align, roi_align_max, roi_pool

Maps = Sequence[Tensor]


class Boxes:
    """What is known of the objects of an image: how many there are at most, and how large an image is.

    ``in_full``: under fp16 of mmcv's hooks, or apex's, what heads say is cast before their losses, and maps are before
    regions are taken out of them, and neither is under autocast then (mmcv 1.7, ``runner/fp16_utils.py``: force_fp32).
    """

    def __init__(self, each: int, height: int, width: int, in_full: bool = False) -> None:
        self.each, self.height, self.width, self.in_full = each, height, width, in_full

    @contextmanager
    def losses(self) -> Iterator[None]:
        if not self.in_full:
            yield
            return
        with autocast(None):
            yield

    def wide(self, x: Tensor) -> Tensor:
        return to(x, float32) if self.in_full else x


@register()
class FPN(Module):
    """Maps of several widths -> maps of one, each with what the coarser ones say."""

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        num_outs: int,
        start_level: int = 0,
        end_level: int = -1,
        add_extra_convs: bool | str = False,
        extra_convs_on_inputs: bool = True,
        relu_before_extra_convs: bool = False,
        no_norm_on_lateral: bool = False,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = None,
        upsample_cfg: Config = None,
    ) -> None:
        end = len(in_channels) if end_level == -1 else end_level + 1
        self.start, self.end, self.num_outs = start_level, end, num_outs
        where = "on_input" if extra_convs_on_inputs else "on_output"  # as mmdet 2.11 has it
        self.extra = where if add_extra_convs is True else add_extra_convs
        self.relus = relu_before_extra_convs
        common: dict[str, Any] = {"conv_cfg": conv_cfg, "act_cfg": act_cfg, "inplace": False}
        lateral: Config = None if no_norm_on_lateral else norm_cfg
        levels = in_channels[start_level:end]
        self.lateral_convs = [ConvModule(width, out_channels, 1, norm_cfg=lateral, **common) for width in levels]
        self.fpn_convs = [
            ConvModule(out_channels, out_channels, 3, padding=1, norm_cfg=norm_cfg, **common) for _ in levels
        ]
        for number in range(num_outs - len(levels) if self.extra else 0):
            width = in_channels[end - 1] if number == 0 and self.extra == "on_input" else out_channels
            self.fpn_convs.append(ConvModule(width, out_channels, 3, 2, 1, norm_cfg=norm_cfg, **common))

    def forward(self, maps: Maps) -> tuple[Tensor, ...]:
        laterals = [layer(x) for layer, x in zip(self.lateral_convs, maps[self.start :])]
        for at in range(len(laterals) - 1, 0, -1):
            laterals[at - 1] = laterals[at - 1] + resize(laterals[at], laterals[at - 1].shape[2:])
        outs = [layer(x) for layer, x in zip(self.fpn_convs, laterals)]
        if not self.extra:
            for _ in range(self.num_outs - len(outs)):
                outs.append(F.max_pool(outs[-1], 1, 2))
            return tuple(outs)
        source = {"on_input": maps[self.end - 1], "on_lateral": laterals[-1]}.get(str(self.extra), outs[-1])
        for number, layer in enumerate(self.fpn_convs[len(laterals) :]):
            outs.append(layer(source if number == 0 else F.relu(outs[-1]) if self.relus else outs[-1]))
        return tuple(outs)


# ------------------------------------------------------------------------------------------------------------ anchors


def anchors_each(generator: Any) -> int:
    """Anchors of a place (``task_modules/prior_generators``: AnchorGenerator)."""
    config = generator or {}
    ratios = len(config.get("ratios", (0.5, 1.0, 2.0)))
    if "octave_base_scale" in config:
        scales: int = config.get("scales_per_octave", 3)
        check("anchor_generator.scales_per_octave", scales, PARTS)
        return ratios * scales
    return ratios * len(config.get("scales", (8, 16, 32)))


def overlaps(boxes: int, anchors: int) -> Tensor:
    """``bbox_overlaps`` of boxes with anchors: corners, sides, areas, and what is left of them."""
    left, right = empty((boxes, anchors, 2)), empty((boxes, anchors, 2))
    difference = empty((boxes, anchors, 2))
    sides = empty((boxes, anchors, 2))
    del difference
    overlap = empty((boxes, anchors))
    both = empty((boxes, anchors))
    union = empty((boxes, anchors))
    del both
    bounded = empty((boxes, anchors))
    del union
    made = empty((boxes, anchors))
    del left, right, sides, overlap, bounded
    return made


def targets(
    images: int, anchors: int, boxes: Boxes, sides: int = 4, matched: Callable[[int, int], Tensor] = overlaps
) -> list[Tensor]:
    """``get_targets``: for each image which box an anchor is of, what its label is and how it lies to the box."""
    kept = []
    for _ in range(images):
        flags = empty((anchors,), bool_)
        inside = empty((anchors, sides))
        matrix = matched(boxes.each, anchors)
        best = [empty((anchors,)), empty((anchors,), int64)]
        assigned = [empty((anchors,), int64), empty((anchors,), int64)]
        same = empty((anchors,), bool_)
        del matrix, same
        kept += [empty((anchors,), int64), empty((anchors,)), empty((anchors, sides)), empty((anchors, sides))]
        del flags, inside, best, assigned
    return kept


class AnchorHead(Module):
    """What heads over anchors share: arguments, targets, losses."""

    sides = 4  # numbers of a box

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        feat_channels: int = 256,
        anchor_generator: Any = None,
        bbox_coder: Any = None,
        reg_decoded_bbox: bool = False,
        loss_cls: Any = None,
        loss_bbox: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
    ) -> None:
        self.num_classes, self.in_channels, self.feat_channels = num_classes, in_channels, feat_channels
        self.each = anchors_each(anchor_generator)
        classification = loss_cls or {"type": "CrossEntropyLoss", "use_sigmoid": True}
        self.classes = num_classes if classification.get("use_sigmoid", False) else num_classes + 1
        self.focal = "Focal" in str(classification.get("type"))

    def one_level(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and boxes of a map."""
        raise NotImplementedError

    def loss(self, maps: Maps, boxes: Boxes) -> tuple[list[Tensor], list[Tensor]]:
        """Losses, and the scores that proposals are made of."""
        levels = self.levels(maps)
        wide = [tuple(boxes.wide(x) for x in level) for level in levels]
        images = maps[0].shape[0]
        counts = [level[0].shape[2] * level[0].shape[3] * self.each for level in levels]
        every = sum(counts)
        anchors = empty((every, self.sides))
        wanted = self.targets(images, every, boxes)
        stacked = [empty((images, *x.shape), x.dtype) for x in wanted[:4]]
        del wanted
        places = [empty((images, every, self.sides)) for _ in range(2)]
        losses = []
        with boxes.losses():
            for level in wide:
                losses += self.of_level(level, boxes)
        del stacked, places, anchors
        return losses, [level[0] for level in levels]

    def levels(self, maps: Maps) -> list[tuple[Tensor, ...]]:
        """What is said of each map, scores first."""
        return [self.one_level(x) for x in maps]

    def of_level(self, level: tuple[Tensor, ...], boxes: Boxes) -> list[Tensor]:
        """The losses of what is said of a map."""
        scores, deltas = level
        return [self._of_scores(scores), self._of_boxes(deltas)]

    def _of_scores(self, scores: Tensor) -> Tensor:
        """Logits of each anchor and class; the loss of each, with a weight.

        A focal loss takes labels as they are and one weight of an anchor (``losses/focal_loss.py`` of mmdet 2.0 to 3.3:
        ``weight.view(-1, 1)``); one by cross entropy makes both of each class (``_expand_onehot_labels``).
        """
        rows = F.reshape(F.permute(scores, 0, 2, 3, 1), -1, self.classes)
        if self.focal:
            return F.sum(focal_loss(rows) * empty((rows.shape[0], 1)))
        wanted, weight = empty(rows.shape), empty(rows.shape)
        return F.sum(F.mse_loss(rows, wanted, reduction="none") * weight)

    def _of_boxes(self, deltas: Tensor) -> Tensor:
        """``L1Loss``: the distance to what is wanted, with a weight."""
        rows = F.reshape(F.permute(deltas, 0, 2, 3, 1), -1, self.sides)
        distance = F.abs(rows - empty(rows.shape))
        return F.sum(distance * empty(rows.shape))

    def targets(self, images: int, anchors: int, boxes: Boxes) -> list[Tensor]:
        return targets(images, anchors, boxes)


def focal_loss(x: Tensor) -> Tensor:
    """mmcv's kernel (``ops/focal_loss.py``: SigmoidFocalLossFunction): keeps logits, gives a number for each."""
    out = empty(x.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (x,), lambda g: (Tensor(shape, dtype),))
    return out


@register()
class RPNHead(AnchorHead):
    """Whether there is something at an anchor, and where."""

    def __init__(self, in_channels: int, num_classes: int = 1, num_convs: int = 1, **base: Any) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, **base)
        width = self.feat_channels
        if num_convs > 1:
            inputs = [in_channels, *[width] * (num_convs - 1)]
            self.rpn_conv: list[Module] = [ConvModule(one, width, 3, padding=1, inplace=False) for one in inputs]
        else:
            self.rpn_conv = [Conv(in_channels, width, (3, 3), 1, 1)]
        self.rpn_cls = Conv(width, self.each * self.classes, (1, 1))
        self.rpn_reg = Conv(width, self.each * 4, (1, 1))

    def one_level(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.rpn_conv:
            x = layer(x)
        x = F.relu(x)
        return self.rpn_cls(x), self.rpn_reg(x)


@register()
class RetinaHead(AnchorHead):
    """Convolutions for classes and for boxes, the same on every map."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        stacked_convs: int = 4,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        anchor_generator: Any = None,
        **base: Any,
    ) -> None:
        generator = anchor_generator or {"octave_base_scale": 4, "scales_per_octave": 3}
        super().__init__(num_classes, in_channels, anchor_generator=generator, **base)
        width = self.feat_channels
        inputs = [in_channels, *[width] * (stacked_convs - 1)][:stacked_convs]
        both: dict[str, Any] = {"padding": 1, "conv_cfg": conv_cfg, "norm_cfg": norm_cfg}
        self.cls_convs = [ConvModule(one, width, 3, **both) for one in inputs]
        self.reg_convs = [ConvModule(one, width, 3, **both) for one in inputs]
        self.retina_cls = Conv(width, self.each * self.classes, (3, 3), 1, 1)
        self.retina_reg = Conv(width, self.each * self.sides, (3, 3), 1, 1)

    def one_level(self, x: Tensor) -> tuple[Tensor, Tensor]:
        classes, places = x, x
        for layer in self.cls_convs:
            classes = layer(classes)
        for layer in self.reg_convs:
            places = layer(places)
        return self.retina_cls(classes), self.retina_reg(places)


# ------------------------------------------------------------------------------------------------------------ regions


# The operators of mmcv that take regions out of a map without weights of their own, by their names in configs.
ROI_LAYERS = {"RoIAlign": roi_align, "RoIPool": roi_pool}


@register()
class SingleRoIExtractor(Module):
    """Regions (K, 5) -> (K, C, S, S): of each the map that its size belongs to, regions spread evenly over the maps."""

    def __init__(
        self,
        roi_layer: Any,
        out_channels: int,
        featmap_strides: Sequence[int],
        finest_scale: int = 56,
        place: str = "model.roi_head.bbox_roi_extractor",
    ) -> None:
        kind = str(roi_layer.get("type"))
        if kind not in ROI_LAYERS:
            raise UnknownModel(f"{place}.roi_layer.type {kind} is an operator that memlint does not know")
        self.layer = ROI_LAYERS[kind]
        if self.layer is roi_align and roi_layer.get("pool_mode") == "max":
            self.layer = roi_align_max
        self.size = pair(roi_layer.get("output_size", 7))
        self.width, self.levels = out_channels, len(featmap_strides)

    def forward(self, maps: Maps, count: int, in_full: bool = False) -> Tensor:
        """``in_full``: regions are taken in fp32, and cast to what the maps are in (force_fp32 with ``out_fp16``)."""
        if not in_full:
            return self._taken(maps, count)
        with autocast(None):
            found = self._taken([to(x, float32) for x in maps[: self.levels]], count)
        return to(found, maps[0].dtype)

    def _taken(self, maps: Maps, count: int) -> Tensor:
        taken = maps[: self.levels]
        made = empty((count, self.width, *self.size), taken[0].dtype)
        if self.levels == 1:
            return self.layer(taken[0], count, self.size)
        share = count // self.levels
        for number, x in enumerate(taken):
            own = count - share * (self.levels - 1) if number == 0 else share
            made = F.assigned(made, self.layer(x, own, self.size))
        return made


@register("ConvFCBBoxHead")
class BoxHead(Module):
    """``ConvFCBBoxHead``: shared convolutions and products, then classes and boxes."""

    def __init__(
        self,
        num_shared_convs: int = 0,
        num_shared_fcs: int = 0,
        conv_out_channels: int = 256,
        fc_out_channels: int = 1024,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        in_channels: int = 256,
        roi_feat_size: int = 7,
        num_classes: int = 80,
        reg_class_agnostic: bool = False,
        bbox_coder: Any = None,
        reg_decoded_bbox: bool = False,
        loss_cls: Any = None,
        loss_bbox: Any = None,
    ) -> None:
        common: dict[str, Any] = {"padding": 1, "conv_cfg": conv_cfg, "norm_cfg": norm_cfg}
        inputs = in_channels
        self.shared_convs = []
        for _ in range(num_shared_convs):
            self.shared_convs.append(ConvModule(inputs, conv_out_channels, 3, **common))
            inputs = conv_out_channels
        height, width = pair(roi_feat_size)
        inputs *= height * width
        self.shared_fcs: list[Module] = []
        for _ in range(num_shared_fcs):
            self.shared_fcs.append(Linear(inputs, fc_out_channels))
            inputs = fc_out_channels
        self.fc_cls = Linear(inputs, num_classes + 1)
        self.fc_reg = Linear(inputs, 4 if reg_class_agnostic else 4 * num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.shared_convs:
            x = layer(x)
        x = F.flatten(x, 1)
        for product in self.shared_fcs:
            x = F.relu(product(x), inplace=True)
        return self.fc_cls(x), self.fc_reg(x)

    def loss(self, regions: Tensor, boxes: Boxes) -> list[Tensor]:
        scores, places = self(regions)
        with boxes.losses():
            wide = boxes.wide(scores), boxes.wide(places)
            classes = F.cross_entropy(wide[0], empty((scores.shape[0],), int64), reduction="none")
            return [F.sum(classes), F.sum(F.abs(wide[1] - empty(places.shape)))]


@register()
class Shared2FCBBoxHead(BoxHead):
    def __init__(self, fc_out_channels: int = 1024, **base: Any) -> None:
        super().__init__(num_shared_fcs=2, fc_out_channels=fc_out_channels, **base)


@register()
class Shared4Conv1FCBBoxHead(BoxHead):
    def __init__(self, fc_out_channels: int = 1024, **base: Any) -> None:
        super().__init__(num_shared_convs=4, num_shared_fcs=1, fc_out_channels=fc_out_channels, **base)


@register()
class FCNMaskHead(Module):
    """Regions with an object -> a mask of each class, twice as large."""

    def __init__(
        self,
        num_convs: int = 4,
        roi_feat_size: int = 14,
        in_channels: int = 256,
        conv_kernel_size: int = 3,
        conv_out_channels: int = 256,
        num_classes: int = 80,
        class_agnostic: bool = False,
        upsample_cfg: Config = None,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        predictor_cfg: Config = None,
        loss_mask: Any = None,
        place: str = "model.roi_head.mask_head",
    ) -> None:
        if (upsample_cfg or {"type": "deconv"}).get("type") != "deconv":
            raise UnknownModel(f"{place}.upsample_cfg makes masks larger in a way that memlint does not know")
        inputs = [in_channels, *[conv_out_channels] * (num_convs - 1)][:num_convs]
        common: dict[str, Any] = {"padding": conv_kernel_size // 2, "conv_cfg": conv_cfg, "norm_cfg": norm_cfg}
        self.convs = [ConvModule(one, conv_out_channels, conv_kernel_size, **common) for one in inputs]
        self.upsample = ConvTranspose(conv_out_channels, conv_out_channels, (2, 2), 2)
        self.conv_logits = Conv(conv_out_channels, 1 if class_agnostic else num_classes, (1, 1))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convs:
            x = layer(x)
        x = F.relu(self.upsample(x), inplace=True)
        return self.conv_logits(x)  # type: ignore[no-any-return]

    def loss(self, regions: Tensor, images: int, boxes: Boxes) -> Tensor:
        masks = self(regions)
        wanted = [self._wanted(masks.shape[0] // images, masks.shape[2:], boxes) for _ in range(images)]
        whole = F.cat(wanted, 0)
        del wanted
        rows = empty((masks.shape[0],), int64)
        with boxes.losses():
            wide = boxes.wide(masks)
            chosen = F.index(wide, rows, rows)
            return F.mse_loss(chosen, whole)

    def _wanted(self, count: int, size: Sequence[int], boxes: Boxes) -> Tensor:
        """``BitmapMasks.crop_and_resize``: the masks of the image go to the card, are taken once for each region, and
        made numbers of, before they are cut (mmdet 3.3 and 2.28, ``structures/mask/structures.py``)."""
        image = (boxes.height, boxes.width)
        whole = empty((boxes.each, *image), uint8)
        taken = empty((count, *image), uint8)
        del whole
        numbers = empty((count, *image))
        del taken
        cut = empty((count, 1, *size))
        wide = empty((count, *size), bool_)
        made = empty((count, *size))
        del numbers, cut, wide
        return made


@register()
class StandardRoIHead(Module):
    def __init__(
        self,
        bbox_roi_extractor: Any = None,
        bbox_head: Any = None,
        mask_roi_extractor: Any = None,
        mask_head: Any = None,
        shared_head: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
    ) -> None:
        if shared_head is not None:
            raise UnknownModel(f"{place}.shared_head stands before both heads, which memlint does not know")
        sampler = (train_cfg or {}).get("sampler", {})
        self.regions = int(sampler.get("num", 512))
        self.positive = int(self.regions * sampler.get("pos_fraction", 0.25))
        self.bbox_roi_extractor = build(bbox_roi_extractor, f"{place}.bbox_roi_extractor")
        self.bbox_head = build(bbox_head, f"{place}.bbox_head")
        self.mask_head = None if mask_head is None else build(mask_head, f"{place}.mask_head")
        extractor = mask_roi_extractor or bbox_roi_extractor
        self.mask_roi_extractor = None if mask_head is None else build(extractor, f"{place}.mask_roi_extractor")

    def loss(self, maps: Maps, boxes: Boxes) -> list[Tensor]:
        images = maps[0].shape[0]
        regions = self.bbox_roi_extractor(maps, images * self.regions, boxes.in_full)
        losses: list[Tensor] = self.bbox_head.loss(regions, boxes)
        if self.mask_head is not None and self.mask_roi_extractor is not None:
            positive = self.mask_roi_extractor(maps, images * self.positive, boxes.in_full)
            losses.append(self.mask_head.loss(positive, images, boxes))
        return losses


@register()
class CascadeRoIHead(Module):
    """Regions that are refined several times, by a head of their own each time."""

    def __init__(
        self,
        num_stages: int,
        stage_loss_weights: Any,
        bbox_head: Any,
        mask_head: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
        **options: Any,
    ) -> None:
        every = [bbox_head] * num_stages if isinstance(bbox_head, dict) else list(bbox_head)
        masks = [mask_head] * num_stages if mask_head is None or isinstance(mask_head, dict) else list(mask_head)
        settings = train_cfg if isinstance(train_cfg, (list, tuple)) else [train_cfg] * num_stages
        self.stages = [
            StandardRoIHead(bbox_head=box, mask_head=mask, train_cfg=setting, place=place, **options)
            for box, mask, setting in zip(every, masks, settings)
        ]

    def loss(self, maps: Maps, boxes: Boxes) -> list[Tensor]:
        losses = []
        for stage in self.stages:
            losses += stage.loss(maps, boxes)
        return losses
