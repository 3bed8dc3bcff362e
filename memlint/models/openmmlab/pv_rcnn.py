"""PV-RCNN (mmdet3d 1.4, ``models/detectors/pv_rcnn.py``, ``models/middle_encoders/voxel_set_abstraction.py``,
``models/layers/pointnet_modules/stack_point_sa_module.py``, ``models/roi_heads``): boxes of a map that is seen from
above, and what key points that lie in them know of voxels.

Shapes: points of all scenes lie in one list. M key points, or points of a grid in each region, with K neighbours.
Regions are at their configured maximum (``train_cfg.rcnn.sampler.num``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Dropout, Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, int32, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.anchors3d import Anchor3DHead
from memlint.models.openmmlab.bricks import Config, ConvModule, Sequence_, activation, conv, norm
from memlint.models.openmmlab.detection import focal_loss
from memlint.models.openmmlab.grouping import grouping_rows
from memlint.models.openmmlab.losses import of_one
from memlint.models.openmmlab.pointnet import BN1D, BN2D, CONV2D, Layers
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import SPACE, PointModel, Scenes, Voxelization, Voxels
from memlint.models.openmmlab.votes import of_predictions

CODE = 7  # numbers of a box that no coder says
CORNERS = 4  # of a map, between which a key point lies


@register()
class PartA2RPNHead(Anchor3DHead):
    """Proposals are made by value, of few boxes."""


@register()
class StackedSAModuleMSG(Module):
    """Places (N, 3) and features (N, C), around centres (M, 3) -> (M, D)."""

    def __init__(
        self,
        in_channels: int,
        radius: Sequence[float],
        sample_nums: Sequence[int],
        mlp_channels: Any,
        use_xyz: bool = True,
        pool_mod: str = "max",
        norm_cfg: Config = None,
        scale_factor: int = 1,
        place: str = "model.points_encoder",
    ) -> None:
        if pool_mod != "max":
            raise UnknownModel(f"{place}.pool_mod {pool_mod} is a pooling that memlint does not know")
        self.use_xyz, self.samples = use_xyz, list(sample_nums)
        inputs = in_channels + SPACE * use_xyz
        self.mlps = [Layers([inputs, *widths], norm_cfg or BN2D, False) for widths in mlp_channels]
        self.width = sum(widths[-1] for widths in mlp_channels)

    def forward(self, features: Tensor, centers: int) -> Tensor:
        return F.cat(
            [self._of_a_radius(mlp, count, features, centers) for mlp, count in zip(self.mlps, self.samples)], 1
        )

    def _of_a_radius(self, mlp: Layers, samples: int, features: Tensor, centers: int) -> Tensor:
        """``StackQueryAndGroup``: grouped in rows, (M, C, K); what is around nothing is zero."""
        index, alone = empty((centers, samples), int32), empty((centers,), bool_)
        places = empty((centers, SPACE, samples))
        own = F.index_put_(grouping_rows(features, index), empty(()), alone)
        grouped = F.cat([places, own], 1) if self.use_xyz else own
        x = mlp(F.unsqueeze(F.permute(grouped, 1, 0, 2), 0))
        made = F.max(x, -1)[0]
        del alone, own, places, grouped
        return F.permute(F.squeeze(made, 0), 1, 0)


@register()
class VoxelSetAbstraction(Module):
    """Key points (M of all scenes) -> their features (M, D), and those made one (M, E)."""

    def __init__(
        self,
        num_keypoints: int,
        fused_out_channel: int = 128,
        voxel_size: Any = None,
        point_cloud_range: Any = None,
        voxel_sa_cfgs_list: Any = None,
        rawpoints_sa_cfgs: Any = None,
        bev_feat_channel: int | None = 256,
        bev_scale_factor: int | None = 8,
        voxel_center_as_source: bool = False,
        norm_cfg: Config = None,
        bias: bool | str = "auto",
        place: str = "model.points_encoder",
    ) -> None:
        self.points, self.from_above = num_keypoints, bev_feat_channel is not None and bev_scale_factor is not None
        raw = rawpoints_sa_cfgs
        self.rawpoints_sa_layer = None if raw is None else build(raw, f"{place}.rawpoints_sa_cfgs")
        each = enumerate(voxel_sa_cfgs_list or ())
        self.voxel_sa_layers = [build(one, f"{place}.voxel_sa_cfgs_list.{number}") for number, one in each]
        total = sum(layer.width for layer in self.voxel_sa_layers)
        total += 0 if self.rawpoints_sa_layer is None else self.rawpoints_sa_layer.width
        total += (bev_feat_channel or 0) if self.from_above else 0
        options: dict[str, Any] = {"conv_cfg": CONV2D, "norm_cfg": norm_cfg or BN2D, "bias": bias}
        self.point_feature_fusion_layer = ConvModule(total, fused_out_channel, 1, **options)

    def forward(self, points: Sequence[Tensor], seen: Tensor, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        batch = len(points)
        centers = batch * self.points
        found = []
        if self.from_above:
            found.append(F.cat([self._interpolated(F.select(seen, 0)) for _ in range(batch)], 0))
        if self.rawpoints_sa_layer is not None:
            raw = empty((sum(one.shape[0] for one in points), points[0].shape[1] - SPACE))
            found.append(self.rawpoints_sa_layer(raw, centers))
        for layer, features in zip(self.voxel_sa_layers, levels):
            found.append(layer(features, centers))
        whole = F.cat(found, 1)
        fused = self.point_feature_fusion_layer(F.unsqueeze(F.unsqueeze(whole, -1), -1))
        return whole, F.squeeze(F.squeeze(fused, -1), -1)

    def _interpolated(self, seen: Tensor) -> Tensor:
        """A map (C, H, W), at the places of key points: what lies around each, weighed."""
        rows = F.permute(seen, 1, 2, 0)
        total: Tensor | None = None
        for _ in range(CORNERS):
            index = empty((self.points,), int64), empty((self.points,), int64)
            weighed = F.mul(F.transpose(F.index(rows, *index), 0, 1), empty((self.points,)))
            own = F.transpose(weighed, 0, 1)
            total = own if total is None else F.add(total, own)
        assert total is not None
        return total


@register()
class ForegroundSegmentationHead(Module):
    """Features (M, D) -> whether a key point lies in a box."""

    def __init__(
        self,
        in_channels: int,
        mlp_channels: Sequence[int] = (256, 256),
        extra_width: float = 0.1,
        norm_cfg: Config = None,
        loss_seg: Any = None,
    ) -> None:
        layers: list[Module] = []
        for one, other in pairwise([in_channels, *mlp_channels]):
            layers += [Linear(one, other, bias=False), norm(norm_cfg or BN1D, other), activation({"type": "ReLU"})]
        classes = 1 if (loss_seg or {"use_sigmoid": True}).get("use_sigmoid", False) else 2
        self.seg_cls_layer = Sequence_(*layers, Linear([in_channels, *mlp_channels][-1], classes))

    def loss(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the scores."""
        scores = self.seg_cls_layer(features)
        return F.sum(focal_loss(F.sigmoid(scores))), scores


@register()
class Batch3DRoIGridExtractor(Module):
    """Key points' features, gathered around a grid in each region: (R, G**3, D)."""

    def __init__(
        self, grid_size: int = 6, roi_layer: Any = None, place: str = "model.roi_head.bbox_roi_extractor"
    ) -> None:
        self.roi_grid_pool_layer = build(roi_layer, f"{place}.roi_layer")
        self.each = grid_size**3

    def forward(self, features: Tensor, regions: int) -> Tensor:
        pooled = self.roi_grid_pool_layer(features, regions * self.each)
        return F.view(pooled, regions, self.each, pooled.shape[1])


@register()
class PVRCNNBBoxHead(Module):
    """Regions (R, G**3, D) -> a score and a box of each."""

    def __init__(
        self,
        in_channels: int,
        grid_size: int,
        num_classes: int,
        class_agnostic: bool = True,
        shared_fc_channels: Sequence[int] = (256, 256),
        cls_channels: Sequence[int] = (256, 256),
        reg_channels: Sequence[int] = (256, 256),
        dropout_ratio: float = 0.3,
        with_corner_loss: bool = True,
        bbox_coder: Any = None,
        norm_cfg: Config = None,
        loss_bbox: Any = None,
        loss_cls: Any = None,
    ) -> None:
        classes = 1 if class_agnostic else num_classes
        code = (bbox_coder or {}).get("code_size", CODE)
        scores = classes if (loss_cls or {"use_sigmoid": True}).get("use_sigmoid", False) else classes + 1
        common = (norm_cfg or BN2D, dropout_ratio)
        last, inputs = shared_fc_channels[-1], in_channels * grid_size**3
        self.shared_fc_layer = _products(inputs, shared_fc_channels, len(shared_fc_channels) - 1, None, *common)
        self.cls_layer = _products(last, cls_channels, 1, scores, *common)
        self.reg_layer = _products(last, reg_channels, 1, code * classes, *common)

    def loss(self, regions: Tensor) -> Tensor:
        rows = F.contiguous(F.permute(regions, 0, 2, 1))
        x = self.shared_fc_layer(F.view(rows, rows.shape[0], rows.shape[1] * rows.shape[2], 1, 1))
        return of_predictions(self.cls_layer(x), self.reg_layer(x))


def _products(
    inputs: int, widths: Sequence[int], dropped: int, outputs: int | None, norm_cfg: Config, rate: float
) -> Sequence_:
    """``_make_fc_layers``: products as convolutions over one place, the first ones with dropout."""
    layers: list[Module] = []
    for number, (one, other) in enumerate(pairwise([inputs, *widths])):
        layers.append(ConvModule(one, other, 1, bias=False, conv_cfg=CONV2D, norm_cfg=norm_cfg))
        if rate >= 0 and number < dropped:
            layers.append(Dropout(rate))
    if outputs is not None:
        layers.append(conv(CONV2D, widths[-1], outputs, 1))
    return Sequence_(*layers)


@register()
class PVRCNNRoiHead(Module):
    def __init__(
        self,
        num_classes: int = 3,
        semantic_head: Any = None,
        bbox_roi_extractor: Any = None,
        bbox_head: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
    ) -> None:
        self.regions = int(((train_cfg or {}).get("sampler") or {}).get("num", 128))
        self.semantic_head = build(semantic_head, f"{place}.semantic_head")
        self.bbox_roi_extractor = build(bbox_roi_extractor, f"{place}.bbox_roi_extractor")
        self.bbox_head = build(bbox_head, f"{place}.bbox_head")

    def loss(self, whole: Tensor, fused: Tensor, batch: int) -> list[Tensor]:
        own, scores = self.semantic_head.loss(whole)
        weighed = F.mul(fused, F.max(F.sigmoid(scores), -1, keepdim=True)[0])
        regions = self.bbox_roi_extractor(weighed, batch * self.regions)
        return [own, self.bbox_head.loss(regions)]


@register()
class PointVoxelRCNN(PointModel):
    """Voxels -> losses of boxes of a map, of key points, and of regions."""

    def __init__(
        self,
        voxel_encoder: Any,
        middle_encoder: Any,
        backbone: Any,
        neck: Any,
        rpn_head: Any,
        points_encoder: Any,
        roi_head: Any,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        settings: Mapping[str, Any] = train_cfg or {}
        self.voxelized = Voxelization(data_preprocessor, None, "model.data_preprocessor")
        self.voxel_encoder = build(voxel_encoder, "model.voxel_encoder")
        self.middle_encoder = build(middle_encoder, "model.middle_encoder")
        self.backbone = build(backbone, "model.backbone")
        self.neck = [build(one, "model.neck") for one in of_one(neck)]
        self.rpn_head = build(rpn_head, "model.rpn_head", train_cfg=settings.get("rpn"))
        self.points_encoder = build(points_encoder, "model.points_encoder")
        self.roi_head = build(roi_head, "model.roi_head", train_cfg=settings.get("rcnn"))

    def prepared(self, points: Sequence[Tensor], scenes: Scenes) -> tuple[Sequence[Tensor], Voxels]:
        return points, self.voxelized(points, scenes)

    def losses(self, given: tuple[Sequence[Tensor], Voxels], scenes: Scenes) -> list[Tensor]:
        points, voxels = given
        made = self.middle_encoder(self.voxel_encoder(voxels), voxels)
        if not isinstance(made, tuple):
            raise UnknownModel("model.middle_encoder.return_middle_feats is not set: key points have no voxels to read")
        seen, levels = made
        x = self.backbone(seen)
        for one in self.neck:
            x = one(x)
        losses = self.rpn_head.loss(x, scenes)
        whole, fused = self.points_encoder(points, seen, levels)
        return losses + self.roi_head.loss(whole, fused, len(points))  # type: ignore[no-any-return]
