"""Adapters: the static step against PEFT's own code on transformers' models, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from torch._subclasses import FakeTensor

from memlint.meta import nn
from memlint.meta import tensor as meta
from memlint.models import UnknownModel
from memlint.models.language.lora_layers import JoinedLoraLinear
from tests.differential import oracle
from tests.differential.oracle import Operand
from tests.differential.test_language_models import (
    CONFIGS,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.test_mechanisms import whole_log_probabilities
from tests.differential.training import Comparison, compare, in_meta, in_torch

EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora(**options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


def with_adapter(config: dict[str, Any], setting: Setting, adapter: peft.PeftConfig) -> SimpleNamespace:
    return adapted(in_transformers(config, setting), adapter)


def adapted(reference: SimpleNamespace, adapter: peft.PeftConfig) -> SimpleNamespace:
    """A reference model with an adapter in it."""
    build = reference.build_model

    def build_model(given: Any) -> Any:
        """Fake tensors cannot be swapped (``Module.to``; adapters are made in fp32, and stay so) nor deep-copied."""
        model = build(given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
            patch.setattr(FakeTensor, "__deepcopy__", lambda old, _: torch.nn.Parameter(torch.empty_like(old)))
            return peft.get_peft_model(model, adapter).train()

    reference.build_model = build_model
    return reference


def run(name: str, facts: dict[str, Any], adapter: peft.PeftConfig, setting: Setting) -> Comparison:
    config = {"model_type": name, **CONFIGS[name]}
    own = {**setting.facts(config), "frozen_dtype": setting.dtype, **facts}
    ours = in_meta(spec_of(own))
    with values_known(setting.padded):
        reference = with_adapter(config, setting, adapter)
        optimizer = adamw(setting.optimizer)
        truth = in_torch(reference, {}, optimizer, setting.accumulation, autocast=setting.autocast or "float32")
    return compare(f"{name} {facts} {setting}", ours, truth, setting.every > 0)


PLAIN = Setting(dtype="bfloat16")
MIXED = Setting(autocast="bfloat16", every=1)
HALF = Setting(dtype="bfloat16", autocast="bfloat16")

# facts, what PEFT is given, setting
CASES: dict[str, tuple[str, dict[str, Any], peft.PeftConfig, Setting]] = {
    "LoRA of queries and values": (
        "llama", {"tuning": "lora", "lora.r": 8}, lora(r=8), PLAIN,
    ),
    "LoRA of every layer with dropout": (
        "llama",
        {"tuning": "lora", "lora.r": 16, "lora.targets": "all-linear", "lora.dropout": 0.1},
        lora(r=16, target_modules="all-linear", lora_dropout=0.1),
        PLAIN,
    ),
    "LoRA of named layers under autocast, checkpointed": (
        "qwen2",
        {"tuning": "lora", "lora.r": 4, "lora.targets": EVERY, "lora.dropout": 0.05},
        lora(r=4, target_modules=list(EVERY), lora_dropout=0.05),
        MIXED,
    ),
    "LoRA over bfloat16 weights under autocast": (
        "llama",
        {"tuning": "lora", "lora.r": 8, "lora.targets": EVERY},
        lora(r=8, target_modules=list(EVERY)),
        HALF._replace(every=1),
    ),
    "LoRA by a regular expression, with a head that trains": (
        "llama",
        {"tuning": "lora", "lora.r": 8, "lora.targets": r".*\.(up|down)_proj", "lora.modules_to_save": ["lm_head"]},
        lora(r=8, target_modules=r".*\.(up|down)_proj", modules_to_save=["lm_head"]),
        PLAIN,
    ),
    "LoRA with embeddings and head that train": (
        "llama",
        {"tuning": "lora", "lora.r": 8, "lora.modules_to_save": ["embed_tokens", "lm_head"]},
        lora(r=8, modules_to_save=["embed_tokens", "lm_head"]),
        PLAIN,
    ),
    "LoRA with a head that trains, and embeddings by another model's name": (
        "llama",
        {"tuning": "lora", "lora.r": 8, "lora.modules_to_save": ["wte", "lm_head"]},
        lora(r=8, modules_to_save=["wte", "lm_head"]),
        PLAIN,
    ),
    "LoRA of transposed layers": (
        "gpt2", {"tuning": "lora", "lora.r": 8}, lora(r=8, fan_in_fan_out=True), HALF,
    ),
    "LoRA of embeddings and head": (
        "llama",
        {"tuning": "lora", "lora.r": 8, "lora.targets": ["embed_tokens", "q_proj", "lm_head"]},
        lora(r=8, target_modules=["embed_tokens", "q_proj", "lm_head"]),
        PLAIN,
    ),
    "LoRA of embeddings that are tied": (
        "qwen2",
        {"tuning": "lora", "lora.r": 8, "lora.targets": ["embed_tokens", "v_proj"]},
        lora(r=8, target_modules=["embed_tokens", "v_proj"]),
        Setting(autocast="bfloat16"),
    ),
    "LoRA of experts under autocast, checkpointed": (
        "mixtral",
        {"tuning": "lora", "lora.r": 4, "lora.targets": ["q_proj", "w1", "w2", "w3"]},
        lora(r=4, lora_alpha=4, target_modules=["q_proj", "w1", "w2", "w3"]),
        HALF._replace(every=1),
    ),
    "LoRA of GPT-OSS": (
        "gpt_oss",
        {"tuning": "lora", "lora.r": 8, "lora.targets": "all-linear"},
        lora(r=8, target_modules="all-linear"),
        PLAIN._replace(attention="eager"),
    ),
    "LoRA of latent attention and shared experts": (
        "deepseek_v3",
        {"tuning": "lora", "lora.r": 8, "lora.targets": "all-linear"},
        lora(r=8, target_modules="all-linear"),
        PLAIN,
    ),
    "LoRA of experts' parameters and of queries": (
        "qwen3_moe",
        {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj"], "lora.parameters": ["mlp.experts.gate_up_proj"]},
        lora(r=8, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"]),
        PLAIN,
    ),
    "LoRA of experts' parameters alone": (
        "gpt_oss",
        {"tuning": "lora", "lora.r": 4, "lora.targets": [], "lora.parameters": ["experts.gate_up_proj", "down_proj"]},
        lora(r=4, target_parameters=["experts.gate_up_proj", "down_proj"]),
        MIXED._replace(attention="eager"),
    ),
    "LoRA of experts": (
        "qwen3_moe", {"tuning": "lora", "lora.r": 8, "lora.targets": "all-linear"},
        lora(r=8, target_modules="all-linear"), PLAIN,
    ),
    "LoRA of a mixture whose experts PEFT has no names for": (
        "lfm2_moe",
        {"tuning": "lora", "lora.r": 8, "lora.targets": r"model.layers.[\d]+.(mlp|self_attn).(up|q|k|v)_proj"},
        lora(r=8, target_modules=r"model.layers.[\d]+.(mlp|self_attn).(up|q|k|v)_proj"),
        PLAIN,
    ),
    "LoRA of every layer of a mixture whose experts PEFT has no names for": (
        "lfm2_moe",
        {"tuning": "lora", "lora.r": 8, "lora.targets": "all-linear"},
        lora(r=8, target_modules="all-linear"),
        PLAIN,
    ),
    "DoRA": ("llama", {"tuning": "dora", "lora.r": 8}, lora(r=8, use_dora=True), PLAIN),
    "DoRA with dropout, checkpointed": (
        "llama",
        {"tuning": "dora", "lora.r": 8, "lora.targets": "all-linear", "lora.dropout": 0.1},
        lora(r=8, use_dora=True, target_modules="all-linear", lora_dropout=0.1),
        PLAIN._replace(every=1),
    ),
    "DoRA under autocast": (
        "llama", {"tuning": "dora", "lora.r": 8}, lora(r=8, use_dora=True), HALF,
    ),
    "IA3": ("llama", {"tuning": "ia3"}, peft.IA3Config(task_type="CAUSAL_LM"), PLAIN),
    "VeRA with dropout": (
        "llama",
        {"tuning": "vera", "lora.r": 64, "lora.targets": EVERY, "lora.dropout": 0.1},
        peft.VeraConfig(task_type="CAUSAL_LM", r=64, target_modules=list(EVERY), vera_dropout=0.1),
        PLAIN,
    ),
    "VeRA under autocast, checkpointed": (
        "qwen2",
        {"tuning": "vera", "lora.r": 64},
        peft.VeraConfig(task_type="CAUSAL_LM", r=64),
        HALF._replace(every=1),
    ),
    "OFT": (
        "llama",
        {"tuning": "oft", "oft.targets": EVERY, "oft.block_size": 32},
        peft.OFTConfig(task_type="CAUSAL_LM", oft_block_size=32, target_modules=list(EVERY)),
        PLAIN,
    ),
    "OFT under autocast, checkpointed": (
        "qwen2",
        {"tuning": "oft", "oft.block_size": 16},
        peft.OFTConfig(task_type="CAUSAL_LM", oft_block_size=16),
        HALF._replace(every=1),
    ),
    "prompt tuning": (
        "llama",
        {"tuning": "prompt", "adapter.virtual_tokens": 20},
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=20),
        PLAIN,
    ),
    "p-tuning": (
        "llama",
        {"tuning": "p_tuning", "adapter.virtual_tokens": 20},
        peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=20),
        PLAIN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_adapter_takes_the_memory_that_peft_takes(case: str) -> None:
    comparison = run(*CASES[case])
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_some_layers_of_a_frozen_model_train(dtype: str) -> None:
    facts = {"tuning": "freeze", "freeze.layers": 2, "freeze.modules": ["mlp"], "freeze.extra_modules": ["norm"]}
    config = {"model_type": "llama", **CONFIGS["llama"]}
    setting = PLAIN._replace(autocast="bfloat16", every=1)
    dtypes = {"frozen_dtype": "bfloat16", "autocast": True, "parameter_dtype": dtype}
    ours = in_meta(spec_of({**setting.facts(config), **facts, **dtypes}))
    with values_known(False):
        reference = in_transformers(config, setting)
        build = reference.build_model

        def thawed(given: Any) -> Any:
            model = build(given).requires_grad_(False)
            for module in (model.model.layers[1].mlp, model.model.layers[2].mlp, model.model.norm):
                for inner in module.modules():
                    for name, old in list(inner.named_parameters(recurse=False)):
                        setattr(inner, name, torch.nn.Parameter(torch.empty_like(old, dtype=getattr(torch, dtype))))
            return model

        reference.build_model = thawed
        truth = in_torch(reference, {}, adamw("foreach"), autocast="bfloat16")
    comparison = compare(f"{dtype}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_a_frozen_first_half_of_lora_saves_no_input() -> None:
    """LoRA-FA: only the second matrix trains."""
    config = {"model_type": "llama", **CONFIGS["llama"]}
    facts = {"tuning": "lora_fa", "lora.r": 8, "lora.targets": "all-linear", "frozen_dtype": "bfloat16"}
    ours = in_meta(spec_of({**PLAIN.facts(config), **facts}))
    with values_known(False):
        reference = with_adapter(config, PLAIN, lora(r=8, target_modules="all-linear"))
        build = reference.build_model

        def frozen(given: Any) -> Any:
            model = build(given)
            for name, parameter in model.named_parameters():
                if "lora_A" in name:
                    parameter.requires_grad_(False)
            return model

        reference.build_model = frozen
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("LoRA-FA", ours, truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
def test_the_model_without_its_adapter_is_the_reference(every: int) -> None:
    config = {"model_type": "llama", **CONFIGS["llama"]}
    setting = Setting(dtype="bfloat16", rows=4, every=every)
    facts = {"tuning": "lora", "lora.r": 8, "lora.targets": "all-linear", "frozen_dtype": "bfloat16"}
    pair = {"micro_batch_size": 2, "sequences_per_sample": 2, "method": "dpo", "reference_model": "adapter_off"}
    ours = in_meta(spec_of({**setting.facts(config), **facts, **pair}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own = whole_log_probabilities(model, batch).sum(1)
        with torch.no_grad(), model.disable_adapter():
            theirs = whole_log_probabilities(model, batch).sum(1)
        return -(own - theirs).sigmoid().sum() / 1.0

    with values_known(False):
        reference = with_adapter(config, setting, lora(r=8, target_modules="all-linear"))
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{setting}", ours, truth, bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_a_name_that_no_layer_has_is_named() -> None:
    config = {"model_type": "llama", **CONFIGS["llama"]}
    facts = {"tuning": "lora", "lora.r": 8, "lora.targets": ["c_attn"]}
    with pytest.raises(UnknownModel, match="no linear layer of llama is called c_attn"):
        in_meta(spec_of({**PLAIN.facts(config), **facts}))


WIDTH = 64


class Thirds(torch.nn.Module):
    """litgpt's adapter of one product for queries, keys and values, by its steps."""

    def __init__(self, sizes: tuple[int, ...], adapted: tuple[bool, ...], dropout: float, width: int = WIDTH) -> None:
        super().__init__()
        self.base = torch.nn.Linear(width, sum(sizes), bias=False).requires_grad_(False)
        self.parts = [size for size, wanted in zip(sizes, adapted) if wanted]
        self.alike, self.padded, self.dropout = len(set(sizes)) == 1, not all(adapted), dropout
        self.first = torch.nn.Parameter(torch.empty(4 * len(self.parts), width))
        self.second = torch.nn.Parameter(torch.empty(sum(self.parts), 4))
        self.places = torch.zeros(sum(self.parts), dtype=torch.int64) if self.padded else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functions = torch.nn.functional
        result = self.base(x)
        small = functions.linear(functions.dropout(x, self.dropout), self.first).transpose(-2, -1)
        weight = self.second.unsqueeze(-1)
        if self.alike:
            wide = functions.conv1d(small, weight, groups=len(self.parts))
        else:
            pieces = zip(small.chunk(len(self.parts), 1), weight.split(self.parts))
            wide = torch.cat([functions.conv1d(piece, own) for piece, own in pieces], 1)
        return result + self.between_zeros(wide.transpose(-2, -1)) * 2.0

    def between_zeros(self, x: torch.Tensor) -> torch.Tensor:
        if self.places is None:
            return x
        zeros = x.new_zeros(*x.shape[:-1], self.base.out_features)
        return zeros.index_copy_(-1, self.places.clone(), x)


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["", "with dropout"])
@pytest.mark.parametrize("adapted", [(True, True, True), (True, False, True)], ids=["all thirds", "two thirds"])
@pytest.mark.parametrize("groups", [4, 2], ids=["of equal size", "of which keys and values are smaller"])
def test_one_product_for_three_is_adapted_as_litgpt_does_it(
    groups: int, adapted: tuple[bool, ...], dropout: float
) -> None:
    sizes = (4 * 16, groups * 16, groups * 16)

    def ours(x: meta.Tensor) -> Any:
        base = nn.Linear(WIDTH, sum(sizes), bias=False)
        module = JoinedLoraLinear(base, 4, dropout, sizes, adapted)
        base.weight.requires_grad = False
        return module(x)

    operands = [Operand((2, 20, WIDTH))]
    truth = oracle.in_torch(lambda x: Thirds(sizes, adapted, dropout)(x), operands, [True], True, "")
    found = oracle.in_meta(ours, operands, [True], True, "")
    assert found[:-1] == truth[:-1]  # the last is after the module is gone, and its gradients with it
