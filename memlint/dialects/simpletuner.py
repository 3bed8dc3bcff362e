"""Family simpletuner: SimpleTuner's config.json, of the models whose denoisers are known.

Prompts and images are encoded before the first step, and what encodes them is deleted then (``trainer.py``:
``init_unload_text_encoder``, ``init_unload_vae``). The base and the adapters beside it are all in the dtype of
``mixed_precision`` (``move_models``), and come to the card after that; accelerate runs them under autocast.

Source: bghira/SimpleTuner at bc8e6ab, ``simpletuner/helpers/{training/trainer,models/common,models/*/model}.py``.
"""

from __future__ import annotations

import json
from math import isqrt
from typing import Any

from memlint.architectures.diffusion import SIMPLETUNER
from memlint.dialects import companions, key_facts
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import Edit, Node
from memlint.facts.spec import ASSUMED, HYPER, Fact, Name, TrainingSpec

_SOURCE = "SimpleTuner at bc8e6ab"
_MEGAPIXEL = 1_000_000
_ROUNDING = 64  # pixels that the sides of an image are rounded to: aspect_bucket_alignment

# model_family -> a pipeline with the same denoiser. Of a family any checkpoint has the same, but for these words.
_FAMILIES = {
    "sd1x": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "sd2x": "stabilityai/stable-diffusion-2-1",
    "sdxl": "stabilityai/stable-diffusion-xl-base-1.0",
    "sd3": "stabilityai/stable-diffusion-3.5-medium",
    "flux": "black-forest-labs/FLUX.1-dev",
}
_MEDIUM = "stable-diffusion-3-medium-diffusers"  # of sd3's family, by id alone
_LARGE = "stabilityai/stable-diffusion-3.5-large"
_SD3_TOKENS = 77 + 154  # CLIP's, and T5's by tokenizer_max_length
_OTHER_CHECKPOINTS = ("refiner", "schnell", "kontext", "libreflux", "fill", "depth", "canny", "inpaint")

# Key -> (what it may say without another step coming of it, what is not known where it says more)
_PLAIN = ("", "none", "no", "false", "0", "null")
_OTHERWISE: dict[str, tuple[tuple[str, ...], str]] = {
    "base_model_precision": (("no_change", *_PLAIN), "products with a base that is quantised"),
    "lora_type": (("standard", *_PLAIN), "adapters of LyCORIS"),
    "gradient_checkpointing_backend": (("torch", *_PLAIN), "recomputation with activations in host memory"),
    "gradient_checkpointing_interval": (("1", *_PLAIN), "recomputation of every other block"),
    "gradient_checkpointing_segment_stride": (_PLAIN, "recomputation of segments"),
    "attention_mechanism": (("diffusers", "xformers", *_PLAIN), "its attention"),
    "peft_lora_mode": (("standard", *_PLAIN), "such adapters"),
    "peft_lora_target_modules": (_PLAIN, "adapters at layers that the file names"),
    "init_lora": (_PLAIN, "an adapter that training goes on with, whose rank is its own"),
    "distillation_method": (_PLAIN, "a second model that teaches"),
    "musubi_blocks_to_swap": (_PLAIN, "blocks in host memory"),
    "deepspeed_config": (_PLAIN, "what DeepSpeed shares of a denoiser"),
    "tread_config": (_PLAIN, "tokens that pass layers by"),
    **{
        switch: (_PLAIN, what)
        for switch, what in (
            ("keep_vae_loaded", "an autoencoder that stays"),
            ("vae_cache_ondemand", "an autoencoder that encodes in each step"),
            ("vae_cache_disable", "an autoencoder that encodes in each step"),
            ("gradient_checkpointing_offload_attention", "recomputation with activations in host memory"),
            ("controlnet", "a ControlNet beside it"),
            ("train_text_encoder", "a text encoder that trains"),
            ("use_dora", "DoRA beside a denoiser"),
            ("fuse_qkv_projections", "joined projections"),
            ("fused_qkv_projections", "joined projections"),
            ("flux_attention_masked_training", "attention with a mask"),
            ("enable_group_offload", "layers in host memory"),
            ("ramtorch", "layers in host memory"),
            ("fsdp_enable", "what FSDP shares of a denoiser"),
            ("crepa_enabled", "a loss between hidden states"),
        )
    },
}
# Names of optimizers -> (the optimizer, whose)
_OPTIMIZERS = {
    "adamw_bf16": ("adamw_compensated", "SimpleTuner"),
    "bnb-adamw8bit": ("adamw_8bit", "bitsandbytes"),
    "bnb-adamw8bit-paged": ("adamw_8bit", "bitsandbytes"),
    "ao-adamw8bit": ("adamw_8bit", "torchao"),
    "ao-adamw4bit": ("adamw_4bit", "torchao"),
}
_SHARED = ("to_k", "to_q", "to_v", "to_out.0")
_JOINT = (*_SHARED, "add_k_proj", "add_q_proj", "add_v_proj", "to_add_out")
_FORWARDS = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2", "proj_mlp", "proj_out")
# flux_lora_target -> the layers that adapters are put beside; of a model whose projections are not joined
_FLUX_TARGETS = {
    "mmdit": _JOINT,
    "all": _JOINT,
    "context": ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"),
    "all+ffs": (*_JOINT, *_FORWARDS),
}


def spell(spec: TrainingSpec, fact: Name, value: object) -> list[Edit] | None:
    """Optimizers have names of SimpleTuner's own, and images sizes in several units."""
    if fact in ("tuning", "optimizer", "optimizer_implementation", "image_size", "attention", "lora.targets"):
        return []
    return key_facts.spell(spec, fact, value)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the denoiser where it is known."""
    family, adapted = _word(spec, "model_family"), _word(spec, "model_type") == "lora"
    spec = key_facts.complete(spec)
    reason = _unknown(spec, family)
    if reason is not None:
        spec.unknown_reason = reason or spec.unknown_reason
        return spec
    _stated(spec, family, adapted)
    spec.unknown_reason = _optimizer(spec) or _image(spec)
    if not spec.unknown_reason:
        spec.architecture = "diffusion"
    return spec


def _node(spec: TrainingSpec, key: str) -> Node | None:
    return spec.root.get(key) or spec.root.get(f"--{key}")


def _word(spec: TrainingSpec, key: str) -> str:
    """What a key says, in lower case; "" where it says nothing."""
    node = _node(spec, key)
    return "" if node is None or node.value is None else str(node.value).lower()


def _unknown(spec: TrainingSpec, family: str) -> str | None:
    """Why there is no estimate, "" where that is said already; None where there may be one."""
    if family not in _FAMILIES:
        return ""
    checkpoint = f"{_word(spec, 'pretrained_model_name_or_path')} {_word(spec, 'model_flavour')}"
    other = next((word for word in _OTHER_CHECKPOINTS if word in checkpoint), "")
    if other:
        return f"of {family} the {other} is another model, which is not known"
    if _word(spec, "mixed_precision") not in ("bf16", "no", ""):
        return f"mixed_precision {_word(spec, 'mixed_precision')} is not known"
    for key, (known, what) in _OTHERWISE.items():
        said = _word(spec, key)
        if said not in known:
            return f"{key} {said}: memlint does not describe {what}"
    if _word(spec, "model_type") not in ("lora", "full"):
        return f"model_type {_word(spec, 'model_type')} is not known"
    target = _word(spec, "flux_lora_target") or "all"
    if family == "flux" and target not in _FLUX_TARGETS:
        return f"flux_lora_target {target} is not known"
    return None


def _stated(spec: TrainingSpec, family: str, adapted: bool) -> None:
    """What SimpleTuner does where the file says nothing, in the words of the vocabulary."""
    lm.put(spec, "model", _denoiser(spec, family), spec.fact("model"), f"{_SOURCE}: the denoiser of {family}")
    if family == "sd3":
        lm.put(spec, HYPER + "prompt_tokens", _SD3_TOKENS, reason=f"{_SOURCE}: tokenizer_max_length")
    lm.put(spec, HYPER + "script", SIMPLETUNER, reason=_SOURCE)
    half = spec.fact("compute_dtype")
    compute = "bfloat16" if half is None else half.value
    lm.put(spec, "compute_dtype", compute, half, f"{_SOURCE}: mixed_precision")
    lm.put(spec, "parameter_dtype", compute, half, f"{_SOURCE}: move_models")
    lm.put(spec, "tuning", "lora" if adapted else "full", spec.fact("tuning"))
    if adapted:
        if "lora.r" not in spec:
            lm.put(spec, "lora.r", 16, reason=f"{_SOURCE}: lora_rank")
        if "lora.dropout" not in spec:
            lm.put(spec, "lora.dropout", 0.1, reason=f"{_SOURCE}: lora_dropout")
        targets = _FLUX_TARGETS[_word(spec, "flux_lora_target") or "all"] if family == "flux" else _SHARED
        lm.put(spec, "lora.targets", list(targets), reason=f"{_SOURCE}: get_lora_target_layers")
    # The file's own words: "flash" and others are another attention's, which is told above.
    kind = "xformers" if _word(spec, "attention_mechanism") == "xformers" else "sdpa"
    lm.put(spec, "attention", kind, spec.fact("attention"), _SOURCE)
    averaged = spec.fact("ema")
    if averaged is not None and averaged.value and _word(spec, "ema_device") != "accelerator":
        lm.put(spec, HYPER + "offload_ema", True, averaged, f"{_SOURCE}: ema_device cpu")


def _denoiser(spec: TrainingSpec, family: str) -> str:
    """A pipeline with the denoiser of a family. Those of sd3 differ: its flavours and ids say which it is."""
    if family == "sd3":
        named = _word(spec, "pretrained_model_name_or_path")
        if named.endswith(_MEDIUM):
            return named
        return _LARGE if "large" in f"{named} {_word(spec, 'model_flavour')}" else _FAMILIES[family]
    return _FAMILIES[family]


def _optimizer(spec: TrainingSpec) -> str:
    stated = _node(spec, "optimizer")
    said = _word(spec, "optimizer") or "adamw_bf16"
    if said not in _OPTIMIZERS:
        return f"optimizer {said}: its states are not known"
    if said == "adamw_bf16" and spec.get("parameter_dtype") != "bfloat16":
        return "optimizer adamw_bf16 takes weights in bfloat16 alone"
    origin = None if stated is None else spec.fact("optimizer")
    for name, value in zip(("optimizer", "optimizer_library"), _OPTIMIZERS[said]):
        lm.put(spec, name, value, origin, _SOURCE)  # type: ignore[arg-type]
    if said.endswith("paged"):
        lm.put(spec, "optimizer_paged", True, origin, _SOURCE)
    return ""


def _image(spec: TrainingSpec) -> str:
    """The largest images of all data sets: each says its own size, in one of three units, or takes the run's."""
    sides = [side for side in map(_side, *_units(spec)) if side]
    if not sides:
        return "resolution is not known"
    own = spec.fact("image_size")
    backend = _node(spec, "data_backend_config")
    found = _backend(backend, spec)
    if backend is not None and found is None:
        reason = f"the file of data sets, {backend.value}, is not there to say another"
        spec.facts["image_size"] = Fact("image_size", max(sides), ASSUMED, "resolution", reason=reason)
    else:
        lm.put(spec, "image_size", max(sides), own, f"{_SOURCE}: of the largest data set")
    return ""


def _backend(named: Node | None, spec: TrainingSpec) -> list[dict[str, Any]] | None:
    """The data sets with images that a run names; None where their file is not there, or no list."""
    if named is None or not isinstance(named.value, str):
        return None
    document, _ = companions.read(named.value, spec.document.path)
    if document is None:
        return None
    try:
        found = json.loads(document.text)  # a list, which is no config
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    sets = [one for one in found if isinstance(one, dict) and not truth(one.get("disabled"))]
    return [one for one in sets if one.get("dataset_type", "image") == "image"]


def _units(spec: TrainingSpec) -> tuple[list[object], list[str]]:
    """(sizes, what each is counted in)"""
    own = _node(spec, "resolution")
    size: object = 1024 if own is None else own.value
    kind = _word(spec, "resolution_type") or "pixel_area"
    sets = _backend(_node(spec, "data_backend_config"), spec) or []
    sizes = [size if one.get("resolution") is None else one["resolution"] for one in sets]
    kinds = [str(one.get("resolution_type") or kind).lower() for one in sets]
    return (sizes, kinds) if sets else ([size], [kind])


def _side(size: object, kind: str) -> int:
    """Of a square image: ``area`` is in megapixels, ``pixel_area`` and ``pixel`` are sides; 0 where it is not known."""
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size <= 1 << 16:
        return 0
    side = isqrt(int(size * _MEGAPIXEL)) if kind == "area" else int(size)
    return max(round(side / _ROUNDING), 1) * _ROUNDING
