"""A program that fine-tunes Qwen's models that see, and that many repositories hold a copy of: each part of the model
is frozen by a switch, and adapters are put into what is frozen. (2U1/Qwen2-VL-Finetune at 6695161:
``src/train/train_sft.py``, ``src/params.py``)
"""

from __future__ import annotations

import ast
from math import isqrt
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.dialects.native import number
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Name, TrainingSpec

TRAIN = "Qwen2-VL-Finetune: src/train/train_sft.py"
_PROGRAMS = ("train_sft.py", "train.py")
_PARTS = {"freeze_vision_tower": "vision_tower", "freeze_merger": "projector", "freeze_llm": "language_model"}
_DEFAULTS: dict[Name, Any] = {
    "lora.r": 64,
    "lora.alpha": 16,
    "lora.dropout": 0.05,
    lm.HYPER + "optim": "adamw_torch",
    lm.HYPER + "use_liger_kernel": True,
}
FACTS: tuple[Name, ...] = (
    *(*_DEFAULTS, "lora.targets", "checkpointing_reentrant", "images_per_sample"),
    lm.HYPER + "dtype",
)
JOINED: tuple[Name, ...] = ("frozen_parts", "image_size")

_LONGEST_LIST = 1_000  # characters


def is_of_series(spec: TrainingSpec) -> bool:
    """Whether a run is of that program: by its name, now and before, and the switches that no other one has."""
    if spec.launch is None or spec.launch.called.rsplit("/", 1)[-1] not in _PROGRAMS:
        return False
    return all(spec.root.get(name) is not None for name in _PARTS)


def _on(spec: TrainingSpec, name: str) -> bool:
    node = spec.root.get(name)
    return node is not None and truth(node.value)


def prepare(spec: TrainingSpec) -> None:
    """What the program does where its command says nothing."""
    for name, value in _DEFAULTS.items():
        known = spec.fact(name)
        if known is None or (known.node is None and lm.gap(spec, known.key.lstrip("-")) is None):
            spec.facts[name] = Fact(name, value, DEFAULT, known.key if known else "", reason=TRAIN)
    spec.missing = tuple(item for item in spec.missing if item.fact != "lora.targets")
    lm.put(spec, "lora.targets", [lm.LISTED], reason=f"{TRAIN}: find_target_linear_names")
    if lm.switched(spec, "bf16"):
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", spec.fact(lm.HYPER + "bf16"), TRAIN)
    lm.put(spec, "checkpointing_reentrant", not _on(spec, "vision_lora"), reason=f"{TRAIN}: use_reentrant")


def attention(spec: TrainingSpec) -> None:
    """FlashAttention 2, unless an option of its own says otherwise."""
    lm.put(spec, "attention", "sdpa" if _on(spec, "disable_flash_attn2") else "flash", reason=TRAIN)


def join(spec: TrainingSpec) -> str:
    """Which parts train, and how large images are; why that is not known."""
    lm.assume_images(spec)
    pixels = spec.root.get("image_max_pixels")
    most = None if pixels is None else number(pixels.value)
    if most is not None:
        spec.facts["image_size"] = Fact("image_size", isqrt(most), WRITTEN, "--image_max_pixels", pixels, TRAIN)
    adapted = lm.switched(spec, "use_peft")
    why = _unlisted(spec) if adapted else ""
    first = next((name for name in _PARTS if _on(spec, name)), "freeze_llm")
    parts = [part for name, part in _PARTS.items() if _on(spec, name)]
    if adapted:  # beside adapters nothing trains that is not given back below
        parts = [] if _on(spec, "vision_lora") else ["vision_tower", "projector"]
    elif len(parts) == len(_PARTS):
        return "--freeze_llm, --freeze_merger and --freeze_vision_tower without --lora_enable: nothing trains"
    spec.facts["frozen_parts"] = Fact("frozen_parts", parts, WRITTEN, f"--{first}", spec.root.get(first), TRAIN)
    return why


def _unlisted(spec: TrainingSpec) -> str:
    """Why it is not known which layers get adapters: embeddings and the head do, unless a list leaves them out."""
    few, listed = spec.root.get("num_lora_modules"), spec.root.get("lora_namespan_exclude")
    if few is not None and number(few.value) is not None:
        return f"--num_lora_modules {few.value}: which of the linear layers are the last ones is not known"
    left: object = None if listed is None else listed.value
    if isinstance(left, str):
        try:
            left = ast.literal_eval(left) if len(left) <= _LONGEST_LIST else [left]
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            left = [left]
    names = [str(one) for one in left] if isinstance(left, (list, tuple)) else []
    if not {"lm_head", "embed_tokens"} <= set(names):
        return "--lora_namespan_exclude: adapters of embeddings and of the head are not known"
    return ""


def adapters(spec: TrainingSpec) -> None:
    """What trains in full beside adapters: what is not frozen of what the model sees with."""
    if spec.get("tuning", "full") == "full" or _on(spec, "vision_lora"):
        return
    beside = [] if _on(spec, "freeze_vision_tower") else ["visual"]
    beside += [] if _on(spec, "freeze_merger") or beside else ["merger"]
    if beside:
        lm.put(spec, "lora.unfrozen", beside, reason=f"{TRAIN}: requires_grad, once adapters are there")
