"""Family autotrain: config files of Hugging Face's AutoTrain Advanced, and the options of ``autotrain llm``.

It calls transformers' Trainer and TRL's trainers with arguments of its own (``trainers/clm/{params,utils}.py`` and
``train_clm_*.py``, release 0.8).
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, Fact, Name, TrainingSpec
from memlint.trainers.table import ALWAYS, LOG_PROBABILITIES, NONE

_VERSION = "AutoTrain Advanced 0.8"
_TASKS = ("llm", "lm_training", "llm_training", "llm_finetuning")  # parser.py: TASK_ALIASES
_ROW = 1024  # configure_block_size: where block_size is -1
_BITS = {"int4": 4, "int8": 8}
_KEYS = {
    "micro_batch_size": "params.batch_size",
    "sequence_length": "params.block_size",
    "optimizer": "params.optimizer",
}


def _trainer(spec: TrainingSpec) -> tuple[str, Fact | None, str]:
    """(who trains, what says so, why that is not known): ``llm-sft`` names it, else ``params.trainer`` does."""
    stated, task = spec.fact(lm.HYPER + "trainer"), spec.fact(lm.HYPER + "task")
    name = str(stated.value) if stated is not None else "default"
    if task is not None and isinstance(task.value, str):
        kind, dash, which = task.value.replace("_", "-").partition("-")
        if task.value.replace("-", "_") in _TASKS:
            pass
        elif kind == "llm" and dash:
            stated, name = task, which
        else:
            return name, None, f"task {task.value}: what AutoTrain builds for it is not known"
    return "default" if name == "generic" else name, stated, ""


def _trained(spec: TrainingSpec) -> str:
    return _trainer(spec)[0]


def _method(spec: TrainingSpec) -> str:
    name, stated, why = _trainer(spec)
    if why:
        return why
    lm.put(spec, "method", name, stated)
    if lm.trainer(spec) is NONE:
        return f"trainer {name}: what generation holds on the card between training steps is not known"
    return ""


def _model(spec: TrainingSpec) -> str:
    return lm.model(spec, "base_model")


def _model_class(spec: TrainingSpec) -> None:
    found, reason = lm.trainer(spec), f"{_VERSION}: train_clm_{_trained(spec)}.py"
    lm.put(spec, "model_class", found.builds or "causal_lm", reason=reason)
    if found.labels:
        lm.put(spec, "labels", found.labels, reason=reason)


def _length(spec: TrainingSpec) -> None:
    """Rows of ``block_size`` tokens, no longer than the tokenizer's limit. Those of text are filled; pairs are not."""
    stated, limit = spec.fact(lm.HYPER + "block_size"), spec.fact(lm.HYPER + "model_max_length")
    longest = limit.value if limit is not None and isinstance(limit.value, int) else None
    value = stated.value if stated is not None else None
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdigit() else None
    if lm.gap(spec, "block_size", "block-size") is not None:
        return
    if value is None or value < 1:
        length = _ROW if longest is None else min(_ROW, longest)
        origin = limit if limit is not None and limit.node is not None and longest == length else None
        lm.put(spec, "sequence_length", length, origin, f"{_VERSION}: {_ROW} tokens unless block_size says otherwise")
    elif longest is not None and longest < value:
        lm.put(spec, "sequence_length", longest, limit, f"block_size {value} is cut to model_max_length")
    else:
        lm.put(spec, "sequence_length", value, stated)
    filled = _trained(spec) in ("default", "sft")
    lm.put(spec, "packing", filled, reason=f"{_VERSION}: rows are {'filled' if filled else 'padded to the longest'}")


def _adapters(spec: TrainingSpec) -> str:
    """DPOTrainer and ORPOTrainer of TRL 0.13 switch dropout off, its RewardTrainer does not (dpo_config.py,
    orpo_config.py: disable_dropout)."""
    why = lm.adapters(spec)
    if lm.trainer(spec).takes == LOG_PROBABILITIES:
        lm.undropped(spec, f"{_VERSION}, TRL 0.13: disable_dropout")
    return why


def _quantization(spec: TrainingSpec) -> None:
    """bitsandbytes' NF4 or int8, beside an adapter alone; norms and embeddings are widened for it."""
    stated = spec.fact(lm.HYPER + "quantization")
    bits = _BITS.get(str(stated.value)) if stated is not None else None
    if bits is None or spec.get("tuning", "full") == "full":
        return
    lm.put(spec, "quantization.bits", bits, stated)
    lm.put(spec, "quantization.kind", "nf4" if bits == 4 else "int8", stated)
    if bits == 4:
        lm.put(spec, "quantization.double", False, reason=f"{_VERSION}: bnb_4bit_use_double_quant=False")
    reason = f"{_VERSION}, TRL 0.13: prepare_model_for_kbit_training"
    lm.put(spec, "quantization.prepared", True, stated, reason)


def _precision(spec: TrainingSpec) -> str:
    """No dtype is asked for. transformers 4 loads float32 then, and float16 beside bitsandbytes' codes."""
    half = spec.fact(lm.HYPER + "precision")
    if half is not None:
        lm.put(spec, "mixed_precision", half.value, half)
    dtype, reason = "float32", f"{_VERSION}: from_pretrained of transformers 4.48"
    if spec.get("quantization.bits") is not None:
        dtype = "float16"
    return lm.precision(spec, Fact("parameter_dtype", dtype, DEFAULT, reason=reason))


def _processes(spec: TrainingSpec) -> None:
    """All devices that there are: copies, or the third stage of ZeRO."""
    backend = spec.fact(lm.HYPER + "distributed_backend")
    lm.processes(spec)
    if backend is not None and backend.value == "deepspeed":
        lm.put(spec, "parallelism.strategy", "zero", backend)
        lm.put(spec, "parallelism.zero_stage", 3, backend, f"{_VERSION}: commands.py")


def _checkpointing(spec: TrainingSpec) -> None:
    older = spec.get("quantization.bits") is not None
    lm.put(spec, "checkpointing_reentrant", older, reason=f"{_VERSION}: configure_training_args")


def _reference(spec: TrainingSpec) -> None:
    if lm.trainer(spec).reference != ALWAYS:
        return
    if spec.get("tuning", "full") != "full":
        lm.put(spec, "reference_model", "adapter_off", spec.fact("tuning"), "the model without its adapters")
    else:
        lm.put(spec, "reference_model", "copy", spec.fact(lm.HYPER + "model_ref"), f"{_VERSION}, TRL 0.13: a copy")


def _evaluation(spec: TrainingSpec) -> None:
    """With a part of the data to evaluate on, each epoch, in batches as large as those that train."""
    part, batch = spec.fact(lm.HYPER + "valid_split"), spec.fact("micro_batch_size")
    if part is None or part.value is None or batch is None:
        return
    lm.put(spec, "evaluation_batch_size", batch.value, part, f"{_VERSION}: batch_size")
    if "sequence_length" in spec:
        lm.put(spec, "evaluation_sequence_length", spec["sequence_length"], spec.fact("sequence_length"))
    lm.put(spec, "evaluation_accumulates", False, part, "without compute_metrics only losses are kept")


def _unsloth(spec: TrainingSpec) -> str:
    switch = spec.fact(lm.HYPER + "unsloth")
    on = switch is not None and switch.value and _trained(spec) in ("default", "sft")
    return "unsloth: what its own kernels keep is not known" if on else ""


FAMILY = lm.Family(
    stated=Graph(Step(_method, ("method",)), Step(_model, lm.MODEL_FACTS)),
    follows=Graph(
        Step(_unsloth),
        Step(_model_class, ("model_class", "labels")),
        Step(lm.pairs, ("sequences_per_sample",)),
        Step(_length, ("sequence_length", "packing")),
        Step(lm.attention, ("attention",)),
        Step(lm.optimizer, lm.OPTIMIZER_FACTS),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(_quantization, (*lm.QUANTIZATION_FACTS, "quantization.prepared")),
        Step(_processes, lm.PROCESS_FACTS),
        Step(_checkpointing, ("checkpointing_reentrant",)),
        Step(_precision, lm.PRECISION_FACTS),
        Step(_reference, ("reference_model",)),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("method", "unsloth", "model", "adapters", "sharing", "precision"),
    keys=_KEYS,
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that AutoTrain states in words of its own; None for the generic spelling."""
    if fact == "attention" and value == "flash":
        return lm.write(spec, lm.HYPER + "use_flash_attn", True)
    if fact == "compute_dtype" and value in lm.HALF:
        return lm.write(spec, lm.HYPER + "precision", value)
    if fact == "sequence_length":
        return lm.write(spec, lm.HYPER + "block_size", value)
    if fact == "checkpointing":
        return None if value in ("full", "none") else []
    if fact in ("parameter_dtype", "frozen_dtype", "optimizer_implementation", "loss", "packing", "tuning"):
        return []
    return None
