"""Trainers of embeddings and of scores of pairs: the static step against the same on transformers' own models, traced
with CUDA's semantics. What is made of states is written as FlagEmbedding 1.4 and Tevatron make it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as functional
import transformers
from transformers import AutoConfig, masking_utils
from transformers.initialization import no_init_weights

from tests.differential import test_encoders as encoders
from tests.differential import test_language_models as decoders
from tests.differential.test_adapters import adapted
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

ROWS, GROUP, QUERY, PASSAGE = 2, 3, 16, 48
FACTS: dict[str, Any] = {
    "model_class": "embeddings",
    "query_length": QUERY,
    "sequences_per_sample": GROUP,
    "embedding_normalized": True,
}
# What tokenizers say beside token numbers and the mask of padding.
SEGMENTS = ("bert", "electra", "albert")


def ids(kind: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if kind in SEGMENTS else [])
    return {name: torch.zeros((rows, length), dtype=torch.int64) for name in names}


def cut(texts: dict[str, torch.Tensor], piece: int) -> list[dict[str, torch.Tensor]]:
    count = len(texts["input_ids"])
    return [
        {name: torch.zeros_like(value[start : start + piece]) for name, value in texts.items()}
        for start in range(0, count, piece or count)
    ] if piece else [texts]  # fmt: skip


def vectors(model: Any, pieces: list[dict[str, torch.Tensor]], facts: dict[str, Any]) -> torch.Tensor:
    found = []
    for piece in pieces:
        states, mask = model(**piece, return_dict=True).last_hidden_state, piece["attention_mask"]
        pooling = facts.get("embedding_pooling", "cls")
        if pooling == "cls":
            found.append(states[:, 0])
        elif pooling == "last":
            found.append(states[:, -1])
        elif pooling == "mean":
            found.append(torch.sum(states * mask.unsqueeze(-1).float(), dim=1) / mask.sum(1, keepdim=True).float())
        elif pooling == "masked_mean":
            found.append(states.masked_fill(~mask[..., None].bool(), 0.0).sum(dim=1) / mask.sum(dim=1)[..., None])
        else:
            found.append(states[torch.arange(len(mask)), mask.sum(dim=1) - 1])
        del states
    made = torch.cat(found, 0).contiguous() if len(found) > 1 else found[0]
    if facts.get("embedding_normalized"):
        made = functional.normalize(made, dim=-1)
    return made.contiguous()


def every_rank(x: torch.Tensor, ranks: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(ranks)]
    parts[0] = x
    return torch.cat(parts, dim=0)


def contrasted(queries: torch.Tensor, passages: torch.Tensor, facts: dict[str, Any]) -> torch.Tensor:
    negatives, teacher = facts.get("negatives", "in_batch"), None
    if facts.get("distillation"):
        teacher = torch.zeros((ROWS, GROUP))
    if negatives == "across_devices":
        queries, passages = every_rank(queries, facts["device_count"]), every_rank(passages, facts["device_count"])
    if negatives == "own":
        grouped = passages.view(queries.size(0), GROUP, -1)
        scores = torch.matmul(queries[:, None, :], grouped.transpose(-2, -1)).squeeze(1) / 0.02
    else:
        scores = torch.matmul(queries, passages.transpose(0, 1)) / 0.02
    scores = scores.view(queries.size(0), -1)
    targets = torch.arange(queries.size(0)) * GROUP
    if teacher is None:
        return functional.cross_entropy(scores, targets)
    if facts["distillation"] == "kl_div":
        columns = [scores[torch.arange(len(queries)), targets + number] for number in range(GROUP)]
        own = torch.stack(columns, dim=1).view(len(queries), -1)
        if negatives == "across_devices":
            own = own[:ROWS]
        loss = -torch.mean(torch.sum(torch.log_softmax(own, dim=-1) * teacher, dim=-1))
        return loss + functional.cross_entropy(scores, targets)
    loss = torch.zeros(())
    mask = torch.zeros_like(scores)
    for number in range(GROUP):
        target = targets + number
        loss = loss + torch.mean(teacher[:, number] * functional.cross_entropy(scores + mask, target, reduction="none"))
        mask = torch.scatter(mask, dim=-1, index=target.unsqueeze(-1), value=-1e4)
    return loss


def embedding(config: dict[str, Any], setting: Setting, facts: dict[str, Any]) -> SimpleNamespace:
    kind = str(config["model_type"])

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache = False
        with no_init_weights():  # ModernBERT's are drawn until they suit it: fake numbers never do
            model = transformers.AutoModel.from_config(
                made, dtype=getattr(torch, setting.dtype), attn_implementation=setting.attention
            )
        if setting.every:
            model.gradient_checkpointing_enable({"use_reentrant": setting.reentrant})
            model.enable_input_require_grads()
        for name, weight in model.named_parameters():
            if "positions" in facts.get("frozen_parts", ()) and "position_embeddings" in name:
                weight.requires_grad = False
        return model.train()

    def make_batch(_: Any) -> Any:
        piece = facts.get("sub_batch_size", 0)
        return cut(ids(kind, ROWS, QUERY), piece), cut(ids(kind, ROWS * GROUP, PASSAGE), piece)

    def training_loss(model: Any, batch: Any) -> torch.Tensor:
        queries = vectors(model, batch[0], facts)
        passages = vectors(model, batch[1], facts)
        return contrasted(queries, passages, facts)

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def known(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    """Fake tensors have no values that would say whether a row is padded, so transformers is told."""
    monkeypatch.setattr(
        masking_utils,
        "_ignore_bidirectional_mask_sdpa",
        lambda _, length, window=None: not setting.padded and (window is None or length < window),
    )


def run(reference: SimpleNamespace, config: dict[str, Any], setting: Setting, facts: dict[str, Any]) -> Comparison:
    ours = in_meta(spec_of({**setting.facts(config), **facts}))
    with values_known(setting.padded):
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    return compare(f"{config} {facts} {setting}", ours, truth, setting.every > 0)


PLAIN = Setting(ROWS, PASSAGE)
MIXED = Setting(ROWS, PASSAGE, autocast="float16", padded=True)
HALF = Setting(ROWS, PASSAGE, dtype="bfloat16", autocast="bfloat16")
CASES: dict[str, tuple[str, Setting, dict[str, Any]]] = {
    "BERT in fp32, the first token": ("bert", PLAIN, {}),
    "BERT under autocast, padded, recomputed, all devices": (
        "bert", MIXED._replace(every=1, reentrant=True), {"negatives": "across_devices", "device_count": 3},
    ),
    "BERT in pieces, positions frozen": ("bert", MIXED, {"sub_batch_size": 2, "frozen_parts": ["positions"]}),
    "XLM-R, the mean, a teacher": (
        "xlm-roberta", MIXED, {"embedding_pooling": "mean", "distillation": "kl_div"},
    ),
    "XLM-R accumulates, BGE-M3's teacher": (
        "xlm-roberta", PLAIN._replace(accumulation=2), {"distillation": "m3_kd_loss"},
    ),
    "MPNet, passages of its own alone": (
        "mpnet", PLAIN._replace(attention="eager"), {"negatives": "own", "embedding_pooling": "mean"},
    ),
    "ModernBERT, not of one length": ("modernbert", PLAIN, {"embedding_normalized": False}),
    "Qwen2 in fp32, the last token": ("qwen2", PLAIN, {"embedding_pooling": "last"}),
    "Mistral in halves, the mean of what is left": (
        "mistral", HALF, {"embedding_pooling": "masked_mean"},
    ),
    "Mistral under autocast, recomputed, padded, the last token": (
        "mistral", MIXED._replace(every=1), {"embedding_pooling": "last"},
    ),
    "XLM-R, the end of each text": ("xlm-roberta", PLAIN, {"embedding_pooling": "end"}),
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    known_of = {
        **encoders.CONFIGS,
        **decoders.CONFIGS,
        "modernbert": encoders.CONFIGS["modernbert with windows as wide as the rows"],
    }
    return {"model_type": name, **known_of[name]}


@pytest.mark.parametrize("case", CASES)
def test_embeddings_take_the_memory_that_the_libraries_take(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, setting, more = CASES[case]
    config, facts = config_of(name), {**FACTS, **more}
    known(monkeypatch, setting)
    comparison = run(embedding(config, setting, facts), config, setting, facts)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_adapters_of_an_embedding_decoder_take_the_memory_that_peft_takes() -> None:
    setting = MIXED._replace(every=1, padded=False)
    config, targets = config_of("mistral"), ["q_proj", "v_proj", "down_proj"]
    facts = {**FACTS, "embedding_pooling": "last", "frozen_dtype": "float32", "tuning": "lora", "lora.r": 8,
             "lora.dropout": 0.1, "lora.targets": targets}  # fmt: skip
    adapter = peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=8, lora_dropout=0.1, target_modules=targets)
    comparison = run(adapted(embedding(config, setting, facts), adapter), config, setting, facts)
    assert comparison.worst <= TOLERANCE, str(comparison)


# ----------------------------------------------------------------------------------------------------------- pairs


def pairs(config: dict[str, Any], setting: Setting, facts: dict[str, Any]) -> SimpleNamespace:
    kind, says = str(config["model_type"]), facts["model_class"] == "causal_lm"

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache, made.num_labels, made.pad_token_id = False, 1, 0
        auto = transformers.AutoModelForCausalLM if says else transformers.AutoModelForSequenceClassification
        dtype = getattr(torch, setting.dtype)
        model = auto.from_config(made, dtype=dtype, attn_implementation=setting.attention)
        if setting.every:
            model.gradient_checkpointing_enable({"use_reentrant": setting.reentrant})
            model.enable_input_require_grads()
        return model.train()

    def make_batch(_: Any) -> Any:
        return ids(kind, ROWS * GROUP, PASSAGE)

    def scores(model: Any, batch: Any) -> torch.Tensor:
        if not says:
            found: torch.Tensor = model(**batch, return_dict=True).logits
            return found
        outputs = model(**batch, output_hidden_states=True)
        return outputs.logits[:, -1, 7].contiguous()  # type: ignore[no-any-return]

    def training_loss(model: Any, batch: Any) -> torch.Tensor:
        grouped = scores(model, batch).view(ROWS, -1)
        loss = functional.cross_entropy(grouped, torch.zeros(ROWS, dtype=torch.int64))
        if facts.get("distillation"):
            teacher = torch.zeros((ROWS, GROUP))
            loss = loss - torch.mean(torch.sum(torch.log_softmax(grouped, dim=-1) * teacher, dim=-1))
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


OF_PAIRS: dict[str, tuple[str, str, Setting, dict[str, Any]]] = {
    "BERT classifies": ("bert", "sequence_classification", MIXED, {"distillation": "kl_div"}),
    "XLM-R classifies, recomputed": ("xlm-roberta", "sequence_classification", PLAIN._replace(every=1), {}),
    "Qwen2 says yes": ("qwen2", "causal_lm", HALF, {}),
    "Llama classifies": ("llama", "sequence_classification", HALF, {}),
    "Mistral says yes, recomputed": ("mistral", "causal_lm", MIXED._replace(every=1, padded=False), {}),
}


@pytest.mark.parametrize("case", OF_PAIRS)
def test_scores_of_pairs_take_the_memory_that_the_library_takes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, kind, setting, more = OF_PAIRS[case]
    config = config_of(name)
    facts = {"model_class": kind, "method": "rerank", "sequences_per_sample": GROUP, "labels": 1, **more}
    known(monkeypatch, setting)
    comparison = run(pairs(config, setting, facts), config, setting, facts)
    assert comparison.worst <= TOLERANCE, str(comparison)
