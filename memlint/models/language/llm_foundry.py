"""MPT as llm-foundry computes it: norms in 16 bits, attention over tokens without their padding.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there.
Source: llm-foundry 0.15 and 0.22 (``models/layers/{attention,blocks,ffn,norm}.py``, ``models/mpt/modeling_mpt.py``);
flash-attn 2 (``layers/rotary.py``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models import UnknownModel
from memlint.models.language.attention import repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.library_norms import (
    LowPrecisionLayerNorm,
    LowPrecisionRootMeanSquare,
    TorchNorm,
    release_of_norm,
)
from memlint.models.language.parts import RotaryTables, norm, perceptron, rotate_half
from memlint.named_tuple import NamedTuple


class Ways(NamedTuple):
    """How a run computes the same model: attention by a fused kernel or written out, the loss of flash-attn, and the
    release of torch whose root mean square it is."""

    flash: bool
    fused_loss: bool
    release: str


def foundry_norm(config: Decoder, width: int, ways: Ways) -> Module:
    if config.norm == "rms":
        return (LowPrecisionRootMeanSquare if config.lowered_norm else TorchNorm)(width, ways.release)
    return LowPrecisionLayerNorm(width, config.norm == "layer") if config.lowered_norm else norm(config.norm, width)


def gathered(x: Tensor) -> Tensor:
    """``index_first_axis`` and ``pad_input``, of rows without padding: a copy, and one of the gradient."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


class FoundryAttention(Module):
    def __init__(self, config: Decoder, ways: Ways) -> None:
        self.flash, self.head_dim = ways.flash, config.head_dim
        self.groups, self.clipped = config.heads // config.key_value_heads, config.clipped
        self.dropout, self.rotary = config.attention_dropout, config.rotary
        keys = config.key_value_heads * config.head_dim
        self.sizes = (config.heads * config.head_dim, keys, keys)
        self.Wqkv = Linear(config.width, sum(self.sizes), config.qkv_bias)
        self.by_head = config.query_norm == "head"
        self.normed = config.query_norm != "none"
        if self.normed:
            widths = (config.head_dim, config.head_dim) if self.by_head else self.sizes
            self.q_ln, self.k_ln = foundry_norm(config, widths[0], ways), foundry_norm(config, widths[1], ways)
        self.out_proj = Linear(self.sizes[0], config.width, config.output_bias)

    def forward(self, x: Tensor, given: Any) -> Tensor:
        """``given``: biases by distance (1, h, 1, S), or what makes tables of rotations, or nothing."""
        joined = self.Wqkv(x)
        if self.clipped:
            joined = F.clamp(joined, 2)
        query, key, value = F.split(joined, self.sizes, 2)
        if self.normed:
            query = self.norm_of(self.q_ln, query)
            key = self.norm_of(self.k_ln, key)
        if isinstance(given, RotaryTables):
            query, key, value = self.rotated(query, key, value, given)
        attend = self.by_kernel if self.flash else self.by_scores
        context = attend(query, key, value, given if isinstance(given, Tensor) else None)
        out: Tensor = self.out_proj(context)
        return out

    def norm_of(self, norm: Module, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = x.view(batch, length, -1, self.head_dim) if self.by_head else x
        out: Tensor = to(norm(heads), x.dtype).view(batch, length, width)
        return out

    def rotated(self, query: Tensor, key: Tensor, value: Tensor, rotary: RotaryTables) -> tuple[Tensor, ...]:
        """(B, S, h d) each. flash-attn's kernel writes a new query, and over the key in a copy of both others."""
        batch, length, _ = query.shape
        shape, flat = (batch, length, -1, self.head_dim), (batch, length, -1)
        query, key = query.view(*shape), key.view(*shape)
        if self.rotary == "kernel":
            both = F.stack((key, value.view(*shape)), 2)
            query = gathered(query)
            key, value = F.unbind(both, 2)
            return query.view(*flat), key.reshape(*flat), value.reshape(*flat)
        cosine, sine = rotary(empty((1, length), int64), value.dtype)
        cosine, sine = cosine.unsqueeze(2), sine.unsqueeze(2)
        query = (query * cosine) + (rotate_half(query) * sine)
        key = (key * cosine) + (rotate_half(key) * sine)
        return query.view(*flat), key.view(*flat), value

    def by_heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        out: Tensor = x.view(batch, length, -1, self.head_dim).transpose(1, 2)
        return out

    def by_kernel(self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor | None) -> Tensor:
        """Biases by distance are the kernel's own."""
        batch, length, _ = query.shape
        queries = self.by_heads(gathered(query))
        keys = self.by_heads(gathered(key))
        values = self.by_heads(gathered(value))
        output = F.scaled_dot_product_attention(queries, keys, values, backend="flash")
        return gathered(output.transpose(1, 2).reshape(batch, length, -1))

    def by_scores(self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor | None) -> Tensor:
        batch, length, _ = query.shape
        query, key, value = self.by_heads(query), self.by_heads(key), self.by_heads(value)
        key, value = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        weights = F.matmul(query, key.transpose(2, 3)) * 1.0
        if biases is not None:
            weights = weights + biases
        triangle = empty((length, length), float32)
        triangle = empty((length, length), float32)
        triangle = empty((length, length), bool_)
        triangle = empty((length, length), bool_)
        weights = F.masked_fill(weights, triangle)
        weights = F.softmax(weights, -1)
        weights = F.dropout(weights, self.dropout, self.training)
        output = F.matmul(to(weights, value.dtype), value)
        out: Tensor = output.transpose(1, 2).reshape(batch, length, -1)
        return out


class FoundryLayer(Layer):
    def __init__(self, config: Decoder, ways: Ways) -> None:
        self.dropout = config.residual_dropout
        self.input_layernorm = foundry_norm(config, config.width, ways)
        self.self_attn = FoundryAttention(config, ways)
        self.post_attention_layernorm = foundry_norm(config, config.width, ways)
        self.mlp = perceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, tables)
        x = x + F.dropout(attended, self.dropout, self.training)
        normed = self.post_attention_layernorm(x)
        fed = self.mlp(normed)
        return x + F.dropout(fed, self.dropout, self.training)


class FoundryModel(LanguageModel):
    def __init__(self, config: Decoder, ways: Ways, **options: Any) -> None:
        self.ways, self.described = ways, config
        super().__init__(config._replace(rotary="none"), "flash" if ways.flash else "eager", **options)
        self.rotary_emb = RotaryTables(config.rotary_dim) if config.rotary != "none" else None

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return FoundryLayer(self.described, self.ways)

    def define_norm(self, config: Decoder) -> Module:
        return foundry_norm(config, config.width, self.ways)

    def hidden(self, given: Tensor) -> Tensor:
        x = self.embed(given) if given.ndim == 2 else given
        batch, length, _ = x.shape
        if self.embed_positions is not None:
            positions = empty((batch, length), int64)
            x = x + self.embed_positions(positions)
            del positions
        x = F.dropout(x, self.config.embedding_dropout, self.training)
        shared: Any = self.rotary_emb
        if self.config.alibi and not self.ways.flash:
            shared = empty((1, self.config.heads, 1, length), x.dtype)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, shared, None)
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        """Labels are rolled by one; the loss is torch's, on the logits as they are, or flash-attn's."""
        logits = self.logits(x)
        targets = empty(labels.shape, int64)
        flat = logits.view(-1, logits.shape[-1])
        if self.ways.fused_loss:
            return fused_cross_entropy(flat) / 1.0
        return F.cross_entropy(flat, targets.view(-1))


def fused_cross_entropy(logits: Tensor) -> Tensor:
    """``flash_attn.ops.triton.cross_entropy``: keeps logits and a number per token; the gradient has their dtype."""
    tokens = logits.shape[0]
    losses, sums = empty((tokens,), float32), empty((tokens,), float32)
    if tracked(logits):
        shape, dtype = logits.shape, logits.dtype
        record(losses, (logits,), (logits, sums), lambda g: (Tensor(shape, dtype),))
    return F.sum(losses)


def applies(config: Decoder) -> bool:
    """Whether this decoder is one that llm-foundry's own code computes."""
    return config.projection == "joined" and not config.perceptron.startswith("gated_")


def model(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel | None:
    """The decoder of llm-foundry's own code; None for others. Raises UnknownModel for a loss that it has not."""
    if not applies(config):
        return None
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in llm-foundry's code")
    ways = Ways(
        flash=spec.get("attention", "flash") != "eager",
        fused_loss="cross_entropy" in (spec.get("fused_kernels") or ()),
        release=release_of_norm(spec),
    )
    return FoundryModel(config, ways, **options)
