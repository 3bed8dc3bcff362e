"""A video language model: frame features, a linear projector, and a decoder that reads them before the text.

A compact PyTorch model of the training loop that ``config.yaml`` in this folder configures. The decoder computes what
the Hugging Face implementations of Gemma and Qwen2 compute, operation by operation (norms in fp32 with their
copies, rotary embeddings, grouped attention heads, gated perceptron, tied output head, loss on logits brought to
fp32), so that its memory is theirs.

    config = yaml.safe_load(open("config.yaml"))
    model = build_model(config)
    loss = training_loss(model, make_batch(config, device="cuda"))
    loss.backward()

Shapes: B videos per micro-batch, S = max_frames * tokens_per_frame + max_text_length tokens, all of which go through
the output head. Every sample of a batch is taken to be as long as the config allows, so there is no padding, and
attention needs no mask beside the causal one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Config = dict[str, Any]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
IGNORED_LABEL = -100  # positions without a target: the frames
NORM_EPSILON = 1e-6


class Decoder(NamedTuple):
    """Hyper-parameters, as the models' ``config.json`` have them."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    family: str  # gemma or qwen2


DECODERS = {
    "google/gemma-2b": Decoder(256_000, 2048, 18, 8, 1, 256, 16384, "gemma"),
    "Qwen/Qwen2-1.5B": Decoder(151_936, 1536, 28, 12, 2, 128, 8960, "qwen2"),
}


class GemmaNorm(nn.Module):
    """Root-mean-square norm in fp32; the result is rounded once, after the scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def normalized(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        output = self.normalized(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class QwenNorm(nn.Module):
    """Root-mean-square norm in fp32; the result is rounded before the scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + NORM_EPSILON)
        return self.weight * x.to(dtype)


class RotaryTables(nn.Module):
    """The model's frequencies, and its copy of the original ones; both in fp32 whatever the weights are."""

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    @torch.no_grad()
    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(1, S) positions -> cosine and sine of every frequency: two (1, S, head_dim)."""
        angles = positions.unsqueeze(-1).float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos() * 1.0, angles.sin() * 1.0  # some models scale them
        return cosine.to(dtype), sine.to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotate(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    query_rotated = (query * cosine) + (rotate_half(query) * sine)
    key_rotated = (key * cosine) + (rotate_half(key) * sine)
    return query_rotated, key_rotated


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """(B, kv heads, S, d) -> (B, heads, S, d): every key-value head serves ``times`` query heads."""
    if times == 1:
        return x
    batch, heads, length, head_dim = x.shape
    return x[:, :, None].expand(batch, heads, times, length, head_dim).reshape(batch, -1, length, head_dim)


class Attention(nn.Module):
    """Causal self-attention with grouped heads. ``kind``: ``sdpa``, ``eager`` or ``flash_attention_2``."""

    def __init__(self, config: Decoder, kind: str) -> None:
        super().__init__()
        self.kind, self.head_dim, self.groups = kind, config.head_dim, config.heads // config.key_value_heads
        bias = config.family == "qwen2"
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.width, config.key_value_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.width, config.key_value_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        query = self.q_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query, key = rotate(query, key, *tables)
        attend = self.eager if self.kind == "eager" else self.fused
        output = attend(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        return self.o_proj(output)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        output = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.head_dim**-0.5, enable_gqa=self.groups > 1
        )
        return output.transpose(1, 2).contiguous()

    def eager(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        keys, values = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        weights = torch.matmul(query, keys.transpose(2, 3)) * self.head_dim**-0.5
        weights = weights + mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
        output = torch.matmul(weights, values)
        return output.transpose(1, 2).contiguous()


class Perceptron(nn.Module):
    """Gated: ``down(activation(gate(x)) * up(x))``; GELU in Gemma, SiLU in Qwen2."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.gelu = config.family == "gemma"
        self.gate_proj = nn.Linear(config.width, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.width, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.width, bias=False)

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh") if self.gelu else F.silu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Decoder, kind: str) -> None:
        super().__init__()
        norm = GemmaNorm if config.family == "gemma" else QwenNorm
        self.self_attn = Attention(config, kind)
        self.mlp = Perceptron(config)
        self.input_layernorm = norm(config.width)
        self.post_attention_layernorm = norm(config.width)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, tables, mask)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + x
        return x


class LanguageModel(nn.Module):
    """Embedded tokens (B, S, width) and labels (B, S) -> mean cross entropy of the next token."""

    def __init__(self, config: Decoder, kind: str, checkpointing: bool) -> None:
        super().__init__()
        self.config, self.kind, self.checkpointing = config, kind, checkpointing
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, kind) for _ in range(config.layers))
        self.norm = (GemmaNorm if config.family == "gemma" else QwenNorm)(config.width)
        self.rotary_emb = RotaryTables(config.head_dim)
        if config.family == "gemma":
            self.register_buffer("embed_scale", torch.tensor(config.width**0.5, dtype=torch.float32), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.embed_tokens(tokens)
        if self.config.family == "gemma":
            embedded = embedded * self.embed_scale.to(embedded.dtype)
        return embedded

    def forward(self, embedded: Tensor, labels: Tensor) -> Tensor:
        length = embedded.shape[1]
        mask = causal_mask(embedded) if self.kind == "eager" else None
        positions = torch.arange(length, device=embedded.device).unsqueeze(0)
        tables = self.rotary_emb(positions, embedded.dtype)
        x = embedded
        for layer in self.layers:
            if self.checkpointing and self.training:
                x = checkpoint(layer, x, tables, mask, use_reentrant=False)
            else:
                x = layer(x, tables, mask)
        x = self.norm(x)
        logits = F.linear(x, self.embed_tokens.weight)  # the head shares the embedding's weight
        return next_token_loss(logits, labels)


def causal_mask(embedded: Tensor) -> Tensor:
    """(B, 1, S, S): zero where a token may look, the lowest number elsewhere. Only eager attention needs it."""
    batch, length, _ = embedded.shape
    allowed = torch.ones(length, length, dtype=torch.bool, device=embedded.device).tril()
    allowed = allowed.expand(batch, 1, length, length)
    lowest = torch.finfo(embedded.dtype).min
    return torch.where(allowed, torch.tensor(0.0, dtype=embedded.dtype, device=embedded.device), lowest)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=IGNORED_LABEL)
    shifted = labels[..., 1:].contiguous()
    logits = logits.view(-1, logits.shape[-1])
    return F.cross_entropy(logits, shifted.view(-1), ignore_index=IGNORED_LABEL)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class VideoLanguageModel(nn.Module):
    """Frame features (B, frames * tokens_per_frame, feature_dim) and text (B, text) -> loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        vision, llm, training = config["model"]["vision"], config["model"]["llm"], config["training"]
        if not vision.get("precomputed", True):
            raise ValueError("model.vision.precomputed: false needs a vision encoder, which this example leaves out")
        decoder = DECODERS[llm["name"]]
        dtype = DTYPES[llm.get("dtype", "float32")]
        kind = llm.get("attn_implementation") or "sdpa"
        with default_dtype(dtype):  # as from_pretrained(torch_dtype=...) makes the weights
            self.projector = nn.Linear(vision["feature_dim"], decoder.width)
            self.llm = LanguageModel(decoder, kind, bool(llm.get("use_gradient_checkpointing")))
        if llm.get("freeze"):
            self.llm.requires_grad_(False)
        half = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
        self.autocast_dtype = half if training.get("use_mixed_precision") else None

    def forward(self, features: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
        frames = self.projector(features.to(self.projector.weight.dtype))
        embedded = torch.cat([frames, self.llm.embed(tokens)], dim=1)
        return self.llm(embedded, labels)


def token_counts(config: Config) -> tuple[int, int]:
    """Frame tokens and text tokens of the longest sample.

    ``max_seq_length`` cuts the frames. Without ``max_frames`` it alone bounds them.
    """
    data, limit = config["data"], config["model"]["llm"].get("max_seq_length")
    text = data["max_text_length"]
    if data.get("max_frames") is None:
        if limit is None:
            raise ValueError("neither data.max_frames nor model.llm.max_seq_length bounds the sequence")
        return limit - text, text
    frames = data["max_frames"] * data["tokens_per_frame"]
    return (frames, text) if limit is None else (min(frames, limit - text), text)


def build_model(config: Config) -> VideoLanguageModel:
    """The model that a training config describes, in training mode, on the default device."""
    return VideoLanguageModel(config)


def make_batch(config: Config, device: str | torch.device = "cpu") -> dict[str, Any]:
    """One micro-batch of the longest samples: features, token numbers, labels (none on frames)."""
    videos = config["training"]["batch_size"]
    frames, text = token_counts(config)
    vocabulary = DECODERS[config["model"]["llm"]["name"]].vocabulary
    tokens = torch.randint(0, vocabulary, (videos, text), device=device)
    ignored = torch.full((videos, frames), IGNORED_LABEL, device=device)
    return {
        "features": torch.randn(videos, frames, config["model"]["vision"]["feature_dim"], device=device),
        "tokens": tokens,
        "labels": torch.cat([ignored, tokens], dim=1),
    }


def training_loss(model: VideoLanguageModel, batch: dict[str, Any]) -> Tensor:
    """Loss of one micro-batch, forward and loss under autocast as ``torch.cuda.amp`` loops have it.

    The logits are not handed out: a loop that keeps the model's output alive until after ``backward`` holds two
    more bytes per logit.
    """
    device = batch["features"].device.type
    enabled = model.autocast_dtype is not None
    with torch.autocast(device, dtype=model.autocast_dtype, enabled=enabled):
        return model(batch["features"], batch["tokens"], batch["labels"])
