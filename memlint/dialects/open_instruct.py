"""Family open-instruct: the loops of ``finetune.py`` and ``dpo_tune_cache.py`` around accelerate."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import launchers
from memlint.dialects import trainer_families as families
from memlint.facts.spec import TrainingSpec

_VERSION = "open-instruct"
_METHODS = {"finetune": "sft", "dpo_tune_cache": "dpo", "dpo_tune": "dpo"}
_TARGETS = ("q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj")


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From open-instruct's options and files to the facts of a language model."""
    of_dpo = ("loss_type", "mixer_list", "num_epochs")  # SFT has num_train_epochs
    name = "dpo_tune" if any(spec.root.get(key) is not None for key in of_dpo) else "finetune"
    name = families.program(spec, name)
    method = _METHODS.get(name, "")
    families.method(spec, method or name, None, f"{_VERSION}: {name}.py")
    found = "" if method else f"{name}: what stands beside the model that it trains is not known"
    found = found or lm.model(spec)
    if method == "dpo":
        families.unless_stated(spec, "sequence_length", 4096, f"{_VERSION}: TrainingConfig")
        lm.put(spec, "log_probabilities", "uncut", reason=f"{_VERSION}: calculate_per_token_logps")
        needed = lm.setting(spec, "loss_type") != "simpo"  # and is asked for all samples before training
        lm.put(spec, "reference_model", "precomputed" if needed else "none", spec.fact(lm.HYPER + "loss_type"))
    budget = spec.fact(lm.HYPER + "activation_memory_budget")
    if budget is not None and budget.value < 1:
        lm.put(spec, "checkpointing", "full", budget)
    lm.kernels(spec)
    paged = lm.switched(spec, "load_in_4bit") or lm.switched(spec, "paged")
    bits = "8bit" if lm.switched(spec, "use_8bit_optimizer") else "32bit"
    plain = "adamw_torch_fused" if lm.switched(spec, "fused_optimizer") else "adamw_torch"
    lm.put(spec, lm.HYPER + "optim", f"paged_adamw_{bits}" if paged else plain, reason=f"{_VERSION}: {name}.py")
    lm.optimizer(spec)
    lm.put(spec, "lora.targets", list(_TARGETS), reason=f"{_VERSION}: {name}.py")
    adapted = families.adapted(spec, f"{_VERSION}: {name}.py")
    if "quantization.bits" in spec:
        reason = f"{_VERSION}: prepare_model_for_kbit_training"
        lm.put(spec, "quantization.prepared", True, spec.fact("quantization.bits"), reason)
    shared = lm.parallelism(spec)
    _machines(spec)
    families.elsewhere(spec)
    lm.checkpointing(spec)
    if not lm.switched(spec, "use_liger_kernel"):  # AutoLigerKernelForCausalLM is told no dtype
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", reason=f"{_VERSION}: {name}.py")
    dtyped = lm.precision(spec, lm.weights(spec, spec.fact(lm.HYPER + "dtype")))
    reasons = (found, families.otherwise(spec), adapted, shared, dtyped)
    return lm.finish(spec, reasons, {"sequence_length": "max_seq_length"})


def _machines(spec: TrainingSpec) -> None:
    """``mason.py --num_nodes``: it multiplies the processes that accelerate is told by it."""
    options = launchers.launcher(spec.launch, "mason.py")
    several = None if options is None else launchers.option(options, "num_nodes")
    count, name = spec.fact("device_count"), "mason.py: on each of its nodes"
    if several is not None and count is not None and str(several.value).isdigit():
        lm.put(spec, "device_count", count.value * int(str(several.value)), count, name)
        lm.put(spec, "world_size", spec["device_count"], count, name)
