"""Convolutions, resizing and pooling."""

from __future__ import annotations

from memlint.meta.amp import lower, upper
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.formats import _format_strides, formatted, is_channels_last, like_image
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.reductions import mean
from memlint.meta.ops.shapes import Numbers, as_tuple, fresh, kind_of, layout_of
from memlint.meta.ops.views import contiguous
from memlint.meta.tape import Label
from memlint.meta.tensor import Shape, Tensor, float32, int64, state, uint8


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
    dilation: Numbers = 1,
) -> Tensor:
    """(N, C, spatial...), one to three spatial dimensions: keeps input and weight."""
    bias = lower(bias) if bias is not None else None
    weight = lower(weight)
    x = lower(x)
    n = x.ndim - 2
    strides, paddings = as_tuple(stride, n), as_tuple(padding, n)
    reach = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], as_tuple(dilation, n))]
    spatial = tuple(map(_extent, x.shape[2:], reach, strides, paddings))
    out = Tensor((x.shape[0], weight.shape[0], *spatial), x.dtype)
    plain = groups == 1 and {*strides, *as_tuple(dilation, n)} == {1}
    return _convolved(out, x, weight, bias, _transformed_bytes(out.shape, weight) if plain else 0)


def _transformed_bytes(out: Shape, weight: Tensor) -> int:
    """What a 3x3 convolution in fp32 takes for a moment where it is computed on transformed tiles, which are written
    out: 6x6 numbers for each tile of 4x4 results, of inputs, of results and of weights (Lavin and Gray, "Fast
    Algorithms for Convolutional Neural Networks", arXiv:1509.09308, F(4x4, 3x3); cuDNN's
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, which "may require significant" workspace)."""
    if not state.transforms_tiles or weight.shape[2:] != (3, 3) or weight.dtype is not float32:
        return 0
    batch, outputs, height, width = out
    tiles = batch * -(-height // 4) * -(-width // 4)
    inputs = weight.shape[1]
    return 36 * (tiles * (inputs + outputs) + inputs * outputs) * 4


def _workspace(size_bytes: int) -> Tensor | None:
    """cuDNN's, which torch takes from its allocator for as long as the kernel runs."""
    if not size_bytes:
        return None
    saved = state.label
    state.label = Label("workspace", saved.module, "convolution")
    made = Tensor((size_bytes,), uint8)
    state.label = saved
    return made


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


def _convolved(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, workspace_bytes: int = 0) -> Tensor:
    """Keeps x as it came, though cuDNN is given operands of one memory format: it copies them for the moment.
    (native/Convolution.cpp, native/ConvUtils.h)"""
    last = is_channels_last(x) or is_channels_last(weight)
    out.strides = _format_strides(out.shape, last)
    copies = formatted(layout_of(x), x.dtype, last), formatted(layout_of(weight), weight.dtype, last)
    scratch = _workspace(workspace_bytes)
    del copies, scratch
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [None if t is None else kind_of(t) for t in inputs]
        operands = (layout_of(x), x.dtype), (layout_of(weight), weight.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = [formatted(*item, last) for item in ((layout_of(g), g.dtype), *operands)]
            grads: list[Tensor | None] = []
            for item in like:  # one kernel after the other: for the input, for the weight
                grad = None if item is None else Tensor(*item)
                if grad is not None:
                    grad.strides = _format_strides(grad.shape, last)
                    scratch = _workspace(workspace_bytes if grad.ndim > 1 else 0)
                    del scratch
                grads.append(grad)
            del copies
            return grads

        record(out, inputs, (x, weight), backward)
    return out


def unfold(x: Tensor, *shape: int) -> Tensor:
    """``F.unfold``: the windows of (N, C, H, W) as columns, (N, C * window, windows). Keeps nothing.
    (native/cuda/Im2Col.cu)"""
    packed = contiguous(x.detach())
    out = Tensor(shape, x.dtype)
    del packed
    if tracked(x):
        before, dtype = x.shape, x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            columns = contiguous(g.detach())
            result = Tensor(before, dtype)
            del columns
            return (result,)

        record(out, (x,), (), backward)
    return out


def interpolate(x: Tensor, *size: int) -> Tensor:
    """To a spatial size, nearest or smooth alike: nothing is kept. On autocast's fp32 list."""
    x = upper(x)
    out = like_image(x, (*x.shape[:2], *size))
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def max_pool(
    x: Tensor, kernel: Numbers, stride: Numbers | None = None, padding: Numbers = 0, ceil: bool = False
) -> Tensor:
    """Keeps the input and int64 indices of the maxima. ``ceil``: the last window may reach over the edge."""
    shape = _pooled(x, kernel, stride, padding, ceil)
    out, indices = like_image(x, shape), like_image(x, shape, int64)
    if tracked(x):
        layout, dtype = (x.shape, _format_strides(x.shape, is_channels_last(x))), x.dtype
        record(out, (x,), (x, indices), lambda g: (fresh(layout[0], dtype, layout),))
    return out


def avg_pool(
    x: Tensor, kernel: Numbers, stride: Numbers | None = None, padding: Numbers = 0, ceil: bool = False
) -> Tensor:
    """Keeps the input, whose shape alone its formula asks for. ``ceil``: the last window may reach over the edge."""
    return _averaged(x, _pooled(x, kernel, stride, padding, ceil))


def adaptive_avg_pool(x: Tensor, size: int) -> Tensor:
    """To ``size`` numbers in each spatial dimension; to one it is a mean. (native/AdaptiveAveragePooling.cpp)"""
    if size == 1:
        return mean(x, tuple(range(2, x.ndim)), True)
    return _averaged(x, (*x.shape[:2], *(size for _ in x.shape[2:])))


def _averaged(x: Tensor, shape: Shape) -> Tensor:
    out = like_image(x, shape)
    if tracked(x):
        layout, dtype = (x.shape, _format_strides(x.shape, is_channels_last(x))), x.dtype
        record(out, (x,), (x,), lambda g: (fresh(layout[0], dtype, layout),))
    return out


def _pooled(x: Tensor, kernel: Numbers, stride: Numbers | None, padding: Numbers, ceil: bool = False) -> Shape:
    n = x.ndim - 2
    steps = as_tuple(kernel if stride is None else stride, n)
    sizes, pads = x.shape[2:], as_tuple(padding, n)
    if ceil:  # as if there were enough for the last window
        sizes = tuple(size + step - 1 for size, step in zip(sizes, steps))
    spatial = tuple(map(_extent, sizes, as_tuple(kernel, n), steps, pads))
    if ceil:  # which begins inside of the image, or of what is put before it (native/Pool.h, pooling_output_shape)
        spatial = tuple(
            count - 1 if (count - 1) * step >= size + pad else count
            for count, step, size, pad in zip(spatial, steps, x.shape[2:], pads)
        )
    return (*x.shape[:2], *spatial)
