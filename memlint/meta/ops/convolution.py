"""Convolutions, resizing and pooling."""

from __future__ import annotations

from memlint.meta.amp import lower, upper
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.formats import _format_strides, formatted, is_channels_last, like_image
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.shapes import Numbers, as_tuple, fresh, kind_of, layout_of
from memlint.meta.tensor import Tensor, int64


def _extent(size: int, kernel: int, stride: int, padding: int) -> int:
    """``(size + 2 * padding - kernel) // stride + 1``, in the shortest form, which is the one that formulas show."""
    if stride == 1:
        return size + (2 * padding - kernel + 1)
    if padding == 0 and kernel == stride:
        return size // stride
    return (size + (2 * padding - kernel)) // stride + 1


@kernel
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    groups: int = 1,
) -> Tensor:
    """(N, C, spatial...), one to three spatial dimensions: keeps input and weight."""
    bias = lower(bias) if bias is not None else None
    weight = lower(weight)
    x = lower(x)
    n = x.ndim - 2
    strides, paddings = as_tuple(stride, n), as_tuple(padding, n)
    spatial = tuple(map(_extent, x.shape[2:], weight.shape[2:], strides, paddings))
    return _convolved(Tensor((x.shape[0], weight.shape[0], *spatial), x.dtype), x, weight, bias)


@kernel
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
) -> Tensor:
    bias = lower(bias) if bias is not None else None
    weight = lower(weight)
    x = lower(x)
    n = x.ndim - 2
    strides, paddings = as_tuple(stride, n), as_tuple(padding, n)
    spatial = tuple(
        (size - 1) * s - 2 * p + kernel for size, kernel, s, p in zip(x.shape[2:], weight.shape[2:], strides, paddings)
    )
    return _convolved(Tensor((x.shape[0], weight.shape[1], *spatial), x.dtype), x, weight, bias)


def _convolved(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Keeps x as it came, though cuDNN is given operands of one memory format: it copies them for the moment.
    (native/Convolution.cpp, native/ConvUtils.h)"""
    last = is_channels_last(x) or is_channels_last(weight)
    out.strides = _format_strides(out.shape, last)
    copies = formatted(layout_of(x), x.dtype, last), formatted(layout_of(weight), weight.dtype, last)
    del copies
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [None if t is None else kind_of(t) for t in inputs]
        operands = (layout_of(x), x.dtype), (layout_of(weight), weight.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = [formatted(*item, last) for item in ((layout_of(g), g.dtype), *operands)]
            grads = [None if item is None else Tensor(*item) for item in like]
            for grad in grads:
                if grad is not None:
                    grad.strides = _format_strides(grad.shape, last)
            del copies
            return grads

        record(out, inputs, (x, weight), backward)
    return out


def interpolate(x: Tensor, *size: int) -> Tensor:
    """To a spatial size, nearest or smooth alike: nothing is kept. On autocast's fp32 list."""
    x = upper(x)
    out = like_image(x, (*x.shape[:2], *size))
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def max_pool(x: Tensor, kernel: int, stride: int | None = None) -> Tensor:
    """Keeps the input and int64 indices of the maxima."""
    step = stride or kernel
    spatial = tuple((size - kernel) // step + 1 for size in x.shape[2:])
    shape = (*x.shape[:2], *spatial)
    out, indices = like_image(x, shape), like_image(x, shape, int64)
    if tracked(x):
        layout, dtype = (x.shape, _format_strides(x.shape, is_channels_last(x))), x.dtype
        record(out, (x,), (x, indices), lambda g: (fresh(layout[0], dtype, layout),))
    return out
