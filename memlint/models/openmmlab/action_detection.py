"""Who does what, and where: mmdet's ``FastRCNN`` over clips with mmaction2's heads (mmaction2 1.2,
``models/roi_heads``). Boxes come with the data; how many a clip has no config says."""

from __future__ import annotations

from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Dropout, Linear, Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, Config, ConvModule, Sequence_, pair
from memlint.models.openmmlab.recognizers import SCOPE
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.videos import BN3D, CONV3D
from memlint.models.regions import roi_align

# Heads with which mmdet's detector is one of actions.
HEADS = ("AVARoIHead",)


@register(f"{SCOPE}.FastRCNN")
class ActionDetector(Module):
    """(clips, how many boxes each has) -> the loss of what is said of the boxes."""

    def __init__(
        self,
        backbone: Any,
        roi_head: Any,
        neck: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        if neck is not None:
            raise UnknownModel("model.neck stands before boxes of actions, which memlint does not know")
        self.backbone = build(backbone, "model.backbone", SCOPE)
        self.roi_head = build(roi_head, "model.roi_head", SCOPE)

    def forward(self, clips: Tensor, each: int) -> Tensor:
        return self.roi_head(self.backbone(clips), clips.shape[0] * each)  # type: ignore[no-any-return]


@register()
class AVARoIHead(Module):
    def __init__(
        self,
        bbox_roi_extractor: Any,
        bbox_head: Any,
        shared_head: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
    ) -> None:
        self.bbox_roi_extractor = build(bbox_roi_extractor, f"{place}.bbox_roi_extractor", SCOPE)
        self.shared_head = None if shared_head is None else build(shared_head, f"{place}.shared_head", SCOPE)
        self.bbox_head = build(bbox_head, f"{place}.bbox_head", SCOPE)

    def forward(self, maps: Any, count: int) -> Tensor:
        regions, whole = self.bbox_roi_extractor(maps, count)
        if self.shared_head is not None:
            regions = self.shared_head(regions, whole, count)
        return self.bbox_head(regions)  # type: ignore[no-any-return]


@register()
class SingleRoIExtractor3D(Module):
    """Maps (N, C, T, H, W), brought to one length -> regions of each of their frames, and the maps side by side."""

    def __init__(
        self,
        roi_layer_type: str = "RoIAlign",
        featmap_stride: int = 16,
        output_size: Any = 16,
        sampling_ratio: int = 0,
        pool_mode: str = "avg",
        aligned: bool = True,
        with_temporal_pool: bool = True,
        temporal_pool_mode: str = "avg",
        with_global: bool = False,
        place: str = "model.roi_head.bbox_roi_extractor",
    ) -> None:
        if roi_layer_type != "RoIAlign":
            raise UnknownModel(f"{place}.roi_layer_type {roi_layer_type} is one that memlint does not know")
        self.size = pair(output_size)
        self.pools, self.highest, self.with_global = with_temporal_pool, temporal_pool_mode == "max", with_global

    def forward(self, maps: Any, count: int) -> tuple[Tensor, Tensor]:
        taken = list(maps) if isinstance(maps, tuple) else [maps]
        if len(taken) > 1:
            longest = max(x.shape[2] for x in taken)
            taken = [F.contiguous(F.interpolate(x, longest, *taken[0].shape[3:])) for x in taken]
        if self.pools:
            taken = [F.max(x, 2, True)[0] if self.highest else F.mean(x, 2, True) for x in taken]
        whole = F.cat(taken, 1)
        del taken
        regions = []
        for at in range(whole.shape[2]):
            frame = F.contiguous(whole[:, :, at])
            region = roi_align(frame, count, self.size)
            if self.with_global:
                around = F.adaptive_avg_pool(frame, self.size[0])
                region = F.cat([region, F.index(around, empty((count,), int64))], 1)
            regions.append(region)
        return F.stack(regions, 2), whole


@register()
class ACRNHead(Module):
    """Each region beside all places of its clip."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int = 1,
        num_convs: int = 1,
        conv_cfg: Config = CONV3D,
        norm_cfg: Config = BN3D,
        act_cfg: Config = IN_PLACE,
    ) -> None:
        common: dict[str, Any] = {"bias": False, "conv_cfg": conv_cfg, "norm_cfg": norm_cfg, "act_cfg": act_cfg}
        self.conv1 = ConvModule(in_channels, out_channels, 1, **common)
        self.conv2 = ConvModule(out_channels, out_channels, (1, 3, 3), (1, stride, stride), (0, 1, 1), **common)
        self.convs = Sequence_(
            *(ConvModule(out_channels, out_channels, (1, 3, 3), 1, (0, 1, 1), **common) for _ in range(num_convs - 1))
        )

    def forward(self, x: Tensor, whole: Tensor, count: int) -> Tensor:
        tile = F.repeat(F.max_pool(x, x.shape[2:]), 1, 1, 1, *whole.shape[3:])
        chosen = F.index(whole, empty((count,), int64))
        return self.convs(self.conv2(self.conv1(F.cat([tile, chosen], 1))))  # type: ignore[no-any-return]


@register()
class BBoxHeadAVA(Module):
    """Regions (boxes, C, T, H, W) -> the loss of their actions."""

    def __init__(
        self,
        background_class: bool = True,
        temporal_pool_type: str = "avg",
        spatial_pool_type: str = "max",
        in_channels: int = 2048,
        focal_gamma: float = 0.0,
        focal_alpha: float = 1.0,
        num_classes: int = 81,
        dropout_ratio: float = 0,
        dropout_before_pool: bool = True,
        topk: Any = (3, 5),
        multilabel: bool = True,
        mlp_head: bool = False,
    ) -> None:
        self.kinds = temporal_pool_type, spatial_pool_type
        self.before, self.dropout = dropout_before_pool, Dropout(dropout_ratio)
        self.hidden = Linear(in_channels, in_channels) if mlp_head else None
        self.fc_cls = Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = self.dropout(x)
        over_time, over_space = ((x.shape[2], 1, 1), (1, *x.shape[3:]))
        for kind, window in zip(self.kinds, (over_time, over_space)):
            x = F.max_pool(x, window) if kind == "max" else F.avg_pool(x, window)
        if not self.before:
            x = self.dropout(x)
        x = F.flatten(x, 1)
        if self.hidden is not None:
            x = F.relu(self.hidden(x))
        scores = self.fc_cls(x)
        each = F.mul(scores, empty(scores.shape, scores.dtype))  # one kernel for all classes of all boxes
        likely = F.exp(F.neg(each))
        return F.mean(F.mul(F.pow(F.rsub(likely, 1.0), 2.0), each))
