"""Baichuan and Baichuan 2, of 7B (rotations) and of 13B (biases by distance): one product for queries, keys and values.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in ``modeling_baichuan.py``: of
Baichuan-7B (github.com/baichuan-inc/Baichuan-7B at 6f3ef46), of Baichuan-13B (github.com/Mrgengli/baichuan_python at
bac52bf), of Baichuan2-13B (github.com/jrd77/Baichuan2-13B-Chat at d022d72). Of Baichuan2-7B, which has Baichuan-7B's
attention and the other's head, the rotation is as XTuner has it (github.com/InternLM/xtuner at b934f46,
``xtuner/model/modules/dispatch/baichuan.py``). xformers counts as installed, as their requirements ask for.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64, state
from memlint.models.language.decoder import Layer
from memlint.models.language.parts import GatedPerceptron, rotate, rotate_half
from memlint.models.language.remote import RemoteModel, SquareOfCopy


class PackedAttention(Module):
    def __init__(self, config: Decoder, kind: str) -> None:
        self.heads, self.head_dim, self.eager = config.heads, config.head_dim, not config.normed_head
        self.W_pack = Linear(config.width, 3 * config.width, bias=False)
        self.o_proj = Linear(config.width, config.width, bias=False)

    def by_head(self, x: Tensor) -> list[Tensor]:
        """Three times (B, S, h, d), each one third of a tensor whose gradient is as large as all three."""
        parts = self.W_pack(x).view(*x.shape[:2], 3, -1)
        return [parts[..., number, :].view(*x.shape[:2], self.heads, self.head_dim) for number in range(3)]


class RotatedAttention(PackedAttention):
    """xformers' kernel under the triangle. Tables of all places lie in every layer; ``wide``: in fp32, and so is what
    they rotate."""

    def __init__(self, config: Decoder, kind: str) -> None:
        super().__init__(config, kind)
        self.wide = config.wide_tables
        self.inv_freq = buffer(self.head_dim // 2)
        self.cos_cached = buffer(config.context, self.head_dim)
        self.sin_cached = buffer(config.context, self.head_dim)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.by_head(x)
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        with no_grad():
            dtype = float32 if self.wide else value.dtype
            shape = (length, self.head_dim)
            tables = (empty(shape, dtype), empty(shape, dtype)) if dtype is not float32 else ()  # rounded
            cosine, sine = empty((1, *shape), dtype), empty((1, *shape), dtype)  # of the places
        query, key = (self.rotated if self.wide else rotate)(query, key, (cosine, sine))
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        heads = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        out = F.scaled_dot_product_attention(*heads, backend="efficient", causal=True).transpose(1, 2)
        out = out.reshape(batch, length, width)
        attended: Tensor = self.o_proj(out)
        del tables
        return attended

    @staticmethod
    def rotated(query: Tensor, key: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cosine, sine = tables[0].unsqueeze(1), tables[1].unsqueeze(1)
        query_rotated = (to(query, float32) * cosine) + (rotate_half(to(query, float32)) * sine)
        key_rotated = (to(key, float32) * cosine) + (rotate_half(to(key, float32)) * sine)
        return to(query_rotated, query.dtype), to(key_rotated, key.dtype)


class BiasedAttention(PackedAttention):
    """SDPA under a mask for every head (Baichuan 2), or probabilities in the dtype that softmax gives them."""

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (part.transpose(1, 2) for part in self.by_head(x))
        if self.eager:
            weights = F.matmul(query, key.transpose(2, 3)) / 1.0
            weights = weights + mask
            weights = F.minimum(weights, empty((), weights.dtype))  # the larger of it and the least number there is
            weights = F.softmax(weights, -1)
            out = F.matmul(weights, value)
        else:
            out = F.scaled_dot_product_attention(query, key, value, mask)
        out = out.transpose(1, 2).reshape(batch, length, width)
        attended: Tensor = self.o_proj(out)
        return attended


class BaichuanLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = (BiasedAttention if config.alibi else RotatedAttention)(config, kind)
        self.mlp = GatedPerceptron(config.width, config.intermediate, config.activation)
        self.input_layernorm = SquareOfCopy(config.width)
        self.post_attention_layernorm = SquareOfCopy(config.width)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, tables, mask)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        out: Tensor = residual + x
        return out


def divided(x: Tensor) -> Tensor:
    """``F.normalize`` of rows: the weight and its norms are kept, and what bounds them. Autocast has norms in fp32, and
    so what they divide."""
    wide = x.dtype if state.autocast is None else float32
    norms = Tensor((x.shape[0], 1), wide)
    if tracked(x):
        shape, dtype = x.shape, x.dtype

        def of_norm(g: Tensor) -> tuple[Tensor]:
            first = Tensor(shape, wide)
            second = Tensor(shape, wide)
            del first
            return (second if wide is dtype else Tensor(shape, dtype),)

        record(norms, (x,), (x, norms), of_norm)
    out: Tensor = x / F.clamp(norms).expand(*x.shape)
    return out


class NormHead(Module):
    """Its rows are divided by their norms before each product. It is no Linear to whoever quantises or adapts."""

    bias = None

    def __init__(self, config: Decoder) -> None:
        self.weight = parameter(config.vocabulary, config.width)

    def forward(self, x: Tensor) -> Tensor:
        weight = divided(self.weight)
        out: Tensor = F.linear(x, weight)
        return out


class BaichuanModel(RemoteModel):
    """``biases``: of scores by distance, (h, S, S), which the model keeps from step to step."""

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.biases: Tensor | None = None
        if config.normed_head:
            self.lm_head = NormHead(config)  # type: ignore[assignment]

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return BaichuanLayer(config, kind, number)

    def define_norm(self, config: Decoder) -> Module:
        return SquareOfCopy(config.width)

    def rows_mask(self, embedded: Tensor) -> tuple[Tensor, ...]:
        """What the layers add to their scores, and what has a name beside it."""
        batch, length, _ = embedded.shape
        dtype = embedded.dtype
        if self.biases is None and self.config.alibi:
            self.biases = empty((self.config.heads, length, length), dtype)  # made on the host
        if not self.config.alibi:
            triangle = empty((length, length), dtype)
            inverted = empty((batch, 1, length, length), dtype) * 1.0
            del triangle
            return (inverted * 1.0,)
        seen = empty((batch, length, length), bool_)
        both = empty((batch, length, length), bool_)
        del seen
        expanded = empty((batch, 1, length, length), dtype)
        del both
        inverted = expanded * 1.0
        inverted = inverted * 1.0
        return empty((batch, self.config.heads, length, length), dtype), expanded, inverted

    def hidden(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        places = empty((1, embedded.shape[1]), int64)
        masks = self.rows_mask(embedded)
        x = embedded
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, places, masks[0])
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        if not self.config.normed_head or self.loss != "full" or self.smooths:
            return super().cross_entropy(x, labels)
        logits = self.logits(x)
        kept = logits[:, :-1].contiguous()
        flat = kept.view(-1, kept.shape[-1])
        asked = labels[:, 1:].contiguous().view(-1)
        squares = F.max(flat, -1)[0] ** 2
        normaliser = F.mean(squares) * 1.0
        loss: Tensor = F.cross_entropy(flat, asked) + normaliser
        del logits
        return loss
