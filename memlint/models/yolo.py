"""Ultralytics' YOLO nets by their names: YOLOv8 and YOLO11 of the package ultralytics, and the repository yolov5's,
which detect, segment or classify. Layers, losses and the loop around them.

How many objects an image has is the data's. ``boxes``: of the fullest image, to whose number those of a batch are
filled up; ``objects``: of an image on average.

Source: ultralytics 8.4.190, and 8.3.100 where releases differ (``nn/modules``, ``nn/tasks.py``, ``utils/loss.py``,
``utils/tal.py``, ``engine``); yolov5 5081342 (``models``, ``utils/loss.py``, ``utils/segment``, ``train.py``,
``val.py``).
Shapes: B images, A anchors (a place of any of three maps), N boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.architectures.yolo import CLASSIFY, OBJECTS, SCALES, SEGMENT, Scale
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta import optim
from memlint.meta.amp import autocast, to, upper
from memlint.meta.autograd import no_grad, tracked
from memlint.meta.autograd import record as differentiable
from memlint.meta.nn import BatchNorm, Conv, ConvTranspose, Linear, Module, Sequential, parameter
from memlint.meta.ops.formats import channels_last
from memlint.meta.tensor import DTYPES, DType, Tensor, bool_, empty, float16, float32, int8, int64, state, uint8
from memlint.models.cards import without_tf32
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

LIBRARY = True
STRIDES = (8, 16, 32)
BINS = 16  # of the distribution that says how far a side of a box is (reg_max)
MASKS = 32  # prototypes, of which a mask is a weighted sum
CLASSIFIER_WIDTH = 1280
KEPT = 10  # anchors that a box is given at the most (tal_topk)
ANCHORS = 3  # of a place, in yolov5
# How many anchors have the same object is the data's as well: here most of the ten that it may be given, as small ones
# have fewer places within them; in yolov5 four of nine anchors, which are no more than four times as large or small, in
# three cells each (utils/loss.py: build_targets).
ANCHORS_OF_AN_OBJECT, ANCHORS_OF_AN_OBJECT_V5 = 7, 12


# YOLOv8's classifiers are as wide at their ends as their factors make them (cfg/models/v8/yolov8-cls.yaml).
WIDE_CLASSIFIER = 1024


class Habits(NamedTuple):
    """What differs with the release.

    by_coordinate  whether an anchor lies in a box is asked for one side after the other
    lists          candidates are a list of pairs, and marks are bytes
    """

    by_coordinate: bool = True
    lists: bool = True


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "yolo"``. Facts: those of ``schemas/ultralytics.schema.json``, and yolov5's."""
    state.softmax_keeps_input = spec.does("torch.softmax_keeps_its_input")
    state.transforms_tiles = without_tf32(spec)
    net, letter = spec[HYPER + "net"], spec[HYPER + "scale"]
    task: str = spec[HYPER + "task"]
    size = spec["image_size"]
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    batch: int = spec["micro_batch_size"]
    own = net != "v5"
    habits = Habits(
        spec.does("ultralytics.looks_at_each_side") if own else True,
        spec.does("ultralytics.lists_candidates") if own else True,
    )
    model = Net(net, SCALES[net][letter], task, spec[HYPER + "classes"], letter)
    for number in spec.get(HYPER + "frozen_layers") or ():
        if number < len(model.layers):
            model.layers[number].freeze()
    if own and spec.does("ultralytics.keeps_channels_last"):
        for tensor in model.tensors():
            channels_last(tensor)
    data = Data(spec.get(HYPER + "boxes", 1), spec.get(HYPER + "objects", 1), spec[HYPER + "classes"])

    def losses(found: Any, data: Data) -> Tensor:
        if task == CLASSIFY:
            return of_classes(found)
        return of_points(found, data, habits) if own else of_anchors(found, data)

    compute = spec.get("compute_dtype", "float32")

    def images(count: int = batch, kind: DType = float32) -> Tensor:
        if task == CLASSIFY:
            return to(empty((count, 3, height, width)), kind)
        loaded = empty((count, 3, height, width), uint8)
        made = to(loaded, kind)
        del loaded
        return F.div(made, 255)

    def loss(x: Tensor) -> Tensor:
        return losses(model(x), data)

    def evaluate() -> Any:
        """Between two epochs: twice as many images, none of them a mosaic, by weights in 16 bits where autocast trains
        in them, and the loss of them as well."""
        model.eval()
        with autocast(None):
            found = model(images(2 * batch, float16 if compute != "float32" else float32))
            answers = answered(found)
            losses(found, data._replace(objects=min(data.objects, OBJECTS)))
        return found, answers

    name: str = spec["optimizer"]
    optim.known(name)  # MuSGD's is a library's own
    return System(
        model=model,
        batch=images,
        loss=loss,
        optimizer=name,
        optimizer_options=_options(spec, name, own),
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if compute != "float32" else None,
        ema=[model] if spec.get("ema", True) else [],
        evaluate=evaluate,
        keeps_gradients=spec.does("torch.keeps_gradients_as_zeros"),
        uses=frozenset({"matmul", "convolution"}),
    )


def _options(spec: TrainingSpec, name: str, own: bool) -> dict[str, Any]:
    if name in ("adam", "adamw"):
        fused = own and spec.does("ultralytics.fuses_adam")
        return {"implementation": "fused" if fused else "foreach"}
    if name == "sgd":
        return {"implementation": "foreach", "momentum": True, "weight_decay": True}
    return {}


# --------------------------------------------------------------------------------------------------------------- layers


class ConvNorm(Module):
    """A convolution without bias, a batch norm, and SiLU in place."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activates: bool = True
    ) -> None:
        padding = 2 if kernel == 6 else kernel // 2
        self.conv = Conv(inputs, outputs, (kernel, kernel), stride, padding, False, groups)
        self.bn = BatchNorm(outputs)
        self.activates = activates

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        return F.silu(x, inplace=True) if self.activates else x


class Bottleneck(Module):
    """Two convolutions, and what came beside them where ``adds``."""

    def __init__(self, inputs: int, outputs: int, adds: bool, kernel: int = 3, share: float = 1.0) -> None:
        width = int(outputs * share)
        self.cv1 = ConvNorm(inputs, width, kernel)
        self.cv2 = ConvNorm(width, outputs, 3)
        self.adds = adds and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.cv2(self.cv1(x)) if self.adds else self.cv2(self.cv1(x))
        return out


class C3(Module):
    """Half of the channels through bottlenecks, the other half past them."""

    def __init__(self, inputs: int, outputs: int, repeats: int, adds: bool = True, kernel: int = 1) -> None:
        width = outputs // 2
        self.cv1, self.cv2 = ConvNorm(inputs, width), ConvNorm(inputs, width)
        self.cv3 = ConvNorm(2 * width, outputs)
        self.m = Sequential(*(Bottleneck(width, width, adds, kernel) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cv3(F.cat((self.m(self.cv1(x)), self.cv2(x)), 1))
        return out


class C2f(Module):
    """Each block works on what the one before it made, and all of their results are taken together. ``block``: makes
    one for a number of channels."""

    def __init__(
        self, inputs: int, outputs: int, repeats: int, block: Callable[[int], Module], share: float = 0.5
    ) -> None:
        width = int(outputs * share)
        self.cv1 = ConvNorm(inputs, 2 * width)
        self.cv2 = ConvNorm((2 + repeats) * width, outputs)
        self.m = [block(width) for _ in range(repeats)]

    def forward(self, x: Tensor) -> Tensor:
        found = list(F.chunk(self.cv1(x), 2, 1))
        for block in self.m:
            found.append(block(found[-1]))
        out: Tensor = self.cv2(F.cat(found, 1))
        return out


class SPPF(Module):
    """Three poolings, one after the other, beside what they are of."""

    def __init__(self, channels: int, activates: bool) -> None:
        self.cv1 = ConvNorm(channels, channels // 2, activates=activates)
        self.cv2 = ConvNorm(channels // 2 * 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.cv1(x)]
        for _ in range(3):
            found.append(F.max_pool(found[-1], 5, 1, 2))
        out: Tensor = self.cv2(F.cat(found, 1))
        return out


class Attention(Module):
    """Attention of all places of a map to each other, and a convolution for where they are."""

    def __init__(self, channels: int) -> None:
        self.heads = max(channels // 64, 1)
        self.value = channels // self.heads
        self.key = self.value // 2
        self.qkv = ConvNorm(channels, channels + 2 * self.key * self.heads, activates=False)
        self.proj = ConvNorm(channels, channels, activates=False)
        self.pe = ConvNorm(channels, channels, 3, groups=channels, activates=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        rows = F.view(self.qkv(x), shape[0], self.heads, 2 * self.key + self.value, shape[2] * shape[3])
        q, k, v = F.split(rows, (self.key, self.key, self.value), 2)
        del rows
        attention = F.softmax(F.matmul(F.transpose(q * 1.0, -2, -1), k), -1)
        seen = F.view(F.matmul(v, F.transpose(attention, -2, -1)), *shape)
        x = seen + self.pe(F.reshape(v, *shape))
        del seen
        out: Tensor = self.proj(x)
        return out


class AttentionBlock(Module):
    """``PSABlock``."""

    def __init__(self, channels: int) -> None:
        self.attn = Attention(channels)
        self.ffn = Sequential(ConvNorm(channels, 2 * channels), ConvNorm(2 * channels, channels, activates=False))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        out: Tensor = x + self.ffn(x)
        return out


class C2PSA(Module):
    """Half of the channels through attention."""

    def __init__(self, channels: int, repeats: int) -> None:
        self.half = channels // 2
        self.cv1, self.cv2 = ConvNorm(channels, 2 * self.half), ConvNorm(2 * self.half, channels)
        self.m = Sequential(*(AttentionBlock(self.half) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        past, through = F.split(self.cv1(x), (self.half, self.half), 1)
        through = self.m(through)
        out: Tensor = self.cv2(F.cat((past, through), 1))
        return out


class Twice(Module):
    """A map twice as large."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, *(2 * side for side in x.shape[2:]))


class Together(Module):
    """Maps as one."""

    def forward(self, *maps: Tensor) -> Tensor:
        return F.cat(maps, 1)


# ----------------------------------------------------------------------------------------------------------------- nets


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


class Net(Module):
    """A backbone of four stages, a neck that goes up and down again, and a head over three maps; or the backbone and a
    classifier. Layers are counted as the library counts them, which is how keys name those that are frozen."""

    def __init__(self, net: str, scale: Scale, task: str, classes: int, letter: str) -> None:
        if task == CLASSIFY and net == "v8":
            scale = scale._replace(most=WIDE_CLASSIFIER)
        self.blocks = Blocks(net, scale, letter)
        self.layers: list[Module] = []
        self.sources: list[tuple[int, ...]] = []
        self.widths: list[int] = []
        self._backbone(net, task)
        if task == CLASSIFY:
            self._classifier(net, classes)
        else:
            levels = self._neck(net)
            widths = [self.widths[at] for at in levels]
            head = AnchorHead(widths, classes, self._masks(task)) if net == "v5" else None
            self._add(head or PointHead(widths, classes, net == "v8", self._masks(task)), 0, *levels)
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

    def _backbone(self, net: str, task: str) -> None:
        self._conv(64, 6 if net == "v5" else 3)
        self.stages = {}
        for level in range(2, 6):
            self._conv(64 << (level - 1))
            self.stages[level] = self._block(level)
        width = self.widths[-1]
        if task != CLASSIFY or net == "v5":
            self.stages[5] = self._add(SPPF(width, net == "v5"), width)
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

    def forward(self, x: Tensor) -> Any:
        kept: dict[int, Tensor] = {}
        for at, (layer, sources) in enumerate(zip(self.layers, self.sources)):
            x = layer(*(x if source < 0 else kept[source] for source in sources)) if sources else layer(x)
            if at in self.kept:
                kept[at] = x
        return x


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
    if isinstance(found, Points):
        images, _, anchors = found.sides.shape
        bins = F.transpose(F.view(found.sides, images, 4, BINS, anchors), 1, 2)
        means = empty((images, 4, anchors), F.softmax(bins, 1).dtype)
        return F.cat((means, F.sigmoid(found.scores)), 1)
    if isinstance(found, tuple):
        rows = [F.reshape(F.sigmoid(x), x.shape[0], -1, x.shape[4]) for x in found[0]]
        return F.cat(rows, 1)
    return None


# --------------------------------------------------------------------------------------------------------------- losses


class Data(NamedTuple):
    """What is known of images: boxes of the fullest, objects of one on average, classes."""

    boxes: int
    objects: int
    classes: int


def of_classes(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, empty((logits.shape[0],), int64))


def bce_with_logits(x: Tensor, target: Tensor) -> Tensor:
    """A loss for each number, in fp32 under autocast: of a logarithm and what remains of one (native/Loss.cpp). Keeps
    both; backward works in a sigmoid's place."""
    x, target = upper(x), upper(target)
    logarithm = empty(x.shape, x.dtype)
    out = empty(x.shape, x.dtype)
    del logarithm
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        differentiable(out, (x,), (x, target), lambda g: (Tensor(shape, dtype),))
    return out


def of_points(points: Points, data: Data, habits: Habits) -> Tensor:
    """``v8DetectionLoss``, and ``v8SegmentationLoss`` where there are masks."""
    weights = None if points.weights is None else F.contiguous(F.permute(points.weights, 0, 2, 1))
    losses, positive = _of_boxes(points, data, habits)
    if weights is not None and points.prototypes is not None:
        losses.append(_of_masks(points.prototypes, weights, positive, habits))
    return _sum(losses)


def _sum(losses: list[Tensor]) -> Tensor:
    total = losses.pop()
    while losses:
        total = total + losses.pop()
    return total


def _of_boxes(points: Points, data: Data, habits: Habits) -> tuple[list[Tensor], int]:
    """Losses, and how many anchors of an image have an object."""
    sides = F.contiguous(F.permute(points.sides, 0, 2, 1))
    scores = F.contiguous(F.permute(points.scores, 0, 2, 1))
    images, anchors, classes = scores.shape
    places, steps = empty((anchors, 2), scores.dtype), empty((anchors, 1), scores.dtype)
    positive = min(data.objects * ANCHORS_OF_AN_OBJECT, anchors)
    boxes = _decoded(sides, places)
    with no_grad():
        target_boxes, target_scores, marks = assigned(images, anchors, data.boxes, classes, scores.dtype, habits)
    wanted = to(target_scores, scores.dtype)
    losses = [F.sum(bce_with_logits(scores, wanted))]
    del wanted
    with no_grad():
        nearer = empty(target_boxes.shape)
        rows = empty((images * positive,), int64), empty((images * positive,), int64)
    share = empty((images * positive, 1))
    found = F.index(boxes, *rows)
    losses.append(F.sum(F.mul(F.rsub(of_overlap(found, empty((images * positive, 4))), 1), share)))
    with no_grad():
        corners = empty((images, anchors, 2)), empty((images, anchors, 2))
        distances = empty((images, anchors, 4))
        del corners
        far = empty((images * positive, 4))
    chances = F.log_softmax(F.view(F.index(sides, *rows), images * positive * 4, BINS), -1)
    place = empty((images * positive * 4, 1), int64)
    both = F.gather(chances, 1, place) + F.gather(chances, 1, place)
    losses.append(F.sum(F.mul(both, empty((images * positive * 4, 1)))))
    del distances, nearer, far, marks, steps
    return losses, positive


def _decoded(sides: Tensor, places: Tensor) -> Tensor:
    """Corners of boxes (B, A, 4): the mean of each side's distribution, from where the anchor is."""
    images, anchors, _ = sides.shape
    chances = F.softmax(F.view(sides, images, anchors, 4, BINS), 3)
    distance = F.view(F.matmul(chances, empty((BINS, 1), sides.dtype)), images, anchors, 4)
    del chances
    before, behind = F.chunk(distance, 2, -1)
    return F.cat((F.sub(places, before), F.add(places, behind)), -1)


def of_overlap(one: Tensor, other: Tensor) -> Tensor:
    """``bbox_iou`` with what is complete of it, in as many kernels of a number for each pair as it has."""
    sides = F.chunk(one, 4, -1)
    wanted = F.chunk(other, 4, -1)
    width, height = sides[2] - sides[0], sides[3] - sides[1]
    common = F.minimum(sides[2], wanted[2]) * F.minimum(sides[3], wanted[3])
    union = F.sub(width * height, common)
    overlap = F.div(common, union)
    around = F.pow(F.minimum(sides[2], wanted[2]), 2) + F.pow(F.minimum(sides[3], wanted[3]), 2)
    apart = F.pow(sides[0] + sides[2], 2) + F.pow(sides[1] + sides[3], 2)
    form = F.pow(F.div(width, height), 2)
    return F.sub(overlap, F.div(apart, around) + form)


# Numbers that are there for each pair at the end of ``bbox_iou``: both boxes, their sides, and what is made of them.
PAIR_NUMBERS = 24


def assigned(
    images: int, anchors: int, boxes: int, classes: int, dtype: DType, habits: Habits
) -> tuple[Tensor, Tensor, Tensor]:
    """``TaskAlignedAssigner``: which anchors are of which object, by matrices of all boxes and all anchors. Returns the
    boxes, scores and marks of all anchors. Pairs of a box and an anchor within it: as many as there are anchors, as if
    each lay in one box."""
    given = empty((images, anchors, classes), dtype), empty((images, anchors, 4))
    pairs = images * anchors

    def matrix(kind: DType = float32) -> Tensor:
        return empty((images, boxes, anchors), kind)

    inside = _inside(images, anchors, boxes, habits.by_coordinate)
    masked = matrix()
    chosen = matrix(bool_)
    del masked
    if habits.lists:
        listed = [empty((pairs,), int64) for _ in range(3)]
        worked = empty((pairs, PAIR_NUMBERS))
        overlaps, metric = matrix(), matrix()
        del listed, worked
    else:
        overlaps, metric = _dense(matrix, pairs, dtype)
    del chosen
    best = empty((images, boxes, KEPT)), empty((images, boxes, KEPT), int64)
    counts = matrix(int8)
    twice = matrix(bool_)
    del best, twice
    if habits.lists:
        position = counts
    else:
        top = matrix()
        del counts
        within = matrix()
        position = matrix()
        del top, within
    del inside
    kind = int8 if habits.lists else float32
    number = empty((images, anchors), int64)
    highest = matrix(kind)
    kept = matrix(kind)
    del highest
    position = kept
    del kept
    label, target_boxes = empty((images, anchors), int64), empty((images, anchors, 4))
    if habits.by_coordinate:
        marks = empty((images, anchors, classes), int8)
        named = empty((images, anchors, classes), int8)
        del marks
    else:
        every = empty((images, anchors, classes), int64)
        repeated = empty((images, anchors, classes))
        where = empty((images, anchors, classes), bool_)
        named = empty((images, anchors, classes), int64)
        del every, repeated, where
    if not habits.lists:
        scaled = matrix()
        del scaled
        scaled = matrix()
        normed = matrix()
        del scaled, normed
    target_scores = empty((images, anchors, classes))
    del named, overlaps, metric, position, label, number, given
    return target_boxes, target_scores, empty((images, anchors), bool_)


def _inside(images: int, anchors: int, boxes: int, by_coordinate: bool) -> Tensor:
    """``select_candidates_in_gts``: which anchors lie within which box."""
    shape = (images, boxes, anchors)
    if by_coordinate:
        distance = empty(shape)
        inside = empty(shape, bool_)
        del distance
        for _ in range(3):
            distance = empty(shape)
            further = empty(shape, bool_)
            del distance, further
        return inside
    corners = empty((images * boxes, anchors, 2)), empty((images * boxes, anchors, 2))
    distances = empty((images * boxes, anchors, 4))
    del corners
    inside = empty(shape)
    del distances
    return inside


def _dense(matrix: Callable[..., Tensor], pairs: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """``get_box_metrics`` before 8.4.134: scores and overlaps of all pairs, and powers of them, which autocast has in
    fp32."""
    overlaps, found = matrix(), matrix(dtype)
    every = matrix(dtype)
    listed = empty((pairs, 3), int64)
    del every, listed
    worked = empty((pairs, PAIR_NUMBERS))
    del worked
    wide = matrix() if dtype is not float32 else None
    power = matrix()
    del wide
    other = matrix()
    metric = matrix()
    del power, other, found
    return overlaps, metric


def _of_masks(prototypes: Tensor, weights: Tensor, positive: int, habits: Habits) -> Tensor:
    """``calculate_segmentation_loss``, image by image: of each anchor that has an object a mask, a loss for each of its
    pixels, and what lies outside of the box set to zero."""
    images, _, height, width = prototypes.shape
    whole = empty((images, height, width))
    losses = []
    for one, own in zip(F.unbind(prototypes), F.unbind(weights)):
        losses.append(_of_an_image(one, own, positive, habits.lists))
    del one, own
    del whole
    return _sum(losses)


def _of_an_image(prototypes: Tensor, weights: Tensor, positive: int, in_place: bool) -> Tensor:
    _, height, width = prototypes.shape
    marks = empty((positive, height, width), bool_)
    target = to(marks, float32)
    del marks
    chosen = F.index(weights, empty((positive,), int64))
    mask = F.view(F.matmul(chosen, F.reshape(prototypes, MASKS, height * width)), positive, height, width)
    loss = bce_with_logits(mask, target)
    if in_place:
        loss = F.div_(loss, 1.0)  # two products with rows and columns, in place
    else:
        grid = empty((positive, height, width), bool_)
        cropped = loss * grid
        del grid
        return F.sum(F.mean(cropped, (1, 2)))
    return F.sum(F.mean(loss, (1, 2)))


def of_anchors(found: tuple[list[Tensor], Tensor | None], data: Data) -> Tensor:
    """yolov5's ``ComputeLoss``: three layers of maps, each with what is matched with it."""
    maps, prototypes = found
    losses: list[Tensor] = []
    images = maps[0].shape[0]
    positive = max(images * data.objects * ANCHORS_OF_AN_OBJECT_V5 // len(maps), 1)
    for x in maps:
        objects = empty(x.shape[:4], x.dtype)
        rows = [empty((positive,), int64) for _ in range(4)]
        own = F.index(x, *rows)
        sizes = (2, 2, 1, data.classes) + ((MASKS,) if prototypes is not None else ())
        middle, side, _, classes, *weights = F.split(own, sizes, 1)
        corners = F.cat((F.sigmoid(middle) * 2, F.pow(F.sigmoid(side) * 2, 2)), 1)
        losses.append(F.mean(F.rsub(of_overlap(corners, empty((positive, 4))), 1)))
        if data.classes > 1:
            losses.append(F.mean(bce_with_logits(classes, empty(classes.shape, classes.dtype))))
        if prototypes is not None:
            losses += _of_layer(prototypes, weights[0], positive // images)
        losses.append(F.mean(bce_with_logits(F.select(x, 4), objects)))
    return _sum(losses)


def _of_layer(prototypes: Tensor, weights: Tensor, positive: int) -> list[Tensor]:
    """yolov5's masks: image by image, as many as have an object in this layer."""
    return [_of_an_image(F.select(prototypes, 0), weights, max(positive, 1), False) for _ in range(prototypes.shape[0])]
