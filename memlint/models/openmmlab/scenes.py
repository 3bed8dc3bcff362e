"""What detectors and segmentors of mmdet3d 1.4 and 0.18 are given: scenes of points, and voxels that are made of them
(``models/data_preprocessors``, ``models/detectors``, ``models/segmentors``).

How many points a scene has, how many voxels they fall into and how many objects there are is the data's, where no
transform of the config fixes it: :class:`Scenes` says it, the same of every scene of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, int32, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.losses import of_one
from memlint.models.openmmlab.registry import build, register
from memlint.named_tuple import NamedTuple

SPACE = 3  # x, y, z
ALONE = 0.5  # between a surface and places that are all alone


class Scenes(NamedTuple):
    """Of each scene: points, numbers of a point, voxels that hold points, objects that are labelled; and how far
    voxels are alone (``sparse.held``)."""

    points: int
    features: int
    voxels: int
    boxes: int
    alone: float = ALONE


class Voxels(NamedTuple):
    """What an encoder of voxels is given.

    features  (V, P, C) of hard voxels, whose points are filled up to P; (N, C) of dynamic ones, which are the points
    counts    (V,) points of each voxel; none of dynamic ones
    places    (V, 4) or (N, 4): which scene, and where in its grid
    scenes    how many there are, and what is known of one
    """

    features: Tensor
    counts: Tensor | None
    places: Tensor
    samples: int
    scenes: Scenes

    @property
    def each(self) -> int:
        """Voxels of a scene."""
        return self.scenes.voxels


# What a preprocessor says of images, and of how labels are handed on.
_OF_IMAGES = frozenset(("mean", "std", "bgr_to_rgb", "rgb_to_bgr", "pad_size_divisor", "pad_value", "non_blocking"))
_TAKEN = frozenset(("type", "voxel", "voxel_type", "voxel_layer", "batch_first", "boxtype2tensor")) | _OF_IMAGES


class Voxelization:
    """``Det3DDataPreprocessor.voxelize`` and mmcv's ``ops/voxelize.py``, without gradients; None of what is made stays
    but its result."""

    def __init__(self, preprocessor: Any, layer: Any, place: str) -> None:
        stated = dict(preprocessor or {})
        for key in stated:
            if key not in _TAKEN:
                raise UnknownModel(f"{place}.{key} is an argument of Det3DDataPreprocessor that memlint does not know")
        kind = stated.get("voxel_type", "hard")
        if kind not in ("hard", "dynamic"):
            raise UnknownModel(f"{place}.voxel_type {kind} is a way to make voxels that memlint does not know")
        layer = layer or stated.get("voxel_layer") or {}
        self.points = layer.get("max_num_points", -1)  # of a voxel
        self.most = of_one(layer.get("max_voxels", 20000))[0]  # while it trains
        self.dynamic = kind == "dynamic" or self.points == -1 or self.most == -1

    def __call__(self, points: Sequence[Tensor], scenes: Scenes) -> Voxels:
        samples, width = len(points), points[0].shape[1]
        if self.dynamic:
            places = [F.pad(empty((one.shape[0], SPACE), int32), 1, 0) for one in points]
            return Voxels(F.cat(points), None, F.cat(places), samples, scenes)
        features, where, counts = [], [], []
        for one in points:
            made = self._of_a_scene(one, width, scenes.voxels)
            centres = empty((scenes.voxels, SPACE))
            where.append(F.pad(made[1], 1, 0))
            features.append(made[0])
            counts.append(made[2])
            del made, centres
        return Voxels(F.cat(features), F.cat(counts), F.cat(where), samples, scenes)

    def _of_a_scene(self, points: Tensor, width: int, voxels: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of what there is room for: as many voxels as there may be. The kernel notes for each point where it is
        and which voxel that is."""
        room = empty((self.most, self.points, width)), empty((self.most, SPACE), int32), empty((self.most,), int32)
        notes = empty((points.shape[0], SPACE), int32), *(empty((points.shape[0],), int32) for _ in range(3))
        del notes
        return tuple(one if voxels == self.most else F.narrow(one, 0, voxels) for one in room)  # type: ignore[return-value]


class PointModel(Module):
    """Points of scenes (a list of (N, C)) -> the sum of all losses."""

    def prepared(self, points: Sequence[Tensor], scenes: Scenes) -> Any:
        """What ``data_preprocessor`` makes of a batch, which lives as long as the batch."""
        return points

    def forward(self, given: Any, scenes: Scenes) -> Tensor:
        losses = self.losses(given, scenes)
        total = losses.pop()
        while losses:
            total = total + losses.pop()
        return total

    def losses(self, given: Any, scenes: Scenes) -> list[Tensor]:
        raise NotImplementedError


@register("VoxelNet", "DynamicVoxelNet", "MVXFasterRCNN", "DynamicMVXFasterRCNN", "CenterPoint")
class VoxelDetector(PointModel):
    """Voxels, a map of them seen from above, and a head over maps. Parts of detectors that may have an image branch as
    well are called ``pts_...``; with an image branch there is no estimate."""

    def __init__(
        self,
        data_preprocessor: Any = None,
        voxel_layer: Any = None,
        voxel_encoder: Any = None,
        middle_encoder: Any = None,
        backbone: Any = None,
        neck: Any = None,
        bbox_head: Any = None,
        pts_voxel_layer: Any = None,
        pts_voxel_encoder: Any = None,
        pts_middle_encoder: Any = None,
        pts_backbone: Any = None,
        pts_neck: Any = None,
        pts_bbox_head: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
    ) -> None:
        prefix = "pts_" if pts_voxel_encoder is not None else ""
        settings = (train_cfg or {}).get("pts", train_cfg) if isinstance(train_cfg, Mapping) else {}
        self.voxelized = Voxelization(data_preprocessor, voxel_layer or pts_voxel_layer, "model.data_preprocessor")
        self.voxel_encoder = build(pts_voxel_encoder or voxel_encoder, f"model.{prefix}voxel_encoder")
        self.middle_encoder = build(pts_middle_encoder or middle_encoder, f"model.{prefix}middle_encoder")
        self.backbone = build(pts_backbone or backbone, f"model.{prefix}backbone")
        necks = of_one(pts_neck or neck) if pts_neck or neck else []
        self.neck = [build(one, f"model.{prefix}neck") for one in necks]
        self.bbox_head = build(pts_bbox_head or bbox_head, f"model.{prefix}bbox_head", train_cfg=settings)

    def prepared(self, points: Sequence[Tensor], scenes: Scenes) -> Voxels:
        return self.voxelized(points, scenes)

    def losses(self, given: Voxels, scenes: Scenes) -> list[Tensor]:
        x = self.voxel_encoder(given)
        x = self.middle_encoder(x, given)
        x = self.backbone(x)
        for one in self.neck:
            x = one(x)
        return self.bbox_head.loss(x, scenes)  # type: ignore[no-any-return]


def labels_of(samples: int, points: int) -> list[Tensor]:
    """Of each scene a class for each point."""
    return [empty((points,), int64) for _ in range(samples)]
