"""Convolutions that look where they learn to look (mmcv 2.1, ``ops/deform_conv.py``, ``ops/modulated_deform_conv.py``,
and ``ops/csrc/pytorch`` of both): the places are a convolution's result, and so is how much each one counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.amp import lower
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Conv, Module, parameter
from memlint.meta.ops.shapes import as_tuple
from memlint.meta.tensor import Tensor, empty
from memlint.models import UnknownModel

# Name in a config -> whether each place has a weight.
KINDS = {"DCN": False, "DCNv2": True}
STEP = 32  # ``im2col_step``: images whose columns are there at once; of weighted places it is one


def deformed(x: Tensor, weight: Tensor, places: Sequence[Tensor], stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Keeps input, weight and places. The columns of all windows are written out for the moment, in forward and in
    backward; without weights of places the results are, too, before they are put in order."""
    steps, edges, reach = as_tuple(stride, 2), as_tuple(padding, 2), as_tuple(dilation, 2)
    size = [
        (side + 2 * edge - (step * (kernel - 1) + 1)) // by + 1
        for side, edge, step, kernel, by in zip(x.shape[2:], edges, reach, weight.shape[2:], steps)
    ]
    weighted = len(places) > 1
    at_once = 1 if weighted else min(STEP, x.shape[0])
    window = x.shape[1] * weight.shape[2] * weight.shape[3]
    columns = (window, at_once * size[0] * size[1])
    out = empty((x.shape[0], weight.shape[0], *size), x.dtype)
    scratch = [empty(columns, x.dtype), *([] if weighted else [empty(out.shape, x.dtype)])]
    del scratch
    inputs = (x, weight, *places)
    if tracked(*inputs):
        kinds = [(one.shape, one.dtype) for one in inputs]

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [empty(*kind) for kind in kinds]
            scratch = empty(columns, g.dtype)
            del scratch
            return grads

        record(out, inputs, inputs, backward)
    return out


class DeformConv(Module):
    """``DeformConv2dPack`` and ``ModulatedDeformConv2dPack``"""

    def __init__(
        self,
        config: Any,
        inputs: int,
        outputs: int,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        bias: bool,
    ) -> None:
        unknown = set(config) - {"type", "deform_groups", "deformable_groups", "fallback_on_stride"}
        if unknown or config.get("fallback_on_stride") or bias:
            raise UnknownModel(f"dcn {', '.join(sorted(unknown)) or 'with a bias'} is not known")
        self.weighted = KINDS[config["type"]]
        each = config.get("deform_groups", config.get("deformable_groups", 1))
        window = as_tuple(kernel, 2)
        self.weight = parameter(outputs, inputs // groups, *window)
        channels = each * (3 if self.weighted else 2) * window[0] * window[1]
        self.conv_offset = Conv(inputs, channels, window, stride, padding, True, 1, dilation)
        self.steps = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv_offset(x)
        if not self.weighted:
            return deformed(lower(x), lower(self.weight), [found], *self.steps)
        first, second, mask = F.chunk(found, 3, 1)
        places = F.cat((first, second), 1)
        mask = F.sigmoid(mask)
        del found, first, second
        return deformed(lower(x), lower(self.weight), [places, mask], *self.steps)
