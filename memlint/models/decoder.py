"""Decoder language models (Gemma, Qwen2, LLaMA), as Hugging Face's eager code computes them.

    tokens -> embedding -> layers of (norm, attention, norm, gated perceptron) -> norm -> logits -> cross entropy

Shapes: B samples, S tokens, W hidden width, h heads of d, V vocabulary. Every sample is as long as the others:
no padding, so no mask beside the causal one, which only eager attention makes. Source: ``transformers`` 5.23,
``models/{gemma,qwen2,llama}/modeling_*.py``, ``integrations/sdpa_attention.py``, ``loss/loss_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, bool_, component, empty, float32, int64
from memlint.named_tuple import NamedTuple

MODEL_TYPES = ("gemma", "llama", "qwen2")


class Hyperparameters(NamedTuple):
    """What of a ``config.json`` decides shapes.

    gemma_norm     scale by ``1 + weight`` before rounding (Gemma), not by ``weight`` after it
    scaled         token embeddings are multiplied by a constant (Gemma)
    qkv_bias       biases on the three input projections (Qwen2)
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gemma_norm: bool = False
    scaled: bool = False


def hyperparameters(config: Mapping[str, Any]) -> Hyperparameters:
    """From the contents of a ``config.json``. Raises KeyError for a model type that is not of this architecture."""
    kind = config["model_type"]
    if kind not in MODEL_TYPES:
        raise KeyError(kind)
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    return Hyperparameters(
        vocabulary=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        tied=bool(config.get("tie_word_embeddings", kind == "gemma")),
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        gemma_norm=kind == "gemma",
        scaled=kind == "gemma",
    )


class GemmaNorm(Module):
    """In fp32, scale included; the result is rounded to the input's dtype."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def normalized(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(F.mean(x**2, -1, keepdim=True) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        output = self.normalized(to(x, float32))
        output = output * (to(self.weight, float32) + 1.0)
        return to(output, x.dtype)


class LlamaNorm(Module):
    """In fp32, rounded to the input's dtype, then scaled."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        variance = F.mean(x**2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        return self.weight * to(x, dtype)


def norm(config: Hyperparameters) -> Module:
    return GemmaNorm(config.width) if config.gemma_norm else LlamaNorm(config.width)


Tables = tuple[Tensor, Tensor]


def rotary_tables(length: int, head_dim: int, dtype: DType) -> Tables:
    """Cosine and sine, (1, S, d) each."""
    with no_grad():
        frequencies = empty((head_dim // 2,), float32)
        angles = empty((1, length, 1), float32) * frequencies
        angles = F.cat((angles, angles), -1)
        return to(F.cos(angles), dtype), to(F.sin(angles), dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return F.cat((F.neg(second), first), -1)


def rotate(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    query_rotated = (query * cosine) + (rotate_half(query) * sine)
    key_rotated = (key * cosine) + (rotate_half(key) * sine)
    return query_rotated, key_rotated


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """(B, kv, S, d) -> (B, kv * times, S, d)."""
    if times == 1:
        return x
    batch, heads, length, head_dim = x.shape
    x = x.unsqueeze(2).expand(batch, heads, times, length, head_dim)
    out: Tensor = x.reshape(batch, heads * times, length, head_dim)
    return out


class Attention(Module):
    """``kind``: eager keeps the probabilities; sdpa and flash take torch's fused kernels."""

    def __init__(self, config: Hyperparameters, kind: str) -> None:
        self.kind, self.head_dim = kind, config.head_dim
        self.groups = config.heads // config.key_value_heads
        queries, keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
        self.q_proj = Linear(config.width, queries, config.qkv_bias)
        self.k_proj = Linear(config.width, keys, config.qkv_bias)
        self.v_proj = Linear(config.width, keys, config.qkv_bias)
        self.o_proj = Linear(queries, config.width, config.output_bias)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        query = self.q_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query, key = rotate(query, key, *tables)
        attend = self.eager if self.kind == "eager" else self.fused
        output = attend(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        out: Tensor = self.o_proj(output)
        return out

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        output = F.scaled_dot_product_attention(query, key, value, causal=True)
        out: Tensor = output.transpose(1, 2).contiguous()
        return out

    def eager(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        keys, values = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        weights = F.matmul(query, keys.transpose(2, 3)) * 1.0
        weights = weights + mask
        weights = to(F.softmax(weights, -1, float32), query.dtype)
        output = F.matmul(weights, values)
        out: Tensor = output.transpose(1, 2).contiguous()
        return out


class Perceptron(Module):
    def __init__(self, config: Hyperparameters) -> None:
        self.gelu = config.gemma_norm
        self.gate_proj = Linear(config.width, config.intermediate, config.mlp_bias)
        self.up_proj = Linear(config.width, config.intermediate, config.mlp_bias)
        self.down_proj = Linear(config.intermediate, config.width, config.mlp_bias)

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.gelu else F.silu(x)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(Module):
    replay_after = 1

    def __init__(self, config: Hyperparameters, kind: str) -> None:
        self.self_attn = Attention(config, kind)
        self.mlp = Perceptron(config)
        self.input_layernorm = norm(config)
        self.post_attention_layernorm = norm(config)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, tables, mask)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + x
        return x


class LanguageModel(Module):
    """Embedded tokens (B, S, W) and labels (B, S) -> mean cross entropy of the next token.

    checkpointing  "full" recomputes every layer (``gradient_checkpointing_enable()``: not reentrant since
                   transformers 5)
    """

    def __init__(self, config: Hyperparameters, kind: str = "sdpa", checkpointing: str = "none") -> None:
        self.config, self.kind, self.checkpointing = config, kind, checkpointing
        self.embed_tokens = Embedding(config.vocabulary, config.width)
        self.layers = [Layer(config, kind) for _ in range(config.layers)]
        self.norm = norm(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, bias=False)

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embed_tokens(tokens)
        return embedded * 1.0 if self.config.scaled else embedded

    def forward(self, embedded: Tensor, labels: Tensor) -> Tensor:
        length = embedded.shape[1]
        mask = causal_mask(embedded) if self.kind == "eager" else None
        tables = rotary_tables(length, self.config.head_dim, embedded.dtype)
        x = embedded
        for layer in self.layers:
            if self.checkpointing == "full":
                x = checkpoint(layer, x, tables, mask)
            else:
                x = layer(x, tables, mask)
        x = self.norm(x)
        with component("logits"):
            head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
            logits = F.linear(x, head)
            return next_token_loss(logits, labels)


def causal_mask(embedded: Tensor) -> Tensor:
    """(B, 1, S, S): a float where there was a bool."""
    batch, length, _ = embedded.shape
    allowed = empty((length, length), bool_)
    allowed = empty((length, length), bool_)
    mask = empty((batch, 1, length, length), embedded.dtype)
    del allowed
    return mask


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits are brought to fp32; their log-probabilities are kept, and two gradients in fp32 live beside them."""
    logits = to(logits, float32)
    labels = F.pad(labels, 0, 1)
    shifted = labels[..., 1:].contiguous()
    batch, length, vocabulary = logits.shape
    logits = logits.view(batch * length, vocabulary)
    return F.cross_entropy(logits, shifted.view(-1))


def token_numbers(batch: int, length: int) -> Tensor:
    return empty((batch, length), int64)
