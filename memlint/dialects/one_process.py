"""One process of transformers' Trainer that sees several devices: a copy of the model on each, and what the copies
return on the first of them.

Source: transformers 5 and 4.12 ``trainer.py`` (``_wrap_model``: ``n_gpu > 1``, not of weights in 8 bits), torch 2.13
``nn/parallel/data_parallel.py`` and ``scatter_gather.py`` (``gather``). The loss of each copy is returned with its
logits, which are there until the loss has been taken of them, beside all that the backward pass needs.
"""

from __future__ import annotations

from memlint.dialects import launchers
from memlint.facts.spec import TrainingSpec

FAMILIES = frozenset(("hf-trainer", "trl"))


def devices(spec: TrainingSpec) -> int:
    """How many devices a script sees that python starts bare; 1 where each has a process of its own."""
    launch = spec.launch
    if spec.family not in FAMILIES or launch is None or launch.launchers or not launch.called.endswith(".py"):
        return 1
    if spec.get("parallelism.strategy", "none") != "none" or spec.get("quantization.bits") == 8:
        return 1
    counted = spec.tried("device_count") or launchers.seen(launch)
    return int(counted.value) if counted is not None else 1


def gathered_bytes(spec: TrainingSpec) -> int:
    """Logits of all copies of a causal language model; 0 where there is one, or its loss makes none."""
    copies = devices(spec)
    if copies < 2 or spec.get("model_class") != "causal_lm" or spec.get("loss", "full") != "full":
        return 0
    sizes = [spec.get(name) for name in ("micro_batch_size", "sequence_length", "vocabulary_size")]
    if not all(isinstance(size, int) for size in sizes):
        return 0
    whole = spec.get("parameter_dtype", "float32") == "float32" or spec.get("autocast", False)
    samples, length, vocabulary = sizes
    return int(copies * samples * length * vocabulary * (4 if whole else 2))
