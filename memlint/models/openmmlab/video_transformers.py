"""Transformers over videos (mmaction2 1.2, ``models/backbones``: ``swin.py``, ``timesformer.py``, ``uniformer.py``;
``models/common/transformer.py``).

Shapes: (N, C, T, H, W) for clips, (N, T, H, W, C) for maps of windows, (N, L, C) for rows of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import BatchNorm, Conv, Dropout, LayerNorm, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import (
    GELU,
    LN,
    Config,
    DropPath,
    FeedForward,
    MultiheadAttention,
    TorchAttention,
    activation,
    norm,
    recomputed,
)
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.transformers import rates, rolled

Sizes = tuple[int, ...]


# -------------------------------------------------------------------------------------------------- Swin, over time

ARCHITECTURES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


class WindowAttention3D(Module):
    """(windows, L, C), with a learned number for each two places of a window."""

    def __init__(
        self, width: int, window: Sizes, heads: int, bias: bool, scale: Any, dropout: float, drop: float
    ) -> None:
        self.heads, self.window = heads, window
        self.relative_position_bias_table = parameter(prod(2 * side - 1 for side in window), heads)
        self.relative_position_index = buffer(prod(window), prod(window), dtype=int64)
        self.qkv = Linear(width, 3 * width, bias)
        self.attn_drop = Dropout(dropout)
        self.proj = Linear(width, width)
        self.proj_drop = Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, length, width = x.shape
        qkv = F.permute(F.reshape(self.qkv(x), windows, length, 3, self.heads, width // self.heads), 2, 0, 3, 1, 4)
        q, k, v = (F.select(qkv, 0) for _ in range(3))
        q = q * 1.0
        scores = F.matmul(q, F.transpose(k, -2, -1))
        places = F.narrow(F.narrow(self.relative_position_index, 0, length), 1, length)
        table = F.index(self.relative_position_bias_table, F.reshape(places, length * length))
        table = F.contiguous(F.permute(F.reshape(table, length, length, self.heads), 2, 0, 1))
        scores = scores + F.unsqueeze(table, 0)
        if mask is not None:
            kinds = mask.shape[0]
            scores = F.view(scores, windows // kinds, kinds, self.heads, length, length)
            scores = scores + F.unsqueeze(F.unsqueeze(mask, 1), 0)
            scores = F.view(scores, windows, self.heads, length, length)
        scores = self.attn_drop(F.softmax(scores))
        out = F.reshape(F.transpose(F.matmul(scores, v), 1, 2), windows, length, width)
        return self.proj_drop(self.proj(out))  # type: ignore[no-any-return]


class Perceptron(Module):
    """``Mlp``"""

    def __init__(self, width: int, hidden: int, act_cfg: Config, drop: float) -> None:
        self.fc1, self.fc2 = Linear(width, hidden), Linear(hidden, width)
        self.act = activation(act_cfg)
        self.drop = Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))  # type: ignore[no-any-return]


def _fitted(size: Sizes, window: Sizes, shift: Sizes) -> tuple[Sizes, Sizes]:
    """``get_window_size``: no window is larger than what it is laid over, and one that is as large is not shifted."""
    fits = tuple(min(side, wide) for side, wide in zip(size, window))
    return fits, tuple(0 if side <= wide else step for side, wide, step in zip(size, window, shift))


def _windows(x: Tensor, window: Sizes) -> Tensor:
    batch, deep, high, wide, width = x.shape
    a, b, c = window
    x = F.view(x, batch, deep // a, a, high // b, b, wide // c, c, width)
    return F.view(F.contiguous(F.permute(x, 0, 1, 3, 5, 2, 4, 6, 7)), -1, prod(window), width)


class SwinBlock3D(Module):
    def __init__(self, width: int, heads: int, shift: Sizes, path: float, net: SwinTransformer3D) -> None:
        dropout, drop = net.rates
        self.window, self.shift, self.with_cp = net.window, shift, net.with_cp
        self.norm1, self.norm2 = norm(net.norm_cfg, width), norm(net.norm_cfg, width)
        self.attn = WindowAttention3D(width, net.window, heads, net.qkv_bias, net.qk_scale, dropout, drop)
        self.drop_path = DropPath(path)
        self.mlp = Perceptron(width, int(width * net.mlp_ratio), net.act_cfg, drop)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shortcut = x
        x = recomputed(lambda x: self._attended(x, mask), x, self.with_cp)
        x = shortcut + self.drop_path(x)
        return x + recomputed(lambda x: self.drop_path(self.mlp(self.norm2(x))), x, self.with_cp)

    def _attended(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, *size, width = x.shape
        window, shift = _fitted(tuple(size), self.window, self.shift)
        x = self.norm1(x)
        more = [-side % wide for side, wide in zip(size, window)]
        x = F.pad(x, 0, 0, 0, more[2], 0, more[1], 0, more[0])
        padded = tuple(x.shape[1:4])
        moves = any(shift)
        if moves:
            x = rolled(x)
        x = self.attn(_windows(x, window), mask if moves else None)
        (a, b, c), (deep, high, wide) = window, padded
        x = F.view(x, batch, deep // a, high // b, wide // c, a, b, c, width)
        x = F.view(F.contiguous(F.permute(x, 0, 1, 4, 2, 5, 3, 6, 7)), batch, *padded, width)
        if moves:
            x = rolled(x)
        if any(more):
            x = F.contiguous(x[:, : size[0], : size[1], : size[2], :])
        return x


class Merging3D(Module):
    """Four neighbours of a frame side by side, normed and brought to twice the width."""

    def __init__(self, width: int, norm_cfg: Config) -> None:
        self.reduction = Linear(4 * width, 2 * width, bias=False)
        self.norm = norm(norm_cfg, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        high, wide = x.shape[2:4]
        if high % 2 or wide % 2:
            x = F.pad(x, 0, 0, 0, wide % 2, 0, high % 2)
        half = (x.shape[2] // 2, x.shape[3] // 2)
        parts = [F.narrow(F.narrow(x, 2, half[0], 2), 3, half[1], 2) for _ in range(4)]
        x = F.cat(parts, -1)
        del parts
        return self.reduction(self.norm(x))  # type: ignore[no-any-return]


class Layer3D(Module):
    """``BasicLayer``. The mask of shifted windows is made once for each size and kept from then on (``lru_cache``)."""

    def __init__(self, width: int, heads: int, paths: Sequence[float], merges: bool, net: SwinTransformer3D) -> None:
        half = tuple(side // 2 for side in net.window)
        self.window, self.half = net.window, half
        self.blocks = [
            SwinBlock3D(width, heads, (0, 0, 0) if at % 2 == 0 else half, path, net) for at, path in enumerate(paths)
        ]
        self.downsample = Merging3D(width, net.norm_cfg) if merges else None
        self.masks: dict[Sizes, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        size = tuple(x.shape[2:])
        x = F.permute(x, 0, 2, 3, 4, 1)
        mask = self.masks.get(size)
        if mask is None:
            mask = self.masks[size] = self._mask(size)
        for block in self.blocks:
            x = block(x, mask)
        return x

    def _mask(self, size: Sizes) -> Tensor:
        window, _ = _fitted(size, self.window, self.half)
        padded = [-(-side // wide) * wide for side, wide in zip(size, window)]
        image = empty((1, *padded, 1))
        flat = F.squeeze(_windows(image, window), 2)
        shape = (flat.shape[0], prod(window), prod(window))
        difference, other = empty(shape), empty(shape, bool_)
        filled = empty(shape)
        del other
        same = empty(shape, bool_)
        made = empty(shape)
        del image, flat, difference, filled, same
        return made


class PatchEmbed3D(Module):
    def __init__(self, patch: Sizes, channels: int, width: int, norm_cfg: Config) -> None:
        self.patch = patch
        self.proj = Conv(channels, width, patch, patch)
        self.norm = None if norm_cfg is None else norm(norm_cfg, width)

    def forward(self, x: Tensor) -> Tensor:
        more = [-side % part for side, part in zip(x.shape[2:], self.patch)]
        for at in (2, 1, 0):
            if more[at]:
                x = F.pad(x, *(0 for _ in range(2 * (2 - at) + 1)), more[at])
        x = self.proj(x)
        if self.norm is None:
            return x
        size = x.shape[1:]
        x = self.norm(F.transpose(F.flatten(x, 2), 1, 2))
        return F.view(F.transpose(x, 1, 2), x.shape[0], *size)


@register()
class SwinTransformer3D(Module):
    def __init__(
        self,
        arch: Any,
        pretrained2d: bool = True,
        patch_size: Any = (2, 4, 4),
        in_channels: int = 3,
        window_size: Sequence[int] = (8, 7, 7),
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        act_cfg: Config = GELU,
        norm_cfg: Config = LN,
        patch_norm: bool = True,
        frozen_stages: int = -1,
        with_cp: bool = False,
        out_indices: Sequence[int] = (3,),
        out_after_downsample: bool = False,
        place: str = "model.backbone",
    ) -> None:
        width, depths, heads = _architecture(arch, place)
        if out_after_downsample:
            raise UnknownModel(f"{place}.out_after_downsample is a way that memlint does not know")
        self.window, self.mlp_ratio, self.act_cfg, self.norm_cfg = tuple(window_size), mlp_ratio, act_cfg, norm_cfg
        self.qkv_bias, self.qk_scale, self.with_cp = qkv_bias, qk_scale, with_cp
        self.rates, self.out_indices = (attn_drop_rate, drop_rate), tuple(out_indices)
        patch = tuple(patch_size) if isinstance(patch_size, (list, tuple)) else (patch_size,) * 3
        self.patch_embed = PatchEmbed3D(patch, in_channels, width, norm_cfg if patch_norm else None)
        self.pos_drop = Dropout(drop_rate)
        paths = iter(rates(drop_path_rate, sum(depths)))
        self.layers = [
            Layer3D(width * 2**at, many, [next(paths) for _ in range(depth)], at < len(depths) - 1, self)
            for at, (depth, many) in enumerate(zip(depths, heads))
        ]
        self.norms = [norm(norm_cfg, width * 2**at) for at in self.out_indices]
        for part in (self.patch_embed, *self.layers)[: frozen_stages + 1]:
            part.freeze()
            part.eval()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.pos_drop(self.patch_embed(x))
        outs = []
        for number, layer in enumerate(self.layers):
            x = layer(F.contiguous(x))
            if number in self.out_indices:
                out = self.norms[self.out_indices.index(number)](x)
                outs.append(F.contiguous(F.permute(out, 0, 4, 1, 2, 3)))
                del out
            if layer.downsample is not None:
                x = F.permute(layer.downsample(x), 0, 4, 1, 2, 3)
        return outs[0] if len(outs) == 1 else tuple(outs)


def _architecture(arch: Any, place: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    if isinstance(arch, dict):
        return arch["embed_dims"], tuple(arch["depths"]), tuple(arch["num_heads"])
    found = next((sizes for name, sizes in ARCHITECTURES.items() if arch.lower() in (name, name[0])), None)
    if found is None:
        raise UnknownModel(f"{place}.arch {arch} is none that SwinTransformer3D has")
    return found


# ------------------------------------------------------------------------------------------------------ TimeSformer


class DividedAttention(Module):
    """Attention of each patch over the frames, or of each frame over its patches; norm and sum are its own."""

    def __init__(self, width: int, heads: int, frames: int, path: float, over_time: bool) -> None:
        self.frames, self.over_time = frames, over_time
        self.norm = LayerNorm(width)
        self.attn = TorchAttention(width, heads)
        self.dropout_layer = DropPath(path)
        self.temporal_fc = Linear(width, width) if over_time else None

    def forward(self, query: Tensor) -> Tensor:
        return self._in_time(query) if self.over_time else self._in_space(query)

    def _in_time(self, query: Tensor) -> Tensor:
        assert self.temporal_fc is not None
        first = F.unsqueeze(query[:, 0, :], 1)
        identity = query[:, 1:, :]
        batch, rows, width = identity.shape
        x = F.reshape(identity, batch * (rows // self.frames), self.frames, width)
        x = F.permute(self.norm(x), 1, 0, 2)
        x = F.permute(self.attn(x, x, x), 1, 0, 2)
        x = self.dropout_layer(F.contiguous(x))
        x = F.reshape(self.temporal_fc(x), batch, rows, width)
        x = identity + x
        return F.cat((first, x), 1)

    def _in_space(self, query: Tensor) -> Tensor:
        first = F.unsqueeze(query[:, 0, :], 1)
        rest = query[:, 1:, :]
        batch, rows, width = rest.shape
        frames, patches = self.frames, rows // self.frames
        token = F.unsqueeze(F.reshape(F.repeat(first, 1, frames, 1), batch * frames, width), 1)
        x = F.permute(F.view(rest, batch, patches, frames, width), 0, 2, 1, 3)
        x = F.cat((token, F.reshape(x, batch * frames, patches, width)), 1)
        x = F.permute(self.norm(x), 1, 0, 2)
        x = F.permute(self.attn(x, x, x), 1, 0, 2)
        x = self.dropout_layer(F.contiguous(x))
        token = F.mean(F.reshape(x[:, 0, :], batch, frames, width), 1, True)
        x = F.view(x[:, 1:, :], batch, frames, patches, width)
        x = F.reshape(F.permute(x, 0, 2, 1, 3), batch, rows, width)
        return query + F.cat((token, x), 1)


class DividedBlock(Module):
    def __init__(self, width: int, heads: int, frames: int, path: float) -> None:
        self.temporal = DividedAttention(width, heads, frames, path, True)
        self.spatial = DividedAttention(width, heads, frames, path, False)
        self.norm = LayerNorm(width)
        self.ffn = FeedForward(width, 4 * width, 2, GELU, 0.0, path)

    def forward(self, x: Tensor) -> Tensor:
        x = self.spatial(self.temporal(x))
        return self.ffn(self.norm(x), x)  # type: ignore[no-any-return]


class JointBlock(Module):
    def __init__(self, width: int, heads: int, path: float) -> None:
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attn = MultiheadAttention(width, heads, 0.0, 0.0, path)
        self.ffn = FeedForward(width, 4 * width, 2, GELU, 0.0, path)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x), x)
        return self.ffn(self.norm2(x), x)  # type: ignore[no-any-return]


@register()
class TimeSformer(Module):
    HIGHEST_PATH = 0.1  # rates of dropped paths go up to it

    def __init__(
        self,
        num_frames: int,
        img_size: int,
        patch_size: int,
        embed_dims: int = 768,
        num_heads: int = 12,
        num_transformer_layers: int = 12,
        in_channels: int = 3,
        dropout_ratio: float = 0.0,
        transformer_layers: Any = None,
        attention_type: str = "divided_space_time",
        norm_cfg: Config = LN,
        place: str = "model.backbone",
    ) -> None:
        if attention_type not in ("divided_space_time", "space_only", "joint_space_time"):
            raise UnknownModel(f"{place}.attention_type {attention_type} is none that TimeSformer has")
        if transformer_layers is not None:
            raise UnknownModel(f"{place}.transformer_layers are layers of one's own, which memlint does not know")
        self.frames, self.over_time = num_frames, attention_type != "space_only"
        self.projection = Conv(in_channels, embed_dims, (patch_size, patch_size), patch_size)
        self.cls_token = parameter(1, 1, embed_dims)
        self.pos_embed = parameter(1, (img_size // patch_size) ** 2 + 1, embed_dims)
        self.time_embed = parameter(1, num_frames, embed_dims) if self.over_time else None
        self.drop_after_pos, self.drop_after_time = Dropout(dropout_ratio), Dropout(dropout_ratio)
        self.norm = norm(norm_cfg, embed_dims)
        paths = rates(self.HIGHEST_PATH, num_transformer_layers)
        divided = attention_type == "divided_space_time"
        self.layers = [
            DividedBlock(embed_dims, num_heads, num_frames, path)
            if divided
            else JointBlock(embed_dims, num_heads, path)
            for path in paths
        ]

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, frames, *size = x.shape
        x = F.reshape(F.permute(x, 0, 2, 1, 3, 4), batch * frames, channels, *size)
        x = F.transpose(F.flatten(self.projection(x), 2), 1, 2)
        x = F.cat((F.expand(self.cls_token, x.shape[0], -1, -1), x), 1)
        x = self.drop_after_pos(x + self.pos_embed)
        if self.time_embed is not None:
            x = self._timed(x, batch, frames)
        for layer in self.layers:
            x = layer(x)
        if self.time_embed is None:
            x = F.mean(F.view(x, -1, self.frames, *x.shape[1:]), 1)
        return self.norm(x)[:, 0]  # type: ignore[no-any-return]

    def _timed(self, x: Tensor, batch: int, frames: int) -> Tensor:
        assert self.time_embed is not None
        tokens = F.unsqueeze(F.narrow(x, 0, batch)[:, 0, :], 1)
        x = x[:, 1:, :]
        patches, width = x.shape[1:]
        x = F.permute(F.view(x, batch, frames, patches, width), 0, 2, 1, 3)
        x = self.drop_after_time(F.reshape(x, batch * patches, frames, width) + self.time_embed)
        return F.cat((tokens, F.view(x, batch, patches * frames, width)), 1)


# -------------------------------------------------------------------------------------------------------- UniFormer


class Rows(Module):
    """``Attention``: all tokens beside all others, written out."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float, drop: float) -> None:
        self.heads = heads
        self.qkv, self.proj = Linear(width, 3 * width, bias), Linear(width, width)
        self.attn_drop, self.proj_drop = Dropout(dropout), Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = F.permute(F.reshape(self.qkv(x), batch, length, 3, self.heads, width // self.heads), 2, 0, 3, 1, 4)
        q, k, v = (F.select(qkv, 0) for _ in range(3))
        scores = F.matmul(q, F.transpose(k, -2, -1)) * 1.0
        scores = self.attn_drop(F.softmax(scores))
        out = F.reshape(F.transpose(F.matmul(scores, v), 1, 2), batch, length, width)
        return self.proj_drop(self.proj(out))  # type: ignore[no-any-return]


class LocalBlock(Module):
    """``CBlock``: of convolutions."""

    def __init__(self, width: int, hidden: int, drop: float, path: float) -> None:
        self.pos_embed = Conv(width, width, (3, 3, 3), 1, 1, groups=width)
        self.norm1, self.norm2 = BatchNorm(width), BatchNorm(width)
        self.conv1, self.conv2 = Conv(width, width, (1, 1, 1)), Conv(width, width, (1, 1, 1))
        self.attn = Conv(width, width, (5, 5, 5), 1, 2, groups=width)
        self.fc1, self.fc2 = Conv(width, hidden, (1, 1, 1)), Conv(hidden, width, (1, 1, 1))
        self.drop, self.drop_path = Dropout(drop), DropPath(path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_embed(x)
        x = x + self.drop_path(self.conv2(self.attn(self.conv1(self.norm1(x)))))
        hidden = self.drop(F.gelu(self.fc1(self.norm2(x))))
        return x + self.drop_path(self.drop(self.fc2(hidden)))  # type: ignore[no-any-return]


class GlobalBlock(Module):
    """``SABlock``: of attention."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool, rate: tuple[float, float], path: float) -> None:
        self.pos_embed = Conv(width, width, (3, 3, 3), 1, 1, groups=width)
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attn = Rows(width, heads, bias, *rate)
        self.drop_path = DropPath(path)
        self.mlp = Perceptron(width, hidden, GELU, rate[1])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_embed(x)
        shape = x.shape
        x = F.transpose(F.flatten(x, 2), 1, 2)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return F.reshape(F.transpose(x, 1, 2), *shape)


class Patches(Module):
    def __init__(self, inputs: int, width: int, kernel: Sizes, stride: Sizes, padding: Sizes) -> None:
        self.norm = LayerNorm(width)
        self.proj = Conv(inputs, width, kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        batch, _, *size = x.shape
        x = self.norm(F.transpose(F.flatten(x, 2), 1, 2))
        return F.contiguous(F.permute(F.reshape(x, batch, *size, x.shape[2]), 0, 4, 1, 2, 3))


@register()
class UniFormer(Module):
    def __init__(
        self,
        depth: Sequence[int] = (5, 8, 20, 7),
        img_size: int = 224,
        in_chans: int = 3,
        embed_dim: Sequence[int] = (64, 128, 320, 512),
        head_dim: int = 64,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        pretrained2d: bool = True,
    ) -> None:
        first, *others = embed_dim
        self.embeds = [
            Patches(in_chans, first, (3, 4, 4), (2, 4, 4), (1, 0, 0)),
            *(Patches(narrow, wide, (1, 2, 2), (1, 2, 2), (0, 0, 0)) for narrow, wide in zip(embed_dim, others)),
        ]
        self.pos_drop = Dropout(drop_rate)
        paths = iter(rates(drop_path_rate, sum(depth)))
        self.stages: list[list[Module]] = []
        for stage, (count, width) in enumerate(zip(depth, embed_dim)):
            hidden = int(width * mlp_ratio)
            blocks: list[Module] = []
            for _ in range(count):
                if stage < 2:
                    blocks.append(LocalBlock(width, hidden, drop_rate, next(paths)))
                else:
                    rate = (attn_drop_rate, drop_rate)
                    blocks.append(GlobalBlock(width, width // head_dim, hidden, qkv_bias, rate, next(paths)))
            self.stages.append(blocks)
        self.blocks = [block for blocks in self.stages for block in blocks]
        self.norm = BatchNorm(embed_dim[-1])

    def forward(self, x: Tensor) -> Tensor:
        for number, (embed, blocks) in enumerate(zip(self.embeds, self.stages)):
            x = embed(x)
            if number == 0:
                x = self.pos_drop(x)
            for block in blocks:
                x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]
