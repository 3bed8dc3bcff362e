"""What results look like: dtypes, shapes and strides of what an operation makes, and of its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.meta.tensor import DType, Shape, Tensor, empty_like, float32, iterated_strides, state

Numbers = Sequence[int] | int


def as_tuple(value: Numbers, length: int) -> tuple[int, ...]:
    return (value,) * length if isinstance(value, int) else tuple(value)


def promoted_dtype(x: Tensor, y: Tensor) -> DType:
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


def broadcast_shape(x: Shape, y: Shape) -> Shape:
    if x == y:
        return x
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    offset = len(longer) - len(shorter)
    return longer[:offset] + tuple(b if a == 1 else a for a, b in zip(longer[offset:], shorter))


Layout = tuple[Shape, Shape | None]  # shape and strides of an operand; what a backward formula may remember of it


Kind = tuple[Shape, DType]


def layout_of(x: Tensor) -> Layout:
    return x.shape, x.strides


def fresh(shape: Shape, dtype: DType, *operands: Layout) -> Tensor:
    """The result of an elementwise kernel: laid out in memory as its operands are."""
    out = Tensor(shape, dtype)
    for own, strides in operands:
        if strides is not None or own != shape:
            out.strides = iterated_strides(shape, operands)
            break
    return out


def kind_of(x: Tensor) -> Kind | None:
    """What a gradient of x must be; None where x needs none."""
    return (x.shape, x.dtype) if x.requires_grad else None


def validated(grads: list[Tensor | None], kinds: Sequence[Kind | None]) -> list[Tensor | None]:
    """The engine's ``validate_outputs``: one after the other, gradients are summed to their input's shape and cast
    to its dtype. All of them exist before the first is. What a checkpointed block recomputed is gone by then, as only
    the formula's own variables hold it."""
    if state.unpacked is not None:
        state.unpacked.saved = ()
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


def reduced_to(g: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """A gradient brought to its input's shape and dtype; g itself where it has them."""
    if g.shape != shape:
        g = Tensor(shape, g.dtype)
    return g if g.dtype is dtype else empty_like(g, dtype)
