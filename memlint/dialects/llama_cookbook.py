"""Family llama-cookbook: the loop of ``finetuning.py`` of Meta's Llama Cookbook, which was llama-recipes.

``LlamaForCausalLM`` in bfloat16, PEFT's adapters, rows of ``context_length`` tokens, and FSDP where it is enabled; else
one device. Source: llama-cookbook 0.0.5, ``finetuning.py``, ``configs/``, ``policies/``, ``utils/train_utils.py``; the
weights are loaded so since llama-recipes 0.0.3.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.dialects import trainer_families as families
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, Fact, Name, OnTop, TrainingSpec

_VERSION = "llama-cookbook 0.0.5"
_LAYER = "LlamaDecoderLayer"
# Its name until September 2023, when rows were 2,048 tokens whatever the model (ft_datasets/utils.py: Concatenator)
_FIRST, _FIRST_ROWS = "llama_finetuning", 2048
# Options that say whose a program is that is called finetuning.py
_OWN = ("model_name", "enable_fsdp", "batch_size_training", "use_fast_kernels", "peft_method")


def recognise(document: Document, root: Node) -> bool:
    return any(root.get(name) is not None for name in _OWN)


def _model(spec: TrainingSpec) -> str:
    why = lm.model(spec, "model_name")
    kind = (spec.get(lm.CONFIG) or {}).get("model_type", "llama")
    return why if why or kind == "llama" else f"finetuning.py trains models of type llama, and {kind} is none"


def _length(spec: TrainingSpec) -> str:
    """Packed rows are full; samples that are padded are as long as the data's longest."""
    way = spec.fact(lm.HYPER + "batching_strategy")
    packs = way is None or way.value == "packing"
    lm.put(spec, "packing", packs, way)
    lm.put(spec, "padding", not packs, way)
    length = spec.fact("sequence_length")
    if packs and families.program(spec) == _FIRST and (length is None or length.origin == DEFAULT):
        spec.facts.pop("sequence_length", None)
        lm.put(spec, "sequence_length", _FIRST_ROWS, reason="llama-recipes of August 2023: Concatenator")
    if packs:
        return ""
    spec.facts.pop("sequence_length", None)
    return OnTop("batching_strategy is padding: the longest sample is the data's, which no file states")


def _sharing(spec: TrainingSpec) -> None:
    """Processes share the run where FSDP is on. Without it all of them would train on the first device."""
    switch, found = spec.fact(lm.HYPER + "enable_fsdp"), launchers.processes(spec.launch)
    if not lm.switched(spec, "enable_fsdp"):
        native.divided(spec, "none", 1, switch, f"{_VERSION}: without enable_fsdp")
        return
    spec.missing = (*spec.missing, *found.missing)
    count = found.total if found.total is not None else spec.fact("device_count")
    if count is None and not found.missing:
        count = launchers.seen(spec.launch)
    native.divided(spec, "fsdp1", None if count is None else count.value, count)
    if spec.get("parallelism.strategy") == "fsdp1":
        lm.put(spec, "parallelism.strategy", "fsdp1", switch)
        lm.put(spec, "parallelism.wrap", [_LAYER], reason=f"{_VERSION}: policies/wrapping.py")


def _quantization(spec: TrainingSpec) -> None:
    stated = spec.fact(lm.HYPER + "quantised_to")
    for bits in (8, 4):
        if stated is not None and stated.value == f"{bits}bit":
            lm.put(spec, "quantization.bits", bits, stated)
    lm.quantization(spec)


def _adapters(spec: TrainingSpec) -> str:
    kind = spec.fact(lm.HYPER + "peft_method")
    if lm.switched(spec, "use_peft") and kind is not None and kind.value != "lora":
        return f"{kind.key} {kind.value}: what it keeps is not known"
    return lm.adapters(spec)


def _precision(spec: TrainingSpec) -> str:
    """Weights are loaded in 16 bits, and what trains of them stays so; PEFT's adapters are in float32."""
    half = spec.fact(lm.HYPER + "use_fp16")
    narrow = half is not None and bool(half.value)
    if narrow and spec.get("parallelism.strategy") == "fsdp1":
        return "use_fp16: FSDP's products in float16 of such weights are not known"
    loaded = Fact("parameter_dtype", "float16" if narrow else "bfloat16", DEFAULT, reason=f"{_VERSION}: torch_dtype")
    why = lm.precision(spec, loaded)
    if spec.get("parallelism.strategy") == "fsdp1":
        lm.put(spec, "parallelism.reduce_dtype", "bfloat16", reason=f"{_VERSION}: policies/mixed_precision.py")
        lm.put(spec, "parallelism.reduces_last_only", False, reason=f"{_VERSION}: train goes into no no_sync")
    if narrow:
        lm.put(spec, "compute_dtype", "float16", half)
        lm.put(spec, "autocast", True, half)
        lm.put(spec, "loss_scaling", "dynamic", half)
    return why


def _checkpointing(spec: TrainingSpec) -> None:
    """FSDP's layers are recomputed; a run on one device has no such switch."""
    switch = spec.fact(lm.HYPER + "fsdp_activation_checkpointing")
    shares = spec.get("parallelism.strategy") == "fsdp1"
    on = shares and switch is not None and bool(switch.value)
    lm.put(spec, "checkpointing", "full" if on else "none", switch if shares else None, f"{_VERSION}: finetuning.py")


def _optimizer(spec: TrainingSpec) -> str:
    own, pure = spec.fact(lm.HYPER + "own_optimizer"), lm.switched(spec, "pure_bf16")
    if own is not None and own.value == "anyprecision" and pure:
        lm.put(spec, "optimizer_implementation", "loop", own, f"{_VERSION}: AnyPrecisionAdamW")
        lm.put(spec, "optimizer_state_dtype", "bfloat16", own, f"{_VERSION}: AnyPrecisionAdamW")
    return families.otherwise(spec)


def _evaluation(spec: TrainingSpec) -> None:
    """Rows as long as training's, and only losses and the likeliest tokens are kept, on the host."""
    length = spec.fact("sequence_length")
    if not lm.switched(spec, "run_validation"):
        spec.facts.pop("evaluation_batch_size", None)
        return
    if length is not None:
        lm.put(spec, "evaluation_sequence_length", length.value, length)
    lm.put(spec, "evaluation_accumulates", False, reason=f"{_VERSION}: evaluation")


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_model, lm.MODEL_FACTS),
        Step(_length, ("packing", "padding", "sequence_length")),
        Step(lm.attention, ("attention",)),
        Step(_sharing, native.DEVICES, ("parallelism.",)),
        Step(_quantization, lm.QUANTIZATION_FACTS),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(_precision, lm.PRECISION_FACTS),
        Step(_checkpointing, ("checkpointing",)),
        Step(_optimizer, ("optimizer_implementation", "optimizer_state_dtype")),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("model", "optimizer", "adapters", "precision", "length"),
    keys={"micro_batch_size": "batch_size_training", "sequence_length": "context_length"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The script's own options; [] for what it has none for."""
    if fact == "checkpointing":
        if spec.get("parallelism.strategy") != "fsdp1":
            return []
        return lm.write(spec, lm.HYPER + "fsdp_activation_checkpointing", value == "full")
    if fact in ("parameter_dtype", "compute_dtype", "autocast", "loss", "optimizer", "optimizer_implementation"):
        return []
    if fact in ("attention", "evaluation_sequence_length", "attention_tokens", "device_count", "padding"):
        return []
    return None
