"""Mamba's second kind of layer, in transformers' plain torch, and the decoders that have one beside attention in every
layer (Falcon-H1) or in place of it in most (Granite 4). The kernels of ``mamba_ssm``, which are taken where that is
installed, keep less.

Shapes: B rows, S tokens, W hidden width, h heads of d, g groups, n numbers of state, C chunks of c tokens. Temporaries
live as they do there, so statements are not merged.

Source: ``transformers`` 5.23, ``models/{falcon_h1,granitemoehybrid}/modeling_*.py`` (mamba2_chunk_scan, segment_sum).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder, StateSpace
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Conv, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64, state
from memlint.models.language.attention import Attention
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.gated_delta import convolved, cumulated, repeated, softplus
from memlint.models.language.parts import Tables, activation, norm, perceptron, position_numbers


def segment_sum(x: Tensor) -> Tensor:
    """(..., c) -> (..., c, c): sums from each entry to each later one."""
    size = x.shape[-1]
    x = F.expand(x.unsqueeze(x.ndim), *x.shape, size)
    mask = triangle(size)
    x = F.masked_fill(x, negated(mask))
    summed = cumulated(x)
    mask = triangle(size)
    summed = F.masked_fill(summed, negated(mask))
    return summed


def triangle(size: int) -> Tensor:
    ones = empty((size, size), bool_)
    lower = empty((size, size), bool_)
    del ones
    return lower


def negated(mask: Tensor) -> Tensor:
    return empty(mask.shape, bool_)


def padded(x: Tensor, missing: int) -> Tensor:
    """Tokens behind the last: (B, S, ...)."""
    return F.pad(x, *(0, 0) * (x.ndim - 2), 0, missing)


def chunked(x: Tensor, missing: int, size: int) -> Tensor:
    """(B, S, ...) -> (B, C, c, ...)."""
    x = padded(x, missing)
    out: Tensor = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    return out


def scan(
    hidden: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, skip: Tensor, bias: Tensor, chunk: int
) -> Tensor:
    """(B, S, h, d), (B, S, h), (h), (B, S, g, n) twice, (h) twice -> (B, S, h, d) in fp32."""
    batch, length, heads, width = hidden.shape
    dt = dt + to(bias, dt.dtype)
    dt = softplus(dt)
    dt = F.clamp(dt, 2)
    hidden = to(hidden, float32)
    times = heads // b.shape[2]
    b = repeated(to(b, float32), times)
    c = repeated(to(c, float32), times)
    missing = -length % chunk
    residual = skip.unsqueeze(-1) * padded(hidden, missing)
    hidden = hidden * to(dt.unsqueeze(-1), float32)
    decay = to(decay, hidden.dtype) * to(dt, float32)
    hidden, decay, b, c = (chunked(x, missing, chunk) for x in (hidden, decay, b, c))
    decay = decay.permute(0, 3, 1, 2)
    summed = cumulated(decay)
    faded = F.exp(segment_sum(decay))
    pairs = F.einsum("bclhn,bcshn->bclsh", c, b)
    mixed = pairs * faded.permute(0, 2, 3, 4, 1)
    within = F.einsum("bclsh,bcshp->bclhp", mixed, hidden)
    left = F.exp(summed[:, :, :, -1:] - summed)
    written = b * left.permute(0, 2, 3, 1).unsqueeze(-1)
    states = F.einsum("bclhn,bclhp->bchpn", written, hidden)
    first = empty((batch, 1, *states.shape[2:]), states.dtype)
    states = F.cat((first, states), 1)
    between = F.exp(segment_sum(F.pad(summed[:, :, :, -1], 1, 0))).transpose(1, 3)
    new = F.einsum("bzch,bzhpn->bchpn", between, states)
    states, last = new[:, :-1], new[:, -1]
    outwards = F.exp(summed)
    read = F.einsum("bclhn,bchpn->bclhp", c, states)
    across = read * outwards.permute(0, 2, 3, 1).unsqueeze(-1)
    out: Tensor = (within + across).contiguous()
    out = out.reshape(batch, -1, heads, width)
    out = out + residual
    if missing:
        out = out[:, :length]
    del last
    return out


class GatedNorm(Module):
    """A root-mean-square norm of each group, in fp32; ``kind`` is ``StateSpace.normed``."""

    def __init__(self, width: int, groups: int, kind: str) -> None:
        self.weight = parameter(width)
        self.groups, self.before, self.together = groups, kind == "before", kind == "together"

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype = x.dtype
        if not self.before:
            x = x * F.silu(to(gate, float32))
        batch, length, width = x.shape
        x = to(x, float32)
        x = x.view(batch, length, self.groups, width // self.groups)
        variance = F.mean(F.pow(x, 2.0), -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        if self.together:
            return self.weight * to(x.view(batch, length, width), dtype)
        x = self.weight.view(self.groups, width // self.groups) * x
        x = x.view(batch, length, width)
        if self.before:
            x = x * F.silu(to(gate, float32))
        return to(x, dtype)


class Mixer(Module):
    def __init__(self, config: Decoder, space: StateSpace) -> None:
        self.space = space
        shared = space.groups * space.state
        self.sizes = space.width, space.width + 2 * shared, space.heads
        self.shares = space.width, shared, shared
        channels = self.sizes[1]
        self.conv1d = Conv(
            channels,
            channels,
            (space.kernel,),
            padding=space.kernel - 1,
            bias=space.convolution_bias,
            groups=channels,
        )
        self.in_proj = Linear(config.width, sum(self.sizes), space.input_bias)
        self.dt_bias = parameter(space.heads)
        self.A_log = parameter(space.heads)
        self.norm = GatedNorm(space.width, space.groups, space.normed) if space.normed else None
        self.D = parameter(space.heads)
        self.out_proj = Linear(space.width, config.width, space.output_bias)
        self.function = activation(config.activation)
        self.mup_vector = buffer(1, 1, sum(self.sizes), dtype=state.default_dtype) if space.scaled else None

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        dtype, space = x.dtype, self.space
        if padding is not None:
            x = to(x * padding.unsqueeze(-1), dtype)
        if self.mup_vector is not None:
            x = x * 1.0
        projected = self.in_proj(x)
        if self.mup_vector is not None:
            projected = projected * self.mup_vector
        decay = F.neg(F.exp(to(self.A_log, float32)))
        gate, mixed, dt = F.split(projected, self.sizes, -1)
        mixed = mixed.transpose(1, 2)
        mixed = convolved(mixed, self.conv1d, self.function)
        mixed = mixed.transpose(1, 2)
        if padding is not None:
            mixed = to(mixed * padding.unsqueeze(-1), dtype)
        hidden, b, c = F.split(mixed, self.shares, -1)
        found = scan(
            hidden.view(batch, length, space.heads, -1),
            dt,
            decay,
            b.view(batch, length, space.groups, -1),
            c.view(batch, length, space.groups, -1),
            self.D,
            self.dt_bias,
            space.chunk,
        )
        out = found.view(batch, length, -1)
        out = out * F.silu(gate) if self.norm is None else self.norm(out, gate)
        result: Tensor = self.out_proj(to(out, dtype))
        return result


class ScaledKeys(Attention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x).view(*shape).transpose(1, 2)
        key = self.k_proj(x).view(*shape).transpose(1, 2) * 1.0
        value = self.v_proj(x).view(*shape).transpose(1, 2)
        return query, key, value


class ScaledPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        width, inner, bias = config.width, config.intermediate, config.perceptron_bias
        self.function = activation(config.activation)
        self.gate_proj = Linear(width, inner, bias)
        self.up_proj = Linear(width, inner, bias)
        self.down_proj = Linear(inner, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up_proj(x) * self.function(self.gate_proj(x) * 1.0)
        out: Tensor = self.down_proj(y) * 1.0
        return out


class BesideLayer(Layer):
    """Both read one norm, and are added."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        assert config.space is not None
        self.feed_forward = ScaledPerceptron(config)
        self.mamba = Mixer(config, config.space)
        self.self_attn: Any = ScaledKeys(config, kind)
        self.input_layernorm = norm(config.norm, config.width)
        self.pre_ff_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Any) -> Tensor:
        attended_by, padding = mask
        residual = x
        x = self.input_layernorm(x)
        mixed = self.mamba(x, padding)
        mixed = mixed * 1.0
        attended = self.self_attn(x * 1.0, tables, attended_by)[0]
        attended = attended * 1.0
        x = mixed + attended
        x = residual + x
        residual = x
        x = self.pre_ff_layernorm(x)
        x = self.feed_forward(x)
        x = residual + x
        del mixed, attended
        return x


class InsteadLayer(Layer):
    """A layer as others are, with a mixer in place of attention where its number is among those."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        assert config.space is not None
        mixes = number in config.space.layers
        self.mamba = Mixer(config, config.space) if mixes else None
        self.self_attn: Any = None if mixes else Attention(config, kind)
        self.mlp = mixture(config) if has_experts(config, number) else perceptron(config)
        self.scaled = config.scaled_residual
        self.define(config)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        weights = None
        if self.mamba is not None:
            x = self.mamba(x, mask)
        else:
            x, weights = self.self_attn(x, tables, mask)
        x = residual + self.added(x, 0.0)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + self.added(x, 0.0)
        del weights
        return x


class InsteadModel(LanguageModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return InsteadLayer(config, kind, number)

    def mask_of(self, number: int, mask: Tensor | None, padding: Tensor | None) -> Any:
        assert self.config.space is not None
        return padding if number in self.config.space.layers else mask

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.look(given)[0] if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        positions = position_numbers(1, length)
        mask = self.masks(batch, length, embedded)[0]
        padding = empty((batch, length), int64) if self.padded else None
        x = embedded
        tables = None if self.rotary_emb is None else self.rotary_emb(positions, x.dtype)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, self.mask_of(number, mask, padding))
        out: Tensor = self.norm(x)
        return out


class BesideModel(InsteadModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return BesideLayer(config, kind, number)

    def mask_of(self, number: int, mask: Tensor | None, padding: Tensor | None) -> Any:
        return mask, padding
