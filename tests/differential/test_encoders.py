"""Encoders: the static step against transformers' own code, traced with CUDA's semantics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import transformers
from transformers import AutoConfig, masking_utils
from transformers.initialization import no_init_weights

from tests.differential import test_language_models as decoders
from tests.differential.test_adapters import adapted
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
    "modernbert with windows as wide as the rows": {**SIZES, "pad_token_id": 0},
    "modernbert": {
        **SIZES, "num_hidden_layers": 4, "local_attention": 24, "pad_token_id": 0, "classifier_pooling": "mean",
        "attention_dropout": 0.1, "embedding_dropout": 0.1, "mlp_dropout": 0.1, "classifier_dropout": 0.1,
    },
    "deberta-v2": {
        **SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_biased_input": False, "position_buckets": 16, "type_vocab_size": 0,
    },
    "deberta-v2 with products of its own for distances": {
        **SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
        "max_relative_positions": 40, "type_vocab_size": 2, "pooler_dropout": 0.1, "embedding_size": 64,
    },
    "deberta-v2 with a convolution": {
        **SIZES, "num_hidden_layers": 2, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_biased_input": False, "position_buckets": 16, "type_vocab_size": 0,
        "conv_kernel_size": 3, "conv_act": "gelu",
    },
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
        made.problem_type = "regression" if labels == 1 else "single_label_classification"
        dtype = getattr(torch, setting.dtype)
        with no_init_weights():  # ModernBERT's are drawn until they suit it: fake numbers never do
            model = getattr(transformers, CLASSES[task]).from_config(
                made, dtype=dtype, attn_implementation=setting.attention
            )
        model.tie_weights()
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


MIXED = Setting(autocast="bfloat16", every=1)
# Two ways to train that differ in everything; between them each model type meets every mechanism once.
WAYS = {
    "in fp32, rows classified": (Setting(), "sequence_classification"),
    "under autocast, tokens classified": (Setting(autocast="float16", attention="eager"), "token_classification"),
    "in bfloat16, padded, spans": (Setting(dtype="bfloat16", padded=True), "question_answering"),
    "under autocast with checkpointing, words": (Setting(autocast="bfloat16", every=1, attention="eager"), "masked_lm"),
}
WITHOUT_CHECKPOINTING = ("albert", "mpnet")
# Copies of RoBERTa's code: one way tells whether they still are.
COPIES = ("xlm-roberta", "camembert")
MET = {**dict.fromkeys(COPIES, (3,)), "deberta-v2 with a convolution": (3,)}
CASES = [(name, way) for name in CONFIGS for number, way in enumerate(WAYS) if number in MET.get(name, range(4))]


@pytest.mark.parametrize(("name", "way"), CASES, ids=[f"{name} {way}" for name, way in CASES])
def test_each_encoder_takes_the_memory_that_transformers_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, task = WAYS[way]
    if name.startswith(WITHOUT_CHECKPOINTING):
        setting = setting._replace(every=0)
    if name.startswith(("mpnet", "deberta")):
        setting = setting._replace(attention="eager")
    comparison = run(monkeypatch, name, setting, task)
    assert comparison.worst <= TOLERANCE, str(comparison)


DECODERS = {"llama": decoders.SIZES, "gpt2": decoders.CONFIGS["gpt2"], "qwen2": decoders.CONFIGS["qwen2"]}


@pytest.mark.parametrize("labels", [1, 4], ids=["a reward", "four classes"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_that_classify_rows_take_the_memory_that_transformers_takes(
    name: str, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, name, {**DECODERS[name], "pad_token_id": 0, "use_cache": False})
    setting = Setting(dtype="bfloat16") if labels == 1 else Setting(autocast="bfloat16", every=1)
    comparison = run(monkeypatch, name, setting, "sequence_classification", labels)
    assert comparison.worst <= TOLERANCE, str(comparison)


def scoring_pairs(setting: Setting, passes: int) -> SimpleNamespace:
    """A reward model whose pairs' answers go through it together, or one after the other."""

    def make_batch(_: Any) -> list[dict[str, torch.Tensor]]:
        tokens = (2 * setting.rows // passes, setting.length)
        names = ("input_ids", "attention_mask")
        return [{name: torch.zeros(tokens, dtype=torch.int64) for name in names} for _ in range(passes)]

    def training_loss(model: Any, batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        rewards = [model(**batch)[0] for batch in batches]
        chosen, rejected = rewards if passes == 2 else (rewards[0][0::2], rewards[0][1::2])
        loss: torch.Tensor = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
        return loss

    made = in_transformers({"model_type": "llama", **CONFIGS["llama"]}, setting, "sequence_classification", 1)
    return SimpleNamespace(build_model=made.build_model, make_batch=make_batch, training_loss=training_loss)


@pytest.mark.parametrize("setting", [Setting(dtype="bfloat16"), MIXED], ids=["in bfloat16", "recomputed"])
@pytest.mark.parametrize("passes", [1, 2], ids=["in one pass", "in turn"])
def test_pairs_that_a_program_scores_take_the_memory_that_torch_takes(
    passes: int, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, "llama", {**DECODERS["llama"], "pad_token_id": 0, "use_cache": False})
    config = {"model_type": "llama", **CONFIGS["llama"]}
    given = {"model_class": "sequence_classification", "labels": 1, "sequences_per_sample": 2}
    ours = in_meta(spec_of({**setting.facts(config), **given, "forward_passes": passes}))
    with values_known(setting.padded):
        reference = scoring_pairs(setting, passes)
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    comparison = compare(f"{passes} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


ADAPTED = {
    "rows classified, in fp32": (Setting(), "sequence_classification", "SEQ_CLS"),
    "tokens classified, under autocast": (Setting(autocast="bfloat16"), "token_classification", "TOKEN_CLS"),
}


@pytest.mark.parametrize(("setting", "task", "kind"), ADAPTED.values(), ids=ADAPTED)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_lora_trains_the_classifier_in_full(name: str, setting: Setting, task: str, kind: str) -> None:
    config = {"model_type": name, **CONFIGS[name]}
    facts = {"model_class": task, "labels": 3, "tuning": "lora", "lora.r": 8, "lora.targets": ["query", "value"]}
    ours = in_meta(spec_of({**setting.facts(config), "frozen_dtype": "float32", **facts}))
    adapter = peft.LoraConfig(task_type=kind, r=8, target_modules=["query", "value"])
    with values_known(False):
        reference = adapted(in_transformers(config, setting, task, 3), adapter)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{name} {task} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
