"""Views, and what puts tensors together."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from memlint import work
from memlint.meta.autograd import record, tracked
from memlint.meta.dims import Dim, bare
from memlint.meta.ops.formats import _format_strides, is_channels_last, like_image
from memlint.meta.ops.shapes import Numbers, promoted_dtype, reduced_to
from memlint.meta.tensor import Shape, Tensor, view_strides


def view(x: Tensor, *shape: int) -> Tensor:
    """``x.view(...)``; one dimension may be -1. Raises where only a copy has that shape."""
    target = _infer(x, shape)
    strides = None
    if x.strides is not None:
        strides = view_strides(x.shape, x.strides, target)
    if prod(target) != prod(x.shape) or (strides is None and x.strides is not None):
        raise ValueError(f"view of {x} as {target}: only a copy has this shape")
    out = x.alias(target, strides)
    if tracked(x):
        before = x.shape
        record(out, (x,), (), lambda g: (_reshaped(g, before),))
    return out


def _infer(x: Tensor, shape: Sequence[Any]) -> Shape:
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    if -1 in shape:
        known = [d for d in shape if d != -1]
        rest = _quotient(x.shape, known) if any(type(d) is Dim for d in x.shape) else prod(x.shape) // prod(known)
        shape = tuple(rest if d == -1 else d for d in shape)
    return tuple(shape)


def _quotient(sizes: Sequence[int], divisors: list[int]) -> int:
    """The product of ``sizes`` over that of ``divisors``, with the shortest formula: what stands in both goes first."""
    left = []
    for size in sizes:
        if size in divisors:
            divisors.remove(size)
        else:
            left.append(size)
    number, divisor = prod(size for size in left if type(size) is int), prod(divisors)
    common = gcd(number, divisor) if type(divisor) is int else 1
    return prod((size for size in left if type(size) is Dim), start=number // common) // (divisor // common)


def _reshaped(g: Tensor, shape: Shape) -> Tensor:
    if g.strides is None:
        return g.alias(shape, None)
    strides = view_strides(g.shape, g.strides, shape)
    return Tensor(shape, g.dtype) if strides is None else g.alias(shape, strides)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """A view where one exists, else a contiguous copy."""
    target = _infer(x, shape)
    if x.strides is not None and view_strides(x.shape, x.strides, target) is None:
        x = contiguous(x)
    return view(x, *target)


def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    end %= x.ndim
    return reshape(x, *x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def contiguous(x: Tensor) -> Tensor:
    """x itself where it is contiguous, else a copy."""
    if x.strides is None:
        return x
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def permute(x: Tensor, *order: int) -> Tensor:
    order = tuple(d % x.ndim for d in order)
    strides = x.full_strides()
    out = x.alias(tuple(x.shape[d] for d in order), tuple(strides[d] for d in order))
    if tracked(x):
        inverse = sorted(range(len(order)), key=order.__getitem__)

        def backward(g: Tensor) -> tuple[Tensor]:
            s = g.full_strides()
            return (g.alias(tuple(g.shape[d] for d in inverse), tuple(s[d] for d in inverse)),)

        record(out, (x,), (), backward)
    return out


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    order = list(range(x.ndim))
    first, second = first % x.ndim, second % x.ndim
    order[first], order[second] = second, first
    return permute(x, *order)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim %= x.ndim + 1
    return view(x, *x.shape[:dim], 1, *x.shape[dim:]) if x.strides is None else _insert(x, dim)


def _insert(x: Tensor, dim: int) -> Tensor:
    strides = x.full_strides()
    step = 1 if dim == x.ndim else bare(x.shape[dim]) * strides[dim]
    out = x.alias((*x.shape[:dim], 1, *x.shape[dim:]), (*strides[:dim], step, *strides[dim:]))
    if tracked(x):
        before = x.shape
        record(out, (x,), (), lambda g: (_reshaped(g, before),))
    return out


def squeeze(x: Tensor, dim: int) -> Tensor:
    dim %= x.ndim
    strides = x.full_strides()
    out = x.alias(x.shape[:dim] + x.shape[dim + 1 :], strides[:dim] + strides[dim + 1 :])
    if tracked(x):
        before = x.shape
        record(out, (x,), (), lambda g: (_reshaped(g, before),))
    return out


def expand(x: Tensor, *shape: int) -> Tensor:
    """A view with stride zero; its gradient is summed."""
    shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    offset = len(shape) - x.ndim
    old = x.full_strides()
    sizes, strides = [], []
    for d, size in enumerate(shape):
        if d < offset:
            sizes.append(size)
            strides.append(0)
            continue
        own = x.shape[d - offset]
        sizes.append(own if size == -1 else size)
        strides.append(old[d - offset] if own != 1 or size in (-1, 1) else 0)
    out = x.alias(tuple(sizes), tuple(strides))
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (reduced_to(g, before, dtype),))
    return out


def narrow(x: Tensor, dim: int, length: int, step: int = 1) -> Tensor:
    """``length`` entries along ``dim``, ``step`` apart: a view, whose gradient is a full tensor of zeros with the piece
    put in."""
    dim %= x.ndim
    strides = x.full_strides()
    if step != 1:
        strides = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
    out = x.alias((*x.shape[:dim], length, *x.shape[dim + 1 :]), strides)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def select(x: Tensor, dim: int) -> Tensor:
    """One entry along ``dim``, without that dimension."""
    dim %= x.ndim
    strides = x.full_strides()
    out = x.alias(x.shape[:dim] + x.shape[dim + 1 :], strides[:dim] + strides[dim + 1 :])
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def select_index(x: Tensor, index: Any) -> Tensor:
    """Basic indexing: ints select, slices narrow (whole slices do nothing), None adds a dimension."""
    items = index if isinstance(index, tuple) else (index,)
    if Ellipsis in items:
        at = items.index(Ellipsis)
        missing = x.ndim - (len([i for i in items if i is not None]) - 1)
        items = items[:at] + (slice(None),) * missing + items[at + 1 :]
    dim = 0
    for item in items:
        if item is None:
            x = unsqueeze(x, dim)
            dim += 1
        elif isinstance(item, int):
            x = select(x, dim)
        else:
            length = _length(item, bare(x.shape[dim]))
            if length != x.shape[dim]:
                x = narrow(x, dim, length, item.step or 1)
            dim += 1
    return x


def _length(item: slice, size: int) -> int:
    """How many of ``size`` elements a slice is of."""
    if item.step not in (None, 1):
        return len(range(*item.indices(size)))
    start, stop = (
        end if bound is None else max(bare(bound) + size, 0) if bound < 0 else min(bare(bound), size)
        for bound, end in ((item.start, 0), (item.stop, size))
    )
    return max(stop - start, 0)


def split(x: Tensor, sizes: Numbers, dim: int = 0) -> tuple[Tensor, ...]:
    """Views; the gradient is their gradients put together again (missing ones as zeros)."""
    dim %= x.ndim
    total = x.shape[dim]
    if isinstance(sizes, int):
        step = sizes
        sizes = [step] * (total // step) + ([total % step] if total % step else []) or [0]  # one, of nothing
    strides = x.full_strides()
    outs = tuple(x.alias((*x.shape[:dim], size, *x.shape[dim + 1 :]), strides) for size in sizes)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        shapes = [out.shape for out in outs]

        def backward(grads: list[Tensor | None]) -> tuple[Tensor]:
            zeros = [Tensor(s, dtype) for s, g in zip(shapes, grads) if g is None]
            result = Tensor(before, dtype)
            del zeros
            return (result,)

        if len(outs) == 1:
            record(outs[0], (x,), (), lambda g: (Tensor(before, dtype),))
        else:
            record(outs, (x,), (), backward)
    return outs


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return split(x, -(-x.shape[dim % x.ndim] // chunks), dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views; the gradient is a stack of theirs."""
    dim %= x.ndim
    strides = x.full_strides()
    shape, rest = x.shape[:dim] + x.shape[dim + 1 :], strides[:dim] + strides[dim + 1 :]
    work.spend(x.shape[dim] * work.STORAGE, "simulating a training step")
    outs = tuple(x.alias(shape, rest) for _ in range(x.shape[dim]))
    if tracked(x):
        before, dtype = x.shape, x.dtype

        def backward(grads: list[Tensor | None]) -> tuple[Tensor]:
            zeros = [Tensor((), dtype) for g in grads if g is None]  # expanded
            result = Tensor(before, dtype)
            del zeros
            return (result,)

        if len(outs) == 1:
            record(outs[0], (x,), (), lambda g: (Tensor(before, dtype),))
        else:
            record(outs, (x,), (), backward)
    return outs


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """A fresh tensor of the widest dtype among them; the gradients are views into its gradient."""
    first = tensors[0]
    dim %= first.ndim
    length = tensors[0].shape[dim]
    for x in tensors[1:]:
        length = length + x.shape[dim]
    dtype = first.dtype
    for x in tensors[1:]:
        dtype = promoted_dtype(Tensor((1,), dtype, x.storage), Tensor((1,), x.dtype, x.storage))
    shape = (*first.shape[:dim], length, *first.shape[dim + 1 :])
    out = like_image(first, shape, dtype) if all(map(is_channels_last, tensors)) else Tensor(shape, dtype)
    if tracked(*tensors):
        pieces = [(x.shape, x.dtype) if x.requires_grad else None for x in tensors]

        def backward(g: Tensor) -> list[Tensor | None]:
            strides = g.full_strides()
            return [None if piece is None else reduced_to(g.alias(piece[0], strides), *piece) for piece in pieces]

        record(out, tensors, (), backward)
    return out


def assigned(x: Tensor, piece: Tensor) -> Tensor:
    """``x[...] = piece``: x itself, whose gradient goes back through a copy of it and a copy of the part, each time.
    (autograd/variable.cpp, CopySlices)"""
    out = x.alias(x.shape, x.strides)
    if tracked(x, piece):
        shape, strides, dtype = x.shape, x.strides, x.dtype
        own, kind = piece.shape, piece.dtype
        base, trains = x.requires_grad, piece.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            whole = Tensor(shape, dtype, strides=strides)
            part = Tensor(own, dtype)
            if kind is not dtype:
                part = Tensor(own, kind)
            zeros = Tensor(own, dtype) if base else None
            del zeros
            return [whole if base else None, part if trains else None]

        record(out, (x if base else None, piece), (), backward)
    return out


def filled(first: Tensor, second: Tensor) -> Tensor:
    """An empty tensor whose last dimension is filled with copies of two, one after the other."""
    out = Tensor((*first.shape[:-1], first.shape[-1] + second.shape[-1]), first.dtype)
    return assigned(assigned(out, first), second)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """A fresh tensor; the gradients are views into its gradient."""
    first = tensors[0]
    dim %= first.ndim + 1
    out = Tensor((*first.shape[:dim], len(tensors), *first.shape[dim:]), first.dtype)
    if tracked(*tensors):
        needs = [x.requires_grad for x in tensors]

        def backward(g: Tensor) -> list[Tensor | None]:
            strides = g.full_strides()
            shape = g.shape[:dim] + g.shape[dim + 1 :]
            rest = strides[:dim] + strides[dim + 1 :]
            return [g.alias(shape, rest) if need else None for need in needs]

        record(out, tensors, (), backward)
    return out


def repeat(x: Tensor, *times: int) -> Tensor:
    """``x.repeat(...)``: a fresh tensor; the gradient is summed back."""
    padded = (1,) * (len(times) - x.ndim) + x.shape
    out = Tensor(tuple(n * d for n, d in zip(times, padded)), x.dtype)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def pad(x: Tensor, *amounts: int) -> Tensor:
    """Constant padding, last dimension first as in torch; the gradient is a fresh tensor. Channels last stay so.
    (native/PadNd.cpp, ``constant_pad_nd``)"""
    shape = list(x.shape)
    for number in range(len(amounts) // 2):
        d = x.ndim - 1 - number
        shape[d] = shape[d] + amounts[2 * number] + amounts[2 * number + 1]
    out = like_image(x, tuple(shape))
    if tracked(x):
        before, dtype = x.shape, x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            result = Tensor(before, dtype)
            result.strides = _format_strides(before, is_channels_last(g))
            return (result,)

        record(out, (x,), (), backward)
    return out


def reflection_pad(x: Tensor, *amounts: int) -> Tensor:
    """Padding of images by their own pixels, last dimension first. Kernels want packed tensors and give
    packed ones; the input is kept. (native/cuda/ReflectionPad.cu; ``reflection_pad2d`` in derivatives.yaml)"""
    shape = list(x.shape)
    for number in range(len(amounts) // 2):
        d = x.ndim - 1 - number
        shape[d] = shape[d] + amounts[2 * number] + amounts[2 * number + 1]
    out = Tensor(tuple(shape), x.dtype)
    packed = contiguous(x.detach())
    del packed
    if tracked(x):
        before, dtype = x.shape, x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            result = Tensor(before, dtype)
            packed = contiguous(g)
            del packed
            return (result,)

        record(out, (x,), (x,), backward)
    return out


def roll(x: Tensor, dims: int = 1) -> Tensor:
    """``x.roll(...)`` along so many dimensions: one after the other, each from a packed tensor into a fresh one; back
    again for the gradient. (native/cuda/TensorTransformations.cu)"""
    out = _rolled(x.detach(), dims)
    if tracked(x):
        record(out, (x,), (), lambda g: (_rolled(g, dims),))
    return out


def _rolled(x: Tensor, dims: int) -> Tensor:
    for _ in range(dims):
        packed = x if x.strides is None else Tensor(x.shape, x.dtype)
        x = Tensor(x.shape, x.dtype)
        del packed
    return x
