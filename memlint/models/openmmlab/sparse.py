"""Sparse convolutions, and the encoder of voxels that is made of them (mmdet3d 1.4 and 0.18,
``models/middle_encoders/sparse_encoder.py``, ``models/layers/sparse_block.py``; mmcv 2.2, ``ops/sparse_conv.py`` and
``ops/csrc/pytorch/cuda/spconv_ops_cuda.cu``, which 0.18 has a copy of).

Each convolution knows for each of its K offsets which of its V sites meet which: (K, 2, V) whole numbers, which are
found by way of a grid of all places there are, held or not. How many sites are left behind strided ones is the data's:
:func:`held`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memlint.meta import functional as F
from memlint.meta.amp import autocast
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Module, parameter
from memlint.meta.ops.shapes import as_tuple
from memlint.meta.tensor import Tensor, empty, float32, int32, int64
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import IN_PLACE, Config, Sequence_, activation, norm
from memlint.models.openmmlab.pillars import BN1D, PLACED
from memlint.models.openmmlab.registry import register
from memlint.models.openmmlab.scenes import Voxels

ORDER = ["conv", "norm", "act"]
CHANNELS = ((16,), (32, 32, 32), (64, 64, 64), (64, 64, 64))
PADDINGS = ((1,), (1, 1, 1), (1, 1, 1), ((0, 1, 1), 1, 1))


def held(level: int, alone: float) -> float:
    """How many sites there are behind so many convolutions of three places and a stride of two, for each that there was
    before the first. Along an axis a place that is alone reaches one or two of every second one, 1.5 on average, and a
    run of m places m / 2 + 1: 2 - 1 / 2**level of them. Along one that is full it is the 2**level-th part of itself.

    A surface is full along two axes. A laser's places are a surface near by and alone far away; ``alone``: 0 for a
    surface, 1 for places that are all alone, and between them as logarithms are.
    """
    thick, thin = 2 - 2.0**-level, 2.0**-level
    return float((thick * thin**2) ** (1 - alone) * thick ** (3 * alone))


class Sites:
    """Where a sparse map holds something: how many places, of a grid of what shape, for how many scenes; and the pairs
    that convolutions have found, by the key that they share them under."""

    def __init__(self, first: int, shape: Sequence[int], samples: int, alone: float, places: Tensor) -> None:
        self.first, self.shape, self.samples, self.alone = first, tuple(shape), samples, alone
        self.level, self.count, self.places = 0, first, places
        self.pairs: dict[str, Tensor] = {}

    def strided(self, shape: Sequence[int], places: Tensor) -> Sites:
        made = Sites(self.first, shape, self.samples, self.alone, places)
        made.level, made.count, made.pairs = self.level + 1, places.shape[0], self.pairs
        return made

    def count_of(self, shape: Sequence[int]) -> int:
        """Sites behind one more of them: no more than there are places."""
        count = int(self.first * held(self.level + 1, self.alone))
        return max(min(count, self.samples * prod(shape)), 1)


class SparseConv(Module):
    """``SubMConv3d``, whose sites are those that it is given, and ``SparseConv3d`` where it has a stride."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        submanifold: bool = True,
        key: str = "",
    ) -> None:
        self.kernel = as_tuple(kernel, 3)
        self.stride, self.padding = as_tuple(stride, 3), as_tuple(padding, 3)
        self.submanifold, self.key = submanifold, key
        self.weight = parameter(*self.kernel, inputs, outputs)

    def forward(self, x: Tensor, sites: Sites) -> tuple[Tensor, Sites]:
        out, pairs = sites, sites.pairs.get(self.key)
        if pairs is None or not self.submanifold:
            pairs, places = self._pairs(sites)
            if places is not None:
                shape = [
                    (side + 2 * pad - window) // step + 1
                    for side, window, step, pad in zip(sites.shape, self.kernel, self.stride, self.padding)
                ]
                out = sites.strided(shape, places)
            if self.key:
                sites.pairs[self.key] = pairs
        return indice_conv(x, self.weight, pairs, out.count), out

    def _pairs(self, sites: Sites) -> tuple[Tensor, Tensor | None]:
        """``get_indice_pairs``: by way of a grid of all places, and a list of all that may be held. A strided one's
        places are the first of a list that has room for each offset of each site, which stays."""
        volume = prod(self.kernel)
        pairs = empty((volume, 2, sites.count), int32)
        shape = sites.shape
        if not self.submanifold:
            reach = zip(sites.shape, self.kernel, self.stride, self.padding)
            shape = tuple((side + 2 * pad - window) // step + 1 for side, window, step, pad in reach)
        grid = empty((sites.samples * prod(shape),), int32)
        listed = empty((volume * sites.count + 1,), int32)
        places = None
        if not self.submanifold:
            room = empty((volume * sites.count, PLACED), int32)
            ordered = empty((volume * sites.count + 1,), int32)
            places = F.narrow(room, 0, min(sites.count_of(shape), volume * sites.count))
            del room, ordered
        del grid, listed
        return pairs, places


def indice_conv(x: Tensor, weight: Tensor, pairs: Tensor, sites: int) -> Tensor:
    """(V, C) -> (sites, D): for each offset rows are gathered, multiplied and added. Keeps pairs, rows and weight."""
    width, outputs = weight.shape[-2:]
    rows = x.shape[0]
    out = empty((sites, outputs), x.dtype)
    scratch = empty((rows, width), x.dtype), empty((rows, outputs), x.dtype)
    del scratch
    if tracked(x, weight):
        kinds, wanted, dtype = ((x.shape, x.dtype), (weight.shape, weight.dtype)), x.requires_grad, x.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            own, of_weight = Tensor(*kinds[0]), Tensor(*kinds[1])
            scratch = Tensor((rows, width), dtype), Tensor((rows, outputs), dtype)
            del scratch
            return [own if wanted else None, of_weight]

        record(out, (x, weight), (pairs, x, weight), backward)
    return out


def dense(x: Tensor, sites: Sites) -> Tensor:
    """``SparseConvTensor.dense``: rows written into a grid whose channels are last, then a copy whose channels are
    second: (B, C, D, H, W)."""
    canvas = empty((sites.samples, *sites.shape, x.shape[1]), x.dtype)
    where = empty((sites.count, PLACED), int64)
    written = F.index_put_(canvas, x, where)
    del canvas
    return F.contiguous(F.permute(written, 0, 4, 1, 2, 3))


class SparseLayer(Module):
    """``make_sparse_convmodule``: a sparse convolution, a norm of rows and a ReLU in place."""

    def __init__(self, conv: SparseConv, outputs: int, norm_cfg: Config) -> None:
        self.conv = conv
        self.rest = Sequence_(norm(norm_cfg or BN1D, outputs), activation(IN_PLACE))

    def forward(self, x: Tensor, sites: Sites) -> tuple[Tensor, Sites]:
        x, sites = self.conv(x, sites)
        return self.rest(x), sites


class SparseBasicBlock(Module):
    """Two submanifold convolutions, each of which looks for its pairs: they have no key."""

    def __init__(self, width: int, norm_cfg: Config) -> None:
        self.conv1, self.conv2 = SparseConv(width, width), SparseConv(width, width)
        self.norm1, self.norm2 = norm(norm_cfg or BN1D, width), norm(norm_cfg or BN1D, width)

    def forward(self, x: Tensor, sites: Sites) -> tuple[Tensor, Sites]:
        made, _ = self.conv1(x, sites)
        made = F.relu(self.norm1(made), inplace=True)
        made, _ = self.conv2(made, sites)
        made = self.norm2(made) + x
        return F.relu(made, inplace=True), sites


@register()
class SparseEncoder(Module):
    """Rows of voxels (V, C) -> a map that is seen from above (B, C * D, H, W), in fp32."""

    def __init__(
        self,
        in_channels: int,
        sparse_shape: Sequence[int],
        order: Sequence[str] = ("conv", "norm", "act"),
        norm_cfg: Config = None,
        base_channels: int = 16,
        output_channels: int = 128,
        encoder_channels: Any = CHANNELS,
        encoder_paddings: Any = PADDINGS,
        block_type: str = "conv_module",
        return_middle_feats: bool = False,
        place: str = "model.middle_encoder",
    ) -> None:
        if list(order) != ORDER:
            raise UnknownModel(f"{place}.order is a way through a layer that memlint does not know")
        if block_type not in ("conv_module", "basicblock"):
            raise UnknownModel(f"{place}.block_type {block_type} is a block that memlint does not know")
        self.shape, self.returns_levels = list(sparse_shape), return_middle_feats
        first = SparseConv(in_channels, base_channels, padding=1, key="subm1")
        self.conv_input = SparseLayer(first, base_channels, norm_cfg)
        self.encoder_layers: list[Module] = []
        self.marks: list[int] = []
        width = base_channels
        for stage, (widths, paddings) in enumerate(zip(encoder_channels, encoder_paddings)):
            last = stage == len(encoder_channels) - 1
            for number, (outputs, padding) in enumerate(zip(widths, paddings)):
                strided = (number == len(widths) - 1 and not last) if block_type == "basicblock" else False
                strided = strided or (block_type == "conv_module" and stage > 0 and number == 0)
                self.encoder_layers.append(self._layer(block_type, stage, width, outputs, padding, strided, norm_cfg))
                width = outputs
            self.marks.append(len(self.encoder_layers))
        out = SparseConv(width, output_channels, (3, 1, 1), (2, 1, 1), 0, False, "spconv_down2")
        self.conv_out = SparseLayer(out, output_channels, norm_cfg)

    @staticmethod
    def _layer(
        kind: str, stage: int, width: int, outputs: int, padding: Any, strided: bool, norm_cfg: Config
    ) -> Module:
        if kind == "basicblock" and not strided:
            return SparseBasicBlock(outputs, norm_cfg)
        key = f"{'spconv' if strided else 'subm'}{stage + 1}"
        conv = SparseConv(width, outputs, 3, 2 if strided else 1, padding, not strided, key)
        return SparseLayer(conv, outputs, norm_cfg)

    def forward(self, x: Tensor, voxels: Voxels) -> Tensor | tuple[Tensor, list[Tensor]]:
        """The map; with the rows of each level where ``return_middle_feats`` asks for them."""
        with autocast(None):
            x = F.to(x, float32)
            places = empty((x.shape[0], PLACED), int32)
            sites = Sites(x.shape[0], self.shape, voxels.samples, voxels.scenes.alone, places)
            x, sites = self.conv_input(x, sites)
            kept = []
            for number, layer in enumerate(self.encoder_layers, start=1):
                x, sites = layer(x, sites)
                if number in self.marks:
                    kept.append(x)
            x, sites = self.conv_out(x, sites)
            x = dense(x, sites)
            made = F.view(x, x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])
            return (made, kept) if self.returns_levels else made
