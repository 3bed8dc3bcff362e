"""PAConv (mmdet3d 1.4 and 0.18, ``models/layers/paconv``, ``models/layers/pointnet_modules/paconv_sa_module.py``,
``models/decode_heads/paconv_head.py``; mmcv 2.2, ``ops/assign_score_withk.py``): the weights of each neighbour are a
mixture of M kernels, by where it is.

Shapes: M kernels, P places with K neighbours each, N points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from memlint.meta import functional as F
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Module, parameter
from memlint.meta.tensor import Tensor, empty, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, Config, ConvModule, Sequence_, activation, norm
from memlint.models.openmmlab.grouping import PointsSampler, gather_points, group, grouping_operation
from memlint.models.openmmlab.pointnet import BN2D, MODULES, FeaturePropagation, Levels, PointHead
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import SPACE

# What the mixture is told of a neighbour -> how many numbers that is.
_SCORED = {"identity": SPACE, "w_neighbor": 2 * SPACE, "w_neighbor_dist": 2 * SPACE + 1}
# What a product is given of a neighbour -> how many times its features.
_GIVEN = {"identity": 1, "w_neighbor": 2}


class ScoreNet(Module):
    """Where neighbours are (B, C, P, K) -> how much of each kernel (B, P, K, M)."""

    def __init__(self, inputs: int, kernels: int, config: Mapping[str, Any], place: str) -> None:
        stated = {"score_norm": "softmax", "temp_factor": 1.0, "last_bn": False, "bias": "auto", **config}
        self.kind, self.bias = stated["score_norm"], stated["bias"]
        if self.kind not in ("softmax", "sigmoid", "identity"):
            raise UnknownModel(f"{place}.score_norm {self.kind} is a norm of scores that memlint does not know")
        widths = [inputs, *stated["mlp_channels"], kernels]
        layers = [ConvModule(*one, 1, bias=self.bias, norm_cfg=BN2D) for one in list(pairwise(widths))[:-1]]
        last = BN2D if stated["last_bn"] else None
        layers.append(ConvModule(widths[-2], kernels, 1, bias=self.bias, norm_cfg=last, act_cfg=None))
        self.mlps = Sequence_(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mlps(x)
        if self.kind == "softmax":
            x = F.softmax(F.div(x, 1.0), 1)
        elif self.kind == "sigmoid":
            x = F.sigmoid(F.div(x, 1.0))
        return F.permute(x, 0, 2, 3, 1)


class PAConv(Module):
    """(B, C, P, K) and where those are (B, 3, P, K) -> (B, D, P, K)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernels: int,
        norm_cfg: Config,
        kernel_input: str,
        scorenet_input: str,
        scorenet_cfg: Mapping[str, Any],
        place: str,
    ) -> None:
        if scorenet_input not in _SCORED or kernel_input not in _GIVEN:
            raise UnknownModel(f"{place}.paconv_kernel_input, scorenet_input: a way that memlint does not know")
        self.kernels, self.outputs = kernels, outputs
        self.kernel_input, self.scorenet_input = kernel_input, scorenet_input
        self.weight_bank = parameter(_GIVEN[kernel_input] * inputs, kernels * outputs)
        self.scorenet = ScoreNet(_SCORED[scorenet_input], kernels, scorenet_cfg, f"{place}.scorenet_cfg")
        self.bn = norm(norm_cfg, outputs)
        self.activate = activation(IN_PLACE)

    def scores(self, places: Tensor) -> Tensor:
        """Of where neighbours are, how far from the middle, and the middle, as far as the mixture is told."""
        batch, _, rows, near = places.shape
        middle, away = empty(places.shape), empty(places.shape)
        told = empty((batch, _SCORED[self.scorenet_input], rows, near))
        made: Tensor = self.scorenet(told)
        del middle, away
        return made

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        batch, _, rows, near = x.shape
        if self.kernel_input == "w_neighbor":
            middle = F.repeat(F.narrow(x, 3, 1), 1, 1, 1, near)
            away = F.sub(x, middle)
            x = F.cat([away, x], 1)
            del middle, away
        scores = self.scores(places)
        made = F.matmul(F.permute(x, 0, 2, 3, 1), self.weight_bank)
        made = F.view(made, batch, rows, near, self.kernels, self.outputs)
        made = F.matmul(F.reshape(scores, batch, rows, near, 1, self.kernels), made)
        made = F.contiguous(F.permute(F.view(made, batch, rows, near, self.outputs), 0, 3, 1, 2))
        return self.activate(self.bn(made))  # type: ignore[no-any-return]


class PAConvCUDA(PAConv):
    """The same by a kernel of its own: products are of points (B, C, N), not of neighbours."""

    def forward(self, x: Tensor, places: Tensor, index: Tensor | None = None) -> Tensor:
        assert index is not None
        scores = self.scores(places)
        batch, width, points = x.shape
        rows = F.permute(x, 0, 2, 1)
        first, second = F.narrow(self.weight_bank, 0, width), F.narrow(self.weight_bank, 0, width)
        shape = (batch, points, self.kernels, self.outputs)
        half, other = F.view(F.matmul(rows, first), *shape), F.view(F.matmul(rows, second), *shape)
        if width % 2:
            places_of = F.matmul(F.narrow(rows, 2, SPACE), F.narrow(self.weight_bank, 0, SPACE))
            middle = F.view(places_of, *shape)
        else:
            middle = empty(shape)
        made = assign_score_withk(scores, F.add(half, other), F.add(half, middle), index)
        return self.activate(self.bn(F.contiguous(made)))  # type: ignore[no-any-return]


def assign_score_withk(scores: Tensor, points: Tensor, centers: Tensor, index: Tensor) -> Tensor:
    """(B, P, K, M), (B, N, M, D) twice -> (B, D, P, K). Keeps all of it, its result as well; operands are packed for
    the kernels."""
    batch, rows, near, _ = scores.shape
    out = empty((batch, points.shape[3], rows, near), points.dtype)
    packed = F.contiguous(scores.detach())
    del packed
    if tracked(scores, points, centers):
        kinds = [(one.shape, one.dtype) for one in (scores, points, centers)]

        def backward(g: Tensor) -> list[Tensor | None]:
            made: list[Tensor | None] = [Tensor(*kinds[0]), Tensor(*kinds[1]), Tensor(*kinds[2])]
            packed = F.contiguous(g), Tensor(*kinds[0])
            del packed
            return made

        record(out, (scores, points, centers), (out, scores, points, centers, index), backward)
    return out


class PAConvAbstraction(Module):
    """``PAConvSAModuleMSG``: set abstraction whose convolutions are PAConv."""

    layer: type[PAConv] = PAConv

    def __init__(
        self,
        num_point: Any,
        radii: Sequence[Any],
        sample_nums: Sequence[int],
        mlp_channels: Sequence[Sequence[int]],
        paconv_num_kernels: Sequence[Sequence[int]],
        fps_mod: Any = ("D-FPS",),
        fps_sample_range_list: Any = (-1,),
        dilated_group: bool = False,
        norm_cfg: Config = None,
        use_xyz: bool = True,
        pool_mod: str = "max",
        normalize_xyz: bool = False,
        bias: bool | str = "auto",
        paconv_kernel_input: str = "w_neighbor",
        scorenet_input: str = "w_neighbor_dist",
        scorenet_cfg: Any = None,
        place: str = "model.backbone.sa_cfg",
    ) -> None:
        if pool_mod != "max":
            raise UnknownModel(f"{place}.pool_mod {pool_mod} is a pooling that memlint does not know")
        self.use_xyz, self.samples = use_xyz, list(sample_nums)
        self.nearest = [reach is None for reach in radii]
        self.sampler = PointsSampler(num_point, fps_mod, fps_sample_range_list, place)
        scored = {"mlp_channels": [16, 16, 16], **(scorenet_cfg or {}), "bias": bias}
        common: Any = (norm_cfg or BN2D, paconv_kernel_input, scorenet_input, scored, place)
        self.mlps = []
        for widths, kernels in zip(mlp_channels, paconv_num_kernels):
            wide = [widths[0] + SPACE * use_xyz, *widths[1:]]
            layers = [self.layer(*ends, count, *common) for ends, count in zip(pairwise(wide), kernels)]
            self.mlps.append(Sequence_(*layers))
        self.width = sum(widths[-1] for widths in mlp_channels)

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        turned = F.contiguous(F.transpose(xyz, 1, 2))
        index = self.sampler(xyz, features)
        centers = F.contiguous(F.transpose(gather_points(turned, index), 1, 2))
        found = [
            self._of_a_radius(mlp, samples, nearest, xyz, centers, features)
            for samples, mlp, nearest in zip(self.samples, self.mlps, self.nearest)
        ]
        return centers, F.cat(found, 1), index

    def _of_a_radius(
        self, mlp: Sequence_, samples: int, nearest: bool, xyz: Tensor, centers: Tensor, features: Tensor | None
    ) -> Tensor:
        made, near = group(xyz, centers, features, samples, self.use_xyz, nearest)
        places = grouping_operation(F.contiguous(F.transpose(xyz, 1, 2)), near)
        for layer in mlp.layers:
            made = layer(made, places)
        return _pooled(made)


def _pooled(x: Tensor) -> Tensor:
    return F.contiguous(F.squeeze(F.max_pool(x, (1, x.shape[3])), -1))


class PAConvCUDAAbstraction(PAConvAbstraction):
    """``PAConvCUDASAModuleMSG``: neighbours are looked for anew for each layer, among the places of the one before;
    what is grouped beside where they are is thrown away."""

    layer = PAConvCUDA

    def _of_a_radius(
        self, mlp: Sequence_, samples: int, nearest: bool, xyz: Tensor, centers: Tensor, features: Tensor | None
    ) -> Tensor:
        source, made = xyz, features
        for number, layer in enumerate(mlp.layers):
            thrown, near = group(source, centers, made, samples, self.use_xyz, nearest)
            places = grouping_operation(F.contiguous(F.transpose(source, 1, 2)), near)
            if self.use_xyz and number == 0:
                own = F.permute(xyz, 0, 2, 1)
                made = own if made is None else F.cat([own, made], 1)
            wide = empty(near.shape, int64)
            del thrown
            made = _pooled(layer(made, places, wide))
            source = centers
        assert made is not None
        return made


_SINGLE = {
    **{"radius": "radii", "num_sample": "sample_nums"},
    **{"mlp_channels": "mlp_channels", "paconv_num_kernels": "paconv_num_kernels"},
}
MODULES.update(
    {
        "PAConvSAModuleMSG": (PAConvAbstraction, {}),
        "PAConvSAModule": (PAConvAbstraction, _SINGLE),
        "PAConvCUDASAModuleMSG": (PAConvCUDAAbstraction, {}),
        "PAConvCUDASAModule": (PAConvCUDAAbstraction, _SINGLE),
    }
)


@register()
class PAConvHead(PointHead):
    """Features are spread to all points, beside what these came with."""

    def __init__(
        self,
        channels: int,
        fp_channels: Any = ((768, 256, 256), (384, 256, 256), (320, 256, 128), (134, 128, 128, 128)),
        fp_norm_cfg: Config = None,
        **base: Any,
    ) -> None:
        super().__init__(channels, **base)
        self.FP_modules = [FeaturePropagation(widths, fp_norm_cfg) for widths in fp_channels]
        self.pre_seg_conv = ConvModule(fp_channels[-1][-1], channels, 1, bias=False, **self.common)

    def forward(self, levels: Levels) -> Tensor:
        x = levels.features[-1]
        for number, module in enumerate(self.FP_modules):
            at = -(number + 2)
            x = module(levels.xyz[at], levels.xyz[at + 1], levels.features[at], x)
        return self.cls_seg(self.pre_seg_conv(x))


@register()
class PAConvRegularizationLoss(Module):
    """How alike the kernels of each layer are."""

    def __init__(self, reduction: str = "mean", loss_weight: float = 1.0) -> None:
        pass

    def forward(self, net: Module) -> Tensor:
        found = []
        for layer in net.modules():
            if isinstance(layer, PAConv):
                bank = layer.weight_bank
                rows = F.permute(F.view(bank, bank.shape[0], layer.kernels, layer.outputs), 1, 0, 2)
                rows = F.reshape(rows, layer.kernels, bank.shape[0] * layer.outputs)
                alike = F.matmul(rows, F.transpose(rows, 0, 1))
                lengths = F.sqrt(F.sum(F.pow(rows, 2.0), -1, keepdim=True))
                lengths = F.matmul(lengths, F.transpose(lengths, 0, 1))
                found.append(F.sum(F.pow(F.mul(F.div(alike, lengths), empty(alike.shape)), 2.0)))
        return F.sum(F.stack(found)) * 1.0
