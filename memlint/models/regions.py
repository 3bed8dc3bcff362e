"""What detectors take out of their maps for each region."""

from __future__ import annotations

from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import DType, Tensor, empty, int32


def roi_align(x: Tensor, count: int, size: tuple[int, int], *places: DType) -> Tensor:
    """A map (N, C, H, W) -> regions (count, C, *size), by averages. Keeps where the regions are; the gradient is as
    large as the map. (mmcv 2.1, ``ops/roi_align.py``; torchvision 0.28, ``csrc/ops/autograd/roi_align_kernel.cpp``)

    ``places``: dtypes of what is kept beside of each number that comes out."""
    out = empty((count, x.shape[1], *size), x.dtype)
    found = [empty(out.shape, kind) for kind in places]
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (empty((count, 5)), *found), lambda g: (Tensor(shape, dtype),))
    return out


def roi_align_max(x: Tensor, count: int, size: tuple[int, int]) -> Tensor:
    """The same by maxima: both coordinates of each are kept, in the map's dtype. (mmcv 2.1, ``ops/roi_align.py``)"""
    return roi_align(x, count, size, x.dtype, x.dtype)


def roi_pool(x: Tensor, count: int, size: tuple[int, int]) -> Tensor:
    """The largest number of each bin, whose index is kept. (mmcv 2.1, ``ops/roi_pool.py``)"""
    return roi_align(x, count, size, int32)
