"""BLOOM.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/bloom/modeling_bloom.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import lower, to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import LayerNorm, Linear, Module
from memlint.meta.tensor import Tensor, empty_like, float32
from memlint.models.language.attention import Attended
from memlint.models.language.decoder import Layer
from memlint.models.language.layer_outputs import AlibiModel, beside, biases_of_rows, dropout_add


def biased_bmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``bias.baddbmm(x, y, alpha=...)``, (rows, n, k) @ (rows, k, m): the bias gets no gradient, the gradients of the
    others are products that the constant is then multiplied into."""
    y = lower(y)
    x = lower(x)
    bias = lower(bias)
    out = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def scaled(kind: Any) -> Tensor:
            product = Tensor(*kind)
            return empty_like(product)

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = scaled(a) if need_x else None
            return gx, scaled(b) if need_y else None

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def recomputing_gelu(x: Tensor) -> Tensor:
    """A function of its own that keeps only its input; both passes are written out (``GeLUFunction``)."""
    with no_grad():
        out = x * 0.5 * (F.tanh(x * 0.79788456 * (x * 0.044715 * x + 1.0)) + 1.0)
    if tracked(x):
        shape, dtype = x.shape, x.dtype

        def op(*operands: Tensor) -> Tensor:
            """An elementwise operation; operands that are made in place of an argument live until it is done."""
            return Tensor(shape, dtype)

        def backward(g: Tensor) -> tuple[Tensor]:
            tanh = op(op(op(), op(op(op()))))
            slope = op(op(op(), op(op(op(tanh, tanh)), op(op(op())))), op(op(tanh)))
            return (op(slope, g),)

        record(out, (x,), (x,), backward)
    return out


class BloomAttention(Module):
    def __init__(self, config: Decoder) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.dropout, self.residual_dropout = config.attention_dropout, config.residual_dropout
        self.query_key_value = Linear(config.width, 3 * config.heads * config.head_dim)
        self.dense = Linear(config.heads * config.head_dim, config.width)

    def forward(self, x: Tensor, residual: Tensor, biases: Tensor, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        joined = self.query_key_value(x)
        parts = joined.view(batch, length, self.heads, 3, self.head_dim)
        query = parts[..., 0, :].transpose(1, 2)
        key = parts[..., 1, :].transpose(1, 2)
        value = parts[..., 2, :].transpose(1, 2)
        query = query.reshape(batch * self.heads, -1, self.head_dim)
        key = key.reshape(batch * self.heads, -1, self.head_dim).transpose(-1, -2)
        value = value.reshape(batch * self.heads, -1, self.head_dim)
        scores = biased_bmm(biases, query, key)
        weights = scores.view(batch, self.heads, length, -1)
        if mask is not None:
            weights = weights + mask
        kept = to(F.softmax(weights, -1, float32), query.dtype)
        kept = F.dropout(kept, self.dropout, self.training)
        context = F.bmm(kept.view(batch * self.heads, length, -1), value)
        context = context.view(batch, self.heads, length, self.head_dim).permute(0, 2, 1, 3)
        context = context.reshape(batch, length, self.heads * self.head_dim)
        out = self.dense(context)
        out = dropout_add(out, residual, self.residual_dropout, self.training)
        del joined, parts, key, scores
        return out, kept


class BloomPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dropout = config.residual_dropout
        self.dense_h_to_4h = Linear(config.width, config.intermediate)
        self.dense_4h_to_h = Linear(config.intermediate, config.width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = recomputing_gelu(self.dense_h_to_4h(x))
        made = self.dense_4h_to_h(x)
        return dropout_add(made, residual, self.dropout, self.training)


class BloomLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = LayerNorm(config.width)
        self.self_attn = BloomAttention(config)
        self.post_attention_layernorm = LayerNorm(config.width)
        self.mlp = BloomPerceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        normed = self.input_layernorm(x)
        attended, weights = self.self_attn(normed, x, tables, mask)
        normed = self.post_attention_layernorm(attended)
        out: Tensor = self.mlp(normed, attended)
        return beside(out, weights)


class BloomModel(AlibiModel):
    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.word_embeddings_layernorm = LayerNorm(config.width)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return BloomLayer(config, kind, number)

    def first(self, x: Tensor) -> Tensor:
        normed: Tensor = self.word_embeddings_layernorm(x)
        return normed

    def biases(self, x: Tensor) -> Tensor:
        return biases_of_rows(x, self.config.heads)
