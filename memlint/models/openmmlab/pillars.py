"""Voxels to maps that are seen from above, and what is made of those: encoders of mmdet3d 1.4 and 0.18
(``models/voxel_encoders``, ``models/middle_encoders/pillar_scatter.py``, ``models/backbones/second.py``,
``models/necks/second_fpn.py``).

Shapes: V voxels of all scenes, P points of each, N points of all scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from memlint.architectures.sizes import PARTS, check
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import ConvTranspose, Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, int32, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, Config, Sequence_, activation, conv, norm
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import SPACE, Voxels

BN1D: dict[str, Any] = {"type": "BN1d"}
PLAIN: dict[str, Any] = {"type": "Conv2d", "bias": False}
PLACED = 4  # numbers that say where a voxel is


class Decorated(Module):
    """What encoders share: how far a point is from the mean of its voxel and from the voxel's centre, beside its own
    numbers."""

    def __init__(
        self,
        in_channels: int,
        with_distance: bool,
        with_cluster_center: bool,
        with_voxel_center: bool,
        voxel_size: Any,
        point_cloud_range: Any,
        centers_are_new: bool,
    ) -> None:
        extra = SPACE * with_cluster_center + SPACE * with_voxel_center + with_distance
        self.width = in_channels + extra
        self.taken = in_channels
        self.parts = [SPACE] * with_cluster_center + [SPACE] * (with_voxel_center and centers_are_new)
        self.parts += [1] * with_distance
        self.voxel_size, self.range = voxel_size, point_cloud_range

    def decorated(self, voxels: Voxels) -> Tensor:
        """(V, P, width): all of it in one tensor, zeros where a voxel has fewer points. Its parts and the mask live
        until the encoder is through."""
        features = voxels.features
        if features.shape[-1] != self.taken:
            raise ValueError(f"points of {features.shape[-1]} numbers for in_channels={self.taken}")
        self.beside: list[Tensor] = [empty((*features.shape[:-1], width)) for width in self.parts]
        whole = empty((*features.shape[:-1], self.width))
        flags = empty(features.shape[:-1], bool_)
        self.beside.append(empty((*features.shape[:-1], 1)))
        del flags
        return whole

    def let_go(self) -> None:
        self.beside = []


class PointLayer(Module):
    """``PFNLayer`` and ``VFELayer``: a product, a norm over channels, which are put second for it and last again, and
    the largest over a voxel's points. ``joined``: with that beside each point; ``kept``: no maximum is taken."""

    def __init__(self, inputs: int, outputs: int, norm_cfg: Config, joined: bool, mode: str = "max") -> None:
        self.joined, self.mode = joined, mode
        self.norm = norm(norm_cfg, outputs)
        self.linear = Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        points = x.shape[1]
        x = self.linear(x)
        x = F.contiguous(F.permute(self.norm(F.contiguous(F.permute(x, 0, 2, 1))), 0, 2, 1))
        x = F.relu(x)
        most = F.max(x, 1, keepdim=True)[0] if self.mode == "max" else F.div(F.sum(x, 1, keepdim=True), 1.0)
        if not self.joined:
            return most
        return F.cat([x, F.repeat(most, 1, points, 1)], 2)


@register()
class PillarFeatureNet(Decorated):
    """(V, P, C) -> (V, D)."""

    def __init__(
        self,
        in_channels: int = 4,
        feat_channels: Sequence[int] = (64,),
        with_distance: bool = False,
        with_cluster_center: bool = True,
        with_voxel_center: bool = True,
        voxel_size: Any = None,
        point_cloud_range: Any = None,
        norm_cfg: Config = None,
        mode: str = "max",
        legacy: bool = True,
    ) -> None:
        super().__init__(
            *(in_channels, with_distance, with_cluster_center, with_voxel_center, voxel_size, point_cloud_range),
            centers_are_new=not legacy,
        )
        widths = [self.width, *feat_channels]
        last = len(feat_channels) - 1
        self.pfn_layers = [
            PointLayer(inputs, outputs if at == last else outputs // 2, norm_cfg or BN1D, at != last, mode)
            for at, (inputs, outputs) in enumerate(pairwise(widths))
        ]

    def forward(self, voxels: Voxels) -> Tensor:
        x = self.decorated(voxels)
        for layer in self.pfn_layers:
            x = layer(x)
        self.let_go()
        return F.squeeze(x, 1)


@register()
class HardVFE(Decorated):
    """(V, P, C) -> (V, D)."""

    def __init__(
        self,
        in_channels: int = 4,
        feat_channels: Sequence[int] = (),
        with_distance: bool = False,
        with_cluster_center: bool = False,
        with_voxel_center: bool = False,
        voxel_size: Any = None,
        point_cloud_range: Any = None,
        norm_cfg: Config = None,
        mode: str = "max",
    ) -> None:
        super().__init__(
            *(in_channels, with_distance, with_cluster_center, with_voxel_center, voxel_size, point_cloud_range),
            centers_are_new=True,
        )
        last = len(feat_channels) - 1
        inputs = [self.width, *(2 * width for width in feat_channels[:-1])]
        self.vfe_layers = [
            PointLayer(one, outputs, norm_cfg or BN1D, at != last)
            for at, (one, outputs) in enumerate(zip(inputs, feat_channels))
        ]

    def forward(self, voxels: Voxels) -> Tensor:
        x = self.decorated(voxels)
        for layer in self.vfe_layers:
            x = layer(x)
        self.let_go()
        return F.squeeze(x, 1)


@register()
class HardSimpleVFE(Module):
    """(V, P, C) -> (V, C): the mean of a voxel's points."""

    def __init__(self, num_features: int = 4) -> None:
        self.width = num_features

    def forward(self, voxels: Voxels) -> Tensor:
        features = voxels.features
        summed = empty((features.shape[0], self.width))
        made = empty((features.shape[0], self.width))
        del summed
        return made


def dynamic_scatter(x: Tensor, voxels: Voxels) -> Tensor:
    """mmcv's ``ops/scatter_points.py``: of each scene (N, D) -> (V, D), the largest or the mean. Each scene's points
    are taken out for it; the kernel keeps them, its result and which voxel each is of."""
    parts = []
    for _ in range(voxels.samples):
        rows = empty((voxels.scenes.points,), int64)
        parts.append(_scattered(F.index(x, rows), voxels.each))
        del rows
    return F.cat(parts)


def _scattered(x: Tensor, voxels: int) -> Tensor:
    points, width = x.shape
    place, count = empty((points,), int32), empty((voxels,), int32)
    out = empty((voxels, width), x.dtype)
    if tracked(x):
        dtype = x.dtype
        record(out, (x,), (x, out, place, count), lambda g: (Tensor((points, width), dtype),))
    return out


@register()
class DynamicSimpleVFE(Module):
    """(N, C) -> (V, C): the mean of a voxel's points, without gradients."""

    def __init__(self, voxel_size: Any = None, point_cloud_range: Any = None) -> None:
        pass

    def forward(self, voxels: Voxels) -> Tensor:
        with no_grad():
            return dynamic_scatter(voxels.features, voxels)


@register()
class DynamicPillarFeatureNet(Decorated):
    """(N, C) -> (V, D): each point by itself, then the largest of each voxel."""

    def __init__(
        self,
        in_channels: int = 4,
        feat_channels: Sequence[int] = (64,),
        with_distance: bool = False,
        with_cluster_center: bool = True,
        with_voxel_center: bool = True,
        voxel_size: Any = None,
        point_cloud_range: Any = None,
        norm_cfg: Config = None,
        mode: str = "max",
        legacy: bool = True,
        place: str = "model.voxel_encoder",
    ) -> None:
        super().__init__(
            *(in_channels, with_distance, with_cluster_center, with_voxel_center, voxel_size, point_cloud_range),
            centers_are_new=True,
        )
        if len(feat_channels) != 1:
            raise UnknownModel(f"{place}.feat_channels has several layers, which the library does not have either")
        self.clusters = with_cluster_center
        width = feat_channels[0]
        self.pfn = Sequence_(Linear(self.width, width, bias=False), norm(norm_cfg or BN1D, width), activation(IN_PLACE))

    def forward(self, voxels: Voxels) -> Tensor:
        beside = self._means(voxels) if self.clusters else None
        x = self.decorated(voxels)
        made = dynamic_scatter(self.pfn(x), voxels)
        del beside
        self.let_go()
        return made

    def _means(self, voxels: Voxels) -> Tensor:
        """``map_voxel_center_to_point``: means of voxels, written on a canvas of all scenes and read off for points."""
        with no_grad():
            means = dynamic_scatter(voxels.features, voxels)
        width = means.shape[1]
        rows, columns = cells(self.voxel_size, self.range)
        canvas = empty((width, rows * columns * voxels.samples))
        indices = empty((voxels.features.shape[0],), int64)
        found = empty((width, voxels.features.shape[0]))
        del canvas, indices, means
        return found


def cells(voxel_size: Sequence[float], point_cloud_range: Sequence[float]) -> tuple[int, int]:
    """Rows and columns of a grid that is seen from above."""
    sides = [(point_cloud_range[at + SPACE] - point_cloud_range[at]) / voxel_size[at] for at in (1, 0)]
    return round(sides[0]), round(sides[1])


@register()
class PointPillarsScatter(Module):
    """(V, D) -> (B, D, H, W): a canvas for each scene, on which its voxels are written."""

    def __init__(self, in_channels: int, output_shape: Sequence[int]) -> None:
        self.width = in_channels
        self.rows, self.columns = output_shape

    def forward(self, x: Tensor, voxels: Voxels) -> Tensor:
        canvases = []
        for _ in range(voxels.samples):
            canvas = empty((self.width, self.rows * self.columns), x.dtype)
            rows, places = empty((voxels.each,), int64), empty((voxels.each,), int64)
            own = F.transpose(F.index(x, rows), 0, 1)
            canvases.append(F.index_put_(canvas, own, places))
            del rows, places, own, canvas
        made = F.stack(canvases)
        del canvases
        return F.view(made, voxels.samples, self.width, self.rows, self.columns)


@register()
class SECOND(Module):
    """(B, C, H, W) -> maps of several strides."""

    def __init__(
        self,
        in_channels: int = 128,
        out_channels: Sequence[int] = (128, 128, 256),
        layer_nums: Sequence[int] = (3, 5, 5),
        layer_strides: Sequence[int] = (2, 2, 2),
        norm_cfg: Config = None,
        conv_cfg: Config = None,
    ) -> None:
        self.blocks = []
        inputs = in_channels
        for width, count, stride in zip(out_channels, layer_nums, layer_strides):
            check("layer_nums", count, PARTS)
            layers: list[Module] = []
            for number in range(count + 1):
                layers.append(conv(conv_cfg or PLAIN, inputs, width, 3, stride if number == 0 else 1, 1))
                layers += [norm(norm_cfg, width), activation(IN_PLACE)]
                inputs = width
            self.blocks.append(Sequence_(*layers))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return tuple(maps)


@register()
class SECONDFPN(Module):
    """Maps of several strides -> one map, of all channels beside each other."""

    def __init__(
        self,
        in_channels: Sequence[int] = (128, 128, 256),
        out_channels: Sequence[int] = (256, 256, 256),
        upsample_strides: Sequence[float] = (1, 2, 4),
        norm_cfg: Config = None,
        upsample_cfg: Config = None,
        conv_cfg: Config = None,
        use_conv_for_no_stride: bool = False,
        place: str = "model.neck",
    ) -> None:
        stated = upsample_cfg or {"type": "deconv", "bias": False}
        if stated.get("type") != "deconv":
            raise UnknownModel(f"{place}.upsample_cfg makes maps larger in a way that memlint does not know")
        self.deblocks = []
        for inputs, width, stride in zip(in_channels, out_channels, upsample_strides):
            layer: Module
            if stride > 1 or (stride == 1 and not use_conv_for_no_stride):
                step = int(stride)
                layer = ConvTranspose(inputs, width, (step, step), step, bias=bool(stated.get("bias", True)))
            else:
                step = round(1 / stride)
                layer = conv(conv_cfg or PLAIN, inputs, width, step, step)
            self.deblocks.append(Sequence_(layer, norm(norm_cfg, width), activation(IN_PLACE)))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made = [block(x) for block, x in zip(self.deblocks, maps)]
        return (F.cat(made, 1) if len(made) > 1 else made[0],)
