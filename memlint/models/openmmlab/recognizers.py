"""Recognizers of mmaction2 1.2 and 0.24: what goes through the backbone, and the heads that say what is seen
(``models/recognizers``, ``models/heads``, ``models/losses``). Of their batch: the models' ``build``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Dropout, Linear, Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.registry import build, register

SCOPE = "mmaction"
LOSS: dict[str, Any] = {"type": "CrossEntropyLoss"}
CONSENSUS: dict[str, Any] = {"type": "AvgConsensus", "dim": 1}


class Recognizer(Module):
    """``BaseRecognizer``: (clips, labels) -> the sum of the losses."""

    def __init__(
        self,
        backbone: Any,
        cls_head: Any,
        neck: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        blending = (data_preprocessor or {}).get("blending")
        self.soft = blending is not None  # MixUp, CutMix: labels are shares
        self.backbone = build(backbone, "model.backbone", SCOPE)
        self.neck = None if neck is None else build(neck, "model.neck", SCOPE)
        self.cls_head: Head = build(cls_head, "model.cls_head", SCOPE)

    def forward(self, clips: Tensor, labels: list[Tensor]) -> Tensor:
        """Clips as they are packed: (N, several, ...) of what the backbone takes."""
        several = clips.shape[1]
        x = self.backbone(F.view(clips, clips.shape[0] * several, *clips.shape[2:]))
        if self.neck is None and isinstance(x, tuple) and len(x) == 1:  # mmpretrain's give their maps as a tuple
            (x,) = x
        beside: list[Tensor] = []
        if self.neck is not None:
            x, several = self.joined(x, several, labels, beside)
        total = self.cls_head.loss(self.cls_head(x, several), labels, self.soft)
        for one in beside:
            total = F.add(total, one)
        return total

    def joined(self, x: Any, several: int, labels: list[Tensor], beside: list[Tensor]) -> tuple[Tensor, int]:
        assert self.neck is not None
        return self.neck(x, labels, beside), several


@register()
class Recognizer2D(Recognizer):
    """Frame by frame."""

    def joined(self, x: Any, several: int, labels: list[Tensor], beside: list[Tensor]) -> tuple[Tensor, int]:
        maps = [
            F.contiguous(F.transpose(F.reshape(one, one.shape[0] // several, several, *one.shape[1:]), 1, 2))
            for one in x
        ]
        assert self.neck is not None
        return F.squeeze(self.neck(maps, labels, beside), 2), 1


@register()
class Recognizer3D(Recognizer):
    """Clip by clip."""


@register("mmaction.CrossEntropyLoss")
class CrossEntropyLoss(Module):
    """Of one label for each row, or of shares of all of them."""

    def __init__(self, loss_weight: float = 1.0, class_weight: Sequence[float] | None = None) -> None:
        self.weighted = class_weight is not None

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        if labels.ndim == 1:
            return F.cross_entropy(scores, labels) * 1.0
        logged = F.log_softmax(scores)
        return F.mean(F.sum(F.neg(F.mul(labels, logged)), 1)) * 1.0


@register("mmaction.BCELossWithLogits")
class BCELossWithLogits(Module):
    """Of each class by itself; one kernel, which keeps both."""

    def __init__(self, loss_weight: float = 1.0, class_weight: Sequence[float] | None = None) -> None:
        pass

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        if labels.ndim == 1:
            labels = empty(scores.shape, scores.dtype)
        return F.mean(F.mul(scores, labels)) * 1.0


class Head(Module):
    """``BaseHead``: one row of scores for each sample, and the loss of them."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        loss_cls: Any = LOSS,
        multi_class: bool = False,
        label_smooth_eps: float = 0.0,
        topk: Any = (1, 5),
        average_clips: str | None = None,
        spatial_type: str | None = "avg",
        dropout_ratio: float = 0.5,
        init_std: float = 0.01,
        place: str = "model.cls_head",
    ) -> None:
        self.place, self.classes, self.in_channels = place, num_classes, in_channels
        self.shares = multi_class or label_smooth_eps != 0
        self.spatial_type = spatial_type
        self.loss_cls = build(loss_cls, f"{place}.loss_cls", SCOPE)
        self.dropout = Dropout(dropout_ratio) if dropout_ratio else None

    def dropped(self, x: Tensor) -> Tensor:
        return x if self.dropout is None else self.dropout(x)

    def pooled(self, x: Tensor) -> Tensor:
        """``AdaptiveAvgPool`` to one place, where the head pools."""
        return F.adaptive_avg_pool(x, 1) if self.spatial_type == "avg" else x

    def loss(self, scores: Tensor, labels: list[Tensor], soft: bool) -> Tensor:
        stacked = F.stack(labels)
        if soft or self.shares:
            return self.loss_cls(scores, empty(scores.shape))  # type: ignore[no-any-return]
        return self.loss_cls(scores, F.squeeze(stacked, 1))  # type: ignore[no-any-return]


@register()
class I3DHead(Head):
    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self.fc_cls = Linear(self.in_channels, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        return self.fc_cls(F.flatten(self.dropped(self.pooled(x)), 1))  # type: ignore[no-any-return]


@register()
class SlowFastHead(Head):
    def __init__(self, dropout_ratio: float = 0.8, **base: Any) -> None:
        super().__init__(dropout_ratio=dropout_ratio, **base)
        self.fc_cls = Linear(self.in_channels, self.classes)

    def forward(self, x: tuple[Tensor, Tensor], several: int) -> Tensor:
        slow, fast = map(self.pooled, x)
        return self.fc_cls(F.flatten(self.dropped(F.cat([fast, slow], 1)), 1))  # type: ignore[no-any-return]


@register()
class TSNHead(Head):
    """The mean of what the segments show."""

    def __init__(self, consensus: Any = CONSENSUS, dropout_ratio: float = 0.4, **base: Any) -> None:
        super().__init__(dropout_ratio=dropout_ratio, **base)
        refuse_consensus(consensus, self.place)
        self.fc_cls = Linear(self.in_channels, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        x = self.pooled(x)
        x = F.reshape(x, x.shape[0] // several, several, *x.shape[1:])
        x = self.dropped(F.squeeze(F.mean(x, 1, True), 1))
        return self.fc_cls(F.flatten(x, 1))  # type: ignore[no-any-return]


def refuse_consensus(consensus: Any, place: str) -> None:
    if consensus.get("type") != "AvgConsensus":
        raise UnknownModel(f"{place}.consensus.type {consensus.get('type')} is one that memlint does not know")


@register()
class TSMHead(Head):
    """The mean of what is said of the segments."""

    def __init__(
        self,
        num_segments: int = 8,
        consensus: Any = CONSENSUS,
        dropout_ratio: float = 0.8,
        is_shift: bool = True,
        temporal_pool: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(dropout_ratio=dropout_ratio, **base)
        refuse_consensus(consensus, self.place)
        self.segments = num_segments // 2 if is_shift and temporal_pool else num_segments
        self.fc_cls = Linear(self.in_channels, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        scores = self.fc_cls(self.dropped(F.flatten(self.pooled(x), 1)))
        scores = F.view(scores, scores.shape[0] // self.segments, self.segments, self.classes)
        return F.squeeze(F.mean(scores, 1, True), 1)


class Rows(Module):
    """``ReLU, Linear, ReLU, Linear``"""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        self.first, self.second = Linear(inputs, inner), Linear(inner, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(F.relu(x))))  # type: ignore[no-any-return]


@register()
class TRNHead(Head):
    """Relations between segments, of two of them up to all; of each number three at the most, drawn."""

    DRAWN = 3  # ``max_subsample``

    def __init__(
        self,
        num_segments: int = 8,
        relation_type: str = "TRNMultiScale",
        hidden_dim: int = 256,
        dropout_ratio: float = 0.8,
        **base: Any,
    ) -> None:
        super().__init__(dropout_ratio=dropout_ratio, **base)
        self.segments, self.hidden = num_segments, hidden_dim
        several = relation_type == "TRNMultiScale"
        self.scales = list(range(num_segments, 1, -1)) if several else [num_segments]
        self.relations = [Rows(scale * hidden_dim, 256 if several else 512, self.classes) for scale in self.scales]
        self.fc_cls = Linear(self.in_channels, hidden_dim)

    def forward(self, x: Tensor, several: int) -> Tensor:
        x = self.fc_cls(self.dropped(F.flatten(self.pooled(x), 1)))
        x = F.view(x, x.shape[0] // self.segments, self.segments, self.hidden)
        total: Tensor | None = None
        for scale, relation in zip(self.scales, self.relations):
            count = sum(1 for _ in combinations(range(self.segments), scale))
            for _ in range(min(self.DRAWN, count)):
                chosen = F.index(x, empty((scale,), int64), whole=1)
                one = relation(F.view(chosen, x.shape[0], scale * self.hidden))
                total = one if total is None else F.add_(total, one)
        assert total is not None
        return total


@register()
class TimeSformerHead(Head):
    def __init__(self, dropout_ratio: float = 0.0, **base: Any) -> None:
        super().__init__(dropout_ratio=dropout_ratio, **base)
        self.fc_cls = Linear(self.in_channels, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        return self.fc_cls(self.dropped(x))  # type: ignore[no-any-return]


@register()
class X3DHead(Head):
    HIDDEN = 2048  # ``mid_channels``

    def __init__(self, fc1_bias: bool = False, **base: Any) -> None:
        super().__init__(**base)
        if self.spatial_type != "avg":
            raise UnknownModel(f"{self.place}.spatial_type {self.spatial_type} is one that memlint does not know")
        self.fc1 = Linear(self.in_channels, self.HIDDEN, fc1_bias)
        self.fc2 = Linear(self.HIDDEN, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        x = F.relu(self.fc1(F.flatten(self.pooled(x), 1)))
        return self.fc2(self.dropped(x))  # type: ignore[no-any-return]
