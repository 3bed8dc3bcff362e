"""Ops by torch's names, over shape-only tensors: what each allocates, saves for backward, and frees, on CUDA.

Every op is held against torch's own run in ``tests/differential/test_ops.py``, to the byte. What a formula saves
is in ``tools/autograd/derivatives.yaml`` of the PyTorch sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from memlint.meta.amp import lower, to, upper, widest
from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import (
    DType,
    Shape,
    Tensor,
    bool_,
    contiguous_strides,
    empty,
    empty_like,
    float16,
    float32,
    int64,
    state,
    view_strides,
)

Numbers = Sequence[int] | int


def _tuple(value: Numbers, length: int) -> tuple[int, ...]:
    return (value,) * length if isinstance(value, int) else tuple(value)


def _promote(x: Tensor, y: Tensor) -> DType:
    """torch's type promotion for floating dtypes: the wider one; a tensor without dimensions does not count."""
    if x.ndim == 0 and y.ndim > 0 and y.dtype.is_floating:
        return y.dtype
    if y.ndim == 0 and x.ndim > 0 and x.dtype.is_floating:
        return x.dtype
    if not x.dtype.is_floating:
        return y.dtype
    if not y.dtype.is_floating or x.dtype is y.dtype:
        return x.dtype
    if x.dtype.itemsize == y.dtype.itemsize:
        return float32  # float16 with bfloat16
    return x.dtype if x.dtype.itemsize > y.dtype.itemsize else y.dtype


def _broadcast(x: Shape, y: Shape) -> Shape:
    if x == y:
        return x
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    offset = len(longer) - len(shorter)
    return longer[:offset] + tuple(
        b if a == 1 else a for a, b in zip(longer[offset:], shorter)
    )


def _reduce(g: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """A gradient brought to its input's shape and dtype; g itself where it has them."""
    if g.shape != shape:
        g = Tensor(shape, g.dtype)
    return g if g.dtype is dtype else empty_like(g, dtype)


# ---------------------------------------------------------------------------------------------------- elementwise


def _elementwise(x: Tensor, keep: str, inplace: bool = False) -> Tensor:
    """One input, one output. ``keep`` is what backward needs: "input", "output" or "nothing"."""
    if inplace:
        out = x if x.node is None and not x.requires_grad else x.alias(x.shape, x.strides)
    else:
        out = empty_like(x)
    if tracked(x):
        dtype = x.dtype
        saved = {"input": (x,), "output": (out,), "nothing": ()}[keep]
        record(out, (x,), saved, lambda g: (empty_like(g, dtype),))
    return out


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    return _elementwise(x, "output", inplace)


def gelu(x: Tensor) -> Tensor:
    return _elementwise(x, "input")


def silu(x: Tensor) -> Tensor:
    return _elementwise(x, "input")


def mish(x: Tensor) -> Tensor:
    return _elementwise(x, "input")


def tanh(x: Tensor) -> Tensor:
    return _elementwise(x, "output")


def sigmoid(x: Tensor) -> Tensor:
    return _elementwise(x, "output")


def exp(x: Tensor) -> Tensor:
    return _elementwise(upper(x), "output")


def sin(x: Tensor) -> Tensor:
    return _trigonometric(x)


def cos(x: Tensor) -> Tensor:
    return _trigonometric(x)


def _trigonometric(x: Tensor) -> Tensor:
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            other = empty_like(g)  # grad * self.cos()
            result = empty_like(g)
            del other
            return (result,)

        record(out, (x,), (x,), backward)
    return out


def neg(x: Tensor) -> Tensor:
    return _elementwise(x, "nothing")


def rsqrt(x: Tensor) -> Tensor:
    x = upper(x)
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            scaled = empty_like(g)  # -0.5 * grad
            cubed = empty_like(g)  # result.pow(3)
            result = empty_like(g)
            del scaled, cubed
            return (result,)

        record(out, (x,), (out,), backward)
    return out


def sqrt(x: Tensor) -> Tensor:
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            doubled = empty_like(g)  # grad / (2 * result)
            result = empty_like(g)
            del doubled
            return (result,)

        record(out, (x,), (out,), backward)
    return out


def pow(x: Tensor, exponent: float) -> Tensor:
    """``x ** number``."""
    x = upper(x)
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            power = empty_like(g)  # self.pow(exponent - 1)
            scaled = empty_like(g)  # exponent * that
            del power
            result = empty_like(g)
            del scaled
            return (result,)

        record(out, (x,), (x,), backward)
    return out


def clone(x: Tensor) -> Tensor:
    out = empty_like(x)
    if tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def add(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        out = empty_like(x)
        if tracked(x):
            record(out, (x,), (), lambda g: (g,))
        return out
    out = _binary_out(x, y)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad
        record(
            out,
            (x, y),
            (),
            lambda g: (_reduce(g, *a) if need_x else None, _reduce(g, *b) if need_y else None),
        )
    return out


def add_(x: Tensor, y: Tensor | float) -> Tensor:
    """In place: no allocation; the result shares x's storage."""
    out = x.alias(x.shape, x.strides)
    if isinstance(y, Tensor) and tracked(x, y):
        b = (y.shape, y.dtype)
        need_y = y.requires_grad
        record(out, (x, y), (), lambda g: (g, _reduce(g, *b) if need_y else None))
    elif tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def sub(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return add(x, y)
    out = _binary_out(x, y)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = _reduce(g, *a) if need_x else None
            gy = _reduce(empty_like(g), *b) if need_y else None  # -grad
            return gx, gy

        record(out, (x, y), (), backward)
    return out


def rsub(x: Tensor, y: float) -> Tensor:
    """``number - x``."""
    return _elementwise(x, "nothing")


def _binary_out(x: Tensor, y: Tensor) -> Tensor:
    dtype = _promote(x, y)
    shape = _broadcast(x.shape, y.shape)
    if x.shape == shape and (x.strides is None or y.shape != shape):
        return empty_like(x, dtype)
    if y.shape == shape and x.shape != shape:
        return empty_like(y, dtype)
    if x.shape == shape:
        return empty_like(x, dtype)
    return Tensor(shape, dtype)


def mul(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = _binary_out(x, y)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad
        dtype = out.dtype

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = _reduce(empty_like(g, dtype), *a) if need_x else None
            gy = _reduce(empty_like(g, dtype), *b) if need_y else None
            return gx, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def div(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = _binary_out(x, y)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = _reduce(empty_like(g), *a) if need_x else None
            gy = None
            if need_y:  # -grad * ((self / other) / other)
                negative = empty_like(g)
                quotient = empty_like(g)
                second = empty_like(g)
                del quotient
                full = empty_like(g)
                del negative, second
                gy = _reduce(full, *b)
            return gx, gy

        record(out, (x, y), (y, x if need_y else None), backward)
    return out


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    out = _binary_out(x, Tensor(mask.shape, x.dtype, mask.storage))
    out.dtype = x.dtype
    if tracked(x):
        a = (x.shape, x.dtype)
        record(out, (x,), (mask,), lambda g: (_reduce(empty_like(g), *a),))
    return out


def dropout(x: Tensor, probability: float, training: bool = True) -> Tensor:
    """CUDA's ``native_dropout``: a one-byte mask is kept."""
    if not training or probability == 0:
        return x
    if not tracked(x):
        return empty_like(x)
    out = empty_like(x)
    mask = empty_like(x, bool_)
    record(out, (x,), (mask,), lambda g: (empty_like(g),))
    return out


# ---------------------------------------------------------------------------------------------------- reductions


def _dims(x: Tensor, dim: Numbers | None) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def _reduced_shape(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if d in dims else size for d, size in enumerate(x.shape))
    return tuple(size for d, size in enumerate(x.shape) if d not in dims)


def _expand_back(g: Tensor, shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if not keepdim:
        for d in sorted(dims):
            g = g.alias(
                (*g.shape[:d], 1, *g.shape[d:]),
                (*g.full_strides()[:d], 1, *g.full_strides()[d:]),
            )
    strides = tuple(0 if d in dims and shape[d] != 1 else s for d, s in enumerate(g.full_strides()))
    return g.alias(shape, strides)


def sum(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """The gradient is an expanded view: no memory."""
    x = upper(x)
    dims = _dims(x, dim)
    out = empty(_reduced_shape(x, dims, keepdim), x.dtype)
    if tracked(x):
        shape = x.shape
        record(out, (x,), (), lambda g: (_expand_back(g, shape, dims, keepdim),))
    return out


def mean(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """The gradient is the expanded one divided by the count: a full tensor."""
    dims = _dims(x, dim)
    out = empty(_reduced_shape(x, dims, keepdim), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(
            out, (x,), (), lambda g: (empty_like(_expand_back(g, shape, dims, keepdim), dtype),)
        )
    return out


def max(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Values and int64 indices; the indices are kept."""
    dims = _dims(x, dim)
    shape = _reduced_shape(x, dims, keepdim)
    values, indices = empty(shape, x.dtype), empty(shape, int64)
    if tracked(x):
        full, dtype = x.shape, x.dtype
        record(values, (x,), (indices,), lambda g: (Tensor(full, dtype),))
    return values, indices


def softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """Keeps its output. In fp32 from bfloat16 the input is copied first; from float16 one kernel does both."""
    if state.autocast is not None and dtype is None:
        dtype = float32
    return _softmax(x, dtype)


def log_softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    if state.autocast is not None and dtype is None:
        dtype = float32
    return _softmax(x, dtype)


def _softmax(x: Tensor, dtype: DType | None) -> Tensor:
    source = x.dtype
    if dtype is not None and dtype is not source:
        if source is not float16:
            return _softmax(to(x, dtype), None)
        out = empty(x.shape, dtype)
    else:
        out = empty(x.shape, source)
    if tracked(x):
        record(out, (x,), (out,), lambda g: (Tensor(g.shape, source),))
    return out


def topk(x: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Values and int64 indices of the k largest along the last dimension."""
    shape = (*x.shape[:-1], k)
    values, indices = empty(shape, x.dtype), empty(shape, int64)
    if tracked(x):
        full, dtype = x.shape, x.dtype
        record(values, (x,), (indices,), lambda g: (Tensor(full, dtype),))
    return values, indices


# --------------------------------------------------------------------------------------------------------- views


def view(x: Tensor, *shape: int) -> Tensor:
    """``x.view(...)``; one dimension may be -1. Raises where only a copy has that shape."""
    target = _infer(x, shape)
    strides = view_strides(x.shape, x.full_strides(), target)
    if strides is None:
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
        known = prod(d for d in shape if d != -1)
        shape = tuple(prod(x.shape) // known if d == -1 else d for d in shape)
    return tuple(shape)


def _reshaped(g: Tensor, shape: Shape) -> Tensor:
    strides = view_strides(g.shape, g.full_strides(), shape)
    return Tensor(shape, g.dtype) if strides is None else g.alias(shape, strides)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """A view where one exists, else a contiguous copy."""
    target = _infer(x, shape)
    if view_strides(x.shape, x.full_strides(), target) is None:
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
    step = 1 if dim == x.ndim else int(x.shape[dim]) * strides[dim]
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
        record(out, (x,), (), lambda g: (_reduce(g, before, dtype),))
    return out


def narrow(x: Tensor, dim: int, length: int) -> Tensor:
    """``length`` entries along ``dim``: a view, whose gradient is a full tensor of zeros with the piece put in."""
    dim %= x.ndim
    strides = x.full_strides()
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
            start, stop, step = item.indices(int(x.shape[dim]))
            length = len(range(start, stop, step))
            if length != x.shape[dim]:
                x = narrow(x, dim, length)
            dim += 1
    return x


def split(x: Tensor, sizes: Numbers, dim: int = 0) -> tuple[Tensor, ...]:
    """Views; the gradient is their gradients put together again (missing ones as zeros)."""
    dim %= x.ndim
    total = x.shape[dim]
    if isinstance(sizes, int):
        step = sizes
        sizes = [step] * (total // step) + ([total % step] if total % step else [])
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
    outs = tuple(x.alias(shape, rest) for _ in range(x.shape[dim]))
    if tracked(x):
        before, dtype = x.shape, x.dtype

        def backward(grads: list[Tensor | None]) -> tuple[Tensor]:
            zeros = [Tensor(shape, dtype) for g in grads if g is None]
            result = Tensor(before, dtype)
            del zeros
            return (result,)

        if len(outs) == 1:
            record(outs[0], (x,), (), lambda g: (Tensor(before, dtype),))
        else:
            record(outs, (x,), (), backward)
    return outs


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """A fresh tensor; the gradients are views into its gradient."""
    tensors = widest(*tensors)
    first = tensors[0]
    dim %= first.ndim
    length = tensors[0].shape[dim]
    for x in tensors[1:]:
        length = length + x.shape[dim]
    dtype = first.dtype
    for x in tensors[1:]:
        dtype = _promote(Tensor((1,), dtype, x.storage), Tensor((1,), x.dtype, x.storage))
    out = Tensor((*first.shape[:dim], length, *first.shape[dim + 1 :]), dtype)
    if tracked(*tensors):
        pieces = [(x.shape, x.dtype) if x.requires_grad else None for x in tensors]

        def backward(g: Tensor) -> list[Tensor | None]:
            strides = g.full_strides()
            return [
                None if piece is None else _reduce(g.alias(piece[0], strides), *piece) for piece in pieces
            ]

        record(out, tensors, (), backward)
    return out


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """A fresh tensor; the gradients are views into its gradient."""
    tensors = widest(*tensors)
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
    """Constant padding, last dimension first as in torch; the gradient is a fresh tensor."""
    shape = list(x.shape)
    for number in range(len(amounts) // 2):
        d = x.ndim - 1 - number
        shape[d] = shape[d] + amounts[2 * number] + amounts[2 * number + 1]
    out = Tensor(tuple(shape), x.dtype)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


# ------------------------------------------------------------------------------------------- lookups and gathers


def embedding(index: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the table is dense."""
    out = Tensor((*index.shape, weight.shape[1]), weight.dtype)
    if tracked(weight):
        shape, dtype = weight.shape, weight.dtype
        record(out, (weight,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim %= x.ndim
    out = Tensor((*x.shape[:dim], index.numel, *x.shape[dim + 1 :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Also advanced indexing with one index tensor: a fresh tensor of the index's shape."""
    out = Tensor(index.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


# ------------------------------------------------------------------------------------------------ matrix products


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Keeps x where the weight trains and the weight where x needs a gradient."""
    x, weight = lower(x), lower(weight)
    bias = lower(bias) if bias is not None else None
    if x.ndim > 2 and view_strides(x.shape, x.full_strides(), (prod(x.shape[:-1]), x.shape[-1])) is None:
        x = contiguous(x)
    out = Tensor((*x.shape[:-1], weight.shape[0]), x.dtype)
    if tracked(x, weight, bias):
        need = tuple(t is not None and t.requires_grad for t in (x, weight, bias))
        shapes = (x.shape, weight.shape, bias.shape if bias is not None else None)
        rows = (prod(out.shape[:-1]), out.shape[-1])
        dtype = x.dtype

        def backward(g: Tensor) -> tuple[Tensor | None, ...]:
            if view_strides(g.shape, g.full_strides(), rows) is None:
                g = Tensor(g.shape, g.dtype)
            return tuple(
                Tensor(shape, dtype) if wanted and shape is not None else None
                for wanted, shape in zip(need, shapes)
            )

        record(out, (x, weight, bias), (x if need[1] else None, weight if need[0] else None), backward)
    return out


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """(batch, n, k) @ (batch, k, m)."""
    x, y = lower(x), lower(y)
    out = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if tracked(x, y):
        need_x, need_y = x.requires_grad, y.requires_grad
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        record(
            out,
            (x, y),
            (y if need_x else None, x if need_y else None),
            lambda g: (Tensor(*a) if need_x else None, Tensor(*b) if need_y else None),
        )
    return out


def baddbmm(x: Tensor, y: Tensor, shape: Shape | None = None) -> Tensor:
    """``torch.baddbmm(empty, x, y, beta=0)``: the batched product into a fresh tensor, beside the empty one."""
    x, y = lower(x), lower(y)
    unused = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    out = bmm(x, y)
    del unused
    return out


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Batched operands are expanded and brought to three dimensions, which copies what is not viewable so."""
    x, y = lower(x), lower(y)
    if y.ndim == 2:
        return linear(x, transpose(y, 0, 1))
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    out_shape = (*batch, x.shape[-2], y.shape[-1])
    count = prod(batch)
    if x.shape[:-2] != batch:
        x = expand(x, *batch, *x.shape[-2:])
    if y.shape[:-2] != batch:
        y = expand(y, *batch, *y.shape[-2:])
    x3 = reshape(x, count, *x.shape[-2:])
    y3 = reshape(y, count, *y.shape[-2:])
    return view(bmm(x3, y3), *out_shape)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, backend: str = ""
) -> Tensor:
    """(batch, heads, tokens, width). ``backend``: flash, efficient or math; "" is what CUDA takes: flash for 16-bit
    without a mask, memory-efficient otherwise. The fused ones keep q, k, v, the output and one number per row."""
    q, k, v = lower(q), lower(k), lower(v)
    if not backend:
        backend = "flash" if q.dtype.itemsize == 2 and mask is None else "efficient"
    if backend == "math":
        scores = matmul(mul(q, 1.0), transpose(mul(k, 1.0), -2, -1))
        if mask is not None:
            scores = add(scores, mask)
        return matmul(softmax(scores), v)
    # Both kernels work on (batch, tokens, heads, width) and return a transposed view of that.
    batch, heads, tokens, _ = q.shape
    width = v.shape[-1]
    base = Tensor((batch, tokens, heads, width), q.dtype)
    out = base.alias(
        (batch, heads, tokens, width),
        tuple(contiguous_strides(base.shape)[d] for d in (0, 2, 1, 3)),
    )
    del base
    needs = tracked(q, k, v)
    # The efficient kernel pads the rows of its log-sum-exp to 32 (kAlignLSE).
    rows = tokens if backend == "flash" else (tokens + 31) // 32 * 32
    sums = Tensor((batch, heads, rows if needs or backend == "flash" else 0), float32)
    if needs:
        seeds = Tensor((), int64), Tensor((), int64)  # philox seed and offset
        need = tuple(t.requires_grad for t in (q, k, v))
        like = tuple((t.shape, t.dtype) for t in (q, k, v))

        def backward(g: Tensor) -> tuple[Tensor | None, ...]:
            grads = [_heads_last(*item) for item in like]
            return tuple(grad if wanted else None for grad, wanted in zip(grads, need))

        record(out, (q, k, v), (q, k, v, out, sums, *seeds, mask), backward)
    return out


def _heads_last(shape: Shape, dtype: DType) -> Tensor:
    """A fresh (batch, heads, tokens, width) tensor that lies in memory as (batch, tokens, heads, width)."""
    batch, heads, tokens, width = shape
    base = Tensor((batch, tokens, heads, width), dtype)
    strides = contiguous_strides(base.shape)
    return base.alias(shape, (strides[0], strides[2], strides[1], strides[3]))


# ------------------------------------------------------------------------------------------------- normalisation


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Over the last dimension: keeps the input and two numbers per row."""
    x = contiguous(upper(x))
    out = Tensor(x.shape, x.dtype)
    rows = (*x.shape[:-1], 1)
    mean_, rstd = Tensor(rows, float32), Tensor(rows, float32)
    return _normalised(out, x, weight, bias, (mean_, rstd))


def group_norm(x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """(N, C, ...): keeps the input and two numbers per group."""
    x = contiguous(upper(x))
    out = Tensor(x.shape, x.dtype)
    rows = (x.shape[0], groups)
    mean_, rstd = Tensor(rows, float32), Tensor(rows, float32)
    return _normalised(out, x, weight, bias, (mean_, rstd))


def batch_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True
) -> Tensor:
    """(N, C, ...): keeps the input and, in training mode, two numbers per channel."""
    out = empty_like(x)
    shape = (x.shape[1],) if training else (0,)
    mean_, rstd = Tensor(shape, float32), Tensor(shape, float32)
    return _normalised(out, x, weight, bias, (mean_, rstd))


def instance_norm(x: Tensor) -> Tensor:
    """Without weights and running statistics: batch norm over (1, N*C, ...)."""
    folded = reshape(contiguous(x), 1, x.shape[0] * x.shape[1], *x.shape[2:])
    return view(batch_norm(folded), *x.shape)


def _normalised(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
) -> Tensor:
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [
            (t.shape, t.dtype) if t is not None and t.requires_grad else None for t in inputs
        ]
        record(
            out,
            inputs,
            (x, weight, *statistics),
            lambda g: [None if item is None else Tensor(*item) for item in like],
        )
    return out


# --------------------------------------------------------------------------------------------------- convolution


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    groups: int = 1,
) -> Tensor:
    """(N, C, spatial...), one to three spatial dimensions: keeps input and weight."""
    x, weight = lower(x), lower(weight)
    bias = lower(bias) if bias is not None else None
    n = x.ndim - 2
    strides, paddings = _tuple(stride, n), _tuple(padding, n)
    spatial = tuple(
        (size + 2 * p - kernel) // s + 1
        for size, kernel, s, p in zip(x.shape[2:], weight.shape[2:], strides, paddings)
    )
    return _convolved(Tensor((x.shape[0], weight.shape[0], *spatial), x.dtype), x, weight, bias)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
) -> Tensor:
    x, weight = lower(x), lower(weight)
    bias = lower(bias) if bias is not None else None
    n = x.ndim - 2
    strides, paddings = _tuple(stride, n), _tuple(padding, n)
    spatial = tuple(
        (size - 1) * s - 2 * p + kernel
        for size, kernel, s, p in zip(x.shape[2:], weight.shape[2:], strides, paddings)
    )
    return _convolved(Tensor((x.shape[0], weight.shape[1], *spatial), x.dtype), x, weight, bias)


def _convolved(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [
            (t.shape, t.dtype) if t is not None and t.requires_grad else None for t in inputs
        ]
        record(
            out,
            inputs,
            (x, weight),
            lambda g: [None if item is None else Tensor(*item) for item in like],
        )
    return out


def interpolate(x: Tensor, *size: int) -> Tensor:
    """To a spatial size, nearest or smooth alike: nothing is kept."""
    out = Tensor((*x.shape[:2], *size), x.dtype)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def max_pool(x: Tensor, kernel: int, stride: int | None = None) -> Tensor:
    """Keeps the input and int64 indices of the maxima."""
    step = stride or kernel
    spatial = tuple((size - kernel) // step + 1 for size in x.shape[2:])
    shape = (*x.shape[:2], *spatial)
    out, indices = Tensor(shape, x.dtype), Tensor(shape, int64)
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (x, indices), lambda g: (Tensor(before, dtype),))
    return out


# --------------------------------------------------------------------------------------------------------- losses


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    return _pointwise_loss(x, target)


def l1_loss(x: Tensor, target: Tensor) -> Tensor:
    return _pointwise_loss(x, target)


def _pointwise_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean over all elements. The kernel makes the elementwise loss, then reduces it; both operands are kept."""
    x, target = upper(x), upper(target)
    full = empty_like(x)
    out = empty((), x.dtype)
    del full
    if tracked(x, target):
        need_x, need_y = x.requires_grad, target.requires_grad
        shape, dtype = x.shape, x.dtype
        record(
            out,
            (x, target),
            (x, target),
            lambda g: (
                Tensor(shape, dtype) if need_x else None,
                Tensor(shape, dtype) if need_y else None,
            ),
        )
    return out


def nll_loss(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Mean over (tokens, classes) log-probabilities: keeps them; their gradient is a tensor of zeros, filled."""
    out, weight = empty((), log_probabilities.dtype), empty((), log_probabilities.dtype)
    if tracked(log_probabilities):
        shape, dtype = log_probabilities.shape, log_probabilities.dtype
        record(
            out,
            (log_probabilities,),
            (log_probabilities, target, weight),
            lambda g: (Tensor(shape, dtype),),
        )
    return out


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """(tokens, classes) logits: log-softmax, kept, then the negative log-likelihood."""
    return nll_loss(log_softmax(logits), target)


METHODS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        add,
        add_,
        baddbmm,
        bmm,
        chunk,
        clone,
        contiguous,
        cos,
        div,
        exp,
        expand,
        flatten,
        gather,
        index_select,
        masked_fill,
        matmul,
        max,
        mean,
        mul,
        narrow,
        neg,
        permute,
        pow,
        repeat,
        reshape,
        rsqrt,
        rsub,
        select,
        select_index,
        sigmoid,
        sin,
        softmax,
        split,
        sqrt,
        squeeze,
        sub,
        sum,
        tanh,
        topk,
        transpose,
        unbind,
        unsqueeze,
        view,
        to,
    )
}
