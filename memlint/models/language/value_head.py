"""A decoder with a head of one value per token, which learns to prefer: LLaMA-Factory's reward models.

The head over the vocabulary runs as well, and what it makes is thrown away. Sources: TRL 0.9
``models/modeling_value_head.py`` (``AutoModelForCausalLMWithValueHead``, ``ValueHead``); LLaMA-Factory 0.9
``train/rm/trainer.py`` (``PairwiseTrainer.compute_loss``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import DType, Tensor, component, default_dtype, empty, float32, int64
from memlint.models.language import Task, fitted, language_model, sequence_length

DROPOUT = 0.1  # ValueHead's summary_dropout_prob


class ValueHead(Module):
    """(B, S, W) -> (B, S), in fp32."""

    def __init__(self, width: int) -> None:
        with default_dtype(float32):
            self.summary = Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, DROPOUT, self.training)
        out: Tensor = self.summary(to(x, float32))
        return out


def task(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    """Two sequences per sample, the chosen ones first."""
    config = fitted(spec, config)
    model = language_model(spec, config, dtype, autocast)
    setattr(model, "v_head", ValueHead(config.width))  # noqa: B010 - a part of the model, by which it is counted
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)
    head: Any = model.v_head  # type: ignore[attr-defined]

    def given(rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Tokens, the mask of padding."""
        return empty((rows, length), int64), empty((rows, length), int64)

    def values(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = model.hidden(batch[0])
        with component("logits"):
            logits = model.logits(x)
            out: Tensor = head(x)
            wide = to(logits, float32)
            del logits, wide
        return out

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        found = values(batch)
        ends = empty((found.shape[0],), int64)
        rewards = F.index(found, ends, ends)
        return F.sum(F.neg(F.sigmoid(rewards))) / 1.0

    def evaluate(rows: int, length: int) -> Tensor:
        with no_grad():
            return values(given(rows, length))

    # What the head over the vocabulary makes is no part of the loss.
    unused = [] if model.lm_head is None else model.lm_head.parameters()
    names = ("lm_head", "v_head")
    return Task(model, config, lambda: given(rows, length), loss, evaluate, names, saved=("v_head",), unused=unused)
