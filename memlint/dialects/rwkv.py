"""Family rwkv: RWKV-LM's train.py."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.spec import TrainingSpec

_VERSION = "RWKV-LM: train.py"
_BUCKET = 1_000_000  # elements, for each "MB" of --ds_bucket_mb
_ROWS = 65536  # of RWKV's own vocabulary
_KNOWN = ("x052", "x060", "x070")


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From the options to the facts of a run under DeepSpeed."""
    version = str(spec.get("model") or "RWKV")
    spec.model_name = f"{version}, {lm.setting(spec, 'n_layer')} x {lm.setting(spec, 'n_embd')}"
    devices, machines = (native.number(lm.setting(spec, name)) for name in ("devices", "num_nodes"))
    count = devices * machines if devices is not None and machines is not None else None
    strategy = spec.fact(lm.HYPER + "strategy")
    text = str(strategy.value) if strategy is not None else "auto"
    stage = native.number(text.partition("deepspeed_stage_")[2][:1])
    native.divided(spec, "zero" if stage else "ddp", count, spec.fact(lm.HYPER + "devices"))
    if stage is not None:
        # DeepSpeed keeps its copies and its buckets on one device as well.
        lm.put(spec, "parallelism.strategy", "zero", strategy)
        lm.put(spec, "parallelism.zero_stage", stage, strategy)
        lm.put(spec, "parallelism.offload_optimizer", "offload" in text, strategy)
        bucket = spec.fact(lm.HYPER + "bucket_mb")
        if bucket is not None and isinstance(bucket.value, int):
            lm.put(spec, "parallelism.reduce_bucket_elements", bucket.value * _BUCKET, bucket)
    lm.tokens(spec)
    _precision(spec)
    if not spec.get("vocabulary_size"):
        lm.put(spec, "vocabulary_size", _ROWS, spec.fact("vocabulary_size"), "RWKV's own vocabulary")
    lm.put(spec, "optimizer", "adamw", reason=f"{_VERSION}: DeepSpeed's FusedAdam")
    lm.put(spec, "optimizer_library", "deepspeed", reason=f"{_VERSION}: DeepSpeed's FusedAdam")
    lm.put(spec, "optimizer_implementation", "fused", reason=f"{_VERSION}: DeepSpeed's FusedAdam")
    reasons = (_on_cpu(spec), _version(spec, version), _stated(spec), _unknown(spec, stage, text))
    spec.unknown_reason = next((reason for reason in reasons if reason), "")
    spec.architecture = None if spec.unknown_reason else "rwkv"
    return spec


def _precision(spec: TrainingSpec) -> None:
    """Under DeepSpeed everything is in 16 bits, beside fp32 copies in its optimizer."""
    stated = spec.fact("compute_dtype")
    dtype = spec.get("compute_dtype")
    lm.put(spec, "parameter_dtype", dtype, stated)
    lm.put(spec, "autocast", False, stated)
    lm.put(spec, "master_weights", dtype in lm.HALF, stated)


def _on_cpu(spec: TrainingSpec) -> str:
    return "accelerator cpu: the run is not on a GPU" if lm.setting(spec, "accelerator") == "cpu" else ""


def _version(spec: TrainingSpec, version: str) -> str:
    item = lm.gap(spec, "my_testing")
    if item is not None:
        return f"{item.key} is not known: {item.reason}"
    if spec.fact("model") is None:
        return "my_testing is not stated: the version of the architecture"
    return "" if version in _KNOWN else f"{version}: what its time mixing keeps is not known"


def _stated(spec: TrainingSpec) -> str:
    for name in ("micro_bsz", "ctx_len", "n_layer", "n_embd", "devices", "num_nodes", "strategy"):
        item = lm.gap(spec, name)
        if item is not None:
            return f"{item.key} is not known: {item.reason}"
    return ""


def _unknown(spec: TrainingSpec, stage: int | None, text: str) -> str:
    if stage is None:
        return f"strategy {text}: RWKV's kernels without DeepSpeed are not known"
    if spec.get("compute_dtype") != "bfloat16":
        return f"precision {spec.get('compute_dtype')}: RWKV's kernels take bfloat16"
    if "device_count" not in spec:
        return "devices: how many there are is not stated"
    return ""
