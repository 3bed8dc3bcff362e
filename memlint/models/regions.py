"""What detectors take out of their maps for each region."""

from __future__ import annotations

from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import Tensor, empty


def roi_align(x: Tensor, count: int, size: tuple[int, int]) -> Tensor:
    """A map (N, C, H, W) -> regions (count, C, *size), by averages. Keeps where the regions are; the gradient is as
    large as the map. (mmcv 2.1, ``ops/roi_align.py``; torchvision 0.28, ``csrc/ops/autograd/roi_align_kernel.cpp``)"""
    out = empty((count, x.shape[1], *size), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (empty((count, 5)),), lambda g: (Tensor(shape, dtype),))
    return out
