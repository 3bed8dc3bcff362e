"""Recognizers of skeletons: ST-GCN and ST-GCN++ (mmaction2 1.2, ``models/backbones/stgcn.py``,
``models/utils/gcn_utils.py``, ``models/utils/graph.py``, ``models/heads/gcn_head.py``).

Shapes: (N, persons, T, joints, C) for samples, (N * persons, C, T, joints) for maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import BatchNorm, Conv, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor
from memlint.models import UnknownModel
from memlint.models.openmmlab.bricks import Sequence_
from memlint.models.openmmlab.recognizers import Head, Recognizer
from memlint.models.openmmlab.registry import register

JOINTS = {"coco": 17, "nturgb+d": 25, "openpose": 18}
SUBSETS = {"spatial": 3, "stgcn_spatial": 3}  # of a graph's edges: within a joint, inward, outward
# Of ``mstcn``: convolutions of (kernel, dilation), the highest of so many (0, n), and each place by itself (0, 0).
BRANCHES = ((3, 1), (3, 2), (3, 3), (3, 4), (0, 3), (0, 0))
LENGTH = 9  # of ``unit_tcn``


@register()
class RecognizerGCN(Recognizer):
    pass


class Graph(Module):
    """``unit_gcn``: each joint by what those beside it show."""

    def __init__(self, inputs: int, outputs: int, shape: tuple[int, ...], adaptive: str, with_res: bool) -> None:
        self.subsets, self.adaptive, self.with_res = shape[0], adaptive, with_res
        self.bn = BatchNorm(outputs)
        self.own = parameter(*shape) if adaptive == "init" else buffer(*shape)
        self.learned = parameter(*shape) if adaptive in ("importance", "offset") else None
        self.conv = Conv(inputs, outputs * self.subsets, (1, 1))
        self.down = Conv(inputs, outputs, (1, 1)) if with_res and inputs != outputs else None
        self.down_norm = BatchNorm(outputs) if with_res and inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        before = x
        if self.down is not None and self.down_norm is not None:
            before = self.down_norm(self.down(x))
        edges = self.own
        if self.learned is not None:
            edges = F.mul(edges, self.learned) if self.adaptive == "importance" else F.add(edges, self.learned)
        x = self.conv(x)
        x = F.view(x, x.shape[0], self.subsets, x.shape[1] // self.subsets, *x.shape[2:])
        x = F.contiguous(F.einsum("nkctv,kvw->nctw", x, edges))
        x = self.bn(x)
        return F.relu(F.add(x, before) if self.with_res else x + 0.0)


class Temporal(Module):
    """``unit_tcn``"""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, dilation: int = 1, normed: bool = True
    ) -> None:
        pad = (kernel + (kernel - 1) * (dilation - 1) - 1) // 2
        self.conv = Conv(inputs, outputs, (kernel, 1), (stride, 1), (pad, 0), True, 1, (dilation, 1))
        self.bn = BatchNorm(outputs) if normed else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x if self.bn is None else self.bn(x)


class Rectified(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class Highest(Module):
    def __init__(self, kernel: int, stride: int) -> None:
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool(x, (self.kernel, 1), (self.stride, 1), (1, 0))


class Branches(Module):
    """``mstcn``: several reaches of time side by side."""

    def __init__(self, channels: int, stride: int) -> None:
        width = channels // len(BRANCHES)
        first = channels - width * (len(BRANCHES) - 1)
        self.branches: list[Module] = []
        for number, (kernel, dilation) in enumerate(BRANCHES):
            own = first if number == 0 else width
            if not dilation:
                self.branches.append(Conv(channels, own, (1, 1), (stride, 1)))
                continue
            begin = (Conv(channels, own, (1, 1)), BatchNorm(own), Rectified())
            if not kernel:
                self.branches.append(Sequence_(*begin, Highest(dilation, stride)))
            else:
                last = Temporal(own, own, kernel, stride, dilation, normed=False)
                self.branches.append(Sequence_(*begin, last))
        self.transform = Sequence_(BatchNorm(channels), Rectified(), Conv(channels, channels, (1, 1)))
        self.bn = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        outs = [branch(x) for branch in self.branches]
        joined = F.cat(outs, 1)
        del outs
        return self.bn(self.transform(joined))  # type: ignore[no-any-return]


class GraphBlock(Module):
    """``STGCNBlock``"""

    def __init__(
        self, inputs: int, outputs: int, stride: int, residual: bool, several: bool, graph: dict[str, Any]
    ) -> None:
        self.gcn = Graph(inputs, outputs, **graph)
        self.tcn = Branches(outputs, stride) if several else Temporal(outputs, outputs, LENGTH, stride)
        self.residual = residual
        same = inputs == outputs and stride == 1
        self.down = Temporal(inputs, outputs, 1, stride) if residual and not same else None

    def forward(self, x: Tensor) -> Tensor:
        before = x if self.down is None else self.down(x)
        x = self.tcn(self.gcn(x))
        return F.relu(F.add(x, before) if self.residual else x + 0.0)


@register()
class STGCN(Module):
    def __init__(
        self,
        graph_cfg: Any,
        in_channels: int = 3,
        base_channels: int = 64,
        data_bn_type: str = "VC",
        ch_ratio: int = 2,
        num_person: int = 2,
        num_stages: int = 10,
        inflate_stages: Sequence[int] = (5, 8),
        down_stages: Sequence[int] = (5, 8),
        gcn_adaptive: str = "importance",
        gcn_with_res: bool = False,
        tcn_type: str = "unit_tcn",
        place: str = "model.backbone",
    ) -> None:
        layout, mode = graph_cfg.get("layout", "coco"), graph_cfg.get("mode", "spatial")
        if layout not in JOINTS or mode not in SUBSETS or tcn_type not in ("unit_tcn", "mstcn"):
            raise UnknownModel(f"{place}.graph_cfg {layout}, {mode} with {tcn_type} is one that memlint does not know")
        self.joints, self.by_person = JOINTS[layout], data_bn_type == "MVC"
        if data_bn_type not in ("MVC", "VC"):
            raise UnknownModel(f"{place}.data_bn_type {data_bn_type} is one that memlint does not know")
        self.data_bn = BatchNorm((num_person if self.by_person else 1) * in_channels * self.joints)
        shape = (SUBSETS[mode], self.joints, self.joints)
        graph = {"shape": shape, "adaptive": gcn_adaptive, "with_res": gcn_with_res}
        several = tcn_type == "mstcn"
        self.blocks = []
        if in_channels != base_channels:
            self.blocks.append(GraphBlock(in_channels, base_channels, 1, False, several, graph))
        inputs, widened = base_channels, 0
        for number in range(2, num_stages + 1):
            widened += number in inflate_stages
            outputs = base_channels * ch_ratio**widened
            stride = 1 + (number in down_stages)
            self.blocks.append(GraphBlock(inputs, outputs, stride, True, several, graph))
            inputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        batch, persons, length, joints, channels = x.shape
        x = F.contiguous(F.permute(x, 0, 1, 3, 4, 2))
        rows, width = (batch, persons) if self.by_person else (batch * persons, 1)
        x = self.data_bn(F.view(x, rows, width * joints * channels, length))
        x = F.permute(F.view(x, batch, persons, joints, channels, length), 0, 1, 3, 4, 2)
        x = F.view(F.contiguous(x), batch * persons, channels, length, joints)
        for block in self.blocks:
            x = block(x)
        return F.view(x, batch, persons, *x.shape[1:])


@register()
class GCNHead(Head):
    def __init__(self, dropout: float = 0.0, **base: Any) -> None:
        super().__init__(dropout_ratio=dropout, **base)
        self.fc = Linear(self.in_channels, self.classes)

    def forward(self, x: Tensor, several: int) -> Tensor:
        batch, persons, channels, *size = x.shape
        x = F.adaptive_avg_pool(F.view(x, batch * persons, channels, *size), 1)
        return self.fc(self.dropped(F.mean(F.view(x, batch, persons, channels), 1)))  # type: ignore[no-any-return]
