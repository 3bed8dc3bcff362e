"""Adapters: the static step against PEFT's own code on transformers' models, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch

from tests.differential.test_language_models import (
    CONFIGS,
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import Comparison, compare, in_meta, in_torch

EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora(**options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


def with_adapter(config: dict[str, Any], setting: Setting, adapter: peft.PeftConfig) -> SimpleNamespace:
    reference = in_transformers(config, setting)
    build = reference.build_model

    def build_model(given: Any) -> Any:
        """``Module.to`` swaps tensors, which fake ones do not let be done; adapters are made in fp32 as they stay."""
        model = build(given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
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
    "LoRA of transposed layers": (
        "gpt2", {"tuning": "lora", "lora.r": 8}, lora(r=8, fan_in_fan_out=True), HALF,
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
