"""What is asked of whole rows: the static step against the same on transformers' own models, traced with CUDA's
semantics. What is made of states is written as ms-swift 4.6 makes it (``model/patcher.py``, ``loss/``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as functional
import transformers
from torch import nn
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from tests.differential import test_language_models as decoders
from tests.differential.test_adapters import adapted
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

ROWS, SAMPLE, LENGTH = 2, 3, 48
COUNT = ROWS * SAMPLE


def last(x: torch.Tensor) -> torch.Tensor:
    return x[torch.zeros(len(x), dtype=torch.int64), torch.zeros(len(x), dtype=torch.int64)]


def apart(x: torch.Tensor) -> torch.Tensor:
    """Rows of one length, each filled up with nothing."""
    return torch.stack([torch.cat((torch.zeros((0, x.shape[-1]), dtype=x.dtype), row), dim=0) for row in x], dim=0)


class Asked(nn.Module):
    """transformers' decoder with a loss of rows."""

    def __init__(self, model: Any, facts: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.lm_head, self.facts = model.model, getattr(model, "lm_head", None), facts
        if facts["row_output"] == "score":
            self.score = nn.Linear(model.config.hidden_size, facts["labels"], bias=False, dtype=model.dtype)
            self.lm_head = None

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.model(input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state
        if self.facts.get("padding_free") and self.facts["row_output"] != "choice":
            x = apart(x)
        if self.facts["row_output"] == "vector":
            return self.of_vectors(functional.normalize(last(x), p=2, dim=1).contiguous())
        if self.facts["row_output"] == "score":
            return self.of_scores(last(self.score(x)))
        both = functional.linear(x, self.lm_head.weight[torch.zeros(2, dtype=torch.int64)])
        del x
        return self.of_scores(last(both[..., 0:1] - both[..., 1:2]))

    def of_scores(self, found: torch.Tensor) -> torch.Tensor:
        kind = self.facts["row_loss"]
        if kind == "pairs":
            scores = found.squeeze(1)
            return functional.binary_cross_entropy_with_logits(scores, torch.zeros(COUNT, dtype=scores.dtype))
        if kind == "classes":
            return functional.cross_entropy(found, torch.zeros(COUNT, dtype=torch.int64))
        scores, total = found.squeeze(-1), torch.zeros(())
        for start in range(0, COUNT, SAMPLE):
            group = scores[start : start + SAMPLE] / 0.5
            total = total + functional.cross_entropy(group[None], torch.zeros(1, dtype=torch.int64))
        return total / ROWS

    def of_vectors(self, found: torch.Tensor) -> torch.Tensor:
        if self.facts["row_loss"] == "similarity":
            first, second = found[list(range(0, COUNT, 2))], found[list(range(1, COUNT, 2))]
            same = torch.cosine_similarity(first, second)
            return functional.mse_loss(same, torch.zeros(len(same), dtype=same.dtype))
        samples = torch.stack([found[start : start + SAMPLE] for start in range(0, COUNT, SAMPLE)], dim=0)
        queries, passages = samples[:, 0].squeeze(1), samples[:, 1:].reshape(-1, samples.size(2))
        scores = torch.cat([torch.matmul(queries, passages.T)], dim=1) / 0.1
        return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))


def reference(config: dict[str, Any], setting: Setting, facts: dict[str, Any]) -> SimpleNamespace:
    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache = False
        with no_init_weights():
            model = transformers.AutoModelForCausalLM.from_config(
                made, dtype=getattr(torch, setting.dtype), attn_implementation=setting.attention
            )
        model.tie_weights()
        if setting.every:
            model.gradient_checkpointing_enable({"use_reentrant": setting.reentrant})
            model.enable_input_require_grads()
        return Asked(model, facts).train()

    def make_batch(_: Any) -> torch.Tensor:
        return torch.zeros((COUNT, LENGTH), dtype=torch.int64)

    def training_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch)
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


HALF = Setting(ROWS, LENGTH, dtype="bfloat16", autocast="bfloat16")
WIDE = Setting(ROWS, LENGTH, autocast="bfloat16", every=1)
CASES: dict[str, tuple[str, Setting, dict[str, Any]]] = {
    "vectors": ("qwen2", HALF, {"row_output": "vector", "row_loss": "contrast"}),
    "vectors of samples in one row": (
        "llama", HALF._replace(every=1), {"row_output": "vector", "row_loss": "similarity", "padding_free": True},
    ),
    "scores of pairs": ("qwen2", HALF, {"row_output": "score", "row_loss": "pairs", "labels": 1}),
    "classes of rows in one": (
        "llama", HALF, {"row_output": "score", "row_loss": "classes", "labels": 5, "padding_free": True},
    ),
    "scores of a group": ("llama", HALF._replace(every=1), {"row_output": "score", "row_loss": "group", "labels": 1}),
    "which of two words": ("qwen2", HALF, {"row_output": "choice", "row_loss": "pairs"}),
    "which of two words, recomputed": ("llama", HALF._replace(every=1), {"row_output": "choice", "row_loss": "group"}),
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    return {"model_type": name, **decoders.CONFIGS[name]}


def run(made: SimpleNamespace, config: dict[str, Any], setting: Setting, facts: dict[str, Any]) -> Comparison:
    ours = in_meta(spec_of({**setting.facts(config), "sequences_per_sample": SAMPLE, **facts}))
    with values_known(setting.padded):
        truth = in_torch(made, {}, adamw(setting.optimizer), autocast=setting.autocast or "float32")
    return compare(f"{config} {facts} {setting}", ours, truth, setting.every > 0)


@pytest.mark.parametrize("case", CASES)
def test_rows_take_the_memory_that_the_library_takes(case: str) -> None:
    name, setting, facts = CASES[case]
    config = config_of(name)
    comparison = run(reference(config, setting, facts), config, setting, facts)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_a_score_trains_in_full_beside_adapters() -> None:
    setting, config, targets = WIDE, config_of("qwen2"), ["q_proj", "v_proj", "down_proj"]
    facts = {"row_output": "score", "row_loss": "pairs", "labels": 1, "frozen_dtype": "float32", "tuning": "lora",
             "lora.r": 8, "lora.dropout": 0.1, "lora.targets": targets}  # fmt: skip
    adapter = peft.LoraConfig(r=8, lora_dropout=0.1, target_modules=targets, modules_to_save=["score"])
    comparison = run(adapted(reference(config, setting, facts), adapter), config, setting, facts)
    assert comparison.worst <= TOLERANCE, str(comparison)
