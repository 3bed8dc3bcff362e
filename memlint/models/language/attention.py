"""Attention blocks of decoders: four ways to project, then eager scores or one of the fused kernels.

Source: ``transformers`` 5.23, ``models/*/modeling_*.py``, ``integrations/sdpa_attention.py``,
``integrations/flash_attention.py``.
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, empty, float32
from memlint.models.language.parts import (
    CohereNorm,
    Conv1D,
    HeadNorms,
    Tables,
    norm,
    rotate_in_line,
    rotation,
)

# SDPA's kernels take grouped heads up to this width (``use_gqa_in_sdpa``).
WIDEST_GROUPED_HEAD = 256

# The result, and eager attention's probabilities: layers hold on to them until they return.
Attended = tuple[Tensor, Tensor | None]


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """(B, kv, S, d) -> (B, kv * times, S, d)."""
    if times == 1:
        return x
    batch, heads, length, head_dim = x.shape
    x = x.unsqueeze(2).expand(batch, heads, times, length, head_dim)
    out: Tensor = x.reshape(batch, heads * times, length, head_dim)
    return out


def place_scales(length: int) -> Tensor:
    """(1, 1, S, 1): by how much a query grows with its place; each step of the formula is one tensor."""
    scale = empty((1, length), float32)  # places, divided
    for _ in range(5):  # floor, 1 +, log, times, 1 +
        scale = empty((1, length), float32)
    out: Tensor = scale.view(1, 1, length, 1)
    return out


class Scores(Module):
    """(B, h, S, d) queries and (B, kv, S, d) keys and values -> (B, S, h, d).

    kind           "eager" keeps the probabilities; "sdpa" takes the kernel that torch takes; "flash" and "xformers"
                   name it; "sdpa_repeated" is SDPA before transformers 4.54: fewer heads of keys and values are
                   always repeated; "sdpa_grouped" before 5.13: heads that are too wide for a fused kernel are not
    plain_softmax  GPT-2: the softmax has no dtype of its own, and the result is left as it lies
    """

    def __init__(self, config: Decoder, kind: str) -> None:
        self.kind = kind
        self.repeats = kind in ("xformers", "sdpa_repeated")
        self.groups = config.heads // config.key_value_heads
        self.dropout = config.attention_dropout
        self.cap = config.score_cap
        self.plain_softmax = config.plain_softmax
        self.sinks = parameter(config.heads) if config.sinks else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
        dropout = self.dropout if self.training else 0.0
        if self.kind == "eager":
            return self.eager(query, key, value, mask, dropout)
        if self.kind == "flash":
            output = F.scaled_dot_product_attention(query, key, value, backend="flash", dropout=dropout)
            return self.in_order(output), None
        backend = "efficient" if self.kind == "xformers" else ""
        wide = key.shape[-1] > WIDEST_GROUPED_HEAD and self.kind != "sdpa_grouped"
        if self.groups > 1 and (mask is not None or wide or self.repeats):
            key = repeat_heads(key, self.groups)
            value = repeat_heads(value, self.groups)
        output = F.scaled_dot_product_attention(
            query, key, value, mask, backend=backend, dropout=dropout, causal=mask is None
        )
        return self.in_order(output), None

    @staticmethod
    def in_order(output: Tensor) -> Tensor:
        ordered: Tensor = output.transpose(1, 2).contiguous()
        return ordered

    def eager(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Attended:
        keys, values = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        weights = F.matmul(query, keys.transpose(2, 3)) * 1.0
        if self.cap:
            weights = weights / 1.0
            weights = F.tanh(weights)
            weights = weights * 1.0
        if mask is not None:
            weights = weights + mask
        if self.plain_softmax:
            weights = F.softmax(weights, -1)
            weights = to(weights, value.dtype)
        elif self.sinks is not None:
            weights = self.beside_sinks(weights, values.dtype)
        else:
            weights = to(F.softmax(weights, -1, float32), query.dtype)
        weights = F.dropout(weights, dropout)
        output = F.matmul(weights, values)
        return (output.transpose(1, 2) if self.plain_softmax else self.in_order(output)), weights

    def beside_sinks(self, weights: Tensor, dtype: DType) -> Tensor:
        """GPT-OSS: every row has one more score, which a parameter of the head gives; its probability is dropped."""
        assert self.sinks is not None
        batch, _, length, _ = weights.shape
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(batch, -1, length, -1)
        combined = F.cat((weights, sinks), -1)
        combined = combined - F.max(combined, -1, keepdim=True)[0]
        probabilities = F.softmax(combined, -1, combined.dtype)
        return to(probabilities[..., :-1], dtype)


class Attention(Module):
    """Queries, keys and values by products of their own (LLaMA and most others)."""

    def __init__(self, config: Decoder, kind: str, rotates: bool = True) -> None:
        self.head_dim = config.head_dim
        self.rotate = rotation(config) if rotates and config.rotary != "none" else None
        self.in_line = config.rotates_in_line
        self.normed = config.query_norm
        self.clipped, self.scaled = config.clipped, config.scaled_query
        self.scores = Scores(config, kind)
        self.output_name = config.output_name
        self.define(config)

    def define(self, config: Decoder) -> None:
        queries, keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
        self.q_proj = Linear(config.width, queries, config.qkv_bias)
        self.k_proj = Linear(config.width, keys, config.qkv_bias)
        self.v_proj = Linear(config.width, keys, config.qkv_bias)
        setattr(self, config.output_name, Linear(queries, config.width, config.output_bias))
        if self.normed == "whole":
            self.q_norm, self.k_norm = self.norm(config, queries), self.norm(config, keys)
        elif self.normed == "head_wide":
            self.q_norm = CohereNorm(config.heads, config.head_dim)
            self.k_norm = CohereNorm(config.key_value_heads, config.head_dim)
        elif self.normed == "head_each":
            self.q_norm = HeadNorms(config.heads, config.head_dim)
            self.k_norm = HeadNorms(config.key_value_heads, config.head_dim)
        elif self.normed != "none":
            self.q_norm, self.k_norm = self.norm(config, config.head_dim), self.norm(config, config.head_dim)

    def norm(self, config: Decoder, width: int) -> Module:
        """Of queries and of keys."""
        return norm(config.norm, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        if self.clipped:  # OLMo, and OLMoE, which norms before
            query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
            if self.normed == "whole":
                query, key = self.q_norm(query), self.k_norm(key)
            # in place, of what is kept a copy: as much as a result of its own
            query, key, value = F.clamp(query, 2), F.clamp(key, 2), F.clamp(value, 2)
            query = query.view(*shape).transpose(1, 2)
            key = key.view(*shape).transpose(1, 2)
            value = value.view(*shape).transpose(1, 2)
        elif self.normed in ("none", "head_rotated"):
            query = self.q_proj(x).view(*shape).transpose(1, 2)
            key = self.k_proj(x).view(*shape).transpose(1, 2)
            value = self.v_proj(x).view(*shape).transpose(1, 2)
        elif self.normed == "head":
            query = self.q_norm(self.q_proj(x).view(*shape)).transpose(1, 2)
            key = self.k_norm(self.k_proj(x).view(*shape)).transpose(1, 2)
            value = self.v_proj(x).view(*shape).transpose(1, 2)
        elif self.normed in ("head_after", "head_each"):
            query = self.q_proj(x).view(*shape).transpose(1, 2)
            key = self.k_proj(x).view(*shape).transpose(1, 2)
            value = self.v_proj(x).view(*shape).transpose(1, 2)
            query = self.q_norm(query)
            key = self.k_norm(key)
        elif self.normed in ("head_wide", "head_together"):
            query, key, value = self.q_proj(x).view(*shape), self.k_proj(x).view(*shape), self.v_proj(x).view(*shape)
            query = self.q_norm(query)
            key = self.k_norm(key)
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        else:  # whole
            query = self.q_norm(self.q_proj(x))
            key = self.k_norm(self.k_proj(x))
            value = self.v_proj(x)
            query = query.view(*shape).transpose(1, 2)
            key = key.view(*shape).transpose(1, 2)
            value = value.view(*shape).transpose(1, 2)
        return query, key, value

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        query, key, value = self.project(x)
        parts = None
        if self.in_line and tables is not None:
            query, key, parts = rotate_in_line(query, key, tables)
        elif self.rotate is not None and tables is not None:
            query, key = self.rotate(query, key, tables)
        if self.scaled:
            query = query * to(place_scales(length), query.dtype)
        if self.normed == "head_rotated":
            query = self.q_norm(query)
            key = self.k_norm(key)
        output, weights = self.scores(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        output = getattr(self, self.output_name)(output)
        del parts
        return output, weights


class JoinedAttention(Attention):
    """One product, of which queries, keys and values are slices (Phi3)."""

    def define(self, config: Decoder) -> None:
        self.queries, self.keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
        self.o_proj = Linear(self.queries, config.width, config.output_bias)
        self.qkv_proj = Linear(config.width, self.queries + 2 * self.keys, config.qkv_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        joined = self.qkv_proj(x)
        middle = self.queries + self.keys
        query, key, value = joined[..., : self.queries], joined[..., self.queries : middle], joined[..., middle:]
        query = query.view(*shape).transpose(1, 2)
        key = key.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        return query, key, value


class ByHeadAttention(Attention):
    """One product, each head of which holds its query, key and value (GPT-NeoX)."""

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.joined_name = config.joined_name
        setattr(self, self.joined_name, Linear(config.width, 3 * width, config.qkv_bias))
        setattr(self, self.output_name, Linear(width, config.width, config.output_bias))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = getattr(self, self.joined_name)(x).view(*x.shape[:-1], -1, 3 * self.head_dim).transpose(1, 2)
        query, key, value = F.chunk(joined, 3, -1)
        return query, key, value


class ByGroupAttention(Attention):
    """One product, each group of heads of which holds its queries, its key and its value (InternLM2)."""

    def define(self, config: Decoder) -> None:
        self.keys, self.groups = config.key_value_heads, config.heads // config.key_value_heads
        queries = config.heads * config.head_dim
        self.wqkv = Linear(config.width, queries + 2 * self.keys * config.head_dim, config.qkv_bias)
        self.wo = Linear(queries, config.width, config.output_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = self.wqkv(x).view(*x.shape[:-1], self.keys, self.groups + 2, self.head_dim)
        query = joined[..., : self.groups, :].flatten(2, 3)
        key, value = joined[..., -2, :], joined[..., -1, :]
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


class ThirdsAttention(Attention):
    """One product, cut in three (GPT-2)."""

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.c_attn = Conv1D(config.width, 3 * width, config.qkv_bias)
        self.c_proj = Conv1D(width, config.width, config.output_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        joined = self.c_attn(x)
        query, key, value = F.split(joined, joined.shape[-1] // 3, 2)
        del joined
        key = key.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        query = query.view(*shape).transpose(1, 2)
        return query, key, value


class OneKeyAttention(Attention):
    """One product: queries of every head, a key and a value for all of them (GPT-BigCode)."""

    def define(self, config: Decoder) -> None:
        self.sizes = (config.heads * config.head_dim, config.head_dim, config.head_dim)
        self.c_attn = Linear(config.width, sum(self.sizes), config.qkv_bias)
        self.c_proj = Linear(self.sizes[0], config.width, config.output_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = F.split(self.c_attn(x).unsqueeze(1), self.sizes, 3)
        query = query.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)
        return query, key, value


class ScaledAttention(Attention):
    """Queries are scaled before their heads are told apart (OPT)."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x) * 1.0
        query = query.view(*shape).transpose(1, 2)
        key = self.k_proj(x)
        value = self.v_proj(x)
        key = key.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        return query, key, value


class LatentAttention(Attention):
    """Queries through a narrow vector, keys and values from another; part of each key is rotated, one for all heads."""

    def define(self, config: Decoder) -> None:
        latent = config.latent
        assert latent is not None
        self.key_value_rank, self.plain_dim = latent.key_value_rank, latent.plain_dim
        self.rotary_dim, self.value_dim = latent.rotary_dim, latent.value_dim
        queries = config.heads * config.head_dim
        self.narrow = latent.query_rank > 0
        if self.narrow:
            self.q_a_proj = Linear(config.width, latent.query_rank, config.qkv_bias)
            self.q_a_layernorm = norm(config.norm, latent.query_rank)
            self.q_b_proj = Linear(latent.query_rank, queries, bias=False)
        else:
            self.q_proj = Linear(config.width, queries, bias=False)
        self.kv_a_proj_with_mqa = Linear(config.width, latent.key_value_rank + latent.rotary_dim, config.qkv_bias)
        self.kv_a_layernorm = norm(config.norm, latent.key_value_rank)
        made = config.heads * (latent.plain_dim + latent.value_dim)
        self.kv_b_proj = Linear(latent.key_value_rank, made, bias=False)
        self.o_proj = Linear(config.heads * latent.value_dim, config.width, config.output_bias)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Attended:
        assert self.rotate is not None
        assert tables is not None
        batch, length, _ = x.shape
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.narrow else self.q_proj(x)
        query = query.view(batch, length, -1, self.head_dim).transpose(1, 2)
        query_plain, query_rotary = F.split(query, (self.plain_dim, self.rotary_dim), -1)
        latent = self.kv_a_proj_with_mqa(x)
        plain, key_rotary = F.split(latent, (self.key_value_rank, self.rotary_dim), -1)
        plain = self.kv_a_layernorm(plain)
        plain = plain.view(batch, 1, length, self.key_value_rank)
        key_rotary = key_rotary.view(batch, 1, length, self.rotary_dim)
        query_rotary, key_rotary = self.rotate(query_rotary, key_rotary, tables)
        full = F.cat((query_plain, query_rotary), -1)
        key, value = self.widen(plain, key_rotary)
        output, weights = self.scores(full, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        output = self.o_proj(output)
        del query
        return output, weights

    def widen(self, plain: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        batch, _, length, _ = plain.shape
        wide = self.kv_b_proj(plain).view(batch, length, -1, self.plain_dim + self.value_dim).transpose(1, 2)
        key, value = F.split(wide, (self.plain_dim, self.value_dim), -1)
        rotary = rotary.expand(-1, key.shape[1], -1, -1)
        return F.filled(key, rotary), value


ATTENTIONS = {
    "separate": Attention,
    "scaled": ScaledAttention,
    "joined": JoinedAttention,
    "by_head": ByHeadAttention,
    "by_group": ByGroupAttention,
    "thirds": ThirdsAttention,
    "one_key": OneKeyAttention,
    "latent": LatentAttention,
}
