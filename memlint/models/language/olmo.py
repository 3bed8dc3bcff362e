"""OLMo as its own trainer computes it.

Shapes: B rows, S tokens, W hidden width, h heads of d, V rows of the vocabulary. Temporaries live as they do there.
Source: allenai/OLMo 0.6, ``olmo/model.py`` and ``olmo/train.py`` (``model_forward``, ``cross_entropy_loss``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, component, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language.attention import repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.library_norms import LowPrecisionLayerNorm
from memlint.models.language.llm_foundry import fused_cross_entropy
from memlint.models.language.log_probabilities import logsumexp
from memlint.models.language.parts import norm
from memlint.named_tuple import NamedTuple

AUXILIARY = HYPER + "softmax_auxiliary_loss"


class Ways(NamedTuple):
    """How a run computes the same model: attention and the loss by flash-attn, and a second loss of the logits."""

    flash: bool
    fused_loss: bool
    auxiliary_loss: bool


class LowPlainNorm(Module):
    """A layer norm without parameters, under autocast in its 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        lowered = x if state.autocast is None else to(x, state.autocast)
        with autocast(None):
            return F.layer_norm(lowered)


class AutocastPlainNorm(Module):
    """torch's layer norm without parameters, which autocast widens and does not round again."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x)


def own_norm(config: Decoder, width: int) -> Module:
    if config.norm == "plain":
        return LowPlainNorm() if config.lowered_norm else AutocastPlainNorm()
    return LowPrecisionLayerNorm(width, config.norm == "layer") if config.lowered_norm else norm(config.norm, width)


class Turned(Module):
    """Rotations by tables of every place there may be, which are kept in fp32."""

    def __init__(self, config: Decoder) -> None:
        self.wide = config.wide_tables
        self.sine, self.cosine = (buffer(config.context, config.head_dim, dtype=float32) for _ in range(2))

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """(B, h, S, d) each."""
        wide_query, wide_key = (to(query, float32), to(key, float32)) if self.wide else (query, key)
        length = key.shape[2]
        with autocast(None):
            sine, cosine = to(self.sine[:length], wide_query.dtype), to(self.cosine[:length], wide_query.dtype)
            wide_query = self.turned(wide_query, sine, cosine)
            wide_key = self.turned(wide_key, sine, cosine)
        return to(wide_query, query.dtype), to(wide_key, key.dtype)

    @staticmethod
    def turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cosine + F.cat((F.neg(x[..., half:]), x[..., :half]), -1) * sine


class OlmoLayer(Layer):
    """``OLMoSequentialBlock``."""

    def __init__(self, config: Decoder, ways: Ways) -> None:
        self.flash, self.dropout, self.attention_dropout = ways.flash, config.residual_dropout, config.attention_dropout
        self.head_dim, self.groups = config.head_dim, config.heads // config.key_value_heads
        self.clipped, self.after = config.clipped, config.residual == "post"
        self.gated, self.activation = config.perceptron == "gated_halves", config.activation
        keys = config.key_value_heads * config.head_dim
        self.sizes = (config.width, keys, keys)
        normed = config.query_norm != "none"
        self.k_norm = own_norm(config, keys) if normed else None
        self.q_norm = own_norm(config, config.width) if normed else None
        self.attn_out = Linear(config.width, config.width, config.output_bias)
        self.ff_out = Linear(config.intermediate, config.width, config.perceptron_bias)
        self.att_proj = Linear(config.width, sum(self.sizes), config.qkv_bias)
        self.ff_proj = Linear(config.width, config.intermediate * (1 + self.gated), config.perceptron_bias)
        self.attn_norm, self.ff_norm = own_norm(config, config.width), own_norm(config, config.width)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        entered = x if self.after else self.attn_norm(x)
        joined = self.att_proj(entered)
        if self.clipped:
            joined = F.clamp(joined, 2)
        query, key, value = F.split(joined, self.sizes, 2)
        attended = self.attention(query, key, value, tables)
        if self.after:
            attended = self.attn_norm(attended)
        x = x + F.dropout(attended, self.dropout, self.training)
        stream = x
        if not self.after:
            x = self.ff_norm(x)
        x = self.ff_proj(x)
        x = self.act(x)
        x = self.ff_out(x)
        if self.after:
            x = self.ff_norm(x)
        x = F.dropout(x, self.dropout, self.training)
        return stream + x

    def attention(self, query: Tensor, key: Tensor, value: Tensor, turned: Any) -> Tensor:
        batch, length, width = query.shape
        if self.q_norm is not None and self.k_norm is not None:
            dtype = key.dtype
            query = to(self.q_norm(query), dtype)
            key = to(self.k_norm(key), dtype)
        shape = (batch, length, -1, self.head_dim)
        query, key, value = (one.view(*shape).transpose(1, 2) for one in (query, key, value))
        if turned is not None:
            query, key = turned(query, key)
        if self.flash:
            context = F.scaled_dot_product_attention(query, key, value, backend="flash")
        else:
            keys, values = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
            # The model's class turns torch's memory-efficient kernel off, so scores in fp32 are written out.
            kernel = "flash" if query.dtype.itemsize == 2 else "math"
            dropout = self.attention_dropout if self.training else 0.0
            context = F.scaled_dot_product_attention(query, keys, values, None, kernel, dropout, causal=True)
        context = context.transpose(1, 2).contiguous().view(batch, length, width)
        out: Tensor = self.attn_out(context)
        return out

    def act(self, x: Tensor) -> Tensor:
        if self.gated:
            half = x.shape[-1] // 2
            return F.silu(x[..., half:]) * x[..., :half]
        return F.gelu(x) if self.activation == "gelu" else F.relu(x)


class OlmoModel(LanguageModel):
    def __init__(self, config: Decoder, ways: Ways, **options: Any) -> None:
        self.ways, self.described = ways, config
        super().__init__(config._replace(rotary="none"), "flash" if ways.flash else "sdpa", **options)
        self.turned = Turned(config) if config.rotary != "none" else None  # one of all layers

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return OlmoLayer(self.described, self.ways)

    def define_norm(self, config: Decoder) -> Module:
        return own_norm(config, config.width)

    def hidden(self, given: Tensor) -> Tensor:
        x = self.embed_tokens(given)
        if self.embed_positions is not None:
            positions = Tensor((1, given.shape[1]), int64)
            x = self.embed_positions(positions) + x
            del positions
        x = F.dropout(x, self.config.embedding_dropout, self.training)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, self.turned, None)
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        """The logits have a name until both losses are there, which are of a copy without the last token of a row."""
        logits = self.logits(x)
        rows = logits[:, :-1].contiguous()
        rows = rows.view(-1, rows.shape[-1])
        asked = labels[:, 1:].contiguous().view(-1)
        if self.ways.fused_loss:
            return fused_cross_entropy(rows) / 1.0
        loss = F.cross_entropy(rows, asked)
        if not self.ways.auxiliary_loss:
            return loss
        wide = rows if state.autocast is None else to(rows, float32)
        return loss + F.sum(F.pow(logsumexp(wide), 2.0)) * 1.0

    def evaluate(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with no_grad():
            x = self.hidden(tokens)
            with component("logits"):
                logits = self.logits(x)
                rows = logits[:, :-1].contiguous()
                rows = rows.view(-1, rows.shape[-1])
                return F.cross_entropy(rows, labels[:, 1:].contiguous().view(-1)), logits


def model(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel:
    """Raises UnknownModel for a loss that it has not."""
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in OLMo's code")
    ways = Ways(
        flash=spec.get("attention") == "flash",
        fused_loss="cross_entropy" in (spec.get("fused_kernels") or ()),
        auxiliary_loss=bool(spec.get(AUXILIARY, False)),
    )
    return OlmoModel(config, ways, **options)
