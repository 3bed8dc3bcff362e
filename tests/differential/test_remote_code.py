"""Decoders whose code comes with their weights: their memory over meta tensors and in torch (``remote_code.py``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.differential import remote_code
from tests.differential import remote_code_like_llama as like_llama
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of
from tests.differential.training import Comparison, compare, in_meta, in_torch
from tests.models.remote_models import CONFIGS

MODELS: dict[str, Any] = {
    **dict.fromkeys(("baichuan of 7B", "baichuan of 13B", "baichuan2 of 7B", "baichuan2 of 13B"), like_llama.Baichuan),
    "chatglm": remote_code.FirstGlm,
    "chatglm2": remote_code.TokensFirstGlm,
    "glm4": remote_code.Glm,
    "internlm": like_llama.InternLm,
    "minicpm": like_llama.MiniCpm,
    "qwen": remote_code.Qwen,
}
SETTINGS = {
    "in bfloat16": Setting(dtype="bfloat16"),
    "under autocast": Setting(dtype="bfloat16", autocast="bfloat16"),
    "recomputed": Setting(dtype="bfloat16", autocast="bfloat16", every=1, reentrant=True),
    "padded": Setting(dtype="bfloat16", padded=True),
    "of one row": Setting(dtype="bfloat16", autocast="bfloat16", rows=1, length=96),
    "with rows of odd length": Setting(dtype="bfloat16", rows=3, length=50, accumulation=2),
}


def in_own_code(name: str, config: dict[str, Any], setting: Setting) -> SimpleNamespace:
    def build_model(_: Any) -> Any:
        torch.set_default_dtype(getattr(torch, setting.dtype))
        try:
            model = MODELS[name](SimpleNamespace(**config))
        finally:
            torch.set_default_dtype(torch.float32)
        model.every, model.padded = setting.every, setting.padded
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape = (setting.rows, setting.length)
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch)
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def run(name: str, config: dict[str, Any], setting: Setting) -> Comparison:
    ours = in_meta(spec_of(setting.facts(config)))
    truth = in_torch(
        in_own_code(name, config, setting),
        {},
        adamw(setting.optimizer),
        setting.accumulation,
        autocast=setting.autocast or "float32",
    )
    return compare(f"{config} {setting}", ours, truth, setting.every > 0)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_takes_the_memory_that_its_own_code_takes(name: str, setting: Setting) -> None:
    comparison = run(name, CONFIGS[name], setting)
    assert comparison.worst <= TOLERANCE, str(comparison)
