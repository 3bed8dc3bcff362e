"""Family cogvideo: ``finetune/train.py`` of THUDM's CogVideo.

Videos and prompts are encoded before the first step, by an autoencoder and a T5 that then leave the card. The
transformer is loaded without a dtype, and nothing casts it: it stays in float32 whatever trains of it, unless DeepSpeed
makes 16 bits of it, and accelerate runs it under autocast. Source: THUDM/CogVideo at e519ece, ``finetune/trainer.py``,
``finetune/schemas/args.py``, ``finetune/models/cogvideox_t2v``; ``diffusers`` 0.42.1, ``models/modeling_utils.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.diffusion import COGVIDEO, pipeline
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import MAX_DIGITS, Edit
from memlint.facts.spec import DEFAULT, HYPER, Fact, Name, TrainingSpec

_SOURCE = "CogVideo e519ece: finetune/trainer.py"
_SIZES = ("frames", "height", "width")
_OPTIMIZERS = ("adam", "adamw")  # torch's
_OTHERS = ("prodigy", "came")  # of other packages; any other word is AdamW's


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the run where its pipeline is known."""
    spec = key_facts.complete(spec)
    model = spec.fact("model")
    found = pipeline(str(model.value)) if model is not None else None
    if found is None or found.kind not in COGVIDEO:
        return spec
    spec.unknown_reason = _unknown(spec) or _size(spec)
    if spec.unknown_reason:
        return spec
    spec.architecture = "diffusion"
    adapted = spec.get("tuning") == "lora"
    _put(spec, HYPER + "script", f"CogVideo/{'lora' if adapted else 'sft'}", _SOURCE)
    zero = spec.fact("parallelism.strategy")
    cast = zero is not None and zero.value == "zero"
    _put(
        spec, "parameter_dtype", spec["compute_dtype"] if cast else "float32", "DeepSpeed casts it" if cast else _SOURCE
    )
    _put(spec, "checkpointing", "full", _SOURCE)
    _put(spec, "attention", "sdpa", "diffusers 0.42")
    stated = spec.fact("optimizer")
    if stated is not None and stated.value not in _OPTIMIZERS:
        spec.facts["optimizer"] = stated._replace(value="adamw", reason="an optimizer that it does not have is AdamW")
    _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    return spec


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    for key in ("model_path", "batch_size", "training_type", "train_resolution", "rank"):
        gap = lm.gap(spec, key)
        if gap is not None:
            return f"{gap.key} is not known: {gap.reason}"
    if spec.get("tuning") not in ("lora", "full"):
        return "training_type is not stated: lora or sft"
    if spec.get(HYPER + "model_type") == "i2v":
        return "--model_type i2v: the autoencoder encodes first images in each step, which is not known"
    recomputes = spec.root.get("gradient_checkpointing")
    if recomputes is not None and recomputes.value == "":
        return "--gradient_checkpointing '': a run that recomputes nothing is not known"
    validates = spec.root.get("do_validation")
    if validates is not None and truth(validates.value):
        return "--do_validation true: what generating videos between steps takes is not known"
    if spec.get("optimizer") in _OTHERS:
        return f"--optimizer {spec['optimizer']}: what it keeps is not known"
    return ""


def _size(spec: TrainingSpec) -> str:
    """``81x768x1360``: frames, height, width."""
    stated = spec.fact(HYPER + "train_resolution")
    if stated is None:
        return "train_resolution is not stated: frames x height x width"
    parts = str(stated.value).split("x")
    if len(parts) != len(_SIZES) or not all(part.isdecimal() and 0 < len(part) <= MAX_DIGITS for part in parts):
        return f"--train_resolution {stated.value} is no frames x height x width"
    frames, height, width = map(int, parts)
    if frames % 8 != 1:
        return f"--train_resolution {stated.value}: train.py takes a multiple of 8 frames and one, not {frames}"
    spec.facts["frames"] = stated._replace(name="frames", value=frames)
    spec.facts["image_size"] = stated._replace(name="image_size", value=[height, width])
    return ""


def _put(spec: TrainingSpec, name: Name, value: object, reason: str) -> None:
    spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The program's options; [] for what it has none for: it always recomputes, and has torch's Adam alone."""
    if fact in ("checkpointing", "optimizer", "optimizer_implementation", "parameter_dtype", "frames", "image_size"):
        return []
    return key_facts.spell(spec, fact, value)
