"""OLMo as its own trainer computes it: the static step against a torch model that computes as that does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memlint.architectures.olmo import decoder
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of
from tests.differential.training import compare, in_meta, in_torch

CONFIG: dict[str, Any] = {
    "d_model": 128, "n_heads": 8, "n_layers": 3, "mlp_hidden_size": 512, "vocab_size": 1000, "embedding_size": 1024,
    "max_sequence_length": 64, "rope": True, "include_bias": False, "weight_tying": False, "layer_norm_type": "default",
    "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip


def lowered() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class Norm(nn.Module):
    def __init__(self, config: dict[str, Any], width: int) -> None:
        super().__init__()
        self.kind, self.width = config["layer_norm_type"], (width,)
        scaled = config.get("layer_norm_with_affine", True)
        self.weight = nn.Parameter(torch.ones(width)) if scaled else None
        self.bias = nn.Parameter(torch.zeros(width)) if scaled and config["include_bias"] else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rms":
            assert self.weight is not None
            with torch.autocast("cpu", enabled=False):
                kind = x.dtype
                x = x.float()
                x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
                x = x.to(kind)
            return self.weight * x
        weight, bias, low = self.weight, self.bias, lowered()
        if self.kind == "default" or low is None:
            return F.layer_norm(x, self.width, weight, bias)
        low_x = x.to(low)
        weight, bias = (None if one is None else one.to(low) for one in (weight, bias))
        with torch.autocast("cpu", enabled=False):
            return F.layer_norm(low_x, self.width, weight, bias)


def half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config, width, bias = config, config["d_model"], config["include_bias"]
        self.heads, self.keys = config["n_heads"], config.get("n_kv_heads") or config["n_heads"]
        self.head = width // self.heads
        self.sizes = [width, self.keys * self.head, self.keys * self.head]
        self.gated = config.get("activation_type", "swiglu") == "swiglu"
        inner = config["mlp_hidden_size"]
        self.joined, self.out = nn.Linear(width, sum(self.sizes), bias=bias), nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner // 2 if self.gated else inner, width, bias=bias)
        self.first, self.second = Norm(config, width), Norm(config, width)
        normed = config.get("attention_layer_norm", False)
        self.of_query = Norm(config, width) if normed else None
        self.of_key = Norm(config, self.sizes[1]) if normed else None
        self.dropout = nn.Dropout(config["residual_dropout"])

    def turned(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        wide = x.float() if self.config.get("rope_full_precision", True) else x
        with torch.autocast("cpu", enabled=False):
            sine, cosine = (table[: x.shape[2]].type_as(wide) for table in tables)
            wide = (wide * cosine) + (half_turned(wide) * sine)
        return wide.type_as(x)

    def attention(self, x: Tensor, tables: Any) -> Tensor:
        joined = self.joined(x)
        if "clip_qkv" in self.config:
            joined.clamp_(min=-8.0, max=8.0)
        q, k, v = joined.split(self.sizes, dim=-1)
        if self.of_query is not None and self.of_key is not None:
            kind = k.dtype
            q, k = self.of_query(q).to(kind), self.of_key(k).to(kind)
        q, k, v = (one.view(*one.shape[:2], -1, self.head).transpose(1, 2) for one in (q, k, v))
        if tables is not None:
            q, k = self.turned(q, tables), self.turned(k, tables)
        if self.heads != self.keys:
            k, v = (one.repeat_interleave(self.heads // self.keys, dim=1) for one in (k, v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made = made.transpose(1, 2).contiguous().view(*x.shape[:2], -1)
        out: Tensor = self.out(made)
        return out

    def act(self, x: Tensor) -> Tensor:
        if self.gated:
            x, gate = x.chunk(2, dim=-1)
            return F.silu(gate) * x
        return F.gelu(x) if self.config["activation_type"] == "gelu" else F.relu(x)

    def forward(self, x: Tensor, tables: Any) -> Tensor:
        after = self.config.get("norm_after", False)
        attended = self.attention(x if after else self.first(x), tables)
        if after:
            attended = self.first(attended)
        x = x + self.dropout(attended)
        kept = x
        x = x if after else self.second(x)
        x = self.up(x)
        x = self.act(x)
        x = self.down(x)
        x = self.second(x) if after else x
        return kept + self.dropout(x)


class Model(nn.Module):
    def __init__(self, config: dict[str, Any], every: int) -> None:
        super().__init__()
        width, rows = config["d_model"], config["embedding_size"]
        self.every, self.tokens = every, nn.Embedding(rows, width)
        self.places = None if config["rope"] else nn.Embedding(config["max_sequence_length"], width)
        if config["rope"]:
            for name in ("sine", "cosine"):
                shape = (config["max_sequence_length"], width // config["n_heads"])
                self.register_buffer(name, torch.zeros(shape, dtype=torch.float32))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["n_layers"]))
        self.norm = Norm(config, width)
        self.head = None if config["weight_tying"] else nn.Linear(width, rows, bias=config["include_bias"])
        self.dropout = nn.Dropout(config["embedding_dropout"])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        tables = None
        if self.places is not None:
            x = self.places(torch.zeros((1, tokens.shape[1]), dtype=torch.int64)) + x
        else:
            tables = self.sine, self.cosine
        x = self.dropout(x) if self.dropout.p else x
        for number, block in enumerate(self.blocks):
            recomputed = self.every and number % self.every == 0
            x = checkpoint(block, x, tables, use_reentrant=False) if recomputed else block(x, tables)
        x = self.norm(x)
        return F.linear(x, self.tokens.weight) if self.head is None else self.head(x)


def reference(config: dict[str, Any], setting: Setting, auxiliary: bool) -> Any:
    def build_model(_: Any) -> Model:
        saved = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, setting.dtype))
        # Which OLMo does as well, for all that the process computes.
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        try:
            return Model(config, setting.every)
        finally:
            torch.set_default_dtype(saved)

    def make_batch(_: Any) -> list[Tensor]:
        return [torch.zeros((setting.rows, setting.length), dtype=torch.int64) for _ in range(3)]

    def training_loss(model: Model, batch: list[Tensor]) -> Tensor:
        logits = model(batch[0])
        rows = logits[..., :-1, :].contiguous()
        rows = rows.view(-1, rows.shape[-1])
        labels = batch[2][:, 1:].contiguous().view(-1)
        loss = F.cross_entropy(rows, labels, ignore_index=-100, reduction="sum") / 10
        if not auxiliary:
            return loss
        squared = rows.logsumexp(-1).pow(2)
        return loss + 1e-4 * (squared * (labels != -100)).sum() / 10

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


AUTOCAST, SECOND = Setting(autocast="bfloat16"), {"norm_after": True, "attention_layer_norm": True}
# What differs from CONFIG, how it is trained, and whether there is a second loss.
CASES: dict[str, tuple[dict[str, Any], Setting, bool]] = {
    "the first release's norms without parameters": ({"layer_norm_with_affine": False}, AUTOCAST, False),
    "the same in 16 bits": ({"layer_norm_with_affine": False, "layer_norm_type": "low_precision"}, AUTOCAST, False),
    "the second release, with its loss of normalisers": ({"layer_norm_type": "rms", **SECOND}, AUTOCAST, True),
    "biases, a plain perceptron and learned positions": (
        {"rope": False, "include_bias": True, "activation_type": "gelu", "weight_tying": True}, AUTOCAST, False
    ),
    "bounds and fewer keys": ({"clip_qkv": 8.0, "n_kv_heads": 2}, AUTOCAST, False),
    "rotations in 16 bits, recomputed": ({"rope_full_precision": False}, AUTOCAST._replace(every=1), False),
    "in bfloat16, every second block recomputed": (
        {"layer_norm_type": "rms"}, Setting(dtype="bfloat16", every=2), False
    ),
    "dropout": ({"residual_dropout": 0.1, "embedding_dropout": 0.1}, AUTOCAST, False),
    "in fp32, whose scores are written out": ({"activation_type": "relu"}, Setting(), True),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "setting", "auxiliary"), CASES.values(), ids=CASES)
def test_olmo_takes_the_memory_that_its_own_code_takes(
    changes: dict[str, Any], setting: Setting, auxiliary: bool
) -> None:
    config = {**CONFIG, **changes}
    facts = {**setting.facts({}), "decoder": decoder(config), "implementation": "olmo"}
    facts |= {"checkpointing": "every", "checkpointing_every": 2} if setting.every == 2 else {}
    ours = in_meta(spec_of({**facts, "hyperparameters.softmax_auxiliary_loss": auxiliary}))
    kept = torch.backends.cuda.mem_efficient_sdp_enabled()
    try:
        made = reference(config, setting, auxiliary)
        truth = in_torch(made, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(kept)
    comparison = compare(f"{changes} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
