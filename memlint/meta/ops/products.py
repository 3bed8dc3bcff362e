"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from memlint.meta.amp import lower
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.elementwise import add_
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.shapes import broadcast_shape, kind_of, layout_of, reduced_to, validated
from memlint.meta.ops.views import contiguous, expand, permute, reshape, squeeze, transpose, unsqueeze, view
from memlint.meta.tensor import DType, Shape, Tensor, preserved_strides, state, view_strides


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Keeps x where the weight trains and the weight where x needs a gradient."""
    # Autocast casts from the last argument to the first: so C++ evaluates them.
    bias = lower(bias) if bias is not None else None
    weight = lower(weight)
    x = lower(x)
    if bias is None:
        return batched_matmul(x, transpose(weight, 0, 1)) if x.strides is not None else _folded(x, weight, None)
    if x.ndim == 2 or x.strides is None:
        return _folded(x, weight, bias)  # addmm
    return add_(batched_matmul(x, transpose(weight, 0, 1)), bias)


def saves_by_formula() -> bool:
    """Whether nothing keeps results of operations for the backward pass but what their formulas save."""
    return state.frame is None or state.frame.policy is None


def kept_product(shape: Shape, dtype: DType) -> Tensor:
    """The result of a product of matrices within a selectively checkpointed block."""
    (out,) = state.frame.operation("product", lambda: (Tensor(shape, dtype),))
    return out  # type: ignore[no-any-return]


@kernel
def _folded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T (+ bias) as one product of matrices; x's leading dimensions can be folded without a copy."""
    made = (*x.shape[:-1], weight.shape[0])
    out = Tensor(made, x.dtype) if bias is not None or saves_by_formula() else kept_product(made, x.dtype)
    if tracked(x, weight, bias):
        kinds = kind_of(x), kind_of(weight), None if bias is None else kind_of(bias)
        column_major = x.ndim == 2 and x.strides is not None
        shape, strides, rows = x.shape, x.strides, (prod(out.shape[:-1]), out.shape[-1])

        def backward(g: Tensor) -> list[Tensor | None]:
            if g.strides is not None and view_strides(g.shape, g.strides, rows) is None:
                g = Tensor(g.shape, g.dtype)
            grads = [None if kind is None else Tensor(*kind) for kind in kinds[:2]]
            if column_major and grads[0] is not None:
                grads[0].strides = preserved_strides(shape, strides) if strides else None
            # Results of products that pass through the nodes of weight.t() and of x's folding.
            if grads[0] is not None and len(shape) > 2:
                grads[0].is_view = True
            if grads[1] is not None:
                grads[1].is_view = True
            return validated([*grads, g], kinds)

        record(out, (x, weight, bias), (x if kinds[1] else None, weight if kinds[0] else None), backward)
    return out


@kernel
def addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """bias (m,) + (n, k) @ (k, m)."""
    y = lower(y)
    x = lower(x)
    bias = lower(bias)
    out = Tensor((x.shape[0], y.shape[1]), x.dtype)
    if tracked(bias, x, y):
        kind = kind_of(bias)
        a, b = (*layout_of(x), x.dtype), (*layout_of(y), y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            gx = column_major(*a) if need_x else None
            gy = column_major(*b) if need_y else None
            return [reduced_to(g, *kind) if kind else None, gx, gy]

        record(out, (bias, x, y), (y if need_x else None, x if need_y else None), backward)
    return out


@kernel
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


@kernel
def _mm(x: Tensor, y: Tensor) -> Tensor:
    out = Tensor((x.shape[0], y.shape[1]), x.dtype)
    if tracked(x, y):
        a, b = (*layout_of(x), x.dtype), (*layout_of(y), y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gy = column_major(*b) if need_y else None
            return column_major(*a) if need_x else None, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def column_major(shape: Shape, strides: Shape | None, dtype: DType) -> Tensor:
    """Fresh; its columns are packed where those of the operand are, else its rows."""
    out = Tensor(shape, dtype)
    if strides is not None and strides[0] == 1 and strides[1] == shape[0]:
        out.strides = strides
    return out


def einsum(equation: str, x: Tensor, y: Tensor) -> Tensor:
    """Of two tensors, whose dimensions have a letter each: one product of batches, over the letters that the result
    has not. (native/Linear.cpp, ``einsum`` and ``sumproduct_pair``)"""
    before, _, after = equation.replace(" ", "").partition("->")
    first, _, second = before.partition(",")
    summed = sorted({*first, *second} - {*after})
    if not all(letter.isalpha() for letter in first + second + after) or not {*summed} <= {*first} & {*second}:
        raise ValueError(f"einsum of {equation}")
    x = lower(x)  # autocast takes a list of tensors from its first to its last
    y = lower(y)
    order = [*after, *summed]
    sizes = {**dict(zip(second, y.shape)), **dict(zip(first, x.shape))}
    if any(sizes[name] != size for name, size in zip(second, y.shape)):
        raise ValueError(f"einsum of {equation} with a size of one beside another")
    sides = [[name for name in order if name in own and sizes[name] != 1] for own in (first, second)]
    both = [name for name in after if all(name in side for side in sides)]
    left = [name for name in after if name in sides[0] and name not in both]
    right = [name for name in after if name not in both and name not in left]

    def size(names: Sequence[str]) -> int:
        return prod(sizes[name] for name in names)

    a = _turned(x, first, [*both, *left, *summed, *right])
    b = _turned(y, second, [*both, *summed, *right, *left])
    a = reshape(a, size(both), size(left), size(summed))
    b = reshape(b, size(both), size(summed), size(right))
    whole = view(bmm(a, b), *(sizes[name] for name in (*both, *left, *right)))
    made = [*both, *left, *right]
    return permute(whole, *(made.index(name) for name in after))


def _turned(x: Tensor, names: str, order: Sequence[str]) -> Tensor:
    """Dimensions in another order, and one of size one for each that it has not."""
    for _ in range(len(order) - x.ndim):
        x = unsqueeze(x, x.ndim)
    rest = iter(range(len(names), len(order)))
    return permute(x, *(names.index(name) if name in names else next(rest) for name in order))


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """(batch, n, k) @ (batch, k, m)."""
    y = lower(y)
    x = lower(x)
    return _bmm(x, y)


@kernel
def _bmm(x: Tensor, y: Tensor, scaled: bool = False) -> Tensor:
    """``scaled``: a number multiplies the product, and then each gradient."""

    def gradient(look: tuple[Shape, DType]) -> Tensor:
        made = Tensor(*look)
        return Tensor(*look) if scaled else made

    out = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if tracked(x, y):
        need_x, need_y = x.requires_grad, y.requires_grad
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            if scaled:  # baddbmm_backward: the first operand's first
                gx = gradient(a) if need_x else None
                return gx, gradient(b) if need_y else None
            gy = gradient(b) if need_y else None
            return gradient(a) if need_x else None, gy

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


@kernel
def baddbmm(x: Tensor, y: Tensor, unused: Tensor | None = None, alpha: float = 1) -> Tensor:
    """``torch.baddbmm(empty, x, y, beta=0, alpha=alpha)``: the batched product into a fresh tensor, beside the empty
    one, which the caller makes in the dtype of the product (``unused``, where the caller holds it). Where alpha is not
    1, gradients are multiplied by it."""
    y = lower(y)
    x = lower(x)
    if unused is None:
        unused = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    out = _bmm(x, y, alpha != 1)
    del unused
    return out


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Products of matrices, or of batches of them; see ``_matmul``."""
    y = lower(y)
    x = lower(x)
    return batched_matmul(x, y)


def batched_matmul(x: Tensor, y: Tensor) -> Tensor:
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
            return batched_matmul(squeeze(x, 0), y)
        if y.shape[0] == 1 and y.requires_grad:
            return batched_matmul(x, squeeze(y, 0))
    batch = broadcast_shape(x.shape[:-2], y.shape[:-2])
    count = prod(batch)
    x3 = reshape(expand(x, *batch, *x.shape[-2:]), count, *x.shape[-2:])
    y3 = reshape(expand(y, *batch, *y.shape[-2:]), count, *y.shape[-2:])
    return view(_bmm(x3, y3), *batch, x.shape[-2], y.shape[-1])


def _foldable(x: Tensor) -> bool:
    """Whether the leading dimensions can be folded without a copy."""
    strides = x.full_strides()
    return all(strides[d] == strides[d + 1] * x.shape[d + 1] for d in range(x.ndim - 2))
