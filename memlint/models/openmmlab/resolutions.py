"""Backbones of several resolutions at once: HRNet and UNet (mmseg 1.2, ``models/backbones/{hrnet,unet}.py``; mmdet 3.3
has the same HRNet), and HRFPN (mmdet 3.3, ``models/necks/hrfpn.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import (
    BN,
    RELU,
    Config,
    ConvModule,
    Sequence_,
    conv,
    hold_statistics,
    norm,
    recomputed,
    resize,
    scaled,
)
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.resnet import BasicBlock, Bottleneck, Shrink, Stage

Maps = Sequence[Tensor]
BLOCKS: dict[str, type[BasicBlock] | type[Bottleneck]] = {"BASIC": BasicBlock, "BOTTLENECK": Bottleneck}


class Normed(Module):
    """A convolution and its norm; ``relu``: "in place", "fresh" or none."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, net: Any, relu: str = "") -> None:
        self.conv = conv(net.conv_cfg, inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = norm(net.norm_cfg, outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu(x, inplace=self.relu == "in place") if self.relu else x


def blocks_of(kind: str, inputs: int, planes: int, count: int, net: Any) -> Stage:
    """Blocks of one branch, of stride 1."""
    block = BLOCKS[kind]
    outputs = planes * block.expansion
    made: list[Module] = []
    for _ in range(count):
        shrunk = None if inputs == outputs else Shrink(inputs, outputs, 1, False, net.conv_cfg, net.norm_cfg)
        made.append(block(inputs, planes, 1, 1, shrunk, net))
        inputs = outputs
    return Stage(made)


class HRModule(Module):
    """Branches side by side, and each brought to the others' resolutions and summed."""

    def __init__(self, widths: Sequence[int], config: Any, every: bool, net: Any) -> None:
        kind = config["block"]
        planes = config["num_channels"]
        self.branches = [
            blocks_of(kind, width, channels, count, net)
            for width, channels, count in zip(widths, planes, config["num_blocks"])
        ]
        self.fuses = [Fuse(widths, number, net) for number in range(len(widths) if every else 1) if len(widths) > 1]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        for number, branch in enumerate(self.branches):
            maps[number] = branch(maps[number])
        if not self.fuses:
            return maps
        return [fuse(maps) for fuse in self.fuses]


class Fuse(Module):
    """All branches at the resolution of one: finer ones are strided, coarser ones resized."""

    def __init__(self, widths: Sequence[int], own: int, net: Any) -> None:
        self.own = own
        self.ways: list[Module | None] = []
        self.count = len(widths)
        for number, width in enumerate(widths):
            if number == own:
                self.ways.append(None)
            elif number > own:
                self.ways.append(Widened(Normed(width, widths[own], 1, 1, net), 2 ** (number - own)))
            else:
                steps = own - number
                ways = [
                    Normed(
                        width, widths[own] if at == steps - 1 else width, 3, 2, net, "" if at == steps - 1 else "fresh"
                    )
                    for at in range(steps)
                ]
                self.ways.append(Sequence_(*ways))

    def forward(self, maps: Maps) -> Tensor:
        total: Tensor | None = None
        for number, way in enumerate(self.ways):
            if way is None:
                total = F.add(maps[number], 0.0) if total is None else F.add_(total, maps[number])
            elif number > self.own:
                assert total is not None
                total = total + resize(way(maps[number]), maps[self.own].shape[2:])
            else:
                one = way(maps[number])
                total = F.add(one, 0.0) if total is None else F.add_(total, one)
                del one
        assert total is not None
        return F.relu(total)


class Widened(Module):
    def __init__(self, layer: Module, factor: int) -> None:
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.layer(x), self.factor)


@register()
class HRNet(Module):
    """(N, 3, H, W) -> four maps, from a quarter of the size down."""

    groups, style = 1, "pytorch"

    def __init__(
        self,
        extra: Any,
        in_channels: int = 3,
        conv_cfg: Config = None,
        norm_cfg: Config = BN,
        norm_eval: bool = False,
        with_cp: bool = False,
        frozen_stages: int = -1,
        zero_init_residual: bool = False,
        multiscale_output: bool = True,
        place: str = "model.backbone",
    ) -> None:
        if frozen_stages >= 0:
            raise UnknownModel(f"{place}.frozen_stages of an HRNet is not known")
        net = SimpleNamespace(
            conv_cfg=conv_cfg,
            norm_cfg=norm_cfg,
            with_cp=with_cp,
            style="pytorch",
            groups=1,
            dcn=None,
            width_of=lambda x: x,
        )
        self.stem = Sequence_(Normed(in_channels, 64, 3, 2, net, "in place"), Normed(64, 64, 3, 2, net, "in place"))
        first = extra["stage1"]
        width = first["num_channels"][0]
        self.layer1 = blocks_of(first["block"], 64, width, first["num_blocks"][0], net)
        widths = [width * BLOCKS[first["block"]].expansion]
        self.transitions: list[Transition] = []
        self.stages: list[HRStage] = []
        for number in (2, 3, 4):
            config = extra[f"stage{number}"]
            wanted = [channels * BLOCKS[config["block"]].expansion for channels in config["num_channels"]]
            self.transitions.append(Transition(widths, wanted, net))
            last = not multiscale_output and number == 4
            self.stages.append(HRStage(wanted, config, last, net))
            widths = wanted
        if norm_eval:
            hold_statistics(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = [self.layer1(self.stem(x))]
        for transition, stage in zip(self.transitions, self.stages):
            maps = stage(transition(maps))
        return maps


class Transition(Module):
    """To one branch more: the last one, strided; others of another width by a convolution."""

    def __init__(self, widths: Sequence[int], wanted: Sequence[int], net: Any) -> None:
        self.ways: list[Module | None] = []
        for number, width in enumerate(wanted):
            if number < len(widths):
                same = width == widths[number]
                self.ways.append(None if same else Normed(widths[number], width, 3, 1, net, "in place"))
                continue
            steps = number + 1 - len(widths)
            ways = [
                Normed(widths[-1], width if at == steps - 1 else widths[-1], 3, 2, net, "in place")
                for at in range(steps)
            ]
            self.ways.append(Sequence_(*ways))
        self.known = len(widths)

    def children(self) -> Any:
        for number, way in enumerate(self.ways):
            if way is not None:
                yield str(number), way

    def forward(self, maps: Maps) -> list[Tensor]:
        one = self.known == 1
        return [
            (maps[0] if one else maps[number]) if way is None else way(maps[0] if one else maps[-1])
            for number, way in enumerate(self.ways)
        ]


class HRStage(Module):
    def __init__(self, widths: Sequence[int], config: Any, last: bool, net: Any) -> None:
        count = config["num_modules"]
        self.modules_ = [HRModule(widths, config, not last or at < count - 1, net) for at in range(count)]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        for module in self.modules_:
            maps = module(maps)
        return maps


@register()
class HRFPN(Module):
    """All maps at the finest resolution, then averages of what becomes of them."""

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        num_outs: int = 5,
        pooling_type: str = "AVG",
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        with_cp: bool = False,
        stride: int = 1,
    ) -> None:
        self.with_cp, self.pooling = with_cp, F.max_pool if pooling_type == "MAX" else F.avg_pool
        self.reduction_conv = ConvModule(sum(in_channels), out_channels, 1, conv_cfg=conv_cfg, act_cfg=None)
        self.fpn_convs = [
            ConvModule(out_channels, out_channels, 3, stride, 1, conv_cfg=conv_cfg, act_cfg=None)
            for _ in range(num_outs)
        ]

    def forward(self, maps: Maps) -> tuple[Tensor, ...]:
        wide = [maps[0], *(scaled(x, 2**number) for number, x in enumerate(maps[1:], start=1))]
        out = F.cat(wide, 1)
        out = recomputed(self.reduction_conv, out, self.with_cp)
        outs = [out]
        for number in range(1, len(self.fpn_convs)):
            outs.append(self.pooling(out, 2**number, 2**number))
        return tuple(recomputed(layer, x, self.with_cp) for layer, x in zip(self.fpn_convs, outs))


# --------------------------------------------------------------------------------------------------------------- UNet


class ConvBlock(Module):
    """``BasicConvBlock``"""

    def __init__(self, inputs: int, outputs: int, count: int, stride: int, dilation: int, net: UNet) -> None:
        self.with_cp = net.with_cp
        self.convs = Sequence_(
            *(
                ConvModule(
                    inputs if at == 0 else outputs,
                    outputs,
                    3,
                    stride if at == 0 else 1,
                    1 if at == 0 else dilation,
                    1 if at == 0 else dilation,
                    **net.common,
                )
                for at in range(count)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.convs, x, self.with_cp)


class UpBlock(Module):
    """The coarser map made larger, beside the finer one."""

    def __init__(self, inputs: int, skipped: int, count: int, dilation: int, larger: bool, net: UNet) -> None:
        self.larger = larger
        self.upsample = ConvModule(inputs, skipped, 1, **net.common)
        self.conv_block = ConvBlock(2 * skipped, skipped, count, 1, dilation, net)

    def forward(self, skip: Tensor, x: Tensor) -> Tensor:
        x = self.upsample(scaled(x, 2) if self.larger else x)
        return self.conv_block(F.cat([skip, x], 1))  # type: ignore[no-any-return]


@register()
class UNet(Module):
    """(N, 3, H, W) -> the decoder's maps, the coarsest first."""

    def __init__(
        self,
        in_channels: int = 3,
        base_channels: int = 64,
        num_stages: int = 5,
        strides: Sequence[int] = (1, 1, 1, 1, 1),
        enc_num_convs: Sequence[int] = (2, 2, 2, 2, 2),
        dec_num_convs: Sequence[int] = (2, 2, 2, 2),
        downsamples: Sequence[bool] = (True, True, True, True),
        enc_dilations: Sequence[int] = (1, 1, 1, 1, 1),
        dec_dilations: Sequence[int] = (1, 1, 1, 1),
        with_cp: bool = False,
        conv_cfg: Config = None,
        norm_cfg: Config = BN,
        act_cfg: Config = RELU,
        upsample_cfg: Config = None,
        norm_eval: bool = False,
        dcn: Any = None,
        plugins: Any = None,
        place: str = "model.backbone",
    ) -> None:
        if (upsample_cfg or {"type": "InterpConv"}) != {"type": "InterpConv"}:
            raise UnknownModel(f"{place}.upsample_cfg makes maps larger in a way that memlint does not know")
        self.with_cp = with_cp
        self.common: dict[str, Any] = {"conv_cfg": conv_cfg, "norm_cfg": norm_cfg, "act_cfg": act_cfg}
        self.pools: list[bool] = []
        self.encoder, self.decoder = [], []
        inputs = in_channels
        for stage in range(num_stages):
            width = base_channels * 2**stage
            self.pools.append(stage > 0 and strides[stage] == 1 and bool(downsamples[stage - 1]))
            if stage:
                larger = strides[stage] != 1 or bool(downsamples[stage - 1])
                count, dilation = dec_num_convs[stage - 1], dec_dilations[stage - 1]
                self.decoder.append(UpBlock(width, width // 2, count, dilation, larger, self))
            self.encoder.append(
                ConvBlock(inputs, width, enc_num_convs[stage], strides[stage], enc_dilations[stage], self)
            )
            inputs = width
        if norm_eval:
            hold_statistics(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        skips = []
        for pools, block in zip(self.pools, self.encoder):
            x = block(F.max_pool(x, 2, 2) if pools else x)
            skips.append(x)
        outs = [x]
        for number in reversed(range(len(self.decoder))):
            x = self.decoder[number](skips[number], x)
            outs.append(x)
        return outs
