"""Settings in which static and traced steps once disagreed when both were drawn at random."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from transformers import masking_utils
from transformers.trainer_pt_utils import LabelSmoother

from memlint.architectures import huggingface
from tests.differential import test_encoder_decoders as encoder_decoders
from tests.differential import test_encoders as encoders
from tests.differential.test_adapters import EVERY, adapted, lora, with_adapter
from tests.differential.test_language_models import (
    CONFIGS,
    FOURFOLD,
    SHORT,
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import Comparison, compare, in_meta, in_torch

MIXED = Setting(autocast="bfloat16", rows=3, length=120)
LONG = Setting(rows=3, length=200, attention="eager", every=1)
DROPPING = {"hidden_dropout": 0.1, "use_parallel_residual": False}

# A case -> config.json, setting
DECODERS: dict[str, tuple[dict[str, Any], Setting]] = {
    "OLMo that bounds queries, keys and values": ({"model_type": "olmo", **SIZES, "clip_qkv": 6.0}, MIXED),
    "OLMoE that bounds them once they are normed": (
        {"model_type": "olmoe", **SIZES, "num_experts": 8, "num_experts_per_tok": 2, "clip_qkv": 6.0},
        Setting(rows=3, length=120),
    ),
    "StableLM drops what its perceptron adds, and not what attention does": (
        {"model_type": "stablelm", **SIZES, **DROPPING},
        Setting(dtype="bfloat16", rows=3, length=120),
    ),
    "StableLM, recomputed, with all that has a name in it": (
        {"model_type": "stablelm", **SIZES, **DROPPING, "qk_layernorm": True},
        MIXED._replace(every=1, length=300),
    ),
    "Seed-OSS with heads as wide as its class says": (
        {"model_type": "seed_oss", **SIZES, "pad_token_id": 0},
        Setting(dtype="bfloat16"),
    ),
    "BLOOM under the older checkpointing": ({"model_type": "bloom", **SHORT}, LONG._replace(reentrant=True)),
    "MPT under the older checkpointing": (
        {"model_type": "mpt", **FOURFOLD, "max_seq_len": 256},
        LONG._replace(reentrant=True, autocast="bfloat16"),
    ),
    "GPT-J, recomputed": ({"model_type": "gptj", **SHORT, "n_positions": 256, "rotary_dim": 8}, LONG),
    "GPT-Neo under the older checkpointing": (
        {
            "model_type": "gpt_neo", **FOURFOLD, "max_position_embeddings": 256,
            "attention_types": [[["global", "local", "global"], 1]],
        },
        LONG._replace(reentrant=True),
    ),
    "Falcon whose layers return probabilities": (
        {"model_type": "falcon", **FOURFOLD, "multi_query": True},
        LONG._replace(reentrant=True, dtype="bfloat16"),
    ),
}  # fmt: skip


def compared(config: dict[str, Any], setting: Setting, reference: Any, **facts: Any) -> Comparison:
    ours = in_meta(spec_of({**setting.facts(config), **facts}))
    with values_known(setting.padded):
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    for phase in ("forward", "backward"):
        assert ours.phases[phase] == pytest.approx(truth.phases[phase], rel=0.002), phase
    return compare(f"{config} {setting}", ours, truth, setting.every > 0)


@pytest.mark.parametrize("case", DECODERS)
def test_decoders_take_in_every_phase_the_memory_that_transformers_takes(case: str) -> None:
    config, setting = DECODERS[case]
    comparison = compared(config, setting, in_transformers(config, setting))
    assert comparison.worst <= TOLERANCE, str(comparison)


ADAPTED: dict[str, tuple[str, Setting, peft.LoraConfig, dict[str, Any]]] = {
    "an embedding that scales by itself is one tensor where inputs need gradients": (
        "gemma", MIXED._replace(every=1), lora(r=8, target_modules=list(EVERY)),
        {"tuning": "lora", "lora.r": 8, "lora.targets": EVERY},
    ),
    "DoRA of weights that lie the other way round": (
        "gpt2", Setting(dtype="bfloat16"), lora(r=8, use_dora=True, lora_dropout=0.1, fan_in_fan_out=True),
        {"tuning": "dora", "lora.r": 8, "lora.dropout": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADAPTED)
def test_adapted_decoders_take_the_memory_that_peft_takes(case: str) -> None:
    name, setting, adapter, facts = ADAPTED[case]
    config = {"model_type": name, **CONFIGS[name]}
    reference = with_adapter(config, setting, adapter)
    comparison = compared(config, setting, reference, frozen_dtype=setting.dtype, **facts)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("task", ["sequence_classification", "token_classification"])
def test_autocast_keeps_no_cast_of_what_a_recomputed_layer_gets(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT's queries, keys and values are products of the layer's own input, which is no leaf."""
    comparison = encoders.run(monkeypatch, "bert", MIXED._replace(every=1), task)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_what_a_config_leaves_out_is_what_its_class_says() -> None:
    assert huggingface.decoder({"model_type": "seed_oss", **SIZES}).head_dim == 128
    glm = {"moe_intermediate_size": 96, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}
    assert huggingface.decoder({"model_type": "glm4_moe", **SIZES, **glm}).head_dim == 128 // 8
    qwen = {**CONFIGS["qwen2_moe"], "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    assert huggingface.decoder({"model_type": "qwen2_moe", **qwen}).windows == (16, 0, 0)


SMOOTHED = {
    "in fp32": Setting(rows=2, length=40),
    "under autocast": Setting(autocast="bfloat16", rows=2, length=40),
    "in bfloat16": Setting(dtype="bfloat16", rows=2, length=40),
}


def smoothing(autocast: str, shifts: bool) -> Any:
    """As the Trainer asks a model that accelerate has prepared."""
    smoother = LabelSmoother(epsilon=0.1)

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch.pop("labels")
        if not shifts:
            batch["decoder_input_ids"] = torch.zeros_like(labels)
        outputs = model(**batch)
        with torch.autocast("cpu", enabled=False):
            if autocast:
                outputs["logits"] = outputs["logits"].float()
            made: torch.Tensor = smoother(outputs, labels, shift_labels=shifts)
        return made

    return loss


@pytest.mark.parametrize("way", SMOOTHED)
@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
def test_smoothed_labels_take_the_memory_that_the_trainers_loss_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = SMOOTHED[way]
    facts: dict[str, Any] = {"hyperparameters.label_smoothing": 0.1}
    if name == "llama":
        config = {"model_type": name, **SIZES, "vocab_size": 6000}
        reference = in_transformers(config, setting)
    else:
        config = {"model_type": name, **encoder_decoders.CONFIGS[name], "vocab_size": 6000}
        reference = encoder_decoders.in_transformers(config, setting)
        facts |= {"model_class": "seq2seq_lm", "target_length": encoder_decoders.TARGET}
        monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_: True)
    reference.training_loss = smoothing(setting.autocast, name == "llama")
    comparison = compared(config, setting, reference, **facts)
    assert comparison.worst <= 0.003, str(comparison)


HEADS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a decoder's score is the copy that trains": ("llama", {**SIZES, "pad_token_id": 0, "use_cache": False}, EVERY),
    "what trains in full gets no adapter within": ("roberta", encoders.CONFIGS["roberta"], "all-linear"),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_beside_lora_train_in_full_and_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config, targets = HEADS[case]
    config, setting = {"model_type": name, **config}, Setting(rows=3, length=100)
    facts = {"model_class": "sequence_classification", "labels": 3, "tuning": "lora", "lora.r": 8}
    adapter = peft.LoraConfig(task_type="SEQ_CLS", r=8, target_modules=targets if name == "roberta" else list(EVERY))
    monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_: True)
    reference = adapted(encoders.in_transformers(config, setting, "sequence_classification", 3), adapter)
    comparison = compared(config, setting, reference, frozen_dtype="float32", **facts, **{"lora.targets": targets})
    assert comparison.worst <= TOLERANCE, str(comparison)
