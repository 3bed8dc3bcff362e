"""Methods that ask more of a model than a loss: mismatched completions, values of tokens, samples of its own; against
transformers' models in loops that are written as the libraries write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from memlint.models import record
from tests.differential.test_language_models import (
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, difference, fake_cuda, in_meta, in_torch, walk

LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES}
MANY_HEADS: dict[str, Any] = {**LLAMA, "num_key_value_heads": 8}


def log_probabilities(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B,): of whole rows, through fp32 logits."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
    rows = logits[:, :-1].log_softmax(-1)
    labels = batch["labels"][:, 1:].contiguous().unsqueeze(-1)
    return torch.gather(rows, -1, labels).squeeze(-1).sum(1)


class Pair(torch.nn.Module):
    def __init__(self, policy: torch.nn.Module, reference: torch.nn.Module) -> None:
        super().__init__()
        self.policy, self.reference = policy, reference.requires_grad_(False)


def kto_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """LLaMA-Factory's order: the policy's own pass, its mismatched one, then the reference's two."""
    own = log_probabilities(model.policy, batch)
    with torch.no_grad():
        others = log_probabilities(model.policy, batch)
    with torch.no_grad():
        their_others = log_probabilities(model.reference, batch)
        theirs = log_probabilities(model.reference, batch)
        del their_others
    margin = own - theirs
    del others
    return -margin.sigmoid().sum() / 1.0


def test_kto_takes_the_memory_of_four_passes() -> None:
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "method": "kto", "reference_model": "copy"}))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        plain = in_transformers(LLAMA, setting._replace(every=0))
        build = reference.build_model
        reference.build_model = lambda given: Pair(build(given), plain.build_model(given))
        reference.training_loss = kto_loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{setting}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


class Valued(torch.nn.Module):
    """A head of one value per token beside the model's own, as TRL's ``AutoModelForCausalLMWithValueHead`` has it."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model, self.dropout = model, torch.nn.Dropout(0.1)
        self.summary = torch.nn.Linear(width, 1, dtype=torch.float32)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
        )
        hidden = self.dropout(out.hidden_states[-1])
        if hidden.dtype is not torch.float32:
            hidden = hidden.to(torch.float32)
        values = self.summary(hidden).squeeze(-1)
        logits = out.logits.float()
        del out, logits, hidden
        return values  # type: ignore[no-any-return]


def preferred(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    values = model(batch)
    ends = torch.zeros((values.shape[0],), dtype=torch.int64)
    rewards = values[ends, ends]
    return -rewards.sigmoid().sum() / 1.0


@pytest.mark.parametrize("every", [0, 1], ids=["in bfloat16", "checkpointed"])
def test_a_reward_model_with_a_value_head_runs_its_other_head_too(every: int) -> None:
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=every)
    facts = {**setting.facts(LLAMA), "micro_batch_size": 2, "sequences_per_sample": 2, "model_class": "value_head"}
    ours = in_meta(spec_of({**facts, "method": "reward"}))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        build = reference.build_model
        reference.build_model = lambda given: Valued(build(given), LLAMA["hidden_size"])
        reference.training_loss = preferred
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{setting}", ours, truth, bool(every))
    # Of layers that are not recomputed, hidden states that nobody saves live on until the values are there.
    assert comparison.worst <= 0.025, str(comparison)


ROWS, PROMPT, COMPLETION = 6, 40, 60


def sampled(config: dict[str, Any]) -> int:
    """The most alive while ``ROWS`` completions are sampled, beyond the weights; the last tokens alone need it."""
    with values_known(True), fake_cuda() as tracker:
        model = in_transformers(config, Setting(dtype="bfloat16")).build_model({})
        start = tracker.live_bytes
        tracker.reset_peak()
        with torch.no_grad():
            tokens = torch.zeros((ROWS, PROMPT + COMPLETION), dtype=torch.int64)
            cache = DynamicCache(config=model.config)
            at = 0
            for count in (PROMPT, *[1] * (COMPLETION - 1)):
                mask = torch.zeros((ROWS, at + count), dtype=torch.int64)
                out = model(
                    input_ids=tokens[:, at : at + count],
                    attention_mask=mask,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                scores = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
                probabilities = scores.softmax(-1)
                del out, scores, probabilities, mask
                at += count
        return int(tracker.peak_bytes) - start


@pytest.mark.parametrize("config", [LLAMA, MANY_HEADS], ids=["shared keys are repeated", "a key for every head"])
def test_sampling_takes_the_memory_of_its_cache(config: dict[str, Any]) -> None:
    setting = Setting(dtype="bfloat16", rows=1, length=PROMPT + COMPLETION)
    facts = {"method": "grpo", "generated_rows": ROWS, "completion_length": COMPLETION}
    made = record(spec_of({**setting.facts(config), **facts}))
    peaks, _ = walk(made.tape)
    phases = [name for _, name in made.tape.marks]
    assert phases[:3] == ["setup", "generation", "forward"]
    states = sum(made.tape.sizes[event] for event in made.tape.events[: made.tape.marks[1][0]] if event >= 0)
    ours = peaks["generation"] - states
    cache = 2 * config["num_hidden_layers"] * ROWS * config["num_key_value_heads"] * 16 * (PROMPT + COMPLETION) * 2
    assert ours > cache
    assert abs(difference(ours, sampled(config))) < 0.05


def test_nothing_of_a_sample_is_left_for_the_step() -> None:
    setting = Setting(dtype="bfloat16", rows=2, length=64)
    plain = in_meta(spec_of({**setting.facts(LLAMA), "method": "grpo"}))
    facts = {**setting.facts(LLAMA), "method": "grpo", "generated_rows": 8, "completion_length": 32}
    assert in_meta(spec_of(facts)) == plain


EVALUATED = {"evaluation_batch_size": 8, "evaluation_sequence_length": 64, "method": "sft"}


def test_an_evaluation_makes_logits_where_the_loss_does() -> None:
    """In fp32, beside those of the model's dtype; a loss in tiles is one in evaluation, too."""
    setting = Setting(dtype="bfloat16", rows=1, length=64)
    facts = {**setting.facts(LLAMA), **EVALUATED}
    whole, tiled = (
        walk(record(spec_of({**facts, **loss})).tape)[0]["evaluation"]
        for loss in ({}, {"loss": "chunked", "loss_tile": (128, 500)})
    )
    assert whole - tiled > 8 * 64 * LLAMA["vocab_size"] * 4


def test_an_evaluation_of_pairs_has_both_answers() -> None:
    setting = Setting(dtype="bfloat16", rows=1, length=64)
    facts = {**setting.facts(LLAMA), **EVALUATED, "method": "dpo", "reference_model": "none"}
    pairs = record(spec_of({**facts, "sequences_per_sample": 2}))
    single = record(spec_of({**facts, "evaluation_batch_size": 16}))
    assert walk(pairs.tape)[0]["evaluation"] == pytest.approx(walk(single.tape)[0]["evaluation"], rel=0.01)
