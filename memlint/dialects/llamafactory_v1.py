"""Family llamafactory-v1: the trainers of LLaMA-Factory's ``v1``, by its flat keys and their plugins' tables."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, HYPER, Fact, TrainingSpec

_VERSION = "LLaMA-Factory 0.9.5, v1"
_LIGER = tuple(HYPER + f"liger.{name}" for name in ("fused_linear_cross_entropy", "cross_entropy"))


def _plugins(spec: TrainingSpec) -> str:
    """What a plugin does that is not known here."""
    known = {
        "kernel": ("auto", "liger_kernel"),
        "dist": ("fsdp2", "deepspeed"),
        "peft": ("lora", "freeze"),
        "init": ("init_on_default", "init_on_rank0", "init_on_meta"),
        "quant": ("bnb", "auto"),
        "optim": (),
    }
    for kind, names in known.items():
        stated = spec.fact(HYPER + f"{kind}.name")
        if stated is not None and stated.value is not None and not {*lm.names_of(stated.value)} <= {*names}:
            return f"{stated.key} {stated.value}: what it does is not known"
    if "vision_config" in (spec.get(lm.CONFIG) or {}):
        return f"{spec['model']}: AutoModelForImageTextToText brings a tower that is not known"
    words = "".join(c if c.isalnum() else " " for c in spec.document.path.lower()).split()
    if {"dpo", "rm"} & {*words[-4:]}:
        return f"{spec.document.path.rpartition('/')[2]}: of pairs by its name, and their loss is not known"
    method = spec.fact(HYPER + "pairs")
    return "" if method is None else f"{method.key}: a key of trainers whose losses are not known"


def _method(spec: TrainingSpec) -> None:
    reason = "llamafactory-cli sft, which no file says"
    spec.facts["method"] = Fact("method", "sft", ASSUMED, reason=reason)
    lm.put(spec, "loss", "copied", reason=f"{_VERSION}: base_trainer.py, compute_log_probs")
    stated = spec.fact(HYPER + "kernel.name")
    lm.put(spec, HYPER + "use_liger_kernel", stated is not None and "liger" in str(stated.value), stated)
    for kernel in _LIGER:
        lm.put(spec, kernel, False, reason=f"{_VERSION}: require_logits")
    lm.kernels(spec)


def _tuning(spec: TrainingSpec) -> str:
    stated = spec.fact(HYPER + "peft.name")
    kind = None if stated is None else stated.value
    lm.put(spec, HYPER + "use_peft", kind == "lora", stated)
    if kind == "freeze":
        lm.put(spec, "tuning", "freeze", stated)
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    for name in ("freeze.layers", "freeze.modules"):
        spec.facts.pop(name, None)
    return lm.adapters(spec)


def _processes(spec: TrainingSpec) -> None:
    """FSDP2 over all devices, or DeepSpeed; else what several processes share is nothing."""
    stated = spec.fact(HYPER + "dist.name")
    if stated is not None and stated.value == "fsdp2":
        lm.put(spec, "parallelism.strategy", "fsdp2", stated)
    lm.processes(spec)


def _precision(spec: TrainingSpec) -> str:
    """Weights that train whole are fp32, and gathered in bf16; those beside an adapter are the checkpoint's. Nothing
    runs under autocast."""
    full = Fact(HYPER + "dtype", "float32", reason=f"{_VERSION}: model_engine.py") if not _adapted(spec) else None
    loaded = lm.weights(spec, full)
    half = spec.fact(HYPER + "bf16")
    strategy = spec.get("parallelism.strategy")
    if strategy == "zero" or loaded is None:
        return lm.precision(spec, loaded)
    for name in ("parameter_dtype", "frozen_dtype"):
        lm.put(spec, name, loaded.value, loaded)
    if spec.get("tuning") == "lora":
        lm.put(spec, "lora.dtype", "float32", reason="PEFT 0.21: autocast_adapter_dtype")
        lm.put(spec, "parameter_dtype", "float32", spec.fact("lora.dtype"))
    lm.put(spec, "autocast", False, reason=f"{_VERSION}: nothing runs under autocast")
    lm.put(spec, "compute_dtype", loaded.value, loaded)
    if strategy == "fsdp2":
        on = half is None or bool(half.value)
        lm.put(spec, "compute_dtype", "bfloat16" if on else "float32", half, f"{_VERSION}: fsdp2.py, get_mp_policy")
        lm.put(spec, "parallelism.reduce_dtype", "float32", reason=f"{_VERSION}: fsdp2.py, get_mp_policy")
    return ""


def _adapted(spec: TrainingSpec) -> bool:
    return bool(spec.get("tuning", "full") != "full")


def _optimizer(spec: TrainingSpec) -> None:
    lm.put(spec, "optimizer_library", "torch", reason=f"{_VERSION}: torch.optim.AdamW")


def _rows(spec: TrainingSpec) -> None:
    """Strategies without padding join the samples of a batch to one row; dynamic ones fill as many tokens up."""
    stated = spec.fact(HYPER + "batching")
    if stated is not None and "padding_free" in str(stated.value):
        lm.put(spec, "padding_free", True, stated)


def _steps(spec: TrainingSpec) -> None:
    families.micro_batches(spec, f"{_VERSION}: BatchGenerator")


FAMILY = lm.Family(
    stated=Graph(Step(lm.model, lm.MODEL_FACTS)),
    follows=Graph(
        Step(_plugins),
        Step(_method, ("method", "loss", "fused_kernels", HYPER + "use_liger_kernel", *_LIGER)),
        Step(_tuning, (*lm.ADAPTER_FACTS, "freeze.layers", "freeze.modules", HYPER + "use_peft")),
        Step(lm.quantization, lm.QUANTIZATION_FACTS),
        Step(_processes, lm.PROCESS_FACTS),
        Step(_precision, lm.PRECISION_FACTS),
        Step(_optimizer, ("optimizer_library",)),
        Step(_rows, ("padding_free",)),
        Step(_steps, ("gradient_accumulation_steps",)),
    ),
    told=("plugins", "model", "sharing"),
)
