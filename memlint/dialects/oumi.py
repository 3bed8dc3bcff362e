"""Family oumi: TRL's trainers, by the tables of Oumi's ``TrainingConfig``."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.dialects import trl
from memlint.facts.spec import Fact, TrainingSpec

_VERSION = "Oumi"
# Modules of transformers' vision-language classes -> the parts that they hold, by the type of their model.
_Modules = dict[str, tuple[str, ...]]
_QWEN: _Modules = {"visual": ("vision_tower", "projector")}
_LLAVA: _Modules = {"vision_tower": ("vision_tower",), "multi_modal_projector": ("projector",)}
_SEEING: dict[str, _Modules] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5"), _QWEN),
    **dict.fromkeys(("llava", "llava_next", "gemma3", "paligemma", "mistral3"), _LLAVA),
    "mllama": {"vision_model": ("vision_tower",), "multi_modal_projector": ("projector",)},
}
_OTHERS = {
    "verl": "verl's loop is not known",
    "oumi": "Oumi's own loop is not known",
    "hf": "its Trainer's loss is not known",
}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From Oumi's tables to what TRL's trainers are told."""
    half = spec.fact(lm.HYPER + "mixed_precision_dtype")
    for switch in ("bf16", "fp16"):  # both are handed on, so TRL's own default never counts
        lm.put(spec, lm.HYPER + switch, half is not None and str(half.value).lower() == switch, half)
    bits, quantised = spec.facts.pop(lm.HYPER + "bits", None), lm.switched(spec, "q_lora")
    if quantised and bits is not None:
        lm.put(spec, lm.HYPER + f"load_in_{bits.value}bit", True, spec.fact(lm.HYPER + "q_lora"))
    if lm.switched(spec, "enable_fsdp"):
        _fsdp(spec, spec.facts[lm.HYPER + "enable_fsdp"])
    _length(spec)
    made = trl.FAMILY.complete(spec)
    if quantised and "quantization.bits" in made:
        lm.put(made, "quantization.prepared", True, reason=f"{_VERSION}: prepare_model_for_kbit_training")
    _freeze(made)
    trainer = made.fact("method")
    kind = "hf" if trainer is None or trainer.node is None else str(trainer.value)
    other = families.otherwise(made) or (f"trainer_type: {_OTHERS[kind]}" if kind in _OTHERS else "")
    if other:
        made.architecture, made.architecture_on_devices, made.unknown_reason = None, "", other
    return made


def _length(spec: TrainingSpec) -> None:
    """``model_max_length`` is the tokenizer's limit, and without it the model's: data are rarely as long."""
    length = spec.fact("sequence_length")
    if length is None and not lm.model(spec, "model_name") and lm.gap(spec, "model_max_length") is None:
        lm.put(spec, "sequence_length", lm.position_limit(spec), reason=f"{_VERSION}: as long as the model takes")
    lm.put(spec, "sequence_bound", True, length, f"{_VERSION}: model_max_length")


def _freeze(spec: TrainingSpec) -> None:
    """Modules that are frozen by name before the trainer is made (utils/torch_utils.py: freeze_model_layers); a name
    that the model does not have is passed over, and a model with adapters trains nothing but them anyway."""
    stated, config = spec.fact(lm.HYPER + "freeze_layers"), spec.fact(lm.CONFIG)
    if stated is None or not isinstance(stated.value, list) or config is None or not isinstance(config.value, dict):
        return
    modules = _SEEING.get(config.value.get("model_type", ""), {})
    frozen: list[str] = []
    if spec.get("tuning") != "lora":
        for name in map(str, stated.value):
            inner = name.removeprefix("model.")
            if inner not in modules:
                return
            if inner != name or spec.does("transformers.parts_are_the_classes_own"):
                frozen += modules[inner]
    del spec.facts[stated.name]
    if frozen:
        lm.put(spec, "frozen_parts", list(dict.fromkeys(frozen)), stated)


def _fsdp(spec: TrainingSpec, switch: Fact) -> None:
    """What Oumi tells accelerate of FSDP, in its first version (core/distributed.py: get_accelerate_env_vars): it
    recomputes in the model's place."""
    full = spec.get("checkpointing") == "full"
    told = {"version": 1, "auto_wrap_policy": lm.setting(spec, "auto_wrap_policy"), "activation_checkpointing": full}
    layers = lm.names_of(lm.setting(spec, "transformer_layer_cls") or [])
    if layers:
        told["transformer_layer_cls_to_wrap"] = ",".join(name.rpartition(".")[2] for name in layers)
    offload = " offload" if lm.switched(spec, "cpu_offload") else ""
    families.stands_for(spec, switch, "fsdp", str(lm.setting(spec, "sharding_strategy")).lower() + offload)
    families.stands_for(spec, switch, "fsdp_config", told)
    lm.put(spec, "checkpointing", "none", switch, "accelerate recomputes in the model's place")
    if lm.setting(spec, "fsdp_mixed_precision") == "bf16":
        lm.put(spec, lm.HYPER + "bf16", True, spec.fact(lm.HYPER + "fsdp_mixed_precision"))
