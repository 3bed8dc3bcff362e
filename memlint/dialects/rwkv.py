"""Family rwkv: RWKV-LM's train.py."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.spec import TrainingSpec


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts alone: what RWKV's own kernels keep for the backward pass is not known."""
    version = spec.get("model") or "RWKV"
    spec.model_name = f"{version}, {lm.setting(spec, 'n_layer')} x {lm.setting(spec, 'n_embd')}"
    devices, machines = (native.number(lm.setting(spec, name)) for name in ("devices", "num_nodes"))
    count = devices * machines if devices is not None and machines is not None else None
    strategy = spec.fact(lm.HYPER + "strategy")
    text = str(strategy.value) if strategy is not None else "auto"
    stage = native.number(text.partition("deepspeed_stage_")[2][:1])
    native.divided(spec, "zero" if stage else "ddp", count, spec.fact(lm.HYPER + "devices"))
    if stage is not None and spec["parallelism.strategy"] == "zero":
        lm.put(spec, "parallelism.zero_stage", stage, strategy)
        lm.put(spec, "parallelism.offload_optimizer", "offload" in text, strategy)
    lm.tokens(spec)
    on_cpu = lm.setting(spec, "accelerator") == "cpu"
    spec.architecture = None
    spec.unknown_reason = (
        "accelerator cpu: the run is not on a GPU" if on_cpu else f"{version}: what its time mixing keeps is not known"
    )
    return spec
