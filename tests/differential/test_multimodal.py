"""Gemma 3 and Qwen's vision-language models, up to Qwen3.5: the static step against transformers' own code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from tests.differential.test_language_models import RECURRENT, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

TEXT: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2,
}  # fmt: skip
ROTARY = {"type": "mrope", "mrope_section": [2, 3, 3]}
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 96, "intermediate_size": 352, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": 56, "patch_size": 7, "vision_use_head": False,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma3",
    "vision_config": SIGLIP,
    "text_config": {
        **TEXT, "model_type": "gemma3_text", "head_dim": 32, "num_hidden_layers": 2, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "mm_tokens_per_image": 16,
    "image_token_id": 7,
    "tie_word_embeddings": True,
}  # fmt: skip
INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "vision_config": {
        "model_type": "internvl_vision", "hidden_size": 96, "intermediate_size": 352, "num_hidden_layers": 3,
        "num_attention_heads": 4, "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True,
        "hidden_act": "gelu",
    },
    "text_config": {**TEXT, "model_type": "qwen2"},
    "image_token_id": 7,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN25: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "model_type": "qwen2_5_vl", "depth": 4, "hidden_size": 96, "intermediate_size": 200, "num_heads": 4,
        "out_hidden_size": 128, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1, 3],
        "hidden_act": "silu",
    },
    "text_config": {**TEXT, "model_type": "qwen2_5_vl_text", "rope_scaling": ROTARY},
    "image_token_id": 7,
}  # fmt: skip
QWEN2: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "vision_config": {
        "model_type": "qwen2_vl", "depth": 3, "embed_dim": 96, "hidden_size": 128, "num_heads": 4, "patch_size": 14,
        "hidden_act": "quick_gelu",
    },
    "text_config": {**TEXT, "model_type": "qwen2_vl_text", "rope_scaling": ROTARY},
    "image_token_id": 7,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 4, "hidden_size": 96, "intermediate_size": 200, "num_heads": 4,
        "out_hidden_size": 128, "patch_size": 14, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2],
    },
    "text_config": {
        **TEXT, "model_type": "qwen3_vl_text", "head_dim": 32,
        "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5]},
    },
    "image_token_id": 7,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_vl_moe",
    "vision_config": {**QWEN3["vision_config"], "model_type": "qwen3_vl_moe"},
    "text_config": {
        **QWEN3["text_config"], "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 64, "num_experts": 8,
        "num_experts_per_tok": 2, "mlp_only_layers": [1],
    },
}  # fmt: skip
QWEN35: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_5",
    "vision_config": {
        **QWEN3["vision_config"], "model_type": "qwen3_5", "in_channels": 3, "temporal_patch_size": 2,
        "spatial_merge_size": 2,
    },
    "text_config": {
        "model_type": "qwen3_5_text", **TEXT, **RECURRENT,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
        },
    },
}  # fmt: skip
GLM4V: dict[str, Any] = {
    "model_type": "glm4v",
    "vision_config": {
        "model_type": "glm4v_vision", "depth": 3, "hidden_size": 96, "intermediate_size": 200, "num_heads": 4,
        "out_hidden_size": 128, "image_size": 112,
    },
    "text_config": {
        **TEXT, "model_type": "glm4v_text", "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        },
    },
    "image_token_id": 7,
}  # fmt: skip
CLASSES = {
    "internvl": "InternVLForConditionalGeneration",
    "glm4v": "Glm4vForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
}
# Numbers of places, and casts that autocast remembers of a tower's first weight, are left out.
PEAK, HELD = 0.002, 0.015
LENGTH, SIDE = 96, 8  # tokens; patches of an image of Qwen's


class Sizes:
    """Numbers that Qwen's programs read off tensors, which fake ones do not have: of what they make of them, only the
    list is used."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def tolist(self) -> list[int]:
        return self.numbers

    def prod(self, _: int) -> Sizes:
        return self

    def same(self, _: Any) -> Sizes:
        return self

    __sub__ = __floordiv__ = same

    def __getitem__(self, places: Any) -> Any:
        """One of them for each patch, where GLM asks for that."""
        asked = places[0] if isinstance(places, tuple) else places
        return torch.zeros_like(asked) if isinstance(asked, torch.Tensor) else self

    def cumsum(self, _: int) -> torch.Tensor:
        return torch.zeros(len(self.numbers), dtype=torch.int64)


def in_transformers(
    config: dict[str, Any], setting: Setting, frozen: tuple[str, ...], of_tower: str = "as_decoder", labels: int = 0
) -> SimpleNamespace:
    """``of_tower``: which of its blocks are recomputed. ``labels``: of a head that scores rows, as ms-swift 4.6 puts it
    in (``model/patcher.py``)."""
    kind = config["model_type"]

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache = made.text_config.use_cache = False
        with no_init_weights():
            model = getattr(transformers, CLASSES[kind])._from_config(
                made, dtype=getattr(torch, setting.dtype), attn_implementation=setting.attention
            )
        if kind in ("gemma3", "internvl"):
            model.tie_weights()
            parts = {"vision_tower": [model.model.vision_tower], "projector": [model.model.multi_modal_projector]}
        else:
            visual = model.model.visual
            parts = {"vision_tower": [visual.patch_embed, visual.blocks], "projector": [visual.merger]}
            if kind == "glm4v":
                around = (visual.post_conv_layernorm, visual.embeddings, visual.post_layernorm, visual.downsample)
                parts["vision_tower"] += around
            if kind in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5"):
                model.tie_weights()
                parts["vision_tower"] += [visual.pos_embed, *getattr(visual, "deepstack_merger_list", ())]
        for name in frozen:
            for part in parts[name]:
                part.requires_grad_(False)
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        if of_tower != "as_decoder":
            model.disable_input_require_grads()
            for block in model.model.visual.blocks:
                trains = any(parameter.requires_grad for parameter in block.parameters())
                block.gradient_checkpointing = of_tower == "trained" and trains
        if labels:
            model.lm_head = torch.nn.Identity()
            model.score = torch.nn.Linear(made.text_config.hidden_size, labels, bias=False, dtype=model.dtype)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape = (setting.rows, LENGTH)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}
        batch["attention_mask"] += 1
        if kind in ("gemma3", "internvl"):
            pixels = torch.zeros((setting.rows, 3, 56, 56))
            if kind == "internvl":
                return {**batch, "pixel_values": pixels}
            return {**batch, "pixel_values": pixels, "token_type_ids": torch.zeros(shape, dtype=torch.int64)}
        batch["input_ids"][:, : SIDE * SIDE // 4] = 7
        grid = Sizes(*[SIDE * SIDE // 4] * setting.rows)
        positions = torch.zeros((3, *shape), dtype=torch.int64)
        if kind == "qwen3_5":
            del batch["attention_mask"]  # of ones: it asks their values, and does without
        pixels = torch.zeros((setting.rows * SIDE * SIDE, 3 * 2 * 14 * 14))
        return {**batch, "pixel_values": pixels, "image_grid_thw": grid, "position_ids": positions}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if labels:
            answers = batch.pop("labels")[:, 0]
            scores = model.score(model(**batch).logits)
            row = scores[torch.zeros_like(answers), torch.zeros_like(answers)]
            return torch.nn.functional.cross_entropy(row, answers)
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


WAYS = {
    "in bfloat16": Setting(dtype="bfloat16"),
    "under autocast with checkpointing": Setting(autocast="bfloat16", every=1),
}
FROZEN: dict[str, tuple[str, ...]] = {"everything": (), "the decoder alone": ("vision_tower", "projector")}


def facts_of(config: dict[str, Any], setting: Setting, frozen: tuple[str, ...]) -> dict[str, Any]:
    facts = setting._replace(length=LENGTH).facts(config)
    return {
        **facts,
        "model_class": "vision_language",
        "frozen_parts": list(frozen),
        "image_size": SIDE * 14,
        "images_per_sample": 1,
    }


@pytest.mark.parametrize("trains", FROZEN)
@pytest.mark.parametrize("way", WAYS)
def test_gemma3_takes_the_memory_that_transformers_takes(
    trains: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, frozen = WAYS[way], FROZEN[trains]
    ours = in_meta(spec_of(facts_of(GEMMA, setting, frozen)))
    monkeypatch.setattr("transformers.models.gemma3.modeling_gemma3.torch_compilable_check", lambda *_: None)
    with values_known(True):
        reference = in_transformers(GEMMA, setting, frozen)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{frozen} {setting}", ours, truth, setting.every > 0)
    assert abs(comparison.peak) <= PEAK, str(comparison)
    assert comparison.worst <= HELD, str(comparison)


@pytest.mark.parametrize("trains", FROZEN)
@pytest.mark.parametrize("way", WAYS)
def test_internvl_takes_the_memory_that_transformers_takes(
    trains: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, frozen = WAYS[way], FROZEN[trains]
    ours = in_meta(spec_of(facts_of(INTERNVL, setting, frozen)))
    monkeypatch.setattr("transformers.models.internvl.modeling_internvl.torch_compilable_check", lambda *_: None)
    with values_known(False):
        reference = in_transformers(INTERNVL, setting, frozen)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{frozen} {setting}", ours, truth, setting.every > 0)
    assert abs(comparison.peak) <= PEAK, str(comparison)
    assert comparison.worst <= HELD, str(comparison)


def added(_: Any, x: torch.Tensor, places: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """``_deepstack_process`` where images stand; fake tensors do not say where."""
    rows = torch.zeros(seen.shape[0], dtype=torch.int64), torch.zeros(seen.shape[0], dtype=torch.int64)
    seen = seen.to(x.device, x.dtype)
    x = x.clone()
    there = x[rows] + seen
    x[rows] = there
    return x


@pytest.mark.parametrize(
    "config", [QWEN2, QWEN25, QWEN3, QWEN3_MOE, QWEN35, GLM4V], ids=lambda config: config["model_type"]
)
@pytest.mark.parametrize("trains", FROZEN)
@pytest.mark.parametrize("way", WAYS)
def test_qwen_takes_the_memory_that_transformers_takes(
    config: dict[str, Any], trains: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, frozen = WAYS[way], FROZEN[trains]
    comparison = compared(config, setting, frozen, monkeypatch)
    assert abs(comparison.peak) <= PEAK, str(comparison)
    assert comparison.worst <= HELD, str(comparison)


@pytest.mark.parametrize("of_tower", ["none", "trained"])
@pytest.mark.parametrize("trains", FROZEN)
def test_blocks_of_a_tower_are_recomputed_as_the_run_says(
    of_tower: str, trains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, frozen = Setting(dtype="bfloat16", every=1), FROZEN[trains]
    comparison = compared(QWEN25, setting, frozen, monkeypatch, of_tower)
    assert abs(comparison.peak) <= PEAK, str(comparison)
    assert comparison.worst <= HELD, str(comparison)


def test_rows_of_a_model_that_sees_get_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compared(QWEN25, Setting(dtype="bfloat16"), ("vision_tower",), monkeypatch, labels=5)
    assert abs(comparison.peak) <= PEAK, str(comparison)
    assert comparison.worst <= HELD, str(comparison)


def compared(
    config: dict[str, Any],
    setting: Setting,
    frozen: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    of_tower: str = "as_decoder",
    labels: int = 0,
) -> Comparison:
    more = {"row_output": "score", "labels": labels} if labels else {}
    ours = in_meta(spec_of({**facts_of(config, setting, frozen), "tower_checkpointing": of_tower, **more}))
    count = setting.rows * SIDE * SIDE
    module = f"transformers.models.{config['model_type']}.modeling_{config['model_type']}"
    windows = Sizes(*[16] * (count // 16))
    known = {
        "torch_compilable_check": lambda *_: None,
        "get_vision_position_ids": lambda *_, **__: torch.zeros((count, 2), dtype=torch.int64),
        "get_vision_attention_seqlens": lambda *_, **__: (Sizes(*[SIDE * SIDE] * setting.rows), SIDE * SIDE),
        "get_max_seqlen": lambda *_, **__: SIDE * SIDE,
    }
    if config["model_type"] == "qwen2_5_vl":
        known["get_vision_window_index"] = lambda *_, **__: (torch.zeros(count // 4, dtype=torch.int64), windows)
    if config["model_type"] in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5"):
        known["get_vision_interpolation_indices_and_weights"] = lambda *_, **__: (
            torch.zeros((count, 4), dtype=torch.int64),
            torch.zeros((count, 4)),
        )
    if config["model_type"] in ("qwen3_vl", "qwen3_vl_moe"):
        within = "Qwen3VLTextModel" if config["model_type"] == "qwen3_vl" else "Qwen3VLMoeTextModel"
        known[f"{within}._deepstack_process"] = added
    for name, value in known.items():
        monkeypatch.setattr(f"{module}.{name}", value)
    with values_known(False):
        reference = in_transformers(config, setting, frozen, of_tower, labels)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    return compare(f"{frozen} {setting} {of_tower}", ours, truth, setting.every > 0)
