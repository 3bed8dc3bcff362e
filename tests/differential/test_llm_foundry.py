"""MPT as llm-foundry trains it: the static step against a torch model that computes as that does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memlint.architectures.llm_foundry import decoder
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of
from tests.differential.training import compare, in_meta, in_torch

CONFIG: dict[str, Any] = {
    "d_model": 128, "n_heads": 8, "n_layers": 3, "vocab_size": 1000, "max_seq_len": 64,
    "expansion_ratio": 4, "norm_type": "low_precision_layernorm", "no_bias": True, "learned_pos_emb": True,
    "attn_config": {"attn_type": "multihead_attention", "alibi": True}, "ffn_config": {"ffn_type": "mptmlp"},
}  # fmt: skip


class LowNorm(nn.LayerNorm):
    lowers = True

    def forward(self, x: Tensor) -> Tensor:
        if not (self.lowers and torch.is_autocast_enabled("cpu")):
            return super().forward(x)
        kind = torch.get_autocast_dtype("cpu")
        low = x.to(kind)
        weight = self.weight.to(kind)
        bias = None if self.bias is None else self.bias.to(kind)
        with torch.autocast("cpu", enabled=False):
            return F.layer_norm(low, self.normalized_shape, weight, bias, self.eps)


class Gather(torch.autograd.Function):
    """Rows by their numbers, of which none is left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]).clone().view(x.shape) if x.is_contiguous() else x.contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return torch.zeros(g.shape, dtype=g.dtype)


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any], flash: bool) -> None:
        super().__init__()
        width, options = config["d_model"], config["attn_config"]
        self.head, self.flash = width // config["n_heads"], flash
        keys = options.get("kv_n_heads") or config["n_heads"]
        self.groups, self.clip = config["n_heads"] // keys, options.get("clip_qkv")
        self.sizes = [width, keys * self.head, keys * self.head]
        self.joined = nn.Linear(width, sum(self.sizes), bias=not config["no_bias"])
        self.out = nn.Linear(width, width, bias=not config["no_bias"])
        self.each, self.norms = bool(options.get("qk_gn")), None
        if self.each or options.get("qk_ln"):
            kind = LowNorm if config["norm_type"].startswith("low") else nn.LayerNorm
            sizes = (self.head, self.head) if self.each else self.sizes[:2]
            self.norms = nn.ModuleList(kind(size, bias=not config["no_bias"]) for size in sizes)
        self.rotates = bool(options.get("rope"))

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        shape = x.shape
        if self.each:
            x = x.view(*shape[:2], -1, self.head)
        kind = x.dtype
        out: Tensor = norm(x).to(kind).view(shape)
        return out

    def turned(self, q: Tensor, k: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """As transformers turns them, by tables that each layer makes anew."""
        with torch.no_grad():
            places = torch.arange(q.shape[1])[None, :, None].float() @ frequencies[None, None, :]
            table = torch.cat((places, places), dim=-1)
            cosine, sine = table.cos().to(q.dtype), table.sin().to(q.dtype)
        cosine, sine = cosine.unsqueeze(2), sine.unsqueeze(2)

        def half(x: Tensor) -> Tensor:
            left, right = x.chunk(2, dim=-1)
            return torch.cat((-right, left), dim=-1)

        shape, keys = q.shape, k.shape
        q, k = q.view(*shape[:2], -1, self.head), k.view(*keys[:2], -1, self.head)
        q = (q * cosine) + (half(q) * sine)
        k = (k * cosine) + (half(k) * sine)
        return q.view(shape), k.view(keys)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head).transpose(1, 2)

    def forward(self, x: Tensor, biases: Any) -> Tensor:
        joined = self.joined(x)
        if self.clip:
            joined = joined.clamp(min=-self.clip, max=self.clip)
        q, k, v = joined.split(self.sizes, dim=2)
        if self.norms is not None:
            q = self.normed(self.norms[0], q)
            k = self.normed(self.norms[1], k)
        if self.rotates:
            q, k = self.turned(q, k, biases)
            biases = None
        out: Tensor = self.out(self.fused(q, k, v) if self.flash else self.written_out(q, k, v, biases))
        return out

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys, values = (self.heads(Gather.apply(x)) for x in (q, k, v))
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=self.groups > 1)
        gathered: Tensor = Gather.apply(out.transpose(1, 2).reshape(q.shape))
        return gathered

    def written_out(self, q: Tensor, k: Tensor, v: Tensor, biases: Tensor | None) -> Tensor:
        q, k, v = self.heads(q), self.heads(k).transpose(2, 3), self.heads(v)
        weights = q.matmul(k) * 0.25
        if biases is not None:
            weights = weights + biases
        size = q.shape[2]
        hidden = weights.new_ones(size, size, dtype=torch.float32)
        hidden = hidden.tril()
        hidden = hidden.to(torch.bool)
        hidden = ~hidden
        weights = weights.masked_fill(hidden.view(1, 1, size, size), -1e9)
        weights = torch.softmax(weights, dim=-1)
        out = weights.to(v.dtype).matmul(v)
        return out.transpose(1, 2).reshape(*out.shape[:1], size, -1)


class Perceptron(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, bias = config["d_model"], not config["no_bias"]
        inner = config["ffn_config"].get("ffn_hidden_size") or width * config["expansion_ratio"]
        gated = config["ffn_config"]["ffn_type"] == "mptglu"
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.up, self.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        made = F.gelu(self.up(x)) if self.gate is None else F.gelu(self.gate(x)) * self.up(x)
        out: Tensor = self.down(made)
        return out


class Block(nn.Module):
    def __init__(self, config: dict[str, Any], flash: bool, norm: type[nn.LayerNorm]) -> None:
        super().__init__()
        width, bias = config["d_model"], not config["no_bias"]
        self.first, self.second = norm(width, bias=bias), norm(width, bias=bias)
        self.attention, self.perceptron = Attention(config, flash), Perceptron(config)
        self.dropout = nn.Dropout(config.get("resid_pdrop", 0.0))

    def forward(self, x: Tensor, biases: Tensor | None) -> Tensor:
        a = self.first(x)
        b = self.attention(a, biases)
        x = x + self.dropout(b)
        m = self.second(x)
        n = self.perceptron(m)
        return x + self.dropout(n)


class Model(nn.Module):
    def __init__(self, config: dict[str, Any], setting: Setting) -> None:
        super().__init__()
        norm = LowNorm if config["norm_type"].startswith("low") else nn.LayerNorm
        width, bias = config["d_model"], not config["no_bias"]
        self.table = nn.Embedding(config["vocab_size"], width)
        self.alibi, self.every = config["attn_config"]["alibi"], setting.every
        rotates = bool(config["attn_config"].get("rope"))
        if rotates:
            self.register_buffer("frequencies", torch.ones(width // config["n_heads"] // 2, dtype=torch.float32))
            self.register_buffer("original", torch.ones(width // config["n_heads"] // 2, dtype=torch.float32))
        self.rotates = rotates
        self.places = None if self.alibi or rotates else nn.Embedding(config["max_seq_len"], width)
        flash = setting.attention == "flash"
        self.heads = 0 if flash or not self.alibi else config["n_heads"]
        self.blocks = nn.ModuleList(Block(config, flash, norm) for _ in range(config["n_layers"]))
        self.norm = norm(width, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.places is not None:
            x = x + self.places(torch.zeros_like(tokens))
        biases = x.new_zeros(1, self.heads, 1, x.shape[1]) if self.heads else None
        if self.rotates:
            biases = self.frequencies
        for block in self.blocks:
            if self.every:
                x = checkpoint(block, x, biases, use_reentrant=False)
            else:
                x = block(x, biases)
        return F.linear(self.norm(x), self.table.weight)


def reference(config: dict[str, Any], setting: Setting) -> Any:
    def build_model(_: Any) -> Model:
        saved = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, setting.dtype))
        try:
            return Model(config, setting)
        finally:
            torch.set_default_dtype(saved)

    def make_batch(_: Any) -> list[Tensor]:
        return [torch.zeros((setting.rows, setting.length), dtype=torch.int64) for _ in range(3)]

    def training_loss(model: Model, batch: list[Tensor]) -> Tensor:
        logits = model(batch[0])
        targets = torch.roll(batch[2], shifts=-1)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


AUTOCAST = Setting(autocast="bfloat16", attention="flash")
# What differs from CONFIG, and how it is trained.
CASES: dict[str, tuple[dict[str, Any], Setting]] = {
    "with the fused kernel under autocast": ({}, AUTOCAST),
    "with scores written out under autocast": ({}, AUTOCAST._replace(attention="eager")),
    "in bfloat16 with checkpointing": ({}, Setting(dtype="bfloat16", attention="flash", every=1)),
    "under autocast with checkpointing": ({}, AUTOCAST._replace(every=1)),
    "with norms in fp32, biases and learned positions": (
        {"norm_type": "layernorm", "no_bias": False, "attn_config": {"alibi": False}}, AUTOCAST
    ),
    "with fewer keys, bounds, a gate and dropout": (
        {
            "attn_config": {"alibi": True, "kv_n_heads": 2, "clip_qkv": 6.0},
            "ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 200},
            "resid_pdrop": 0.1,
        },
        AUTOCAST,
    ),
    "with norms of whole queries and keys": ({"attn_config": {"alibi": True, "qk_ln": True}}, AUTOCAST),
    "with norms of each head in fp32": (
        {"norm_type": "layernorm", "attn_config": {"alibi": True, "qk_gn": True, "kv_n_heads": 2}}, AUTOCAST
    ),
    "with transformers' rotations": (
        {"attn_config": {"alibi": False, "rope": True, "rope_impl": "hf", "kv_n_heads": 2}}, AUTOCAST
    ),
    "with rotations in bfloat16, recomputed": (
        {"attn_config": {"alibi": False, "rope": True, "rope_impl": "hf"}},
        Setting(dtype="bfloat16", attention="flash", every=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "setting"), CASES.values(), ids=CASES)
def test_mpt_takes_the_memory_that_its_own_code_takes(changes: dict[str, Any], setting: Setting) -> None:
    config = {**CONFIG, **changes}
    ours = in_meta(spec_of({**setting.facts({}), "decoder": decoder(config), "implementation": "llm_foundry"}))
    truth = in_torch(reference(config, setting), {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{changes} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
