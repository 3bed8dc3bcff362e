"""Parameters that train by patterns over their names, in transformers' models: Axolotl's ``unfrozen_parameters``."""

from __future__ import annotations

import re
from typing import Any

import pytest

from memlint.models import UnknownModel, record
from tests.differential.test_language_models import (
    CONFIGS,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, in_meta, in_torch

CASES: dict[str, tuple[str, list[str], Setting]] = {
    "the head alone": ("llama", [r"lm_head\."], Setting(dtype="bfloat16")),
    "some layers": ("qwen3", [r"model\.layers\.[1-2]+\.mlp", r"model\.norm"], Setting(dtype="bfloat16")),
    "some layers, recomputed": ("qwen3", [r"model\.layers\.[1-2]+\."], Setting(autocast="bfloat16", every=1)),
    "experts, a head and embeddings": (
        "qwen3_moe", [r"model\.layers\.2\.mlp\.experts", "^lm_head", "^model.embed_tokens"], Setting(dtype="bfloat16"),
    ),
    "embeddings that are tied": ("gemma3_text", [r"^model\.embed"], Setting(dtype="bfloat16")),
}  # fmt: skip


def frozen(model: Any, patterns: list[str]) -> Any:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = any(re.match(pattern, name) for pattern in patterns)
    if any("lm_head" in pattern or "embed_tokens" in pattern for pattern in patterns):
        model.enable_input_require_grads()
    return model


@pytest.mark.parametrize(("name", "patterns", "setting"), CASES.values(), ids=CASES)
def test_what_a_pattern_fits_trains(name: str, patterns: list[str], setting: Setting) -> None:
    config = {"model_type": name, **CONFIGS[name]}
    ours = in_meta(spec_of({**setting.facts(config), "freeze.patterns": patterns}))
    with values_known(False):
        reference = in_transformers(config, setting)
        build = reference.build_model
        reference.build_model = lambda given: frozen(build(given), patterns)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{name} {patterns} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


def trained(name: str, patterns: list[str], **facts: Any) -> int:
    config = {"model_type": name, **CONFIGS[name]}
    return record(spec_of({**Setting().facts(config), "freeze.patterns": patterns, **facts})).trainable_parameters


def test_beside_an_adapter_names_begin_with_peft_s() -> None:
    lora = {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj"], "frozen_dtype": "float32"}
    assert trained("llama", [r"^model\.", r"^lm_head"], **lora) == 0
    assert trained("llama", [r".*lora_"], **lora) == 3 * 8 * (128 + 128)


def test_experts_have_other_names_before_transformers_5() -> None:
    pattern = [r"model\.layers\.0\.block_sparse_moe\.gate"]
    assert trained("mixtral", pattern) == 0
    assert trained("mixtral", pattern, transformers_version="4.57.6") == 4 * 128


def test_names_that_are_not_known_are_said() -> None:
    with pytest.raises(UnknownModel, match="what the parameters of gpt2 are called"):
        trained("gpt2", [r"transformer\.h"])
