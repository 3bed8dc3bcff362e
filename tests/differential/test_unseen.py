"""Models that see or hear among text alone: the static step against transformers' class, whose tower nobody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, VoxtralForConditionalGeneration
from transformers.initialization import no_init_weights

from memlint.architectures.huggingface_vision_language import text_alone
from memlint.models import UnknownModel, record
from tests.differential.test_language_models import (
    MIXTURE,
    RECURRENT,
    SIZES,
    TOLERANCE,
    UNEQUAL,
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
QWEN = {"model_type": "qwen3_5_moe", **EYES}
TOWER = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
EARS = {
    "hidden_size": 48,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 16,
    "max_source_positions": 30,
}
GEMMA_EYES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "patch_size": 4,
    "position_embedding_size": 20,
}
GEMMA_EARS = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [8, 4],
    "output_proj_dims": 40,
}
# model type -> config of its decoder, of what is beside it, and of the whole
WHOLES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen3_5": ({"model_type": "qwen3_5_text", **SIZES, **RECURRENT}, {**QWEN, "model_type": "qwen3_5"}, {}),
    "llama4": (
        {"model_type": "llama4_text", **LLAMA, "pad_token_id": 0},
        {"model_type": "llama4_vision_model", **LLAMA_EYES},
        {},
    ),
    "qwen3_5_moe": (
        {
            "model_type": "qwen3_5_moe_text",
            **WITHOUT_PERCEPTRONS,
            **RECURRENT,
            **MIXTURE,
            "shared_expert_intermediate_size": 160,
        },
        QWEN,
        {},
    ),
    "mistral3": (
        {"model_type": "mistral", **SIZES, "head_dim": 32, "sliding_window": None},
        {"model_type": "pixtral", **TOWER},
        {"spatial_merge_size": 2},
    ),
    "mistral3 over Ministral 3, whose head is tied": (
        {"model_type": "ministral3", **SIZES, "head_dim": 32, "tie_word_embeddings": True},
        {"model_type": "pixtral", **TOWER},
        {"spatial_merge_size": 2, "vision_feature_layer": [-2, -1], "multimodal_projector_bias": True},
    ),
    "internvl": (
        {"model_type": "qwen3", **SIZES, "head_dim": 32},
        {"model_type": "internvl_vision", **TOWER, "use_qk_norm": True},
        {"downsample_ratio": 0.5, "image_seq_length": 4},
    ),
    "internvl of another kind of tower": (
        {"model_type": "qwen2", **SIZES},
        {
            "model_type": "internvl_vision",
            **TOWER,
            "attention_bias": True,
            "norm_type": "rms_norm",
            "use_mean_pooling": False,
            "use_mask_token": True,
        },
        {"downsample_ratio": 0.5, "image_seq_length": 4},
    ),
    "smolvlm": (
        {"model_type": "llama", **SIZES, "pad_token_id": 0},
        {"model_type": "smolvlm_vision", **TOWER},
        {"scale_factor": 2},
    ),
    "idefics3": (
        {"model_type": "llama", **SIZES, "pad_token_id": 0},
        {"model_type": "idefics3_vision", **TOWER},
        {"scale_factor": 2},
    ),
    "lfm2_vl": (
        {"model_type": "lfm2", **SIZES, "layer_types": ["conv", "full_attention", "conv"]},
        {"model_type": "siglip2_vision_model", **TOWER, "vision_use_head": False, "num_patches": 16},
        {"projector_hidden_size": 96},
    ),
    "lfm2_vl with the head of its tower": (
        {"model_type": "lfm2", **SIZES, "layer_types": ["conv", "full_attention", "conv"]},
        {"model_type": "siglip2_vision_model", **TOWER, "num_patches": 16},
        {"projector_hidden_size": 96, "projector_use_layernorm": False, "projector_bias": False},
    ),
    "gemma4": (
        {"model_type": "gemma4_text", **UNEQUAL, "hidden_size_per_layer_input": 0, "pad_token_id": 0},
        {"model_type": "gemma4_vision", **GEMMA_EYES, "standardize": True},
        {},
    ),
    "gemma4 that hears, and whose layers have inputs": (
        {
            "model_type": "gemma4_text",
            **UNEQUAL,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 500,
            "num_kv_shared_layers": 2,
            "pad_token_id": 0,
        },
        {"model_type": "gemma4_vision", **GEMMA_EYES, "use_clipped_linears": True},
        {"audio_config": {"model_type": "gemma4_audio", **GEMMA_EARS}},
    ),
    "gemma4_unified": (
        {"model_type": "gemma4_unified_text", **UNEQUAL, "attention_k_eq_v": True, "pad_token_id": 0},
        {
            "model_type": "gemma4_unified_vision",
            "patch_size": 2,
            "mm_embed_dim": 48,
            "mm_posemb_size": 20,
            "output_proj_dims": 48,
        },
        {"audio_config": {"model_type": "gemma4_unified_audio"}},
    ),
    "voxtral": (
        {"model_type": "llama", **SIZES, "head_dim": 32},
        {"model_type": "voxtral_encoder", **EARS},
        {},
    ),
}


def config_of(case: str) -> dict[str, Any]:
    text, beside, whole = WHOLES[case]
    kind = case.split()[0]
    sense = "audio_config" if kind == "voxtral" else "vision_config"
    tied = text.get("tie_word_embeddings", kind == "lfm2_vl")
    text = {**text, "tie_word_embeddings": tied}
    return {"model_type": kind, "text_config": text, sense: beside, "tie_word_embeddings": tied, **whole}


def whole(config: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    made = AutoConfig.for_model(**config)
    made.text_config.use_cache = False
    builds = AutoModelForImageTextToText.from_config
    if config["model_type"] == "voxtral":
        builds = VoxtralForConditionalGeneration._from_config
    # Gemma 4's tower of sound has no SDPA: it is refused where it is asked for, and left out where it is the default.
    asked = None if config["model_type"] == "gemma4" and attention == "sdpa" else attention
    with no_init_weights():  # SigLIP's draws until what it drew fits
        model = builds(made, dtype=dtype, attn_implementation=asked)
    model.tie_weights()
    for module in model.modules():  # fake tensors take a number's tensor for one of the host, from where it would come
        for name, held in list(module._buffers.items()):
            if held is not None and held.ndim == 0:
                module._buffers[name] = torch.empty((), dtype=held.dtype)
    return model


@pytest.mark.parametrize(("case", "way"), list(zip(WHOLES, 8 * tuple(WAYS))), ids=WHOLES)
def test_a_tower_that_no_image_asks_takes_its_weights_and_nothing_else(case: str, way: str) -> None:
    setting, config = WAYS[way], config_of(case)
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
    comparison = compare(f"{case} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("case", WHOLES)
def test_what_lies_beside_a_decoder_has_the_names_and_shapes_of_the_class(case: str) -> None:
    """A quantised base, and adapters, go by them."""
    config = config_of(case)
    with torch.device("meta"):
        model = whole(config, torch.bfloat16, "sdpa")
    model = getattr(model, "model", model)
    words = model.text_model if hasattr(model, "text_model") else model.language_model
    inside = {id(module) for module in words.modules()}
    linears = {
        (name, module.in_features, module.out_features, module.bias is not None)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and id(module) not in inside
    }
    described = text_alone(config).beside
    assert set(described.linears) == linears
    theirs = {id(tensor) for tensor in words.parameters()}
    assert {(name, shape) for name, shape in described.tensors} == {
        (name, tuple(tensor.shape))
        for name, tensor in model.named_parameters()
        if id(tensor) not in theirs and name.rpartition(".")[0] not in {name for name, *_ in linears}
    }


@pytest.mark.parametrize(
    ("case", "sense"),
    [pytest.param("internvl", "images", id="images"), pytest.param("voxtral", "sound", id="sound")],
)
def test_what_is_beside_text_is_said_to_be_unknown(case: str, sense: str) -> None:
    facts = {**WAYS["in bfloat16"].facts(config_of(case)), "model_class": "vision_language"}
    with pytest.raises(UnknownModel, match=f"what '{case}' does with {sense} is not known"):
        record(spec_of({**facts, "images_per_sample": 1}))
