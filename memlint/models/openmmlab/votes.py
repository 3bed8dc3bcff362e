"""Detectors whose points vote for centres: VoteNet and 3DSSD (mmdet3d 1.4 and 0.18, ``models/detectors/votenet.py``,
``models/dense_heads/vote_head.py`` and ``ssd_3d_head.py``, ``models/layers/vote_module.py``).

Shapes: S seeds, P proposals of each scene. What a loss makes of P proposals' numbers is small beside what grouping
makes; targets are of proposals as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import RELU, Config, conv
from memlint.models.openmmlab.pointnet import BN1D, CONV1D, Layers, Levels, set_abstraction
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import SPACE, PointModel, Scenes

SIDES = 3  # of a box


class PredictionHead(Module):
    """``BaseConvBboxHead``: shared layers, then scores (B, classes, P) and numbers of boxes (B, numbers, P)."""

    def __init__(
        self,
        in_channels: int,
        num_cls_out_channels: int,
        num_reg_out_channels: int,
        shared_conv_channels: Sequence[int] = (),
        cls_conv_channels: Sequence[int] = (),
        reg_conv_channels: Sequence[int] = (),
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        bias: bool | str = "auto",
    ) -> None:
        layer = conv_cfg or CONV1D
        common: dict[str, Any] = {
            "norm_cfg": norm_cfg or BN1D,
            "bias": bias,
            "conv_cfg": layer,
            "act_cfg": act_cfg,
        }
        shared = [in_channels, *shared_conv_channels]
        classes, places = [shared[-1], *cls_conv_channels], [shared[-1], *reg_conv_channels]
        self.shared_convs = Layers(shared, **common)
        self.cls_convs = Layers(classes, **common)
        self.reg_convs = Layers(places, **common)
        self.conv_cls = conv(layer, classes[-1], num_cls_out_channels, 1)
        self.conv_reg = conv(layer, places[-1], num_reg_out_channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.shared_convs(x)
        return self.conv_cls(self.cls_convs(x)), self.conv_reg(self.reg_convs(x))


class VoteModule(Module):
    """Seeds (B, S, 3), (B, C, S) -> where each of them thinks a centre is, with its features."""

    def __init__(
        self,
        in_channels: int,
        vote_per_seed: int = 1,
        gt_per_seed: int = 3,
        num_points: int = -1,
        conv_channels: Sequence[int] = (16, 16),
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        norm_feats: bool = True,
        with_res_feat: bool = True,
        vote_xyz_range: Any = None,
        vote_loss: Any = None,
    ) -> None:
        self.votes, self.points, self.normed, self.adds = vote_per_seed, num_points, norm_feats, with_res_feat
        self.limited = vote_xyz_range is not None
        widths = [in_channels, *conv_channels]
        self.vote_conv = Layers(widths, norm_cfg or BN1D, True, conv_cfg or CONV1D, act_cfg)
        self.conv_out = conv(CONV1D, widths[-1], (SPACE + in_channels * with_res_feat) * vote_per_seed, 1)

    def forward(self, places: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.points != -1:
            places, features = F.narrow(places, 1, self.points), F.narrow(features, 2, self.points)
        batch, width, seeds = features.shape
        made = self.conv_out(self.vote_conv(features))
        made = F.reshape(F.transpose(made, 2, 1), batch, seeds, self.votes, made.shape[1] // self.votes)
        offset = F.narrow(made, 3, SPACE)
        moved = F.stack([F.clamp(F.select(offset, 3), 2) for _ in range(SPACE)], -1) if self.limited else offset
        votes = F.view(F.contiguous(F.unsqueeze(places, 2) + moved), batch, seeds * self.votes, SPACE)
        offset = F.transpose(F.reshape(offset, batch, seeds * self.votes, SPACE), 2, 1)
        if not self.adds:
            return votes, features, offset
        more = F.narrow(made, 3, width)
        own = F.contiguous(F.unsqueeze(F.transpose(features, 2, 1), 2) + more)
        own = F.contiguous(F.transpose(F.view(own, batch, seeds * self.votes, width), 2, 1))
        if self.normed:
            own = F.div(own, F.unsqueeze(F.vector_norm(own, 1), 1))
        return votes, own, offset


def of_predictions(*made: Tensor) -> Tensor:
    """The sum of losses over numbers that are predicted, each with a weight."""
    total: Tensor | None = None
    for x in made:
        distance = F.abs(F.sub(x, empty(x.shape)))
        own = F.sum(F.mul(distance, empty(x.shape)))
        total = own if total is None else total + own
    assert total is not None
    return total


@register()
class VoteHead(Module):
    """Levels -> proposals around votes, and what is predicted of each."""

    modes = ("vote", "seed", "random", "spec")

    def __init__(
        self,
        num_classes: int,
        bbox_coder: Any,
        vote_module_cfg: Any = None,
        vote_aggregation_cfg: Any = None,
        pred_layer_cfg: Any = None,
        objectness_loss: Any = None,
        center_loss: Any = None,
        dir_class_loss: Any = None,
        dir_res_loss: Any = None,
        size_class_loss: Any = None,
        size_res_loss: Any = None,
        semantic_loss: Any = None,
        iou_loss: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.bbox_head",
    ) -> None:
        self.mode = (train_cfg or {}).get("sample_mode")
        if self.mode not in self.modes:
            raise UnknownModel(
                f"model.train_cfg.sample_mode {self.mode} is a choice of votes that memlint does not know"
            )
        self.coder: Mapping[str, Any] = bbox_coder or {}
        self.num_classes = num_classes
        self.vote_module = VoteModule(**vote_module_cfg)
        self.vote_aggregation = set_abstraction(vote_aggregation_cfg, f"{place}.vote_aggregation_cfg")
        self.conv_pred = PredictionHead(
            **pred_layer_cfg, num_cls_out_channels=self.scores(), num_reg_out_channels=self.numbers()
        )

    def scores(self) -> int:
        return self.num_classes + 2

    def numbers(self) -> int:
        sizes: int = self.coder.get("num_sizes", 0)
        bins: int = self.coder.get("num_dir_bins", 1)
        return SPACE + 2 * bins + (1 + SIDES) * sizes

    def seeds(self, levels: Levels) -> tuple[Tensor, Tensor]:
        features = levels.fp_features[-1]
        assert features is not None
        return levels.fp_xyz[-1], features

    def loss(self, levels: Levels, scenes: Scenes) -> list[Tensor]:
        return self.of_seeds(*self.seeds(levels), scenes)[0]

    def of_seeds(self, places: Tensor, features: Tensor, scenes: Scenes) -> tuple[list[Tensor], Tensor]:
        """Losses, and the proposals' features (B, C, P)."""
        votes, own, offset = self.vote_module(places, features)
        if self.mode == "spec":
            found = self.vote_aggregation(places, features, None, votes)
        else:
            found = self.vote_aggregation(votes, own)
        scores, numbers = self.conv_pred(found[1])
        targets = [empty((scenes.points,), int64) for _ in range(scores.shape[0])]
        losses = [of_predictions(offset), of_predictions(scores, numbers)]
        del targets
        return losses, found[1]


@register()
class SSD3DHead(VoteHead):
    """3DSSD's: over the last level's points, without anchors."""

    def __init__(
        self, num_classes: int, bbox_coder: Any, corner_loss: Any = None, vote_loss: Any = None, **base: Any
    ) -> None:
        super().__init__(num_classes, bbox_coder, **base)

    def scores(self) -> int:
        return self.num_classes

    def numbers(self) -> int:
        bins: int = self.coder.get("num_dir_bins", 1)
        return SPACE + SIDES + 2 * bins

    def seeds(self, levels: Levels) -> tuple[Tensor, Tensor]:
        features = levels.features[-1]
        assert features is not None
        return levels.xyz[-1], features


@register("VoteNet", "SSD3DNet", "GroupFree3DNet")
class PointDetector(PointModel):
    """Points (B, N, C) -> losses of boxes."""

    def __init__(
        self, backbone: Any, bbox_head: Any, train_cfg: Any = None, test_cfg: Any = None, data_preprocessor: Any = None
    ) -> None:
        self.backbone = build(backbone, "model.backbone")
        self.bbox_head = build(bbox_head, "model.bbox_head", train_cfg=train_cfg)

    def losses(self, given: Sequence[Tensor], scenes: Scenes) -> list[Tensor]:
        levels = self.backbone(F.stack(list(given)))
        return self.bbox_head.loss(levels, scenes)  # type: ignore[no-any-return]
