"""Family nanotron: its YAML, which states the model by its sizes and all devices by their degrees."""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.architectures.megatron import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import pretraining
from memlint.dialects.accelerate import truth
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Name, TrainingSpec

_VERSION = "nanotron at 2411b02"
_KEYS = {
    "micro_batch_size": "tokens.micro_batch_size",
    "sequence_length": "tokens.sequence_length",
    "optimizer": "optimizer.optimizer_factory.name",
}
_DEGREES: tuple[Name, ...] = (
    *("parallelism.data", "parallelism.tensor", "parallelism.pipeline", "parallelism.context", "parallelism.expert"),
)
# What Qwen2Config knows and LlamaConfig does not: a config with none of them, and no word about whose it is, is Llama's
# (config/config.py, NanotronConfigs; dacite takes the first class that has all keys).
_QWENS = ("_fused_rms_norm", "_use_qkv_packed", "moe_config", "sliding_window_size", "no_rope_layer")
_MOST_LAYERS = 10_000  # what is more is a slip of the keyboard
_RINGS = ("ring", "ring_flash_triton", "llama3_ring_attention")


# ---------------------------------------------------------------------------------------------- the model


def _whose(spec: TrainingSpec) -> tuple[str, str]:
    """(llama or qwen2, "") or ("", why the model is not known)."""
    node = spec.root.get("model.model_config")
    keys = [str(key) for key in node.value] if node is not None and isinstance(node.value, dict) else []
    if not keys:
        return "", lm.not_stated(spec, "model.model_config", "model_config")
    kinds = [key for key in keys if key.startswith("is_") and key.endswith("_config")]
    for kind in kinds:
        if kind not in ("is_llama_config", "is_qwen2_config"):
            return "", f"model.model_config.{kind}: such a model is not known"
    if "is_qwen2_config" in kinds or any(key in keys for key in _QWENS):
        return "qwen2", ""
    return "llama", ""


def _decoder(spec: TrainingSpec) -> str:
    kind, why = _whose(spec)
    if why:
        return why
    rows = spec.fact(lm.HYPER + "vocab_size")
    if rows is None or not isinstance(rows.value, int) or rows.value < 1:
        return (
            f"model.model_config.vocab_size {'' if rows is None else rows.value}: as many as the data's tokenizer has"
        )
    tensor = spec.get("parallelism.tensor", 1) or 1
    heads = pretraining.number(spec, "num_attention_heads")
    groups = pretraining.number(spec, "num_key_value_heads") or heads
    if groups % tensor or heads % groups:
        many = f"num_attention_heads {heads:,} and num_key_value_heads {groups:,}"
        return f"{many}: {_VERSION} does not divide them among parallelism.tp {tensor:,}"
    multiple = pretraining.number(spec, "make_vocab_size_divisible_by") * tensor
    padded = rows._replace(name="vocabulary_size", value=pretraining.padded(rows.value, multiple))
    if padded.value != rows.value:
        padded = padded._replace(reason=f"padded to a multiple of {multiple}")
    spec.facts["vocabulary_size"] = padded
    made = decoder(
        layers=pretraining.number(spec, "num_layers"),
        width=pretraining.number(spec, "hidden_size"),
        heads=heads,
        groups=groups,
        inner=pretraining.number(spec, "intermediate_size"),
        vocabulary=padded.value,
        length=0,
        positions="rope",
        norm="rms",
        gated=True,
        activation="silu",
        biased=False,
        qkv_biased=kind == "qwen2" and lm.switched(spec, "attention_bias"),
        tied=lm.switched(spec, "tie_word_embeddings"),
    )
    pretraining.describe(spec, made, "the keys' own sizes")
    stated = spec.fact(lm.HYPER + f"is_{kind}_config")
    lm.put(
        spec,
        "implementation",
        "nanotron" if kind == "llama" else "nanotron qwen2",
        stated,
        f"{_VERSION}: models/{kind}",
    )
    return ""


def _exotic(spec: TrainingSpec) -> str:
    """Parts of the model and of its parallelism that are not known."""
    kind, _ = _whose(spec)
    section = spec.fact(lm.HYPER + "doremi")
    if section is not None and section.value is not None:
        return f"{section.key}: the model and the loss of nanotron's examples/doremi are not known"
    experts = spec.fact(lm.HYPER + "moe_config")
    if experts is not None and experts.value is not None:
        return f"{experts.key}: nanotron's experts are not known"
    context = spec.fact("parallelism.context")
    if context is not None and isinstance(context.value, int) and context.value > 1:
        return f"{context.key} {context.value:,}: attention in rings is not known"
    implementation = spec.fact(lm.HYPER + "attention_implementation")
    if kind == "qwen2" and implementation is not None and implementation.value in _RINGS:
        return f"{implementation.key} {implementation.value}: attention in rings is not known"
    if kind == "qwen2" and lm.setting(spec, "use_qkv_packed") is False:
        return f"model.model_config._use_qkv_packed is false: {_VERSION} has no such attention"
    switch = spec.fact(lm.HYPER + "tp_linear_async_communication")
    if switch is not None and truth(switch.value) and not spec.get("parallelism.sequence", False):
        return f"{switch.key}: {_VERSION} refuses it beside tp_mode ALL_REDUCE"
    return ""


# ---------------------------------------------------------------------------------------------- devices, states


def _devices(spec: TrainingSpec) -> str:
    """All degrees together are all devices (parallel/context.py)."""
    degrees = [fact for fact in map(spec.fact, _DEGREES) if fact is not None]
    if not all(isinstance(fact.value, int) for fact in degrees):
        return ""
    total = prod(fact.value for fact in degrees)
    origin = next(
        (fact for fact in degrees if fact.node is not None and fact.value > 1), degrees[0] if degrees else None
    )
    for name in ("device_count", "world_size"):
        lm.put(spec, name, total, origin, "parallelism: dp x tp x pp and the rest")
    mode = spec.fact(lm.HYPER + "tp_mode")
    tensor = spec.get("parallelism.tensor", 1) or 1
    if mode is not None and str(mode.value).upper() not in ("ALL_REDUCE", "REDUCE_SCATTER", "NONE"):
        return f"{mode.key} {mode.value} is not known"
    if mode is not None and str(mode.value).upper() == "REDUCE_SCATTER":
        lm.put(spec, "parallelism.sequence", True, mode)
        length = spec.fact("sequence_length")
        if length is not None and isinstance(length.value, int) and length.value % tensor:
            return f"{length.key} {length.value:,}: {mode.key} does not divide it among {tensor:,} ranks"
    return ""


def _states(spec: TrainingSpec) -> str:
    stored, accumulates = spec.fact("parameter_dtype"), spec.fact(lm.HYPER + "accumulate_grad_in_fp32")
    dtype = "bfloat16" if stored is None or stored.value is None else stored.value
    for name in ("parameter_dtype", "compute_dtype"):
        lm.put(spec, name, dtype, stored)
    lm.put(spec, "autocast", False, stored)
    if accumulates is None:
        return lm.not_stated(spec, "optimizer.accumulate_grad_in_fp32", "accumulate_grad_in_fp32")
    wide = bool(truth(accumulates.value))
    if wide and dtype == "float32":
        return f"{accumulates.key}: {_VERSION} refuses it beside model.dtype float32"
    lm.put(spec, "master_weights", wide, accumulates)
    lm.put(spec, "gradient_dtype", "float32" if wide else dtype, accumulates)
    lm.put(spec, "optimizer_library", "nanotron", reason=f"{_VERSION}: torch's, on states of its own")
    fused = spec.fact(lm.HYPER + "adam_is_fused")
    on = fused is not None and truth(fused.value)
    # torch: `fused=False` with nothing said of foreach is a loop (optim/adam.py)
    lm.put(spec, "optimizer_implementation", "fused" if on else "loop", fused)
    stage = spec.fact(lm.HYPER + "zero_stage")
    if stage is None:
        return lm.not_stated(spec, "optimizer.zero_stage", "zero_stage")
    pretraining.sharing(spec, stage.value, stage)
    return ""


def _schedule(spec: TrainingSpec) -> str:
    """Layers of each stage of a pipeline."""
    stages, made = spec.get("parallelism.pipeline", 1) or 1, spec.get(lm.DECODER)
    if stages <= 1 or made is None:
        return ""
    counts: list[int] = []
    if stages <= made.layers <= _MOST_LAYERS:
        counts = stage_layers(stages, made.layers, made.width, made.intermediate, made.vocabulary)
    if not counts or 0 in counts:
        key = spec.spelled("parallelism.pipeline")
        return f"{key} {stages:,}: of {made.layers:,} layers {_VERSION} gives some stages none"
    lm.put(spec, "parallelism.stage_layers", counts, spec.fact("parallelism.pipeline"), f"{_VERSION}: models/base.py")
    return ""


def stage_layers(stages: int, layers: int, width: int, inner: int, vocabulary: int) -> list[int]:
    """Layers of each stage, by what blocks are thought to cost: a stage ends with the block that brings it beyond its
    share (``build_model``, ``get_block_compute_costs``)."""
    each, head = 4 * width * width + 3 * inner * width, vocabulary * width
    total, counts, stage, spent = layers * each + head, [0] * stages, 0, 0
    for _ in range(layers):
        spent += each
        counts[stage] += 1
        if spent > total * ((stage + 1) / stages):
            stage = min(stage + 1, stages - 1)
    return counts


def _activations(spec: TrainingSpec) -> None:
    reason = f"{_VERSION}: models call flash-attn's kernels, whatever _attn_implementation says"
    lm.put(spec, "attention", "flash", reason=reason)
    lm.put(spec, "checkpointing_reentrant", True, reason=f"{_VERSION}: torch's CheckpointFunction")
    fused = spec.fact(lm.HYPER + "fused_rms_norm")
    if _whose(spec)[0] == "qwen2" and fused is not None and not truth(fused.value):
        lm.put(spec, lm.HYPER + "unfused_norms", True, fused)
    pairs = spec.fact(lm.HYPER + "rope_interleaved")
    if _whose(spec)[0] == "llama" and pairs is not None and truth(pairs.value):
        lm.put(spec, lm.HYPER + "rotary_table_rows", pretraining.number(spec, "max_position_embeddings"), pairs)


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_devices, ("device_count", "world_size", "parallelism.sequence")),
        Step(
            _states,
            (
                *pretraining.HALF_FACTS,
                "optimizer_library",
                "optimizer_implementation",
                *pretraining.SHARED,
            ),
        ),
        Step(_decoder, (lm.DECODER, "vocabulary_size", "implementation")),
        Step(_schedule, ("parallelism.stage_layers",)),
        Step(
            _activations,
            ("attention", "checkpointing_reentrant", lm.HYPER + "unfused_norms", lm.HYPER + "rotary_table_rows"),
        ),
        Step(_exotic),
        Step(pretraining.undecided),
    ),
    told=("exotic", "decoder", "devices", "states", "schedule", "undecided"),
    keys=_KEYS,
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that nanotron states otherwise, or not at all; None for the generic spelling."""
    if fact == "parallelism.zero_stage":
        return lm.write(spec, lm.HYPER + "zero_stage", value) if value in (0, 1) else []
    if fact == "parameter_dtype":
        return []
    if fact in ("compute_dtype", "autocast", "frozen_dtype", "gradient_dtype", "attention", "loss", "optimizer"):
        return []
    if fact in ("optimizer_implementation", "vocabulary_size", "parallelism.gradient_as_bucket_view"):
        return []
    return None
