"""Falcon.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/falcon/modeling_falcon.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import LayerNorm, Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.language.attention import Attended
from memlint.models.language.decoder import Layer
from memlint.models.language.layer_outputs import OutputsModel, beside, biases_of_rows, dropout_add
from memlint.models.language.parts import NoNorm, activation, attention_mask, position_numbers, rotate


class PlainLinear(Linear):
    """A product, and a sum that is not part of it (``FalconLinear``)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.matmul(x, self.weight.transpose(0, 1))
        return out if self.bias is None else out + self.bias


def picked(x: Tensor, dim: int) -> Tensor:
    """One entry along a dimension that a list names: a copy. Its gradient is put into zeros."""
    index = empty((1,), int64)
    out = Tensor((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


class FalconAttention(Module):
    """Queries, keys and values from one product: three of each head, or one key and value for groups of heads, or for
    all of them. Grouped heads are repeated; a single one is not."""

    def __init__(self, config: Decoder, kind: str) -> None:
        self.heads, self.keys, self.head_dim = config.heads, config.key_value_heads, config.head_dim
        self.kind, self.grouped = kind, config.grouped
        self.dropout = config.attention_dropout
        made = (config.heads + 2 * config.key_value_heads) * config.head_dim
        self.query_key_value = PlainLinear(config.width, made, config.qkv_bias)
        self.dense = PlainLinear(config.heads * config.head_dim, config.width, config.qkv_bias)

    def parts(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, heads, d) each."""
        batch, length, _ = joined.shape
        if self.grouped:
            parts = joined.view(batch, length, -1, self.heads // self.keys + 2, self.head_dim)
            query = parts[:, :, :, :-2]
            key, value = picked(parts, 3), picked(parts, 3)
            key, value = key.expand(*query.shape), value.expand(*query.shape)
            query, key, value = [x.flatten(2, 3) for x in (query, key, value)]
            return query, key, value
        if self.keys == self.heads:
            parts = joined.view(batch, length, self.heads, 3, self.head_dim)
            return parts[..., 0, :], parts[..., 1, :], parts[..., 2, :]
        parts = joined.view(batch, length, self.heads + 2, self.head_dim)
        return parts[..., :-2, :], picked(parts, 2), picked(parts, 2)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        *tables, biases = tables
        joined = self.query_key_value(x)
        query, key, value = self.parts(joined)
        query = query.transpose(1, 2).reshape(batch, self.heads, length, self.head_dim)
        key = key.transpose(1, 2).reshape(batch, key.shape[2], length, self.head_dim)
        value = value.transpose(1, 2).reshape(batch, value.shape[2], length, self.head_dim)
        if biases is None:
            query, key = rotate(query, key, (tables[0], tables[1]))
        weights = None
        if self.kind == "eager" and biases is None:
            weights = F.matmul(query, key.transpose(-1, -2))
            weights = F.div_(weights, 1.0)
            weights = F.softmax(weights + mask, -1, x.dtype)
            output = F.matmul(weights, value)
        elif self.kind == "eager":
            output, weights = self.biased(query, key, value, biases, mask, x)
        else:
            backend = {"flash": "flash", "xformers": "efficient"}.get(self.kind, "")
            dropout = self.dropout if self.training and biases is not None else 0.0
            output = F.scaled_dot_product_attention(
                query, key, value, mask, backend=backend, dropout=dropout, grouped=False
            )
        output = output.permute(0, 2, 1, 3)
        output = output.reshape(batch, length, self.heads * self.head_dim)
        output = self.dense(output)
        del joined
        return output, weights

    def biased(
        self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor, mask: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """In fp32 until the softmax, which has the dtype of the layer's input."""
        product = F.matmul(query, key.transpose(-1, -2))
        scores = to(product, float32) if product.dtype.itemsize == 2 else product
        logits = scores + biases
        logits = F.div_(logits, 1.0)
        weights = F.softmax(logits + mask, -1, x.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        return F.matmul(weights, value), weights


class FalconPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.function = activation(config.activation)
        self.dense_h_to_4h = PlainLinear(config.width, config.intermediate, config.perceptron_bias)
        self.dense_4h_to_h = PlainLinear(config.intermediate, config.width, config.perceptron_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.dense_h_to_4h(x))
        x = self.dense_4h_to_h(x)
        return x


class FalconLayer(Layer):
    """``residual``: "parallel" (one norm for both blocks), "parallel_two" (one for each), or "pre"."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = FalconAttention(config, kind)
        self.mlp = FalconPerceptron(config)
        self.residual = config.residual
        self.dropout, self.attention_dropout = config.residual_dropout, config.attention_dropout
        self.input_layernorm = LayerNorm(config.width)
        self.post_attention_layernorm = LayerNorm(config.width) if config.residual != "parallel" else NoNorm()

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        normed = self.input_layernorm(x)
        second = normed
        if self.residual == "parallel_two":
            second = self.post_attention_layernorm(x)
        attended, weights = self.self_attn(normed, tables, mask)
        if self.residual == "pre":
            residual = dropout_add(attended, residual, self.attention_dropout, self.training)
            second = self.post_attention_layernorm(residual)
        fed = self.mlp(second)
        if self.residual != "pre":
            fed = F.add_(fed, attended)
        out = dropout_add(fed, residual, self.dropout, self.training)
        return beside(out, weights)


class FalconModel(OutputsModel):
    """The mask is always made, for SDPA as well; with biases they are part of it, so it has one layer per head."""

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return FalconLayer(config, kind, number)

    def states(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        biases = biases_of_rows(embedded, self.config.heads) if self.config.alibi else None
        positions = position_numbers(1, length)
        mask = attention_mask(self.kind, batch, length, embedded.dtype, 0, True)
        if biases is not None and mask is not None:
            if not mask.dtype.is_floating:
                mask = empty(mask.shape, embedded.dtype)
            biases = biases.view(batch, -1, 1, length)
            scaled = biases * 1.0
            hidden = empty(mask.shape, bool_)
            mask = empty((batch, self.config.heads, length, length), embedded.dtype)
            del scaled, hidden
        assert self.rotary_emb is not None
        tables = (*self.rotary_emb(positions, embedded.dtype), biases)
        x = embedded
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, mask)
        out: Tensor = self.norm(x)
        return out
