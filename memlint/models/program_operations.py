"""torch's functions, as programs of forward passes call them, over the operations of :mod:`memlint.meta`.

Each takes what torch's takes, by position or by name; what has no bearing on memory is taken and not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.ops.shapes import Numbers
from memlint.meta.tensor import DType, Tensor, bfloat16, empty_like, float16, float32, float64
from memlint.models import UnknownModel
from memlint.releases import NORM_RELEASES

# Before the name of a call that is not in the table: its results are stated, and nothing of it may need a gradient.
UNTRACKED = "~"
# Of these, the ones that ask their operand for nothing but its looks, so that it may well need a gradient.
LOOKING = frozenset(
    """new_empty new_zeros new_ones new_full new_tensor zeros_like ones_like full_like rand_like randn_like""".split()  # noqa: SIM905
)


def _convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Any = 0,
    dilation: Numbers = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    if isinstance(padding, str):
        padding = 0 if padding == "valid" else _same(padding, weight, stride, dilation)
    return F.conv(input, weight, bias, stride, padding, groups, dilation)


def _same(padding: str, weight: Tensor, stride: Numbers, dilation: Numbers) -> list[int]:
    """As much on both sides as keeps the size. (native/Convolution.cpp, ``_convolution_same``)"""
    sides = len(weight.shape) - 2
    steps = [dilation] * sides if isinstance(dilation, int) else list(dilation)
    whole = [step * (size - 1) for step, size in zip(steps, weight.shape[2:])]
    even = all(amount % 2 == 0 for amount in whole)  # else the input is padded on one side first
    if padding != "same" or not even or any(x != 1 for x in ([stride] if isinstance(stride, int) else stride)):
        raise UnknownModel(f"a convolution's padding {padding!r}")
    return [amount // 2 for amount in whole]


def _transposed_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Numbers = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1,
) -> Tensor:  # fmt: skip
    if output_padding not in (0, [0, 0]) or groups != 1 or dilation not in (1, [1, 1]):
        raise UnknownModel("a transposed convolution with groups, dilation or padding of its output")
    return F.conv_transpose(input, weight, bias, stride, padding)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """With a bias, packed rows are one matrix: a view before, and one behind, which lets go of a gradient that it
    had to copy. (native/Linear.cpp, ``_flatten_nd_linear``)"""
    if bias is None or input.ndim <= 2 or input.strides is not None:
        return F.linear(input, weight, bias)
    out = F.linear(F.view(input, -1, input.shape[-1]), weight, bias)
    return F.view(out, *input.shape[:-1], weight.shape[0])


def _batch_norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    return F.batch_norm(input, weight, bias, training)


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: Any = None
) -> Tensor:
    return F.layer_norm(input, weight, bias)


def _rms_norm(does: Callable[[str], bool]) -> Callable[..., Tensor]:
    function = F.rms_norm_of(next((since for since in NORM_RELEASES if does(f"torch.rms_norm_{since}")), "2.4"))
    return lambda input, normalized_shape, weight=None, eps=None: function(input, weight)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return F.group_norm(input, num_groups, weight, bias)


def _max_pool(
    input: Tensor, kernel_size: Numbers, stride: Any = None, padding: Numbers = 0, dilation: Numbers = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor:  # fmt: skip
    if return_indices or dilation not in (1, [1, 1]):
        raise UnknownModel("a maximum pooling that returns indices or is dilated")
    return F.max_pool(input, kernel_size, stride or None, padding, ceil_mode)


def _avg_pool(
    input: Tensor, kernel_size: Numbers, stride: Any = None, padding: Numbers = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    return F.avg_pool(input, kernel_size, stride or None, padding, ceil_mode)


def _avg_pool_of_rows(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """That of images one pixel high. (native/Pool.cpp, ``avg_pool1d``)"""
    kernel, step, pad = (x[0] if isinstance(x, list) else x for x in (kernel_size, stride or kernel_size, padding))
    return F.squeeze(F.avg_pool(F.unsqueeze(input, -2), (1, kernel), (1, step), (0, pad), ceil_mode), -2)


def _adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
    sides = [output_size] if isinstance(output_size, int) else list(output_size)
    if len({*sides}) != 1 or sides[0] is None:
        raise UnknownModel(f"an adaptive pooling to {output_size}")
    return F.adaptive_avg_pool(input, sides[0])


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    n = input.ndim - 2
    if size is None:
        factors = scale_factor if isinstance(scale_factor, list) else [scale_factor] * n
        size = [int(old * factor) for old, factor in zip(input.shape[2:], factors)]
    return F.interpolate(input, *([size] * n if isinstance(size, int) else size))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout=dropout_p, causal=is_causal, grouped=enable_gqa
    )


def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if beta != 0:
        raise UnknownModel("baddbmm onto a tensor")
    return F.baddbmm(batch1, batch2, input, alpha)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return F.dropout_(input, p, training) if inplace else F.dropout(input, p, training)


def _converted(x: Tensor, *args: Any, dtype: Any = None, **rest: Any) -> Tensor:
    for item in (*args, dtype):
        if isinstance(item, DType):
            return F.to(x, item)
        if isinstance(item, Tensor):
            return F.to(x, item.dtype)
    return x


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda input, *args, **rest: function(input)


def _activation(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Tensor, inplace: bool = False, *args: Any, **rest: Any) -> Tensor:
        return function(input, True) if inplace else function(input)

    return run


def _hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return F.hardtanh(input, inplace)


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return F.leaky_relu(input, inplace)


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Any, other: Any, *, alpha: Any = 1, rounding_mode: Any = None) -> Tensor:
        if not isinstance(input, Tensor):
            input, other = other, input
        return function(input, other)

    return run


def _clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    bounds = [bound for bound in (min, max) if bound is not None]
    if any(isinstance(bound, Tensor) for bound in bounds):
        raise UnknownModel("a clamp to the numbers of a tensor")
    return F.clamp(input, len(bounds))


def _assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise UnknownModel("a number put into a part of a tensor")
    return F.assigned(x, value)


def _items(x: Tensor, index: Any) -> Tensor:
    items = index if isinstance(index, list) else [index]
    tensors = [item for item in items if isinstance(item, Tensor)]
    if tensors:
        whole = items.index(tensors[0])
        rest = items[:whole] + items[whole + len(tensors) :]
        if any(isinstance(item, Tensor) or item not in (slice(None), Ellipsis) for item in rest):
            raise UnknownModel("an index of tensors and slices together")
        if Ellipsis in items[:whole]:
            whole += x.ndim - len(items)
        return F.index(x, *tensors, whole=whole)
    return F.select_index(x, tuple(items))


def _sizes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list) else tuple(sizes)


def _view(x: Tensor, *shape: Any, **rest: Any) -> Tensor:
    return F.view(x, *_sizes(shape))


def _reshape(x: Tensor, *shape: Any, **rest: Any) -> Tensor:
    return F.reshape(x, *_sizes(shape or (rest["shape"],)))


def _unflatten(x: Tensor, dim: int, sizes: list[int]) -> Tensor:
    dim %= x.ndim
    return F.view(x, *x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _permute(x: Tensor, *dims: Any, **rest: Any) -> Tensor:
    return F.permute(x, *_sizes(dims or (rest["dims"],)))


def _expand(x: Tensor, *sizes: Any) -> Tensor:
    return F.expand(x, *_sizes(sizes))


def _flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return F.flatten(input, start_dim, end_dim)


def _split(tensor: Tensor, split_size_or_sections: Any = 1, dim: int = 0, split_size: Any = None) -> Any:
    return F.split(tensor, split_size_or_sections if split_size is None else split_size, dim)


def _pad(input: Tensor, pad: list[int], mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "reflect" and len(pad) == 4:
        return F.reflection_pad(input, *pad)
    if mode != "constant":
        raise UnknownModel(f"padding by {mode}")
    return F.pad(input, *pad)


def _softmax(input: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    return F.softmax(input, dim, dtype)


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None) -> Tensor:
        dim = axis if dim is None else dim
        return function(input, tuple(dim) if isinstance(dim, list) else dim, keepdim)

    return run


def _norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Tensor:
    """torch/functional.py: ``linalg.vector_norm`` for any tensor that is not sparse."""
    if p not in ("fro", 2) or dtype is not None:
        raise UnknownModel(f"a norm of order {p!r}")
    return F.vector_norm(input, tuple(dim) if isinstance(dim, list) else dim, keepdim)


def _squeeze(input: Tensor, dim: Any = None) -> Tensor:
    dims = [d for d in range(input.ndim) if input.shape[d] == 1] if dim is None else [dim % input.ndim]
    for d in reversed(dims):
        input = F.squeeze(input, d) if input.shape[d] == 1 else input
    return input


def _repeat(x: Tensor, *sizes: Any) -> Tensor:
    return F.repeat(x, *_sizes(sizes))


def _roll(input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if dims in ([], ()):
        raise UnknownModel("a tensor that is rolled as if it were one row")
    return F.roll(input, len(dims) if isinstance(dims, list) else 1)


def _embedding(input: Tensor, weight: Tensor, *args: Any, **rest: Any) -> Tensor:
    return F.embedding(input, weight)


def _pow(input: Any, exponent: Any) -> Tensor:
    if not isinstance(input, Tensor) or isinstance(exponent, Tensor):
        raise UnknownModel("a power whose exponent is a tensor")
    return F.pow(input, exponent)


def _einsum(equation: str, *operands: Any) -> Tensor:
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    if len(given) != 2:
        raise UnknownModel(f"an einsum of {len(given)} tensors")
    return F.einsum(equation, *given)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "conv_transpose2d": _transposed_convolution,
    "linear": linear,
    "matmul": lambda input, other: F.matmul(input, other),
    "__matmul__": lambda input, other: F.matmul(input, other),
    "bmm": lambda input, mat2: F.bmm(input, mat2),
    "baddbmm": _baddbmm,
    "einsum": _einsum,
    "embedding": _embedding,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "_weight_norm": lambda v, g, dim=0: F.weight_norm(v, g),
    "group_norm": _group_norm,
    "max_pool2d": _max_pool,
    "avg_pool1d": _avg_pool_of_rows,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool1d": _adaptive_avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "adaptive_avg_pool3d": _adaptive_avg_pool,
    "interpolate": _interpolate,
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "softmax": _softmax,
    "mean": _reduction(F.mean),
    "sum": _reduction(F.sum),
    "amax": _reduction(F.amax),
    "norm": _norm,
    "relu": _activation(F.relu),
    "relu_": lambda input: F.relu(input, True),
    "gelu": _unary(F.gelu),
    "leaky_relu": _leaky_relu,
    "leaky_relu_": lambda input, negative_slope=0.01: F.leaky_relu(input, True),
    "silu": _activation(lambda x, inplace=False: F.silu(x, inplace)),
    "mish": _unary(F.mish),
    "hardswish": _activation(F.hardswish),
    "hardsigmoid": _activation(F.hardsigmoid),
    "hardtanh": _hardtanh,
    "relu6": _activation(F.hardtanh),
    "tanh": _unary(F.tanh),
    "sigmoid": _activation(F.sigmoid),
    "exp": _unary(F.exp),
    "sin": _unary(F.sin),
    "cos": _unary(F.cos),
    "neg": _unary(F.neg),
    "sqrt": _unary(F.sqrt),
    "rsqrt": _unary(F.rsqrt),
    "abs": _unary(F.abs),
    "clone": _unary(F.clone),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "pow": _pow,
    "__pow__": _pow,
    "square": lambda input: F.pow(input, 2),
    "add": _binary(F.add),
    "add_": _binary(F.add_),
    "__iadd__": _binary(F.add_),
    "__radd__": _binary(F.add),
    "addcmul": lambda input, tensor1, tensor2, value=1: F.addcmul(input, tensor1, tensor2),
    "sub": _binary(F.sub),
    "__rsub__": lambda x, y: F.rsub(x, y),
    "mul": _binary(F.mul),
    "__rmul__": _binary(F.mul),
    "div": _binary(F.div),
    "true_divide": _binary(F.div),
    "__truediv__": _binary(F.div),
    "div_": _binary(F.div_),
    "__itruediv__": _binary(F.div_),
    "view": _view,
    "reshape": _reshape,
    "reshape_as": lambda x, other: F.reshape(x, *other.shape),
    "view_as": lambda x, other: F.view(x, *other.shape),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "permute": _permute,
    "transpose": lambda x, dim0, dim1: F.transpose(x, dim0, dim1),
    "unsqueeze": lambda x, dim: F.unsqueeze(x, dim),
    "squeeze": _squeeze,
    "expand": _expand,
    "expand_as": lambda x, other: F.expand(x, *other.shape),
    "select": lambda x, dim, index: F.select(x, dim),
    "narrow": lambda x, dim, start, length: F.narrow(x, dim, length),
    "contiguous": lambda x, memory_format=None: F.contiguous(x),
    "chunk": lambda x, chunks, dim=0: F.chunk(x, chunks, dim),
    "split": _split,
    "split_with_sizes": lambda tensor, split_sizes, dim=0: F.split(tensor, split_sizes, dim),
    "unbind": lambda x, dim=0: F.unbind(x, dim),
    "cat": lambda tensors, dim=0: F.cat(tensors, dim),
    "concat": lambda tensors, dim=0: F.cat(tensors, dim),
    "stack": lambda tensors, dim=0: F.stack(tensors, dim),
    "repeat": _repeat,
    "roll": _roll,
    "pad": _pad,
    "__getitem__": _items,
    "__setitem__": _assigned,
    "empty_like": lambda x, dtype=None, **rest: empty_like(x, dtype),
    "to": _converted,
    "type": _converted,
    "float": lambda x: F.to(x, float32),
    "double": lambda x: F.to(x, float64),
    "half": lambda x: F.to(x, float16),
    "bfloat16": lambda x: F.to(x, bfloat16),
    "type_as": lambda x, other: F.to(x, other.dtype),
}

# What depends on torch's release: (does a row of memlint.releases hold) -> the operation.
DATED: dict[str, Callable[[Callable[[str], bool]], Callable[..., Any]]] = {
    "rms_norm": _rms_norm,
}

KNOWN = OPERATIONS.keys() | DATED.keys()
