"""Backbones of attention: MixVisionTransformer, VisionTransformer and SwinTransformer (mmseg 1.2 and 0.30, mmdet 3.3
and 2.28, ``models/backbones/{mit,vit,swin}.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Conv, Dropout, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty, int64
from memlint.models.openmmlab.bricks import (
    GELU,
    LN,
    Config,
    DropPath,
    FeedForward,
    MultiheadAttention,
    PatchEmbed,
    TorchAttention,
    activation,
    filled_up,
    norm,
    recomputed,
    resize,
    to_map,
    to_tokens,
)
from memlint.models.openmmlab.registry import register

Size = tuple[int, int]


def rates(highest: float, count: int) -> list[float]:
    """``torch.linspace(0, highest, count)``: of dropped paths, from the first block to the last."""
    return [highest * number / max(count - 1, 1) for number in range(count)]


# --------------------------------------------------------------------------------------------------- Mix Transformer


class MixFFN(Module):
    """Two 1x1 convolutions with a 3x3 one of each channel between them."""

    def __init__(self, width: int, hidden: int, act_cfg: Config, dropout: float, drop_path: float) -> None:
        self.layers = [
            Conv(width, hidden, (1, 1)),
            Conv(hidden, hidden, (3, 3), 1, 1, groups=hidden),
            activation(act_cfg),
            Dropout(dropout),
            Conv(hidden, width, (1, 1)),
            Dropout(dropout),
        ]
        self.dropout_layer = DropPath(drop_path)

    def forward(self, x: Tensor, size: Size, identity: Tensor) -> Tensor:
        out = to_map(x, size)
        for layer in self.layers:
            out = layer(out)
        return identity + self.dropout_layer(to_tokens(out))  # type: ignore[no-any-return]


class ReducedAttention(Module):
    """``EfficientMultiheadAttention``: keys and values of a smaller map."""

    def __init__(
        self, width: int, heads: int, ratio: int, bias: bool, norm_cfg: Config, dropout: float, drop: float, path: float
    ) -> None:
        self.attn = TorchAttention(width, heads, dropout, bias)
        self.proj_drop, self.dropout_layer = Dropout(drop), DropPath(path)
        self.sr = Conv(width, width, (ratio, ratio), ratio) if ratio > 1 else None
        self.norm = norm(norm_cfg, width) if ratio > 1 else None

    def forward(self, x: Tensor, size: Size, identity: Tensor) -> Tensor:
        fewer = x
        if self.sr is not None and self.norm is not None:
            fewer = self.norm(to_tokens(self.sr(to_map(x, size))))
        query, fewer = F.transpose(x, 0, 1), F.transpose(fewer, 0, 1)
        out = F.transpose(self.attn(query, fewer, fewer), 0, 1)
        return identity + self.dropout_layer(self.proj_drop(out))  # type: ignore[no-any-return]


class MixBlock(Module):
    def __init__(self, width: int, heads: int, ratio: int, path: float, net: MixVisionTransformer) -> None:
        self.with_cp = net.with_cp
        self.norm1, self.norm2 = norm(net.norm_cfg, width), norm(net.norm_cfg, width)
        attention, drop = net.rates
        self.attn = ReducedAttention(width, heads, ratio, net.qkv_bias, net.norm_cfg, attention, drop, path)
        self.ffn = MixFFN(width, net.mlp_ratio * width, net.act_cfg, drop, path)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            x = self.attn(self.norm1(x), size, x)
            return self.ffn(self.norm2(x), size, x)  # type: ignore[no-any-return]

        return recomputed(inner, x, self.with_cp)


@register()
class MixVisionTransformer(Module):
    """SegFormer's: (N, 3, H, W) -> a map for each of ``out_indices``."""

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 64,
        num_stages: int = 4,
        num_layers: Sequence[int] = (3, 4, 6, 3),
        num_heads: Sequence[int] = (1, 2, 4, 8),
        patch_sizes: Sequence[int] = (7, 3, 3, 3),
        strides: Sequence[int] = (4, 2, 2, 2),
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        out_indices: Sequence[int] = (0, 1, 2, 3),
        mlp_ratio: int = 4,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_cfg: Config = GELU,
        norm_cfg: Config = LN,
        with_cp: bool = False,
    ) -> None:
        self.norm_cfg, self.act_cfg, self.mlp_ratio = norm_cfg, act_cfg, mlp_ratio
        self.qkv_bias, self.with_cp = qkv_bias, with_cp
        self.rates = attn_drop_rate, drop_rate
        self.out_indices = tuple(out_indices)
        paths = iter(rates(drop_path_rate, sum(num_layers)))
        self.patches, self.stages, self.norms = [], [], []
        inputs = in_channels
        for stage in range(num_stages):
            width, patch = embed_dims * num_heads[stage], patch_sizes[stage]
            self.patches.append(PatchEmbed(inputs, width, patch, strides[stage], patch // 2, norm_cfg=norm_cfg))
            heads, ratio = num_heads[stage], sr_ratios[stage]
            blocks = [MixBlock(width, heads, ratio, next(paths), self) for _ in range(num_layers[stage])]
            self.stages.append(Blocks(blocks))
            self.norms.append(norm(norm_cfg, width))
            inputs = width

    def forward(self, x: Tensor) -> list[Tensor]:
        outs = []
        for number, (patch, stage, normalise) in enumerate(zip(self.patches, self.stages, self.norms)):
            x, size = patch(x)
            x = normalise(stage(x, size))
            x = to_map(x, size)
            if number in self.out_indices:
                outs.append(x)
        return outs


class Blocks(Module):
    """Blocks of one resolution."""

    def __init__(self, blocks: Sequence[Module]) -> None:
        self.blocks = list(blocks)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        for block in self.blocks:
            x = block(x, size)
        return x


# ------------------------------------------------------------------------------------------------ Vision Transformer


class VisionBlock(Module):
    def __init__(self, width: int, heads: int, hidden: int, path: float, net: VisionTransformer) -> None:
        attention, drop = net.rates
        self.with_cp = net.with_cp
        self.norm1 = norm(net.norm_cfg, width)
        self.attn = MultiheadAttention(width, heads, attention, drop, bias=net.qkv_bias)
        self.norm2 = norm(net.norm_cfg, width)
        self.ffn = FeedForward(width, hidden, net.num_fcs, net.act_cfg, drop, path)

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            x = self.attn(self.norm1(x), x)
            return self.ffn(self.norm2(x), x)  # type: ignore[no-any-return]

        return recomputed(inner, x, self.with_cp)


@register()
class VisionTransformer(Module):
    """ViT and DeiT: (N, 3, H, W) -> a map of patches for each of ``out_indices``."""

    def __init__(
        self,
        img_size: Any = 224,
        patch_size: int = 16,
        patch_pad: str = "corner",
        in_channels: int = 3,
        embed_dims: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        mlp_ratio: int = 4,
        out_origin: bool = False,
        out_indices: Any = -1,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cls_token: bool = True,
        norm_cfg: Config = LN,
        act_cfg: Config = GELU,
        patch_norm: bool = False,
        patch_bias: bool = False,
        pre_norm: bool = False,
        final_norm: bool = False,
        interpolate_mode: str = "bicubic",
        num_fcs: int = 2,
        norm_eval: bool = False,
        with_cp: bool = False,
    ) -> None:
        self.norm_cfg, self.act_cfg, self.num_fcs = norm_cfg, act_cfg, num_fcs
        self.qkv_bias, self.with_cp, self.with_cls_token = qkv_bias, with_cp, with_cls_token
        self.rates, self.out_origin = (attn_drop_rate, drop_rate), out_origin
        both = [img_size, img_size] if isinstance(img_size, int) else list(img_size)
        self.grid = (both[0] // patch_size, both[-1] // patch_size)
        patches: Config = norm_cfg if patch_norm else None
        self.patch_embed = PatchEmbed(in_channels, embed_dims, patch_size, patch_size, patch_pad, patch_bias, patches)
        self.cls_token = parameter(1, 1, embed_dims)
        self.pos_embed = parameter(1, self.grid[0] * self.grid[1] + 1, embed_dims)
        self.drop_after_pos = Dropout(drop_rate)
        self.pre_ln = norm(norm_cfg, embed_dims) if pre_norm else None
        last = num_layers - 1
        indices = [out_indices] if isinstance(out_indices, int) else out_indices
        self.out_indices = tuple(last if index == -1 else index for index in indices)
        self.layers = [
            VisionBlock(embed_dims, num_heads, mlp_ratio * embed_dims, path, self)
            for path in rates(drop_path_rate, num_layers)
        ]
        self.norm1 = norm(norm_cfg, embed_dims) if final_norm else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x, size = self.patch_embed(images)
        tokens = F.expand(self.cls_token, images.shape[0], -1, -1)
        x = F.cat((tokens, x), 1)
        x = self.drop_after_pos(x + self._positions(size))
        if not self.with_cls_token:
            x = x[:, 1:]
        if self.pre_ln is not None:
            x = self.pre_ln(x)
        outs = [self._map(x, size)] if self.out_origin else []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == len(self.layers) - 1 and self.norm1 is not None:
                x = self.norm1(x)
            if number in self.out_indices:
                outs.append(self._map(x, size))
        return tuple(outs)

    def _positions(self, size: Size) -> Tensor:
        """Brought to the number of patches, where it is another one."""
        if size[0] * size[1] == self.grid[0] * self.grid[1]:
            return self.pos_embed
        first = self.pos_embed[:, 0]
        rest = self.pos_embed[:, -self.grid[0] * self.grid[1] :]
        rest = F.permute(F.reshape(rest, 1, *self.grid, self.pos_embed.shape[2]), 0, 3, 1, 2)
        rest = F.transpose(F.flatten(resize(rest, size), 2), 1, 2)
        return F.cat((F.unsqueeze(first, 1), rest), 1)

    def _map(self, x: Tensor, size: Size) -> Tensor:
        out = x[:, 1:] if self.with_cls_token else x
        return F.contiguous(F.permute(F.reshape(out, out.shape[0], *size, out.shape[2]), 0, 3, 1, 2))


# -------------------------------------------------------------------------------------------------- Swin Transformer


class WindowAttention(Module):
    """``WindowMSA``: (windows, L, C), with a learned number for each two places of a window."""

    def __init__(self, width: int, heads: int, window: int, bias: bool, dropout: float, drop: float) -> None:
        self.heads, self.window = heads, window
        self.relative_position_bias_table = parameter((2 * window - 1) ** 2, heads)
        self.relative_position_index = buffer(window**2, window**2, dtype=int64)
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
        table = F.index(self.relative_position_bias_table, F.view(self.relative_position_index, length * length))
        table = F.contiguous(F.permute(F.view(table, length, length, self.heads), 2, 0, 1))
        scores = scores + F.unsqueeze(table, 0)
        if mask is not None:
            kinds = mask.shape[0]
            scores = F.view(scores, windows // kinds, kinds, self.heads, length, length)
            scores = scores + F.unsqueeze(F.unsqueeze(mask, 1), 0)
            scores = F.view(scores, windows, self.heads, length, length)
        scores = self.attn_drop(F.softmax(scores))
        out = F.reshape(F.transpose(F.matmul(scores, v), 1, 2), windows, length, width)
        return self.proj_drop(self.proj(out))  # type: ignore[no-any-return]


class ShiftedWindows(Module):
    """``ShiftWindowMSA``: attention within windows, which every other block has shifted by half of one."""

    def __init__(
        self, width: int, heads: int, window: int, shift: int, bias: bool, dropout: float, drop: float, path: float
    ) -> None:
        self.window, self.shift = window, shift
        self.w_msa = WindowAttention(width, heads, window, bias, dropout, drop)
        self.drop = DropPath(path)

    def forward(self, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        """``mask``: that of all blocks of a stage, where the stage has made it."""
        batch, _, width = x.shape
        height, breadth = size
        x = F.view(x, batch, height, breadth, width)
        right, below = -breadth % self.window, -height % self.window
        x = F.pad(x, 0, 0, 0, right, 0, below)
        padded = (height + below, breadth + right)
        if self.shift:
            x = rolled(x)
            mask = self.masked(padded) if mask is None else mask
        else:
            mask = None
        x = F.view(self._windows(x), -1, self.window**2, width)
        x = self.w_msa(x, mask)
        del mask
        x = F.view(x, -1, self.window, self.window, width)
        x = self._together(x, batch, padded)
        if self.shift:
            x = rolled(x)
        if right or below:
            x = F.contiguous(x[:, :height, :breadth, :])
        return self.drop(F.view(x, batch, height * breadth, width))  # type: ignore[no-any-return]

    def _windows(self, x: Tensor) -> Tensor:
        batch, height, breadth, width = x.shape
        side = self.window
        x = F.view(x, batch, height // side, side, breadth // side, side, width)
        return F.view(F.contiguous(F.permute(x, 0, 1, 3, 2, 4, 5)), -1, side, side, width)

    def _together(self, x: Tensor, batch: int, size: Size) -> Tensor:
        side, width = self.window, x.shape[3]
        x = F.view(x, batch, size[0] // side, size[1] // side, side, side, width)
        return F.view(F.contiguous(F.permute(x, 0, 1, 3, 2, 4, 5)), batch, *size, width)

    def masked(self, size: Size) -> Tensor:
        """Which places of a window were neighbours before the shift."""
        image = empty((1, *size, 1))
        length = self.window**2
        flat = F.view(self._windows(image), -1, length)
        shape = (flat.shape[0], length, length)
        difference = empty(shape)
        other = empty(shape, bool_)
        filled = empty(shape)
        del other
        same = empty(shape, bool_)
        made = empty(shape)
        del image, flat, difference, filled, same
        return made


def rolled(x: Tensor) -> Tensor:
    """``torch.roll`` over two dimensions: one after the other, each a fresh tensor. (native/cuda/TensorTransform...)"""
    return F.clone(x)


class SwinBlock(Module):
    def __init__(self, width: int, heads: int, shifted: bool, path: float, net: SwinTransformer) -> None:
        dropout, drop = net.rates
        shift = net.window // 2 if shifted else 0
        self.with_cp = net.with_cp
        self.norm1 = norm(net.norm_cfg, width)
        self.attn = ShiftedWindows(width, heads, net.window, shift, net.qkv_bias, dropout, drop, path)
        self.norm2 = norm(net.norm_cfg, width)
        self.ffn = FeedForward(width, int(net.mlp_ratio * width), 2, net.act_cfg, drop, path)

    def forward(self, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        def inner(x: Tensor, mask: Tensor | None = None) -> Tensor:
            out = self.attn(self.norm1(x), size, mask)
            out = out + x
            return self.ffn(self.norm2(out), out)  # type: ignore[no-any-return]

        return recomputed(inner, x, self.with_cp, *(() if mask is None else (mask,)))


class MaskedBlocks(Blocks):
    """Swin's, of which each is given the mask that the stage makes once."""

    def forward(self, x: Tensor, size: Size) -> Tensor:
        attention: ShiftedWindows = self.blocks[0].attn  # type: ignore[attr-defined]
        height, breadth = (side + -side % attention.window for side in size)
        mask = attention.masked((height, breadth))
        for block in self.blocks:
            x = block(x, size, mask)
        return x


class PatchMerging(Module):
    """2x2 neighbours, side by side (``nn.Unfold``), normed and brought to twice the width."""

    def __init__(self, width: int, stride: int, norm_cfg: Config) -> None:
        self.stride = stride
        self.norm = None if norm_cfg is None else norm(norm_cfg, 4 * width)
        self.reduction = Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor, size: Size) -> tuple[Tensor, Size]:
        batch, _, width = x.shape
        x = F.permute(F.view(x, batch, *size, width), 0, 3, 1, 2)
        x = filled_up(x, 2, self.stride)
        rows, columns = ((side - 2) // self.stride + 1 for side in x.shape[2:])
        x = F.transpose(F.unfold(x, batch, 4 * width, rows * columns), 1, 2)
        if self.norm is not None:
            x = self.norm(x)
        return self.reduction(x), (rows, columns)


@register()
class SwinTransformer(Module):
    """(N, 3, H, W) -> a map for each of ``out_indices``."""

    stage_class = Blocks
    merges_with_norm = False  # whatever the first norm

    def __init__(
        self,
        pretrain_img_size: Any = 224,
        in_channels: int = 3,
        embed_dims: int = 96,
        patch_size: int = 4,
        window_size: int = 7,
        mlp_ratio: float = 4,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        strides: Sequence[int] = (4, 2, 2, 2),
        out_indices: Sequence[int] = (0, 1, 2, 3),
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: Config = GELU,
        norm_cfg: Config = LN,
        with_cp: bool = False,
        frozen_stages: int = -1,
        convert_weights: bool = False,
    ) -> None:
        self.window, self.mlp_ratio, self.act_cfg, self.norm_cfg = window_size, mlp_ratio, act_cfg, norm_cfg
        self.qkv_bias, self.with_cp, self.rates = qkv_bias, with_cp, (attn_drop_rate, drop_rate)
        self.out_indices = tuple(out_indices)
        first: Config = norm_cfg if patch_norm else None
        self.patch_embed = PatchEmbed(in_channels, embed_dims, patch_size, strides[0], "corner", norm_cfg=first)
        places = [pretrain_img_size] * 2 if isinstance(pretrain_img_size, int) else list(pretrain_img_size)
        count = (places[0] // patch_size) * (places[-1] // patch_size)
        self.absolute_pos_embed = parameter(1, count, embed_dims) if use_abs_pos_embed else None
        self.drop_after_pos = Dropout(drop_rate)
        paths = iter(rates(drop_path_rate, sum(depths)))
        self.stages, self.downsamples = [], []
        for stage, (depth, heads) in enumerate(zip(depths, num_heads)):
            width = embed_dims * 2**stage
            blocks = [SwinBlock(width, heads, at % 2 == 1, next(paths), self) for at in range(depth)]
            self.stages.append(self.stage_class(blocks))
            if stage < len(depths) - 1:
                merged = norm_cfg if self.merges_with_norm else first
                self.downsamples.append(PatchMerging(width, strides[stage + 1], merged))
        self.norms = [norm(norm_cfg, embed_dims * 2**index) for index in self.out_indices]
        self._freeze(frozen_stages)

    def _freeze(self, stages: int) -> None:
        if stages < 0:
            return
        self.patch_embed.freeze()
        for stage in range(stages):
            self.stages[stage].freeze()
            if stage < len(self.downsamples):
                self.downsamples[stage].freeze()

    def forward(self, x: Tensor) -> list[Tensor]:
        x, size = self.patch_embed(x)
        if self.absolute_pos_embed is not None:
            x = x + self.absolute_pos_embed
        x = self.drop_after_pos(x)
        outs = []
        for number, stage in enumerate(self.stages):
            x = out = stage(x, size)
            before = size
            if number < len(self.downsamples):
                x, size = self.downsamples[number](x, size)
            if number in self.out_indices:
                out = self.norms[self.out_indices.index(number)](out)
                out = F.view(out, -1, *before, out.shape[2])
                outs.append(F.contiguous(F.permute(out, 0, 3, 1, 2)))
            del out
        return outs


@register("microsoft.SwinTransformer")
class OriginalSwinTransformer(SwinTransformer):
    """The same of its authors, of which many programs have a copy: other names of arguments, a mask that is made once
    in a stage, and one stage fewer that is frozen. (SwinTransformer/Swin-Transformer-Object-Detection c7b20110,
    ``mmdet/models/backbones/swin_transformer.py``)"""

    RECOMPUTES_BY = "use_checkpoint"
    stage_class = MaskedBlocks
    merges_with_norm = True

    def __init__(
        self,
        pretrain_img_size: Any = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        window_size: int = 7,
        mlp_ratio: float = 4,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.2,
        ape: bool = False,
        patch_norm: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        use_checkpoint: bool = False,
    ) -> None:
        super().__init__(
            pretrain_img_size=pretrain_img_size,
            in_channels=in_chans,
            embed_dims=embed_dim,
            patch_size=patch_size,
            window_size=window_size,
            mlp_ratio=mlp_ratio,
            depths=depths,
            num_heads=num_heads,
            out_indices=out_indices,
            qkv_bias=qkv_bias,
            patch_norm=patch_norm,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            use_abs_pos_embed=ape,
            with_cp=use_checkpoint,
            frozen_stages=frozen_stages - 1 if frozen_stages > 0 else frozen_stages,
        )
        if frozen_stages > 0 and self.absolute_pos_embed is not None:
            self.absolute_pos_embed.requires_grad = False


def recomputes_by(backbone: type[Module] | None) -> str:
    """The argument by which a backbone's blocks are recomputed."""
    return str(getattr(backbone, "RECOMPUTES_BY", "with_cp"))
