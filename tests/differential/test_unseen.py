"""Qwen3.5 and Llama 4 among text alone: the static step against transformers' whole class, whose tower nobody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from memlint.models import UnknownModel, record
from tests.differential.test_language_models import (
    MIXTURE,
    RECURRENT,
    SIZES,
    TOLERANCE,
    WAYS,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, in_meta, in_torch

EYES = {
    "depth": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 128,
}
LLAMA_EYES = {
    "hidden_size": 48,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": 32,
    "patch_size": 8,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 64,
    "projector_output_dim": 64,
    "vision_output_dim": 64,
}
LLAMA = {**SIZES, "num_hidden_layers": 2, "intermediate_size_mlp": 288, "num_local_experts": 2, "head_dim": 32}
WITHOUT_PERCEPTRONS = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
TEXTS: dict[str, dict[str, Any]] = {
    "qwen3_5": {**SIZES, **RECURRENT},
    "llama4": {**LLAMA, "pad_token_id": 0},
    "qwen3_5_moe": {**WITHOUT_PERCEPTRONS, **RECURRENT, **MIXTURE, "shared_expert_intermediate_size": 160},
}


def config_of(kind: str) -> dict[str, Any]:
    text = {"model_type": f"{kind}_text", **TEXTS[kind]}
    eyes = {"model_type": "llama4_vision_model", **LLAMA_EYES} if kind == "llama4" else {"model_type": kind, **EYES}
    return {"model_type": kind, "text_config": text, "vision_config": eyes}


def whole(config: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    made = AutoConfig.for_model(**config)
    made.text_config.use_cache = False
    return AutoModelForImageTextToText.from_config(made, dtype=dtype, attn_implementation=attention)


@pytest.mark.parametrize(("kind", "way"), list(zip(TEXTS, (*WAYS, *WAYS))), ids=TEXTS)
def test_a_tower_that_no_image_asks_takes_its_weights_and_nothing_else(kind: str, way: str) -> None:
    setting, config = WAYS[way], config_of(kind)
    ours = in_meta(spec_of({**setting.facts(config), "model_class": "vision_language", "images_per_sample": 0}))

    def build_model(_: Any) -> Any:
        model = whole(config, getattr(torch, setting.dtype), setting.attention)
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=setting.every)
        return model.train()

    text = in_transformers(config["text_config"], setting)
    reference = SimpleNamespace(build_model=build_model, make_batch=text.make_batch, training_loss=text.training_loss)
    with values_known(False):
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{kind} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_images_are_said_to_be_unknown() -> None:
    facts = {**WAYS["in bfloat16"].facts(config_of("qwen3_5")), "model_class": "vision_language"}
    with pytest.raises(UnknownModel, match="images that 'qwen3_5' looks at are not known"):
        record(spec_of({**facts, "images_per_sample": 1}))
