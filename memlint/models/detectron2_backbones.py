"""ResNets of detectron2 and the pyramids over them: what maps an image becomes before a detector looks at them.

Source: detectron2 0.6 (``layers/batch_norm.py``; ``modeling/backbone/resnet.py``, ``fpn.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from memlint.meta import functional as F
from memlint.meta.autograd import tracked
from memlint.meta.nn import BatchNorm, Conv, GroupNorm, Module, Sequential, buffer
from memlint.meta.tensor import Tensor, empty
from memlint.models import UnknownModel

Settings = dict[str, Any]
Maps = dict[str, Tensor]

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BASIC_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class FrozenBatchNorm(Module):
    """Numbers that never change: where a gradient passes, a product and a sum that keep nothing of the map."""

    def __init__(self, channels: int) -> None:
        for name in ("weight", "bias", "running_mean", "running_var"):
            setattr(self, name, buffer(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not tracked(x):
            return empty(x.shape, x.dtype)
        per_channel = (1, x.shape[1], 1, 1)
        scale, bias = empty(per_channel, x.dtype), empty(per_channel, x.dtype)
        return x * scale + bias


def norm(kind: str, channels: int) -> Module | None:
    """``get_norm``."""
    if not kind:
        return None
    if kind == "GN":
        if channels % 32:
            raise UnknownModel(f"NORM GN has 32 groups, which do not divide {channels} channels")
        return GroupNorm(32, channels)
    if kind in ("BN", "SyncBN", "nnSyncBN", "naiveSyncBN"):
        return BatchNorm(channels)
    if kind == "FrozenBN":
        return FrozenBatchNorm(channels)
    raise UnknownModel(f"NORM {kind} is a norm that memlint does not know")


class ConvNorm(Module):
    """A convolution, the norm behind it, and a ReLU that is not in place."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        kind: str = "",
        dilation: int = 1,
        groups: int = 1,
        relus: bool = False,
        bias: bool | None = None,
    ) -> None:
        padding = dilation * (kernel // 2)
        has_bias = not kind if bias is None else bias
        self.conv = Conv(inputs, outputs, (kernel, kernel), stride, padding, has_bias, groups, dilation)
        self.norm = norm(kind, outputs)
        self.relus = relus

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return F.relu(x) if self.relus else x


class Block(Module):
    """``BottleneckBlock``, or ``BasicBlock`` where there are two layers."""

    def __init__(self, layers: Sequence[ConvNorm], shortcut: ConvNorm | None) -> None:
        self.layers = list(layers)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers[:-1]:
            out = F.relu(layer(out), inplace=True)
        out = self.layers[-1](out)
        out = F.add_(out, x if self.shortcut is None else self.shortcut(x))
        return F.relu(out, inplace=True)


def stage(s: Settings, number: int, inputs: int, stride: int, kind: str, dilation: int = 1) -> Sequential:
    """``res2`` to ``res5``. ``kind``: of the norms."""
    depth = s["MODEL.RESNETS.DEPTH"]
    outputs = s["MODEL.RESNETS.RES2_OUT_CHANNELS"] << (number - 2)
    groups = s["MODEL.RESNETS.NUM_GROUPS"]
    width = groups * s["MODEL.RESNETS.WIDTH_PER_GROUP"] << (number - 2)
    made = []
    for _ in range((BASIC_BLOCKS.get(depth) or BLOCKS[depth])[number - 2]):
        shortcut = None if inputs == outputs else ConvNorm(inputs, outputs, 1, stride, kind, bias=False)
        if depth in BASIC_BLOCKS:
            layers = [
                ConvNorm(inputs, outputs, 3, stride, kind, bias=False),
                ConvNorm(outputs, outputs, 3, 1, kind, bias=False),
            ]
        else:
            first, second = (stride, 1) if s["MODEL.RESNETS.STRIDE_IN_1X1"] else (1, stride)
            layers = [
                ConvNorm(inputs, width, 1, first, kind, bias=False),
                ConvNorm(width, width, 3, second, kind, dilation, groups, bias=False),
                ConvNorm(width, outputs, 1, 1, kind, bias=False),
            ]
        made.append(Block(layers, shortcut))
        inputs, stride = outputs, 1
    return Sequential(*made)


def known(key: str, names: Sequence[str], maps: dict[str, int]) -> list[str]:
    """The names of maps that a key states. Raises UnknownModel for one that there is not."""
    missing = [name for name in names if name not in maps]
    if missing or not names:
        raise UnknownModel(f"{key} names {', '.join(map(str, missing)) or 'no map'}: there are {', '.join(maps)}")
    return list(names)


class ResNet(Module):
    """Images (N, 3, H, W) -> the maps of ``OUT_FEATURES``. Layers up to ``FREEZE_AT`` do not train."""

    def __init__(self, s: Settings) -> None:
        stages = {"stem": 1, **{f"res{number}": number for number in range(2, 6)}}
        self.wanted = known("MODEL.RESNETS.OUT_FEATURES", s["MODEL.RESNETS.OUT_FEATURES"], stages)
        frozen, kind = s["MODEL.BACKBONE.FREEZE_AT"], s["MODEL.RESNETS.NORM"]
        inputs = s["MODEL.RESNETS.STEM_OUT_CHANNELS"]
        own = [_frozen(kind) if number <= frozen else kind for number in range(1, 6)]
        self.stem = ConvNorm(3, inputs, 7, 2, own[0], bias=False)
        last = max(stages[name] for name in self.wanted)
        self.stages: list[Sequential] = []
        self.channels: dict[str, int] = {"stem": inputs}
        self.strides: dict[str, int] = {"stem": 4}
        stride = 4
        for number in range(2, last + 1):
            dilation = s["MODEL.RESNETS.RES5_DILATION"] if number == 5 else 1
            step = 1 if number == 2 or dilation == 2 else 2
            self.stages.append(stage(s, number, inputs, step, own[number - 1], dilation))
            inputs, stride = s["MODEL.RESNETS.RES2_OUT_CHANNELS"] << (number - 2), stride * step
            self.channels[f"res{number}"], self.strides[f"res{number}"] = inputs, stride
        parts: list[Module] = [self.stem, *self.stages]
        for part in parts[: max(frozen, 0)]:
            part.freeze()

    def forward(self, x: Tensor) -> Maps:
        maps = {}
        x = F.max_pool(F.relu(self.stem(x), inplace=True), 3, 2, 1)
        for number, blocks in enumerate(self.stages, 2):
            x = blocks(x)
            if f"res{number}" in self.wanted:
                maps[f"res{number}"] = x
        return maps


def _frozen(kind: str) -> str:
    """``FrozenBatchNorm2d.convert_frozen_batchnorm``."""
    return "FrozenBN" if "BN" in kind else kind


class FPN(Module):
    """The maps of a ResNet -> p2 to p6 (a pooled one on top), or p3 to p7 (two convolutions of ``res5``)."""

    def __init__(self, s: Settings, convolves: bool) -> None:
        self.bottom_up = ResNet(s)
        below = self.bottom_up
        given = {name: below.channels[name] for name in below.wanted}
        self.names = known("MODEL.FPN.IN_FEATURES", s["MODEL.FPN.IN_FEATURES"], given)
        width, kind = s["MODEL.FPN.OUT_CHANNELS"], s["MODEL.FPN.NORM"]
        self.lateral = [ConvNorm(below.channels[name], width, 1, kind=kind) for name in self.names]
        self.output = [ConvNorm(width, width, 3, kind=kind) for _ in self.names]
        levels = [int(log2(below.strides[name])) for name in self.names]
        self.outs = [f"p{level}" for level in levels]
        self.averages = s["MODEL.FPN.FUSE_TYPE"] == "avg"
        top = levels[-1]
        self.p6 = self.p7 = None
        if convolves:
            known("MODEL.RESNETS.OUT_FEATURES", ["res5"], given)
            self.p6 = Conv(below.channels["res5"], width, (3, 3), 2, 1)
            self.p7 = Conv(width, width, (3, 3), 2, 1)
        self.top = [f"p{top + 1}", f"p{top + 2}"] if convolves else [f"p{top + 1}"]
        self.channels: dict[str, int] = {name: width for name in (*self.outs, *self.top)}  # noqa: C420
        self.strides: dict[str, int] = {name: 1 << int(name[1:]) for name in self.channels}

    def forward(self, x: Tensor) -> Maps:
        maps = self.bottom_up(x)
        above: Tensor | None = None
        found = {}
        for name, out, lateral, output in reversed(list(zip(self.names, self.outs, self.lateral, self.output))):
            if above is None:
                above = lateral(maps[name])
            else:
                wide = F.interpolate(above, *(2 * side for side in above.shape[2:]))
                above = lateral(maps[name]) + wide
                del wide
                if self.averages:
                    above = F.div_(above, 2)
            found[out] = output(above)
        if self.p6 is not None and self.p7 is not None:
            found[self.top[0]] = self.p6(maps["res5"])
            found[self.top[1]] = self.p7(F.relu(found[self.top[0]]))
        else:
            found[self.top[0]] = F.max_pool(found[self.outs[-1]], 1, 2)
        return found
