"""Quantised mixtures before transformers 5: their experts are linear layers, one after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from memlint.dialects.tuning import ATTENTION, MIXTURES
from memlint.models import UnknownModel, record
from tests.differential.test_language_models import SIZES, Setting, adamw, in_transformers, spec_of, values_known
from tests.differential.test_mechanisms import FourBits
from tests.differential.training import compare, in_meta, in_torch

QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    **SIZES,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 384,
    "norm_topk_prob": True,
}
# A tensor more or less of one expert's rows, where ours stands for all that had their turn.
TOLERANCE = 0.01


class Expert(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.down_proj = nn.Linear(inner, width, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fed: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


class List(nn.Module):
    """The block as it was: each expert takes its tokens, here the same number of them, and adds to the result."""

    def __init__(self, width: int, inner: int, count: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.empty(count, width))
        self.experts = nn.ModuleList([Expert(width, inner) for _ in range(count)])
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        x = x.view(-1, width)
        weights = nn.functional.softmax(nn.functional.linear(x, self.router), dim=1, dtype=torch.float)
        weights = torch.topk(weights, self.chosen, dim=-1)[0]
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        result = torch.zeros_like(x)
        mask = torch.empty((len(self.experts), self.chosen, x.shape[0]), dtype=torch.int64)
        rows = x.shape[0] * self.chosen // len(self.experts)
        for expert in self.experts:
            column, token = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
            mine = x[None, token].reshape(-1, width)
            mine = expert(mine) * weights[token, column, None]
            result.index_add_(0, token, mine.to(x.dtype))
        del mask
        return result.reshape(batch, length, width)


class Frozen(FourBits):
    """Without an adapter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x)


def quantised(model: Any) -> Any:
    """With lists of experts, every linear layer in 4 bits but the head, and adapters of the queries."""
    torch.set_default_dtype(torch.bfloat16)
    for layer in model.model.layers:
        layer.mlp = List(SIZES["hidden_size"], QWEN["moe_intermediate_size"], QWEN["num_experts"], 2)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head" and not isinstance(parent, FourBits):
                kind = FourBits if name == "q_proj" else Frozen
                made = kind(child, 8, False, torch.bfloat16)
                if kind is Frozen:
                    del made.lora_A, made.lora_B
                setattr(parent, name, made)
    return model


def facts_of(setting: Setting, release: str, **more: Any) -> dict[str, Any]:
    return {
        **setting.facts(QWEN),
        "tuning": "lora",
        "lora.r": 8,
        "lora.targets": ["q_proj"],
        "frozen_dtype": "bfloat16",
        "quantization.bits": 4,
        "quantization.kind": "nf4",
        "transformers_version": release,
        **more,
    }


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
def test_experts_of_a_list_are_quantised_and_unpacked_one_by_one(every: int) -> None:
    setting = Setting(dtype="bfloat16", every=every, rows=4, length=128)
    ours = in_meta(spec_of(facts_of(setting, "4.57.6")))
    with values_known(False):
        reference = in_transformers(QWEN, setting)
        build = reference.build_model
        reference.build_model = lambda given: quantised(build(given))
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{setting}", ours, truth._replace(parameters=ours.parameters), bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("method", ["lora", "ia3", "vera", "oft"])
def test_adapters_of_such_experts_are_said_to_be_unknown(method: str) -> None:
    targets = "oft.targets" if method == "oft" else "lora.targets"
    facts = facts_of(Setting(dtype="bfloat16"), "4.57.6", tuning=method, **{targets: "all-linear"})
    with pytest.raises(UnknownModel, match="adapters of quantised experts, before transformers 5"):
        record(spec_of(facts))


@pytest.mark.parametrize("name", MIXTURES)
def test_a_program_that_lists_linear_layers_finds_those_of_attention_alone(name: str) -> None:
    """QLoRA's find_all_linear_names, as others have it: the last parts of the paths of linear modules."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, num_hidden_layers=1))
    found = {path.rpartition(".")[2] for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert found - {"lm_head"} == {*ATTENTION}
