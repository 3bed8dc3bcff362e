"""Autocast, with CUDA's op lists and CUDA's weight-cast cache.

Sources: the op lists of "Automatic Mixed Precision", torch.amp documentation; ``aten/src/ATen/autocast_mode.cpp``
(``cached_cast``: only fp32 leaves that require grad and are no views are cached, until the outermost context closes).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import ref

from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import DType, Tensor, bfloat16, empty_like, float32, state


@contextmanager
def autocast(dtype: DType | None = bfloat16) -> Iterator[None]:
    """Ops inside run in ``dtype`` or in fp32 as CUDA autocast has them; None leaves everything as it is."""
    saved = state.autocast
    outermost = saved is None
    state.autocast = dtype
    try:
        yield
    finally:
        state.autocast = saved
        if outermost:
            state.cast_cache.clear()


def to(x: Tensor, dtype: DType) -> Tensor:
    """``x.to(dtype)``: x itself where it has that dtype already, else a recorded copy."""
    if x.dtype is dtype:
        return x
    out = empty_like(x, dtype)
    if dtype.is_floating and tracked(x):
        source = x.dtype
        record(out, (x,), (), lambda g: (empty_like(g, source),))
    return out


def lower(x: Tensor) -> Tensor:
    """The operand of an op on autocast's 16-bit list. Inactive outside autocast."""
    target = state.autocast
    if target is None or x.dtype is target or not x.dtype.is_floating:
        return x
    if x.requires_grad and x.node is None and x.dtype is float32 and not x.is_view:
        cached = state.cast_cache.get(id(x))
        if cached is not None:
            return cached[1]
        if not state.grad_enabled:
            # Under no_grad torch still caches a copy, made with gradients on: the cache outlives the block.
            state.grad_enabled = True
            try:
                cast = to(x, target)
            finally:
                state.grad_enabled = False
        else:
            cast = to(x, target)
        state.cast_cache[id(x)] = (x, cast)
        return cast
    return _lowered_once(x, target) if state.fusing else to(x, target)


def _lowered_once(x: Tensor, dtype: DType) -> Tensor:
    """A compiler makes what is asked for twice once: casts of one tensor are one (``fx_graph_cse``)."""
    known = getattr(x.storage, "lowered", None)
    if known is not None:
        storage, shape, strides = known[0](), known[1], known[2]
        if storage is not None and shape == x.shape and strides == x.strides:
            out = Tensor(x.shape, dtype, storage, x.strides)
            if tracked(x):
                source = x.dtype
                record(out, (x,), (), lambda g: (empty_like(g, source),))
            return out
    out = to(x, dtype)
    if out.strides == x.strides:
        x.storage.lowered = (ref(out.storage), x.shape, x.strides)
    return out


def upper(x: Tensor) -> Tensor:
    """The operand of an op on autocast's fp32 list."""
    if state.autocast is None or x.dtype is float32 or not x.dtype.is_floating:
        return x
    return to(x, float32)


def widest(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Operands of ops that autocast promotes to the widest dtype among them."""
    if state.autocast is None:
        return tensors
    if any(x.dtype is float32 for x in tensors):
        return tuple(to(x, float32) if x.dtype.is_floating else x for x in tensors)
    return tensors
