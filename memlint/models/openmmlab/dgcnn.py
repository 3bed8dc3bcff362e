"""DGCNN (mmdet3d 1.4 and 0.18, ``models/backbones/dgcnn.py``, ``models/layers/dgcnn_modules``,
``models/decode_heads/dgcnn_head.py``): each point beside those that are nearest to it, by places first and by features
from then on.

Shapes: rows of points (B, N, C), maps of neighbours (B, C, N, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import RELU, Config, ConvModule
from memlint.models.openmmlab.grouping import group, grouping_operation
from memlint.models.openmmlab.pointnet import BN1D, BN2D, CONV1D, Layers, PointHead
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import SPACE

BY_PLACE, BY_FEATURE = "D-KNN", "F-KNN"


class EdgeLayer(Module):
    """``DGCNNGFModule``: how neighbours differ from a point, beside the point, and the largest of what comes of it."""

    def __init__(self, widths: Sequence[int], samples: int, mode: str, act_cfg: Config) -> None:
        self.samples, self.mode = samples, mode
        self.mlp = Layers(widths, BN2D, act_cfg=act_cfg)

    def forward(self, points: Tensor) -> Tensor:
        turned = F.contiguous(F.transpose(points, 1, 2))
        if self.mode == BY_PLACE:
            places = F.contiguous(F.narrow(points, 2, SPACE))
            _, index = group(places, places, None, self.samples, True, nearest=True)
            grouped = F.add_(grouping_operation(turned, index), F.unsqueeze(turned, -1))
        else:
            grouped, _ = group(points, points, None, self.samples, True, nearest=True)
        own = F.repeat(F.unsqueeze(turned, -1), 1, 1, 1, self.samples)
        x = F.cat([grouped, own], 1)
        x = self.mlp(x)
        x = F.contiguous(F.squeeze(F.max_pool(x, (1, self.samples)), -1))
        made = F.contiguous(F.transpose(x, 1, 2))
        del grouped, own
        return made


@register()
class DGCNNBackbone(Module):
    """(B, N, C) -> (B, N, D): what each layer made, and the largest of all points."""

    def __init__(
        self,
        in_channels: int,
        num_samples: Sequence[int] = (20, 20, 20),
        knn_modes: Sequence[str] = (BY_PLACE, BY_FEATURE, BY_FEATURE),
        radius: Any = (None, None, None),
        gf_channels: Any = ((64, 64), (64, 64), (64,)),
        fa_channels: Sequence[int] = (1024,),
        act_cfg: Config = RELU,
        place: str = "model.backbone",
    ) -> None:
        if any(one is not None for one in radius):
            raise UnknownModel(f"{place}.radius bounds neighbours in a way that memlint does not know")
        self.GF_modules = []
        inputs, total = 2 * in_channels, 0
        for widths, samples, mode in zip(gf_channels, num_samples, knn_modes):
            if mode not in (BY_PLACE, BY_FEATURE):
                raise UnknownModel(f"{place}.knn_modes {mode} finds neighbours in a way that memlint does not know")
            self.GF_modules.append(EdgeLayer([inputs, *widths], samples, mode, act_cfg))
            inputs = 2 * widths[-1]
            total += widths[-1]
        self.FA_mlps = Layers([total, *fa_channels], BN1D, conv_cfg=CONV1D, act_cfg=act_cfg)

    def forward(self, points: Tensor) -> Tensor:
        rows = [points]
        for layer in self.GF_modules:
            rows.append(layer(rows[-1]))
        own = F.contiguous(F.transpose(F.cat(rows[1:], -1), 1, 2))
        x = self.FA_mlps(own)
        most = F.repeat(F.max(x, -1, keepdim=True)[0], 1, 1, x.shape[-1])
        return F.contiguous(F.transpose(F.cat([most, own], 1), 1, 2))


@register()
class DGCNNHead(PointHead):
    def __init__(self, channels: int, fp_channels: Sequence[int] = (1216, 512), **base: Any) -> None:
        super().__init__(channels, **base)
        self.FP_mlps = Layers(fp_channels, BN1D, conv_cfg=CONV1D, act_cfg=self.common["act_cfg"])
        self.pre_seg_conv = ConvModule(fp_channels[-1], channels, 1, bias=False, **self.common)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.FP_mlps(F.contiguous(F.transpose(rows, 1, 2)))
        x = F.contiguous(F.transpose(x, 1, 2))
        return self.cls_seg(self.pre_seg_conv(F.contiguous(F.transpose(x, 1, 2))))
