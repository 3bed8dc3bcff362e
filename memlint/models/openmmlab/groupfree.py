"""Group-Free-3D's head (mmdet3d 1.4 and 0.18, ``models/dense_heads/groupfree3d_head.py``,
``models/layers/transformer.py``): proposals that look at each other and at all points, layer by layer.

Shapes: S seeds, P proposals of each scene; tokens first, (P, B, C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.sizes import PARTS, check
from memlint.meta import functional as F
from memlint.meta.nn import BatchNorm, Dropout, LayerNorm, Module
from memlint.meta.tensor import Tensor, empty, int32
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, FeedForward, Sequence_, TorchAttention, activation, conv
from memlint.models.openmmlab.detection import focal_loss
from memlint.models.openmmlab.grouping import gather_points
from memlint.models.openmmlab.pointnet import BN1D, CONV1D, Layers, Levels
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import SPACE, Scenes
from memlint.models.openmmlab.votes import SIDES, PredictionHead, of_predictions

ORDER = ["self_attn", "norm", "cross_attn", "norm", "ffn", "norm"]
BOX = SPACE + SIDES


class Attention(Module):
    """``GroupFree3DMHA``: positions are added to values as well."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.attn = TorchAttention(config["embed_dims"], config["num_heads"], config.get("attn_drop", 0.0))
        self.proj_drop = Dropout(config.get("proj_drop", 0.0))
        self.dropout_layer = Dropout((config.get("dropout_layer") or {}).get("drop_prob", 0.0))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        value = value + key_pos
        out = self.attn(query + query_pos, key + key_pos, value)
        return query + self.dropout_layer(self.proj_drop(out))  # type: ignore[no-any-return]


class DecoderLayer(Module):
    """``BaseTransformerLayer`` of the order that the library's configs have."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        if config.get("type") != "BaseTransformerLayer" or list(config.get("operation_order") or ()) != ORDER:
            raise UnknownModel(f"{place}.operation_order is a layer that memlint does not know")
        attention = config["attn_cfgs"]
        if not isinstance(attention, Mapping) or attention.get("type") != "GroupFree3DMHA":
            raise UnknownModel(f"{place}.attn_cfgs.type is an attention that memlint does not know")
        fed: Mapping[str, Any] = config.get("ffn_cfgs") or {}
        self.width: int = attention["embed_dims"]
        self.attentions = [Attention(attention), Attention(attention)]
        hidden = fed.get("feedforward_channels", 1024)
        check(f"{place}.ffn_cfgs.num_fcs", fed.get("num_fcs", 2), PARTS)
        self.ffn = FeedForward(self.width, hidden, fed.get("num_fcs", 2), fed.get("act_cfg"), fed.get("ffn_drop", 0.0))
        self.norms = [LayerNorm(self.width) for _ in range(3)]

    def forward(self, query: Tensor, key: Tensor, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        query = self.norms[0](self.attentions[0](query, query, query, query_pos, query_pos))
        query = self.norms[1](self.attentions[1](query, key, key, query_pos, key_pos))
        return self.norms[2](self.ffn(query, query))  # type: ignore[no-any-return]


class Positions(Sequence_):
    """``ConvBNPositionalEncoding``: places (B, P, C) -> (B, D, P)."""

    def __init__(self, input_channel: int, num_pos_feats: int = 288) -> None:
        inner = conv(CONV1D, input_channel, num_pos_feats, 1)
        outer = conv(CONV1D, num_pos_feats, num_pos_feats, 1)
        super().__init__(inner, BatchNorm(num_pos_feats), activation(IN_PLACE), outer)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.permute(x, 0, 2, 1))


def _positions(config: Any, inputs: int, width: int, place: str) -> Positions:
    stated = {"type": "ConvBNPositionalEncoding", "input_channel": inputs, "num_pos_feats": width, **(config or {})}
    if stated.pop("type") != "ConvBNPositionalEncoding":
        raise UnknownModel(f"{place}.type is an encoding of positions that memlint does not know")
    return Positions(**stated)


@register()
class GroupFree3DHead(Module):
    """Seeds -> proposals, refined by each layer, each of which predicts boxes."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        bbox_coder: Any,
        num_decoder_layers: int,
        transformerlayers: Any,
        decoder_self_posembeds: Any = None,
        decoder_cross_posembeds: Any = None,
        num_proposal: int = 128,
        pred_layer_cfg: Any = None,
        size_cls_agnostic: bool = True,
        gt_per_seed: int = 3,
        sampling_objectness_loss: Any = None,
        objectness_loss: Any = None,
        center_loss: Any = None,
        dir_class_loss: Any = None,
        dir_res_loss: Any = None,
        size_class_loss: Any = None,
        size_res_loss: Any = None,
        size_reg_loss: Any = None,
        semantic_loss: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.bbox_head",
    ) -> None:
        check(f"{place}.num_decoder_layers", num_decoder_layers, PARTS)
        mode = (train_cfg or {}).get("sample_mode")
        if mode not in ("fps", "kps"):
            raise UnknownModel(f"model.train_cfg.sample_mode {mode} is a choice of points that memlint does not know")
        self.by_score, self.proposals = mode == "kps", num_proposal
        several = isinstance(transformerlayers, (list, tuple))
        layers = list(transformerlayers) if several else [transformerlayers] * num_decoder_layers
        self.decoder_layers = [DecoderLayer(one, f"{place}.transformerlayers") for one in layers]
        width = self.decoder_layers[0].width
        bins, sizes = bbox_coder.get("num_dir_bins", 1), bbox_coder.get("num_sizes", 0)
        numbers = SPACE + 2 * bins + (SIDES if size_cls_agnostic else (1 + SIDES) * sizes)
        heads = {"num_cls_out_channels": num_classes + 1, "num_reg_out_channels": numbers}
        self.points_obj_cls = [Layers([in_channels] * 3, BN1D, True, CONV1D), conv(CONV1D, in_channels, 1, 1)]
        self.conv_pred = PredictionHead(**pred_layer_cfg, **heads)
        self.decoder_query_proj = conv(CONV1D, width, width, 1)
        self.decoder_key_proj = conv(CONV1D, width, width, 1)
        own, cross = f"{place}.decoder_self_posembeds", f"{place}.decoder_cross_posembeds"
        self.decoder_self_posembeds = [_positions(decoder_self_posembeds, BOX, width, own) for _ in layers]
        self.decoder_cross_posembeds = [_positions(decoder_cross_posembeds, SPACE, width, cross) for _ in layers]
        self.prediction_heads = [PredictionHead(**pred_layer_cfg, **heads) for _ in layers]

    def predicted(self, levels: Levels) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """What is predicted of proposals, at first and by each layer; and the seeds' scores, where these choose."""
        places, features = levels.fp_xyz[-1], levels.fp_features[-1]
        assert features is not None
        batch = features.shape[0]
        scores: Tensor | None = None
        if self.by_score:
            scores = features
            for layer in self.points_obj_cls:
                scores = layer(scores)
            ranked = F.topk(F.squeeze(F.sigmoid(scores.detach()), 1), self.proposals)
            del ranked
        chosen = gather_points(features, empty((batch, self.proposals), int32))
        found = [self.conv_pred(chosen)]
        query = F.permute(self.decoder_query_proj(chosen), 2, 0, 1)
        key = F.permute(self.decoder_key_proj(features), 2, 0, 1)
        queries = []  # the library's dictionary holds them
        for number, layer in enumerate(self.decoder_layers):
            boxes = empty((batch, self.proposals, BOX))
            query_pos = F.permute(self.decoder_self_posembeds[number](boxes), 2, 0, 1)
            key_pos = F.permute(self.decoder_cross_posembeds[number](places), 2, 0, 1)
            query = layer(query, key, query_pos, key_pos)
            turned = F.permute(query, 1, 2, 0)
            queries.append(turned)
            found.append(self.prediction_heads[number](turned))
        return found, scores

    def loss(self, levels: Levels, scenes: Scenes) -> list[Tensor]:
        found, scores = self.predicted(levels)
        losses = [] if scores is None else [F.sum(focal_loss(F.reshape(scores, -1, 1)))]
        return losses + [of_predictions(*made) for made in found]
