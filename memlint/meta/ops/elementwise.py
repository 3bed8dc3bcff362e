"""Operations element by element."""

from __future__ import annotations

from memlint.meta.amp import upper, widest
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.shapes import broadcast_shape, fresh, kind_of, layout_of, promoted_dtype, reduced_to, validated
from memlint.meta.tensor import Tensor, bool_, empty_like, stored


def _elementwise(x: Tensor, keep: str, inplace: bool = False) -> Tensor:
    """One input, one output. ``keep`` is what backward needs: "input", "output" or "nothing"."""
    if inplace:
        out = x if x.node is None and not x.requires_grad else x.alias(x.shape, x.strides)
    else:
        out = empty_like(x)
    if tracked(x):
        dtype = x.dtype
        saved = {"input": (x,), "output": (out,), "nothing": ()}[keep]
        kept = () if keep == "nothing" else (layout_of(x),)
        record(out, (x,), saved, lambda g: (fresh(g.shape, dtype, layout_of(g), *kept),))
    return out


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    if not tracked(x):
        return x if inplace else empty_like(x)
    out = x.alias(x.shape, x.strides) if inplace else empty_like(x)
    layout, dtype = layout_of(out), out.dtype
    # threshold_backward(self=result, grad): the result comes first and decides on the layout
    record(out, (x,), (out,), lambda g: (fresh(g.shape, dtype, layout, layout_of(g)),))
    return out


def gelu(x: Tensor) -> Tensor:
    return _elementwise(x, "input")


def leaky_relu(x: Tensor, inplace: bool = False) -> Tensor:
    """In place it keeps its result, whose signs are the input's; what is kept decides on the gradient's layout."""
    out = x.alias(x.shape, x.strides) if inplace else empty_like(x)
    if tracked(x):
        layout, dtype = layout_of(x), x.dtype
        record(out, (x,), (out if inplace else x,), lambda g: (fresh(g.shape, dtype, layout, layout_of(g)),))
    return out


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    return _changed(x) if inplace else _elementwise(x, "input")


def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    return _changed(x) if inplace else _elementwise(x, "input")


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    return _changed(x) if inplace else _elementwise(x, "input")


def hardtanh(x: Tensor, inplace: bool = False) -> Tensor:
    return _changed(x) if inplace else _elementwise(x, "input")


def _changed(x: Tensor) -> Tensor:
    """In place where backward asks for what was there before: a copy of it is kept."""
    before = clone(x.detach()) if tracked(x) else None
    out = x.alias(x.shape, x.strides)
    if before is not None:
        layout, dtype = layout_of(x), x.dtype
        record(out, (x,), (before,), lambda g: (fresh(g.shape, dtype, layout_of(g), layout),))
    return out


def mish(x: Tensor) -> Tensor:
    return _elementwise(x, "input")


def tanh(x: Tensor) -> Tensor:
    return _elementwise(x, "output")


def sigmoid(x: Tensor) -> Tensor:
    return _elementwise(x, "output")


def exp(x: Tensor) -> Tensor:
    return _elementwise(upper(x), "output")


def log(x: Tensor) -> Tensor:
    """Keeps x; the gradient is divided by it. On autocast's fp32 list."""
    return _elementwise(upper(x), "input")


def expm1(x: Tensor) -> Tensor:
    """Keeps its output; the gradient is multiplied by one more than that."""
    x = upper(x)
    out = empty_like(x)
    if tracked(x):
        dtype, layout = x.dtype, layout_of(out)

        def backward(g: Tensor) -> tuple[Tensor]:
            more = fresh(g.shape, dtype, layout)
            result = fresh(g.shape, dtype, layout_of(g), layout)
            del more
            return (result,)

        record(out, (x,), (out,), backward)
    return out


def sin(x: Tensor) -> Tensor:
    return _with_factor(x, empty_like(x), 1)  # grad * self.cos()


def cos(x: Tensor) -> Tensor:
    return _with_factor(x, empty_like(x), 2)  # grad * -self.sin()


def _with_factor(x: Tensor, out: Tensor, steps: int) -> Tensor:
    """Keeps x; the gradient is multiplied by a factor that takes some steps to compute from x. Temporaries of a C++
    expression all live until its end."""
    if tracked(x):
        layout, dtype = layout_of(x), x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            factor = [fresh(g.shape, dtype, layout) for _ in range(steps)]
            result = fresh(g.shape, dtype, layout_of(g), layout)
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
    out = binary_result(x, y)
    if tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        record(out, (x, y), (), lambda g: validated([g, g], kinds))
    return out


def add_(x: Tensor, y: Tensor | float) -> Tensor:
    """In place: no allocation; the result shares x's storage."""
    out = x.alias(x.shape, x.strides)
    if isinstance(y, Tensor) and tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        record(out, (x, y), (), lambda g: validated([g, g], kinds))
    elif tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


def sub(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return add(x, y)
    out = binary_result(x, y)
    if tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        record(out, (x, y), (), lambda g: validated([g, empty_like(g) if kinds[1] else None], kinds))
    return out


def rsub(x: Tensor, y: float) -> Tensor:
    """``number - x``."""
    return _elementwise(x, "nothing")


def binary_result(x: Tensor, y: Tensor) -> Tensor:
    return fresh(broadcast_shape(x.shape, y.shape), promoted_dtype(x, y), layout_of(x), layout_of(y))


def mul(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = binary_result(x, y)
    if tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        a, b, dtype = layout_of(x), layout_of(y), out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            return validated(
                [
                    fresh(g.shape, dtype, layout_of(g), b) if kinds[0] else None,
                    fresh(g.shape, dtype, layout_of(g), a) if kinds[1] else None,
                ],
                kinds,
            )

        record(out, (x, y), (y if kinds[0] else None, x if kinds[1] else None), backward)
    return out


def mul_(x: Tensor, y: Tensor) -> Tensor:
    """In place, by what asks for no gradient: the result shares x's storage."""
    out = x.alias(x.shape, x.strides)
    if tracked(x):
        dtype, layout = x.dtype, layout_of(y)
        record(out, (x,), (y,), lambda g: (fresh(g.shape, dtype, layout_of(g), layout),))
    return out


def div(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing")
    out = binary_result(x, y)
    if tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        a, b, dtype = layout_of(x), layout_of(y), out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [None, None]
            if kinds[1]:  # -grad * ((self / other) / other)
                factor = empty_like(g), fresh(g.shape, dtype, a, b), fresh(g.shape, dtype, a, b)
                grads[1] = fresh(g.shape, dtype, *(layout_of(f) for f in factor))
                del factor
            if kinds[0]:  # grad / other
                grads[0] = fresh(g.shape, dtype, layout_of(g), b)
            return validated(grads, kinds)

        record(out, (x, y), (y, x if kinds[1] else None), backward)
    return out


def div_(x: Tensor, y: Tensor | float) -> Tensor:
    """In place: the result shares x's storage. Of a tensor of its dtype backward asks for x's former value, of a number
    for nothing."""
    if not isinstance(y, Tensor):
        return _elementwise(x, "nothing", inplace=True)
    kinds = kind_of(x), kind_of(y)
    before = empty_like(x) if tracked(x, y) and kinds[1] else None
    out = x.alias(x.shape, x.strides)
    if tracked(x, y):
        a, b = layout_of(x), layout_of(y)

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [None, None]
            if kinds[1]:  # -grad * ((self / other) / other)
                factor = empty_like(g), fresh(g.shape, g.dtype, a, b), fresh(g.shape, g.dtype, a, b)
                grads[1] = fresh(g.shape, g.dtype, *(layout_of(f) for f in factor))
                del factor
            if kinds[0]:  # grad / other
                grads[0] = fresh(g.shape, g.dtype, layout_of(g), b)
            return validated(grads, kinds)

        record(out, (x, y), (y, before), backward)
    return out


def addcmul(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """``x + y * z``. Autocast brings all to the widest dtype among them. Keeps a factor where the other one trains."""
    x, y, z = widest(x, y, z)
    shape = broadcast_shape(x.shape, broadcast_shape(y.shape, z.shape))
    out = fresh(shape, x.dtype, layout_of(x), layout_of(y), layout_of(z))
    if tracked(x, y, z):
        kinds = kind_of(x), kind_of(y), kind_of(z)
        layouts, dtype = (layout_of(y), layout_of(z)), out.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [g if kinds[0] else None, None, None]
            for wanted, other in ((1, 1), (2, 0)):  # grad * (other factor * value)
                if kinds[wanted]:
                    scaled = fresh(layouts[other][0], dtype, layouts[other])
                    grads[wanted] = fresh(g.shape, dtype, layout_of(g), layout_of(scaled))
                    del scaled
            return validated(grads, kinds)

        record(out, (x, y, z), (z if kinds[1] else None, y if kinds[2] else None), backward)
    return out


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Elementwise; keeps both operands."""
    out = binary_result(x, y)
    if tracked(x, y):
        kinds = kind_of(x), kind_of(y)
        layouts, dtype = (layout_of(x), layout_of(y)), out.dtype

        def masked(g: Tensor) -> Tensor:  # where(self == other, grad / 2, grad).masked_fill_(self > other, 0)
            equal = fresh(g.shape, bool_, *layouts)
            half = empty_like(g)
            result = fresh(g.shape, dtype, *layouts)
            beyond = fresh(g.shape, bool_, *layouts)
            del equal, half, beyond
            return result

        def backward(g: Tensor) -> list[Tensor | None]:
            return validated([masked(g) if kind else None for kind in kinds], kinds)

        record(out, (x, y), (x, y), backward)
    return out


def clamp(x: Tensor, bounds: int = 1) -> Tensor:
    """Under one number, or between two; keeps x."""
    out = empty_like(x)
    if tracked(x):
        layout, dtype = layout_of(x), x.dtype

        def backward(g: Tensor) -> tuple[Tensor]:  # where((self >= min).logical_and_(self <= max), grad, 0)
            zero = Tensor((), dtype)
            inside = [fresh(g.shape, bool_, layout) for _ in range(bounds)]
            result = fresh(g.shape, dtype, layout, layout_of(g))
            del zero, inside
            return (result,)

        record(out, (x,), (x,), backward)
    return out


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    out = binary_result(x, Tensor(mask.shape, x.dtype, mask.storage))
    out.dtype = x.dtype
    if tracked(x):
        a = (x.shape, x.dtype)
        record(out, (x,), (mask,), lambda g: (reduced_to(empty_like(g), *a),))
    return out


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Keeps the condition; each gradient is zeros where the other was taken, and the zero is a tensor of its own."""
    dtype = promoted_dtype(x, y)
    out = fresh(broadcast_shape(condition.shape, broadcast_shape(x.shape, y.shape)), dtype, layout_of(x), layout_of(y))
    if tracked(x, y):
        kinds, layout = (kind_of(x), kind_of(y)), layout_of(condition)

        def chosen(g: Tensor) -> Tensor:
            zero = Tensor((), dtype)
            result = fresh(g.shape, dtype, layout_of(g), layout)
            del zero
            return result

        def backward(g: Tensor) -> list[Tensor | None]:
            return validated([chosen(g) if kind else None for kind in kinds], kinds)

        record(out, (x, y), (condition,), backward)
    return out


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Entries of x where the mask is True come from the source, one after the other. Keeps the mask."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x, source):
        kinds = kind_of(x), kind_of(source)

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


def dropout_(x: Tensor, probability: float, training: bool = True) -> Tensor:
    """In place no kernel does it at once: what it is multiplied by is kept, in its own dtype.
    (native/Dropout.cpp, ``_dropout_impl``)"""
    if not training or probability == 0:
        return x
    noise = stored(empty_like(x))
    out = x.alias(x.shape, x.strides)
    if tracked(x):
        record(out, (x,), (noise,), lambda g: (empty_like(g),))
    return out
