"""Ops by torch's names, over shape-only tensors: what each allocates, saves for backward, and frees, on CUDA.

Every op is held against torch's own run in ``tests/differential/test_ops.py``, to the byte. What a formula saves
is in ``tools/autograd/derivatives.yaml`` of the PyTorch sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from memlint import work
from memlint.meta.amp import lower, to, upper
from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import (
    Deferred,
    DType,
    Shape,
    Storage,
    Tensor,
    bfloat16,
    bool_,
    contiguous_strides,
    empty,
    empty_like,
    float16,
    float32,
    int64,
    is_contiguous,
    iterated_strides,
    preserved_strides,
    state,
    stored,
    uint8,
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
    return longer[:offset] + tuple(b if a == 1 else a for a, b in zip(longer[offset:], shorter))


Layout = tuple[Shape, Shape | None]  # shape and strides of an operand; what a backward formula may remember of it
Kind = tuple[Shape, DType]


def _layout(x: Tensor) -> Layout:
    return x.shape, x.strides


def _fresh(shape: Shape, dtype: DType, *operands: Layout) -> Tensor:
    """The result of an elementwise kernel: laid out in memory as its operands are."""
    out = Tensor(shape, dtype)
    for own, strides in operands:
        if strides is not None or own != shape:
            out.strides = iterated_strides(shape, operands)
            break
    return out


def _kind(x: Tensor) -> Kind | None:
    """What a gradient of x must be; None where x needs none."""
    return (x.shape, x.dtype) if x.requires_grad else None


def _validated(grads: list[Tensor | None], kinds: Sequence[Kind | None]) -> list[Tensor | None]:
    """The engine's ``validate_outputs``: one after the other, gradients are summed to their input's shape and cast
    to its dtype. All of them exist before the first is."""
    for position, kind in enumerate(kinds):
        g = grads[position]
        if g is None or kind is None:
            grads[position] = None
            continue
        shape, dtype = kind
        if g.shape != shape:
            g = grads[position] = Tensor(shape, g.dtype)
        if g.dtype is not dtype:
            grads[position] = empty_like(g, dtype)
        del g
    return grads


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
        kept = () if keep == "nothing" else (_layout(x),)
        record(out, (x,), saved, lambda g: (_fresh(g.shape, dtype, _layout(g), *kept),))
    return out


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    if not tracked(x):
        return x if inplace else empty_like(x)
    out = x.alias(x.shape, x.strides) if inplace else empty_like(x)
    layout, dtype = _layout(out), out.dtype
    # threshold_backward(self=result, grad): the result comes first and decides on the layout
    record(out, (x,), (out,), lambda g: (_fresh(g.shape, dtype, layout, _layout(g)),))
    return out


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
    return _with_factor(x, empty_like(x), 1)  # grad * self.cos()


def cos(x: Tensor) -> Tensor:
    return _with_factor(x, empty_like(x), 2)  # grad * -self.sin()


def _with_factor(x: Tensor, out: Tensor, steps: int) -> Tensor:
    """Keeps x; the gradient is multiplied by a factor that takes some steps to compute from x. Temporaries of a C++
    expression all live until its end."""
    if tracked(x):
        layout, dtype = _layout(x), x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            factor = [_fresh(g.shape, dtype, layout) for _ in range(steps)]
            result = _fresh(g.shape, dtype, _layout(g), layout)
            del factor
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


def abs(x: Tensor) -> Tensor:
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            sign = empty_like(g)  # self.sgn()
            result = empty_like(g)
            del sign
            return (result,)

        record(out, (x,), (x,), backward)
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
    return _with_factor(x, empty_like(x), 2)  # grad * (exponent * self.pow(exponent - 1))


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
        kinds = _kind(x), _kind(y)
        record(out, (x, y), (), lambda g: _validated([g, g], kinds))
    return out


def add_(x: Tensor, y: Tensor | float) -> Tensor:
    """In place: no allocation; the result shares x's storage."""
    out = x.alias(x.shape, x.strides)
    if isinstance(y, Tensor) and tracked(x, y):
        kinds = _kind(x), _kind(y)
        record(out, (x, y), (), lambda g: _validated([g, g], kinds))
    elif tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def sub(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return add(x, y)
    out = _binary_out(x, y)
    if tracked(x, y):
        kinds = _kind(x), _kind(y)
        record(out, (x, y), (), lambda g: _validated([g, empty_like(g) if kinds[1] else None], kinds))
    return out


def rsub(x: Tensor, y: float) -> Tensor:
    """``number - x``."""
    return _elementwise(x, "nothing")


def _binary_out(x: Tensor, y: Tensor) -> Tensor:
    return _fresh(_broadcast(x.shape, y.shape), _promote(x, y), _layout(x), _layout(y))


def mul(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = _binary_out(x, y)
    if tracked(x, y):
        kinds = _kind(x), _kind(y)
        a, b, dtype = _layout(x), _layout(y), out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            return _validated(
                [
                    _fresh(g.shape, dtype, _layout(g), b) if kinds[0] else None,
                    _fresh(g.shape, dtype, _layout(g), a) if kinds[1] else None,
                ],
                kinds,
            )

        record(out, (x, y), (y if kinds[0] else None, x if kinds[1] else None), backward)
    return out


def div(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = _binary_out(x, y)
    if tracked(x, y):
        kinds = _kind(x), _kind(y)
        a, b, dtype = _layout(x), _layout(y), out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [None, None]
            if kinds[1]:  # -grad * ((self / other) / other)
                factor = empty_like(g), _fresh(g.shape, dtype, a, b), _fresh(g.shape, dtype, a, b)
                grads[1] = _fresh(g.shape, dtype, *(_layout(f) for f in factor))
                del factor
            if kinds[0]:  # grad / other
                grads[0] = _fresh(g.shape, dtype, _layout(g), b)
            return _validated(grads, kinds)

        record(out, (x, y), (y, x if kinds[1] else None), backward)
    return out


def div_(x: Tensor, y: Tensor | float) -> Tensor:
    """In place: the result shares x's storage. Of a tensor of its dtype backward asks for x's former value, of a number
    for nothing."""
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing", inplace=True)
    kinds = _kind(x), _kind(y)
    before = empty_like(x) if tracked(x, y) and kinds[1] else None
    out = x.alias(x.shape, x.strides)
    if tracked(x, y):
        a, b = _layout(x), _layout(y)

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [None, None]
            if kinds[1]:  # -grad * ((self / other) / other)
                factor = empty_like(g), _fresh(g.shape, g.dtype, a, b), _fresh(g.shape, g.dtype, a, b)
                grads[1] = _fresh(g.shape, g.dtype, *(_layout(f) for f in factor))
                del factor
            if kinds[0]:  # grad / other
                grads[0] = _fresh(g.shape, g.dtype, _layout(g), b)
            return _validated(grads, kinds)

        record(out, (x, y), (y, before), backward)
    return out


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Elementwise; keeps both operands."""
    out = _binary_out(x, y)
    if tracked(x, y):
        kinds = _kind(x), _kind(y)
        layouts, dtype = (_layout(x), _layout(y)), out.dtype

        def masked(g: Tensor) -> Tensor:  # where(self == other, grad / 2, grad).masked_fill_(self > other, 0)
            equal = _fresh(g.shape, bool_, *layouts)
            half = empty_like(g)
            result = _fresh(g.shape, dtype, *layouts)
            beyond = _fresh(g.shape, bool_, *layouts)
            del equal, half, beyond
            return result

        def backward(g: Tensor) -> list[Tensor | None]:
            return _validated([masked(g) if kind else None for kind in kinds], kinds)

        record(out, (x, y), (x, y), backward)
    return out


def clamp(x: Tensor, bounds: int = 1) -> Tensor:
    """Under one number, or between two; keeps x."""
    out = empty_like(x)
    if tracked(x):
        layout, dtype = _layout(x), x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:  # where((self >= min).logical_and_(self <= max), grad, 0)
            zero = Tensor((), dtype)
            inside = [_fresh(g.shape, bool_, layout) for _ in range(bounds)]
            result = _fresh(g.shape, dtype, layout, _layout(g))
            del zero, inside
            return (result,)

        record(out, (x,), (x,), backward)
    return out


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    out = _binary_out(x, Tensor(mask.shape, x.dtype, mask.storage))
    out.dtype = x.dtype
    if tracked(x):
        a = (x.shape, x.dtype)
        record(out, (x,), (mask,), lambda g: (_reduce(empty_like(g), *a),))
    return out


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Entries of x where the mask is True come from the source, one after the other. Keeps the mask."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x, source):
        kinds = _kind(x), _kind(source)

        def backward(g: Tensor) -> list[Tensor | None]:
            return [empty_like(g) if kinds[0] else None, Tensor(kinds[1][0], g.dtype) if kinds[1] else None]

        record(out, (x, source), (mask,), backward)
    return out


def dropout(x: Tensor, probability: float, training: bool = True) -> Tensor:
    """CUDA's ``native_dropout``: a one-byte mask is kept, by a compiler as well (numbers are not drawn again)."""
    if not training or probability == 0:
        return x
    out = empty_like(x)
    mask = stored(empty_like(x, bool_))  # also where nothing needs a gradient
    if tracked(x):
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


def sum(x: Tensor, dim: Numbers | None = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    """The gradient is an expanded view: no memory. Autocast asks for an fp32 result, which takes no copy of x; so does
    one of another ``dtype``."""
    dims = _dims(x, dim)
    promotes = state.autocast is not None and x.dtype.is_floating
    out = empty(_reduced_shape(x, dims, keepdim), dtype or (float32 if promotes else x.dtype))
    if tracked(x):
        kind = x.shape, x.dtype
        record(out, (x,), (), lambda g: _validated([_expand_back(g, kind[0], dims, keepdim)], (kind,)))
    return out


def mean(x: Tensor, dim: Numbers | None = None, keepdim: bool = False) -> Tensor:
    """The gradient is the expanded one divided by the count: a full tensor."""
    dims = _dims(x, dim)
    out = empty(_reduced_shape(x, dims, keepdim), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (empty_like(_expand_back(g, shape, dims, keepdim), dtype),))
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
    out = _softmax(x, dtype)
    if state.frame is None and tracked(x):
        state.tape.probabilities_kept_bytes += out.nbytes
    return out


def log_softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    if state.autocast is not None and dtype is None:
        dtype = float32
    return _softmax(x, dtype)


def _softmax(x: Tensor, dtype: DType | None) -> Tensor:
    source = x.dtype
    if dtype is not None and dtype is not source and source is not float16:
        return _softmax(to(x, dtype), None)
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


# --------------------------------------------------------------------------------------------------------- views


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
        known = prod(d for d in shape if d != -1)
        shape = tuple(prod(x.shape) // known if d == -1 else d for d in shape)
    return tuple(shape)


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
            length = -((int(start) - int(stop)) // int(step))
            length = length if length > 0 else 0
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
        dtype = _promote(Tensor((1,), dtype, x.storage), Tensor((1,), x.dtype, x.storage))
    shape = (*first.shape[:dim], length, *first.shape[dim + 1 :])
    out = _like_image(first, shape, dtype) if all(map(_channels_last, tensors)) else Tensor(shape, dtype)
    if tracked(*tensors):
        pieces = [(x.shape, x.dtype) if x.requires_grad else None for x in tensors]

        def backward(g: Tensor) -> list[Tensor | None]:
            strides = g.full_strides()
            return [None if piece is None else _reduce(g.alias(piece[0], strides), *piece) for piece in pieces]

        record(out, tensors, (), backward)
    return out


def filled(first: Tensor, second: Tensor) -> Tensor:
    """An empty tensor whose last dimension is filled with copies of two: ``out[..., :n].copy_(first)``, then the rest.
    The gradient goes back through a copy of it and a copy of the slice, each time. (autograd/variable.cpp, CopySlices)
    """
    out = Tensor((*first.shape[:-1], first.shape[-1] + second.shape[-1]), first.dtype)
    shape, dtype = out.shape, out.dtype
    for piece in (first, second):
        if tracked(out, piece):
            own, base, trains = piece.shape, out.requires_grad, piece.requires_grad

            def backward(g: Tensor, own: Shape = own, base: bool = base, trains: bool = trains) -> list[Tensor | None]:
                whole = Tensor(shape, dtype)
                part = Tensor(own, dtype)
                zeros = Tensor(own, dtype) if base else None
                del zeros
                return [whole if base else None, part if trains else None]

            record(out, (out if base else None, piece), (), backward)
    return out


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
        lead = _broadcast(lead, item.shape)
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


# ------------------------------------------------------------------------------------------------ matrix products


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Keeps x where the weight trains and the weight where x needs a gradient."""
    # Autocast casts from the last argument to the first: so C++ evaluates them.
    bias = lower(bias) if bias is not None else None
    weight = lower(weight)
    x = lower(x)
    if bias is None:
        return _matmul(x, transpose(weight, 0, 1)) if x.strides is not None else _folded(x, weight, None)
    if x.ndim == 2 or x.strides is None:
        return _folded(x, weight, bias)  # addmm
    return add_(_matmul(x, transpose(weight, 0, 1)), bias)


def _plain() -> bool:
    """Whether nothing keeps results of operations for the backward pass but what their formulas save."""
    return state.frame is None or state.frame.policy is None


def _product(shape: Shape, dtype: DType) -> Tensor:
    """The result of a product of matrices within a selectively checkpointed block."""
    (out,) = state.frame.operation("product", lambda: (Tensor(shape, dtype),))
    return out  # type: ignore[no-any-return]


def _folded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T (+ bias) as one product of matrices; x's leading dimensions can be folded without a copy."""
    made = (*x.shape[:-1], weight.shape[0])
    out = Tensor(made, x.dtype) if bias is not None or _plain() else _product(made, x.dtype)
    if tracked(x, weight, bias):
        kinds = _kind(x), _kind(weight), None if bias is None else _kind(bias)
        column_major = x.ndim == 2 and x.strides is not None
        shape, strides, rows = x.shape, x.strides, (prod(out.shape[:-1]), out.shape[-1])

        def backward(g: Tensor) -> list[Tensor | None]:
            if g.strides is not None and view_strides(g.shape, g.strides, rows) is None:
                g = Tensor(g.shape, g.dtype)
            grads = [None if kind is None else Tensor(*kind) for kind in kinds]
            if column_major and grads[0] is not None:
                grads[0].strides = preserved_strides(shape, strides) if strides else None
            # Results of products that pass through the nodes of weight.t() and of x's folding.
            if grads[0] is not None and len(shape) > 2:
                grads[0].is_view = True
            if grads[1] is not None:
                grads[1].is_view = True
            return grads

        record(out, (x, weight, bias), (x if kinds[1] else None, weight if kinds[0] else None), backward)
    return out


def addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """bias (m,) + (n, k) @ (k, m)."""
    y = lower(y)
    x = lower(x)
    bias = lower(bias)
    out = Tensor((x.shape[0], y.shape[1]), x.dtype)
    if tracked(bias, x, y):
        kind = _kind(bias)
        a, b = (*_layout(x), x.dtype), (*_layout(y), y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            gx = _column_major(*a) if need_x else None
            gy = _column_major(*b) if need_y else None
            return [_reduce(g, *kind) if kind else None, gx, gy]

        record(out, (bias, x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def grouped_mm(x: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    """(rows, k) @ (groups, k, m): each group of rows by its own matrix. Not on any of autocast's lists."""
    out = Tensor((x.shape[0], y.shape[2]), x.dtype)
    if tracked(x, y):
        a, b, layout = (x.shape, x.dtype), (y.shape, y.dtype), y.strides
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = Tensor(*a) if need_x else None
            gy = Tensor(*b) if need_y else None
            if gy is not None and layout is not None:
                gy.strides = preserved_strides(b[0], layout)
            return gx, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None, offsets), backward)
    return out


def mm(x: Tensor, y: Tensor) -> Tensor:
    """(n, k) @ (k, m). A gradient is laid out in memory as its operand is."""
    y = lower(y)
    x = lower(x)
    return _mm(x, y)


def _mm(x: Tensor, y: Tensor) -> Tensor:
    out = Tensor((x.shape[0], y.shape[1]), x.dtype)
    if tracked(x, y):
        a, b = (*_layout(x), x.dtype), (*_layout(y), y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gy = _column_major(*b) if need_y else None
            return _column_major(*a) if need_x else None, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def _column_major(shape: Shape, strides: Shape | None, dtype: DType) -> Tensor:
    """Fresh; its columns are packed where those of the operand are, else its rows."""
    out = Tensor(shape, dtype)
    if strides is not None and strides[0] == 1 and strides[1] == shape[0]:
        out.strides = strides
    return out


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """(batch, n, k) @ (batch, k, m)."""
    y = lower(y)
    x = lower(x)
    return _bmm(x, y)


def _bmm(x: Tensor, y: Tensor) -> Tensor:
    out = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if tracked(x, y):
        need_x, need_y = x.requires_grad, y.requires_grad
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gy = Tensor(*b) if need_y else None
            return Tensor(*a) if need_x else None, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def baddbmm(x: Tensor, y: Tensor) -> Tensor:
    """``torch.baddbmm(empty, x, y, beta=0)``: the batched product into a fresh tensor, beside the empty one, which
    the caller makes in the dtype of the product."""
    y = lower(y)
    x = lower(x)
    unused = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    out = _bmm(x, y)
    del unused
    return out


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Products of matrices, or of batches of them; see ``_matmul``."""
    y = lower(y)
    x = lower(x)
    return _matmul(x, y)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """A batch times a matrix is folded into one product; batches are expanded and brought to three dimensions, which
    copies what is not viewable so. (native/LinearAlgebra.cpp, ``_matmul_impl``)"""
    if x.ndim == 2 and y.ndim == 2:
        return _mm(x, y)
    if y.ndim == 2 and (y.requires_grad or _foldable(x)):
        folded = reshape(x, prod(x.shape[:-1]), x.shape[-1])
        return view(_mm(folded, y), *x.shape[:-1], y.shape[1])
    if x.ndim == 2 and x.requires_grad:  # the same, transposed; a copy brings it back
        turned = transpose(y, -2, -1)
        folded = reshape(turned, prod(turned.shape[:-1]), turned.shape[-1])
        out = view(_mm(folded, transpose(x, 0, 1)), *turned.shape[:-1], x.shape[0])
        return contiguous(transpose(out, -2, -1))
    if x.ndim == 3 and y.ndim == 3 and x.shape[0] != y.shape[0]:
        if x.shape[0] == 1 and x.requires_grad:
            return _matmul(squeeze(x, 0), y)
        if y.shape[0] == 1 and y.requires_grad:
            return _matmul(x, squeeze(y, 0))
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    count = prod(batch)
    x3 = reshape(expand(x, *batch, *x.shape[-2:]), count, *x.shape[-2:])
    y3 = reshape(expand(y, *batch, *y.shape[-2:]), count, *y.shape[-2:])
    return view(_bmm(x3, y3), *batch, x.shape[-2], y.shape[-1])


def _foldable(x: Tensor) -> bool:
    """Whether the leading dimensions can be folded without a copy."""
    strides = x.full_strides()
    return all(strides[d] == strides[d + 1] * x.shape[d + 1] for d in range(x.ndim - 2))


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    backend: str = "",
    dropout: float = 0.0,
    causal: bool = False,
    grouped: bool = True,
) -> Tensor:
    """(batch, heads, tokens, width); fewer heads of k and v: grouped queries, unless ``grouped`` is False, when a
    single one serves all as any dimension of 1 does, which no fused kernel knows. ``backend``: flash, efficient or
    math; "" is what CUDA takes on an Ampere or newer card. The fused ones keep q, k, v, the output and one number per
    row. ``mask``: True where attended, or a number added to the score.
    (native/transformers/attention.cpp)"""
    if mask is not None:
        mask = lower(mask)
    v = lower(v)
    k = lower(k)
    q = lower(q)
    alone = not grouped and k.shape[1] != q.shape[1]
    backend = backend or ("math" if alone else _attention_backend(q, k, v, mask, causal))
    if tracked(q, k, v):
        size = prod((*q.shape[:-1], k.shape[-2])) * q.dtype.itemsize
        if backend != "math":
            state.tape.probabilities_avoided_bytes += int(size)
        elif state.frame is None:
            state.tape.probabilities_kept_bytes += int(size)
    if mask is not None and not mask.dtype.is_floating:
        mask = _additive_mask(mask.shape, q.dtype)
    if backend == "math":
        return _attention_math(q, k, v, mask, dropout, causal, grouped)
    if backend == "flash":
        return _attention_flash(q, k, v)
    if mask is not None:
        mask = _aligned_mask(mask, q, k)
    return _attention_efficient(q, k, v, mask)


def _attention_backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> str:
    """What native/transformers/cuda/sdp_utils.cpp selects for dense operands."""
    if not q.ndim == k.ndim == v.ndim == 4 or not q.dtype is k.dtype is v.dtype or q.shape[0] != k.shape[0]:
        return "math"
    width, low = q.shape[-1], q.dtype.itemsize == 2
    packed = all(x.strides is None or x.strides[-1] == 1 for x in (q, k, v))
    if (
        low
        and mask is None
        and packed
        and q.shape[1] % k.shape[1] == 0
        and width == k.shape[-1] == v.shape[-1] <= 256
        and not (causal and q.shape[2] != k.shape[2])
    ):
        return "flash"
    alignment = 8 if low else 4
    if (
        packed
        and q.shape[1] == k.shape[1]
        and width % alignment == v.shape[-1] % alignment == 0
        and (mask is None or mask.strides is None or mask.strides[-1] == 1)
    ):
        return "efficient"
    return "math"


def _additive_mask(shape: Shape, dtype: DType) -> Tensor:
    numbers = Tensor((), dtype), Tensor((), dtype)  # zero and minus infinity
    out = Tensor(shape, dtype)
    del numbers
    return out


def _aligned_mask(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """preprocess_mask: the memory-efficient kernel wants steps of 8 elements between the mask's rows; what it is padded
    to is not yet spread over the heads."""
    if mask.full_strides()[-1] != 1 or any(step % 8 for step in mask.full_strides()[:-1]):
        mask = narrow(pad(mask, 0, 8 - mask.shape[-1] % 8), -1, mask.shape[-1])
    return expand(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _attention_math(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_: float, causal: bool, grouped: bool = True
) -> Tensor:
    """The textbook formula, in fp32, with the softmax that survives rows without any key."""
    dtype = q.dtype
    if dtype.itemsize == 2:
        q, k, v = to(q, float32), to(k, float32), to(v, float32)
    q = mul(q, 1.0)
    if causal:
        ones = Tensor((q.shape[-2], k.shape[-2]), bool_)
        kept = Tensor(ones.shape, bool_)
        del ones
        mask = _additive_mask(kept.shape, q.dtype)
        del kept
    if grouped and k.shape[-3] != q.shape[-3]:
        k, v = repeat_interleave(k, q.shape[-3] // k.shape[-3]), repeat_interleave(v, q.shape[-3] // v.shape[-3])
    scores = _matmul(q, mul(transpose(k, -2, -1), 1.0))
    if mask is not None:
        scores = add_(scores, mask)
    scores = _safe_softmax(scores)
    if dropout_:
        scores = dropout(scores, dropout_)
    probabilities = to(scores, dtype)  # a second result that SDPA drops
    out = to(_matmul(scores, v), dtype)
    del probabilities
    return out


def _safe_softmax(x: Tensor) -> Tensor:
    """A softmax, and zeros in the rows where everything is masked."""
    plain = Tensor(x.shape, x.dtype)
    number = Tensor((), x.dtype)
    masked = Tensor(x.shape, bool_)
    rows = Tensor((*x.shape[:-1], 1), bool_)
    zero = Tensor((), x.dtype)
    out = Tensor(x.shape, x.dtype)
    del plain, number, masked, rows, zero
    if tracked(x):
        record(out, (x,), (out,), lambda g: (Tensor(g.shape, g.dtype),))
    return out


def repeat_interleave(x: Tensor, times: int) -> Tensor:
    """Each entry of dimension -3 ``times`` times (key and value heads for their group of queries)."""
    before = x.shape
    spread = expand(unsqueeze(x, -3), *before[:-2], times, *before[-2:])
    return flatten(_clone_contiguous(spread), -4, -3)


def _clone_contiguous(x: Tensor) -> Tensor:
    """A contiguous copy, also of what is contiguous."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def _attention_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """flash_attn/flash_api.cpp. Widths are padded to 8."""
    width, over = q.shape[-1], q.shape[-1] % 8
    if over:
        q, k, v = pad(q, 0, 8 - over), pad(k, 0, 8 - over), pad(v, 0, 8 - over)
    batch, heads, tokens, padded = q.shape

    def make() -> tuple[Tensor, ...]:
        # Results, one number per row, random state, and one that is unused.
        return empty_like(q), Tensor((batch, heads, tokens), float32), Tensor((2,), int64), Tensor((), int64)

    out, sums, *seeds = make() if _plain() else state.frame.operation("attention", make)
    if tracked(q, k, v):
        like = tuple((_layout(x), x.dtype, x.requires_grad) for x in (q, k, v))
        rows = -(-tokens // 128) * 128
        step = 32 if padded <= 128 else 64
        accumulated = (batch, rows, heads, -(-padded // step) * step)
        expanded = (batch, k.shape[2], heads, padded) if k.shape[1] != heads else (0,)
        kept, dtype = _layout(out), q.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = _tokens_first(_layout(g), dtype), _tokens_first(kept, dtype)
            grads = [_fresh(layout[0], dtype, layout) for layout, dtype, _ in like]
            scratch = (
                Tensor((batch, heads, rows), float32),
                Tensor(expanded, dtype),
                Tensor(expanded, dtype),
                Tensor(accumulated, float32),
            )
            del copies, scratch
            return [grad if wanted else None for grad, (_, _, wanted) in zip(grads, like)]

        record(out, (q, k, v), (q, k, v, out, sums, *seeds), backward)
    return narrow(out, -1, width) if over else out


def _tokens_first(layout: Layout, dtype: DType) -> Tensor | None:
    """A copy as (batch, tokens, heads, width), where the tensor does not lie in memory like that already."""
    (batch, heads, tokens, width), strides = layout
    full = contiguous_strides(layout[0]) if strides is None else strides
    shape = (batch, tokens, heads, width)
    lies = is_contiguous(shape, (full[0], full[2], full[1], full[3]))
    return None if lies else Tensor(shape, dtype)


def _attention_efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """transformers/cuda/attention.cu and attention_backward.cu. Results lie in memory as (batch, tokens, heads,
    width); the log-sum-exp has rows of a multiple of 32 (kAlignLSE); the random seeds stay on the host."""
    batch, heads, tokens, width = q.shape
    out_shape = (batch, heads, tokens, v.shape[-1])
    low = q.dtype.itemsize == 2
    needs = tracked(q, k, v, mask)
    # The kernel makes a learned mask's gradient for every row and head, whose last dimension is a multiple of 16.
    learned = None if mask is None or not tracked(mask) else (mask.shape, mask.dtype)

    def make() -> tuple[Tensor, ...]:
        sums = (batch, heads, -(-tokens // 32) * 32 if tracked(q, k, v) else 0)
        return _heads_last(out_shape, q.dtype), Tensor(sums, float32)

    out, sums = make() if _plain() else state.frame.operation("attention", make)
    if low and v.shape[-1] > 128:
        accumulator = Tensor(out_shape, float32)
        del accumulator
    if needs:
        like = tuple((x.shape, x.dtype, x.requires_grad) for x in (q, k, v))
        dtype = q.dtype
        workspace = _efficient_workspace_bytes(batch * heads, tokens, k.shape[2], width, v.shape[-1], low)

        def backward(g: Tensor) -> list[Tensor | None]:
            copy = _tokens_first(_layout(g), dtype)
            grads = [_heads_last(shape, dtype) for shape, dtype, _ in like]
            masks: list[Tensor | None] = [None]
            if learned is not None:
                shape, kind = learned
                whole = Tensor((*shape[:-1], -(-shape[-1] // 16) * 16), kind)
                masks = [whole if whole.shape == shape else whole.alias(shape, whole.full_strides())]
            if not low:  # (grad * out).sum(-1), then transposed
                product = Tensor(out_shape, float32)
                summed = Tensor((batch, tokens, heads), float32)
            delta = Tensor((batch, heads, tokens), float32)
            if not low:
                del product, summed
            scratch = Tensor((workspace,), uint8)
            del copy, delta, scratch
            return [grad if wanted else None for grad, (_, _, wanted) in zip(grads, like)] + masks

        record(out, (q, k, v, mask), (q, k, v, mask, out, sums), backward)
    return out


def _efficient_workspace_bytes(rows: int, queries: int, keys: int, width: int, value_width: int, low: bool) -> int:
    """What the backward kernel asks for: gradients of queries by tile, with 16 bytes of lock and counter each, and,
    for wide heads in 16 bits, a stage for those of keys and values. (mem_eff_attention/kernel_backward.h,
    ``workspace_size``; tile sizes from kernels/cutlassB.h, sm80.) ``rows``: batch x heads."""
    widest = width if width >= value_width else value_width
    block_q = 64 if widest <= 64 else 128
    block_k = 128 if low and 64 < widest <= 128 else 64
    stage = 0
    if low and widest > 128:
        splits = -(-keys // block_k)
        if rows >= 256 and keys <= 2 * block_k:
            splits = 1
        if splits > 200 // rows:
            splits = 200 // rows or 1
        stage = splits * block_k * (-(-width // block_q) + -(-value_width // block_q)) * block_q
    tiles = -(-queries // block_q) * -(-width // block_k)
    return rows * (-(-(stage + tiles * (block_q * block_k + 4)) // 4) * 4) * 4


def _heads_last(shape: Shape, dtype: DType) -> Tensor:
    """A fresh (batch, heads, tokens, width) tensor that lies in memory as (batch, tokens, heads, width)."""
    batch, heads, tokens, width = shape
    base = Tensor((batch, tokens, heads, width), dtype)
    strides = contiguous_strides(base.shape)
    return base.alias(shape, (strides[0], strides[2], strides[1], strides[3]))


# ------------------------------------------------------------------------------------------------- normalisation


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


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Over the last dimension. One kernel where x and weight have one dtype: keeps both and an fp32 number per row;
    written out otherwise. (native/layer_norm.cpp, ``rms_norm_symint``)"""
    if x.dtype is not weight.dtype:
        return rms_norm_composite(x, weight)
    packed = contiguous(x.detach())
    roots = Tensor((*x.shape[:-1], 1), float32)
    out = Tensor(packed.shape, x.dtype)
    del packed
    return _normalised(out, x, weight, None, (roots,), packs=True)


def rms_norm_composite(x: Tensor, weight: Tensor, widened: bool = True, rounded: bool = False) -> Tensor:
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
    return to(mul(result, weight), x.dtype)


def group_norm(x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """(N, C, ...): keeps the input and two numbers per group, in the parameters' dtype."""
    bias = None if bias is None else upper(bias)
    weight = None if weight is None else upper(weight)
    x = contiguous(upper(x))
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


def batch_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True) -> Tensor:
    """(N, C, ...): keeps the input and, in training mode, two numbers per channel. cuDNN runs it where there are
    parameters, a spatial dimension and no bfloat16. (native/Normalization.cpp, ``_batch_norm_impl_index``)"""
    cudnn = x.ndim > 2 and weight is not None and x.dtype is not bfloat16
    if cudnn and not _channels_last(x):
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
        like = [None if t is None else (_layout(t), t.dtype, t.requires_grad) for t in inputs]
        layout, dtype, last = _layout(x), x.dtype, every and _channels_last(x)

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = (
                _formatted(_layout(g), g.dtype, last) if packs or every else None,
                None if layout[1] is None or not packs else Tensor(layout[0], dtype),
            )
            grads: list[Tensor | None] = []
            unwanted = []
            for item in like:
                if item is None or not (every or item[2]):
                    grads.append(None)
                    continue
                own = (item[0][0], None) if packs else item[0]
                grad = _fresh(own[0], item[1], own)
                grads.append(grad if item[2] else None)
                if not item[2]:
                    unwanted.append(grad)
                del grad
            del copies, unwanted
            return grads

        record(out, inputs, (x, weight, *kept), backward)
    return out


# --------------------------------------------------------------------------------------------------- convolution


def _like_image(x: Tensor, shape: Shape, dtype: DType | None = None) -> Tensor:
    """A fresh (N, C, ...) tensor in x's memory format: resizing and pooling keep channels last."""
    out = Tensor(shape, dtype or x.dtype)
    out.strides = _format_strides(shape, _channels_last(x))
    return out


def _extent(size: int, kernel: int, stride: int, padding: int) -> int:
    """``(size + 2 * padding - kernel) // stride + 1``, in the shortest form, which is the one that formulas show."""
    if stride == 1:
        return size + (2 * padding - kernel + 1)
    if padding == 0 and kernel == stride:
        return size // stride
    return (size + (2 * padding - kernel)) // stride + 1


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
    strides, paddings = _tuple(stride, n), _tuple(padding, n)
    spatial = tuple(map(_extent, x.shape[2:], weight.shape[2:], strides, paddings))
    return _convolved(Tensor((x.shape[0], weight.shape[0], *spatial), x.dtype), x, weight, bias)


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
    strides, paddings = _tuple(stride, n), _tuple(padding, n)
    spatial = tuple(
        (size - 1) * s - 2 * p + kernel for size, kernel, s, p in zip(x.shape[2:], weight.shape[2:], strides, paddings)
    )
    return _convolved(Tensor((x.shape[0], weight.shape[1], *spatial), x.dtype), x, weight, bias)


def _convolved(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Keeps x as it came, though cuDNN is given operands of one memory format: it copies them for the moment.
    (native/Convolution.cpp, native/ConvUtils.h)"""
    last = _channels_last(x) or _channels_last(weight)
    out.strides = _format_strides(out.shape, last)
    copies = _formatted(_layout(x), x.dtype, last), _formatted(_layout(weight), weight.dtype, last)
    del copies
    if tracked(x, weight, bias):
        inputs = (x, weight, bias)
        like = [None if t is None else _kind(t) for t in inputs]
        operands = (_layout(x), x.dtype), (_layout(weight), weight.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = [_formatted(*item, last) for item in ((_layout(g), g.dtype), *operands)]
            grads = [None if item is None else Tensor(*item) for item in like]
            for grad in grads:
                if grad is not None:
                    grad.strides = _format_strides(grad.shape, last)
            del copies
            return grads

        record(out, inputs, (x, weight), backward)
    return out


def _channels_last(x: Tensor) -> bool:
    """Whether torch takes a tensor for channels-last: its channels have the smallest step, then the last dimension,
    and so on outwards. (c10/core/MemoryFormat.h, ``is_channels_last_strides_2d``)"""
    if x.strides is None or not 4 <= x.ndim <= 5 or x.strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(x.ndim - 1, 1, -1), 0):
        step = x.strides[d]
        if x.shape[d] == 0 or step < least or (d == 0 and least == x.strides[1]):
            return False
        least = step * int(x.shape[d]) if x.shape[d] > 1 else step
    return True


def _format_strides(shape: Shape, channels_last: bool) -> Shape | None:
    if not channels_last or len(shape) < 4:
        return None
    inner = contiguous_strides((shape[0], *shape[2:], shape[1]))
    strides = (inner[0], inner[-1], *inner[1:-1])
    return None if is_contiguous(shape, strides) else strides


def _formatted(layout: Layout, dtype: DType, channels_last: bool) -> Tensor | None:
    """A copy in the memory format, where the operand does not have it."""
    shape, strides = layout
    wanted = _format_strides(shape, channels_last)
    return None if strides == wanted else Tensor(shape, dtype)


def interpolate(x: Tensor, *size: int) -> Tensor:
    """To a spatial size, nearest or smooth alike: nothing is kept. On autocast's fp32 list."""
    x = upper(x)
    out = _like_image(x, (*x.shape[:2], *size))
    if tracked(x):
        before, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(before, dtype),))
    return out


def max_pool(x: Tensor, kernel: int, stride: int | None = None) -> Tensor:
    """Keeps the input and int64 indices of the maxima."""
    step = stride or kernel
    spatial = tuple((size - kernel) // step + 1 for size in x.shape[2:])
    shape = (*x.shape[:2], *spatial)
    out, indices = _like_image(x, shape), _like_image(x, shape, int64)
    if tracked(x):
        layout, dtype = (x.shape, _format_strides(x.shape, _channels_last(x))), x.dtype
        record(out, (x,), (x, indices), lambda g: (_fresh(layout[0], dtype, layout),))
    return out


# --------------------------------------------------------------------------------------------------------- losses


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``reduction``: "mean" or "none"."""
    if reduction == "mean":
        return _pointwise_loss(x, target)
    target = upper(target)
    x = upper(x)
    out = _binary_out(x, target)
    if tracked(x, target):
        need_x, need_y = x.requires_grad, target.requires_grad
        shape, dtype = x.shape, x.dtype
        record(
            out,
            (x, target),
            (x, target),
            lambda g: (Tensor(shape, dtype) if need_x else None, Tensor(shape, dtype) if need_y else None),
        )
    return out


def l1_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean over all elements; not a kernel of its own but a difference, its magnitude, and the mean."""
    target = upper(target)
    x = upper(x)
    difference = sub(x, target)
    return mean(abs(difference))


def _pointwise_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean over all elements. The kernel makes the elementwise loss, then reduces it; both operands are kept."""
    target = upper(target)
    x = upper(x)
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
    log_probabilities = upper(log_probabilities)
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
    """(tokens, classes) logits: log-softmax, kept, then the negative log-likelihood. Under autocast the log-softmax
    stays in the logits' dtype, which cross entropy asks for by name, and its result is copied to fp32."""
    log_probabilities = _softmax(logits, None)
    return nll_loss(log_probabilities, target)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, as a kernel that no compiler fuses with others: it reads its operands from memory and writes there."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not state.fusing:
            return function(*args, **kwargs)
        for x in args:
            if isinstance(x, Tensor):
                _pass(x.storage)
                stored(x)
        state.fusing = False
        try:
            return function(*args, **kwargs)
        finally:
            state.fusing = True

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _pass(storage: Storage) -> None:
    """A kernel reads this: it comes after all of which this is made."""
    if type(storage) is Deferred:
        for source in storage.sources:
            if not getattr(source, "passed", False):
                source.passed = True
                _pass(source)


# What inductor leaves to libraries, or to kernels of its own that it keeps apart.
_folded, _mm, _bmm = kernel(_folded), kernel(_mm), kernel(_bmm)
addmm, baddbmm, grouped_mm = kernel(addmm), kernel(baddbmm), kernel(grouped_mm)
_attention_flash, _attention_efficient = kernel(_attention_flash), kernel(_attention_efficient)
conv, conv_transpose, embedding, topk = kernel(conv), kernel(conv_transpose), kernel(embedding), kernel(topk)


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
