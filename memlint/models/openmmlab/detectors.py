"""Detectors of mmdet 3.3 and 2.28 (``models/detectors``), of the parts of :mod:`memlint.models.openmmlab.detection`."""

from __future__ import annotations

from typing import Any

from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models.openmmlab.detection import Boxes, Maps
from memlint.models.openmmlab.losses import of_one
from memlint.models.openmmlab.registry import build, register


class Detector(Module):
    """Images (N, 3, H, W) -> the sum of all losses."""

    def __init__(self, backbone: Any, neck: Any) -> None:
        self.backbone = build(backbone, "model.backbone")
        necks = [] if neck is None else of_one(neck)
        self.neck = [build(one, "model.neck") for one in necks]

    def maps(self, images: Tensor) -> Maps:
        found = self.backbone(images)
        for one in self.neck:
            found = one(found)
        return found  # type: ignore[no-any-return]

    def forward(self, images: Tensor, boxes: Boxes) -> Tensor:
        losses = self.losses(images, boxes)
        total = losses.pop()
        while losses:
            total = total + losses.pop()
        return total

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        raise NotImplementedError


@register("CascadeRCNN", "FasterRCNN", "MaskRCNN", "TwoStageDetector")
class TwoStageDetector(Detector):
    """Proposals first, then what is in them."""

    def __init__(
        self,
        backbone: Any,
        rpn_head: Any,
        roi_head: Any,
        train_cfg: Any,
        neck: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        super().__init__(backbone, neck)
        self.proposals = (train_cfg.get("rpn_proposal") or {}).get("nms_pre", 2000)
        self.rpn_head = build(rpn_head, "model.rpn_head")
        self.roi_head = build(roi_head, "model.roi_head", train_cfg=train_cfg.get("rcnn"))

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        maps = self.maps(images)
        losses, scores = self.rpn_head.loss(maps, boxes)
        self._proposed(scores)
        del scores
        return [*losses, *self.roi_head.loss(maps, boxes)]

    def _proposed(self, scores: list[Tensor]) -> None:
        """``_predict_by_feat_single``: of each map the best, then none that lies over a better one. The kernel has a
        bit for each two of them. (mmcv, ``ops/csrc/pytorch/cuda/nms_cuda.cu``)"""
        count = sum(min(self.proposals, x.shape[1] * x.shape[2] * x.shape[3]) for x in scores)
        every = scores[0].shape[1] * scores[0].shape[2] * scores[0].shape[3]
        ranked = empty((every,)), empty((every,), int64)
        del ranked
        decoded = [empty((count, 4)) for _ in range(3)]
        bits = empty((count, -(-count // 64)), int64)
        del decoded, bits


@register(
    *("ATSS", "FCOS", "GFL", "RetinaNet", "SingleStageDetector"),
    *("RotatedRetinaNet", "RotatedSingleStageDetector"),
)
class SingleStageDetector(Detector):
    def __init__(
        self,
        backbone: Any,
        bbox_head: Any,
        neck: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        super().__init__(backbone, neck)
        self.bbox_head = build(bbox_head, "model.bbox_head")

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        losses: list[Tensor] = self.bbox_head.loss(self.maps(images), boxes)[0]
        return losses


@register()
class RPN(Detector):
    """The first half of a detector of two stages, which makes no proposals where nothing takes them."""

    def __init__(
        self,
        backbone: Any,
        rpn_head: Any,
        neck: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        super().__init__(backbone, neck)
        self.rpn_head = build(rpn_head, "model.rpn_head")

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        losses: list[Tensor] = self.rpn_head.loss(self.maps(images), boxes)[0]
        return losses


@register()
class FastRCNN(Detector):
    """The second half, over proposals that were made before and are read with the images."""

    def __init__(
        self,
        backbone: Any,
        roi_head: Any,
        train_cfg: Any,
        neck: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        super().__init__(backbone, neck)
        self.roi_head = build(roi_head, "model.roi_head", train_cfg=train_cfg.get("rcnn"))

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        losses: list[Tensor] = self.roi_head.loss(self.maps(images), boxes)
        return losses
