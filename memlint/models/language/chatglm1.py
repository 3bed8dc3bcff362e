"""The first ChatGLM: scores written out, two halves of each head rotated by two counts of places.

Shapes: B rows, S tokens, W hidden width, h heads of d; tokens lie before rows. Temporaries live as they do in
``modeling_chatglm.py`` of THUDM/chatglm-6b (github.com/greensheng/chatglm-6b at 8b7d335). What TorchScript may fuse
there (the activation, the rotation) counts as it is written.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import LayerNorm, Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.language import losses
from memlint.models.language.decoder import Layer
from memlint.models.language.parts import rotate_half
from memlint.models.language.remote import RemoteModel


def written_gelu(x: Tensor) -> Tensor:
    return (x * 0.5) * (F.tanh((x * 0.7978845608) * ((x * 0.044715) * x + 1.0)) + 1.0)


def written_over(x: Tensor, mask: Tensor) -> Tensor:
    """``masked_fill_``: in place, and what says where is kept."""
    out = x.alias(x.shape, x.strides)
    if tracked(x):
        record(out, (x,), (mask,), lambda g: (empty(g.shape, g.dtype),))
    return out


class TwoCountsAttention(Module):
    """``tables``: cosines and sines of as many places as were met, which each layer keeps."""

    def __init__(self, config: Decoder) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.query_key_value = Linear(config.width, 3 * config.width, config.qkv_bias)
        self.dense = Linear(config.width, config.width, config.output_bias)
        self.inv_freq = buffer(config.rotary_dim // 2, dtype=self.dense.weight.dtype)
        self.tables: tuple[Tensor, Tensor] | None = None

    def rotated(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        assert self.tables is not None
        length, batch, _, width = query.shape
        with no_grad():
            cosine = empty((length, batch, 1, width), self.tables[0].dtype)
            sine = empty((length, batch, 1, width), self.tables[0].dtype)
        turned = (query * cosine) + (rotate_half(query) * sine)
        return turned, (key * cosine) + (rotate_half(key) * sine)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        length, batch, _ = x.shape
        joined = self.query_key_value(x).view(length, batch, self.heads, 3 * self.head_dim)
        query, key, value = F.split(joined, self.head_dim, -1)
        first, second = F.chunk(query, 2, -1)
        first_key, second_key = F.chunk(key, 2, -1)
        if self.tables is None or self.tables[0].shape[0] < length:
            shape, dtype = (length, 1, self.head_dim // 2), self.inv_freq.dtype
            self.tables = (empty(shape, dtype), empty(shape, dtype))
        places = empty((length, batch), int64), empty((length, batch), int64)
        first, first_key = self.rotated(first, first_key)
        second, second_key = self.rotated(second, second_key)
        query = F.cat((first, second), -1)
        key = F.cat((first_key, second_key), -1)
        context, weights = self.attended(query, key, value, mask)
        out: Tensor = self.dense(context)
        del places, weights
        return out

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        length, batch = query.shape[:2]
        rows = batch * self.heads
        query = query / 1.0
        query = query.view(length, rows, -1)
        key = key.view(length, rows, -1)
        scores = F.bmm(query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2))
        scores = scores.view(batch, self.heads, length, length)
        empty(mask.shape, bool_)  # whether there is anything to be left out
        dtype = scores.dtype
        scores = written_over(scores, mask)
        scores = to(scores, float32)
        scores = scores * 1.0
        weights = to(F.softmax(scores, -1), dtype)
        value = value.view(length, rows, -1)
        context = F.bmm(weights.view(rows, length, -1), value.transpose(0, 1))
        context = context.view(batch, self.heads, length, -1).permute(2, 0, 1, 3).contiguous()
        flat: Tensor = context.view(length, batch, -1)
        return flat, weights


class WrittenPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dense_h_to_4h = Linear(config.width, config.intermediate, config.perceptron_bias)
        self.dense_4h_to_h = Linear(config.intermediate, config.width, config.perceptron_bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dense_h_to_4h(x)
        inner = written_gelu(inner)
        out: Tensor = self.dense_4h_to_h(inner)
        return out


class ChatGlmLayer(Layer):
    """What is added to is the normed input, scaled."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = LayerNorm(config.width)
        self.self_attn = TwoCountsAttention(config)
        self.post_attention_layernorm = LayerNorm(config.width)
        self.mlp = WrittenPerceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, mask)
        added = normed * 1.0 + attended
        inner = self.post_attention_layernorm(added)
        fed = self.mlp(inner)
        out: Tensor = inner * 1.0 + fed
        return out


class ChatGlmModel(RemoteModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return ChatGlmLayer(config, kind, number)

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        seen = empty((batch, 1, length, length), float32)
        mask = empty((batch, 1, length, length), bool_)
        del seen
        places = empty((batch, 2, length), int64)
        x = embedded.transpose(0, 1)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, places, mask)
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(S, B, W) -> (B, S, V)."""
        made: Tensor = super().logits(x).permute(1, 0, 2).contiguous()
        return made

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.loss != "full" or self.smooths:
            return super().cross_entropy(x, labels)
        logits = self.logits(x)
        dtype = x.dtype
        logits = to(logits, float32)
        loss, shifted = losses.shifted(logits, labels)
        logits = to(logits, dtype)
        del shifted
        return to(loss, dtype)
