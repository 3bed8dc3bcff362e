"""How trainers score the tokens of logits (TRL, OpenRLHF, open-instruct, verl, NeMo RL), against torch's run of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from memlint.models import record
from tests.differential.oracle import fake_cuda, live_and_peak
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, in_transformers, spec_of, values_known
from tests.differential.test_mechanisms import LLAMA, Pair
from tests.differential.training import compare, in_meta, in_torch


class LogSumExp(torch.autograd.Function):
    """By what ATen allocates on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        largest = x.amax(-1, keepdim=True)
        shifted = (x - largest).exp_()
        out = shifted.sum(-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x, out = ctx.saved_tensors
        difference = x - out.unsqueeze(-1)
        exponentials = difference.exp()
        return gradient.unsqueeze(-1) * exponentials


class Kernel(torch.autograd.Function):
    """``_LogProbEntropyFunction``, by what it allocates."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        out, _, normaliser, expected = (torch.empty(logits.shape[:-1]) for _ in range(4))
        ctx.save_for_backward(logits, labels, normaliser, expected)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.empty(ctx.saved_tensors[0].shape), None


def picked(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """TRL's ``selective_log_softmax`` to 1.9, of logits in fp32 and in 16 bits."""
    if logits.dtype is torch.float32:
        own = torch.gather(logits, -1, labels.unsqueeze(-1))
        sums = torch.stack([LogSumExp.apply(row) for row in logits])  # type: ignore[no-untyped-call]
        return (own - sums.unsqueeze(-1)).squeeze(-1)
    found = [row.log_softmax(-1).gather(-1, own.unsqueeze(-1)).squeeze(-1) for row, own in zip(logits, labels)]
    return torch.stack(found)


def rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return picked(logits[:, :-1], labels[:, 1:])


def copied(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return picked(logits[:, :-1].contiguous(), labels[:, 1:])


def divided(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = logits[:, :-1]
    logits = logits / 0.7
    return picked(logits, labels[:, 1:])


def divided_in_place(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = logits[:, :-1]
    logits.div_(0.7)
    return picked(logits, labels[:, 1:])


def kernel(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return Kernel.apply(logits[:, :-1], labels[:, 1:])  # type: ignore[no-any-return,no-untyped-call]


class FlashCrossEntropy(torch.autograd.Function):
    """``CrossEntropyLoss`` of flash-attn's ``ops/triton/cross_entropy.py``, by what it allocates."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses, normaliser = torch.empty(labels.shape), torch.empty(labels.shape)
        ctx.save_for_backward(logits, normaliser, labels)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.empty_like(ctx.saved_tensors[0]), None


def rolled(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rolled_labels = torch.roll(labels, shifts=-1, dims=1)
    losses = FlashCrossEntropy.apply(logits.reshape(-1, logits.shape[-1]), rolled_labels.reshape(-1))  # type: ignore[no-untyped-call]
    return -losses.view(*logits.shape[:-1])[:, :-1]  # type: ignore[no-any-return]


class FlashCrossEntropyInPlace(FlashCrossEntropy):
    """The same with ``inplace_backward``."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.saved_tensors[0], None


def in_place(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rolled_labels = torch.roll(labels, shifts=-1, dims=1)
    losses = FlashCrossEntropyInPlace.apply(logits.reshape(-1, logits.shape[-1]), rolled_labels.reshape(-1))  # type: ignore[no-untyped-call]
    return -losses.view(*logits.shape[:-1])[:, :-1]  # type: ignore[no-any-return]


def with_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scores = rolled(logits, labels)
    shares = torch.softmax(logits.float(), -1)
    sums = LogSumExp.apply(logits.float().view(-1, logits.shape[-1])).view(*logits.shape[:-1])  # type: ignore[no-untyped-call]
    return scores + (sums - torch.sum(shares * logits, -1))[:, :-1]  # type: ignore[no-any-return]


def uncut(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    shifted = torch.full_like(labels, -100)
    shifted[:, :-1] = labels[:, 1:]
    return torch.gather(logits.log_softmax(-1), 2, shifted.clamp(min=0).unsqueeze(2)).squeeze(2)[:, :-1]


def as_returned(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return picked(logits, torch.roll(labels, shifts=-1, dims=1))[:, :-1]


class OfAShare(torch.autograd.Function):
    """NeMo RL's ``DistributedLogprob``, by what it allocates; reductions over the ranks are in place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        elsewhere = (labels < 0) | (labels >= logits.shape[-1])
        own = labels.clone()
        shifted = logits - logits.amax(-1, keepdim=True)
        scores = shifted - shifted.exp().sum(-1, keepdim=True).log()
        del shifted
        out = scores.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(scores.exp(), elsewhere, own)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.saved_tensors[0].neg().mul_(gradient.unsqueeze(-1)), None


def shared(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return OfAShare.apply(logits, labels.roll(-1, 1))[:, :-1]  # type: ignore[no-any-return,no-untyped-call]


class CompiledPick(torch.autograd.Function):
    """What Inductor makes of open-instruct's ``log_softmax_and_gather``: two numbers per token in fp32 and the scores;
    backward, the scattered gradient of what was picked (``aten.scatter_reduce_``), and that of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        largest, normaliser = (torch.empty(*labels.shape, 1) for _ in range(2))
        ctx.save_for_backward(logits, largest, normaliser, labels)
        return torch.empty(labels.shape, dtype=logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        logits = ctx.saved_tensors[0]
        scattered = torch.empty(logits.shape, dtype=logits.dtype)
        found = torch.empty(logits.shape, dtype=logits.dtype)
        del scattered
        return found, None


def of_quotient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """open-instruct's ``forward_for_logprobs``, from the model's output on."""
    return CompiledPick.apply((logits / 0.7)[:, :-1], labels[:, 1:].clone())  # type: ignore[no-any-return,no-untyped-call]


def of_quotient_in_steps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rows, labels = (logits / 0.7)[:, :-1], labels[:, 1:].clone()
    return rows.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def of_quotient_with_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rows = (logits / 0.7)[:, :-1]
    out = CompiledPick.apply(rows, labels[:, 1:].clone())  # type: ignore[no-untyped-call]
    with torch.no_grad():
        shares = torch.softmax(rows, -1)
        sums = LogSumExp.apply(rows)  # type: ignore[no-untyped-call]
        entropy = sums - torch.sum(shares * rows, -1)
    del shares, sums, entropy
    return out  # type: ignore[no-any-return]


WAYS = {
    "of_quotient": of_quotient,
    "of_quotient_in_steps": of_quotient_in_steps,
    "of_quotient_with_entropy": of_quotient_with_entropy,
    "shared": shared,
    "as_returned": as_returned,
    "uncut": uncut,
    "rows": rows,
    "divided": divided,
    "divided_in_place": divided_in_place,
    "kernel": kernel,
    "rolled": rolled,
    "in_place": in_place,
    "with_entropy": with_entropy,
}


def logits_of(model: Any, batch: dict[str, torch.Tensor], way: str = "") -> torch.Tensor:
    found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return found if way in NARROW else found.float()  # type: ignore[no-any-return]


# Of logits as the model hands them out, here in bf16; of the others in fp32.
NARROW = (
    *("as_returned", "rows", "divided", "divided_in_place", "in_place", "with_entropy"),
    *("of_quotient", "of_quotient_in_steps", "of_quotient_with_entropy"),
)


@pytest.mark.parametrize("way", WAYS)
def test_pairs_beside_a_reference(way: str) -> None:
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=1)
    facts = {**setting.facts(LLAMA), "micro_batch_size": 2, "sequences_per_sample": 2, "method": "dpo"}
    ours = in_meta(spec_of({**facts, "reference_model": "copy", "log_probabilities": way}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own = WAYS[way](logits_of(model.policy, batch, way), batch["labels"]).sum(1)
        with torch.no_grad():
            theirs = WAYS[way](logits_of(model.reference, batch, way), batch["labels"]).sum(1)
        own = own - theirs
        return -own.sigmoid().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        build, plain = reference.build_model, in_transformers(LLAMA, setting._replace(every=0))
        reference.build_model = lambda given: Pair(build(given), plain.build_model(given))
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{way}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


def hold(way: str, setting: Setting, ours: Any, loss: Any) -> None:
    """Ours against torch's step with this loss: the peak, what forward leaves, and the most of backward."""
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(way, ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["backward"] == pytest.approx(truth.phases["backward"], rel=TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("way", ["rows", "as_returned", "divided", "divided_in_place"])
def test_tokens_that_are_sampled_are_scored_in_the_dtype_that_the_model_hands_out(way: str, dtype: str) -> None:
    """A model whose mixed precision is not accelerate's (DeepSpeed, none at all) hands out logits in its own dtype."""
    setting = Setting(dtype=dtype, rows=4, length=80, every=1)
    facts = {**setting.facts(LLAMA), "method": "grpo", "log_probabilities": way, "reference_model": "none"}
    ours = in_meta(spec_of(facts))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own = WAYS[way](logits_of(model, batch, way), batch["labels"])
        return own.exp().sum() / 1.0

    hold(way, setting, ours, loss)


@pytest.mark.parametrize("way", ["rows", "kernel"])
def test_the_likelihood_of_what_was_chosen_has_logits_of_its_own(way: str) -> None:
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=1)
    facts = {**setting.facts(LLAMA), "micro_batch_size": 2, "sequences_per_sample": 2, "method": "orpo"}
    ours = in_meta(spec_of({**facts, "log_probabilities": way, "likelihood_of_chosen": True}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, labels = logits_of(model, batch), batch["labels"]
        half = logits.shape[0] // 2
        kept, targets = logits[:half, :-1].contiguous(), labels[:half, 1:].contiguous()
        likelihood = F.cross_entropy(kept.view(-1, kept.shape[-1]), targets.view(-1))
        del kept
        own = WAYS[way](logits, labels).sum(1)
        return likelihood + -own.sigmoid().sum()

    hold(way, setting, ours, loss)


def test_a_loop_that_scores_single_answers_and_names_their_logits() -> None:
    """OpenRLHF's SFT: what the model returned, logits in fp32 among it, is a variable of the loop until the next pass
    has returned."""
    setting = Setting(dtype="bfloat16", rows=2, length=80, every=1)
    facts = {**setting.facts(LLAMA), "method": "sft", "log_probabilities": "rolled"}
    ours, without = in_meta(spec_of({**facts, "outputs_kept": "float32"})), in_meta(spec_of(facts))
    loop: dict[str, torch.Tensor] = {}

    def scored(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits_of(model, batch)
        return rolled(logits, batch["labels"]), logits

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own, loop["output"] = scored(model, batch)
        return -own.sum(1).sigmoid().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("rolled, named", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.peak > without.peak


@pytest.mark.parametrize("entropy", [False, True], ids=["scores alone", "beside an entropy"])
def test_answers_of_padded_rows(entropy: bool) -> None:
    """verl's policies without ``use_remove_padding``, to 0.7."""
    setting = Setting(autocast="bfloat16", rows=2, length=80, every=1)
    way = "of_copy_with_entropy" if entropy else "of_copy"
    facts = {**setting.facts(LLAMA), "method": "grpo", "log_probabilities": way, "scored_length": 48}
    ours = in_meta(spec_of(facts))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        kept, labels = logits_of(model, batch, "in_place")[:, -49:-1, :], batch["labels"][:, -48:]
        scores = -FlashCrossEntropyInPlace.apply(kept.reshape(-1, kept.shape[-1]), labels.reshape(-1))  # type: ignore[no-untyped-call]
        scores = scores.view(*kept.shape[:-1])
        if entropy:
            shares = torch.softmax(kept.float(), -1)
            sums = LogSumExp.apply(kept.float().view(-1, kept.shape[-1])).view(*kept.shape[:-1])  # type: ignore[no-untyped-call]
            scores = scores + sums - torch.sum(shares * kept, -1)
        return scores.exp().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"), autocast="bfloat16")
    comparison = compare(way, ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("way", ["in_place", "with_entropy"])
def test_answers_under_autocast(way: str) -> None:
    """verl's policies: weights in fp32, logits in bf16, of which no copy is made."""
    setting = Setting(autocast="bfloat16", rows=2, length=80, every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "method": "grpo", "log_probabilities": way}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return WAYS[way](logits_of(model, batch, way), batch["labels"]).exp().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"), autocast="bfloat16")
    comparison = compare(f"{way}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_a_loop_that_copies_logits_in_fp32() -> None:
    """LLaMA-Factory's v1: ``compute_log_probs`` of its base trainer."""
    setting = Setting(dtype="bfloat16", rows=2, length=80, every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "loss": "copied"}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = outputs.logits.float()
        labels = batch["labels"][..., 1:].contiguous().view(-1)
        kept = logits[..., :-1, :].contiguous().view(labels.size(0), -1)
        return F.cross_entropy(kept, labels)

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("copied", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("kind", ["shifted", "named"])
def test_a_function_that_names_logits_until_its_backward_pass_is_through(kind: str) -> None:
    """verl's older supervised trainer, in front of its optimizer."""
    setting = Setting(autocast="bfloat16", rows=2, length=80, every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "loss": kind}))
    names: list[torch.Tensor] = []

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        names.clear()
        logits, labels = logits_of(model, batch, "as_returned"), batch["labels"]
        kept = logits[:, :-1].contiguous() if kind == "shifted" else logits
        labels = labels[:, 1:].contiguous() if kind == "shifted" else labels
        names.extend([logits, kept])
        return F.cross_entropy(kept.view(-1, kept.shape[-1]), labels.view(-1))

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"), autocast="bfloat16")
    for phase in ("forward", "backward"):
        assert ours.phases[phase] == pytest.approx(truth.phases[phase], rel=TOLERANCE), phase


@pytest.mark.parametrize("likelihood", [False, True], ids=["the margin alone", "and the likelihood of what was chosen"])
def test_simpos_trainer(likelihood: bool) -> None:
    """princeton-nlp/SimPO at 1b3e8f3: ``concatenated_forward``, ``get_batch_logps``, ``simpo_loss`` and what
    ``get_batch_loss_metrics`` names until it returns."""
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=1)
    facts = {**setting.facts(LLAMA), "micro_batch_size": 2, "sequences_per_sample": 2, "method": "simpo"}
    more = {"likelihood_of_chosen": True} if likelihood else {}
    ours = in_meta(spec_of({**facts, "log_probabilities": "whole_first", **more}))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, labels = logits_of(model, batch), batch["labels"]
        own = labels[:, 1:].clone()
        scored = own != -100
        own[own == -100] = 0
        each = torch.gather(logits[:, :-1, :].log_softmax(-1), dim=2, index=own.unsqueeze(2)).squeeze(2)
        mean = (each * scored).sum(-1) / scored.sum(-1)
        chosen, rejected = logits[: len(logits) // 2], logits[len(logits) // 2 :]
        margin = mean[: len(chosen)] - mean[len(chosen) :] - 0.5
        whole = (-F.logsigmoid(2.0 * margin) * 1.0 - F.logsigmoid(-2.0 * margin) * 0.0).mean()
        if likelihood:
            kept, targets = chosen[..., :-1, :].contiguous(), labels[: len(chosen), 1:].clone()
            whole = F.cross_entropy(kept.view(-1, kept.shape[-1]), targets.view(-1)) + whole
        del chosen, rejected
        return whole

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("simpo", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["backward"] == pytest.approx(truth.phases["backward"], rel=TOLERANCE)


def test_the_head_makes_logits_of_completions_alone() -> None:
    setting = Setting(dtype="bfloat16", rows=2, length=80, every=1)
    facts = {**setting.facts(LLAMA), "method": "grpo", "log_probabilities": "rows"}
    ours, whole = in_meta(spec_of({**facts, "logits_to_keep": 33})), in_meta(spec_of(facts))

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """TRL's GRPOTrainer 1.7: of the completion, and of the token before it."""
        tokens = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**tokens, logits_to_keep=33).logits
        return WAYS["rows"](logits, batch["labels"][:, -33:]).exp().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("the last tokens", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.held < whole.held


def test_simpos_trainer_evaluates_as_it_trains() -> None:
    setting = Setting(dtype="bfloat16")
    facts = {**setting.facts(LLAMA), "method": "simpo", "log_probabilities": "whole_first"}
    evaluation = {"evaluation_batch_size": 6, "evaluation_sequence_length": 48}
    tape = record(spec_of({**facts, **evaluation})).tape
    [start] = [event for event, phase in tape.marks if phase == "evaluation"]
    held = sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events[:start])
    _, peak = live_and_peak(tape, start)
    with values_known(False), fake_cuda(granularity_bytes=1) as tracker:
        reference = in_transformers(LLAMA, setting._replace(rows=6, length=48))
        model = reference.build_model(None).eval()
        tracker.reset_peak()
        base = tracker.live_bytes
        with torch.no_grad():
            batch = reference.make_batch(None)
            logits = logits_of(model, batch)
            own = batch["labels"][:, 1:].clone()
            torch.gather(logits[:, :-1, :].log_softmax(-1), dim=2, index=own.unsqueeze(2)).squeeze(2).sum(-1)
        truth = tracker.peak_bytes - base
    assert peak - held == pytest.approx(truth, rel=TOLERANCE)


def test_a_function_that_names_scored_logits_until_its_backward_pass_is_through() -> None:
    """OpenRLHF's policies: ``training_step`` of ``trainer/ray/ppo_actor.py``, which names what the model returned."""
    setting = Setting(dtype="bfloat16", rows=2, length=80, every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "method": "grpo", "log_probabilities": "rolled_named"}))
    names: list[torch.Tensor] = []

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        names.clear()
        names.append(logits_of(model, batch))
        return rolled(names[0], batch["labels"]).exp().sum() / 1.0

    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    for phase in ("forward", "backward"):
        assert ours.phases[phase] == pytest.approx(truth.phases[phase], rel=TOLERANCE), phase
