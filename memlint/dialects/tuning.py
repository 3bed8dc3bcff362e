"""What trains: adapters as PEFT builds them, and quantised weights beside them."""

from __future__ import annotations

from memlint.architectures.adapters import LORA_TARGETS
from memlint.dialects.accelerate import truth
from memlint.dialects.stated import (
    CONFIG,
    names_of,
    not_stated,
    put,
    spellings,
    text_config,
)
from memlint.facts.spec import HYPER, WRITTEN, Name, OnTop, TrainingSpec

ADAPTER_FACTS: tuple[Name, ...] = (
    *("tuning", "lora.r", "lora.alpha", "lora.dropout", "lora.targets", "lora.modules_to_save", "lora.unfrozen"),
    "lora.parameters",
)

QUANTIZATION_FACTS: tuple[Name, ...] = (
    *("quantization.bits", "quantization.kind", "quantization.double", "quantization.group_size"),
    *("quantization.experts", "quantization.skipped"),
)

# The targets of a program that walks the model and lists the names of its linear layers (find_all_linear_names, as
# QLoRA's script has it). PEFT's own ``all-linear`` finds more: it knows what were linear layers before transformers 5.
LISTED = "listed-linear"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# Models all of whose layers are mixtures: but for attention's, none of their layers is a Linear in transformers 5.
MIXTURES = ("qwen3_moe", "mixtral")


def _keeps_experts_apart(spec: TrainingSpec) -> bool:
    """Whether a list of linear layers lacks the experts and their router, which are tensors."""
    kind = text_config(spec.get(CONFIG) or {}).get("model_type")
    return kind in MIXTURES and spec.does("transformers.experts_are_one_tensor")


def adapters(spec: TrainingSpec) -> str:
    """LoRA and DoRA, as PEFT builds them."""
    spec.fact(CONFIG)  # whose step names the model
    switch, rank = spec.fact(HYPER + "use_peft"), spec.fact("lora.r")
    dora = spec.fact(HYPER + "use_dora")
    on = truth(switch.value) if switch is not None else rank is not None and rank.origin == WRITTEN
    if not on:
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    origin = switch if switch is not None else rank
    put(spec, "tuning", "lora", origin)
    if dora is not None and truth(dora.value):
        put(spec, "tuning", "dora", dora)
    if rank is None or rank.value is None:
        return OnTop(not_stated(spec, "lora_r", *spellings(spec, "lora.r")))  # of weights that do not train
    targets = spec.fact("lora.targets")
    names = names_of(targets.value) if targets is not None and targets.value else []
    if targets is not None and names in (["all"], [LISTED]):
        put(spec, "lora.targets", list(ATTENTION) if _keeps_experts_apart(spec) else "all-linear", targets)
    elif targets is not None and names:
        put(spec, "lora.targets", "all-linear" if names == ["all-linear"] else names, targets)
    elif targets is None and (item := spec.gap("lora.targets")) is not None:
        return OnTop(item.message)
    elif spec.get("lora.parameters"):
        put(spec, "lora.targets", [], spec.fact("lora.parameters"), "PEFT 0.21: no modules beside target_parameters")
    elif CONFIG in spec:
        kind = text_config(spec[CONFIG]).get("model_type", "")
        if kind not in LORA_TARGETS:
            return f"lora_target_modules is not stated, and PEFT has no default for {kind}"
        put(spec, "lora.targets", list(LORA_TARGETS[kind]), reason=f"PEFT 0.21: its default for {kind}")
    saved = spec.fact("lora.modules_to_save")
    if saved is not None and saved.value:
        put(spec, "lora.modules_to_save", names_of(saved.value), saved)
    if spec.model_name:
        spec.model_name += ", DoRA" if spec["tuning"] == "dora" else ", LoRA"
    return ""


def quantization(spec: TrainingSpec) -> None:
    """bitsandbytes' frozen weights."""
    four, eight, bits = (spec.fact(HYPER + name) for name in ("load_in_4bit", "load_in_8bit", "bits"))
    if four is not None and truth(four.value):
        put(spec, "quantization.bits", 4, four)
    elif eight is not None and truth(eight.value):
        put(spec, "quantization.bits", 8, eight)
    elif bits is not None and bits.value in (4, 8):
        put(spec, "quantization.bits", bits.value, bits)
    origin = spec.fact("quantization.bits")
    kind, double = spec.fact("quantization.kind"), spec.fact("quantization.double")
    if origin is None:
        for name in ("quantization.kind", "quantization.double"):
            spec.facts.pop(name, None)
        stored_quantization(spec)
        return
    if origin.value == 8:
        put(spec, "quantization.kind", "int8", origin)
        spec.facts.pop("quantization.double", None)
        return
    if kind is None or kind.value is None:
        put(spec, "quantization.kind", "fp4", reason="transformers 5: BitsAndBytesConfig")
    if double is None or double.value is None:
        put(spec, "quantization.double", False, reason="transformers 5: BitsAndBytesConfig")


def prepared(spec: TrainingSpec) -> None:
    """A script that calls PEFT's prepare_model_for_kbit_training casts what is not quantised to float32."""
    switch = spec.fact(HYPER + "prepared")
    if switch is not None and switch.value and "quantization.bits" in spec:
        put(spec, "quantization.prepared", True, switch, "PEFT 0.21: prepare_model_for_kbit_training")


def stored_quantization(spec: TrainingSpec) -> bool:
    """Whether the checkpoint itself is quantised to stay so, by its config; and the facts of how. Call after
    :func:`model`. Checkpoints in 8-bit floats are unpacked for training."""
    origin = spec.fact(CONFIG)
    stated = origin.value.get("quantization_config") if origin is not None and isinstance(origin.value, dict) else None
    kind = stated.get("quant_method", "") if isinstance(stated, dict) else ""
    known = ("gptq", "awq", "aqlm", "hqq", "eetq", "bitsandbytes")
    if origin is None or not isinstance(stated, dict) or kind not in known:
        return False
    bits, double = stated.get("bits", 8 if kind == "eetq" else 4), False
    if kind == "aqlm":
        bits = stated.get("nbits_per_codebook", 16) * stated.get("num_codebooks", 1) // stated.get("in_group_size", 8)
    elif kind == "hqq":
        bits = stated.get("quant_config", {}).get("weight_quant_params", {}).get("nbits", 4)
    elif kind == "bitsandbytes":
        bits = 4 if stated.get("load_in_4bit") else 8
        kind = stated.get("bnb_4bit_quant_type", "fp4") if bits == 4 else "int8"
        double = bool(stated.get("bnb_4bit_use_double_quant")) and bits == 4
    reason = "the checkpoint is quantised"
    put(spec, "quantization.bits", bits, origin, reason)
    put(spec, "quantization.kind", kind, origin, reason)
    put(spec, "quantization.double", double, origin, reason)
    group = stated.get("group_size")
    if isinstance(group, int):
        put(spec, "quantization.group_size", max(group, 0), origin, reason)
    return True
