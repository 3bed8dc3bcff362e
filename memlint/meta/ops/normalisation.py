"""Norms of layers, groups, batches and instances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memlint.meta.amp import to, upper
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.elementwise import addcmul, mul, pow, rsqrt
from memlint.meta.ops.formats import formatted, is_channels_last
from memlint.meta.ops.reductions import mean
from memlint.meta.ops.shapes import fresh, kind_of, layout_of, validated
from memlint.meta.ops.views import contiguous, reshape, view
from memlint.meta.tensor import Tensor, bfloat16, empty_like, float32, state


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Over the last dimension: keeps the input, the parameters and two fp32 numbers per row."""
    bias = None if bias is None else upper(bias)
    weight = None if weight is None else upper(weight)
    x = upper(x)
    packed = x if x.strides is None else Tensor(x.shape, x.dtype)
    out = Tensor(x.shape, x.dtype)
    rows = (*x.shape[:-1], 1)
    mean_, rstd = Tensor(rows, float32), Tensor(rows, float32)
    del packed
    return _normalised(out, x, weight, bias, (bias, mean_, rstd), packs=True)


def weight_norm(direction: Tensor, length: Tensor) -> Tensor:
    """A weight of a direction and a length for each slice along the first or the last dimension: one kernel, which
    keeps both and the slices' norms. (native/cuda/WeightNorm.cu)"""
    norms = Tensor(length.shape, float32)
    out = empty_like(direction)
    if tracked(direction, length):
        kinds = kind_of(direction), kind_of(length)

        def backward(g: Tensor) -> list[Tensor | None]:
            return validated([empty_like(direction), empty_like(length)], kinds)

        record(out, (direction, length), (direction, length, norms), backward)
    return out


def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Over the last dimension. One kernel where x and weight have one dtype: keeps both and an fp32 number per row;
    written out otherwise. (native/layer_norm.cpp, ``rms_norm_symint``) Autocast leaves the operands as they are, which
    it did before torch 2.12: :func:`rms_norm_of`."""
    if weight is not None and x.dtype is not weight.dtype:
        return rms_norm_composite(x, weight)
    packed = contiguous(x.detach())
    roots = Tensor((*x.shape[:-1], 1), float32)
    out = Tensor(packed.shape, x.dtype)
    del packed
    return _normalised(out, x, weight, None, (roots,), packs=True)


def rms_norm_of(release: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    """``rms_norm`` as torch has had it since a release (2.12, 2.9, 2.7 or 2.5), or before them all. Since 2.12 it is on
    autocast's fp32 list (pull request 174824), and so always one kernel there."""
    if release == "2.12":
        return _rms_norm_autocast
    if release == "2.9":
        return rms_norm
    return partial(rms_norm_composite, widened=release in ("2.7", "2.5"), rounded=release != "2.7")


def _rms_norm_autocast(x: Tensor, weight: Tensor | None = None) -> Tensor:
    weight = None if weight is None else upper(weight)
    return rms_norm(upper(x), weight)


def rms_norm_composite(x: Tensor, weight: Tensor | None = None, widened: bool = True, rounded: bool = False) -> Tensor:
    """The same in several steps, as before torch 2.9. (native/layer_norm.cpp, ``rms_norm_composite``) Before 2.7 the
    weight scales what is ``rounded`` to the input's type (pull request 147203), and 2.4 has the input not ``widened``
    to fp32 (134106)."""
    wide = to(x, float32) if widened else x
    root = rsqrt(mean(pow(wide, 2.0), -1, keepdim=True))
    result = mul(wide, root)
    if not widened:
        del root  # nothing but the expression held it
    if rounded:
        result = to(result, x.dtype)
    return to(result if weight is None else mul(result, weight), x.dtype)


def group_norm(x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """(N, C, ...): keeps the input and two numbers per group, in the parameters' dtype."""
    bias = None if bias is None else upper(bias)
    weight = None if weight is None else upper(weight)
    x = contiguous(upper(x))
    if state.group_norm_in_two and weight is not None and bias is not None:
        return _in_two(x, groups, weight, bias)
    parameters = weight if weight is not None else bias
    out = Tensor(x.shape, x.dtype)
    rows = (x.shape[0], groups)
    dtype = x.dtype if parameters is None else parameters.dtype
    mean_, rstd = Tensor(rows, dtype), Tensor(rows, dtype)
    if parameters is not None and x.ndim > 2:
        # The kernel folds statistics and parameters into a scale and a shift per channel.
        folded = Tensor(x.shape[:2], float32), Tensor(x.shape[:2], float32)
        del folded
    return _normalised(out, x, weight, bias, (mean_, rstd))


def _in_two(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """As torch had it before 1.6 (native/layer_norm.cpp): each group is a channel of a batch norm, then ``addcmul``."""
    channels = x.shape[0] * groups
    out = view(batch_norm(view(x, 1, channels, x.numel // channels)), *x.shape)
    shape = (1, x.shape[1], *[1] * (x.ndim - 2))
    return addcmul(view(bias, *shape), out, view(weight, *shape))


def batch_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True) -> Tensor:
    """(N, C, ...): keeps the input and, in training mode, two numbers per channel. cuDNN runs it where there are
    parameters, a spatial dimension and no bfloat16. (native/Normalization.cpp, ``_batch_norm_impl_index``)"""
    cudnn = x.ndim > 2 and weight is not None and x.dtype is not bfloat16
    if cudnn and not is_channels_last(x):
        x = contiguous(x)
    out = empty_like(x)
    shape = (x.shape[1],) if training else (0,)
    mean_, rstd = Tensor(shape, float32), Tensor(shape, float32)
    return _normalised(out, x, weight, bias, (mean_, rstd), every=cudnn and training)


def instance_norm(x: Tensor) -> Tensor:
    """Without weights and running statistics: batch norm over (1, N*C, ...)."""
    folded = reshape(contiguous(x), 1, x.shape[0] * x.shape[1], *x.shape[2:])
    return view(batch_norm(folded), *x.shape)


def _normalised(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kept: tuple[Tensor | None, ...],
    packs: bool = False,
    every: bool = False,
) -> Tensor:
    """``packs``: the backward kernel makes contiguous copies of operands that are not; ``every``: it makes all three
    gradients, wanted or not."""
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [None if t is None else (layout_of(t), t.dtype, t.requires_grad) for t in inputs]
        layout, dtype, last = layout_of(x), x.dtype, every and is_channels_last(x)

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = (
                formatted(layout_of(g), g.dtype, last) if packs or every else None,
                None if layout[1] is None or not packs else Tensor(layout[0], dtype),
            )
            grads: list[Tensor | None] = []
            unwanted = []
            for item in like:
                if item is None or not (every or item[2]):
                    grads.append(None)
                    continue
                own = (item[0][0], None) if packs else item[0]
                grad = fresh(own[0], item[1], own)
                grads.append(grad if item[2] else None)
                if not item[2]:
                    unwanted.append(grad)
                del grad
            del copies, unwanted
            return grads

        record(out, inputs, (x, weight, *kept), backward)
    return out
