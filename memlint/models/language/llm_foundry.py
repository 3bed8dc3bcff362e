"""MPT as llm-foundry computes it: norms in 16 bits, attention over tokens without their padding.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there.
Source: llm-foundry 0.15 (``models/layers/{attention,blocks,ffn,norm}.py``, ``models/mpt/modeling_mpt.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Sizes
from memlint.dialects.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, parameter
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language.attention import repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.parts import GatedPerceptron, PlainPerceptron
from memlint.named_tuple import NamedTuple


class Switches(NamedTuple):
    """``norm_type``, ``no_bias``, ``resid_pdrop`` and ``ffn_type`` of a model; attention by a fused kernel or written
    out; the loss of flash-attn."""

    low_precision: bool
    biased: bool
    dropout: float
    gated: bool
    flash: bool
    fused_loss: bool


class LowPrecisionNorm(Module):
    """``LPLayerNorm``: under autocast everything is cast before, and the norm itself is in 16 bits."""

    def __init__(self, width: int, switches: Switches) -> None:
        self.lowers = switches.low_precision
        self.weight = parameter(width)
        self.bias = parameter(width) if switches.biased else None

    def forward(self, x: Tensor) -> Tensor:
        target = state.autocast
        if not self.lowers or target is None:
            return F.layer_norm(x, self.weight, self.bias)
        lowered = to(x, target)
        weight = to(self.weight, target)
        bias = None if self.bias is None else to(self.bias, target)
        state.autocast = None
        try:
            return F.layer_norm(lowered, weight, bias)
        finally:
            state.autocast = target


def gathered(x: Tensor) -> Tensor:
    """``index_first_axis`` and ``pad_input``, of rows without padding: a copy, and one of the gradient."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


class FoundryAttention(Module):
    def __init__(self, config: Decoder, switches: Switches) -> None:
        self.switches, self.head_dim = switches, config.head_dim
        self.groups, self.clipped = config.heads // config.key_value_heads, config.clipped
        self.dropout = config.attention_dropout
        keys = config.key_value_heads * config.head_dim
        self.sizes = (config.heads * config.head_dim, keys, keys)
        self.Wqkv = Linear(config.width, sum(self.sizes), switches.biased)
        self.out_proj = Linear(self.sizes[0], config.width, switches.biased)

    def forward(self, x: Tensor, biases: Tensor | None) -> Tensor:
        joined = self.Wqkv(x)
        if self.clipped:
            joined = F.clamp(joined, 2)
        query, key, value = F.split(joined, self.sizes, 2)
        attend = self.by_kernel if self.switches.flash else self.by_scores
        context = attend(query, key, value, biases)
        out: Tensor = self.out_proj(context)
        return out

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
    def __init__(self, config: Decoder, switches: Switches) -> None:
        self.dropout = switches.dropout
        self.input_layernorm = LowPrecisionNorm(config.width, switches)
        self.self_attn = FoundryAttention(config, switches)
        self.post_attention_layernorm = LowPrecisionNorm(config.width, switches)
        if switches.gated:
            self.mlp: Module = GatedPerceptron(config.width, config.intermediate, "gelu", switches.biased)
        else:
            names = "up_proj down_proj"
            self.mlp = PlainPerceptron(config.width, config.intermediate, "gelu", names, switches.biased, False)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, tables)
        x = x + F.dropout(attended, self.dropout, self.training)
        normed = self.post_attention_layernorm(x)
        fed = self.mlp(normed)
        return x + F.dropout(fed, self.dropout, self.training)


class FoundryModel(LanguageModel):
    def __init__(self, config: Decoder, switches: Switches, **options: Any) -> None:
        self.switches = switches
        super().__init__(config, "flash" if switches.flash else "eager", **options)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return FoundryLayer(config, self.switches)

    def define_norm(self, config: Decoder) -> Module:
        return LowPrecisionNorm(config.width, self.switches)

    def hidden(self, given: Tensor) -> Tensor:
        x = self.embed(given) if given.ndim == 2 else given
        batch, length, _ = x.shape
        if self.embed_positions is not None:
            positions = empty((batch, length), int64)
            x = x + self.embed_positions(positions)
            del positions
        x = F.dropout(x, self.config.embedding_dropout, self.training)
        biases = None
        if self.config.alibi and not self.switches.flash:
            biases = empty((1, self.config.heads, 1, length), x.dtype)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, biases, None)
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        """Labels are rolled by one; the loss is torch's, on the logits as they are, or flash-attn's."""
        logits = self.logits(x)
        targets = empty(labels.shape, int64)
        flat = logits.view(-1, logits.shape[-1])
        if self.switches.fused_loss:
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


def model(spec: TrainingSpec, config: Decoder, options: dict[str, Any]) -> LanguageModel:
    """MPT from a config under the names of its own class. Raises UnknownModel."""
    raw = Sizes(spec["hyperparameters.config"])
    attention, perceptron = _mapping(raw, "attn_config"), _mapping(raw, "ffn_config")
    if attention.get("rope") or attention.get("qk_ln"):
        raise UnknownModel("MPT with rotary positions, or norms of queries and keys, is not known")
    kind = str(raw.get("norm_type") or "low_precision_layernorm").lower()
    if kind not in ("layernorm", "low_precision_layernorm"):
        raise UnknownModel(f"MPT's norm_type {kind} is not known")
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in llm-foundry's code")
    keys = attention.get("kv_n_heads") or config.heads
    if attention.get("attn_type") == "multiquery_attention":
        keys = 1
    inner = perceptron.get("ffn_hidden_size") or int(config.width * float(raw.get("expansion_ratio") or 4))
    positions = raw.get("learned_pos_emb", True) and not attention.get("alibi")
    config = config._replace(
        key_value_heads=keys,
        intermediate=int(inner),
        alibi=bool(attention.get("alibi")),
        positions=config.context if positions else 0,
        embedding_dropout=raw.get("emb_pdrop") or 0.0,
        tied=bool(raw.get("tie_word_embeddings", True)),
    )
    switches = Switches(
        low_precision=kind.startswith("low_precision"),
        biased=not raw.get("no_bias", False),
        dropout=raw.get("resid_pdrop") or 0.0,
        gated=perceptron.get("ffn_type") == "mptglu",
        flash=spec.get("attention", "flash") != "eager",
        fused_loss="cross_entropy" in (spec.get("fused_kernels") or ()),
    )
    return FoundryModel(config, switches, **options)


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}
