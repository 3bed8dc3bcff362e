"""How facts are spelt in the keys of transformers' trainers."""

from __future__ import annotations

from typing import Any

from memlint.dialects.accelerate import truth
from memlint.dialects.stated import (
    HALF,
    model_type,
)
from memlint.dialects.trainer_switches import OPTIMIZERS, knows_liger
from memlint.documents.node import Edit
from memlint.facts.spec import HYPER, Name, TrainingSpec


def write(spec: TrainingSpec, name: Name, value: Any) -> list[Edit]:
    """The edits that give a key (by the name of what it sets) a value."""
    from memlint.dialects.spelling import spell as generic

    return generic(spec, name, value)


def spell(spec: TrainingSpec, fact: Name, value: Any, addable: tuple[str, ...] = ()) -> list[Edit] | None:
    """Facts that transformers' keys state in words of their own; None for the generic spelling.

    ``addable`` are facts whose keys the program is known to take although they are not TrainingArguments'.
    """
    known = spec.fact(fact)
    written = known is not None and known.node is not None
    if fact == "compute_dtype":
        return _spell_precision(spec, value)
    if fact in ("parameter_dtype", "frozen_dtype"):
        if spec.get("parallelism.strategy") == "zero" or (fact == "parameter_dtype" and "lora.dtype" in spec):
            return []
        stated = spec.fact(HYPER + "dtype")
        if (stated is None or stated.node is None) and "parameter_dtype" not in addable:
            return []
        return write(spec, HYPER + "dtype", value)
    if fact in ("optimizer", "optimizer_implementation"):
        return _spell_optimizer(spec, fact, value)
    if fact == "loss":
        names = {"fused": True, "full": False}
        if value == "fused" and (not knows_liger(spec) or model_type(spec) == "granite"):
            return []
        return write(spec, HYPER + "use_liger_kernel", names[value]) if value in names else []
    if fact == "autocast":
        return []
    if fact in ("attention", "sequence_length") and not written and fact not in addable:
        return []
    if fact == "attention_tokens" or (fact == "evaluation_batch_size" and known is None):
        return []
    if fact in ("micro_batch_size", "gradient_accumulation_steps") and any(
        conflict for conflict in spec.conflicts if known is not None and conflict.key == known.key
    ):
        return []  # two files state it
    return None


def _spell_precision(spec: TrainingSpec, value: Any) -> list[Edit]:
    """``bf16: true``, and ``fp16`` off where it was on."""
    if spec.get("parallelism.strategy") == "zero" and (
        spec.get("compute_dtype") in HALF or spec.get(HYPER + "deepspeed_states_dtype")
    ):
        return []
    if value not in HALF and spec.get("frozen_dtype", value) != value:
        return []  # without autocast products have the weights' dtype
    names = {"bfloat16": "bf16", "float16": "fp16"}
    edits: list[Edit] = []
    for dtype, name in names.items():
        switch = spec.fact(HYPER + name)
        on = switch is not None and truth(switch.value)
        if on and dtype != value:
            edits += write(spec, HYPER + name, False)
        elif not on and dtype == value:
            edits += write(spec, HYPER + name, True)
    return edits


def _spell_optimizer(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit]:
    """transformers' name of an optimizer: torch's where the implementation is meant, bitsandbytes' for 8 bits."""
    if spec.get("optimizer_library") == "deepspeed":
        return []  # DeepSpeed's config names it
    if fact == "optimizer_implementation":
        if spec.get("optimizer") != "adamw":
            return []
        name = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}.get(value)
    else:
        preferred = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit", "lion": "lion_32bit"}
        name = preferred.get(value)
        name = name or next((key for key, (kind, *_) in OPTIMIZERS.items() if kind == value), None)
    return write(spec, HYPER + "optim", name) if name is not None else []
