"""Programs that are copies of LLaVA's training script under a name of their own, and join a tower of their own: what is
surely on the card is the language model.

They have LLaVA's options for what trains (haotian-liu/LLaVA 1.2: ``llava/train/train.py``): ``tune_mm_mlp_adapter``
freezes everything but what stands between tower and decoder, ``freeze_backbone`` the decoder, ``lora_enable`` puts
adapters into the linear layers of the decoder.
"""

from __future__ import annotations

import re
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import own_code, scripts
from memlint.dialects.unread import BESIDE, unread
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Name, OnTop, TrainingSpec

# Names that a copy has kept: by them its options mean what LLaVA's do.
_KEPT = frozenset(("initialize_vision_modules", "tune_mm_mlp_adapter", "freeze_backbone", "requires_grad_"))
_TRAINS = re.compile(r"freeze|tune|trainable|unfreeze")  # an option that decides which parameters train
_NOT_THE_DECODER = re.compile(r"vision|audio|mm_|connector|projector|tower|encoder|learning_rate|_lr$")
_OFF = ("false", "no", "none", "0", "")
_TRAIN = "LLaVA 1.2: llava/train/train.py"
_DEFAULTS: dict[Name, Any] = {
    **{"lora.r": 64, "lora.alpha": 16, "lora.dropout": 0.05},
    "lora.targets": [lm.LISTED],  # find_all_linear_names
}
FACTS: tuple[Name, ...] = (*_DEFAULTS, lm.HYPER + "dtype")


def tower_of(spec: TrainingSpec) -> Fact | None:
    """The tower that a run's options name: by LLaVA's own option, or by one of a copy's (``--image_tower``)."""
    name: Name = lm.HYPER + "vision_tower"
    tower = spec.fact(name)
    if tower is not None and tower.value:
        return tower
    if spec.launch is None:
        return None
    one = next((one for one in unread(spec) if one.decides == BESIDE), None)
    return None if one is None else Fact(name, one.value, WRITTEN, one.name, one.node)


def is_copy(spec: TrainingSpec) -> bool:
    """Whether a run is of such a program, and its options let the whole decoder train."""
    if spec.launch is None or tower_of(spec) is None:
        return False
    path = scripts.file_of(spec.launch, spec.document)
    return path is not None and own_code.words(path) >= _KEPT and not _may_be_frozen(spec)


def prepare(spec: TrainingSpec) -> None:
    """What the program does where its command says nothing."""
    if not is_copy(spec):
        return
    for name, value in _DEFAULTS.items():
        known = spec.fact(name)
        if known is None or known.node is None:
            spec.facts[name] = Fact(name, value, DEFAULT, reason=_TRAIN)
    if lm.switched(spec, "bf16"):
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", spec.fact(lm.HYPER + "bf16"), _TRAIN)


def beside(spec: TrainingSpec, tower: Fact) -> str:
    """Why the model is not known; the decoder is a bound where its program is such a copy."""
    what = "a vision tower" if spec.fact(tower.name) == tower else "a tower"
    why = f"{tower.key} {tower.value}: {what} joined to a language model by the script's own code"
    if not is_copy(spec):
        lm.put(spec, "model_class", "vision_language", tower)
        return why
    lm.put(spec, "model_class", "causal_lm", tower, "the decoder alone")
    return OnTop(why)


def _may_be_frozen(spec: TrainingSpec) -> bool:
    """Whether an option may keep the decoder, or a part of it, from training."""
    options = spec.root.value if isinstance(spec.root.value, dict) else {}
    for name, node in options.items():
        decides = _TRAINS.search(name) is not None and _NOT_THE_DECODER.search(name) is None
        if (decides or name == "tune_mm_mlp_adapter") and str(node.value).lower() not in _OFF:
            return True
    return False
