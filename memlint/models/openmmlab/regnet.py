"""RegNet (mmdet 3.3 and 2.28, ``models/backbones/regnet.py``; mmdet3d 1.4 and 0.18, ``models/backbones/
nostem_regnet.py``): stages whose widths follow from four numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from memlint.architectures.sizes import PARTS, check
from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import BN, Config, conv, hold_statistics, norm
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.resnet import Block, Shrink

# name -> w0, wa, wm, group_w, depth, bot_mul
ARCHITECTURES: dict[str, tuple[int, float, float, int, int, float]] = {
    "regnetx_400mf": (24, 24.48, 2.54, 16, 22, 1.0),
    "regnetx_800mf": (56, 35.73, 2.28, 16, 16, 1.0),
    "regnetx_1.6gf": (80, 34.01, 2.25, 24, 18, 1.0),
    "regnetx_3.2gf": (88, 26.31, 2.25, 48, 25, 1.0),
    "regnetx_4.0gf": (96, 38.65, 2.43, 40, 23, 1.0),
    "regnetx_6.4gf": (184, 60.83, 2.07, 56, 17, 1.0),
    "regnetx_8.0gf": (80, 49.56, 2.88, 120, 23, 1.0),
    "regnetx_12gf": (168, 73.36, 2.37, 112, 19, 1.0),
}
NAMES = ("w0", "wa", "wm", "group_w", "depth", "bot_mul")
DIVISOR = 8  # of widths


def stages(w0: int, wa: float, wm: float, group_w: int, depth: int, bot_mul: float) -> list[tuple[int, int, int]]:
    """(width, width of a group, blocks) of each stage."""
    check("arch.depth", depth, PARTS)
    powers = (round(math.log((number * wa + w0) / w0) / math.log(wm)) for number in range(depth))
    widths = [round(w0 * wm**power / DIVISOR) * DIVISOR for power in powers]
    found = []
    for width, blocks in groupby(widths):
        inner = int(width * bot_mul)
        group = min(group_w, inner)
        inner = round(inner / group) * group
        found.append((int(inner / bot_mul), group, len(list(blocks))))
    return found


class RegBlock(Block):
    """``Bottleneck`` of ResNeXt whose output is as wide as its middle may be."""

    def __init__(
        self, inputs: int, planes: int, stride: int, group: int, groups: int, net: RegNet, shrunk: Shrink | None
    ) -> None:
        super().__init__(shrunk, net.with_cp)
        width = planes if groups == 1 else math.floor(planes * (group / planes)) * groups
        first = net.style == "caffe"
        self.norm1, self.norm2 = norm(net.norm_cfg, width), norm(net.norm_cfg, width)
        self.norm3 = norm(net.norm_cfg, planes)
        self.conv1 = conv(net.conv_cfg, inputs, width, 1, stride if first else 1, bias=False)
        self.conv2 = conv(net.conv_cfg, width, width, 3, 1 if first else stride, 1, 1, groups, bias=False)
        self.conv3 = conv(net.conv_cfg, width, planes, 1, bias=False)

    def layers(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        return self.norm3(self.conv3(x))  # type: ignore[no-any-return]


@register()
class RegNet(Module):
    """(N, 3, H, W) -> a map of each stage."""

    has_stem = True

    def __init__(
        self,
        arch: Any,
        in_channels: int = 3,
        stem_channels: int = 32,
        base_channels: int = 32,
        strides: Sequence[int] = (2, 2, 2, 2),
        out_indices: Sequence[int] = (0, 1, 2, 3),
        style: str = "pytorch",
        frozen_stages: int = -1,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        norm_eval: bool = True,
        with_cp: bool = False,
        zero_init_residual: bool = True,
        place: str = "model.backbone",
    ) -> None:
        numbers = self._numbers(arch, place)
        self.style, self.with_cp, self.conv_cfg, self.norm_cfg = style, with_cp, conv_cfg, norm_cfg or BN
        self.out_indices = list(out_indices)
        self.stem: list[Module] = []
        if self.has_stem:
            self.stem = [conv(conv_cfg, in_channels, stem_channels, 3, 2, 1, bias=False)]
            self.stem.append(norm(self.norm_cfg, stem_channels))
        inputs = stem_channels
        self.stages: list[list[RegBlock]] = []
        for (width, group, count), stride in zip(stages(*numbers), strides):
            groups = round(width * numbers[-1]) // group
            blocks = []
            for number in range(count):
                step = stride if number == 0 else 1
                shrunk = (
                    Shrink(inputs, width, step, False, conv_cfg, self.norm_cfg) if step > 1 or inputs != width else None
                )
                blocks.append(RegBlock(inputs, width, step, group, groups, self, shrunk))
                inputs = width
            self.stages.append(blocks)
        self.blocks = [block for stage in self.stages for block in stage]
        if frozen_stages >= 0:
            for one in (*self.stem, *(block for stage in self.stages[:frozen_stages] for block in stage)):
                one.freeze()
        if norm_eval:
            hold_statistics(self)

    @staticmethod
    def _numbers(arch: Any, place: str) -> tuple[int, float, float, int, int, float]:
        if isinstance(arch, Mapping):
            w0, wa, wm, group_w, depth, bot_mul = (arch[name] for name in NAMES)
            return w0, wa, wm, group_w, depth, bot_mul
        if arch not in ARCHITECTURES:
            raise UnknownModel(f"{place}.arch {arch} is none that RegNet has")
        return ARCHITECTURES[arch]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.stem:
            x = F.relu(self.stem[1](self.stem[0](x)), inplace=True)
        maps = []
        for number, blocks in enumerate(self.stages):
            for block in blocks:
                x = block(x)
            if number in self.out_indices:
                maps.append(x)
        return tuple(maps)


@register()
class NoStemRegNet(RegNet):
    """Of a map that is seen from above already."""

    has_stem = False
