"""Backbones, necks and heads of YOLO nets: from images (B, 3, H, W) to what is said of A anchors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.architectures.yolo import CLASSIFY, SEGMENT, Scale
from memlint.meta import functional as F
from memlint.meta.nn import Conv, ConvTranspose, Linear, Module, Sequential, parameter
from memlint.meta.tensor import Tensor, empty
from memlint.models.yolo.layers import C2PSA, C3, SPPF, Bottleneck, C2f, ConvNorm, Together, Twice
from memlint.named_tuple import NamedTuple

STRIDES = (8, 16, 32)
BINS = 16  # of the distribution that says how far a side of a box is (reg_max)
MASKS = 32  # prototypes, of which a mask is a weighted sum
CLASSIFIER_WIDTH = 1280
ANCHORS = 3  # of a place, in yolov5

# YOLOv8's classifiers are as wide at their ends as their factors make them (cfg/models/v8/yolov8-cls.yaml).
WIDE_CLASSIFIER = 1024


class Blocks:
    """What a net of a series is made of: ``block(inputs, width, repeats, level, neck)``; levels are powers of two of
    the stride, so 2 for the first and 5 for the last."""

    def __init__(self, net: str, scale: Scale, letter: str) -> None:
        self.net, self.scale = net, scale
        self.large = letter in "mlx"  # YOLO11's have bottlenecks within bottlenecks everywhere

    def channels(self, width: int) -> int:
        return -(-int(min(width, self.scale.most) * self.scale.width) // 8) * 8

    def repeats(self, number: int) -> int:
        return max(round(number * self.scale.depth), 1)

    def block(self, inputs: int, level: int, neck: bool) -> tuple[Module, int]:
        """The block of a level and how many channels it gives."""
        width = 64 << (level - 1)
        if self.net == "11":
            early = not neck and level < 4
            outputs = self.channels(2 * width if early else width)
            nested = self.large or level == 5 or (level == 4 and not neck)

            def made(channels: int) -> Module:
                return C3(channels, channels, 2, True, 3) if nested else Bottleneck(channels, channels, True, 3, 0.5)

            return C2f(inputs, outputs, self.repeats(2), made, 0.25 if early else 0.5), outputs
        outputs = self.channels(width)
        if self.net == "v8":
            repeats = self.repeats(3 if neck or level in (2, 5) else 6)
            return C2f(inputs, outputs, repeats, lambda channels: Bottleneck(channels, channels, not neck)), outputs
        repeats = self.repeats(3 if neck else {2: 3, 3: 6, 4: 9, 5: 3}[level])
        return C3(inputs, outputs, repeats, not neck), outputs


class Chain(Module):
    """Layers, each of which reads what the one before it makes, or what those make that it names: that is kept."""

    layers: list[Module]
    sources: list[tuple[int, ...]]
    kept: frozenset[int]

    def forward(self, x: Tensor) -> Any:
        kept: dict[int, Tensor] = {}
        for at, (layer, sources) in enumerate(zip(self.layers, self.sources)):
            x = layer(*(x if source < 0 else kept[source] for source in sources)) if sources else layer(x)
            if at in self.kept:
                kept[at] = x
        return x


class Net(Chain):
    """A backbone of four stages, a neck that goes up and down again, and a head over three maps; or the backbone and a
    classifier. Layers are counted as the library counts them, which is how keys name those that are frozen."""

    def __init__(self, net: str, scale: Scale, task: str, classes: int, letter: str) -> None:
        anchors = net == "v5"
        net = net.removesuffix("u")  # yolov5's backbone and neck under YOLOv8's head
        if task == CLASSIFY and net == "v8":
            scale = scale._replace(most=WIDE_CLASSIFIER)
        self.blocks = Blocks(net, scale, letter)
        self.layers: list[Module] = []
        self.sources: list[tuple[int, ...]] = []
        self.widths: list[int] = []
        self._backbone(net, task, anchors)
        if task == CLASSIFY:
            self._classifier(net, classes)
        else:
            levels = self._neck(net)
            widths = [self.widths[at] for at in levels]
            head = AnchorHead(widths, classes, self._masks(task)) if anchors else None
            self._add(head or PointHead(widths, classes, net != "11", self._masks(task)), 0, *levels)
        self.kept = frozenset(at for sources in self.sources for at in sources if at >= 0)

    def _add(self, layer: Module, width: int, *sources: int) -> int:
        """``sources``: the layers that it reads; none for the one before it."""
        self.layers.append(layer)
        self.widths.append(width)
        self.sources.append(sources)
        return len(self.layers) - 1

    def _conv(self, width: int, kernel: int = 3, stride: int = 2) -> int:
        outputs = self.blocks.channels(width)
        inputs = self.widths[-1] if self.widths else 3
        return self._add(ConvNorm(inputs, outputs, kernel, stride), outputs)

    def _block(self, level: int, neck: bool = False) -> int:
        return self._add(*self.blocks.block(self.widths[-1], level, neck))

    def _backbone(self, net: str, task: str, anchors: bool) -> None:
        self._conv(64, 6 if net == "v5" else 3)
        self.stages = {}
        for level in range(2, 6):
            self._conv(64 << (level - 1))
            self.stages[level] = self._block(level)
        width = self.widths[-1]
        if task != CLASSIFY or net == "v5":
            self.stages[5] = self._add(SPPF(width, anchors), width)
        if net == "11":
            self.stages[5] = self._add(C2PSA(width, self.blocks.repeats(2)), width)

    def _neck(self, net: str) -> list[int]:
        below = {5: self.stages[5]}
        for level in (4, 3):
            if net == "v5":
                below[level + 1] = self._conv(64 << (level - 1), 1, 1)
            self._add(Twice(), self.widths[-1])
            self._add(Together(), self.widths[-1] + self.widths[self.stages[level]], -1, self.stages[level])
            below[level] = self._block(level, True)
        found = [below[3]]
        for level in (4, 5):
            self._conv(64 << (level - 2))
            self._add(Together(), self.widths[-1] + self.widths[below[level]], -1, below[level])
            found.append(self._block(level, True))
        return found

    def _classifier(self, net: str, classes: int) -> None:
        if net == "v5":  # the classifier takes the place of what comes behind the last stage (models/yolo.py, cutoff)
            for found in (self.layers, self.sources, self.widths):
                del found[-1]
        self._add(Classifier(self.widths[-1], classes), 0)

    def _masks(self, task: str) -> int:
        return self.blocks.channels(256) if task == SEGMENT else 0


class Classifier(Module):
    """A convolution, the mean of each map, and a product. Images (B, C, H, W) -> logits (B, K)."""

    def __init__(self, channels: int, classes: int) -> None:
        self.conv = ConvNorm(channels, CLASSIFIER_WIDTH)
        self.linear = Linear(CLASSIFIER_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(F.flatten(F.adaptive_avg_pool(self.conv(x), 1), 1))
        return out


class Prototypes(Module):
    """Maps of four pixels' stride, of which masks are sums. ``Proto``; yolov5 repeats where ultralytics learns."""

    def __init__(self, channels: int, width: int, learns: bool) -> None:
        self.cv1 = ConvNorm(channels, width, 3)
        self.upsample = ConvTranspose(width, width, (2, 2), 2) if learns else Twice()
        self.cv2, self.cv3 = ConvNorm(width, width, 3), ConvNorm(width, MASKS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cv3(self.cv2(self.upsample(self.cv1(x))))
        return out


class Points(NamedTuple):
    """What a head says of all anchors: sides (B, 64, A), scores (B, K, A), weights of masks (B, 32, A), prototypes."""

    sides: Tensor
    scores: Tensor
    weights: Tensor | None
    prototypes: Tensor | None
    maps: Sequence[Tensor]


class Both(NamedTuple):
    """What YOLOv10's two heads say: one with several anchors for each object, and one with a single one."""

    many: Points
    one: Points


class PointHead(Module):
    """``Detect`` and ``Segment``: for each place of three maps a distribution for each side of a box, and scores.
    ``plain``: scores by full convolutions, as YOLOv8's; YOLO11's are depthwise. ``masks``: width of the prototypes."""

    def __init__(self, widths: Sequence[int], classes: int, plain: bool, masks: int) -> None:
        sides, scores = max(16, widths[0] // 4, 4 * BINS), max(widths[0], min(classes, 100))
        self.cv2 = [_branch(width, sides, 4 * BINS) for width in widths]
        if plain:
            self.cv3 = [_branch(width, scores, classes) for width in widths]
        else:
            self.cv3 = [
                Sequential(
                    *(ConvNorm(width, width, 3, groups=width), ConvNorm(width, scores)),
                    *(ConvNorm(scores, scores, 3, groups=scores), ConvNorm(scores, scores)),
                    Conv(scores, classes, (1, 1)),
                )
                for width in widths
            ]
        self.dfl = parameter(1, BINS, 1, 1)
        self.dfl.requires_grad = False
        self.proto = Prototypes(widths[0], masks, True) if masks else None
        weights = max(widths[0] // 4, MASKS)
        self.cv4 = [_branch(width, weights, MASKS) for width in widths] if masks else []

    def forward(self, *maps: Tensor) -> Points:
        sides, scores = _rows(self.cv2, maps), _rows(self.cv3, maps)
        weights = _rows(self.cv4, maps) if self.cv4 else None
        return Points(sides, scores, weights, None if self.proto is None else self.proto(maps[0]), maps)


def _branch(channels: int, width: int, outputs: int) -> Sequential:
    return Sequential(ConvNorm(channels, width, 3), ConvNorm(width, width, 3), Conv(width, outputs, (1, 1)))


def _rows(branches: Sequence[Module], maps: Sequence[Tensor]) -> Tensor:
    """Each map through its branch, their places in one row."""
    found = [branch(x) for branch, x in zip(branches, maps)]
    rows = [F.reshape(x, x.shape[0], x.shape[1], x.shape[2] * x.shape[3]) for x in found]
    del found
    return F.cat(rows, 2)


class AnchorHead(Module):
    """yolov5's ``Detect`` and ``Segment``: for each of three anchors of a place a box, whether it is one, and scores.
    Maps -> (B, 3, H, W, numbers) each, and prototypes."""

    def __init__(self, widths: Sequence[int], classes: int, masks: int) -> None:
        self.numbers = classes + 5 + (MASKS if masks else 0)
        self.m = [Conv(width, ANCHORS * self.numbers, (1, 1)) for width in widths]
        self.proto = Prototypes(widths[0], masks, False) if masks else None

    def forward(self, *maps: Tensor) -> tuple[list[Tensor], Tensor | None]:
        proto = None if self.proto is None else self.proto(maps[0])
        found = []
        for layer, x in zip(self.m, maps):
            x = layer(x)
            split = F.view(x, x.shape[0], ANCHORS, self.numbers, *x.shape[2:])
            del x
            found.append(F.contiguous(F.permute(split, 0, 1, 3, 4, 2)))
            del split
        return found, proto


def answered(found: Any) -> Tensor | None:
    """What is made of a net's numbers beside a loss: corners, and scores as chances."""
    if isinstance(found, Both):
        return answered(found.one)
    if isinstance(found, Points):
        images, _, anchors = found.sides.shape
        bins = F.transpose(F.view(found.sides, images, 4, BINS, anchors), 1, 2)
        means = empty((images, 4, anchors), F.softmax(bins, 1).dtype)
        return F.cat((means, F.sigmoid(found.scores)), 1)
    if isinstance(found, tuple):
        rows = [F.reshape(F.sigmoid(x), x.shape[0], -1, x.shape[4]) for x in found[0]]
        return F.cat(rows, 1)
    return None
