"""ConvNeXt (mmpretrain 1.2 and mmcls 0.25, ``models/backbones/convnext.py``), which mmseg's and mmdet's configs name as
``mmpretrain.ConvNeXt`` or ``mmcls.ConvNeXt``; and that of its authors (facebookresearch/ConvNeXt 048efce:
``semantic_segmentation/backbone/convnext.py``), which many projects have a copy of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Conv, Linear, Module, parameter
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import GELU, NORMS, ChannelNorm, Config, DropPath, activation, norm, recomputed
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.transformers import rates

LN2D: dict[str, Any] = {"type": "LN2d"}
# name -> blocks of each stage, and channels
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "atto": ((2, 2, 6, 2), (40, 80, 160, 320)),
    "femto": ((2, 2, 6, 2), (48, 96, 192, 384)),
    "pico": ((2, 2, 6, 2), (64, 128, 256, 512)),
    "nano": ((2, 2, 8, 2), (80, 160, 320, 640)),
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "small": ((3, 3, 27, 3), (96, 192, 384, 768)),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
    "large": ((3, 3, 27, 3), (192, 384, 768, 1536)),
    "xlarge": ((3, 3, 27, 3), (256, 512, 1024, 2048)),
    "huge": ((3, 3, 27, 3), (352, 704, 1408, 2816)),
}


class ConvNeXtBlock(Module):
    """A 7x7 convolution of each channel, then two products, channels last where they are ``linear``."""

    def __init__(self, width: int, path: float, net: ConvNeXt) -> None:
        hidden = 4 * width
        self.with_cp, self.linear = net.with_cp, net.linear_pw_conv
        self.depthwise_conv = Conv(width, width, (7, 7), 1, 3, groups=width)
        self.norm = norm(net.norm_cfg, width)
        self.pointwise_conv1 = Linear(width, hidden) if self.linear else Conv(width, hidden, (1, 1))
        self.act = activation(net.act_cfg)
        self.pointwise_conv2 = Linear(hidden, width) if self.linear else Conv(hidden, width, (1, 1))
        self.gamma = parameter(width) if net.scaled else None
        self.drop_path = DropPath(path)

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self._sum, x, self.with_cp)

    def _sum(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.depthwise_conv(x)
        if self.linear:
            x = F.permute(x, 0, 2, 3, 1)
            x = self.norm.last(x) if isinstance(self.norm, ChannelNorm) else self.norm(x)
        else:
            x = self.norm(x)
        x = self.pointwise_conv2(self.act(self.pointwise_conv1(x)))
        if self.linear:
            x = F.permute(x, 0, 3, 1, 2)
        if self.gamma is not None:
            x = x * F.view(self.gamma, 1, -1, 1, 1)
        return shortcut + self.drop_path(x)  # type: ignore[no-any-return]


@register()
class ConvNeXt(Module):
    """(N, 3, H, W) -> a map for each of ``out_indices``, or its mean."""

    def __init__(
        self,
        arch: Any = "tiny",
        in_channels: int = 3,
        stem_patch_size: int = 4,
        norm_cfg: Config = LN2D,
        act_cfg: Config = GELU,
        linear_pw_conv: bool = True,
        use_grn: bool = False,
        drop_path_rate: float = 0.0,
        layer_scale_init_value: float = 1e-6,
        out_indices: Any = -1,
        frozen_stages: int = 0,
        gap_before_final_norm: bool = True,
        with_cp: bool = False,
        place: str = "model.backbone",
    ) -> None:
        if use_grn or (isinstance(arch, str) and arch not in SIZES):
            name = "use_grn" if use_grn else f"arch {arch}"
            raise UnknownModel(f"{place}.{name} is a ConvNeXt that memlint does not know")
        depths, widths = SIZES[arch] if isinstance(arch, str) else (arch["depths"], arch["channels"])
        self.norm_cfg, self.act_cfg, self.linear_pw_conv = norm_cfg, act_cfg, linear_pw_conv
        self.with_cp, self.scaled, self.averages = with_cp, layer_scale_init_value > 0, gap_before_final_norm
        indices: Sequence[int] = [out_indices] if isinstance(out_indices, int) else out_indices
        self.out_indices = tuple(4 + index if index < 0 else index for index in indices)
        paths = iter(rates(drop_path_rate, sum(depths)))
        self.stages = []
        inputs = in_channels
        for number, (depth, width) in enumerate(zip(depths, widths)):
            step = stem_patch_size if number == 0 else 2
            before = None if number == 0 else norm(norm_cfg, inputs)
            shrunk = Conv(inputs, width, (step, step), step)
            after = norm(norm_cfg, width) if number == 0 else None
            blocks = [ConvNeXtBlock(width, next(paths), self) for _ in range(depth)]
            self.stages.append(ConvNeXtStage(before, shrunk, after, blocks))
            inputs = width
        self.norms = [norm(norm_cfg, widths[index]) for index in self._normalised()]
        for stage in self.stages[:frozen_stages]:
            stage.freeze()
            stage.eval()

    def _normalised(self) -> Sequence[int]:
        """The stages that have a norm of their own behind them."""
        return self.out_indices

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outs = []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in self.out_indices:
                normalise = self.norms[self._normalised().index(number)]
                outs.append(F.flatten(normalise(F.mean(x, (2, 3), True)), 1) if self.averages else normalise(x))
        return tuple(outs)


class ConvNeXtStage(Module):
    """The way to a resolution, with its norm before or after it, and the blocks there."""

    def __init__(self, before: Module | None, shrunk: Conv, after: Module | None, blocks: list[ConvNeXtBlock]) -> None:
        self.before, self.conv, self.after = before, shrunk, after
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        if self.before is not None:
            x = self.before(x)
        x = self.conv(x)
        if self.after is not None:
            x = self.after(x)
        for block in self.blocks:
            x = block(x)
        return x


class WrittenOut(ChannelNorm):
    """The authors' norm over the channels of a map, with an operation for each sign of its formula."""

    def forward(self, x: Tensor) -> Tensor:
        mean = F.mean(x, (1,), True)
        spread = F.mean(F.pow(x - mean, 2), (1,), True)
        x = F.div(x - mean, F.sqrt(spread + 1e-6))
        return F.view(self.weight, -1, 1, 1) * x + F.view(self.bias, -1, 1, 1)


@register("facebook.ConvNeXt")
class AuthorsConvNeXt(ConvNeXt):
    """A norm behind each stage, whether its map is taken or not."""

    def __init__(
        self,
        in_chans: int = 3,
        depths: Sequence[int] = (3, 3, 9, 3),
        dims: Sequence[int] = (96, 192, 384, 768),
        drop_path_rate: float = 0.0,
        layer_scale_init_value: float = 1e-6,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        place: str = "model.backbone",
    ) -> None:
        super().__init__(
            {"depths": tuple(depths), "channels": tuple(dims)},
            in_chans,
            norm_cfg={"type": "facebook.LayerNorm"},
            drop_path_rate=drop_path_rate,
            layer_scale_init_value=layer_scale_init_value,
            out_indices=tuple(out_indices),
            gap_before_final_norm=False,
            place=place,
        )

    def _normalised(self) -> Sequence[int]:
        return range(4)


NORMS["facebook.LayerNorm"] = WrittenOut
