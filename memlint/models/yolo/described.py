"""Nets that a YAML of Ultralytics' form describes: layers, what each reads, and the modules of the library by name.

Source: ultralytics 8.3.100 and 8.1.34 of YOLOv10's authors (``nn/tasks.py``: parse_model; ``nn/modules``: block.py,
conv.py, head.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, TypeVar

from memlint.architectures.yolo import MOST_LAYERS, Described, Layer, Scale
from memlint.meta import functional as F
from memlint.meta.nn import Module, Sequential
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.yolo.layers import C2PSA, C3, Bottleneck, C2f, ConvNorm, Together, Twice
from memlint.models.yolo.nets import MASKS, Both, Chain, Classifier, PointHead
from memlint.named_tuple import NamedTuple

MOST_CHANNELS = 1 << 16
Made = TypeVar("Made")
# What comes of a description whose numbers do not fit together.
WRONG = (
    *(TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError, AssertionError),
    *(OverflowError, RuntimeError),
)
LARGE = "mlx"  # letters whose C3k2 have bottlenecks within bottlenecks everywhere (parse_model)


class Asked(NamedTuple):
    """What a module is made of: channels that come and go, repeats, and its other arguments."""

    inputs: int
    outputs: int
    repeats: int
    arguments: tuple[Any, ...]
    letter: str

    def argument(self, at: int, default: Any) -> Any:
        return self.arguments[at] if at < len(self.arguments) else default


class Elan(Module):
    """``SPPELAN``, and ``SPPF`` between two widths: three poolings, one after the other, beside what they are of."""

    def __init__(self, inputs: int, outputs: int, width: int, activates: bool = True) -> None:
        self.cv1, self.cv5 = ConvNorm(inputs, width, activates=activates), ConvNorm(4 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.cv1(x)]
        for _ in range(3):
            found.append(F.max_pool(found[-1], 5, 1, 2))
        out: Tensor = self.cv5(F.cat(found, 1))
        return out


class Ghost(Module):
    """``GhostConv``: half of the maps, and a cheap convolution of each for the other half."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, activates: bool = True) -> None:
        width = outputs // 2
        self.cv1 = ConvNorm(inputs, width, kernel, stride, activates=activates)
        self.cv2 = ConvNorm(width, width, 5, groups=width, activates=activates)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        return F.cat((x, self.cv2(x)), 1)


class GhostBottleneck(Module):
    def __init__(self, channels: int) -> None:
        self.conv = Sequential(Ghost(channels, channels // 2), Ghost(channels // 2, channels, activates=False))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x) + x
        return out


class Rep(Module):
    """``RepConv``: two convolutions of one map, which are one after training."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.conv1 = ConvNorm(inputs, outputs, 3, activates=False)
        self.conv2 = ConvNorm(inputs, outputs, activates=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv1(x) + self.conv2(x) + 0, inplace=True)


class RepBottleneck(Module):
    def __init__(self, channels: int) -> None:
        self.cv1, self.cv2 = Rep(channels, channels), ConvNorm(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.cv2(self.cv1(x))
        return out


class RepCSP(C3):
    def __init__(self, inputs: int, outputs: int, repeats: int) -> None:
        super().__init__(inputs, outputs, 0)
        self.m = Sequential(*(RepBottleneck(outputs // 2) for _ in range(repeats)))


class Gelan(Module):
    """``RepNCSPELAN4``, and ``ELAN1`` with plain convolutions in its place: each branch works on what the one before it
    made, and all are taken together."""

    def __init__(self, inputs: int, outputs: int, through: int, width: int, repeats: int) -> None:
        self.cv1 = ConvNorm(inputs, through)
        self.cv2 = self._branch(through // 2, width, repeats)
        self.cv3 = self._branch(width, width, repeats)
        self.cv4 = ConvNorm(through + 2 * width, outputs)

    def _branch(self, inputs: int, width: int, repeats: int) -> Module:
        if not repeats:
            return ConvNorm(inputs, width, 3)
        return Sequential(RepCSP(inputs, width, repeats), ConvNorm(width, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        found = list(F.chunk(self.cv1(x), 2, 1))
        for branch in (self.cv2, self.cv3):
            found.append(branch(found[-1]))
        out: Tensor = self.cv4(F.cat(found, 1))
        return out


class ADown(Module):
    """Half as large: one half of the channels by a convolution, the other by a pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.cv1 = ConvNorm(inputs // 2, outputs // 2, 3, 2)
        self.cv2 = ConvNorm(inputs // 2, outputs // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool(x, 2, 1)
        first, second = F.chunk(x, 2, 1)
        first = self.cv1(first)
        second = self.cv2(F.max_pool(second, 3, 2, 1))
        return F.cat((first, second), 1)


class AConv(Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        self.cv1 = ConvNorm(inputs, outputs, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cv1(F.avg_pool(x, 2, 1))
        return out


class TwoKernels(Module):
    """``RepVGGDW``"""

    def __init__(self, channels: int) -> None:
        self.conv = ConvNorm(channels, channels, 7, groups=channels, activates=False)
        self.conv1 = ConvNorm(channels, channels, 3, groups=channels, activates=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x) + self.conv1(x), inplace=True)


class Inverted(Module):
    """``CIB``: depthwise convolutions between pointwise ones."""

    def __init__(self, channels: int, adds: bool, large: bool) -> None:
        middle = TwoKernels(2 * channels) if large else ConvNorm(2 * channels, 2 * channels, 3, groups=2 * channels)
        self.cv1 = Sequential(
            *(ConvNorm(channels, channels, 3, groups=channels), ConvNorm(channels, 2 * channels), middle),
            *(ConvNorm(2 * channels, channels), ConvNorm(channels, channels, 3, groups=channels)),
        )
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.cv1(x) if self.adds else self.cv1(x)
        return out


class TwoHeads(Module):
    """``v10Detect``: the second head learns from maps that it does not change."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        self.many, self.one = PointHead(widths, classes, False, 0), PointHead(widths, classes, False, 0)
        self.one.dfl = self.many.dfl

    def forward(self, *maps: Tensor) -> Both:
        one = self.one(*(x.detach() for x in maps))
        return Both(self.many(*maps), one)


def _conv(asked: Asked) -> Module:
    kernel, stride = asked.argument(0, 1), asked.argument(1, 1)
    usual = 2 if kernel == 6 else kernel // 2
    if asked.argument(2, None) not in (None, usual) or any(value is not None for value in asked.arguments[3:]):
        raise UnknownModel("Conv with a padding, groups or an activation of its own")
    return ConvNorm(asked.inputs, asked.outputs, kernel, stride)


def _depthwise(asked: Asked) -> Module:
    groups = gcd(asked.inputs, asked.outputs)
    return ConvNorm(asked.inputs, asked.outputs, asked.argument(0, 1), asked.argument(1, 1), groups)


def _down(asked: Asked) -> Module:
    """``SCDown``"""
    kernel, stride, width = asked.argument(0, 1), asked.argument(1, 1), asked.outputs
    return Sequential(ConvNorm(asked.inputs, width), ConvNorm(width, width, kernel, stride, width, False))


def _c2f(asked: Asked) -> Module:
    adds = asked.argument(0, False)
    return C2f(asked.inputs, asked.outputs, asked.repeats, lambda width: Bottleneck(width, width, adds))


def _c3k2(asked: Asked) -> Module:
    nested = asked.letter in LARGE or asked.argument(0, False)

    def made(width: int) -> Module:
        return C3(width, width, 2, True, 3) if nested else Bottleneck(width, width, True, 3, 0.5)

    return C2f(asked.inputs, asked.outputs, asked.repeats, made, asked.argument(1, 0.5))


def _cib(asked: Asked) -> Module:
    adds, large = asked.argument(0, False), asked.argument(1, False)
    return C2f(asked.inputs, asked.outputs, asked.repeats, lambda width: Inverted(width, adds, large))


class C2(Module):
    """Half of the channels through bottlenecks, the other half as it is."""

    def __init__(self, inputs: int, outputs: int, repeats: int, adds: bool) -> None:
        width = outputs // 2
        self.cv1, self.cv2 = ConvNorm(inputs, 2 * width), ConvNorm(2 * width, outputs)
        self.m = Sequential(*(Bottleneck(width, width, adds) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        first, second = F.chunk(self.cv1(x), 2, 1)
        out: Tensor = self.cv2(F.cat((self.m(first), second), 1))
        return out


class GhostCSP(C3):
    """``C3Ghost``"""

    def __init__(self, inputs: int, outputs: int, repeats: int) -> None:
        super().__init__(inputs, outputs, 0)
        self.m = Sequential(*(GhostBottleneck(outputs // 2) for _ in range(repeats)))


# Modules that are made of channels that come, channels that go, scaled by the net's width, and arguments; and those of
# them that take the repeats themselves.
MODULES: dict[str, Callable[[Asked], Module]] = {
    "Conv": _conv,
    "DWConv": _depthwise,
    "GhostConv": lambda a: Ghost(a.inputs, a.outputs, a.argument(0, 1), a.argument(1, 1)),
    "SCDown": _down,
    "ADown": lambda a: ADown(a.inputs, a.outputs),
    "AConv": lambda a: AConv(a.inputs, a.outputs),
    "Bottleneck": lambda a: Bottleneck(a.inputs, a.outputs, a.argument(0, True), 3, 0.5),
    "SPPF": lambda a: Elan(a.inputs, a.outputs, a.inputs // 2, False),
    "SPPELAN": lambda a: Elan(a.inputs, a.outputs, a.argument(0, 0)),
    "RepNCSPELAN4": lambda a: Gelan(a.inputs, a.outputs, a.argument(0, 0), a.argument(1, 0), a.argument(2, 1)),
    "ELAN1": lambda a: Gelan(a.inputs, a.outputs, a.argument(0, 0), a.argument(1, 0), 0),
    "PSA": lambda a: C2PSA(a.outputs, 1),
    "C2PSA": lambda a: C2PSA(a.outputs, a.repeats),
    "C2": lambda a: C2(a.inputs, a.outputs, a.repeats, a.argument(0, True)),
    "C2f": _c2f,
    "C3": lambda a: C3(a.inputs, a.outputs, a.repeats, a.argument(0, True)),
    "C3k2": _c3k2,
    "C2fCIB": _cib,
    "C3Ghost": lambda a: GhostCSP(a.inputs, a.outputs, a.repeats),
}
REPEATED = frozenset(("C2", "C2f", "C3", "C3k2", "C2fCIB", "C3Ghost", "C2PSA"))
_OF_ONE_WIDTH = frozenset(("PSA", "C2PSA"))


def fitting(work: Callable[[], Made], path: str) -> Made:
    """Sizes and arguments of a description that do not fit together are its author's, not ours. Raises UnknownModel."""
    try:
        return work()
    except WRONG as error:
        why = f"{type(error).__name__}: {error}"
        raise UnknownModel(f"{path}: layers that do not fit together: {why:.200}") from None


class DescribedNet(Chain):
    """A net as its YAML lists it. Layers are counted as the library counts them."""

    def __init__(self, described: Described, scale: Scale, letter: str, classes: int) -> None:
        self.scale, self.letter, self.classes = scale, letter, classes
        self.legacy = not any(layer.module == "C3k2" for layer in described.layers)
        self.layers: list[Module] = []
        self.sources: list[tuple[int, ...]] = []
        widths: list[int] = []
        for at, layer in enumerate(described.layers):
            place = f"{described.path}: layer {at}"
            sources = tuple(at + one if one < -1 else one for one in layer.sources)
            if not all(-1 <= one < at for one in sources):
                raise UnknownModel(f"{place} reads a layer that comes behind it")
            inputs = [(widths[one] if widths else 3) for one in sources]
            try:
                module, width = self._made(layer, inputs)
            except UnknownModel as error:
                raise UnknownModel(f"{place}: {error}") from None
            self.layers.append(module)
            self.sources.append(sources if sources != (-1,) else ())
            widths.append(width)
        self.kept = frozenset(one for sources in self.sources for one in sources if one >= 0)

    def _channels(self, width: Any) -> int:
        if not isinstance(width, int) or isinstance(width, bool) or not 0 < width <= MOST_CHANNELS:
            raise UnknownModel(f"{width!r:.40} channels")
        return -(-int(min(width, self.scale.most) * self.scale.width) // 8) * 8

    def _made(self, layer: Layer, inputs: list[int]) -> tuple[Module, int]:
        """A layer's module, and how many channels it gives."""
        name, arguments = layer.module, layer.arguments
        if name in HEADS:
            return HEADS[name](self, inputs, arguments), 0
        if name == "Concat":
            return Together(), sum(inputs)
        if name == "nn.Upsample":
            if arguments[:2] not in ((None, 2), ("None", 2)):
                raise UnknownModel("nn.Upsample to another size than twice")
            return Twice(), inputs[0]
        if name not in MODULES:
            raise UnknownModel(f"{name} is a module that memlint does not know")
        if len(inputs) > 1:
            raise UnknownModel(f"{name} reads one layer, and not {len(inputs)}")
        outputs = self._channels(arguments[0] if arguments else None)
        repeats = max(round(layer.repeats * self.scale.depth), 1) if layer.repeats > 1 else layer.repeats
        if repeats > MOST_LAYERS:
            raise UnknownModel(f"{name} is repeated {repeats:,} times")
        asked = Asked(inputs[0], outputs, repeats, arguments[1:], self.letter)
        if name in _OF_ONE_WIDTH and inputs[0] != outputs:
            raise UnknownModel(f"{name} between two widths")
        if name in REPEATED or repeats == 1:
            return MODULES[name](asked), outputs
        return Sequential(*(MODULES[name](asked) for _ in range(repeats))), outputs


def _segment(net: DescribedNet, inputs: list[int], arguments: tuple[Any, ...]) -> Module:
    if len(arguments) < 3 or arguments[1] != MASKS:
        raise UnknownModel(f"Segment of another number of prototypes than {MASKS}")
    return PointHead(inputs, net.classes, net.legacy, net._channels(arguments[2]))


# The last layer, which says what the net does.
HEADS: dict[str, Callable[[DescribedNet, list[int], tuple[Any, ...]], Module]] = {
    "Detect": lambda net, inputs, arguments: PointHead(inputs, net.classes, net.legacy, 0),
    "Segment": _segment,
    "Classify": lambda net, inputs, arguments: Classifier(inputs[0], net.classes),
    "v10Detect": lambda net, inputs, arguments: TwoHeads(inputs, net.classes),
}
