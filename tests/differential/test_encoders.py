"""Encoders: the static step against transformers' own code, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, masking_utils

from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
}

# A name of the case -> config.json of a small model; its model type is the name's first word.
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "camembert": SIZES,
    "electra": {**SIZES, "embedding_size": 64},
    "electra as wide as its tables": {**SIZES, "embedding_size": 128},
    "distilbert": {
        "vocab_size": 1000, "dim": 128, "hidden_dim": 352, "n_layers": 3, "n_heads": 8, "max_position_embeddings": 256,
    },
    "albert": {**SIZES, "embedding_size": 64},
    "albert with two groups and dropout": {
        **SIZES, "num_hidden_layers": 4, "embedding_size": 64, "num_hidden_groups": 2, "inner_group_num": 2,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
    "mpnet": SIZES,
}  # fmt: skip

CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "masked_lm": "AutoModelForMaskedLM",
}


def in_transformers(config: dict[str, Any], setting: Setting, task: str, labels: int) -> SimpleNamespace:
    """What tests.differential.training expects of a reference model."""

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.num_labels = labels
        dtype = getattr(torch, setting.dtype)
        model = getattr(transformers, CLASSES[task]).from_config(
            made, dtype=dtype, attn_implementation=setting.attention
        )
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        tokens, rows = (setting.rows, setting.length), (setting.rows,)
        batch = {name: torch.zeros(tokens, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        if task == "question_answering":
            named = {"start_positions": rows, "end_positions": rows}
        else:
            named = {"labels": rows if task == "sequence_classification" else tokens}
        dtype = torch.float32 if labels == 1 else torch.int64
        return {**batch, **{name: torch.zeros(shape, dtype=dtype) for name, shape in named.items()}}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def run(
    monkeypatch: pytest.MonkeyPatch, name: str, setting: Setting, task: str, labels: int = 3, **facts: Any
) -> Comparison:
    labels = 2 if task == "question_answering" else labels
    config = {"model_type": name.split()[0], **CONFIGS[name]}
    given = {**setting.facts(config), "model_class": task, "labels": labels, **facts}
    ours = in_meta(spec_of(given))
    # Fake tensors have no values that would say whether a row is padded, so transformers is told.
    monkeypatch.setattr(
        masking_utils,
        "_ignore_bidirectional_mask_sdpa",
        lambda _, length, window=None: not setting.padded and (window is None or length < window),
    )
    with values_known(setting.padded):
        reference = in_transformers(config, setting, task, labels)
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    return compare(f"{config} {task} {setting}", ours, truth, setting.every > 0)


# Two ways to train that differ in everything; between them each model type meets every mechanism once.
WAYS = {
    "in fp32, rows classified": (Setting(), "sequence_classification"),
    "under autocast, tokens classified": (Setting(autocast="float16", attention="eager"), "token_classification"),
    "in bfloat16, padded, spans": (Setting(dtype="bfloat16", padded=True), "question_answering"),
    "under autocast with checkpointing, words": (Setting(autocast="bfloat16", every=1, attention="eager"), "masked_lm"),
}
WITHOUT_CHECKPOINTING = ("albert", "mpnet")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONFIGS)
def test_each_encoder_takes_the_memory_that_transformers_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, task = WAYS[way]
    if name.startswith(WITHOUT_CHECKPOINTING):
        setting = setting._replace(every=0)
    if name == "mpnet":
        setting = setting._replace(attention="eager")
    comparison = run(monkeypatch, name, setting, task)
    assert comparison.worst <= TOLERANCE, str(comparison)
