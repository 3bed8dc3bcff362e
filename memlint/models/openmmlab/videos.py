"""ResNets over frames of videos (mmaction2 1.2, ``models/backbones``: ``resnet.py``, ``resnet_tsm.py``, ``tanet.py``;
``models/common/tam.py``). They share names with mmdet's and compute otherwise: a block's sum is a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import BatchNorm, Conv, Linear, Module
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import BN, IN_PLACE, Config, ConvModule, activation, hold_statistics, recomputed
from memlint.models.openmmlab.registry import register

CONV3D: dict[str, Any] = {"type": "Conv3d"}
BN3D: dict[str, Any] = {"type": "BN3d"}
COUNTS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
NO_STAGE = (0, 0, 0, 0)


def bottleneck(depth: int) -> bool:
    """Whether a net of this depth is of bottlenecks, which widen by four."""
    return depth >= 50


class Block(Module):
    """Convolutions, the sum with what came in, an activation. ``between`` is applied behind the first convolution,
    ``before`` in front of it, ``after`` to the result."""

    def __init__(self, convs: Sequence[Module], downsample: Module | None, act_cfg: Config, with_cp: bool) -> None:
        self.convs = list(convs)
        self.downsample = downsample
        self.relu = activation(act_cfg)
        self.with_cp = with_cp
        self.before: Callable[[Tensor], Tensor] | None = None
        self.between: Module | None = None
        self.after: Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(recomputed(self._sum, x, self.with_cp))
        return out if self.after is None else self.after(out)  # type: ignore[no-any-return]

    def _sum(self, x: Tensor) -> Tensor:
        out = self.layers(x)
        identity = x if self.downsample is None else self.downsample(x)
        return F.add(out, identity)

    def layers(self, x: Tensor) -> Tensor:
        first, *others = self.convs
        out = first(x if self.before is None else self.before(x))
        if self.between is not None:
            out = self.between(out)
        for layer in others:
            out = layer(out)
        return out  # type: ignore[no-any-return]


@register("mmaction.ResNet")
class ResNet(Module):
    """(N * segments, C, H, W) -> the map of each of ``out_indices``, alone where it is one."""

    def __init__(
        self,
        depth: int,
        torchvision_pretrain: bool = True,
        in_channels: int = 3,
        num_stages: int = 4,
        out_indices: Sequence[int] = (3,),
        strides: Sequence[int] = (1, 2, 2, 2),
        dilations: Sequence[int] = (1, 1, 1, 1),
        style: str = "pytorch",
        frozen_stages: int = -1,
        conv_cfg: Config = None,
        norm_cfg: Config = BN,
        act_cfg: Config = IN_PLACE,
        norm_eval: bool = False,
        partial_bn: bool = False,
        with_cp: bool = False,
        place: str = "model.backbone",
    ) -> None:
        if depth not in COUNTS:
            raise UnknownModel(f"{place}.depth {depth} is none that {type(self).__name__} has")
        self.out_indices = tuple(out_indices)
        self.common: dict[str, Any] = {"bias": False, "conv_cfg": conv_cfg, "norm_cfg": norm_cfg}
        self.act_cfg, self.style, self.with_cp = act_cfg, style, with_cp
        self.conv1 = ConvModule(in_channels, 64, 7, 2, 3, act_cfg=act_cfg, **self.common)
        self.layers: list[Blocks] = []
        inputs, grows = 64, 4 if bottleneck(depth) else 1
        for stage, count in enumerate(COUNTS[depth][:num_stages]):
            planes = 64 * 2**stage
            blocks: list[Block] = []
            for number in range(count):
                stride = strides[stage] if number == 0 else 1
                blocks.append(self._block(inputs, planes, grows, stride, dilations[stage]))
                inputs = planes * grows
            self.layers.append(Blocks(blocks))
        freeze([self.conv1, *self.layers], frozen_stages)
        if norm_eval:
            hold_statistics(self)
        if partial_bn:
            for one in [one for one in self.modules() if isinstance(one, BatchNorm)][1:]:
                one.training = False
                one.freeze()

    def _block(self, inputs: int, planes: int, grows: int, stride: int, dilation: int) -> Block:
        acts = {"act_cfg": self.act_cfg, **self.common}
        shrunk = None
        if stride != 1 or inputs != planes * grows:
            shrunk = ConvModule(inputs, planes * grows, 1, stride, act_cfg=None, **self.common)
        if grows == 1:
            first = ConvModule(inputs, planes, 3, stride, dilation, dilation, **acts)
            second = ConvModule(planes, planes, 3, 1, 1, act_cfg=None, **self.common)
            return Block([first, second], shrunk, IN_PLACE, False)
        steps = (stride, 1) if self.style == "caffe" else (1, stride)
        convs = [
            ConvModule(inputs, planes, 1, steps[0], **acts),
            ConvModule(planes, planes, 3, steps[1], dilation, dilation, **acts),
            ConvModule(planes, planes * grows, 1, act_cfg=None, **self.common),
        ]
        return Block(convs, shrunk, IN_PLACE, self.with_cp)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = F.max_pool(self.conv1(x), 3, 2, 1)
        outs = []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number in self.out_indices:
                outs.append(x)
        return outs[0] if len(outs) == 1 else tuple(outs)


class Blocks(Module):
    """Blocks of one resolution, and what may stand before them."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = list(blocks)
        self.first: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.first is not None:
            x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def freeze(parts: Sequence[Module], stages: int) -> None:
    """``frozen_stages``: the stem, and so many stages behind it."""
    for part in parts[: stages + 1]:
        part.freeze()
        part.eval()


# ---------------------------------------------------------------------------------------------------- shifts in time


def shifted(x: Tensor, segments: int, divisor: int) -> Tensor:
    """``TemporalShift.shift``: a part of the channels one frame on, as much one frame back, put together anew."""
    rows, channels, height, width = x.shape
    x = F.view(x, rows // segments, segments, channels, height * width)
    fold = channels // divisor
    left, middle = F.narrow(x, 2, fold), F.narrow(x, 2, fold)
    right = F.narrow(x, 2, channels - 2 * fold)
    zeros = F.sub(left, left)
    left = F.cat([F.narrow(left, 1, segments - 1), F.narrow(zeros, 1, 1)], 1)
    zeros = F.sub(middle, middle)
    middle = F.cat([F.narrow(zeros, 1, 1), F.narrow(middle, 1, segments - 1)], 1)
    return F.view(F.cat([left, middle, right], 2), rows, channels, height, width)


def over_time(x: Tensor, segments: int) -> Tensor:
    """(N * T, C, H, W) -> (N, C, T, H, W), a view."""
    return F.transpose(F.view(x, x.shape[0] // segments, segments, *x.shape[1:]), 1, 2)


class NonLocalFrames(Module):
    """``NL3DWrapper``: each place of each frame beside all others."""

    def __init__(self, channels: int, segments: int, options: dict[str, Any]) -> None:
        self.segments = segments
        self.block = NonLocal3d(channels, **options)

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(F.contiguous(over_time(x, self.segments)))
        return F.view(F.contiguous(F.transpose(out, 1, 2)), *x.shape)


class NonLocal3d(Module):
    """mmcv 2.1, ``cnn/bricks/non_local.py``."""

    def __init__(
        self,
        in_channels: int,
        sub_sample: bool = False,
        conv_cfg: Config = CONV3D,
        reduction: int = 2,
        use_scale: bool = True,
        norm_cfg: Config = None,
        mode: str = "embedded_gaussian",
        zeros_init: bool = True,
    ) -> None:
        if mode not in ("gaussian", "embedded_gaussian", "dot_product"):
            raise UnknownModel(f"non_local_cfg.mode {mode} is one that memlint does not know")
        inner = max(in_channels // reduction, 1)
        self.inner, self.mode, self.sub_sample, self.use_scale = inner, mode, sub_sample, use_scale
        plain: dict[str, Any] = {"conv_cfg": conv_cfg, "act_cfg": None}
        self.g = ConvModule(in_channels, inner, 1, **plain)
        self.conv_out = ConvModule(inner, in_channels, 1, norm_cfg=norm_cfg, **plain)
        if mode != "gaussian":
            self.theta = ConvModule(in_channels, inner, 1, **plain)
            self.phi = ConvModule(in_channels, inner, 1, **plain)

    def _sampled(self, x: Tensor) -> Tensor:
        return F.max_pool(x, (1, 2, 2), (1, 2, 2)) if self.sub_sample else x

    def forward(self, x: Tensor) -> Tensor:
        values = F.permute(F.flatten(self._sampled(self.g(x)), 2), 0, 2, 1)
        if self.mode == "gaussian":
            theta, phi = F.permute(F.flatten(x, 2), 0, 2, 1), F.flatten(self._sampled(x), 2)
        else:
            theta = F.permute(F.flatten(self.theta(x), 2), 0, 2, 1)
            phi = F.flatten(self._sampled(self.phi(x)), 2)
        pairs = F.matmul(theta, phi)
        if self.mode == "dot_product" or (self.mode == "embedded_gaussian" and self.use_scale):
            pairs = F.div_(pairs, 2.0)
        if self.mode != "dot_product":
            pairs = F.softmax(pairs)
        y = F.contiguous(F.permute(F.matmul(pairs, values), 0, 2, 1))
        return F.add(x, self.conv_out(F.reshape(y, x.shape[0], self.inner, *x.shape[2:])))


class TemporalPool(Module):
    """``make_temporal_pool``: half as many frames from the second stage on."""

    def __init__(self, segments: int) -> None:
        self.segments = segments

    def forward(self, x: Tensor) -> Tensor:
        half = F.max_pool(over_time(x, self.segments), (3, 1, 1), (2, 1, 1), (1, 0, 0))
        return F.view(F.contiguous(F.transpose(half, 1, 2)), x.shape[0] // 2, *x.shape[1:])


@register()
class ResNetTSM(ResNet):
    def __init__(
        self,
        depth: int,
        num_segments: int = 8,
        is_shift: bool = True,
        non_local: Any = NO_STAGE,
        non_local_cfg: Any = None,
        shift_div: int = 8,
        shift_place: str = "blockres",
        temporal_pool: bool = False,
        pretrained2d: bool = True,
        place: str = "model.backbone",
        **options: Any,
    ) -> None:
        super().__init__(depth, place=place, **options)
        if is_shift:
            if "blockres" not in shift_place:
                raise UnknownModel(f"{place}.shift_place {shift_place} is one that memlint does not know")
            halved = [num_segments, *(num_segments // (2 if temporal_pool else 1) for _ in self.layers[1:])]
            every = 2 if len(self.layers) > 2 and len(self.layers[2].blocks) >= 23 else 1
            for layer, segments in zip(self.layers, halved):
                for block in layer.blocks[::every]:
                    block.before = lambda x, segments=segments: shifted(x, segments, shift_div)
        if non_local_cfg:
            for layer, wanted in zip(self.layers, stages(non_local, len(self.layers))):
                for block, one in zip(layer.blocks, each(wanted, len(layer.blocks))):
                    if one:
                        block.after = NonLocalFrames(channels_of(block.convs[-1]), num_segments, non_local_cfg)
        if temporal_pool:
            self.layers[1].first = TemporalPool(num_segments)


def channels_of(layer: Any) -> int:
    """Of what a convolution with its norm gives."""
    return int(layer.conv.weight.shape[0])


def stages(value: Any, count: int) -> Sequence[Any]:
    """``_ntuple``: one for each stage, or for each stage its own."""
    return value if isinstance(value, (list, tuple)) else (value,) * count


def each(value: Any, count: int) -> Sequence[int]:
    """Of a stage's blocks: one for all, or for each its own."""
    return value if isinstance(value, (list, tuple)) else (value,) * count


# -------------------------------------------------------------------------------------------------- adaptive in time


class TAM(Module):
    """A kernel over time, and how much each frame counts, both of what the frames show."""

    def __init__(
        self,
        in_channels: int,
        num_segments: int,
        alpha: int = 2,
        adaptive_kernel_size: int = 3,
        beta: int = 4,
        conv1d_kernel_size: int = 3,
        adaptive_convolution_stride: int = 1,
        adaptive_convolution_padding: int = 1,
        init_std: float = 0.001,
    ) -> None:
        self.segments = num_segments
        self.stride, self.padding = adaptive_convolution_stride, adaptive_convolution_padding
        self.g1 = Linear(num_segments, num_segments * alpha, bias=False)
        self.g2 = BatchNorm(num_segments * alpha)
        self.g3 = Linear(num_segments * alpha, adaptive_kernel_size, bias=False)
        narrow = in_channels // beta
        self.l1 = Conv(in_channels, narrow, (conv1d_kernel_size,), 1, conv1d_kernel_size // 2, bias=False)
        self.l2 = BatchNorm(narrow)
        self.l3 = Conv(narrow, in_channels, (1,), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        batch, segments = rows // self.segments, self.segments
        x = F.contiguous(over_time(x, segments))
        theta = F.adaptive_avg_pool(F.view(x, batch * channels, segments, height, width), 1)
        kernel = F.relu(self.g2(self.g1(F.view(theta, batch * channels, segments))), inplace=True)
        kernel = F.softmax(self.g3(kernel))
        kernel = F.view(kernel, batch * channels, 1, kernel.shape[1], 1)
        local = F.relu(self.l2(self.l1(F.view(theta, batch, channels, segments))), inplace=True)
        local = F.view(F.sigmoid(self.l3(local)), batch, channels, segments, 1, 1)
        scaled = F.view(F.mul(x, local), 1, batch * channels, segments, height * width)
        y = F.conv(scaled, kernel, None, (self.stride, 1), (self.padding, 0), batch * channels)
        y = F.view(y, batch, channels, segments, height, width)
        return F.view(F.contiguous(F.transpose(y, 1, 2)), rows, channels, height, width)


@register()
class TANet(ResNet):
    def __init__(
        self, depth: int, num_segments: int, tam_cfg: Any = None, place: str = "model.backbone", **options: Any
    ) -> None:
        super().__init__(depth, place=place, **options)
        if not bottleneck(depth):
            raise UnknownModel(f"{place}.depth {depth}: TANet is of bottlenecks alone")
        for layer in self.layers:
            for block in layer.blocks:
                block.between = TAM(channels_of(block.convs[0]), num_segments, **(tam_cfg or {}))
