"""Detectors of detectron2, from the keys of its YAML configs: R-CNNs (C4, DC5, FPN; boxes, masks, keypoints, cascades),
Panoptic FPN, RetinaNet and proposals alone, over ResNets.

How many boxes an image has, and how many regions come of it, is the data's. Regions are at their configured maxima
(``ROI_HEADS.BATCH_SIZE_PER_IMAGE``, of which ``POSITIVE_FRACTION`` have an object), boxes as many as ``boxes`` says.

Source: detectron2 0.6 (``modeling/proposal_generator``, ``roi_heads``, ``meta_arch``) and torchvision's
``ops/boxes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log2

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Conv, ConvTranspose, Linear, Module, Sequential
from memlint.meta.tensor import DTYPES, Tensor, bool_, empty, int8, int64, state, uint8
from memlint.models import UnknownModel
from memlint.models.cards import without_tf32
from memlint.models.detectron2_backbones import FPN, ConvNorm, Maps, ResNet, Settings, known, stage
from memlint.models.regions import roi_align
from memlint.models.system import System

LIBRARY = True
# RetinaNet: of so many anchors one has an object at the most, which is far above what boxes cover.
POSITIVE_SHARE = 10
CASCADE_STAGES = 3  # ROI_BOX_CASCADE_HEAD.IOUS
# torchvision: suppresses class by class (here: level by level) where all boxes together have more numbers than this
VANILLA_NUMBERS = 20_000


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "detectron2"``. Facts: those of ``schemas/detectron2.schema.json``."""
    state.softmax_keeps_input = spec.does("torch.softmax_keeps_its_input")
    state.transforms_tiles = without_tf32(spec)
    model = Detector(spec[HYPER + "detectron2"], spec.get(HYPER + "boxes", 0))
    return system(spec, model, spec["micro_batch_size"], spec["image_size"])


def system(spec: TrainingSpec, model: Module, size: int, sides: Sequence[int]) -> System:
    """What the library's engine does with a model of so many images of such sides."""
    height, width = sides
    compute = spec.get("compute_dtype", "float32")
    return System(
        model=model,
        batch=lambda: [empty((3, height, width), uint8) for _ in range(size)],
        loss=model,
        optimizer="sgd",
        optimizer_options={"implementation": "foreach", "momentum": True, "weight_decay": True},
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if compute != "float32" else None,
        # engine/train_loop.py: the last step's gradients are let go behind the forward pass
        keeps_gradients=True,
        uses=frozenset({"matmul", "convolution"}),
    )


# ----------------------------------------------------------------------------------------------------------- proposals


def matched(boxes: int, others: int) -> None:
    """``pairwise_iou`` and ``Matcher``: what is there while boxes are compared with all anchors, or proposals."""
    sides = empty((boxes, others, 2)), empty((boxes, others, 2))
    both = empty((boxes, others, 2))
    del sides
    common = empty((boxes, others))
    del both
    sums = empty((boxes, others))
    union = empty((boxes, others))
    del sums
    share, flags = empty((boxes, others)), empty((boxes, others), bool_)
    matrix = empty((boxes, others))
    del share, flags, union, common
    best = empty((others,)), empty((others,), int64), empty((others,), int8)
    same = empty((boxes, others), bool_)
    del matrix, best, same


def labelled(images: int, anchors: int, boxes: int) -> tuple[list[Tensor], list[Tensor]]:
    """For each image the label of each anchor, and the box that it is matched with."""
    labels, wanted = [], []
    for _ in range(images):
        matched(boxes, anchors)
        labels.append(empty((anchors,), int8))
        wanted.append(empty((anchors, 4)))
    return labels, wanted


def differences(anchors: int) -> Tensor:
    """``get_deltas``: sides and middles of both, and four numbers for each."""
    parts = [empty((anchors,)) for _ in range(12)]
    made = empty((anchors, 4))
    del parts
    return made


def distances(deltas: Sequence[Tensor], images: int, wanted: list[Tensor], positive: int) -> Tensor:
    """``_dense_box_regression_loss`` over those anchors that have an object."""
    anchors = wanted[0].shape[0]
    each = [differences(anchors) for _ in range(images)]
    stacked = empty((images, anchors, 4))
    del each
    rows = empty((images * positive,), int64)
    predicted = F.index(F.cat(deltas, 1), rows, rows)
    chosen = empty(predicted.shape)
    del stacked
    return F.sum(F.abs(predicted - chosen))


class ProposalNetwork(Module):
    """``RPN``: maps -> losses; proposals are numbers of no gradient."""

    def __init__(self, s: Settings, channels: dict[str, int]) -> None:
        self.names = known("MODEL.RPN.IN_FEATURES", s["MODEL.RPN.IN_FEATURES"], channels)
        self.each = anchors_each(s)
        self.kept, self.left = s["MODEL.RPN.PRE_NMS_TOPK_TRAIN"], s["MODEL.RPN.POST_NMS_TOPK_TRAIN"]
        self.sampled = s["MODEL.RPN.BATCH_SIZE_PER_IMAGE"]
        self.positive = int(self.sampled * s["MODEL.RPN.POSITIVE_FRACTION"])
        width = channels[self.names[0]]
        dims = [width if one == -1 else one for one in s["MODEL.RPN.CONV_DIMS"]]
        self.convs = [ConvNorm(one, two, 3, relus=True) for one, two in zip([width, *dims], dims)]
        self.logits = Conv(dims[-1], self.each, (1, 1))
        self.deltas = Conv(dims[-1], 4 * self.each, (1, 1))

    def forward(self, maps: Maps, boxes: int) -> list[Tensor]:
        levels = [maps[name] for name in self.names]
        images = levels[0].shape[0]
        anchors = [empty((x.shape[2] * x.shape[3] * self.each, 4)) for x in levels]
        scores, places = [], []
        for x in levels:
            for conv in self.convs:
                x = conv(x)
            scores.append(self.logits(x))
            places.append(self.deltas(x))
        del x
        scores = [F.reshape(F.permute(one, 0, 2, 3, 1), images, -1) for one in scores]
        places = [by_anchor(one, 4) for one in places]
        count = sum(one.shape[0] for one in anchors)
        with no_grad():
            labels, wanted = labelled(images, count, boxes)
        together = empty((count, 4))
        positive = empty((images, count), bool_)
        losses = [distances(places, images, wanted, self.positive)]
        rows = empty((images * self.sampled,), int64)
        chosen = F.index(F.cat(scores, 1), rows, rows)
        losses.append(F.sum(F.mse_loss(chosen, empty(chosen.shape), reduction="none")))
        del labels, wanted, together, positive, rows, chosen
        with no_grad():
            self._propose(anchors, images)
        return losses

    def _propose(self, anchors: list[Tensor], images: int) -> None:
        """``_decode_proposals`` and ``find_top_rpn_proposals``: corners of all anchors, then of each level the best,
        and of those what no better one covers. The kernel has a bit for each two."""
        decoded = []
        for one in anchors:
            count = images * one.shape[0]
            parts = [empty((count, 4)) for _ in range(5)]
            decoded.append(empty((count, 4)))
            del parts
        kept = [min(self.kept, one.shape[0]) for one in anchors]
        best = [(empty((images, count)), empty((images, count), int64), empty((images, count, 4))) for count in kept]
        every = empty((images, sum(kept))), empty((images, sum(kept), 4))
        del best
        for _ in range(images):
            most = max(kept) if 4 * sum(kept) > VANILLA_NUMBERS else sum(kept)
            bits = empty((most, ceil(most / 64)), int64)
            del bits
        del every, decoded


def by_anchor(x: Tensor, numbers: int) -> Tensor:
    """(N, A * K, H, W) -> (N, H * W * A, K)"""
    images, width, height, across = x.shape
    split = F.view(x, images, width // numbers, numbers, height, across)
    return F.reshape(F.permute(split, 0, 3, 4, 1, 2), images, -1, numbers)


def anchors_each(s: Settings) -> int:
    """Anchors of a place: as many sizes as a level has, by as many aspects."""
    sizes, aspects = s["MODEL.ANCHOR_GENERATOR.SIZES"], s["MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS"]
    if not (sizes and sizes[0] and aspects and aspects[0]):
        raise UnknownModel("MODEL.ANCHOR_GENERATOR.SIZES, or ASPECT_RATIOS, states none")
    return len(sizes[0]) * len(aspects[0])


# ------------------------------------------------------------------------------------------------------------- regions


def pooled(levels: Sequence[Tensor], count: int, size: int) -> Tensor:
    """``ROIPooler``: regions (K, C, S, S), of each the map that its size belongs to. Regions are spread evenly."""
    if len(levels) == 1:
        return roi_align(levels[0], count, (size, size))
    made = empty((count, levels[0].shape[1], size, size), levels[0].dtype)
    share = count // len(levels)
    for number, x in enumerate(levels):
        own = count - share * (len(levels) - 1) if number == 0 else share
        made = F.assigned(made, roi_align(x, own, (size, size)))
    return made


class BoxHead(Module):
    """``FastRCNNConvFCHead``."""

    def __init__(self, s: Settings, channels: int) -> None:
        kind, width = s["MODEL.ROI_BOX_HEAD.NORM"], s["MODEL.ROI_BOX_HEAD.CONV_DIM"]
        widths = [channels, *[width] * s["MODEL.ROI_BOX_HEAD.NUM_CONV"]]
        self.convs = [ConvNorm(one, two, 3, kind=kind, relus=True) for one, two in pairwise(widths)]
        inputs = widths[-1] * s["MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"] ** 2
        self.fcs = []
        for _ in range(s["MODEL.ROI_BOX_HEAD.NUM_FC"]):
            self.fcs.append(Linear(inputs, s["MODEL.ROI_BOX_HEAD.FC_DIM"]))
            inputs = s["MODEL.ROI_BOX_HEAD.FC_DIM"]
        self.outputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x)
        x = F.flatten(x, 1)
        for product in self.fcs:
            x = F.relu(product(x))
        return x


class Predictor(Module):
    """``FastRCNNOutputLayers``: classes and boxes, and their losses."""

    def __init__(self, s: Settings, inputs: int, agnostic: bool) -> None:
        classes = s["MODEL.ROI_HEADS.NUM_CLASSES"]
        self.cls_score = Linear(inputs, classes + 1)
        self.bbox_pred = Linear(inputs, 4 * (1 if agnostic else classes))
        self.sigmoid = s["MODEL.ROI_BOX_HEAD.USE_SIGMOID_CE"]

    def forward(self, x: Tensor, positive: int) -> list[Tensor]:
        scores, deltas = self.cls_score(x), self.bbox_pred(x)
        count = scores.shape[0]
        if self.sigmoid:
            target = empty(scores.shape)
            loss = F.sum(F.mse_loss(scores, target, reduction="none"))
        else:
            loss = F.cross_entropy(scores, empty((count,), int64))
        rows = empty((positive,), int64)
        chosen = F.index(F.view(deltas, count, -1, 4), rows, rows)
        return [loss, F.sum(F.abs(chosen - empty(chosen.shape)))]


class MaskHead(Module):
    """``MaskRCNNConvUpsampleHead``. Polygons become masks on the host; bitmaps are cut out on the card, image by image
    (``structures/masks.py``)."""

    def __init__(self, s: Settings, channels: int) -> None:
        width, kind = s["MODEL.ROI_MASK_HEAD.CONV_DIM"], s["MODEL.ROI_MASK_HEAD.NORM"]
        widths = [channels, *[width] * s["MODEL.ROI_MASK_HEAD.NUM_CONV"]]
        self.convs = [ConvNorm(one, two, 3, kind=kind, relus=True) for one, two in pairwise(widths)]
        self.deconv = ConvTranspose(widths[-1], width, (2, 2), 2)
        classes = 1 if s["MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK"] else s["MODEL.ROI_HEADS.NUM_CLASSES"]
        self.predictor = Conv(width, classes, (1, 1))

    def forward(self, x: Tensor, bitmaps: list[Tensor]) -> Tensor:
        for conv in self.convs:
            x = conv(x)
        x = self.predictor(F.relu(self.deconv(x)))
        with no_grad():
            for each in bitmaps:
                in_fp32 = empty(each.shape)
                del in_fp32
        rows = empty((x.shape[0],), int64)
        chosen = F.index(x, rows, rows)
        return F.mse_loss(chosen, empty(chosen.shape))


class KeypointHead(Module):
    """``KRCNNConvDeconvUpsampleHead``: of each region a map for each point, four times as large."""

    def __init__(self, s: Settings, channels: int) -> None:
        widths = [channels, *s["MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS"]]
        self.convs = [ConvNorm(one, two, 3, relus=True) for one, two in pairwise(widths)]
        self.score_lowres = ConvTranspose(widths[-1], s["MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS"], (4, 4), 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x)
        x = self.score_lowres(x)
        x = F.interpolate(x, *(2 * side for side in x.shape[2:]))
        count, points, height, width = x.shape
        rows = empty((count * points,), int64)
        chosen = F.index(F.view(x, count * points, height * width), rows)
        return F.cross_entropy(chosen, rows, reduction="sum")


class RegionHeads(Module):
    """``StandardROIHeads``, ``CascadeROIHeads``; ``Res5ROIHeads`` where the last stage of the ResNet is a head."""

    def __init__(self, s: Settings, channels: dict[str, int]) -> None:
        self.names = known("MODEL.ROI_HEADS.IN_FEATURES", s["MODEL.ROI_HEADS.IN_FEATURES"], channels)
        width = channels[self.names[0]]
        self.regions = s["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"]
        self.positive = int(self.regions * s["MODEL.ROI_HEADS.POSITIVE_FRACTION"])
        self.box_size = s["MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"]
        self.mask_size = s["MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION"]
        self.point_size = s["MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION"]
        agnostic = s["MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG"]
        self.res5: Sequential | None = None
        self.box_heads: list[BoxHead] = []
        if s["MODEL.ROI_HEADS.NAME"] == "Res5ROIHeads":
            self.res5 = stage(s, 5, width, 2, s["MODEL.RESNETS.NORM"])
            width = s["MODEL.RESNETS.RES2_OUT_CHANNELS"] << 3
            self.predictors = [Predictor(s, width, agnostic)]
        else:
            stages = CASCADE_STAGES if s["MODEL.ROI_HEADS.NAME"] == "CascadeROIHeads" else 1
            self.box_heads = [BoxHead(s, width) for _ in range(stages)]
            self.predictors = [Predictor(s, head.outputs, agnostic) for head in self.box_heads]
        self.mask_head = MaskHead(s, width) if s["MODEL.MASK_ON"] else None
        self.keypoint_head = KeypointHead(s, width) if s["MODEL.KEYPOINT_ON"] else None

    def forward(self, maps: Maps, boxes: int, proposals: int, bitmaps: list[Tensor]) -> list[Tensor]:
        levels = [maps[name] for name in self.names]
        images = levels[0].shape[0]
        with no_grad():
            matched(boxes, proposals + boxes)
            # each region has all that is known of its object, and those of an object once more
            sampled = [empty((self.regions, *each.shape[1:]), bool_) for each in bitmaps]
        count, positive = images * self.regions, images * self.positive
        if self.res5 is not None:
            x = self.res5(pooled(levels, count, self.box_size))
            losses: list[Tensor] = self.predictors[0](F.mean(x, (2, 3)), positive)
            if self.mask_head is not None:
                of_objects = self.of_objects(sampled)
                del sampled
                chosen = F.index(x, empty((positive,), int64))
                del x
                losses.append(self.mask_head(chosen, of_objects))
            return losses
        losses = []
        for head, predictor in zip(self.box_heads, self.predictors):
            losses += predictor(head(pooled(levels, count, self.box_size)), positive)
        if self.mask_head is not None:
            of_objects = self.of_objects(sampled)
            losses.append(self.mask_head(pooled(levels, positive, self.mask_size), of_objects))
            del of_objects
        if self.keypoint_head is not None:
            losses.append(self.keypoint_head(pooled(levels, positive, self.point_size)))
        return losses

    def of_objects(self, bitmaps: list[Tensor]) -> list[Tensor]:
        with no_grad():
            return [empty((self.positive, *each.shape[1:]), bool_) for each in bitmaps]


class Twice(Module):
    """A map twice as large."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, *(2 * side for side in x.shape[2:]))


class SemanticHead(Module):
    """``SemSegFPNHead``: all maps brought to one size, summed, and a class for each pixel of the image."""

    def __init__(self, s: Settings, channels: dict[str, int], strides: dict[str, int]) -> None:
        self.names = known("MODEL.SEM_SEG_HEAD.IN_FEATURES", s["MODEL.SEM_SEG_HEAD.IN_FEATURES"], channels)
        self.stride = s["MODEL.SEM_SEG_HEAD.COMMON_STRIDE"]
        width, kind = s["MODEL.SEM_SEG_HEAD.CONVS_DIM"], s["MODEL.SEM_SEG_HEAD.NORM"]
        self.heads = []
        for name in self.names:
            steps = int(log2(strides[name] / self.stride))
            inputs = [channels[name], *[width] * (max(1, steps) - 1)]
            layers = [(ConvNorm(one, width, 3, kind=kind, relus=True), Twice()) for one in inputs]
            self.heads.append(Sequential(*(part for pair in layers for part in pair[: 2 if steps else 1])))
        self.predictor = Conv(width, s["MODEL.SEM_SEG_HEAD.NUM_CLASSES"], (1, 1))

    def forward(self, maps: Maps) -> Tensor:
        total: Tensor | None = None
        for name, head in zip(self.names, self.heads):
            x = head(maps[name])
            total = x if total is None else total + x
        del x
        scores = self.predictor(total)
        wide = F.interpolate(scores, *(self.stride * side for side in scores.shape[2:]))
        return F.cross_entropy(wide, empty((wide.shape[0], *wide.shape[2:]), int64))


# ---------------------------------------------------------------------------------------------------------- detectors


class RetinaHead(Module):
    """``RetinaNetHead`` and the losses of ``RetinaNet``: a score for each anchor and class."""

    def __init__(self, s: Settings, channels: dict[str, int]) -> None:
        self.names = known("MODEL.RETINANET.IN_FEATURES", s["MODEL.RETINANET.IN_FEATURES"], channels)
        self.classes, each = s["MODEL.RETINANET.NUM_CLASSES"], anchors_each(s)
        width, kind = channels[self.names[0]], s["MODEL.RETINANET.NORM"]
        many = range(s["MODEL.RETINANET.NUM_CONVS"])
        self.cls_subnet = [ConvNorm(width, width, 3, kind=kind, relus=True, bias=True) for _ in many]
        self.bbox_subnet = [ConvNorm(width, width, 3, kind=kind, relus=True, bias=True) for _ in many]
        self.cls_score = Conv(width, each * self.classes, (3, 3), 1, 1)
        self.bbox_pred = Conv(width, each * 4, (3, 3), 1, 1)

    def forward(self, maps: Maps, boxes: int) -> list[Tensor]:
        scores, places = [], []
        for name in self.names:
            one = other = maps[name]
            for conv in self.cls_subnet:
                one = conv(one)
            scores.append(self.cls_score(one))
            for conv in self.bbox_subnet:
                other = conv(other)
            places.append(self.bbox_pred(other))
        del one, other
        scores = [by_anchor(x, self.classes) for x in scores]
        places = [by_anchor(x, 4) for x in places]
        images, count = scores[0].shape[0], sum(x.shape[1] for x in scores)
        anchors = empty((count, 4))
        with no_grad():
            labels, wanted = labelled(images, count, boxes)
        rows = empty((images * count,), int64)
        chosen = F.index(F.cat(scores, 1), rows, rows)
        numbered = empty((images * count, self.classes + 1), int64)  # one_hot
        target = empty(chosen.shape)
        loss = focal_loss(chosen, target)
        del numbered, labels
        losses = [loss, distances(places, images, wanted, count // POSITIVE_SHARE)]
        del anchors, rows
        return losses


def focal_loss(x: Tensor, target: Tensor) -> Tensor:
    """fvcore 0.1.5 (``nn/focal_loss.py``: sigmoid_focal_loss), product by product."""
    p = F.sigmoid(x)
    loss = F.mse_loss(x, target, reduction="none")
    other = empty(x.shape)
    right = p * target + F.rsub(p, 1) * other
    loss = loss * F.pow(F.rsub(right, 1), 2)
    weight = empty(x.shape)
    return F.sum(loss * weight)


class Detector(Module):
    """Images as they are loaded, (3, H, W) in bytes each -> the sum of all losses."""

    def __init__(self, s: Settings, boxes: int) -> None:
        self.boxes = boxes
        self.has_bitmaps = s["MODEL.MASK_ON"] and s["INPUT.MASK_FORMAT"] == "bitmask"
        name, kind = s["MODEL.BACKBONE.NAME"], s["MODEL.META_ARCHITECTURE"]
        self.backbone = ResNet(s) if name == "build_resnet_backbone" else FPN(s, "retinanet" in name)
        channels, strides = self.backbone.channels, self.backbone.strides
        if isinstance(self.backbone, ResNet):
            channels = {name: channels[name] for name in self.backbone.wanted}
        self.sem_seg_head = SemanticHead(s, channels, strides) if kind == "PanopticFPN" else None
        self.head = RetinaHead(s, channels) if kind == "RetinaNet" else None
        self.proposal_generator = None if self.head is not None else ProposalNetwork(s, channels)
        self.roi_heads = RegionHeads(s, channels) if kind in ("GeneralizedRCNN", "PanopticFPN") else None

    def forward(self, given: list[Tensor]) -> Tensor:
        with no_grad():
            plain = [empty(x.shape) for x in given]  # normalised one by one
            images = empty((len(given), *given[0].shape))
            del plain
        bitmaps = [] if self.sem_seg_head is not None else self.bitmaps(given)
        maps = self.backbone(images)
        losses: list[Tensor] = []
        if self.sem_seg_head is not None:
            losses.append(self.sem_seg_head(maps))
            bitmaps = self.bitmaps(given)
        if self.head is not None:
            losses += self.head(maps, self.boxes)
        if self.proposal_generator is not None:
            losses += self.proposal_generator(maps, self.boxes)
            if self.roi_heads is not None:
                losses += self.roi_heads(maps, self.boxes, self.proposal_generator.left, bitmaps)
        total = losses.pop()
        while losses:
            total = total + losses.pop()
        return total

    def bitmaps(self, given: list[Tensor]) -> list[Tensor]:
        """Of each image what its objects cover, a byte for each pixel."""
        with no_grad():
            return [empty((self.boxes, *x.shape[1:]), bool_) for x in given if self.has_bitmaps]
