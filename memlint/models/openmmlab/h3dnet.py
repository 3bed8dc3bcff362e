"""H3DNet (mmdet3d 1.4 and 0.18, ``models/detectors/h3dnet.py``, ``models/backbones/multi_backbone.py``,
``models/roi_heads/h3d_roi_head.py``, ``mask_heads/primitive_head.py``, ``bbox_heads/h3d_bbox_head.py``): proposals that
votes make, and the faces and edges of boxes that other votes make, matched with each other.

Shapes: P proposals of a scene, each with six faces and twelve edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import RELU, Config, ConvModule, Sequence_, conv
from memlint.models.openmmlab.pointnet import BN1D, CONV1D, Layers, Levels, set_abstraction
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import SPACE, PointModel, Scenes
from memlint.models.openmmlab.votes import SIDES, VoteModule, of_predictions

FACES, EDGES = 6, 12


@register()
class MultiBackbone(Module):
    """Several backbones over the same points, and layers over what they make."""

    def __init__(
        self,
        num_streams: int,
        backbones: Any,
        aggregation_mlp_channels: Sequence[int] | None = None,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        suffixes: Sequence[str] = ("net0", "net1"),
        place: str = "model.backbone",
    ) -> None:
        if num_streams != len(suffixes):
            raise UnknownModel(f"{place}.suffixes names {len(suffixes)} of {num_streams} backbones")
        each = list(backbones) if isinstance(backbones, (list, tuple)) else [backbones] * num_streams
        self.backbone_list = [build(one, f"{place}.backbones") for one in each]
        total = sum(one["fp_channels"][-1][-1] for one in each)
        widths = list(aggregation_mlp_channels or (total // 2, total // len(each)))
        self.aggregation_layers = Layers([total, *widths], norm_cfg or BN1D, True, conv_cfg or CONV1D, act_cfg)

    def forward(self, points: Tensor) -> tuple[list[Levels], Tensor]:
        """The levels of each, and the features that all of them make."""
        every = [backbone(points) for backbone in self.backbone_list]
        made = F.cat([levels.fp_features[-1] for levels in every], 1)
        return every, self.aggregation_layers(made)


@register()
class PrimitiveHead(Module):
    """Votes for centres of faces that lie or stand, or of edges."""

    def __init__(
        self,
        num_dims: int,
        num_classes: int,
        primitive_mode: str,
        vote_module_cfg: Any = None,
        vote_aggregation_cfg: Any = None,
        feat_channels: Sequence[int] = (128, 128),
        upper_thresh: float = 100.0,
        surface_thresh: float = 0.5,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        objectness_loss: Any = None,
        center_loss: Any = None,
        semantic_reg_loss: Any = None,
        semantic_cls_loss: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head.primitive_list",
    ) -> None:
        common = (norm_cfg or BN1D, True, conv_cfg or CONV1D)
        width = vote_module_cfg["conv_channels"][-1]
        self.flag_conv = Layers([width, width // 2], *common)
        self.flag_pred = conv(CONV1D, width // 2, 2, 1)
        self.vote_module = VoteModule(**vote_module_cfg)
        self.vote_aggregation = set_abstraction(vote_aggregation_cfg, f"{place}.vote_aggregation_cfg")
        inner = Layers([self.vote_aggregation.width, *feat_channels], *common)
        self.conv_pred = Sequence_(inner, conv(CONV1D, feat_channels[-1], SPACE + num_dims + num_classes, 1))

    def forward(self, places: Tensor, features: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Centres (B, P, 3), their features, and what losses are of."""
        flags = self.flag_pred(self.flag_conv(features))
        votes, own, offset = self.vote_module(places, features)
        _, found, _ = self.vote_aggregation(votes, own)
        made = self.conv_pred(found)
        turned = F.transpose(made, 2, 1)
        centers = F.add(empty((*turned.shape[:2], SPACE)), F.narrow(turned, 2, SPACE))
        return centers, found, [flags, offset, made]


@register()
class H3DBboxHead(Module):
    """What is predicted of proposals from the faces and edges that lie near theirs."""

    def __init__(
        self,
        num_classes: int,
        suface_matching_cfg: Any,
        line_matching_cfg: Any,
        bbox_coder: Any,
        gt_per_seed: int = 1,
        num_proposal: int = 256,
        primitive_feat_refine_streams: int = 2,
        primitive_refine_channels: Sequence[int] = (128, 128, 128),
        upper_thresh: float = 100.0,
        surface_thresh: float = 0.5,
        line_thresh: float = 0.5,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        objectness_loss: Any = None,
        center_loss: Any = None,
        dir_class_loss: Any = None,
        dir_res_loss: Any = None,
        size_class_loss: Any = None,
        size_res_loss: Any = None,
        semantic_loss: Any = None,
        cues_objectness_loss: Any = None,
        cues_semantic_loss: Any = None,
        proposal_objectness_loss: Any = None,
        primitive_center_loss: Any = None,
        place: str = "model.roi_head.bbox_head",
    ) -> None:
        common = (norm_cfg or BN1D, True, conv_cfg or CONV1D)
        self.surface_center_matcher = set_abstraction(suface_matching_cfg, f"{place}.suface_matching_cfg")
        self.line_center_matcher = set_abstraction(line_matching_cfg, f"{place}.line_matching_cfg")
        width = self.surface_center_matcher.width
        streams = [width] * (primitive_feat_refine_streams + 1)
        self.matching = Sequence_(Layers([width, width], *common), conv(CONV1D, width, 2, 1))
        self.semantic_matching = Sequence_(Layers([width, width], *common), conv(CONV1D, width, 2, 1))
        self.surface_feats_aggregation = Layers(streams, *common)
        self.line_feats_aggregation = Layers(streams, *common)
        widths = [(FACES + EDGES) * width, *primitive_refine_channels]
        apart: dict[str, Any] = {"conv_cfg": common[2], "norm_cfg": common[0], "bias": True, "inplace": False}
        self.bbox_pred = [ConvModule(one, other, 1, **apart) for one, other in pairwise(widths)]
        numbers = 2 + SPACE + 2 * bbox_coder["num_dir_bins"] + (1 + SIDES) * bbox_coder["num_sizes"] + num_classes
        self.last = conv(CONV1D, widths[-1], numbers, 1)

    def matched(self, matcher: Module, centers: Tensor, features: Tensor, each: int, proposals: int) -> Tensor:
        """Features with room for so many parts of a box, grouped around the parts of each proposal."""
        batch = features.shape[0]
        room = F.cat([empty((batch, each, features.shape[2])), features], 1)
        found: tuple[Tensor, Tensor, Any] = matcher(centers, room, None, empty((batch, each * proposals, SPACE)))
        return found[1]

    def loss(self, proposals: Tensor, flat: Sequence[tuple[Tensor, Tensor]], line: tuple[Tensor, Tensor]) -> Tensor:
        """``flat``: centres and features of both kinds of faces."""
        batch, _, count = proposals.shape
        centers = F.cat([one for one, _ in flat], 1)
        own = F.cat([one for _, one in flat], 2)
        surfaces = self.matched(self.surface_center_matcher, centers, own, FACES, count)
        lines = self.matched(self.line_center_matcher, *line, EDGES, count)
        both = F.cat([surfaces, lines], 2)
        scores = [self.matching(both), self.semantic_matching(both)]
        surfaces, lines = self.surface_feats_aggregation(surfaces), self.line_feats_aggregation(lines)
        parts = [F.view(one, batch, one.shape[1] * one.shape[2] // count, count) for one in (surfaces, lines)]
        x = F.add_(self.bbox_pred[0](F.cat(parts, 1)), proposals)
        for layer in self.bbox_pred[1:]:
            x = layer(x)
        x = self.last(x)
        for _ in range(batch):
            nearest(FACES * count, centers.shape[1])
            nearest(EDGES * count, line[0].shape[1])
        return of_predictions(*scores, x)


def nearest(first: int, second: int) -> None:
    """``chamfer_distance`` of two sets of places, of a scene: both for each two of them, how far they are apart, its
    sum, and the least along either side."""
    both = empty((1, first, second, SPACE)), empty((1, first, second, SPACE))
    apart = empty((1, first, second, SPACE))
    summed = empty((1, first, second))
    del apart
    found = [(empty((1, size)), empty((1, size), int64)) for size in (first, second)]
    del both, summed, found


@register()
class H3DRoIHead(Module):
    def __init__(
        self,
        primitive_list: Any,
        bbox_head: Any,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.roi_head",
    ) -> None:
        self.primitives = [build(one, f"{place}.primitive_list.{number}") for number, one in enumerate(primitive_list)]
        self.bbox_head = build(bbox_head, f"{place}.bbox_head", train_cfg=train_cfg)

    def loss(self, places: Tensor, features: Tensor, proposals: Tensor) -> list[Tensor]:
        losses, found = [], []
        for head in self.primitives:
            centers, own, made = head(places, features)
            found.append((centers, own))
            losses.append(of_predictions(*made))
        *flat, line = found
        return [*losses, self.bbox_head.loss(proposals, flat, line)]


@register()
class H3DNet(PointModel):
    """Points (B, N, C) -> losses of proposals, of primitives, and of what both make."""

    def __init__(
        self,
        backbone: Any,
        rpn_head: Any,
        roi_head: Any,
        neck: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        if neck is not None:
            raise UnknownModel("model.neck stands behind several backbones, which memlint does not know")
        settings = train_cfg or {}
        self.backbone = build(backbone, "model.backbone")
        self.rpn_head = build(rpn_head, "model.rpn_head", train_cfg=settings.get("rpn"))
        self.roi_head = build(roi_head, "model.roi_head", train_cfg=settings.get("rcnn"))

    def losses(self, given: Sequence[Tensor], scenes: Scenes) -> list[Tensor]:
        every, features = self.backbone(F.stack(list(given)))
        places = every[0].fp_xyz[-1]
        losses, proposals = self.rpn_head.of_seeds(places, features, scenes)
        losses += self.roi_head.loss(places, features, proposals)
        del every
        return losses  # type: ignore[no-any-return]
