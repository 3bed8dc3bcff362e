"""Qwen3.5 with the kernels of flash-linear-attention: what they allocate is written out in torch, and transformers'
own code calls that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from memlint.models.language import gated_delta
from tests.differential.test_language_models import (
    RECURRENT,
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, in_meta, in_torch

CHUNK = 64


def norm(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def states(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    chunks = -(-k.shape[1] // CHUNK)
    return k.new_empty(k.shape[0], chunks, v.shape[2], k.shape[-1], v.shape[-1])


def wide(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A key for every head of values."""
    return k.new_empty(*k.shape[:2], v.shape[2], k.shape[-1])


def together(x: torch.Tensor, keys: int) -> torch.Tensor:
    return x.view(*x.shape[:2], keys, -1, x.shape[-1]).sum(3) if x.shape[2] != keys else x


class Rule(torch.autograd.Function):
    """``ChunkGatedDeltaRuleFunction`` of fla-core 0.6.0."""

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        q, k, v, g, beta = (x.contiguous() for x in given)
        (q, q_rstd), (k, k_rstd) = norm(q), norm(k)
        g = torch.empty_like(g, dtype=torch.float32)
        inverted = k.new_zeros(*v.shape[:3], CHUNK)
        w, u = wide(k, v), torch.empty_like(v)
        h, v_new = states(k, v), torch.empty_like(u)
        out = torch.empty_like(v)
        del w, u, h, v_new
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, g, beta, inverted)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        _, _, k, _, v, g, beta, _ = ctx.saved_tensors
        keys = k.shape[2]
        w, u = wide(k, v), torch.empty_like(v)
        h, v_new = states(k, v), torch.empty_like(u)
        dv = torch.empty_like(gradient)
        dh, dv = states(k, v), torch.empty_like(dv)
        dq, dk, dg, dw = wide(k, v), wide(k, v), g.new_empty(1, *g.shape), torch.empty_like(w)
        dq = together(dq, keys)
        dk = together(dk, keys)
        dg = dg.sum(0)
        dk2, dv2, dg2, db = wide(k, v), torch.empty_like(v), torch.empty_like(g), torch.empty_like(beta)
        dk2 = together(dk2, keys)
        dg = torch.empty_like(dg)
        del w, u, h, v_new, dv, dh, dw, dk2, dg2
        dq = torch.empty_like(dq)
        dk = torch.empty_like(dk)
        return dq, dk, dv2, dg, db


def rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> tuple[torch.Tensor, None]:
    return Rule.apply(query, key, value, g, beta), None


WAYS = {
    "in bfloat16": Setting(dtype="bfloat16", length=150, rows=3),
    "under autocast, recomputed": Setting(autocast="bfloat16", every=1, length=150, rows=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_kernels_of_flash_linear_attention_keep_little(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, config = WAYS[way], {"model_type": "qwen3_5_text", **SIZES, **RECURRENT}
    facts = setting.facts(config)
    plain = in_meta(spec_of(facts))
    ours = in_meta(spec_of({**facts, "fused_kernels": ["gated_delta_rule"]}))
    monkeypatch.setattr(qwen, "torch_chunk_gated_delta_rule", rule)
    with values_known(False):
        truth = in_torch(in_transformers(config, setting), {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{config} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
    for phase in ("forward", "backward"):
        assert ours.phases[phase] == pytest.approx(truth.phases[phase], rel=0.002), phase
    assert plain.phases["backward"] > ours.phases["backward"]


@pytest.mark.parametrize("chunks", [12, 13], ids=["chunks that make whole turns", "a last turn of fewer chunks"])
def test_chunks_that_make_a_turn_together_take_what_they_take_alone(
    chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "qwen3_5_text", **SIZES, **RECURRENT, "num_hidden_layers": 2}
    spec = spec_of(Setting(autocast="bfloat16", length=chunks * CHUNK, rows=1).facts(config))
    alone = in_meta(spec)
    monkeypatch.setattr(gated_delta, "TURNS", 4)
    together = in_meta(spec)
    assert together.saved == pytest.approx(alone.saved, rel=0.002)
    assert together.peak == pytest.approx(alone.peak, rel=0.002)
