"""Memory formats of images: channels last, and what keeps it."""

from __future__ import annotations

from memlint.meta.dims import bare
from memlint.meta.ops.shapes import Layout
from memlint.meta.tensor import DType, Shape, Tensor, contiguous_strides, is_contiguous


def like_image(x: Tensor, shape: Shape, dtype: DType | None = None) -> Tensor:
    """A fresh (N, C, ...) tensor in x's memory format: resizing and pooling keep channels last."""
    out = Tensor(shape, dtype or x.dtype)
    out.strides = _format_strides(shape, is_channels_last(x))
    return out


def is_channels_last(x: Tensor) -> bool:
    """Whether torch takes a tensor for channels-last: its channels have the smallest step, then the last dimension,
    and so on outwards. (c10/core/MemoryFormat.h, ``is_channels_last_strides_2d``)"""
    if x.strides is None or not 4 <= x.ndim <= 5 or x.strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(x.ndim - 1, 1, -1), 0):
        step = x.strides[d]
        if x.shape[d] == 0 or step < least or (d == 0 and least == x.strides[1]):
            return False
        least = step * bare(x.shape[d]) if x.shape[d] > 1 else step
    return True


def _format_strides(shape: Shape, channels_last: bool) -> Shape | None:
    if not channels_last or len(shape) < 4:
        return None
    inner = contiguous_strides((shape[0], *shape[2:], shape[1]))
    strides = (inner[0], inner[-1], *inner[1:-1])
    return None if is_contiguous(shape, strides) else strides


def formatted(layout: Layout, dtype: DType, channels_last: bool) -> Tensor | None:
    """A copy in the memory format, where the operand does not have it."""
    shape, strides = layout
    wanted = _format_strides(shape, channels_last)
    return None if strides == wanted else Tensor(shape, dtype)


def channels_last(x: Tensor) -> Tensor:
    """x itself, laid out so from now on where it has four dimensions: ``x.to(memory_format=...)`` of what is fresh."""
    x.strides = _format_strides(x.shape, x.ndim == 4)
    return x
