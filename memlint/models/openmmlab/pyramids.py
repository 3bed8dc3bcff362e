"""Pyramids over time (mmaction2 1.2, ``models/necks/tpn.py``, ``models/heads/tpn_head.py``).

Shapes: (N, C, T, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Dropout, Linear, Module
from memlint.meta.ops.shapes import as_tuple
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, ConvModule
from memlint.models.openmmlab.recognizers import LOSS, SCOPE, TSNHead
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.videos import BN3D, CONV3D

NORMED: dict[str, Any] = {"bias": False, "conv_cfg": CONV3D, "norm_cfg": BN3D, "act_cfg": IN_PLACE}
GROUPS = 32


def pooled(x: Tensor, scale: Any) -> Tensor:
    """``MaxPool3d`` whose last window may reach over the edge; of windows of one it copies."""
    return F.max_pool(x, scale, scale, 0, True)


class LevelFusion(Module):
    def __init__(
        self,
        in_channels: Sequence[int],
        mid_channels: Sequence[int],
        out_channels: int,
        downsample_scales: Sequence[Any] = ((1, 1, 1), (1, 1, 1)),
    ) -> None:
        self.scales = [as_tuple(scale, 3) for scale in downsample_scales]
        self.downsamples = [
            ConvModule(inputs, outputs, 1, groups=GROUPS, **NORMED)
            for inputs, outputs in zip(in_channels, mid_channels)
        ]
        self.fusion_conv = ConvModule(sum(mid_channels), out_channels, 1, **NORMED)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        outs = [layer(pooled(x, scale)) for layer, scale, x in zip(self.downsamples, self.scales, maps)]
        joined = F.cat(outs, 1)
        del outs
        return self.fusion_conv(joined)  # type: ignore[no-any-return]


class Halving(Module):
    """``SpatialModulation`` of one map: halved, and twice as wide, until it is as wide as the last one."""

    def __init__(self, channels: int, outputs: int) -> None:
        self.convs = [
            ConvModule(channels << at, channels << (at + 1), (1, 3, 3), (1, 2, 2), (0, 1, 1), **NORMED)
            for at in range(int(log2(outputs // channels)))
        ]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convs:
            x = layer(x)
        return x


class AuxiliaryHead(Module):
    def __init__(self, channels: int, out_channels: int, loss_weight: float = 0.5, loss_cls: Any = LOSS) -> None:
        self.conv = ConvModule(
            channels, 2 * channels, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False, conv_cfg=CONV3D, norm_cfg=BN3D
        )
        self.dropout, self.fc = Dropout(0.5), Linear(2 * channels, out_channels)
        self.loss_cls = build(loss_cls, "model.neck.aux_head_cfg.loss_cls", SCOPE)

    def forward(self, x: Tensor, labels: list[Tensor]) -> Tensor:
        x = F.flatten(F.adaptive_avg_pool(self.conv(x), 1), 1)
        scores = self.fc(self.dropout(x))
        return self.loss_cls(scores, F.squeeze(F.stack(labels), 1)) * 1.0  # type: ignore[no-any-return]


@register()
class TPN(Module):
    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        spatial_modulation_cfg: Any = None,
        temporal_modulation_cfg: Any = None,
        upsample_cfg: Any = None,
        downsample_cfg: Any = None,
        level_fusion_cfg: Any = None,
        aux_head_cfg: Any = None,
        flow_type: str = "cascade",
        place: str = "model.neck",
    ) -> None:
        needed = (spatial_modulation_cfg, temporal_modulation_cfg, upsample_cfg, downsample_cfg, level_fusion_cfg)
        if any(one is None for one in needed) or set(downsample_cfg) - {"downsample_scale"}:
            raise UnknownModel(f"{place} leaves out a part, or states more of one, than memlint knows")
        self.parallel = flow_type == "parallel"
        self.upsample, self.downsample = (
            as_tuple(upsample_cfg["scale_factor"], 3),
            as_tuple(downsample_cfg["downsample_scale"], 3),
        )
        widest = spatial_modulation_cfg["out_channels"]
        self.spatial = [Halving(channels, widest) for channels in spatial_modulation_cfg["in_channels"]]
        self.lengths = list(temporal_modulation_cfg["downsample_scales"])
        plain: dict[str, Any] = {"bias": False, "conv_cfg": CONV3D, "act_cfg": None}
        over_time: dict[str, Any] = {"kernel_size": (3, 1, 1), "padding": (1, 0, 0), **plain}
        self.temporal = [ConvModule(in_channels[-1], out_channels, groups=GROUPS, **over_time) for _ in in_channels]
        self.downs = [ConvModule(out_channels, out_channels, **over_time) for _ in in_channels[1:]]
        self.level_fusion_1, self.level_fusion_2 = LevelFusion(**level_fusion_cfg), LevelFusion(**level_fusion_cfg)
        fused = 2 * level_fusion_cfg["out_channels"]
        self.pyramid_fusion = ConvModule(fused, 2048, 1, bias=False, conv_cfg=CONV3D, norm_cfg=BN3D)
        self.aux_head = None if aux_head_cfg is None else AuxiliaryHead(in_channels[-2], **aux_head_cfg)

    def forward(self, maps: Sequence[Tensor], labels: list[Tensor], beside: list[Tensor]) -> Tensor:
        if self.aux_head is not None:
            beside.append(self.aux_head(maps[-2], labels))
        halved = [layer(x) for layer, x in zip(self.spatial, maps)]
        timed = [pooled(layer(x), (length, 1, 1)) for layer, x, length in zip(self.temporal, halved, self.lengths)]
        outs = [F.clone(x) for x in timed]
        for at in range(len(outs) - 1, 0, -1):
            wider = F.interpolate(outs[at], *(side * by for side, by in zip(outs[at].shape[2:], self.upsample)))
            outs[at - 1] = F.add(outs[at - 1], wider)
        above = self.level_fusion_1(outs)
        if self.parallel:
            outs = [F.clone(x) for x in timed]
        for at, layer in enumerate(self.downs):
            outs[at + 1] = F.add(outs[at + 1], pooled(layer(outs[at]), self.downsample))
        below = self.level_fusion_2(outs)
        return self.pyramid_fusion(F.cat([above, below], 1))  # type: ignore[no-any-return]


@register()
class TPNHead(TSNHead):
    """Of clips one row each; of frames, which the neck has made one of, as many."""

    def forward(self, x: Tensor, several: int) -> Tensor:
        return self.fc_cls(F.flatten(self.dropped(self.pooled(x)), 1))  # type: ignore[no-any-return]
