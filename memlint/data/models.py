"""The catalogue of models: hub id -> hyper-parameters, as their ``config.json`` names them, and parameter counts.

The figures are facts of the models' public repositories. ``models.json`` keeps what the entries of one ``model_type``
share under ``types``, an entry holds what differs; a string stands for the entry of that id, and ``like`` names
the entry of which another is a variant.
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.named_tuple import NamedTuple


class Model(NamedTuple):
    """One model.

    name        its hub id, aliases resolved
    parameters  of the class that ``config["architectures"]`` names, each shared tensor once
    config      what of its config.json decides shapes, to read and not to change; ``dtype``, where known, is the
                checkpoint's
    """

    name: str
    parameters: int
    config: dict[str, Any]


_BITS_AND_BYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_GROUPS = {"group_size": 128, "quant_method": "gptq"}
# How publishers name the quantised copies of their models: (their ids begin with, end with, what that config says).
_PACKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("unsloth/", "-bnb-4bit", {**_BITS_AND_BYTES, "bnb_4bit_use_double_quant": True}),
    ("qwen/", "-gptq-int4", {**_GROUPS, "bits": 4}),
    ("qwen/", "-gptq-int8", {**_GROUPS, "bits": 8}),
    ("qwen/", "-awq", {"bits": 4, "group_size": 128, "quant_method": "awq"}),
)
# And single ones -> (the model, what the config says); 2 bits of AQLM: one code of 16 bits for 8 weights.
_AQLM = {"quant_method": "aqlm", "nbits_per_codebook": 16, "num_codebooks": 1, "in_group_size": 8}
_COPIES: dict[str, tuple[str, dict[str, Any]]] = {
    "thebloke/llama-2-7b-gptq": ("meta-llama/Llama-2-7b-hf", {**_GROUPS, "bits": 4}),
    "thebloke/llama-2-7b-chat-gptq": ("meta-llama/Llama-2-7b-hf", {**_GROUPS, "bits": 4}),
    "thebloke/llama-2-13b-gptq": ("meta-llama/Llama-2-13b-hf", {**_GROUPS, "bits": 4}),
    "thebloke/llama-2-13b-chat-gptq": ("meta-llama/Llama-2-13b-hf", {**_GROUPS, "bits": 4}),
    "thebloke/mistral-7b-v0.1-gptq": ("mistralai/Mistral-7B-v0.1", {**_GROUPS, "bits": 4}),
    "thebloke/mistral-7b-instruct-v0.1-gptq": ("mistralai/Mistral-7B-Instruct-v0.1", {**_GROUPS, "bits": 4}),
    "thebloke/mistral-7b-instruct-v0.2-gptq": ("mistralai/Mistral-7B-Instruct-v0.2", {**_GROUPS, "bits": 4}),
    "thebloke/zephyr-7b-beta-gptq": ("HuggingFaceH4/zephyr-7b-beta", {**_GROUPS, "bits": 4}),
    "techxgenus/meta-llama-3-8b-instruct-gptq": ("meta-llama/Meta-Llama-3-8B-Instruct", {**_GROUPS, "bits": 4}),
    "techxgenus/meta-llama-3-8b-instruct-awq": (
        "meta-llama/Meta-Llama-3-8B-Instruct",
        {"bits": 4, "group_size": 128, "quant_method": "awq"},
    ),
    "ista-daslab/meta-llama-3-8b-instruct-aqlm-2bit-1x16": ("meta-llama/Meta-Llama-3-8B-Instruct", _AQLM),
    "ista-daslab/llama-2-7b-aqlm-2bit-1x16-hf": ("meta-llama/Llama-2-7b-hf", _AQLM),
    "blacksamorez/llama-2-7b-aqlm-2bit-1x16-hf": ("meta-llama/Llama-2-7b-hf", _AQLM),
}

# Organisations of ModelScope that hold other publishers' models, each under the last part of its id on the hub
# (ms-swift 4.6, swift/model: Model(id on ModelScope, id on the hub)).
_MIRRORS = ("ai-modelscope", "llm-research", "01ai", "zhipuai", "shanghai_ai_laboratory", "openai-mirror")

_models: dict[str, Any] = {}
_types: dict[str, dict[str, Any]] = {}
_lower: dict[str, str] = {}  # id in lower case -> id

# Where a config.json says how many tokens or patches the model takes at most, by the age of its architecture.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def names() -> list[str]:
    """Every hub id that is known, aliases included, sorted."""
    _load()
    return list(_models)


def find(name: str) -> Model | None:
    """The model of a hub id, in any case; None where it is not known."""
    _load()
    if name not in _models:
        if not _lower:
            _lower.update((known.lower(), known) for known in _models)
        name = _lower.get(name.lower()) or _mirrored(name.lower())
    entry = _models.get(name)
    if isinstance(entry, str):
        name, entry = entry, _models[entry]
    return None if entry is None else Model(name, *_whole(entry))


def _mirrored(name: str) -> str:
    """The id on the hub that a mirror's is of, both in lower case; "" where it is none, or of several models."""
    organisation, _, last = name.partition("/")
    if organisation not in _MIRRORS:
        return ""
    known = [one for lower, one in _lower.items() if lower.rpartition("/")[2] == last]
    shapes = {entry if isinstance(entry := _models[one], str) else one for one in known}
    return known[0] if len(shapes) == 1 else ""


def quantised(name: str) -> Model | None:
    """The quantised copy of a model, by the name that its publisher gives such copies; None where it is no such name.

    Its ``config`` has the copy's ``quantization_config``; ``parameters`` are the original's.
    """
    lower = name.lower()
    original, how = _COPIES.get(lower, ("", {}))
    for begins, ends, stated in _PACKED:
        if lower.startswith(begins) and lower.endswith(ends):
            original, how = name[: -len(ends)], stated
    found = find(original) if original else None
    if found is None:
        return None
    dtype = "bfloat16" if how["quant_method"] == "bitsandbytes" else "float16"
    return Model(found.name, found.parameters, {**found.config, "dtype": dtype, "quantization_config": dict(how)})


def context(config: dict[str, Any]) -> int | None:
    """Positions that a ``config.json`` states; of the text model, where it nests one. None where it states none."""
    for mapping in (config, config.get("text_config")):
        if isinstance(mapping, dict):
            for key in _CONTEXT:
                value = mapping.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
    return None


def _whole(entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    changes = dict(entry)
    parameters = changes.pop("parameters", None)
    like = changes.pop("like", None)
    if like is None:
        return parameters, {**_types.get(entry["model_type"], {}), **changes}
    same, config = _whole(_models[like])
    for part, value in changes.items():
        if isinstance(value, dict):  # a nested config changes field by field, too
            changes[part] = {**config.get(part, {}), **value}
    return same if parameters is None else parameters, {**config, **changes}


def _load() -> None:
    if _models:
        return
    with open(os.path.join(os.path.dirname(__file__), "models.json"), encoding="utf-8") as file:
        catalogue = json.load(file)
    _types.update(catalogue["types"])
    _models.update(catalogue["models"])
