"""CenterPoint's heads (mmdet3d 1.4 and 0.18, ``models/dense_heads/centerpoint_head.py``) and mmcv's deformable
convolution (mmcv 2.2, ``ops/deform_conv.py`` and ``ops/csrc/pytorch/deform_conv.cpp``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.architectures.sizes import PARTS, check
from memlint.meta import functional as F
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Conv, Module, parameter
from memlint.meta.tensor import Tensor, bool_, empty, int64, uint8
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import Config, ConvModule, Sequence_, conv, pair
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import Scenes

BOX = 10  # numbers of a box that is a centre
STEP = 32  # ``im2col_step``: images whose columns are made at once, at most
CONV2D: dict[str, Any] = {"type": "Conv2d"}
BN2D: dict[str, Any] = {"type": "BN2d"}


class DeformConv(Module):
    """``DeformConv2dPack`` ("DCN"): a convolution says where each number is read from, another one reads there."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        stated = {"stride": 1, "padding": 0, "groups": 1, "deform_groups": 1, **config}
        if stated.pop("type", "DCN") != "DCN":
            raise UnknownModel(f"{place}.type is a deformable convolution that memlint does not know")
        inputs, outputs = stated.pop("in_channels"), stated.pop("out_channels")
        self.kernel = pair(stated.pop("kernel_size"))
        stride, padding, groups = (stated.pop(key) for key in ("stride", "padding", "groups"))
        offsets = 2 * self.kernel[0] * self.kernel[1] * stated.pop("deform_groups")
        if stated:
            raise UnknownModel(f"{place}.{next(iter(stated))} is an argument of DCN that memlint does not know")
        self.weight = parameter(outputs, inputs // groups, *self.kernel)
        self.conv_offset = Conv(inputs, offsets, self.kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return deform_conv(x, self.conv_offset(x), self.weight)


def deform_conv(x: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
    """Columns of so many images are made at once, and the result in a buffer beside it; backward makes columns twice.
    Keeps input, offsets and weight."""
    images, (rows, columns) = min(x.shape[0], STEP), offset.shape[2:]
    window = (x.shape[1] * weight.shape[2] * weight.shape[3], images * rows * columns)
    shape = (x.shape[0], weight.shape[0], rows, columns)
    out = empty(shape, x.dtype)
    scratch = empty(window, x.dtype), empty(shape, x.dtype)
    del scratch
    if tracked(x, offset, weight):
        kinds = [(one.shape, one.dtype) for one in (x, offset, weight)]
        result = out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            read, moved = Tensor(*kinds[0]), Tensor(*kinds[1])
            scratch = Tensor(window, result)
            del scratch
            own = Tensor(*kinds[2])
            scratch, buffer = Tensor(window, result), Tensor(shape, result)
            del scratch, buffer
            return [read, moved, own]

        record(out, (x, offset, weight), (x, offset, weight), backward)
    return out


@register()
class SeparateHead(Module):
    """(B, C, H, W) -> a map for each kind of number of a box."""

    def __init__(
        self,
        in_channels: int,
        heads: Any,
        head_conv: int = 64,
        final_kernel: int = 1,
        init_bias: float = 0.0,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        bias: bool | str = "auto",
        num_cls: int = 0,
    ) -> None:
        layer, pad = conv_cfg or CONV2D, final_kernel // 2
        self.names = list(heads)
        self.branches = []
        for name, (outputs, count) in heads.items():
            check(f"common_heads.{name}", count, PARTS)
            inputs = in_channels
            layers: list[Module] = []
            for _ in range(count - 1):
                made = ConvModule(
                    *(inputs, head_conv, final_kernel, 1, pad, 1, 1, bias), conv_cfg=layer, norm_cfg=norm_cfg or BN2D
                )
                layers.append(made)
                inputs = head_conv
            layers.append(conv(layer, head_conv, outputs, final_kernel, 1, pad))
            self.branches.append(Sequence_(*layers))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: branch(x) for name, branch in zip(self.names, self.branches)}


@register()
class DCNSeparateHead(Module):
    """The same, behind a deformable convolution for classes and another one for the rest."""

    def __init__(
        self,
        in_channels: int,
        num_cls: int,
        heads: Any,
        dcn_config: Any,
        head_conv: int = 64,
        final_kernel: int = 1,
        init_bias: float = 0.0,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        bias: bool | str = "auto",
        place: str = "model.pts_bbox_head.separate_head",
    ) -> None:
        layer = conv_cfg or CONV2D
        self.feature_adapt_cls = DeformConv(dcn_config, f"{place}.dcn_config")
        self.feature_adapt_reg = DeformConv(dcn_config, f"{place}.dcn_config")
        self.cls_head = Sequence_(
            ConvModule(in_channels, head_conv, 3, padding=1, bias=bias, conv_cfg=layer, norm_cfg=norm_cfg or BN2D),
            conv(layer, head_conv, num_cls, 3, 1, 1),
        )
        rest = {name: one for name, one in heads.items() if name != "heatmap"}
        self.task_head = SeparateHead(in_channels, rest, head_conv, final_kernel, bias=bias)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        centers = self.feature_adapt_cls(x)
        places = self.feature_adapt_reg(x)
        scores = self.cls_head(centers)
        found: dict[str, Tensor] = self.task_head(places)
        found["heatmap"] = scores
        return found


@register()
class CenterHead(Module):
    """Maps (B, C, H, W) -> losses of heat maps and of boxes at the places of objects, for each group of classes."""

    def __init__(
        self,
        in_channels: int = 128,
        tasks: Any = None,
        bbox_coder: Any = None,
        common_heads: Any = None,
        loss_cls: Any = None,
        loss_bbox: Any = None,
        separate_head: Any = None,
        share_conv_channel: int = 64,
        num_heatmap_convs: int = 2,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        bias: bool | str = "auto",
        norm_bbox: bool = True,
        train_cfg: Any = None,
        test_cfg: Any = None,
        place: str = "model.pts_bbox_head",
    ) -> None:
        common: dict[str, Any] = {"conv_cfg": conv_cfg or CONV2D, "norm_cfg": norm_cfg or BN2D, "bias": bias}
        self.shared_conv = ConvModule(in_channels, share_conv_channel, 3, padding=1, **common)
        self.objects = int(train_cfg["max_objs"] * train_cfg["dense_reg"])
        self.task_heads = []
        for task in tasks:
            count = len(task["class_names"])
            heads = {**(common_heads or {}), "heatmap": (count, num_heatmap_convs)}
            given: dict[str, Any] = {"in_channels": share_conv_channel, "heads": heads, "num_cls": count}
            self.task_heads.append(build(separate_head, f"{place}.separate_head", **given))

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        x = self.shared_conv(x)
        return [head(x) for head in self.task_heads]

    def loss(self, maps: Sequence[Tensor], scenes: Scenes) -> list[Tensor]:
        found = [self(x) for x in maps]
        samples = maps[0].shape[0]
        wanted = [self._wanted(samples, one["heatmap"]) for one in found[0]]
        losses = []
        for number, target in enumerate(wanted):
            for level in found:
                losses += self._of_a_task(level[number], target)
        return losses

    def _wanted(self, samples: int, scores: Tensor) -> list[Tensor]:
        """``get_targets``: heat maps, boxes, where they are and whether there is one."""
        count = self.objects
        return [
            empty(scores.shape),
            empty((samples, count, BOX)),
            empty((samples, count), int64),
            empty((samples, count), uint8),
        ]

    def _of_a_task(self, found: dict[str, Tensor], wanted: list[Tensor]) -> list[Tensor]:
        heat, boxes, places, _ = wanted
        scores = F.clamp(F.sigmoid(found["heatmap"]), 2)
        losses = [heat_loss(scores, heat)]
        names = [name for name in ("reg", "height", "dim", "rot", "vel") if name in found]
        whole = F.cat([found[name] for name in names], 1)
        rows = F.contiguous(F.permute(whole, 0, 2, 3, 1))
        rows = F.view(rows, rows.shape[0], rows.shape[1] * rows.shape[2], rows.shape[3])
        indices = F.expand(F.unsqueeze(places, 2), *places.shape, rows.shape[2])
        chosen = F.gather(rows, 1, indices)
        distance = F.abs(F.sub(chosen, empty((*boxes.shape[:2], rows.shape[2]))))
        losses.append(F.sum(F.mul(distance, empty(distance.shape))))
        found["heatmap"], found["anno_box"] = scores, whole  # the library's dictionary goes on holding both
        return losses


def heat_loss(scores: Tensor, heat: Tensor) -> Tensor:
    """``GaussianFocalLoss`` (mmdet 3.3, ``models/losses/gaussian_focal_loss.py``), written out over heat maps."""
    peaks = empty(scores.shape, bool_)
    away = F.pow(F.rsub(heat, 1.0), 4.0)
    near = F.mul(F.mul(F.neg(F.log(F.add(scores, 1e-12))), F.pow(F.rsub(scores, 1.0), 2.0)), peaks)
    far = F.neg(F.log(F.add(F.rsub(scores, 1.0), 1e-12)))
    far = F.mul(F.mul(far, F.pow(scores, 2.0)), away)
    return F.sum(F.add(near, far))
