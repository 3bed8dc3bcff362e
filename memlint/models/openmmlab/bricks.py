"""What backbones and heads are put together from (mmcv 2.1 and 1.7, ``cnn/bricks``; ``ops`` are not here).

Shapes: (N, C, H, W) for maps, (N, L, C) for rows of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import BatchNorm, Conv, Dropout, GroupNorm, LayerNorm, Linear, Module, parameter
from memlint.meta.ops.shapes import as_tuple
from memlint.meta.tensor import Tensor, empty, float32
from memlint.models import UnknownModel
from memlint.models.openmmlab import deformable

Config = Mapping[str, Any] | None
Size = Sequence[int] | int
BATCH_NORMS = ("BN", "BN1d", "BN2d", "BN3d", "SyncBN", "MMSyncBN")
SEPARATED = "Conv2plus1d"  # mmaction2's
NAIVE_NORMS = ("naiveSyncBN1d", "naiveSyncBN2d", "naiveSyncBN3d")
RELU: dict[str, Any] = {"type": "ReLU"}
IN_PLACE: dict[str, Any] = {"type": "ReLU", "inplace": True}
BN: dict[str, Any] = {"type": "BN"}
LN: dict[str, Any] = {"type": "LN"}
GELU: dict[str, Any] = {"type": "GELU"}


def pair(size: Size) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


# ---------------------------------------------------------------------------------------------- layers by their names


def conv(
    config: Config,
    inputs: int,
    outputs: int,
    kernel: Size,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    bias: bool = True,
) -> Module:
    """``build_conv_layer``: a plain convolution over one, two or three dimensions. A config that states ``bias`` goes
    before its caller."""
    stated = config or {}
    kind = stated.get("type", "Conv2d")
    if kind in deformable.KINDS:
        return deformable.DeformConv(stated, inputs, outputs, kernel, stride, padding, dilation, groups, bias)
    if kind == SEPARATED:
        return SpaceThenTime(inputs, outputs, kernel, stride, padding, bias)
    if kind not in _DIMENSIONS:
        raise UnknownModel(f"conv_cfg.type {kind} is a convolution that memlint does not know")
    window = as_tuple(kernel, _DIMENSIONS[kind])
    return Conv(inputs, outputs, window, stride, padding, bool(stated.get("bias", bias)), groups, dilation)


# name of a convolution in a config -> over how many dimensions it is
_DIMENSIONS = {"Conv1d": 1, "Conv2d": 2, "Conv": 2, "Conv3d": 3}


class SpaceThenTime(Module):
    """mmaction2 1.2, ``models/common/conv2plus1d.py``: as many numbers between the two as make the pair as large as
    one convolution over both."""

    def __init__(self, inputs: int, outputs: int, kernel: Size, stride: Size, padding: Size, bias: bool) -> None:
        deep, high, wide = as_tuple(kernel, 3)
        steps, edges = as_tuple(stride, 3), as_tuple(padding, 3)
        middle = int(3 * (inputs * outputs * high * wide) / (inputs * high * wide + 3 * outputs))
        self.conv_s = Conv(inputs, middle, (1, high, wide), (1, *steps[1:]), (0, *edges[1:]), bias)
        self.bn_s = BatchNorm(middle)
        self.conv_t = Conv(middle, outputs, (deep, 1, 1), (steps[0], 1, 1), (edges[0], 0, 0), bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_t(F.relu(self.bn_s(self.conv_s(x)), inplace=True))  # type: ignore[no-any-return]


class ChannelNorm(Module):
    """LayerNorm over the channels of a map (mmpretrain's ``LN2d``): channels go last for the moment."""

    def __init__(self, channels: int) -> None:
        self.weight = parameter(channels)
        self.bias = parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.contiguous(F.permute(self.last(F.permute(x, 0, 2, 3, 1)), 0, 3, 1, 2))

    def last(self, x: Tensor) -> Tensor:
        """Of a map whose channels are last already."""
        return F.layer_norm(x, self.weight, self.bias)


# Norms over the channels of a map, by the names that configs, or classes here, have for them.
NORMS: dict[str, type[ChannelNorm]] = {"LN2d": ChannelNorm}


def norm(config: Config, channels: int) -> Module:
    """``build_norm_layer``. SyncBN keeps what BN keeps: its input, and two numbers per channel (torch,
    ``nn/modules/_functions.py``: SyncBatchNorm)."""
    options = dict(config or BN)
    kind = options.get("type")
    made: Module
    if kind in BATCH_NORMS:
        made = BatchNorm(channels)
    elif kind in NAIVE_NORMS:
        made = NaiveSyncBatchNorm(channels)
    elif kind == "GN":
        made = GroupNorm(options["num_groups"], channels)
    elif kind == "LN":
        made = LayerNorm(channels)
    elif kind in NORMS:
        made = NORMS[str(kind)](channels)
    else:
        raise UnknownModel(f"norm_cfg.type {kind} is a norm that memlint does not know")
    if options.get("requires_grad") is False:
        made.freeze()
    return made


class NaiveSyncBatchNorm(BatchNorm):
    """mmdet3d 1.4 and 0.18, ``layers/norm.py`` (``ops/norm.py``): on several devices statistics are means and means of
    squares, written out, and maps are scaled and shifted by them. Under 16 bits 0.18 computes it in fp32 and hands on
    what came in (``force_fp32(out_fp16=True)``), where 1.4 asserts fp32."""

    devices = 1

    def forward(self, x: Tensor) -> Tensor:
        if self.devices == 1 or not self.training:
            return super().forward(x)
        given, rows = x.dtype, x.ndim == 2
        x = F.to(x, float32)
        if rows:
            x = F.unsqueeze(x, 2)
        dims, shape = (0, *range(2, x.ndim)), (1, x.shape[1], *(1 for _ in x.shape[2:]))
        mean = F.mean(x, dims)
        squared = F.mean(F.mul(x, x), dims)
        mean, squared = F.split(F.cat([mean, squared]) * 1.0, x.shape[1])
        inverse = F.rsqrt(F.add(F.sub(squared, F.mul(mean, mean)), 1e-3))
        scale = F.mul(self.weight, inverse)
        shift = F.sub(self.bias, F.mul(mean, scale))
        out = F.add(F.mul(x, F.view(scale, *shape)), F.view(shift, *shape))
        return F.to(F.squeeze(out, 2) if rows else out, given)


def hold_statistics(module: Module) -> None:
    """``norm_eval``: batch norms use their running statistics, and go on training their weights."""
    for one in module.modules():
        if isinstance(one, BatchNorm):
            one.training = False


class Activated(Module):
    """An activation; ``inplace`` where torch has it."""

    def __init__(self, function: Callable[..., Tensor], inplace: bool | None) -> None:
        self.function = function
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if self.inplace is None else self.function(x, inplace=self.inplace)


# name in a config -> (function, whether it may work in place)
_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "LeakyReLU": (F.leaky_relu, True),
    "ReLU": (F.relu, True),
    "GELU": (F.gelu, False),
    "SiLU": (F.silu, True),
    "Sigmoid": (F.sigmoid, False),
    "Tanh": (F.tanh, False),
    "Mish": (F.mish, False),
}


def activation(config: Config, inplace: bool = False) -> Module:
    """``build_activation_layer``. A config that states ``inplace`` goes before its caller."""
    kind = (config or RELU).get("type")
    if kind not in _ACTIVATIONS:
        raise UnknownModel(f"act_cfg.type {kind} is an activation that memlint does not know")
    function, may = _ACTIVATIONS[kind]
    return Activated(function, bool((config or RELU).get("inplace", inplace)) if may else None)


class Sequence_(Module):
    """Layers one after the other; in the library they are numbered as here."""

    def __init__(self, *modules: Module) -> None:
        self.layers = list(modules)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.layers:
            x = module(x)
        return x


class ConvModule(Module):
    """A convolution, a norm, an activation, in this order; the activation in place where it can be."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool | str = "auto",
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        inplace: bool = True,
    ) -> None:
        bias = norm_cfg is None if bias == "auto" else bool(bias)
        self.conv = conv(conv_cfg, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.norm = None if norm_cfg is None else norm(norm_cfg, out_channels)
        self.activate = None if act_cfg is None else activation(act_cfg, inplace)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.activate is not None:
            x = self.activate(x)
        return x


class SeparableConv(Module):
    """``DepthwiseSeparableConvModule``: a convolution of each channel by itself, then one over the channels."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Size,
        padding: Size = 0,
        dilation: Size = 1,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        stride: Size = 1,
    ) -> None:
        both: dict[str, Any] = {"norm_cfg": norm_cfg, "act_cfg": act_cfg}
        self.depthwise_conv = ConvModule(inputs, inputs, kernel, stride, padding, dilation, inputs, **both)
        self.pointwise_conv = ConvModule(inputs, outputs, 1, **both)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise_conv(self.depthwise_conv(x))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------- small operations


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """``F.interpolate`` to (H, W), always a fresh tensor."""
    return F.interpolate(x, *size)


def scaled(x: Tensor, factor: float) -> Tensor:
    """``F.interpolate`` by a factor; the size is rounded down."""
    return F.interpolate(x, *(int(side * factor) for side in x.shape[2:]))


class DropPath(Module):
    """(mmcv, ``cnn/bricks/drop.py``) ``x.div(keep) * floor(keep + rand)``: a scaled copy, which the product keeps
    only where the random factor trains, and never does."""

    def __init__(self, rate: float) -> None:
        self.drops = rate > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.drops or not self.training:
            return x
        drawn = empty((x.shape[0], *(1 for _ in x.shape[1:])), x.dtype)
        summed = drawn + 1.0
        divided = F.div(x, 2.0)
        return divided * F.clone(summed)


def channel_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """``F.dropout2d``: a factor for each channel, by which x is multiplied. (native/Dropout.cpp, feature_dropout)"""
    if not training or probability <= 0:
        return x
    noise = empty((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)
    return x * noise


def recomputed(function: Callable[..., Tensor], x: Tensor, wanted: bool, *beside: Tensor) -> Tensor:
    """``with_cp``: torch's reentrant checkpointing, where there is something to train before it. ``beside``: what goes
    in with ``x``, and is kept as well."""
    if not wanted or not x.requires_grad:
        return function(x, *beside)
    result: Tensor = checkpoint(function, x, *beside, use_reentrant=True)
    return result


def to_tokens(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, H * W, C), a view."""
    return F.transpose(F.flatten(x, 2), 1, 2)


def to_map(x: Tensor, size: Sequence[int]) -> Tensor:
    """(N, H * W, C) -> (N, C, H, W): packed only where a reshape has to."""
    return F.reshape(F.transpose(x, 1, 2), x.shape[0], x.shape[2], *size)


# ------------------------------------------------------------------------------------------------------ transformers


class TorchAttention(Module):
    """torch's ``MultiheadAttention`` as mmcv calls it: with weights wanted, so no fused kernel runs (torch 2.13,
    ``nn/functional.py``: multi_head_attention_forward). Tokens first: (L, N, C)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        self.heads = heads
        self.dropout = dropout
        self.in_proj_weight = parameter(3 * width, width)
        self.in_proj_bias = parameter(3 * width) if bias else None
        self.out_proj = Linear(width, width, bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        length, batch, width = query.shape
        q, k, v = self.projected(query, key, value)
        rows = batch * self.heads
        q, k, v = (F.transpose(F.view(x, x.shape[0], rows, width // self.heads), 0, 1) for x in (q, k, v))
        scores = F.bmm(q * 1.0, F.transpose(k, -2, -1))
        del k
        if mask is not None:
            scores = F.add(scores, mask)
        weights = F.softmax(scores)
        del scores
        weights = F.dropout(weights, self.dropout, self.training)
        out = F.bmm(weights, v)
        del v
        out = F.reshape(F.transpose(out, 0, 1), length * batch, width)
        out = F.view(self.out_proj(out), length, batch, width)
        averaged = F.mean(F.view(weights, batch, self.heads, length, key.shape[0]), 1)
        del averaged, weights
        return out

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``_in_projection_packed``: one product for what is one tensor object."""
        width = query.shape[2]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if key is value:
            if query is key:
                q, k, v = self._separated(F.linear(query, weight, bias), 3)
                return q, k, v
            first, rest = F.split(weight, [width, 2 * width])
            one, others = (None, None) if bias is None else F.split(bias, [width, 2 * width])
            q = F.linear(query, first, one)
            k, v = self._separated(F.linear(key, rest, others), 2)
            return q, k, v
        weights = F.chunk(weight, 3)
        biases = (None, None, None) if bias is None else F.chunk(bias, 3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        return q, k, v

    @staticmethod
    def _separated(packed: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(L, N, parts * C) as (parts, L, N, C), a copy, and its parts."""
        *rows, width = packed.shape
        apart = F.view(packed, *rows, parts, width // parts)
        apart = F.contiguous(F.squeeze(F.transpose(F.unsqueeze(apart, 0), 0, -2), -2))
        return tuple(F.select(apart, 0) for _ in range(parts))


class MultiheadAttention(Module):
    """mmcv's: (N, L, C) in and out where ``batch_first``, with the sum of what came in."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        projection_dropout: float = 0.0,
        drop_path: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
    ) -> None:
        self.batch_first = batch_first
        self.attn = TorchAttention(width, heads, dropout, bias)
        self.proj_drop = Dropout(projection_dropout)
        self.dropout_layer = DropPath(drop_path)

    def forward(self, query: Tensor, identity: Tensor) -> Tensor:
        if self.batch_first:
            tokens = [F.transpose(query, 0, 1) for _ in range(3)]
            out = F.transpose(self.attn(*tokens), 0, 1)
        else:
            out = self.attn(query, query, query)
        return identity + self.dropout_layer(self.proj_drop(out))  # type: ignore[no-any-return]


class FeedForward(Module):
    """mmcv's ``FFN``: its layers, and the sum of what came in."""

    def __init__(
        self,
        width: int,
        hidden: int,
        layers: int = 2,
        activation_config: Config = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        inputs = width
        self.layers = []
        for _ in range(layers - 1):
            self.layers += [Linear(inputs, hidden), activation(activation_config or {"type": "ReLU", "inplace": True})]
            self.layers += [Dropout(dropout)]
            inputs = hidden
        self.layers += [Linear(hidden, width), Dropout(dropout)]
        self.dropout_layer = DropPath(drop_path)

    def forward(self, x: Tensor, identity: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return identity + self.dropout_layer(x)  # type: ignore[no-any-return]


class PatchEmbed(Module):
    """(N, C, H, W) -> (N, L, D) and (rows, columns). A ``padding`` by name fills up to whole patches."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        stride: int,
        padding: int | str = 0,
        bias: bool = True,
        norm_cfg: Config = None,
    ) -> None:
        self.kernel, self.stride = kernel, stride
        self.fills = isinstance(padding, str)
        self.projection = Conv(channels, width, pair(kernel), stride, 0 if isinstance(padding, str) else padding, bias)
        self.norm = None if norm_cfg is None else norm(norm_cfg, width)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        if self.fills:
            x = filled_up(x, self.kernel, self.stride)
        x = self.projection(x)
        size = (x.shape[2], x.shape[3])
        x = to_tokens(x)
        return (x if self.norm is None else self.norm(x)), size


def filled_up(x: Tensor, kernel: int, stride: int) -> Tensor:
    """``AdaptivePadding``: up to what the last step of a window needs."""
    more = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:]]
    return F.pad(x, 0, more[1], 0, more[0]) if any(more) else x
