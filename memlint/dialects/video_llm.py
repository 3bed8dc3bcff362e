"""Family video-llm: what its schema cannot say."""

from __future__ import annotations

from typing import Any

from memlint.data import decoders
from memlint.documents.node import Edit
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Missing, Name, TrainingSpec

_NEEDED = {
    "micro_batch_size": "training.batch_size",
    HYPER + "decoder": "model.llm.name",
    HYPER + "max_text_length": "data.max_text_length",
    HYPER + "feature_dim": "model.vision.feature_dim",
}
_HALF = ("bfloat16", "float16")


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Architecture, name, and the facts that several keys make together."""
    spec.architecture = "video_llm"
    name = spec.get(HYPER + "decoder", "")
    config = decoders.find(name)
    spec.model_name = f"{name} with frame features" if name else ""
    spec.unknown_reason = _unknown(spec, config)
    if spec.unknown_reason:
        spec.architecture = None
    if config is not None:
        vocabulary = spec.facts[HYPER + "decoder"]._replace(name="vocabulary_size", value=config["vocab_size"])
        spec.facts["vocabulary_size"] = vocabulary
    _precision(spec)
    _optimizer(spec)
    if spec.architecture is not None:
        _length(spec)
    return spec


def _unknown(spec: TrainingSpec, config: dict[str, Any] | None) -> str:
    """Why there is no estimate; "" where there is one."""
    for name, key in _NEEDED.items():
        if name not in spec:
            gap = next((item for item in spec.missing if item.key == key), None)
            return f"{key} is not stated" if gap is None else f"{key} is not known: {gap.reason}"
    if config is None:
        return f"model.llm.name {spec[HYPER + 'decoder']!r} is not in the catalogue of decoders"
    if not spec.get(HYPER + "precomputed"):
        return "model.vision.precomputed: false: which vision encoder runs is not stated"
    if spec.get(HYPER + "projector") != "linear":
        return f"model.projector.type {spec.get(HYPER + 'projector')} is not known, only linear"
    if "frames" not in spec and any(item.key == "data.max_frames" for item in spec.missing):
        return "data.max_frames is not known"
    return ""


def _precision(spec: TrainingSpec) -> None:
    """Autocast's dtype follows the weights': bfloat16 over bfloat16, else torch.cuda.amp's default, float16."""
    weights, switch = spec.get("parameter_dtype"), spec.facts["autocast"]
    half = "bfloat16" if weights == "bfloat16" else "float16"
    value = half if switch.value else weights
    spec.facts["compute_dtype"] = switch._replace(name="compute_dtype", value=value)
    tried = spec.tried("compute_dtype")
    if tried is not None:
        switch = spec.facts["autocast"] = switch._replace(value=tried.value != weights)
        half = tried.value
    if switch.value and half == "float16":
        spec.facts["loss_scaling"] = switch._replace(name="loss_scaling", value="dynamic")


def _optimizer(spec: TrainingSpec) -> None:
    """One key names the optimizer and its implementation."""
    stated = spec.facts["optimizer"]
    fused = stated.value == "adamw_fused"
    if fused:
        spec.facts["optimizer"] = stated._replace(value="adamw")
    if stated.value in ("adamw", "adamw_fused", "sgd"):
        spec.facts["optimizer_implementation"] = stated._replace(
            name="optimizer_implementation", value="fused" if fused else "foreach"
        )


def _length(spec: TrainingSpec) -> None:
    """The longest sequence: frames times their tokens, and text, cut to the limit where there is one."""
    text, limit = spec.facts[HYPER + "max_text_length"], spec.fact(HYPER + "max_seq_length")
    bound = None if limit is None else limit.value
    factors: tuple[str, ...]
    frames = spec.fact("frames")
    if frames is None:
        frames = Fact("frames", None, ASSUMED, "data.max_frames", reason="not stated: no limit")
        spec.facts["frames"] = frames
    if frames.value is None:
        if bound is None:
            reason = "no limit, and model.llm.max_seq_length is not set either"
            place = frames.span or text.span or spec.root.span
            spec.missing = (*spec.missing, Missing("data.max_frames", place, reason))
            spec.unknown_reason = f"data.max_frames: {reason}"
            return
        assert limit is not None
        spec.facts["sequence_length"] = limit._replace(name="sequence_length")
        factors = ("micro_batch_size", HYPER + "max_seq_length")
        tokens = bound - text.value
    else:
        tokens = frames.value * spec[HYPER + "tokens_per_frame"]
        if bound is not None:
            tokens = min(tokens, bound - text.value)
        spec.facts["sequence_length"] = frames._replace(name="sequence_length", value=tokens + text.value)
        factors = ("micro_batch_size", "frames", HYPER + "tokens_per_frame")
    length = spec.facts["sequence_length"]
    spec.facts["attention_tokens"] = length._replace(name="attention_tokens")
    spec.facts["token_product"] = Fact("token_product", ("tokens", factors), DEFAULT)
    size = 4 * tokens * spec[HYPER + "feature_dim"] + 16 * text.value
    spec.facts["sample_bytes"] = Fact("sample_bytes", size, DEFAULT, reason="float32 features, int64 tokens")


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that one key states together with another."""
    from memlint.dialects.spelling import spell as generic

    if fact == "compute_dtype":
        if spec.get("parameter_dtype") in _HALF:
            return []  # autocast over 16-bit weights is not where fp32 goes away
        if value not in ("float16", "float32"):
            return []
        return generic(spec, "autocast", value == "float16")
    if fact == "optimizer_implementation":
        name = {"fused": "adamw_fused", "foreach": "adamw"}.get(value)
        if name is None or spec.get("optimizer") != "adamw":
            return []
        return _named_optimizer(spec, name)
    if fact == "optimizer":
        return _named_optimizer(spec, value)
    if fact in ("sequence_length", "attention_tokens"):
        return []
    return None


def _named_optimizer(spec: TrainingSpec, name: str) -> list[Edit]:
    """``training.optimizer`` as it stands in the file: the fact has one part of what it says."""
    from memlint.dialects import registry
    from memlint.dialects.insertion import add
    from memlint.dialects.rendering import rendered, text_of

    key = next(key for key in registry.dialect(spec.family).keys if key.dotted == "training.optimizer")
    if name not in key.schema.get("enum", ()):
        return []
    node = spec.facts["optimizer"].node
    if node is None:
        return add(spec, key, name)
    text = text_of(spec, node.span.path)
    if text is None:
        return []
    old = text.at(node.span)
    new = rendered(text, node.span, old, name)
    return [] if new is None or new == old else [Edit(node.span, new)]
