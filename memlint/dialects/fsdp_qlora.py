"""Family fsdp-qlora: options of ``train.py`` of AnswerDotAI's fsdp_qlora.

One process for each device, FSDP1 around layers and around each adapter, whole logits, no evaluation. Weights are in
bfloat16 unless ``--precision`` says otherwise, and FSDP gathers what is stored: its MixedPrecision states no other
dtype. Source: AnswerDotAI/fsdp_qlora at 05ed9f2, ``train.py`` (``fsdp_main``, ``get_wrapping_policy``).
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.dialects import trainer_families as families
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, Fact, Name, TrainingSpec

_VERSION = "fsdp_qlora 05ed9f2: train.py"
# What the wrapping policy and check_fn name: of other models nothing is wrapped, and nothing recomputed.
_LAYERS = {"llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer"}
_ADAPTED = ["k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"]  # --lora_target_modules all
# --train_type that is not known -> what is not.
_OTHERWISE = {
    **dict.fromkeys(("custom_lora", "custom_qlora"), "adapters of its own, whose results are cloned, are"),
    **dict.fromkeys(("hqq_lora", "hqq_dora", "hqq_llama_pro"), "HQQ's layers and kernels are"),
    "bnb_dora": "its own DoRA over weights in 4 bits is",
    "bnb_llama_pro": "a model with added layers is",
}
# --precision -> dtypes of weights and of products
_DTYPES = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
    "fp16_autocast": ("float32", "float16"),
    "bf16_autocast": ("float32", "bfloat16"),
    "bf16_buffers_autocast": ("bfloat16", "bfloat16"),
}
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd"}


def recognise(document: Document, root: Node) -> bool:
    """Other programs of this name have a train_type of other words."""
    stated = root.get("train_type")
    return stated is None or stated.is_unresolved or stated.value in ("full", "lora", "qlora", *_OTHERWISE)


def _kind(spec: TrainingSpec) -> str:
    return str(lm.setting(spec, "train_type"))


def _model(spec: TrainingSpec) -> str:
    why = lm.model(spec, "model_name")
    kind = (spec.get(lm.CONFIG) or {}).get("model_type", "llama")
    if why or kind in _LAYERS:
        return why
    return f"train.py wraps and recomputes layers of llama and mistral, and none of {kind}"


def _length(spec: TrainingSpec) -> None:
    """Rows are cut to context_length; but for ``dummy``, whose samples are longer than any cut, they are filled up to
    the longest of a batch. No mask is made for that (``attention_mask=None``)."""
    data = spec.fact(lm.HYPER + "dataset")
    full = data is not None and data.value == "dummy"
    lm.put(spec, "packing", full, data, "rows of dummy are full" if full else "")


def _sharing(spec: TrainingSpec) -> str:
    """A process for each device that is visible. NO_SHARD leaves all states where they are, as DDP does."""
    stated, strategy = spec.fact(lm.HYPER + "world_size"), spec.fact(lm.HYPER + "sharding_strategy")
    count = launchers.seen(spec.launch) or spec.fact("device_count")
    if stated is not None and isinstance(stated.value, int) and stated.value > 0:
        count = stated
    kind = "full_shard" if strategy is None else str(strategy.value)
    shared = "ddp" if kind == "ddp" else "fsdp1"
    native.divided(spec, shared, None if count is None else count.value, count, _VERSION)
    if spec.get("parallelism.strategy") != shared:
        return ""
    if kind.startswith("hybrid"):
        return f"--sharding_strategy {kind}: how many devices of a group share is not known"
    lm.put(spec, "parallelism.strategy", shared, strategy)
    layer = _LAYERS.get((spec.get(lm.CONFIG) or {}).get("model_type", ""), "LlamaDecoderLayer")
    if kind == "ddp":
        lm.drop_what_no_strategy_reads(spec)
        return ""
    lm.put(spec, "parallelism.wrap", [layer], reason=f"{_VERSION}, get_wrapping_policy")
    lm.put(spec, "parallelism.reshard_after_forward", kind != "shard_grad_op", strategy)
    return ""


def _adapters(spec: TrainingSpec) -> str:
    kind, stated = _kind(spec), spec.fact(lm.HYPER + "train_type")
    if kind in _OTHERWISE:
        return f"--train_type {kind}: {_OTHERWISE[kind]} not described"
    lm.put(spec, "tuning", "full", stated)
    adapted = kind in ("lora", "qlora")
    lm.put(spec, lm.HYPER + "use_peft", adapted, stated)
    if kind == "qlora":
        lm.put(spec, "quantization.bits", 4, stated)
        lm.put(spec, "quantization.kind", "nf4", stated, f"{_VERSION}, replace_linear")
        lm.put(spec, "quantization.double", True, reason="bitsandbytes: Linear4bit compresses its statistics")
    if adapted and lm.setting(spec, "lora_target_modules") == "all":
        lm.put(spec, "lora.targets", _ADAPTED, spec.fact(lm.HYPER + "lora_target_modules"))
    return lm.adapters(spec)


def _precision(spec: TrainingSpec) -> str:
    """Without autocast everything is in the dtype that it is stored in."""
    stated = spec.fact(lm.HYPER + "precision")
    name = "bf16" if stated is None else str(stated.value)
    if name not in _DTYPES:
        return f"--precision {name} is not known"
    if name == "fp32" and _kind(spec) == "qlora":
        return "--precision fp32: products in float16 with weights in 4 bits, without autocast, are not described"
    weights, products = _DTYPES[name]
    loaded = Fact("parameter_dtype", weights, DEFAULT, reason=f"{_VERSION}: torch_dtype")
    if stated is not None:
        loaded = stated._replace(name="parameter_dtype", value=weights)
    if _kind(spec) == "qlora" and not spec.does("peft.adapters_in_float32"):
        # The codes are kept in this dtype (quant_storage), which new adapters take for the weight's own.
        lm.put(spec, "lora.dtype", weights, stated, "adapters have their weight's dtype")
    why = lm.precision(spec, loaded)
    lm.put(spec, "compute_dtype", products, stated)
    lm.put(spec, "autocast", name.endswith("autocast"), stated)
    if products == "float16":
        lm.put(spec, "loss_scaling", "dynamic", stated)
    if spec.get("parallelism.strategy") == "fsdp1":
        lm.put(spec, "parallelism.as_stored", True, reason=f"{_VERSION}, mp_policy")
        waits = bool(lm.setting(spec, "no_sync")) or bool(spec.get("parallelism.cpu_offload"))
        reason = f"{_VERSION}, fsdp_qlora: no_sync is on by itself beside use_cpu_offload"
        lm.put(spec, "parallelism.reduces_last_only", waits, spec.fact(lm.HYPER + "no_sync"), reason)
    return why


def _checkpointing(spec: TrainingSpec) -> None:
    """``apply_activation_checkpointing`` goes by the class of the layers."""
    switch = spec.fact(lm.HYPER + "recomputes")
    on = switch is None or bool(switch.value)
    lm.put(spec, "checkpointing", "full" if on else "none", switch, f"{_VERSION}: check_fn")


def _optimizer(spec: TrainingSpec) -> str:
    stated = spec.fact(lm.HYPER + "own_optimizer")
    name = "adamw" if stated is None else str(stated.value)
    kind = name.removeprefix("fused_")
    if kind not in _OPTIMIZERS:
        return f"--optimizer {name}: what it keeps is not known"
    lm.put(spec, "optimizer", _OPTIMIZERS[kind], stated)
    if kind != name:
        lm.put(spec, "optimizer_implementation", "fused", stated)
    return families.otherwise(spec)


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_model, lm.MODEL_FACTS),
        Step(_length, ("packing",)),
        Step(lm.attention, ("attention",)),
        Step(_sharing, native.DEVICES, ("parallelism.",)),
        Step(_adapters, (*lm.ADAPTER_FACTS, *lm.QUANTIZATION_FACTS, lm.HYPER + "use_peft")),
        Step(_precision, (*lm.PRECISION_FACTS, "parallelism.as_stored")),
        Step(_checkpointing, ("checkpointing",)),
        Step(_optimizer, ("optimizer", "optimizer_implementation")),
    ),
    told=("model", "sharing", "adapters", "precision", "optimizer"),
    keys={"micro_batch_size": "batch_size", "sequence_length": "context_length"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The program's own options; [] for what it has none for."""
    if fact == "checkpointing":
        return lm.write(spec, lm.HYPER + "recomputes", value == "full") if value in ("full", "none") else []
    if fact == "optimizer":
        return lm.write(spec, lm.HYPER + "own_optimizer", value) if value in _OPTIMIZERS else []
    if fact in ("parameter_dtype", "compute_dtype", "autocast", "loss", "optimizer_implementation", "lora.targets"):
        return []
    if fact in ("attention", "attention_tokens", "device_count", "packing", "padding", "tuning"):
        return []
    return None
