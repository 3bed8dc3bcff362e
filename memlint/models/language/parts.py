"""Norms, activations, rotary tables, perceptrons and attention masks, as transformers' eager code computes them.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there, so statements are not merged.
Source: ``transformers`` 5.23, ``models/*/modeling_*.py``, ``activations.py``, ``masking_utils.py``,
``pytorch_utils.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import LayerNorm, Linear, Module, buffer, parameter
from memlint.meta.tensor import DType, Tensor, bool_, empty, float32, int64, state
from memlint.models import UnknownModel

# ---------------------------------------------------------------------------------------------------------- norms


class RootMeanSquare(Module):
    """LLaMA's: in fp32, rounded to the input's dtype, then scaled."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        variance = F.mean(x**2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        return self.weight * to(x, dtype)


class WideRootMeanSquare(RootMeanSquare):
    """OLMo2's: scaled, then rounded."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        variance = F.mean(x**2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        return to(self.weight * x, dtype)


class GemmaNorm(RootMeanSquare):
    """Gemma's: scaled by ``1 + weight`` in fp32, then rounded."""

    def normalized(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(F.mean(x**2, -1, keepdim=True) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        output = self.normalized(to(x, float32))
        output = output * (to(self.weight, float32) + 1.0)
        return to(output, x.dtype)


class WeightWideNorm(Module):
    """Gemma 4's: the root is a power; scaled by a weight in fp32 where it has one, then rounded."""

    def __init__(self, width: int = 0) -> None:
        self.weight = parameter(width) if width else None

    def forward(self, x: Tensor) -> Tensor:
        normed = self.normalized(to(x, float32))
        if self.weight is not None:
            normed = normed * to(self.weight, float32)
        return to(normed, x.dtype)

    @staticmethod
    def normalized(x: Tensor) -> Tensor:
        mean_squared = F.mean(F.pow(x, 2.0), -1, keepdim=True) + 1e-6
        return x * F.pow(mean_squared, -0.5)


class CohereNorm(Module):
    """A layer norm without bias, written out in fp32. ``shape``: the last dimension, or heads and their width."""

    def __init__(self, *shape: int) -> None:
        self.weight = parameter(*shape)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        mean = F.mean(x, -1, keepdim=True)
        variance = F.mean((x - mean) ** 2, -1, keepdim=True)
        x = (x - mean) * F.rsqrt(variance + 1e-5)
        x = to(self.weight, float32) * x
        return to(x, dtype)


class WeightNorm(Module):
    """A layer norm without a bias."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, None)


class PlusLayerNorm(Module):
    """Nemotron's layer norm: scaled by ``1 + weight``; under autocast in its 16 bits."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)
        self.bias = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight + 1.0, self.bias
        if state.autocast is None:
            return F.layer_norm(x, weight, bias)
        x, weight, bias = (to(given, state.autocast) for given in (x, weight, bias))
        with autocast(None):
            return F.layer_norm(x, weight, bias)


class HeadNorms(Module):
    """StableLM's: (B, h, S, d), each head through a norm of its own."""

    def __init__(self, heads: int, head_dim: int) -> None:
        self.norms = [WeightNorm(head_dim) for _ in range(heads)]

    def forward(self, x: Tensor) -> Tensor:
        heads = F.split(x, 1, 1)
        return F.cat([norm(head) for norm, head in zip(self.norms, heads)], 1)


class NoNorm(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class PlainNorm(Module):
    """OLMo's: a layer norm in fp32 without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return to(F.layer_norm(to(x, float32)), x.dtype)


def norm(kind: str, width: int) -> Module:
    """The norm of a kind, as :class:`Decoder` names it."""
    if kind == "layer":
        return LayerNorm(width)
    if kind == "plain":
        return PlainNorm()
    if kind == "layer_plus":
        return PlusLayerNorm(width)
    if kind == "rms_weight_wide":
        return WeightWideNorm(width)
    kinds: dict[str, type[RootMeanSquare] | type[CohereNorm] | type[WeightNorm]] = {
        "layer_weight": WeightNorm,
        "rms": RootMeanSquare,
        "rms_wide": WideRootMeanSquare,
        "gemma": GemmaNorm,
        "layer_no_bias": CohereNorm,
    }
    return kinds[kind](width)


# ---------------------------------------------------------------------------------------------------- activations


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's: written out, so every step of it is kept."""
    return x * 0.5 * (F.tanh((x + F.pow(x, 3.0) * 0.044715) * 0.7978845608) + 1.0)


def gelu_fast(x: Tensor) -> Tensor:
    return x * 0.5 * (F.tanh(x * 0.7978845608 * (x * 0.044715 * x + 1.0)) + 1.0)


def quick_gelu(x: Tensor) -> Tensor:
    return x * F.sigmoid(x * 1.702)


def relu2(x: Tensor) -> Tensor:
    return F.pow(F.relu(x), 2.0)


# ACT2FN: config.json's ``hidden_act``. The fused gelus keep their input, whichever formula they take.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": F.gelu,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu2,
    "tanh": F.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Raises UnknownModel for a function that is not known."""
    if name not in ACTIVATIONS:
        raise UnknownModel(f"the activation {name!r} is not known")
    return ACTIVATIONS[name]


# ---------------------------------------------------------------------------------------------------- perceptrons


class Conv1D(Module):
    """GPT-2's linear layer: its weight lies transposed."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.weight = parameter(inputs, outputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.weight.shape[1])
        x = x.view(-1, x.shape[-1])
        x = F.mm(x, self.weight) if self.bias is None else F.addmm(self.bias, x, self.weight)
        out: Tensor = x.view(*shape)
        return out


class GatedPerceptron(Module):
    def __init__(self, width: int, inner: int, function: str, bias: bool = False) -> None:
        self.function = activation(function)
        self.gate_proj = Linear(width, inner, bias)
        self.up_proj = Linear(width, inner, bias)
        self.down_proj = Linear(inner, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))
        return out


class JoinedPerceptron(Module):
    """Phi3's and GLM's: gate and input in one product, whose halves are views."""

    def __init__(self, width: int, inner: int, function: str) -> None:
        self.function = activation(function)
        self.gate_up_proj = Linear(width, 2 * inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        up = self.gate_up_proj(x)
        gate, up = F.chunk(up, 2, -1)
        up = up * self.function(gate)
        out: Tensor = self.down_proj(up)
        return out


class HalvesPerceptron(Module):
    """Granite's: the same in another order."""

    def __init__(self, width: int, inner: int, function: str) -> None:
        self.function = activation(function)
        self.input_linear = Linear(width, 2 * inner, bias=False)
        self.output_linear = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        halves = F.chunk(self.input_linear(x), 2, -1)
        x = self.function(halves[0]) * halves[1]
        out: Tensor = self.output_linear(x)
        return out


class PlainPerceptron(Module):
    """Two layers with an activation between; their names differ from family to family."""

    def __init__(
        self, width: int, inner: int, function: str, names: str, bias: bool, conv1d: bool, dropout: float = 0.0
    ) -> None:
        self.function = activation(function)
        self.first, self.second = names.split()
        kind = Conv1D if conv1d else Linear
        setattr(self, self.first, kind(width, inner, bias))
        setattr(self, self.second, kind(inner, width, bias))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = getattr(self, self.first)(x)
        x = self.function(x)
        x = getattr(self, self.second)(x)
        return F.dropout(x, self.dropout, self.training)


XIELU_KERNEL = "xielu_kernel"  # a value of ``activation``: not in plain torch


def perceptron(config: Decoder, inner: int = 0) -> Module:
    inner = inner or config.intermediate
    if config.perceptron == "gated":
        return GatedPerceptron(config.width, inner, config.activation, config.perceptron_bias)
    if config.perceptron == "gated_joined":
        return JoinedPerceptron(config.width, inner, config.activation)
    if config.perceptron == "gated_halves":
        return HalvesPerceptron(config.width, inner, config.activation)
    if config.perceptron == "xielu":
        from memlint.models.language.xielu import XieluPerceptron  # Apertus alone

        return XieluPerceptron(config.width, inner, config.activation == XIELU_KERNEL)
    # Starcoder2 and GPT-2 drop within the perceptron, the others behind it.
    dropout = config.residual_dropout if config.perceptron == "c_fc c_proj" else 0.0
    return PlainPerceptron(
        config.width, inner, config.activation, config.perceptron, config.perceptron_bias, config.conv1d, dropout
    )


# --------------------------------------------------------------------------------------------------------- rotary

Tables = tuple[Tensor, Tensor]


class RotaryTables(Module):
    """The model's frequencies (and its copy of the original ones), from which each forward pass makes its tables."""

    def __init__(self, dim: int, kind: str = "double") -> None:
        self.inv_freq = buffer(dim // 2)
        self.original_inv_freq = buffer(dim // 2)
        self.kind = kind

    def forward(self, positions: Tensor, dtype: DType) -> Tables:
        """(1, S) positions -> cosine and sine, (1, S, dim) each; half of it where ``kind`` is "single"; twice the same
        table of (1, S, dim / 2, 2) where it is "complex"."""
        with no_grad():
            angles = to(positions.unsqueeze(-1), float32) * self.inv_freq
            if self.kind == "complex":
                ones = empty(angles.shape, float32)
                turns = empty((*angles.shape, 2), float32)
                del ones
                turns = turns * 1.0
                return turns, turns
            if self.kind == "single":
                table = angles
            elif self.kind == "interleaved":
                table = Tensor((*angles.shape[:-1], 2 * angles.shape[-1]), float32)  # repeat_interleave
            else:
                table = F.cat((angles, angles), -1)
            cosine = F.cos(table) * 1.0
            sine = F.sin(table) * 1.0
            return to(cosine, dtype), to(sine, dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return F.cat((F.neg(second), first), -1)


def rotate_pairs(x: Tensor) -> Tensor:
    first, second = x[..., 0::2], x[..., 1::2]
    out: Tensor = F.stack((F.neg(second), first), -1).flatten(-2)
    return out


def rotate(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    cosine, sine = tables
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    query_rotated = (query * cosine) + (rotate_half(query) * sine)
    key_rotated = (key * cosine) + (rotate_half(key) * sine)
    return query_rotated, key_rotated


def rotate_partially(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The first numbers of each head are rotated, the others put behind them again."""
    cosine, sine = tables
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    dim = cosine.shape[-1]
    query_part, query_rest = query[..., :dim], query[..., dim:]
    key_part, key_rest = key[..., :dim], key[..., dim:]
    query_rotated = F.cat(((query_part * cosine) + (rotate_half(query_part) * sine), query_rest), -1)
    key_rotated = F.cat(((key_part * cosine) + (rotate_half(key_part) * sine), key_rest), -1)
    return query_rotated, key_rotated


def rotate_in_line(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The same, in the order of Phi and StableLM: both are rotated before either is put together. Their attention does
    it without a function, so the parts, which come third, have names until it is done."""
    dim = tables[0].shape[-1]
    query_part, query_rest = query[..., :dim], query[..., dim:]
    key_part, key_rest = key[..., :dim], key[..., dim:]
    query_part, key_part = rotate(query_part, key_part, tables)
    query = F.cat((query_part, query_rest), -1)
    key = F.cat((key_part, key_rest), -1)
    return query, key, (query_part, query_rest, key_part, key_rest)


def rotate_then_join(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The same in a function (GLM-4.5)."""
    query, key, _ = rotate_in_line(query, key, tables)
    return query, key


def rotate_halves(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """GPT-OSS's: tables for one half of a head serve both."""
    cosine, sine = tables
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    query_rotated = _rotated_halves(query, cosine, sine)
    key_rotated = _rotated_halves(key, cosine, sine)
    return query_rotated, key_rotated


def _rotated_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = F.chunk(x, 2, -1)
    first_rotated = first * cosine - second * sine
    second_rotated = second * cosine + first * sine
    return F.cat((first_rotated, second_rotated), -1)


def rotate_interleaved(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """GLM's: neighbours form a pair."""
    cosine, sine = tables
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    cosine, sine = empty(cosine.shape, cosine.dtype), empty(sine.shape, sine.dtype)  # repeat_interleave of a half
    return _pairs_rotated(query, key, cosine, sine)


def rotate_interleaved_once(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """GLM-4.1V's: the same, from tables that are interleaved as they are made."""
    return _pairs_rotated(query, key, tables[0].unsqueeze(1), tables[1].unsqueeze(1))


def _pairs_rotated(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    dim = cosine.shape[-1]
    query_part, query_rest = query[..., :dim], query[..., dim:]
    key_part, key_rest = key[..., :dim], key[..., dim:]
    query_rotated = (query_part * cosine) + (rotate_pairs(query_part) * sine)
    key_rotated = (key_part * cosine) + (rotate_pairs(key_part) * sine)
    query_rotated = F.cat((query_rotated, query_rest), -1)
    key_rotated = F.cat((key_rotated, key_rest), -1)
    return query_rotated, key_rotated


def rotate_even_odd(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's: pairs of neighbours, whose rotated numbers end up in two halves."""
    half = tables[0].shape[-1] // 2
    cosine, sine = tables[0][..., :half].unsqueeze(1), tables[1][..., :half].unsqueeze(1)
    query_first, query_second = query[..., 0::2], query[..., 1::2]
    key_first, key_second = key[..., 0::2], key[..., 1::2]
    query_rotated = F.cat((query_first * cosine - query_second * sine, query_second * cosine + query_first * sine), -1)
    key_rotated = F.cat((key_first * cosine - key_second * sine, key_second * cosine + key_first * sine), -1)
    return query_rotated, key_rotated


def rotate_complex(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """DeepSeek-V2's: pairs of neighbours in fp32 are complex numbers, and so is the table."""
    query_pairs = to(query, float32).reshape(*query.shape[:-1], -1, 2)
    key_pairs = to(key, float32).reshape(*key.shape[:-1], -1, 2)
    table = tables[0].unsqueeze(1)
    query_rotated = to((query_pairs * table).flatten(3), query.dtype)
    key_rotated = to((key_pairs * table).flatten(3), key.dtype)
    return query_rotated, key_rotated


def rotate_interleaved_wide(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Cohere's: pairs of neighbours, in fp32."""
    dtype = query.dtype
    cosine, sine = tables
    query, key = to(query, float32), to(key, float32)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    query_rotated = (query * cosine) + (rotate_pairs(query) * sine)
    key_rotated = (key * cosine) + (rotate_pairs(key) * sine)
    return to(query_rotated, dtype), to(key_rotated, dtype)


def rotate_interleaved_tables(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """ERNIE's: the same, from tables that are interleaved in each layer."""
    dtype = query.dtype
    cosine, sine = tables[0].unsqueeze(1), tables[1].unsqueeze(1)
    cosine, sine = empty(cosine.shape, cosine.dtype), empty(sine.shape, sine.dtype)  # repeat_interleave of a half
    query_rotated = (to(query, float32) * cosine) + (to(rotate_pairs(query), float32) * sine)
    key_rotated = (to(key, float32) * cosine) + (to(rotate_pairs(key), float32) * sine)
    return to(query_rotated, dtype), to(key_rotated, dtype)


def rotation_wide(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """OLMo's: the result has the operands' dtype, whatever the tables have."""
    query_rotated, key_rotated = rotate(query, key, tables)
    return to(query_rotated, query.dtype), to(key_rotated, key.dtype)


def rotation(config: Decoder) -> Callable[[Tensor, Tensor, Tables], tuple[Tensor, Tensor]]:
    if config.rotary == "interleaved_tables":
        return rotate_interleaved_tables
    if config.wide_tables:
        return rotation_wide
    if config.rotary == "partial":
        return rotate_then_join if config.projection == "separate" else rotate_partially
    return {
        "half": rotate,
        "halves": rotate_halves,
        "even_odd": rotate_even_odd,
        "complex": rotate_complex,
        "interleaved": rotate_interleaved,
        "interleaved_once": rotate_interleaved_once,
        "interleaved_wide": rotate_interleaved_wide,
    }[config.rotary]


# ---------------------------------------------------------------------------------------------------------- masks


def boolean_mask(batch: int, length: int, windowed: bool) -> Tensor:
    """(B, 1, S, S): True where a token attends. Each row has its own: the collator's mask of padding is part of it."""
    square = (1, 1, length, length)
    allowed = empty(square, bool_)  # the causal triangle
    if windowed:
        inside = empty(square, bool_)  # the window
        inside = _and(empty((), bool_), inside)
        allowed = _and(inside, allowed)
        del inside
    allowed = _and(empty((), bool_), allowed)
    rows = empty((batch, 1, 1, length), bool_)
    allowed = _and(rows, allowed)
    return allowed


def _and(first: Tensor, second: Tensor) -> Tensor:
    """``first & second``: the second has one row or as many as the first."""
    shape = second.shape if first.ndim == 0 else (first.shape[0], *second.shape[1:])
    return empty(shape, bool_)


# FlashAttention for heads that it takes, and SDPA for wider ones, which rebuild the mask of a row of several samples.
HYBRID_ATTENTION, HYBRID_PACKED = "flash_and_sdpa", "flash_and_sdpa_packed"


def attention_mask(kind: str, batch: int, length: int, dtype: DType, window: int, padded: bool) -> Tensor | None:
    """What ``create_causal_mask`` and ``create_sliding_window_causal_mask`` hand to every layer.

    SDPA needs none where the kernel's own ``is_causal`` says it all: no row is padded, and no window is shorter than
    the rows. FlashAttention never does; eager attention always does, as numbers to add.
    """
    if kind in ("flash", "xformers", HYBRID_ATTENTION, HYBRID_PACKED):
        return None
    if kind != "eager":
        windowed = 0 < window <= length
        return boolean_mask(batch, length, window > 0) if windowed or padded else None
    allowed = boolean_mask(batch, length, window > 0)
    zero = empty((), dtype)
    mask = empty((batch, 1, length, length), dtype)
    del allowed, zero
    return mask


def position_numbers(rows: int, length: int) -> Tensor:
    """(1, S), or (B, S) where they are counted from the mask of padding."""
    numbers = empty((rows, length), int64)
    numbers = empty((rows, length), int64)
    return numbers
