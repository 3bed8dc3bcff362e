"""Family llamafactory-v1: configs of LLaMA-Factory's v1 trainers, by the code of 0.9.5."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimates import estimate_spec
from memlint.facts.spec import ASSUMED, TrainingSpec
from tests.dialects.language_models import run

CONFIG = """\
model: {model}
train_dataset: data/ours.yaml
micro_batch_size: 2
"""
FSDP2 = "dist_config: {name: fsdp2}\n"
LORA = "peft_config: {name: lora, r: 16, lora_alpha: 32}\n"


def read(more: str = "", model: str = "Qwen/Qwen3-0.6B") -> TrainingSpec:
    spec = run(CONFIG.format(model=model) + more)
    assert spec.family == "llamafactory-v1"
    return spec


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        pytest.param(
            "",
            {
                "micro_batch_size": 2,
                "sequence_length": 2048,
                "attention": "sdpa",
                "checkpointing": "full",
                "parameter_dtype": "float32",
                "compute_dtype": "float32",
                "loss": "copied",
                "tuning": None,
            },
            id="one device, whose weights and products are fp32",
        ),
        pytest.param(
            LORA,
            {"tuning": "lora", "lora.targets": "all-linear", "frozen_dtype": "bfloat16", "lora.dtype": "float32"},
            id="adapters beside the checkpoint's own dtype",
        ),
        pytest.param(
            LORA + "quant_config: {name: bnb, quantization_bit: 4}\n",
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True},
            id="adapters on 4 bits",
        ),
        pytest.param(
            "peft_config: {name: freeze, freeze_trainable_layers: 3}\n",
            {"tuning": "freeze", "freeze.layers": 3, "freeze.modules": "all"},
            id="the last layers alone",
        ),
        pytest.param(
            "batching_strategy: padding_free\nflash_attn: flash_attention_2\n" + LORA,
            {"padding_free": True, "attention": "flash"},
            id="one row without padding",
        ),
        pytest.param(
            "kernel_config: {name: liger_kernel}\n", {"loss": "copied"}, id="Liger's layers, and not its loss"
        ),
    ],
)
def test_what_a_config_means(more: str, facts: dict[str, Any]) -> None:
    spec = read(more)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts
    assert estimate_spec(spec).device_bytes > 0
    stated = spec.fact("method")
    assert stated is not None
    assert (stated.value, stated.origin) == ("sft", ASSUMED)


def test_fsdp2_waits_for_the_number_of_devices() -> None:
    spec = read(FSDP2)
    assert (spec.architecture, spec.architecture_on_devices) == (None, "language_model")
    assert spec["parallelism.strategy"] == "fsdp2"
    assert (spec["parameter_dtype"], spec["compute_dtype"]) == ("float32", "bfloat16")
    assert spec["parallelism.reduce_dtype"] == "float32"


@pytest.mark.parametrize(
    ("more", "model", "reason"),
    [
        pytest.param("optim_config: {name: muon}\n", "Qwen/Qwen3-0.6B", "optim_config.name muon", id="Muon"),
        pytest.param("dist_config: {name: fsdpturbo}\n", "Qwen/Qwen3-0.6B", "dist_config.name", id="a plugin"),
        pytest.param("pref_loss: orpo\n", "Qwen/Qwen3-0.6B", "pref_loss", id="a loss of pairs"),
        pytest.param("", "Qwen/Qwen3.5-0.8B", "AutoModelForImageTextToText", id="a model that sees"),
    ],
)
def test_what_is_not_known_is_named(more: str, model: str, reason: str) -> None:
    spec = read(more, model)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_file_that_is_of_pairs_by_its_name_is_no_sft() -> None:
    spec = run(CONFIG.format(model="Qwen/Qwen3-0.6B"), "train_lora_dpo.yaml")
    assert spec.architecture is None
    assert "train_lora_dpo.yaml" in spec.unknown_reason
