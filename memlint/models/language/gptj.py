"""GPT-J, CodeGen and GPT-Neo.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/{gptj,codegen,gpt_neo}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.language.attention import Attended, Attention
from memlint.models.language.decoder import Layer, ParallelLayer
from memlint.models.language.layer_outputs import OutputsModel, beside
from memlint.models.language.parts import perceptron, rotate_pairs


class WideScores(Module):
    """(B, h, S, d) each -> (B, h, S, d): queries and keys are brought to fp32, and so are the scores.

    ``causal``: the square of a table of which tokens see which, where the model has its own.
    """

    def __init__(self, config: Decoder, kind: str) -> None:
        self.kind, self.code = kind, config.code
        self.dropout = config.attention_dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: Tensor | None = None
    ) -> Attended:
        if self.kind == "flash":
            return F.scaled_dot_product_attention(query, key, value, backend="flash"), None
        query, key = to(query, float32), to(key, float32)
        weights = F.matmul(query, key.transpose(-1, -2))
        if causal is not None:
            lowest = empty((), float32)
            weights = F.masked_fill(weights, causal)
            del lowest
        if self.code == "gptj":
            weights = weights / 1.0
        if mask is not None:
            weights = weights + mask
        if self.code == "codegen":
            weights = weights / 1.0
        weights = F.softmax(weights, -1)
        weights = to(weights, value.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        return F.matmul(weights, value), weights


def merged(output: Tensor) -> Tensor:
    """(B, h, S, d) -> (B, S, h * d)."""
    batch, _, length, _ = output.shape
    out: Tensor = output.permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
    return out


class GptjAttention(Attention):
    """Pairs of neighbours are rotated with a table of the layer's own."""

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.heads, self.rotary_dim = config.heads, config.rotary_dim
        self.k_proj = Linear(config.width, width, bias=False)
        self.v_proj = Linear(config.width, width, bias=False)
        self.q_proj = Linear(config.width, width, bias=False)
        self.out_proj = Linear(width, config.width, bias=False)
        self.embed_positions = buffer(config.context, config.rotary_dim or config.width)
        self.wide_scores = WideScores(config, self.scores.kind)

    def table(self, length: int, key: Tensor) -> tuple[Any, ...]:
        """Sine and cosine, (1, S, dim / 2) each in the keys' dtype, and what lives beside them."""
        everything = empty((1, *self.embed_positions.shape), float32)
        places = empty((1, length, everything.shape[-1]), int64)
        found = to(empty(places.shape, float32), key.dtype)
        return found, everything, places

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x)
        key = self.k_proj(x)
        value = self.v_proj(x)
        query = query.view(*shape)
        key = key.view(*shape)
        value = value.view(*shape).permute(0, 2, 1, 3)
        return query, key, value

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        query, key, value = self.project(x)
        table = self.table(x.shape[1], key)
        if self.rotary_dim:
            key_part, key_rest = key[..., : self.rotary_dim], key[..., self.rotary_dim :]
            query_part, query_rest = query[..., : self.rotary_dim], query[..., self.rotary_dim :]
            key_part = rotate_by(key_part, table[0])
            query_part = rotate_by(query_part, table[0])
            key = F.cat((key_part, key_rest), -1)
            query = F.cat((query_part, query_rest), -1)
        else:
            key = rotate_by(key, table[0])
            query = rotate_by(query, table[0])
        key = key.permute(0, 2, 1, 3)
        query = query.permute(0, 2, 1, 3)
        output, weights = self.wide_scores(query, key, value, mask)
        output = merged(output)
        output = self.out_proj(output)
        return output, weights


def rotate_by(x: Tensor, table: Tensor) -> Tensor:
    """(B, S, h, dim); ``table`` (1, S, dim) is sine and cosine of the pairs, each of which is repeated."""
    shape = (1, x.shape[1], 1, x.shape[3])
    sine, cosine = empty(shape, table.dtype), empty(shape, table.dtype)
    out: Tensor = (x * cosine) + (rotate_pairs(x) * sine)
    return out


class CodegenAttention(GptjAttention):
    """One product in four parts, of which each has queries, values and keys of some heads; the table stays in fp32, and
    so does what it rotated."""

    PARTS = 4

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.heads, self.rotary_dim = config.heads, config.rotary_dim
        self.qkv_proj = Linear(config.width, 3 * width, bias=False)
        self.out_proj = Linear(width, config.width, bias=False)
        self.embed_positions = buffer(config.context, config.rotary_dim or config.width)
        self.wide_scores = WideScores(config, "eager")

    def table(self, length: int, key: Tensor) -> tuple[Any, ...]:
        return (empty((1, length, self.embed_positions.shape[-1]), float32),)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = self.qkv_proj(x)
        parts = joined.reshape(*x.shape[:-1], self.PARTS, -1)
        query, value, key = F.split(parts, parts.shape[-1] // 3, -1)
        query, key = self.by_heads(query), self.by_heads(key)
        value = self.by_heads(value).permute(0, 2, 1, 3)
        return query, key, value

    def by_heads(self, x: Tensor) -> Tensor:
        x = x.reshape(*x.shape[:-1], -1, self.head_dim)
        out: Tensor = x.reshape(*x.shape[:2], -1, self.head_dim)
        return out


class GptNeoAttention(Attention):
    """Every layer keeps a square of which tokens see which; scores are not divided by anything."""

    def define(self, config: Decoder) -> None:
        self.bias = buffer(1, 1, config.context, config.context, dtype=bool_)
        width = config.heads * config.head_dim
        self.k_proj = Linear(config.width, width, bias=False)
        self.v_proj = Linear(config.width, width, bias=False)
        self.q_proj = Linear(config.width, width, bias=False)
        self.out_proj = Linear(width, config.width, bias=True)
        self.wide_scores = WideScores(config, self.scores.kind)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        length = x.shape[1]
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x)
        key = self.k_proj(x)
        value = self.v_proj(x)
        query = query.view(*shape).permute(0, 2, 1, 3)
        key = key.view(*shape).permute(0, 2, 1, 3)
        value = value.view(*shape).permute(0, 2, 1, 3)
        causal = self.bias[:, :, :length, :length]
        output, weights = self.wide_scores(query, key, value, mask, causal)
        output = merged(output)
        output = self.out_proj(output)
        return output, weights


class GptjLayer(ParallelLayer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        kinds = {"gptj": GptjAttention, "codegen": CodegenAttention}
        self.self_attn = kinds[config.code](config, kind, rotates=False)
        self.mlp = perceptron(config)
        self.dropout = config.residual_dropout
        self.define(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        attended = F.dropout(attended, self.dropout, self.training)
        fed = self.mlp(x)
        fed = F.dropout(fed, self.dropout, self.training)
        x = attended + fed + residual
        return beside(x, weights)


class GptNeoLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = GptNeoAttention(config, kind, rotates=False)
        self.mlp = perceptron(config)
        self.dropout, self.mlp_dropout = config.residual_dropout, 0.0
        self.scaled = False
        self.define(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        attended = F.dropout(attended, self.dropout, self.training)
        x = attended + residual
        residual = x
        x = self.post_attention_layernorm(x)
        x = residual + self.mlp(x)
        return beside(x, weights)


class GptjModel(OutputsModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return GptjLayer(config, kind, number)


class GptNeoModel(OutputsModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return GptNeoLayer(config, kind, number)
