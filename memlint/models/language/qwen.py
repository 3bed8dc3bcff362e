"""Qwen, the first of its name: one product for queries, keys and values, rotations in fp32.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in the code beside the weights:
Qwen/Qwen-7B, ``modeling_qwen.py`` (github.com/zhangningboo/Qwen-7B at ffe04dd holds it).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.language.decoder import Layer
from memlint.models.language.llm_foundry import gathered
from memlint.models.language.parts import RootMeanSquare, rotate_half
from memlint.models.language.remote import RemoteModel

Tables = tuple[Tensor, Tensor]

PLACES = 32767  # whose logarithms each layer keeps, in the weights' dtype


def rotated(x: Tensor, tables: Tables, kernel: bool) -> Tensor:
    """(B, S, h, d). flash-attn's kernel writes what it rotates in one go."""
    cosine, sine = tables
    wide = to(x, float32)
    if kernel:
        return to(gathered(wide), x.dtype)
    part, rest = wide, wide[..., :0]
    part = (part * cosine) + (rotate_half(part) * sine)
    return to(F.cat((part, rest), -1), x.dtype)


class QwenAttention(Module):
    """``kind``: "flash" where flash-attn is installed, else SDPA with a mask that each layer makes."""

    def __init__(self, config: Decoder, kind: str) -> None:
        self.flash = kind == "flash"
        self.heads, self.head_dim, self.width = config.heads, config.head_dim, config.width
        made = config.heads * config.head_dim
        self.c_attn = Linear(config.width, 3 * made)
        self.c_proj = Linear(config.width, made, config.output_bias)
        self.masked_bias = buffer(dtype=self.c_proj.weight.dtype)
        self.logn_tensor = buffer(PLACES, dtype=self.c_proj.weight.dtype)  # read in evaluation alone

    def forward(self, x: Tensor, tables: Tables, mask: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.heads, self.head_dim)
        joined = self.c_attn(x)
        query, key, value = F.split(joined, self.width, 2)
        query, key, value = query.view(*shape), key.view(*shape), value.view(*shape)
        query = rotated(query, tables, self.flash)
        key = rotated(key, tables, self.flash)
        attend = self.by_kernel if self.flash else self.by_mask
        attended = attend(query, key, value, mask)
        context = attended.contiguous().view(*shape[:2], -1)
        out: Tensor = self.c_proj(context)
        return out

    @staticmethod
    def by_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        batch, length = query.shape[:2]
        triangle = empty((length, length), bool_)
        triangle = empty((length, length), bool_)
        query, key, value = query.permute(0, 2, 1, 3), key.permute(0, 2, 1, 3), value.permute(0, 2, 1, 3)
        turned = empty((length, length), bool_)
        mask = empty((batch, 1, length, length), mask.dtype)
        del turned
        out: Tensor = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
        del triangle
        return out

    @staticmethod
    def by_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Of several rows, tokens are picked that are no padding, and put back behind it."""
        several = query.shape[0] > 1
        if several:
            key = gathered(key)
            query = gathered(query)
            value = gathered(value)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        out: Tensor = F.scaled_dot_product_attention(query, key, value, backend="flash").transpose(1, 2)
        return gathered(out) if several else out


class QwenPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.w1 = Linear(config.width, config.intermediate, config.perceptron_bias)
        self.w2 = Linear(config.width, config.intermediate, config.perceptron_bias)
        self.c_proj = Linear(config.intermediate, config.width, config.perceptron_bias)

    def forward(self, x: Tensor) -> Tensor:
        first = self.w1(x)
        second = self.w2(x)
        inner = first * F.silu(second)
        out: Tensor = self.c_proj(inner)
        return out


class QwenLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = RootMeanSquare(config.width)
        self.self_attn = QwenAttention(config, kind)
        self.post_attention_layernorm = RootMeanSquare(config.width)
        self.mlp = QwenPerceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, tables, mask)
        added = attended + x
        normed = self.post_attention_layernorm(added)
        fed = self.mlp(normed)
        out: Tensor = added + fed
        return out


class QwenModel(RemoteModel):
    """``tables``: cosines and sines of twice the longest row that was met, which the model keeps."""

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.tables: Tables | None = None

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return QwenLayer(config, kind, number)

    def rotations(self, length: int) -> Tables:
        kept = 2 * length
        if self.tables is None or self.tables[0].shape[1] < length:
            with no_grad():
                angles = empty((kept, self.config.rotary_dim // 2), float32)
                both = F.cat((angles, angles), -1)
                self.tables = (F.cos(both).view(1, kept, 1, -1), F.sin(both).view(1, kept, 1, -1))
        cosine, sine = self.tables
        return F.narrow(cosine, 1, length), F.narrow(sine, 1, length)

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        places = empty((length,), int64)
        mask = empty((batch, 1, 1, length), self.embed_tokens.weight.dtype) * 1.0
        mask = mask * 1.0
        tables = self.rotations(length)
        x = F.dropout(embedded, self.config.embedding_dropout, self.training)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, mask)
        out: Tensor = self.norm(x)
        del places
        return out
