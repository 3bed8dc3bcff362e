"""Family diffusers: which of diffusers' training scripts a command starts, and what the script states of itself.

Source: ``diffusers`` 0.42.1, ``examples``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.diffusion import SCRIPTS, Pipeline, Script, pipeline
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.dialects import schema as schemas
from memlint.dialects.accelerate import truth
from memlint.documents.node import MAX_DIGITS, Edit
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

_SOURCE = "diffusers 0.42: examples"
# Switches that make another step of the script -> what is not known of it.
_OTHERWISE = {
    "use_dora": "DoRA beside a UNet",
    "dream_training": "a second pass through the denoiser",
    "train_text_encoder": "a text encoder that trains",
    "do_fp8_training": "training in fp8",
    "bnb_quantization_config_path": "a denoiser in 4 bits",
    "lora_blocks": "adapters in some of the blocks",
}


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Which script it is decides what trains, and not all of them take ``--optimizer``: 8 bits have a switch."""
    if fact in ("tuning", "optimizer", "optimizer_implementation"):
        return []
    return key_facts.spell(spec, fact, value)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the script and pipeline where both are known."""
    spec = key_facts.complete(spec)
    name = _program(spec)
    script = SCRIPTS.get(name)
    if script is None:
        if name:  # of diffusers' own or of anybody's: they have the same options
            called = spec.launch.called.rsplit("/", 1)[-1] if spec.launch is not None else name
            title = schemas.header(spec.family)["title"]
            spec.unknown_reason = f"{called}, of {title} or with their options, is not known: {key_facts.WAY_OUT}"
        return spec
    if script.own and spec.root.get("model_config_name_or_path") is None:
        _put(spec, "model", script.own, f"{_SOURCE}: {name}.py makes it")
    spec.unknown_reason = _unknown(spec, name, script)
    if spec.unknown_reason:
        return spec
    spec.architecture = "diffusion"
    _stated(spec, name, script)
    return spec


def _program(spec: TrainingSpec) -> str:
    """The script's name, without folder and .py."""
    program = spec.launch.called if spec.launch is not None else ""
    return program.rsplit("/", 1)[-1].removesuffix(".py")


def _unknown(spec: TrainingSpec, name: str, script: Script) -> str:
    """Why there is no estimate; "" where there is one."""
    model = spec.fact("model")
    if model is None:
        gap = lm.gap(spec, "pretrained_model_name_or_path")
        why = "is not stated" if gap is None else f"is not known: {gap.reason}"
        return f"pretrained_model_name_or_path {why}"
    found = pipeline(str(model.value))
    if found is None:
        return spec.unknown_reason
    if found.kind not in script.kinds:
        return f"{name}.py is not for {found.title}"
    release = str(spec.get("framework_version") or "")
    if release.startswith("torch 1.") and spec.get("attention") != "xformers":
        return f"diffusers' own attention, which it has without {release.split()[0]} 2's, is not known ({release})"
    gap = lm.gap(spec, "train_batch_size")
    if gap is not None:
        return f"{gap.key} is not known: {gap.reason}"
    if script.cached and not _switched(spec, script.cached):
        return f"without --{script.cached} the autoencoder of {found.title} encodes in each step, which is not known"
    if script.prompted and spec.root.get(script.prompted) is not None:
        return f"with --{script.prompted} the text encoders of {found.title} run in each step, which is not known"
    for key in script.fails:
        if _switched(spec, key):
            return f"--{key}: {name}.py encodes images in 16 bits with an autoencoder in fp32, which fails"
    for key, what in _OTHERWISE.items():
        if _switched(spec, key) and not (key == "train_text_encoder" and script.text):
            return f"--{key}: {what} is not known"
    return ""


def _switched(spec: TrainingSpec, key: str) -> bool:
    """Whether a switch is on, or an option has a value."""
    node = spec.root.get(key)
    words = key.endswith(("path", "blocks"))
    return node is not None and (truth(node.value) or (isinstance(node.value, str) and words))


def _stated(spec: TrainingSpec, name: str, script: Script) -> None:
    """What the script does where its command says nothing."""
    found = pipeline(str(spec["model"]))
    assert found is not None
    source = f"{_SOURCE}: {name}.py"
    _put(spec, HYPER + "script", name, source)
    if not script.text:
        spec.facts.pop(HYPER + "train_text_encoder", None)
    if "micro_batch_size" not in spec and lm.gap(spec, "train_batch_size") is None:
        _put(spec, "micro_batch_size", script.batch, source, "train_batch_size")
    if found.frames:
        _video(spec, source)
    elif "image_size" not in spec and lm.gap(spec, "resolution") is None:
        _put(spec, "image_size", script.resolution, source, "resolution")
    length = spec.root.get("max_sequence_length")
    asked = _count(length.value) if length is not None else 0
    if found.kind.startswith("sd3"):
        _put(spec, HYPER + "prompt_tokens", 77 + (asked or 77), source, "max_sequence_length")
    elif (asked or script.prompt) and found.kind.startswith("flux"):
        _put(spec, HYPER + "prompt_tokens", asked or script.prompt, source, "max_sequence_length")
    _precision(spec, source)
    _tuning(spec, script, source)
    _optimizer(spec, script, source)
    _checkpointing(spec, found, source)
    spec.facts["attention"] = spec.facts.get("attention") or Fact("attention", "sdpa", DEFAULT, reason=_SOURCE)
    if spec.facts["attention"].value == "eager":
        _put(spec, "attention", "sdpa", _SOURCE)


def _put(spec: TrainingSpec, name: Name, value: object, reason: str, key: str = "") -> None:
    spec.facts[name] = Fact(name, value, DEFAULT, key, reason=reason)


def _video(spec: TrainingSpec, source: str) -> None:
    """The largest of the buckets that a batch may be of; else the script's one size."""
    sides = [_largest(spec, f"{side}_buckets") or spec.get(HYPER + side) for side in ("height", "width")]
    if all(sides):
        _put(spec, "image_size", sides, source)
    elif "image_size" not in spec:
        _put(spec, "image_size", [480, 720], source)
    frames = _largest(spec, "frame_buckets") or spec.get("frames")
    _put(spec, "frames", frames or 49, source, "max_num_frames")


def _largest(spec: TrainingSpec, key: str) -> int:
    """Of the numbers of an option; 0 where it is not there."""
    node = spec.root.get(key)
    if node is None:
        return 0
    value = node.value
    items = [str(item.value) for item in value] if isinstance(value, list) else str(value).split()
    return max(map(_count, items), default=0)


def _count(value: object) -> int:
    """Of an option; 0 where it is none."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0


def _precision(spec: TrainingSpec, source: str) -> None:
    """The script's own option, else what accelerate's launcher or config says."""
    launched = spec.take("mixed_precision")
    if "compute_dtype" not in spec and launched is not None and launched.value in lm.HALF:
        lm.put(spec, "compute_dtype", launched.value, launched)
    if "compute_dtype" not in spec:
        _put(spec, "compute_dtype", "float32", "accelerate 1.15: mixed_precision no")
    _put(spec, "parameter_dtype", "float32", source)


def _tuning(spec: TrainingSpec, script: Script, source: str) -> None:
    adapted = bool(script.targets)
    if script.logits:  # train_amused trains either
        switch = spec.root.get("use_lora")
        adapted = switch is not None and truth(switch.value)
    whole = "trainable_tokens" if script.trains == "tokens" else "full"
    _put(spec, "tuning", "lora" if adapted else whole, source)
    if adapted and "lora.r" not in spec:
        _put(spec, "lora.r", script.rank, source, "rank")
    if adapted:
        named = spec.root.get("lora_layers")
        layers = named.value.split(",") if named is not None and isinstance(named.value, str) else list(script.targets)
        _put(spec, "lora.targets", [layer.strip() for layer in layers], source)


def _optimizer(spec: TrainingSpec, script: Script, source: str) -> None:
    if "optimizer" not in spec:
        _put(spec, "optimizer", script.optimizer, source)
    library = "torchao" if _switched(spec, "use_torchao") else "bitsandbytes"
    for bits in (8, 4):
        if _switched(spec, f"use_{bits}bit"):
            name = spec["optimizer"]
            spec.facts["optimizer"] = spec.facts["optimizer"]._replace(value=f"{name}_{bits}bit")
            _put(spec, "optimizer_library", library, source)
    if _switched(spec, "use_cpu_offload_optimizer"):
        _put(spec, "optimizer_library", "on the host", source)
    if "optimizer_implementation" not in spec and spec.get("optimizer_library") != "bitsandbytes":
        _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")


def _checkpointing(spec: TrainingSpec, found: Pipeline, source: str) -> None:
    """aMUSEd's transformer had a switch without effect until diffusers 0.32 (``_set_gradient_checkpointing`` of
    ``uvit_2d.py`` does nothing), and fails with it since 0.33, which calls its layers with names that they do not
    take."""
    stated = spec.fact("checkpointing")
    if found.kind.startswith("amused") and stated is not None and stated.value == "full":
        reason = "diffusers up to 0.32: uvit_2d.py has a switch without effect; from 0.33 on it fails"
        spec.facts["checkpointing"] = Fact("checkpointing", "none", ASSUMED, stated.key, reason=reason)
