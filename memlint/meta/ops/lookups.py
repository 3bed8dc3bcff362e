"""Lookups in tables, and gathers."""

from __future__ import annotations

from memlint.meta.autograd import record, tracked
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.shapes import broadcast_shape, kind_of
from memlint.meta.tensor import Shape, Tensor, empty_like


@kernel
def embedding(index: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the table is dense."""
    out = Tensor((*index.shape, weight.shape[1]), weight.dtype)
    if tracked(weight):
        shape, dtype = weight.shape, weight.dtype
        record(out, (weight,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim %= x.ndim
    length = index.shape[0] if index.ndim else 1
    out = Tensor((*x.shape[:dim], length, *x.shape[dim + 1 :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


def index(x: Tensor, *indices: Tensor, whole: int = 0) -> Tensor:
    """``x[i, j, ...]``: advanced indexing by index tensors, broadcast together, of the leading dimensions; of those
    behind them, where so many are taken ``whole``."""
    lead: Shape = ()
    for item in indices:
        lead = broadcast_shape(lead, item.shape)
    out = Tensor((*x.shape[:whole], *lead, *x.shape[whole + len(indices) :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), indices, lambda g: (Tensor(shape, dtype),))
    return out


def index_put_(x: Tensor, values: Tensor, *indices: Tensor) -> Tensor:
    """``x[i, j, ...] = values``, in place: the result shares x's storage. Backward copies the gradient for x and puts
    zeros, as many as the values, where it was written over; the values' is taken out of it."""
    out = x.alias(x.shape, x.strides)
    if tracked(x, values):
        kinds, written = (kind_of(x), kind_of(values)), (values.shape, values.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            zeros = Tensor(*written) if kinds[0] else None
            own = empty_like(g) if kinds[0] else None
            del zeros
            return [own, Tensor(kinds[1][0], g.dtype) if kinds[1] else None]

        record(out, (x, values), indices, backward)
    return out


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """One entry of x per entry of ``index`` along ``dim``. Keeps x itself, too: its formula asks for its shape."""
    out = Tensor(index.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (x, index), lambda g: (Tensor(shape, dtype),))
    return out
