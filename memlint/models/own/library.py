"""torch's names, as a repository's own model calls them, over the operations of :mod:`memlint.meta`.

What has no bearing on memory (a device, a number that is drawn) is taken and not looked at; a name that is not here is
not known, and the model with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta import nn
from memlint.meta.autograd import tracked
from memlint.meta.compiled import compiled
from memlint.meta.tensor import DTYPES, DType, Tensor, bool_, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.own import values
from memlint.models.own.objects import Modules
from memlint.models.program_operations import OPERATIONS

DEVICE = "cuda"


class _Root:
    """torch.nn.Module itself: a base class, which is never made."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise UnknownModel("a module of no class")


MODULE = _Root()


# ---------------------------------------------------------------------------------------------- layers


def _norm_shape(shape: Any) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)


class _LayerNorm(nn.Module):
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, **rest: Any
    ) -> None:
        shape = _norm_shape(normalized_shape)
        self.weight = nn.parameter(*shape) if elementwise_affine else None
        self.bias = nn.parameter(*shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias)


class _RMSNorm(nn.Module):
    def __init__(self, normalized_shape: Any, eps: Any = None, elementwise_affine: bool = True, **rest: Any) -> None:
        self.weight = nn.parameter(*_norm_shape(normalized_shape)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight)


class _Dropout(nn.Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.probability, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        return OPERATIONS["dropout"](x, self.probability, self.training, self.inplace)  # type: ignore[no-any-return]


class _Linear(nn.Linear):
    def __init__(self, in_features: int, out_features: int, bias: bool = True, **rest: Any) -> None:
        super().__init__(in_features, out_features, bool(bias))
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        return OPERATIONS["linear"](x, self.weight, self.bias)  # type: ignore[no-any-return]


class _Embedding(nn.Embedding):
    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: Any = None, **rest: Any) -> None:
        if rest.get("sparse") or rest.get("max_norm") is not None:
            raise UnknownModel("an embedding with sparse gradients or a norm")
        super().__init__(num_embeddings, embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim


class _Function(nn.Module):
    """A function as a module: ``nn.GELU()``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _as_module(name: str) -> Callable[..., nn.Module]:
    return lambda *args, **named: _Function(OPERATIONS[name])


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x)


def _cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, **rest: Any,
) -> Tensor:  # fmt: skip
    if weight is not None or label_smoothing or len(input.shape) != 2 or target.dtype.name != "int64":
        raise UnknownModel("a cross entropy with weights, smoothed labels or more than two dimensions")
    if state.compiled and not state.fusing:
        return compiled(F.cross_entropy, input, target, reduction)  # type: ignore[no-any-return]
    return F.cross_entropy(input, target, reduction)


def _cross_entropy_loss(**named: Any) -> nn.Module:
    return _Function(lambda input, target: _cross_entropy(input, target, **named))


def _parameter(data: Tensor, requires_grad: bool = True) -> Tensor:
    made = nn.parameter(*data.shape, dtype=data.dtype)
    made.requires_grad = bool(requires_grad)
    return made


# ---------------------------------------------------------------------------------------------- new tensors


def _sizes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else tuple(sizes)


def _fresh(*sizes: Any, dtype: DType | None = None, size: Any = None, **rest: Any) -> Tensor:
    return Tensor(_sizes(sizes if size is None else (size,)), dtype or state.default_dtype)


def _full(size: Any, fill_value: Any, dtype: DType | None = None, **rest: Any) -> Tensor:
    kind = bool_ if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else state.default_dtype
    return Tensor(_sizes((size,) if isinstance(size, (list, tuple)) else ((size,),)), dtype or kind)


def _arange(
    *bounds: Any, dtype: DType | None = None, start: Any = None, end: Any = None, step: Any = 1, **rest: Any
) -> Tensor:
    given = list(bounds) if bounds else [0 if start is None else start]
    if end is not None:
        given.append(end)
    first, last = (0, given[0]) if len(given) == 1 else (given[0], given[1])
    stride = given[2] if len(given) > 2 else step
    whole = all(isinstance(x, int) for x in (first, last, stride))
    length = -(-(last - first) // stride) if whole else math.ceil((last - first) / stride)
    values.sized((length,))
    return Tensor((length,), dtype or (int64 if whole else state.default_dtype))


def _randint(*args: Any, size: Any = None, dtype: DType | None = None, **rest: Any) -> Tensor:
    return Tensor(_sizes((args[-1] if size is None else size,)), dtype or int64)


def _tensor(data: Any, dtype: DType | None = None, **rest: Any) -> Tensor:
    shape: list[int] = []
    while isinstance(data, (list, tuple)):
        shape.append(len(data))
        data = data[0] if data else 0.0
    kind = bool_ if isinstance(data, bool) else int64 if isinstance(data, int) else float32
    return Tensor(tuple(shape), dtype or kind)


def _like(x: Tensor, dtype: DType | None = None, **rest: Any) -> Tensor:
    return Tensor(x.shape, dtype or x.dtype)


# ---------------------------------------------------------------------------------------------- nothing to derive


def plain(what: str, *operands: Any, shape: Any = None, dtype: DType | None = None) -> Tensor:
    """The result of an operation that nothing is derived through."""
    tensors = [one for one in operands if isinstance(one, Tensor)]
    if not tensors or tracked(*tensors):
        raise UnknownModel(f"{what} of what needs a gradient")
    if shape is None:
        shape = tensors[0].shape
        for one in tensors[1:]:
            shape = broadcast(shape, one.shape)
    return Tensor(tuple(shape), dtype or tensors[0].dtype)


def broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(one), len(other))
    padded = ((1,) * (rank - len(one)) + tuple(one), (1,) * (rank - len(other)) + tuple(other))
    if any(a != b and 1 not in (a, b) for a, b in zip(*padded)):
        raise UnknownModel(f"shapes {tuple(one)} and {tuple(other)} that do not go together")
    return tuple(b if a == 1 else a for a, b in zip(*padded))


def compared(*operands: Any) -> Tensor:
    """``x == 0``: what nobody derives through, whatever it is of."""
    tensors = [one.detach() for one in operands if isinstance(one, Tensor)]
    return plain("a comparison", *tensors, dtype=bool_)


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    pair = [one if isinstance(one, Tensor) else None for one in (x, y)]
    dtype = next((one.dtype for one in pair if one is not None), float32)
    first, second = (Tensor((), dtype) if one is None else one for one in pair)
    return F.where(condition, first, second)


def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, **rest: Any) -> Tensor:
    """torch repeats by an index (native/Repeat.cpp): a fresh tensor; backward sums over the copies."""
    if dim is None or not isinstance(repeats, int):
        raise UnknownModel("repeats of each number")
    dim %= x.ndim
    before = x.shape
    spread = F.expand(F.unsqueeze(x, dim + 1), *before[: dim + 1], repeats, *before[dim + 1 :])
    return F.reshape(spread, *before[:dim], before[dim] * repeats, *before[dim + 1 :])


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return plain("an outer product", x, y, shape=(x.shape[0], y.shape[0]))


# What is computed once for tables and masks, of numbers alone.
_TABLES = (
    *("tril", "triu", "cumsum", "floor", "ceil", "round", "sign", "log2", "isnan", "logical_not", "logical_and"),
    *("logical_or", "flip", "sort", "argsort", "remainder", "floor_divide", "masked_select", "cumprod", "erf"),
)


def _table(name: str) -> Callable[..., Tensor]:
    return lambda *args, **named: plain(name, *args)


def _masked_fill(x: Tensor, mask: Tensor, value: Any = None) -> Tensor:
    return F.masked_fill(x, mask)


def _log_softmax(input: Tensor, dim: int = -1, dtype: DType | None = None, **rest: Any) -> Tensor:
    return F.log_softmax(input, dim, dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **OPERATIONS,
    **{name: _table(name) for name in _TABLES},
    **dict.fromkeys(("zeros", "ones", "empty", "randn", "rand"), _fresh),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "randn_like", "rand_like"), _like),
    "full": _full,
    "arange": _arange,
    "randint": _randint,
    "tensor": _tensor,
    "outer": _outer,
    "ger": _outer,
    "where": _where,
    "log": lambda x: F.log(x),
    "masked_fill": _masked_fill,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "repeat_interleave": _repeat_interleave,
    "gelu": _gelu,
    "rms_norm": lambda input, normalized_shape, weight=None, eps=None: F.rms_norm(input, weight),
    "maximum": lambda x, y: F.minimum(x, y),  # which keeps what it keeps
    "minimum": lambda x, y: F.minimum(x, y),
    "gather": lambda input, dim, index: F.gather(input, dim, index),
}

LAYERS: dict[str, Any] = {
    "Module": MODULE,
    "Linear": _Linear,
    "Embedding": _Embedding,
    "LayerNorm": _LayerNorm,
    "RMSNorm": _RMSNorm,
    "Dropout": _Dropout,
    "Identity": lambda *args, **named: _Function(lambda x: x),
    "ModuleList": lambda modules=(): Modules(list(modules)),
    "Sequential": lambda *modules: Modules(list(modules), chained=True),
    "ModuleDict": lambda modules: Modules(list(modules.values()), names=tuple(modules)),
    "Parameter": _parameter,
    "CrossEntropyLoss": _cross_entropy_loss,
    "GELU": lambda approximate="none": _Function(F.gelu),
    "SiLU": _as_module("silu"),
    "ReLU": _as_module("relu"),
    "Tanh": _as_module("tanh"),
    "Sigmoid": _as_module("sigmoid"),
}

_DTYPES: dict[str, Any] = {**DTYPES, "long": int64, "float": float32, "bool": bool_, "int64": int64}

# Modules of Python and of torch -> what is known of their names.
TABLES: dict[str, dict[str, Any]] = {
    "math": values.MATHEMATICS,
    "torch.nn.functional": FUNCTIONS,
    "torch.nn": {**LAYERS, "functional": "torch.nn.functional", "init": "torch.nn.init"},
    "torch": {**FUNCTIONS, **_DTYPES, "nn": "torch.nn", "Tensor": Tensor, "device": lambda *a, **n: DEVICE},
    "torch.nn.parameter": {"Parameter": _parameter},
}
# Whose functions change numbers and no memory: their calls are passed over, arguments and all.
PASSED = ("torch.nn.init", "logging", "warnings")
