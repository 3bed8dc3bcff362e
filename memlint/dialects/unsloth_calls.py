"""What a program says by the calls of Unsloth's own classes, in the keys of the family ``hf-trainer``.

Source: unslothai/unsloth 2024.8 to 2026.10 ``unsloth/models/loader.py`` (from_pretrained), ``unsloth/models/llama.py``
and ``vision.py`` (get_peft_model), ``unsloth/trainer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.documents.node import Node
from memlint.trainers import unsloth as data

_CLASSES = ("FastLanguageModel", "FastModel", "FastTextModel", "FastVisionModel")
_TRAINERS = ("SFTTrainer", "UnslothTrainer", "Trainer")
# Of a call, the key that an argument is.
_OF_MODEL = {
    "model_name": "model_name_or_path",
    "max_seq_length": "max_seq_length",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
_OF_ADAPTERS = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_gradient_checkpointing": "gradient_checkpointing",
}
_WHOLE = ("embed_tokens", "lm_head")  # named as targets, they train whole (get_peft_model)


def is_call(target: str) -> bool:
    """Whether this is a method of one of its classes."""
    return target.partition(".")[0] in _CLASSES


def said(call: Node, name: str, values: Mapping[str, Node]) -> dict[str, Node]:
    """What one of its calls says."""
    if name == "from_pretrained":
        given = {**_defaults(call, data.MODEL), **values}
        first = _first(values)
        if first is not None:
            given.setdefault("model_name", first)
        made = _renamed(given, _OF_MODEL)
        made["use_unsloth"] = _stated(call, "use_unsloth", True)
        made.update({key: _stated(call, key, value) for key, value in data.ALWAYS.items()})
        whole = values.get("full_finetuning")
        if whole is not None and whole.value is True:
            made["load_in_4bit"] = _stated(call, "load_in_4bit", False)
        return made
    if name == "get_peft_model":
        made = _renamed({**_defaults(call, data.ADAPTERS), **values}, _OF_ADAPTERS)
        made["use_peft"] = _stated(call, "use_peft", True)
        kept = made["gradient_checkpointing"]
        if isinstance(kept.value, str):
            made["gradient_checkpointing"] = Node(kept.value.lower() != "false", kept.span, None, kept.key_path)
        return {**made, **_trained_whole(made)}
    return {}


def doubt(path: str, trainer: str, calls: Sequence[Mapping[str, Node]], said: Mapping[str, Node]) -> str:
    """Why what it makes is not known; "" where it is."""
    classes = {str(call["_target_"].value).partition(".")[0] for call in calls if "_target_" in call}
    scheme = next((call["qat_scheme"] for call in calls if "qat_scheme" in call), None)
    if "use_unsloth" not in said:
        return f"{path}: which model Unsloth makes is not known"
    if classes & {"FastVisionModel", "UnslothVisionDataCollator"}:
        return f"{path}: what the images of a batch take under Unsloth is not described"
    if scheme is not None and scheme.value is not None:
        return f"{path}: qat_scheme {scheme.value}: what quantisation-aware training keeps is not described"
    if trainer not in _TRAINERS:
        return f"{path}: Unsloth's own code of {trainer} is not described"
    if "use_peft" not in said:
        return f"{path}: Unsloth's kernels without adapters are not described"
    return ""


def _trained_whole(made: Mapping[str, Node]) -> dict[str, Node]:
    targets = made.get("lora_target_modules")
    if targets is None or not isinstance(targets.value, list):
        return {}
    whole = [one for one in targets.value if one.value in _WHOLE]
    if not whole:
        return {}
    others = [one for one in targets.value if one.value not in _WHOLE]
    return {
        "lora_target_modules": Node(others, targets.span, targets.key_span, "lora_target_modules", targets.via),
        "lora_modules_to_save": Node(whole, targets.span, targets.key_span, "lora_modules_to_save", targets.via),
    }


def _first(values: Mapping[str, Node]) -> Node | None:
    given = values.get("_args_")
    return given.value[0] if given is not None and isinstance(given.value, list) and given.value else None


def _defaults(call: Node, values: Mapping[str, Any]) -> dict[str, Node]:
    return {name: _stated(call, name, value) for name, value in values.items()}


def _stated(call: Node, key: str, value: Any) -> Node:
    if isinstance(value, list):
        return Node([Node(one, call.span) for one in value], call.span, None, key)
    return Node(value, call.span, None, key)


def _renamed(values: Mapping[str, Node], names: Mapping[str, str]) -> dict[str, Node]:
    found = ((key, values[name]) for name, key in names.items() if name in values)
    return {key: Node(node.value, node.span, node.key_span, key, node.via) for key, node in found}
