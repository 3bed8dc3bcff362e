"""InternLM, the first of its name, and MiniCPM: LLaMA's layers as transformers had them when their code was written.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in ``modeling_internlm.py`` of
internlm/internlm-chat-7b (github.com/Pentahill/llm-example at 1d0c080) and in ``modeling_minicpm.py`` of
openbmb/MiniCPM-2B and MiniCPM4 (github.com/wxthu/nas_tuner at 316794f).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, empty, float32, int64
from memlint.models.language.attention import repeat_heads
from memlint.models.language.baichuan import RotatedAttention
from memlint.models.language.decoder import Layer
from memlint.models.language.parts import GatedPerceptron, rotate
from memlint.models.language.remote import RemoteModel, SquareOfCopy


class OlderAttention(Module):
    """Tables of all places lie in every layer. ``kind``: "eager" writes the scores out, which is all that InternLM
    can. ``wide``: rotations are made in fp32."""

    def __init__(self, config: Decoder, kind: str) -> None:
        self.heads, self.groups = config.heads, config.heads // config.key_value_heads
        self.head_dim, self.kind, self.wide = config.head_dim, kind, config.wide_tables
        self.bounded = config.code == "internlm"
        keys = config.key_value_heads * config.head_dim
        self.q_proj = Linear(config.width, config.heads * config.head_dim, config.qkv_bias)
        self.k_proj = Linear(config.width, keys, config.qkv_bias)
        self.v_proj = Linear(config.width, keys, config.qkv_bias)
        self.o_proj = Linear(config.heads * config.head_dim, config.width, config.output_bias)
        self.inv_freq = buffer(self.head_dim // 2)
        self.cos_cached = buffer(config.context, self.head_dim)
        self.sin_cached = buffer(config.context, self.head_dim)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query = query.view(*shape).transpose(1, 2)
        key = key.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        with no_grad():
            table = (length, self.head_dim)
            rounded = (empty(table, value.dtype), empty(table, value.dtype)) if value.dtype is not float32 else ()
            cosine, sine = empty((1, *table), value.dtype), empty((1, *table), value.dtype)  # of the places
        query, key = (RotatedAttention.rotated if self.wide else rotate)(query, key, (cosine, sine))
        key, value = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        out = self.by_scores(query, key, value, mask) if self.kind == "eager" else self.fused(query, key, value, mask)
        out = out.transpose(1, 2).reshape(batch, length, -1)
        attended: Tensor = self.o_proj(out)
        del rounded
        return attended

    def by_scores(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        weights = F.matmul(query, key.transpose(2, 3)) / 1.0
        weights = weights + mask
        if self.bounded:
            weights = F.minimum(weights, empty((), weights.dtype))  # the larger of it and the least number there is
        weights = to(F.softmax(weights, -1, float32), query.dtype)
        out: Tensor = F.matmul(weights, value)
        return out

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        return F.scaled_dot_product_attention(query, key, value, mask, causal=mask is None)


class OlderLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = OlderAttention(config, kind)
        self.mlp = GatedPerceptron(config.width, config.intermediate, config.activation)
        self.input_layernorm = SquareOfCopy(config.width)
        self.post_attention_layernorm = SquareOfCopy(config.width)
        self.scaled = config.scaled_residual

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, tables, mask)
        x = residual + (x * 1.0 if self.scaled else x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        out: Tensor = residual + (x * 1.0 if self.scaled else x)
        return out


class InternLmModel(RemoteModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return OlderLayer(config, kind, number)

    def define_norm(self, config: Decoder) -> Module:
        return SquareOfCopy(config.width)

    def mask(self, batch: int, length: int, embedded: Tensor) -> Tensor | None:
        """(B, 1, S, S): two of them are added, and what is kept is their sum."""
        if self.kind != "eager" and not self.padded:
            return None
        triangle = empty((length, length), embedded.dtype)
        inverted = empty((batch, 1, length, length), embedded.dtype) * 1.0
        inverted = inverted * 1.0
        del triangle
        return empty((batch, 1, length, length), embedded.dtype)

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        places = empty((1, length), int64)
        mask = self.mask(batch, length, embedded)
        x = embedded
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, places, mask)
        out: Tensor = self.norm(x)
        return out


class MiniCpmModel(InternLmModel):
    """Its checkpointing is the trainer's; the head gets scaled states, and the loss logits in fp32."""

    wide_loss = True
    reentrant_only = None

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x / 1.0)
