"""What the trainer of a method makes of a run, by ``memlint/trainers``: steps that families share."""

from __future__ import annotations

from memlint.dialects.stated import put, setting, trainer
from memlint.facts.spec import TrainingSpec
from memlint.trainers.table import ALWAYS, Trainer


def pairs(spec: TrainingSpec) -> None:
    """How many sequences of a sample go through the model together."""
    found, method = trainer(spec), spec.fact("method")
    if found.is_of_pairs:
        origin = method if method is not None and method.node is not None else None
        put(spec, "sequences_per_sample", found.sequences, origin, "a chosen and a rejected answer per sample")


def undropped(spec: TrainingSpec, reason: str) -> None:
    """``disable_dropout`` reaches the dropout of adapters, which the trainers make first (disable_dropout_in_model)."""
    if not trainer(spec).drops and "lora.dropout" in spec:
        put(spec, "lora.dropout", 0.0, reason=reason)


def takes_likelihood(spec: TrainingSpec, found: Trainer) -> bool:
    """Whether the likelihood of chosen answers is part of the loss."""
    return found.likelihood == ALWAYS or (found.likelihood != "" and setting(spec, found.likelihood) != 0)
