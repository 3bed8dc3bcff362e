"""Qwen-VL's own fine-tuning program, which many repositories hold a copy of: a model of transformers whose parts train
by three switches. (QwenLM/Qwen3-VL at 9658872: ``qwen-vl-finetune/qwenvl/train/train_qwen.py``)
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.dialects.native import number
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Name, TrainingSpec

TRAIN = "Qwen3-VL: qwenvl/train/train_qwen.py"
_PROGRAM = "train_qwen"
# argument.py: what trains of a model, where adapters do not; none of it unless a command says so.
# (``lm_head.requires_grad = False`` is set on the module, and freezes no parameter of it.)
_PARTS = {"tune_mm_vision": ("vision_tower",), "tune_mm_mlp": ("projector",), "tune_mm_llm": ("embeddings", "layers")}
_DEFAULTS: dict[Name, Any] = {
    "sequence_length": 512,
    "lora.r": 64,
    "lora.alpha": 128,
    "lora.dropout": 0.05,
    lm.HYPER + "optim": "adamw_torch",
}
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]  # which the tower has under other names
_PIXELS = 28 * 28 * 576
FACTS: tuple[Name, ...] = (
    *(*_DEFAULTS, "lora.targets", "padding_free", "sequence_bound", "images_per_sample"),
    lm.HYPER + "dtype",
)
JOINED: tuple[Name, ...] = ("frozen_parts", "image_size")


def is_program(called: str) -> bool:
    """Whether a program is that one, by the name and the folder that copies keep."""
    return "qwenvl" in called and _is_called_so(called)


def _is_called_so(called: str) -> bool:
    return called.rsplit("/", 1)[-1].removesuffix(".py").rsplit(".", 1)[-1] == _PROGRAM


def is_qwen_vl(spec: TrainingSpec) -> bool:
    """Whether a run is of that program: by its name and one of its switches."""
    if spec.launch is None or not _is_called_so(spec.launch.called):
        return False
    return any(spec.root.get(name) is not None for name in _PARTS)


def prepare(spec: TrainingSpec) -> None:
    """What the program does where its command says nothing."""
    for name, value in _DEFAULTS.items():
        known = spec.fact(name)
        if known is None or (known.node is None and lm.gap(spec, known.key.lstrip("-")) is None):
            spec.facts[name] = Fact(name, value, DEFAULT, known.key if known else "", reason=TRAIN)
    lm.put(spec, "lora.targets", list(_TARGETS), reason=TRAIN)
    if lm.switched(spec, "bf16"):
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", spec.fact(lm.HYPER + "bf16"), TRAIN)
    flat = next((spec.root.get(key) for key in ("data_flatten", "data_packing") if _on(spec, key)), None)
    if flat is not None:
        stated = Fact("padding_free", True, WRITTEN, f"--{flat.key_path}", flat, f"{TRAIN}: samples in one row")
        spec.facts["padding_free"] = stated
        lm.put(spec, "sequence_bound", True, spec.fact("sequence_length"), "samples are rarely as long")


def _on(spec: TrainingSpec, name: str) -> bool:
    node = spec.root.get(name)
    return node is not None and truth(node.value)


def attention(spec: TrainingSpec) -> None:
    """``train(attn_implementation="flash_attention_2")``, whatever a command says."""
    lm.put(spec, "attention", "flash", reason=TRAIN)


def join(spec: TrainingSpec) -> str:
    """Which parts train, and how large images are."""
    lm.assume_images(spec)
    if not lm.switched(spec, "use_peft"):
        off = [name for name in _PARTS if not _on(spec, name)]
        if len(off) == len(_PARTS):
            return "--tune_mm_llm, --tune_mm_mlp and --tune_mm_vision are all off: nothing trains"
        node = spec.root.get(off[0]) if off else None
        parts = [part for name in off for part in _PARTS[name]]
        origin = WRITTEN if node is not None else DEFAULT
        spec.facts["frozen_parts"] = Fact("frozen_parts", parts, origin, f"--{off[0] if off else ''}", node, TRAIN)
    pixels = spec.root.get("max_pixels")
    most = _PIXELS if pixels is None else number(pixels.value)
    if most is not None:
        origin = WRITTEN if pixels is not None else DEFAULT
        spec.facts["image_size"] = Fact("image_size", isqrt(most), origin, "--max_pixels", pixels, TRAIN)
    return ""
