"""JAX's primitives over shape-only arrays, and the functions that JAX and Flax write in them.

Unlike an op of PyTorch, a function here is not one entry with one formula: ``jax.nn.gelu`` is eight primitives, and
reverse mode keeps what *each* of them needs. So every primitive states its own (``jax/_src/lax/lax.py``; named in the
comments as of JAX 0.10), and ``layer_norm``, ``softmax``, ``gelu`` and the rest are spelled out as their sources do.

``tests/differential/test_lag_mode.py`` compares the kept arrays with those of ``jax.vjp``, shape by shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlint.meta.jaxpr import CHEAP, COSTLY, PLAIN, PRODUCT, Array, Program
from memlint.meta.tensor import DType, Shape, bool_, float32, int32

# ------------------------------------------------------------------------------------------------- primitives


def _write(kind: int, program: Program, shape: Shape, dtype: DType, tracked: bool, *reads: int) -> Array:
    var = program.new(shape, dtype)
    program.write(kind, var, *reads)
    return Array(program, var, shape, dtype, tracked and program.tracking)


def _broadcast(x: Shape, y: Shape) -> Shape:
    if x == y:
        return x
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    offset = len(longer) - len(shorter)
    return longer[:offset] + tuple(b if a == 1 else a for a, b in zip(longer[offset:], shorter))


def _reduced(program: Program, var: int, like: int, large: int) -> int:
    """A cotangent summed over the dimensions that broadcasting had added to an operand."""
    if program.sizes[like] == program.sizes[large]:
        return var
    total = program.like(like)
    program.write(PLAIN, total, var)
    return total


def add(x: Array, y: Array | float) -> Array:
    """Linear: keeps nothing."""
    if not isinstance(y, Array):
        return _linear(x, same=True)
    p = x.program
    out = _write(CHEAP, p, _broadcast(x.shape, y.shape), x.dtype, x.tracked or y.tracked, x.var, y.var)
    if out.tracked:
        p.rule((out.var,), _add_transpose, x, y, out.var, False)
    return out


def subtract(x: Array, y: Array) -> Array:
    p = x.program
    out = _write(CHEAP, p, _broadcast(x.shape, y.shape), x.dtype, x.tracked or y.tracked, x.var, y.var)
    if out.tracked:
        p.rule((out.var,), _add_transpose, x, y, out.var, True)
    return out


def _add_transpose(p: Program, cotangent: int, x: Array, y: Array, out: int, negate: bool) -> None:
    if x.tracked:
        p.give(x.var, _reduced(p, cotangent, x.var, out))
    if y.tracked:
        if negate:
            negative = p.like(out)
            p.write(CHEAP, negative, cotangent)
            cotangent = negative
        p.give(y.var, _reduced(p, cotangent, y.var, out))


def _linear(x: Array, same: bool = False) -> Array:
    """One operand and a constant (scaling, negation, a cast). ``same``: the cotangent passes unchanged."""
    p = x.program
    out = _write(CHEAP, p, x.shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _pass if same else _linear_transpose, x.var)
    return out


def _pass(p: Program, cotangent: int, x: int) -> None:
    p.give(x, cotangent)


def _linear_transpose(p: Program, cotangent: int, x: int) -> None:
    scaled = p.like(x)
    p.write(CHEAP, scaled, cotangent)
    p.give(x, scaled)


def scale(x: Array) -> Array:
    """``x`` times or over a Python number."""
    return _linear(x)


def multiply(x: Array, y: Array) -> Array:
    """mul_p: each operand is kept if the other one's cotangent is wanted."""
    p = x.program
    out = _write(CHEAP, p, _broadcast(x.shape, y.shape), x.dtype, x.tracked or y.tracked, x.var, y.var)
    if out.tracked:
        p.rule((out.var,), _multiply_transpose, x, y, out.var)
    return out


def _multiply_transpose(p: Program, cotangent: int, x: Array, y: Array, out: int) -> None:
    for operand, other in ((x, y), (y, x)):
        if operand.tracked:
            _times(p, cotangent, other.var, operand.var, out)


def _times(p: Program, cotangent: int, factor: int, target: int, large: int) -> None:
    """Give ``cotangent * factor`` (a product of ``large``'s size) to ``target``."""
    product = p.like(large)
    p.write(CHEAP, product, cotangent, factor)
    p.give(target, _reduced(p, product, target, large))


def divide(x: Array, y: Array) -> Array:
    """div_p: keeps y, x, and y ** -2, which its second rule computes ahead."""
    p = x.program
    out = _write(COSTLY, p, _broadcast(x.shape, y.shape), x.dtype, x.tracked or y.tracked, x.var, y.var)
    if out.tracked:
        power = -1
        if y.tracked:
            power = p.like(y.var)
            p.write(COSTLY, power, y.var)
        p.rule((out.var,), _divide_transpose, x, y, power, out.var)
    return out


def _divide_transpose(p: Program, cotangent: int, x: Array, y: Array, power: int, out: int) -> None:
    if y.tracked:
        scaled = p.like(out)
        p.write(CHEAP, scaled, cotangent, power)
        _times(p, scaled, x.var, y.var, out)
    if x.tracked:
        quotient = p.like(out)
        p.write(COSTLY, quotient, cotangent, y.var)
        p.give(x.var, _reduced(p, quotient, x.var, out))


def _with_derivative(x: Array, kind: int = CHEAP) -> Array:
    """An elementwise function whose derivative is computed ahead and kept; of its output where that is costly."""
    p = x.program
    out = _write(kind, p, x.shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        derivative = p.like(out.var)
        p.write(CHEAP, derivative, x.var if kind == CHEAP else out.var)
        p.rule((out.var,), _times, derivative, x.var, out.var)
    return out


def square(x: Array) -> Array:
    """square_p: keeps 2 x."""
    return _with_derivative(x)


def integer_power(x: Array) -> Array:
    """integer_pow_p: keeps n x ** (n - 1)."""
    return _with_derivative(x)


def rsqrt(x: Array) -> Array:
    """rsqrt_p: keeps its output over its input."""
    return _with_derivative(x, COSTLY)


def exp(x: Array) -> Array:
    """exp_p: keeps its output."""
    p = x.program
    out = _write(COSTLY, p, x.shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _times, out.var, x.var, out.var)
    return out


def tanh(x: Array) -> Array:
    """tanh_p: keeps its output and one minus that; (g + g y) (1 - y)."""
    p = x.program
    out = _write(COSTLY, p, x.shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        complement = p.like(out.var)
        p.write(CHEAP, complement, out.var)
        p.rule((out.var,), _tanh_transpose, out.var, complement, x.var)
    return out


def _tanh_transpose(p: Program, cotangent: int, out: int, complement: int, x: int) -> None:
    first, second, total = p.like(x), p.like(x), p.like(x)
    p.write(CHEAP, first, cotangent, complement)
    p.write(CHEAP, second, first, out)
    p.write(CHEAP, total, first, second)
    p.give(x, total)


def logistic(x: Array) -> Array:
    """logistic_p: keeps y (1 - y)."""
    return _with_derivative(x, COSTLY)


def floor_at_zero(x: Array) -> Array:
    """max_p against a constant: keeps where it was the larger one, as numbers."""
    return _with_derivative(x)


def sum_(x: Array, axes: Sequence[int], keepdims: bool = False) -> Array:
    """reduce_sum_p. Its cotangent is a broadcast, which is no memory."""
    shape = tuple(1 if d in axes else size for d, size in enumerate(x.shape) if keepdims or d not in axes)
    p = x.program
    out = _write(PLAIN, p, shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _pass, x.var)
    return out


def max_(x: Array, axis: int) -> Array:
    """reduce_max_p behind ``stop_gradient``: keeps nothing."""
    shape = tuple(1 if d == axis % len(x.shape) else size for d, size in enumerate(x.shape))
    return _write(PLAIN, x.program, shape, x.dtype, False, x.var)


def matmul(x: Array, y: Array, shape: Shape) -> Array:
    """dot_general_p with a result of the given shape: each operand is kept if the other one's cotangent is wanted."""
    p = x.program
    out = _write(PRODUCT, p, shape, x.dtype, x.tracked or y.tracked, x.var, y.var)
    if out.tracked:
        p.rule((out.var,), _matmul_transpose, x, y)
    return out


def _matmul_transpose(p: Program, cotangent: int, x: Array, y: Array) -> None:
    for operand, other in ((x, y), (y, x)):
        if operand.tracked:
            product = p.like(operand.var)
            p.write(PRODUCT, product, cotangent, other.var)
            p.give(operand.var, product)


def reshape(x: Array, *shape: int) -> Array:
    """The same bytes."""
    return Array(x.program, x.var, shape, x.dtype, x.tracked)


def transpose(x: Array, shape: Shape) -> Array:
    """transpose_p: a copy; keeps nothing."""
    p = x.program
    out = _write(CHEAP, p, shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _linear_transpose, x.var)
    return out


def slice_(x: Array, shape: Shape) -> Array:
    """slice_p: a copy of a part; the cotangent is padded with zeros."""
    return transpose(x, shape)


def split(x: Array, parts: int) -> list[Array]:
    """split_p along the last axis. The cotangents are concatenated."""
    p = x.program
    shape = (*x.shape[:-1], x.shape[-1] // parts)
    outs = [_write(CHEAP, p, shape, x.dtype, x.tracked, x.var) for _ in range(parts)]
    if outs[0].tracked:
        p.rule(tuple(out.var for out in outs), _split_transpose, x.var)
    return outs


def _split_transpose(p: Program, *arguments: int | None) -> None:
    x = arguments[-1]
    assert x is not None
    whole = p.like(x)
    p.write(CHEAP, whole, *(cotangent for cotangent in arguments[:-1] if cotangent is not None))
    p.give(x, whole)


def concatenate(arrays: Sequence[Array], axis: int, total: int | None = None) -> Array:
    """concatenate_p; the cotangent is cut up again. ``total``: the length, where not all of the parts are written."""
    first = arrays[0]
    if total is None:
        total = sum(array.shape[axis] for array in arrays)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    p = first.program
    tracked = any(array.tracked for array in arrays)
    out = _write(CHEAP, p, shape, first.dtype, tracked, *(array.var for array in arrays))
    if out.tracked:
        p.rule((out.var,), _concatenate_transpose, [array.var for array in arrays if array.tracked])
    return out


def _concatenate_transpose(p: Program, cotangent: int, targets: list[int]) -> None:
    for target in targets:
        part = p.like(target)
        p.write(CHEAP, part, cotangent)
        p.give(target, part)


def cast(x: Array, dtype: DType) -> Array:
    """convert_element_type_p; x itself where it has the dtype."""
    if x.dtype is dtype:
        return x
    p = x.program
    out = _write(CHEAP, p, x.shape, dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _linear_transpose, x.var)
    return out


def repeat(x: Array, shape: Shape) -> Array:
    """``jnp.repeat`` along dimensions of size 1, or of rows; the cotangents are summed."""
    p = x.program
    out = _write(CHEAP, p, shape, x.dtype, x.tracked, x.var)
    if out.tracked:
        p.rule((out.var,), _repeat_transpose, x.var)
    return out


def _repeat_transpose(p: Program, cotangent: int, x: int) -> None:
    total = p.like(x)
    p.write(PLAIN, total, cotangent)
    p.give(x, total)


def constant(program: Program, shape: Shape) -> Array:
    """Something computed from data alone: it takes room, but has no cotangent."""
    return _write(PLAIN, program, shape, program.dtype, False)


def zeros(program: Program, shape: Shape, dtype: DType = float32) -> Array:
    """A broadcast constant: an array to ``jax.vjp``, no memory to XLA."""
    var = program.new(shape, dtype)
    program.virtual.add(var)
    return Array(program, var, shape, dtype, False)


def select(mask: Array, x: Array) -> Array:
    """select_n_p against a constant: keeps the mask, and the zeros that stand in for the constant's tangent."""
    p = x.program
    out = _write(CHEAP, p, x.shape, x.dtype, x.tracked, mask.var, x.var)
    if out.tracked:
        p.rule((out.var,), _select_transpose, mask.var, zeros(p, x.shape, x.dtype).var, x.var)
    return out


def _select_transpose(p: Program, cotangent: int, mask: int, nothing: int, x: int) -> None:
    chosen = p.like(x)
    p.write(CHEAP, chosen, cotangent, mask, nothing)
    p.give(x, chosen)


def put(array: Array, part: Array) -> Array:
    """``array.at[...].set(part)`` (scatter_p): a new array; the cotangents are a masked copy and a gathered part."""
    p = array.program
    out = _write(PLAIN, p, array.shape, array.dtype, array.tracked or part.tracked, array.var, part.var)
    if out.tracked:
        # The first one is written over constant zeros, whose tangent is another constant.
        nothing = -1 if array.tracked else zeros(p, array.shape, array.dtype).var
        p.rule((out.var,), _put_transpose, array, part, nothing)
    return out


def _put_transpose(p: Program, cotangent: int, array: Array, part: Array, nothing: int) -> None:
    if array.tracked:
        rest = p.like(array.var)
        p.write(CHEAP, rest, cotangent)
        p.give(array.var, rest)
    gathered = p.like(part.var)
    p.write(CHEAP, gathered, cotangent, *(() if nothing < 0 else (nothing,)))
    p.give(part.var, gathered)


def random(program: Program, shape: Shape) -> Array:
    """Uniform or normal numbers from 32 random bits each."""
    bits = _write(PLAIN, program, shape, int32, False)
    return _write(CHEAP, program, shape, float32, False, bits.var)


# -------------------------------------------------------------------------------- jax.numpy, jax.nn, flax.linen


def mean(x: Array, axis: int, keepdims: bool = False) -> Array:
    return scale(sum_(x, (axis % len(x.shape),), keepdims))


def silu(x: Array) -> Array:
    return multiply(x, logistic(x))


def gelu(x: Array) -> Array:
    """The tanh approximation: x (1 + tanh(c (x + 0.044715 x ** 3))) / 2."""
    inner = scale(add(x, scale(integer_power(x))))
    return multiply(x, scale(add(tanh(inner), 1.0)))


def softmax(x: Array) -> Array:
    """Over the last axis; not the custom rule (``jax_softmax_custom_jvp`` is off by default), so the exponentials
    and the quotient are both kept."""
    unnormalized = exp(subtract(x, max_(x, -1)))
    return divide(unnormalized, sum_(unnormalized, (len(x.shape) - 1,), keepdims=True))


def dense(x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """Over the last axis; ``kernel`` (in, out...)."""
    y = matmul(x, cast(kernel, x.dtype), x.shape[:-1] + kernel.shape[1:])
    return y if bias is None else add(y, cast(bias, x.dtype))


def fused_attention(q: Array, k: Array, v: Array) -> Array:
    """``jax.nn.dot_product_attention(implementation="cudnn")``: keeps its operands, its output and one float per row.

    (batch, tokens, heads, width) or (batch, heads, tokens, width): only sizes matter here.
    """
    p = q.program
    out = _write(PRODUCT, p, q.shape, q.dtype, q.tracked or k.tracked or v.tracked, q.var, k.var, v.var)
    if out.tracked:
        rows = p.new(q.shape[:-1], float32)
        p.write(PRODUCT, rows, q.var, k.var)
        p.rule((out.var,), _attention_transpose, (q, k, v), out.var, rows)
    return out


def _attention_transpose(p: Program, cotangent: int, operands: tuple[Array, ...], out: int, rows: int) -> None:
    reads = [cotangent, *(operand.var for operand in operands), out, rows]
    for operand in operands:
        if operand.tracked:
            gradient = p.like(operand.var)
            p.write(PRODUCT, gradient, *reads)
            p.give(operand.var, gradient)


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    """flax.linen.LayerNorm with its fast variance, E[x^2] - E[x]^2; in float32 whatever the dtype."""
    dtype = x.dtype
    x = cast(x, float32)
    average = mean(x, -1, keepdims=True)
    average_of_squares = mean(square(x), -1, keepdims=True)
    variance = floor_at_zero(subtract(average_of_squares, square(average)))
    centred = subtract(x, average)
    factor = rsqrt(add(variance, 1e-6))
    if weight is not None:
        factor = multiply(factor, weight)
    y = multiply(centred, factor)
    if bias is not None:
        y = add(y, bias)
    return cast(y, dtype)


def dropout(x: Array, rate: float) -> Array:
    """flax.linen.Dropout: one byte per element kept, and the zeros that ``jax.vjp`` lists."""
    if not rate:
        return x
    p = x.program
    mask = _write(CHEAP, p, x.shape, bool_, False, random(p, x.shape).var)
    return select(mask, scale(x))


def diagonal_mask(program: Program, shape: Shape) -> Array:
    """``jnp.eye(n, dtype=bool)``, broadcast: an iota comparison."""
    return zeros(program, shape, bool_)
