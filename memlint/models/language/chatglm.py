"""ChatGLM2, ChatGLM3 and GLM-4 as the code beside their weights computes them, not transformers' ``glm``.

Shapes: B rows, S tokens, W hidden width, h heads of d. ChatGLM2 and 3 lay tokens before rows, GLM-4 does not.
Temporaries live as they do in ``modeling_chatglm.py``: of THUDM/chatglm2-6b (github.com/syjjhl/chatglm2-6b at 8fd7fba),
of chatglm3-6b (github.com/zhangbo2008/chatglm3_annotated at 84fba0f), of GLM-4 (github.com/XuRui314/GLM4v-Finetune at
513b75d, whose images are not here). What TorchScript may fuse there counts as it is written.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, float32
from memlint.models.language import losses
from memlint.models.language.decoder import Layer
from memlint.models.language.parts import RootMeanSquare
from memlint.models.language.remote import RemoteModel


class GlmNorm(RootMeanSquare):
    """What its variance scales is widened by it, and rounded once it is weighted."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        variance = F.mean(to(x, float32) ** 2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-5)
        return to(self.weight * x, dtype)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Half of each head's numbers, in pairs of neighbours. ``table``: pairs of cosine and sine that broadcast."""
    dim = 2 * table.shape[-2]
    part, rest = x[..., :dim], x[..., dim:]
    pairs = part.reshape(*part.shape[:-1], -1, 2)
    cosine, sine = table[..., 0], table[..., 1]
    turned = F.stack(
        (
            pairs[..., 0] * cosine - pairs[..., 1] * sine,
            pairs[..., 1] * cosine + pairs[..., 0] * sine,
        ),
        -1,
    )
    return F.cat((turned.flatten(3), rest), -1)


class GlmAttention(Module):
    """SDPA whatever the run asks for, of keys and values that are repeated for every head."""

    def __init__(self, config: Decoder, tokens_first: bool) -> None:
        self.heads, self.head_dim, self.groups = config.heads, config.head_dim, config.key_value_heads
        self.tokens_first = tokens_first
        keys = config.key_value_heads * config.head_dim
        self.sizes = (config.heads * config.head_dim, keys, keys)
        self.query_key_value = Linear(config.width, sum(self.sizes), config.qkv_bias)
        self.dense = Linear(self.sizes[0], config.width, config.output_bias)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        joined = self.query_key_value(x)
        parts = F.split(joined, self.sizes, -1)
        query, key, value = (part.view(*part.shape[:-1], -1, self.head_dim) for part in parts)
        del parts
        if not self.tokens_first:
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        query = rotated(query, table)
        key = rotated(key, table)
        key = self.repeated(key)
        value = self.repeated(value)
        out: Tensor = self.dense(self.attended(query, key, value, mask))
        return out

    def repeated(self, x: Tensor) -> Tensor:
        times = self.heads // self.groups
        if self.tokens_first:
            length, batch = x.shape[:2]
            x = x.unsqueeze(-2).expand(length, batch, self.groups, times, self.head_dim).contiguous()
            spread: Tensor = x.view(length, batch, self.heads, self.head_dim)
            return spread
        batch, _, length, _ = x.shape
        x = x.unsqueeze(2).expand(batch, self.groups, times, length, self.head_dim).contiguous()
        spread = x.view(batch, self.heads, length, self.head_dim)
        return spread

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if self.tokens_first:
            query, key, value = query.permute(1, 2, 0, 3), key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3)
        if mask is not None:
            mask = empty(mask.shape, bool_)  # turned round
        context = F.scaled_dot_product_attention(query, key, value, mask, causal=mask is None)
        context = context.permute(2, 0, 1, 3) if self.tokens_first else context.transpose(1, 2)
        flat: Tensor = context.reshape(*context.shape[:2], -1)
        return flat


class GlmPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dense_h_to_4h = Linear(config.width, 2 * config.intermediate, config.perceptron_bias)
        self.dense_4h_to_h = Linear(config.intermediate, config.width, config.perceptron_bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dense_h_to_4h(x)
        inner = self.activated(inner)
        out: Tensor = self.dense_4h_to_h(inner)
        return out

    @staticmethod
    def activated(x: Tensor) -> Tensor:
        halves = F.chunk(x, 2, -1)
        return F.silu(halves[0]) * halves[1]


class GlmLayer(Layer):
    def __init__(self, config: Decoder, tokens_first: bool) -> None:
        self.input_layernorm = GlmNorm(config.width)
        self.self_attn = GlmAttention(config, tokens_first)
        self.post_attention_layernorm = GlmNorm(config.width)
        self.mlp = GlmPerceptron(config)
        self.dropout = config.residual_dropout

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, tables, mask)
        added = F.dropout(attended, self.dropout, self.training)
        added = x + added
        normed = self.post_attention_layernorm(added)
        fed = self.mlp(normed)
        out = F.dropout(fed, self.dropout, self.training)
        return added + out


class GlmModel(RemoteModel):
    """GLM-4. Its checkpointing is torch's newer kind."""

    wide_loss = True
    reentrant_only = False
    tokens_first = False

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.frequencies = buffer(config.rotary_dim // 2, dtype=self.embed_tokens.weight.dtype)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return GlmLayer(config, self.tokens_first)

    def define_norm(self, config: Decoder) -> Module:
        return GlmNorm(config.width)

    def table(self, batch: int, length: int) -> Tensor:
        """Pairs of cosine and sine of the tokens, out of those of every place that the model has."""
        places, half = max(self.config.context, length), self.config.rotary_dim // 2
        with no_grad():
            angles = empty((places, half), float32)
            cosine, sine = F.cos(angles), F.sin(angles)
            pairs = F.stack((cosine, sine), -1)
            del cosine, sine, angles
            pairs = to(pairs, self.frequencies.dtype)
            if self.tokens_first:
                first: Tensor = F.narrow(pairs, 0, length).view(length, 1, 1, half, 2)
                return first
            table: Tensor = F.narrow(pairs, 0, length).view(1, 1, length, half, 2)
            return table

    def row_mask(self, batch: int, length: int) -> Tensor | None:
        if not self.padded:
            return None
        square = (batch, length, length)
        allowed = empty(square, float32)
        times_padding = empty(square, float32)
        del allowed
        mask: Tensor = empty(square, bool_).view(batch, 1, length, length)
        del times_padding
        return mask

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        if self.tokens_first:
            embedded = embedded.transpose(0, 1).contiguous()
        mask = self.row_mask(batch, length)
        table = self.table(batch, length)
        x = embedded
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, table, mask)
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(B, S, V), and rounded again behind the loss."""
        logits = super().logits(x)
        return logits.transpose(0, 1).contiguous() if self.tokens_first else logits

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.loss != "full" or self.smooths:
            return super().cross_entropy(x, labels)
        logits = self.logits(x)
        dtype = logits.dtype
        logits = to(logits, float32)
        loss, shifted = losses.shifted(logits, labels)
        logits = to(logits, x.dtype)
        del shifted
        return to(loss, dtype)


class TokensFirstModel(GlmModel):
    """ChatGLM2 and ChatGLM3."""

    reentrant_only = True
    tokens_first = True
