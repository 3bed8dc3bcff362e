"""Lookups in tables, and gathers."""

from __future__ import annotations

from memlint.meta.autograd import record, tracked
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.shapes import broadcast_shape
from memlint.meta.tensor import Shape, Tensor


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


def index(x: Tensor, *indices: Tensor) -> Tensor:
    """``x[i, j, ...]``: advanced indexing of the leading dimensions by index tensors, broadcast together."""
    lead: Shape = ()
    for item in indices:
        lead = broadcast_shape(lead, item.shape)
    out = Tensor((*lead, *x.shape[len(indices) :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), indices, lambda g: (Tensor(shape, dtype),))
    return out


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """One entry of x per entry of ``index`` along ``dim``. Keeps x itself, too: its formula asks for its shape."""
    out = Tensor(index.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (x, index), lambda g: (Tensor(shape, dtype),))
    return out
