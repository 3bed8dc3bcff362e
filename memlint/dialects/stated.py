"""What the keys of a run state, and how a fact is put beside them."""

from __future__ import annotations

from typing import Any, Final

from memlint.dialects.accelerate import truth
from memlint.documents.node import Node, Span
from memlint.facts.spec import DEFAULT, HYPER, Fact, Missing, Name, TrainingSpec
from memlint.trainers import table
from memlint.trainers.table import Trainer

CONFIG = HYPER + "config"
DECODER: Final = "decoder"  # a memlint.architectures.decoder.Decoder
LLAVA: Final = "llava"  # a memlint.architectures.vision_language.LlavaScript
ARCHITECTURE = "language_model"
TRANSFORMERS = "transformers 5"
HALF = ("bfloat16", "float16")

_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "float": "float32",
    "fp32": "float32",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
}


def setting(spec: TrainingSpec, name: str) -> Any:
    """The value of a key that is no fact of its own; None where it is absent."""
    return spec.get(HYPER + name)


def switched(spec: TrainingSpec, name: str) -> bool:
    """Whether such a key is true."""
    return truth(setting(spec, name))


def put(spec: TrainingSpec, name: Name, value: Any, origin: Fact | None = None, reason: str = "") -> None:
    """A fact that follows from another one, which says where; or a default, which says why."""
    if origin is not None:
        spec.facts[name] = origin._replace(name=name, value=value, reason=reason or origin.reason)
    else:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def gap(spec: TrainingSpec, *keys: str) -> Missing | None:
    """The first value that could not be resolved, of these keys."""
    for item in spec.missing:
        if item.key.lstrip("-").rsplit(".", 1)[-1] in keys:
            return item
    return None


def not_stated(spec: TrainingSpec, *keys: str) -> str:
    """Why the value of a key is not there: it is not resolved, or not written."""
    item = gap(spec, *keys)
    return f"{keys[0]} is not stated" if item is None else f"{item.key} is not known: {item.reason}"


def names_of(value: Any) -> list[str]:
    """``q_proj,v_proj`` and ``[q_proj, v_proj]`` alike."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [name.strip() for item in items for name in str(item).split(",") if name.strip()]


def dtype_of(value: Any) -> str:
    """A dtype by torch's name; "" for ``auto`` and the like."""
    text = str(value).strip().lower()
    text = _DTYPES.get(text, text)
    return text if text in ("float32", "float16", "bfloat16", "float64") else ""


def spellings(spec: TrainingSpec, fact: str) -> tuple[str, ...]:
    from memlint.dialects import registry

    key = registry.dialect(spec.family).key(fact)
    return key.names if key is not None else ()


def tree(value: Any, span: Span) -> Node:
    """What a library ships, as if the file stood where it is named."""
    if isinstance(value, dict):
        return Node({name: tree(inner, span) for name, inner in value.items()}, span)
    return Node(value, span)


def trainer(spec: TrainingSpec) -> Trainer:
    """The loop that trains, by the name that the family's schema has for it, or for its method."""
    from memlint.dialects import registry

    header = registry.dialect(spec.family).header
    return table.trainer(header.get("trainer") or header.get("module", ""), str(spec.get("method", "")))


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def model_type(spec: TrainingSpec) -> str:
    return str((spec.get(CONFIG) or {}).get("model_type") or "")


# What a script says of itself: a model is on its card before anything says that DeepSpeed shards it. transformers knows
# that from when TrainingArguments are made (integrations/deepspeed.py: is_deepspeed_zero3_enabled).
PLACED_WHOLE = "placed_whole"

# What a script says of itself: classes of attention whose pass is one of its own, and the kernel that this calls.
PATCHED = "patched_attention"

# Models whose config.json says how large every input is: thirty seconds of sound, or images of one size.
_ONE_SIZE = ("whisper", "vit", "deit", "program")


def has_one_size(spec: TrainingSpec) -> bool:
    """Whether every input of the model is of the same size."""
    config = spec.get(CONFIG)
    return isinstance(config, dict) and config.get("model_type") in _ONE_SIZE
