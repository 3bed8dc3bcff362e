"""MPT.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/mpt/modeling_mpt.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32
from memlint.models.language.attention import Attended
from memlint.models.language.decoder import Layer
from memlint.models.language.layer_outputs import AlibiModel, beside
from memlint.models.language.parts import WeightNorm


class MptAttention(Module):
    def __init__(self, config: Decoder) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.clipped, self.dropout = config.clipped, config.attention_dropout
        self.Wqkv = Linear(config.width, 3 * config.heads * config.head_dim, bias=False)
        self.out_proj = Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, biases: Tensor, mask: Tensor) -> Attended:
        batch, length, _ = x.shape
        joined = self.Wqkv(x)
        if self.clipped:
            joined = F.clamp(joined, 2)
        query, key, value = F.chunk(joined, 3, 2)
        query = query.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = key.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        value = value.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        scores = F.matmul(query, key.transpose(-1, -2)) * 1.0
        scores = scores + F.narrow(biases, 2, length)
        scores = F.masked_fill(scores, mask)
        weights = to(F.softmax(to(scores, float32), -1), value.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        context = F.matmul(weights, value)
        context = context.permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
        out = self.out_proj(context)
        del joined
        return out, weights


class MptPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dropout = config.attention_dropout
        self.up_proj = Linear(config.width, config.intermediate, bias=False)
        self.down_proj = Linear(config.intermediate, config.width, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = F.gelu(self.up_proj(x))
        made = self.down_proj(x)
        out = F.dropout(made, self.dropout, self.training)
        out = out + residual
        return out


class MptLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = WeightNorm(config.width)
        self.self_attn = MptAttention(config)
        self.post_attention_layernorm = WeightNorm(config.width)
        self.mlp = MptPerceptron(config)
        self.dropout = config.attention_dropout

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        normed = self.input_layernorm(x)
        residual = x
        attended, weights = self.self_attn(normed, tables, mask)
        x = F.dropout(attended, self.dropout, self.training) + residual
        normed = self.post_attention_layernorm(x)
        residual = x
        out: Tensor = self.mlp(normed, residual)
        return beside(out, weights)


class MptModel(AlibiModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return MptLayer(config, kind, number)

    def biases(self, x: Tensor) -> Tensor:
        """(h, 1, longest), in fp32, and so are the scores that they are added to."""
        return empty((self.config.heads, 1, max(self.config.context, x.shape[1])), float32)

    def scores_mask(self, x: Tensor) -> Tensor | None:
        mask = super().scores_mask(x)
        assert mask is not None
        return empty(mask.shape, bool_)
