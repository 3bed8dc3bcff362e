"""PointRCNN (mmdet3d 1.4 and 0.18, ``models/detectors/point_rcnn.py`` and ``two_stage.py``,
``models/dense_heads/point_rpn_head.py``, ``models/roi_heads``): boxes of all points, then what lies in some of them.

Shapes: N points of a scene, R regions of a batch with S points each. Regions are at their configured maximum
(``train_cfg.rcnn.sampler.num``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.nn import BatchNorm, Linear, Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import RELU, Config, ConvModule, Sequence_, activation, conv
from memlint.models.openmmlab.detection import focal_loss
from memlint.models.openmmlab.pointnet import BN1D, CONV1D, CONV2D, FeaturePropagation, Layers, Levels, set_abstraction
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import SPACE, PointModel, Scenes
from memlint.models.openmmlab.votes import of_predictions

BESIDE = 2  # a score and a depth, which stand beside a point's features
CODE = 7  # numbers of a box that no coder says


@register()
class PointNetFPNeck(Module):
    """Features of few points, spread to all of them."""

    def __init__(self, fp_channels: Any) -> None:
        self.FP_modules = [FeaturePropagation(widths) for widths in fp_channels]

    def forward(self, levels: Levels) -> tuple[Tensor, Tensor]:
        x = levels.features[-1]
        for number, module in enumerate(self.FP_modules):
            at = -(number + 2)
            x = module(levels.xyz[at], levels.xyz[at + 1], levels.features[at], x)
        assert x is not None
        return levels.xyz[-(len(self.FP_modules) + 1)], x


def _products(inputs: int, widths: Sequence[int], outputs: int) -> Sequence_:
    """Products over points, with norms between them."""
    layers: list[Module] = []
    for one, other in pairwise([inputs, *widths]):
        layers += [Linear(one, other, bias=False), BatchNorm(other), activation({"type": "ReLU"})]
    return Sequence_(*layers, Linear(widths[-1] if widths else inputs, outputs))


@register()
class PointRPNHead(Module):
    """Features (B, C, N) -> a box and a score of each class for each point."""

    def __init__(
        self,
        num_classes: int,
        pred_layer_cfg: Any = None,
        enlarge_width: float = 0.1,
        cls_loss: Any = None,
        bbox_loss: Any = None,
        bbox_coder: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
    ) -> None:
        given: Mapping[str, Any] = pred_layer_cfg
        self.classes, self.code = num_classes, (bbox_coder or {}).get("code_size", CODE + 1)
        self.cls_layers = _products(given["in_channels"], given["cls_linear_channels"], self.classes)
        self.reg_layers = _products(given["in_channels"], given["reg_linear_channels"], self.code)

    def loss(self, features: Tensor, scenes: Scenes) -> tuple[list[Tensor], Tensor]:
        """Losses, and the scores."""
        batch, width, points = features.shape
        rows = F.contiguous(F.permute(features, 0, 2, 1))
        rows = F.view(rows, batch * points, width)
        scores, places = self.cls_layers(rows), self.reg_layers(rows)
        masks = [empty((points, scenes.boxes + 1), int64) for _ in range(batch)]
        wanted = empty((batch, points, self.code))
        losses = [of_predictions(places), F.sum(F.mul(focal_loss(scores), empty((batch * points, 1))))]
        del masks, wanted
        return losses, F.view(scores, batch, points, self.classes)


@register()
class Single3DRoIPointExtractor(Module):
    """Points and what is beside them, taken out for each region, without gradients."""

    def __init__(self, roi_layer: Any = None, place: str = "model.roi_head.bbox_roi_extractor") -> None:
        stated = roi_layer or {}
        if stated.get("type") != "RoIPointPool3d":
            raise UnknownModel(f"{place}.roi_layer.type takes points in a way that memlint does not know")
        self.points = stated.get("num_sampled_points", 512)

    def forward(self, features: Tensor, regions: int) -> Tensor:
        """(B, N, C) -> (R, S, 3 + C)."""
        with no_grad():
            return empty((regions, self.points, SPACE + features.shape[2]))


@register()
class PointRCNNBboxHead(Module):
    """Regions (R, S, 3 + C) -> a score and a box of each."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        mlp_channels: Sequence[int],
        pred_layer_cfg: Any = None,
        num_points: Sequence[int] = (128, 32, -1),
        radius: Sequence[float] = (0.2, 0.4, 100),
        num_samples: Sequence[int] = (64, 64, 64),
        sa_channels: Any = ((128, 128, 128), (128, 128, 256), (256, 256, 512)),
        bbox_coder: Any = None,
        sa_cfg: Any = None,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        bias: bool | str = "auto",
        loss_bbox: Any = None,
        loss_cls: Any = None,
        with_corner_loss: bool = True,
        place: str = "model.roi_head.bbox_head",
    ) -> None:
        self.own = in_channels
        widths = [in_channels, *mlp_channels]
        apart: dict[str, Any] = {"conv_cfg": CONV2D, "inplace": False}
        self.xyz_up_layer = Sequence_(*(ConvModule(one, other, 1, **apart) for one, other in pairwise(widths)))
        inputs = widths[-1]
        self.merge_down_layer = ConvModule(2 * inputs, inputs, 1, **apart)
        config = sa_cfg or {"type": "PointSAModule", "pool_mod": "max", "use_xyz": True}
        self.SA_modules = []
        for count, reach, samples, own in zip(num_points, radius, num_samples, sa_channels):
            given = {"num_point": count if count > 0 else None, "radius": reach, "num_sample": samples}
            module = set_abstraction(config, f"{place}.sa_cfg", mlp_channels=[inputs, *own], **given)
            self.SA_modules.append(module)
            inputs = module.width
        given = pred_layer_cfg
        common: dict[str, Any] = {"norm_cfg": norm_cfg or BN1D, "conv_cfg": conv_cfg or CONV1D}
        common |= {"act_cfg": act_cfg, "bias": bias}
        self.cls_convs = Layers([given["in_channels"], *given["cls_conv_channels"]], **common)
        self.reg_convs = Layers([given["in_channels"], *given["reg_conv_channels"]], **common)
        code = (bbox_coder or {}).get("code_size", CODE)
        self.conv_cls = conv(conv_cfg or CONV1D, given["cls_conv_channels"][-1], num_classes, 1)
        self.conv_reg = conv(conv_cfg or CONV1D, given["reg_conv_channels"][-1], code * num_classes, 1)

    def loss(self, regions: Tensor) -> list[Tensor]:
        given = F.clone(regions)
        count, points, width = given.shape
        told = empty((count, self.own, points, 1))
        up = self.xyz_up_layer(told)
        rest = F.unsqueeze(F.transpose(F.narrow(given, 2, width - self.own), 1, 2), 3)
        x = self.merge_down_layer(F.cat([up, rest], 1))
        features = F.squeeze(x, 3)
        places = F.contiguous(F.narrow(given, 2, SPACE))
        for module in self.SA_modules:
            places, features, _ = module(places, features)
        return [of_predictions(self.conv_cls(self.cls_convs(features)), self.conv_reg(self.reg_convs(features)))]


@register()
class PointRCNNRoIHead(Module):
    def __init__(
        self,
        bbox_head: Any,
        bbox_roi_extractor: Any,
        depth_normalizer: float = 70.0,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
    ) -> None:
        self.regions = int(((train_cfg or {}).get("sampler") or {}).get("num", 128))
        self.bbox_head = build(bbox_head, f"{place}.bbox_head")
        self.bbox_roi_extractor = build(bbox_roi_extractor, f"{place}.bbox_roi_extractor")

    def loss(self, features: Tensor, scores: Tensor) -> list[Tensor]:
        batch, _, points = features.shape
        beside = [empty((batch, points, 1)) for _ in range(BESIDE)]
        rows = F.contiguous(F.transpose(features.detach(), 1, 2))
        whole = F.cat([*beside, rows], 2)
        regions = self.bbox_roi_extractor(whole, batch * self.regions)
        losses: list[Tensor] = self.bbox_head.loss(regions)
        return losses


@register()
class PointRCNN(PointModel):
    """Points (B, N, C) -> losses of boxes of points, and of regions."""

    def __init__(
        self,
        backbone: Any,
        neck: Any,
        rpn_head: Any,
        roi_head: Any,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        settings: Mapping[str, Any] = train_cfg or {}
        self.proposals = int((settings["rpn"].get("rpn_proposal") or {}).get("nms_pre", 9000))
        self.backbone = build(backbone, "model.backbone")
        self.neck = build(neck, "model.neck")
        self.rpn_head = build(rpn_head, "model.rpn_head", train_cfg=settings.get("rpn"))
        self.roi_head = build(roi_head, "model.roi_head", train_cfg=settings.get("rcnn"))

    def losses(self, given: Sequence[Tensor], scenes: Scenes) -> list[Tensor]:
        points = F.stack(list(given))
        places, features = self.neck(self.backbone(points))
        features, places = F.clone(features), F.clone(places)
        losses, scores = self.rpn_head.loss(features, scenes)
        self._proposed(scores)
        losses += self.roi_head.loss(features, scores)
        del points, places
        return losses  # type: ignore[no-any-return]

    def _proposed(self, scores: Tensor) -> None:
        """``class_agnostic_nms``: the best, and none that lies over a better one; a bit for each two of them."""
        count = min(self.proposals, scores.shape[1])
        boxes = empty((scores.shape[1], CODE)), empty((count, CODE))
        bits = empty((count, -(-count // 64)), int64)
        del boxes, bits
