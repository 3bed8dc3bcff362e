"""Sums, means, maxima and softmax along dimensions."""

from __future__ import annotations

from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.shapes import Numbers, fresh, layout_of, validated
from memlint.meta.tensor import DType, Shape, Tensor, bool_, empty, empty_like, float16, float32, int64, state


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


def sum(x: Tensor, dim: Numbers | None = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    """The gradient is an expanded view: no memory. Autocast asks for an fp32 result, which takes no copy of x; so does
    one of another ``dtype``."""
    dims = _dims(x, dim)
    promotes = state.autocast is not None and x.dtype.is_floating
    out = empty(_reduced_shape(x, dims, keepdim), dtype or (float32 if promotes else x.dtype))
    if tracked(x):
        kind = x.shape, x.dtype
        record(out, (x,), (), lambda g: validated([_expand_back(g, kind[0], dims, keepdim)], (kind,)))
    return out


def mean(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """The gradient is the expanded one divided by the count: a full tensor."""
    dims = _dims(x, dim)
    out = empty(_reduced_shape(x, dims, keepdim), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (empty_like(_expand_back(g, shape, dims, keepdim), dtype),))
    return out


def vector_norm(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """The root of the sum of squares: ``torch.norm``. Autocast asks for an fp32 result, which takes no copy of x. Keeps
    x and the result; backward makes ``x / result``, without what is no number, and its product with the gradient.
    (torch/csrc/autograd/FunctionsManual.cpp, ``norm_backward``)"""
    dims = _dims(x, dim)
    wide = float32 if state.autocast is not None and x.dtype.is_floating else x.dtype
    out = empty(_reduced_shape(x, dims, keepdim), wide)
    if tracked(x):
        full, dtype = x.shape, x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            ratio = Tensor(full, wide)
            nowhere = empty(g.shape, bool_)
            result = Tensor(full, wide)
            del ratio, nowhere
            return (to(result, dtype),)

        record(out, (x,), (x, out), backward)
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


def amax(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """Keeps operand and result: a gradient is shared among all that are as large as the largest.
    (FunctionsManual.cpp, ``scale_grad_by_count``)"""
    dims = _dims(x, dim)
    out = Tensor(_reduced_shape(x, dims, keepdim), x.dtype)
    if tracked(x):
        layout, counts, dtype = layout_of(x), _reduced_shape(x, dims, True), x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            largest = fresh(layout[0], bool_, layout)
            number = Tensor(counts, int64)
            shared = Tensor(counts, dtype)
            result = fresh(layout[0], dtype, layout)
            del largest, number, shared
            return (result,)

        record(out, (x,), (x, out), backward)
    return out


def softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """Keeps its output. In fp32 from bfloat16 the input is copied first; from float16 one kernel does both."""
    if state.autocast is not None and dtype is None:
        dtype = float32
    out = stored_softmax(x, dtype)
    if state.frame is None and tracked(x):
        state.tape.probabilities_kept_bytes += out.nbytes
    return out


def log_softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    if state.autocast is not None and dtype is None:
        dtype = float32
    return stored_softmax(x, dtype)


def stored_softmax(x: Tensor, dtype: DType | None) -> Tensor:
    source = x.dtype
    if dtype is not None and dtype is not source and source is not float16:
        return stored_softmax(to(x, dtype), None)
    packed = x if x.strides is None else Tensor(x.shape, source)  # the kernels want packed operands
    out = empty(x.shape, dtype or source)
    del packed
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            packed = g if g.strides is None else Tensor(g.shape, g.dtype)
            result = Tensor(g.shape, source)
            del packed
            return (result,)

        record(out, (x,), (out, x) if state.softmax_keeps_input else (out,), backward)
    return out


@kernel
def topk(x: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Values and int64 indices of the k largest along the last dimension."""
    packed = x if x.strides is None else Tensor(x.shape, x.dtype)
    shape = (*x.shape[:-1], k)
    values, indices = empty(shape, x.dtype), empty(shape, int64)
    del packed
    if tracked(x):
        full, dtype = x.shape, x.dtype
        record(values, (x,), (indices,), lambda g: (Tensor(full, dtype),))
    return values, indices
