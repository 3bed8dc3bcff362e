"""Training loops that still name the model's outputs: against transformers and PEFT, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest

from tests.differential.test_adapters import with_adapter
from tests.differential.test_language_models import CONFIGS, Setting, adamw, in_transformers, spec_of, values_known
from tests.differential.training import compare, in_meta, in_torch

PLAIN = Setting(dtype="bfloat16")
TASK: dict[str, Any] = {"task_type": "CAUSAL_LM"}
FULL = {"tuning": "full"}
LORA = {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj", "v_proj"]}
PREFIX = {"tuning": "prefix", "adapter.virtual_tokens": 12}
PROMPT = {"tuning": "prompt", "adapter.virtual_tokens": 12}
OF_LORA = peft.LoraConfig(**TASK, r=8, target_modules=["q_proj", "v_proj"])
OF_PREFIX = peft.PrefixTuningConfig(**TASK, num_virtual_tokens=12)
OF_PROMPT = peft.PromptTuningConfig(**TASK, num_virtual_tokens=12)


def naming(reference: SimpleNamespace) -> SimpleNamespace:
    """The same model in a loop whose variable holds what the last call returned."""
    build, loop = reference.build_model, SimpleNamespace(outputs=None)

    def build_model(given: Any) -> Any:
        model = build(given)
        model.config.use_cache = True  # what a model's config says where no trainer has changed it
        return model

    def training_loss(model: Any, batch: Any) -> Any:
        loop.outputs = model(**batch)
        return loop.outputs.loss

    reference.build_model, reference.training_loss = build_model, training_loss
    return reference


@pytest.mark.parametrize(
    ("name", "facts", "adapter", "setting"),
    [
        pytest.param("llama", FULL, None, PLAIN, id="a model that trains whole"),
        pytest.param("llama", FULL, None, PLAIN._replace(padded=True, accumulation=2), id="in micro batches, padded"),
        pytest.param("qwen2", FULL, None, Setting(autocast="bfloat16"), id="under autocast"),
        pytest.param("llama", FULL, None, PLAIN._replace(every=1), id="recomputed layers take no cache"),
        pytest.param("llama", FULL, None, PLAIN._replace(attention="eager"), id="eager attention"),
        pytest.param("gpt2", FULL, None, PLAIN, id="keys and values of one product"),
        pytest.param("llama", LORA, OF_LORA, PLAIN._replace(padded=True), id="beside an adapter"),
        pytest.param("llama", PREFIX, OF_PREFIX, PLAIN, id="behind a prefix, which stands in the cache already"),
        pytest.param("llama", PROMPT, OF_PROMPT, PLAIN, id="of virtual tokens too"),
    ],
)
def test_what_the_loop_names_lives_through_the_backward_pass(
    name: str, facts: dict[str, Any], adapter: Any, setting: Setting
) -> None:
    config = {"model_type": name, **CONFIGS[name]}
    own = {**setting.facts(config), **facts}
    if adapter is not None:
        own["frozen_dtype"] = setting.dtype
    ours, without = in_meta(spec_of({**own, "outputs_kept": True})), in_meta(spec_of(own))
    with values_known(setting.padded):
        reference = in_transformers(config, setting) if adapter is None else with_adapter(config, setting, adapter)
        autocast = setting.autocast or "float32"
        truth = in_torch(naming(reference), {}, adamw(setting.optimizer), setting.accumulation, autocast=autocast)
    comparison = compare(f"{name} {facts} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= 0.002, str(comparison)
    assert ours.peak > without.peak
