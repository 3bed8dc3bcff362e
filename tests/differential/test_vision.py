"""Vision transformers: the static step against transformers' own code, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 7,
}
DROPPING = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

# A name of the case -> config.json of a small model; its model type is the name's first word.
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": SIZES,
    "vit with dropout": {**SIZES, **DROPPING},
    "deit": SIZES,
    "dinov2": SIZES,
    "dinov2 with a gate, for larger images": {**SIZES, "use_swiglu_ffn": True, "image_size": 42},
    "dinov2 with skipped blocks": {**SIZES, "drop_path_rate": 0.1},
}
PIXELS = 56

WAYS = {
    "in fp32": Setting(),
    "in bfloat16": Setting(dtype="bfloat16"),
    "under autocast with probabilities": Setting(autocast="float16", attention="eager"),
    "under autocast with checkpointing": Setting(autocast="bfloat16", every=1),
}


def in_transformers(config: dict[str, Any], setting: Setting) -> SimpleNamespace:
    """What tests.differential.training expects of a reference model."""

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.num_labels = 10
        if config["model_type"] == "deit":  # which has two classes for the task
            made.architectures = ["DeiTForImageClassification"]
        kind = transformers.AutoModelForImageClassification
        dtype = getattr(torch, setting.dtype)
        with no_init_weights():  # which draws until the numbers suit it: fake ones never do
            model = kind.from_config(made, dtype=dtype, attn_implementation=setting.attention)
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        pixels = torch.zeros((setting.rows, 3, PIXELS, PIXELS))
        return {"pixel_values": pixels, "labels": torch.zeros(setting.rows, dtype=torch.int64)}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def run(name: str, setting: Setting) -> Comparison:
    config = {"model_type": name.split()[0], **CONFIGS[name]}
    given = {**setting.facts(config), "model_class": "image_classification", "labels": 10, "image_size": PIXELS}
    ours = in_meta(spec_of(given))
    with values_known(False):
        reference = in_transformers(config, setting)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    return compare(f"{config} {setting}", ours, truth, setting.every > 0)


CASES = [(name, way) for name in CONFIGS for number, way in enumerate(WAYS) if name == "vit" or number in (2, 3)]


@pytest.mark.parametrize(("name", "way"), CASES, ids=[f"{name} {way}" for name, way in CASES])
def test_each_image_classifier_takes_the_memory_that_transformers_takes(name: str, way: str) -> None:
    comparison = run(name, WAYS[way])
    assert comparison.worst <= TOLERANCE, str(comparison)


LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "vision_config": {"model_type": "clip_vision_model", **SIZES, "projection_dim": 64},
    "text_config": {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2,
    },
    "image_token_id": 7,
}  # fmt: skip
LENGTH = 96


def llava_in_transformers(setting: Setting, frozen: tuple[str, ...]) -> SimpleNamespace:
    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**LLAVA)
        made.use_cache = made.text_config.use_cache = False
        with no_init_weights():
            model = transformers.LlavaForConditionalGeneration._from_config(
                made, dtype=getattr(torch, setting.dtype), attn_implementation=setting.attention
            )
        parts = {"vision_tower": model.model.vision_tower, "projector": model.model.multi_modal_projector}
        for name in frozen:
            parts[name].requires_grad_(False)
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape = (setting.rows, LENGTH)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}
        pixels = torch.zeros((setting.rows, 3, PIXELS, PIXELS), dtype=getattr(torch, setting.dtype))
        return {**batch, "pixel_values": pixels}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


FROZEN: dict[str, tuple[str, ...]] = {
    "everything": (),
    "all but the tower": ("vision_tower",),
    "the decoder alone": ("vision_tower", "projector"),
}
LLAVA_CASES = [
    (trains, way)
    for trains in FROZEN
    for number, way in enumerate(WAYS)
    if number == 3 or (number == 0) == (trains == "everything")
]


@pytest.mark.parametrize(("trains", "way"), LLAVA_CASES, ids=[f"{trains} {way}" for trains, way in LLAVA_CASES])
def test_llava_takes_the_memory_that_transformers_takes(trains: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, frozen = WAYS[way], FROZEN[trains]
    facts = setting._replace(length=LENGTH).facts(LLAVA)
    ours = in_meta(spec_of({**facts, "model_class": "vision_language", "frozen_parts": list(frozen)}))
    # Fake tensors cannot tell whether there are as many tokens as features.
    monkeypatch.setattr("transformers.models.llava.modeling_llava.torch_compilable_check", lambda *_: None)
    with values_known(False):
        reference = llava_in_transformers(setting, frozen)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{frozen} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
