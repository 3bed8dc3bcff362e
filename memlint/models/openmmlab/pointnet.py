"""PointNet++ and what classifies points (mmdet3d 1.4 and 0.18, ``models/layers/pointnet_modules``,
``models/backbones/pointnet2_sa_{ssg,msg}.py``, ``models/decode_heads``, ``models/segmentors/encoder_decoder.py``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Dropout, Module
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import RELU, Config, ConvModule, Sequence_, conv
from memlint.models.openmmlab.grouping import PointsSampler, gather_points, group, split, three_interpolate
from memlint.models.openmmlab.registry import build, register
from memlint.models.openmmlab.scenes import SPACE, PointModel, Scenes, labels_of
from memlint.named_tuple import NamedTuple

CONV1D: dict[str, Any] = {"type": "Conv1d"}
CONV2D: dict[str, Any] = {"type": "Conv2d"}
BN1D: dict[str, Any] = {"type": "BN1d"}
BN2D: dict[str, Any] = {"type": "BN2d"}
POOLS = ("max", "avg")


class Levels(NamedTuple):
    """Places, features and indices of the points that are left after each level; ``fp``: of those that are spread
    again."""

    xyz: Sequence[Tensor]
    features: Sequence[Tensor | None]
    indices: Sequence[Tensor]
    fp_xyz: Sequence[Tensor] = ()
    fp_features: Sequence[Tensor | None] = ()
    fp_indices: Sequence[Tensor] = ()


class Layers(Sequence_):
    """Convolutions of one point each, with a norm and a ReLU in place."""

    def __init__(
        self,
        widths: Sequence[int],
        norm_cfg: Config,
        bias: bool | str = "auto",
        conv_cfg: Config = None,
        act_cfg: Config = RELU,
    ) -> None:
        common: dict[str, Any] = {"conv_cfg": conv_cfg or CONV2D, "norm_cfg": norm_cfg, "act_cfg": act_cfg}
        super().__init__(*(ConvModule(one, other, 1, bias=bias, **common) for one, other in pairwise(widths)))


class SetAbstraction(Module):
    """``PointSAModuleMSG``: some points are taken, those within a radius grouped around each, and the largest of their
    features kept; for several radii. Where no points are taken, all are one group."""

    def __init__(
        self,
        num_point: Any,
        radii: Sequence[float],
        sample_nums: Sequence[int],
        mlp_channels: Sequence[Sequence[int]],
        fps_mod: Any = ("D-FPS",),
        fps_sample_range_list: Any = (-1,),
        dilated_group: bool = False,
        norm_cfg: Config = None,
        use_xyz: bool = True,
        pool_mod: str = "max",
        normalize_xyz: bool = False,
        bias: bool | str = "auto",
        place: str = "model.backbone.sa_cfg",
    ) -> None:
        if pool_mod not in POOLS:
            raise UnknownModel(f"{place}.pool_mod {pool_mod} is a pooling that memlint does not know")
        self.use_xyz, self.pool = use_xyz, F.max_pool if pool_mod == "max" else F.avg_pool
        self.samples = list(sample_nums)
        self.sampler = None if num_point is None else PointsSampler(num_point, fps_mod, fps_sample_range_list, place)
        wide = [[widths[0] + SPACE * use_xyz, *widths[1:]] for widths in mlp_channels]
        self.mlps = [Layers(widths, norm_cfg or BN2D, bias) for widths in wide]
        self.width = sum(widths[-1] for widths in wide)

    def forward(
        self, xyz: Tensor, features: Tensor | None, index: Tensor | None = None, target: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        turned = F.contiguous(F.transpose(xyz, 1, 2))
        if self.sampler is None:
            return xyz, F.cat([self._pooled(mlp, self._all(xyz, features)) for mlp in self.mlps], 1), None
        if target is not None:
            centers = F.contiguous(target)
        else:
            index = index if index is not None else self.sampler(xyz, features)
            centers = F.contiguous(F.transpose(gather_points(turned, index), 1, 2))
        found = []
        for samples, mlp in zip(self.samples, self.mlps):
            grouped, _ = group(xyz, centers, features, samples, self.use_xyz)
            found.append(self._pooled(mlp, grouped))
            del grouped
        return centers, F.cat(found, 1), index

    def _pooled(self, mlp: Layers, grouped: Tensor) -> Tensor:
        made = mlp(grouped)
        made = self.pool(made, (1, made.shape[3]))
        return F.contiguous(F.squeeze(made, -1))

    def _all(self, xyz: Tensor, features: Tensor | None) -> Tensor:
        """``GroupAll``: all points around nothing."""
        places = F.unsqueeze(F.transpose(xyz, 1, 2), 2)
        if features is None:
            return places
        own = F.unsqueeze(features, 2)
        return F.cat([places, own], 1) if self.use_xyz else own


# type of a module in a config -> its class, and the names that the class has for arguments of which there is one
MODULES: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "PointSAModuleMSG": (SetAbstraction, {}),
    "PointSAModule": (SetAbstraction, {"radius": "radii", "num_sample": "sample_nums", "mlp_channels": "mlp_channels"}),
}


def set_abstraction(config: Any, place: str, **given: Any) -> Any:
    """``build_sa_module``."""
    stated: dict[str, Any] = {**(config if isinstance(config, Mapping) else {"type": "PointSAModule"}), **given}
    kind = stated.pop("type", "PointSAModule")
    if kind not in MODULES:
        raise UnknownModel(f"{place}.type {kind} is a class that memlint does not know")
    made, single = MODULES[kind]
    for name in stated:
        if name not in inspect.signature(made).parameters.keys() | single.keys():
            raise UnknownModel(f"{place}.{name} is an argument of {kind} that memlint does not know")
    for name, own in single.items():
        stated[own] = [stated.pop(name)]
    return made(**stated, place=place)


class FeaturePropagation(Module):
    """``PointFPModule``: features of few points, spread to more, beside those that they had."""

    def __init__(self, mlp_channels: Sequence[int], norm_cfg: Config = None) -> None:
        self.mlps = Layers(mlp_channels, norm_cfg or BN2D)

    def forward(self, target: Tensor, source: Tensor, own: Tensor | None, features: Tensor) -> Tensor:
        spread = three_interpolate(target, source, features)
        made = spread if own is None else F.cat([spread, own], 1)
        return F.squeeze(self.mlps(F.unsqueeze(made, -1)), -1)


def _indices(batch: int, points: int) -> Tensor:
    return empty((batch, points), int64)


def _taken(indices: Tensor, index: Tensor | None) -> Tensor:
    """Of all points those that are left."""
    count = indices.shape[1] if index is None else index.shape[1]
    wide = empty((indices.shape[0], count), int64)
    made = empty((indices.shape[0], count), int64)
    del wide
    return made


@register()
class PointNet2SASSG(Module):
    """One radius at each level, and features that are spread again."""

    def __init__(
        self,
        in_channels: int,
        num_points: Sequence[int] = (2048, 1024, 512, 256),
        radius: Any = (0.2, 0.4, 0.8, 1.2),
        num_samples: Sequence[int] = (64, 32, 16, 16),
        sa_channels: Any = ((64, 64, 128), (128, 128, 256), (128, 128, 256), (128, 128, 256)),
        fp_channels: Any = ((256, 256), (256, 256)),
        norm_cfg: Config = None,
        sa_cfg: Any = None,
        place: str = "model.backbone",
    ) -> None:
        config = sa_cfg or {"type": "PointSAModule", "pool_mod": "max", "use_xyz": True, "normalize_xyz": True}
        inputs = in_channels - SPACE
        skips = [inputs]
        self.SA_modules = []
        for count, reach, samples, widths in zip(num_points, radius, num_samples, sa_channels):
            given = {"num_point": count, "radius": reach, "num_sample": samples, "norm_cfg": norm_cfg}
            module = set_abstraction(config, f"{place}.sa_cfg", mlp_channels=[inputs, *widths], **given)
            self.SA_modules.append(module)
            inputs = module.width
            skips.append(inputs)
        source = skips.pop()
        self.FP_modules = []
        for widths in fp_channels:
            self.FP_modules.append(FeaturePropagation([source + skips.pop(), *widths]))
            source = widths[-1]

    def forward(self, points: Tensor) -> Levels:
        xyz, features = split(points)
        places, found, indices = [xyz], [features], [_indices(*points.shape[:2])]
        for module in self.SA_modules:
            center, made, index = module(places[-1], found[-1])
            places.append(center)
            found.append(made)
            indices.append(_taken(indices[-1], index))
        spread: list[Tensor | None] = [found[-1]]
        for number, propagation in enumerate(self.FP_modules):
            at = len(self.SA_modules) - number - 1
            spread.append(propagation(places[at], places[at + 1], found[at], spread[-1]))
        last = len(self.SA_modules)
        ends = [last - number for number in range(len(spread))]
        return Levels(places, found, indices, [places[at] for at in ends], spread, [indices[at] for at in ends])


@register()
class PointNet2SAMSG(Module):
    """Several radii at each level."""

    def __init__(
        self,
        in_channels: int,
        num_points: Any = (2048, 1024, 512, 256),
        radii: Any = ((0.2, 0.4, 0.8), (0.4, 0.8, 1.6), (1.6, 3.2, 4.8)),
        num_samples: Any = ((32, 32, 64), (32, 32, 64), (32, 32, 32)),
        sa_channels: Any = (),
        aggregation_channels: Any = (64, 128, 256),
        fps_mods: Any = ("D-FPS", "FS", ("F-FPS", "D-FPS")),
        fps_sample_range_lists: Any = (-1, -1, (512, -1)),
        dilated_group: Any = (True, True, True),
        out_indices: Sequence[int] = (2,),
        norm_cfg: Config = None,
        sa_cfg: Any = None,
        place: str = "model.backbone",
    ) -> None:
        config = sa_cfg or {"type": "PointSAModuleMSG", "pool_mod": "max", "use_xyz": True, "normalize_xyz": False}
        inputs = in_channels - SPACE
        self.out_indices = list(out_indices)
        self.SA_modules, self.aggregation_mlps = [], []
        aggregated = aggregation_channels or [None] * len(sa_channels)
        levels = zip(num_points, radii, num_samples, sa_channels, fps_mods, fps_sample_range_lists, aggregated)
        for count, reach, samples, widths, mode, ends, width in levels:
            given = {"num_point": count, "radii": reach, "sample_nums": samples, "norm_cfg": norm_cfg, "bias": True}
            mlps = [[inputs, *one] for one in widths]
            given |= {"fps_mod": mode, "fps_sample_range_list": ends, "mlp_channels": mlps}
            module = set_abstraction(config, f"{place}.sa_cfg", **given)
            self.SA_modules.append(module)
            inputs = module.width if width is None else width
            self.aggregation_mlps.append(
                None if width is None else ConvModule(module.width, width, 1, conv_cfg=CONV1D, norm_cfg=BN1D, bias=True)
            )

    def children(self) -> Any:
        yield from ((f"SA_modules.{number}", one) for number, one in enumerate(self.SA_modules))
        for number, one in enumerate(self.aggregation_mlps):
            if one is not None:
                yield f"aggregation_mlps.{number}", one

    def forward(self, points: Tensor) -> Levels:
        xyz, features = split(points)
        indices = _indices(*points.shape[:2])
        places, found, taken = [xyz], [features], [indices]
        for number, (module, aggregation) in enumerate(zip(self.SA_modules, self.aggregation_mlps)):
            xyz, features, index = module(xyz, features)
            if aggregation is not None:
                features = aggregation(features)
            indices = _taken(indices, index)
            if number in self.out_indices:
                places.append(xyz)
                found.append(features)
                taken.append(indices)
        return Levels(places, found, taken)


# ------------------------------------------------------------------------------------------------- points classified


class PointHead(Module):
    """``Base3DDecodeHead``: a score of each class for each point (B, C, N), and their loss."""

    def __init__(
        self,
        channels: int,
        num_classes: int,
        dropout_ratio: float = 0.5,
        conv_cfg: Config = None,
        norm_cfg: Config = None,
        act_cfg: Config = RELU,
        loss_decode: Any = None,
        conv_seg_kernel_size: int = 1,
        ignore_index: int = 255,
        place: str = "model.decode_head",
    ) -> None:
        kind = str((loss_decode or {}).get("type", "CrossEntropyLoss")).rpartition(".")[2]
        if kind != "CrossEntropyLoss" or (loss_decode or {}).get("use_sigmoid"):
            raise UnknownModel(f"{place}.loss_decode.type {kind} is a loss that memlint does not know")
        self.common: dict[str, Any] = {
            "conv_cfg": conv_cfg or CONV1D,
            "norm_cfg": norm_cfg or BN1D,
            "act_cfg": act_cfg,
        }
        self.conv_seg = conv(CONV1D, channels, num_classes, conv_seg_kernel_size)
        self.dropout = Dropout(dropout_ratio)

    def cls_seg(self, x: Tensor) -> Tensor:
        scores: Tensor = self.conv_seg(self.dropout(x))
        return scores

    def loss(self, levels: Any, labels: Sequence[Tensor]) -> Tensor:
        scores = self(levels)
        wanted = F.stack(list(labels))
        return F.mean(F.cross_entropy(scores, wanted, reduction="none"))


@register()
class PointNet2Head(PointHead):
    def __init__(
        self,
        channels: int,
        fp_channels: Any = ((768, 256, 256), (384, 256, 256), (320, 256, 128), (128, 128, 128, 128)),
        fp_norm_cfg: Config = None,
        **base: Any,
    ) -> None:
        super().__init__(channels, **base)
        self.FP_modules = [FeaturePropagation(widths, fp_norm_cfg) for widths in fp_channels]
        self.pre_seg_conv = ConvModule(fp_channels[-1][-1], channels, 1, bias=True, **self.common)

    def forward(self, levels: Levels) -> Tensor:
        own = [None, *levels.features[1:]]
        x = levels.features[-1]
        for number, module in enumerate(self.FP_modules):
            x = module(levels.xyz[-(number + 2)], levels.xyz[-(number + 1)], own[-(number + 2)], x)
        return self.cls_seg(self.pre_seg_conv(x))


@register()
class EncoderDecoder3D(PointModel):
    """Points (B, N, C) -> losses of the classes of each point."""

    def __init__(
        self,
        backbone: Any,
        decode_head: Any,
        neck: Any = None,
        auxiliary_head: Any = None,
        loss_regularization: Any = None,
        train_cfg: Any = None,
        test_cfg: Any = None,
        data_preprocessor: Any = None,
    ) -> None:
        for key, value in (("neck", neck), ("auxiliary_head", auxiliary_head)):
            if value is not None:
                raise UnknownModel(f"model.{key} stands beside the head of points, which memlint does not know")
        self.backbone = build(backbone, "model.backbone")
        self.decode_head = build(decode_head, "model.decode_head")
        regularization = loss_regularization or ()
        several = regularization if isinstance(regularization, (list, tuple)) else (regularization,)
        self.loss_regularization = [build(one, "model.loss_regularization") for one in several]

    def prepared(self, points: Sequence[Tensor], scenes: Scenes) -> Any:
        return points, labels_of(len(points), scenes.points)

    def losses(self, given: Any, scenes: Scenes) -> list[Tensor]:
        points, labels = given
        levels = self.backbone(F.stack(list(points)))
        losses = [self.decode_head.loss(levels, labels)]
        return losses + [one(self.backbone) for one in self.loss_regularization]
