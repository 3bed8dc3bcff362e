"""Family rwkv: RWKV-LM's train.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.unread import own_way
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Name, TrainingSpec

_VERSION = "RWKV-LM: train.py"
_BUCKET = 1_000_000  # elements, for each "MB" of --ds_bucket_mb
_ROWS = 65536  # of RWKV's own vocabulary
_KNOWN = ("x052", "x060", "x070")


def _devices(spec: TrainingSpec) -> None:
    """DeepSpeed keeps its copies and its buckets on one device as well."""
    devices, machines = (native.number(lm.setting(spec, name)) for name in ("devices", "num_nodes"))
    count = devices * machines if devices is not None and machines is not None else None
    strategy, (stage, text) = spec.fact(lm.HYPER + "strategy"), _strategy(spec)
    native.divided(spec, "zero" if stage else "ddp", count, spec.fact(lm.HYPER + "devices"))
    if stage is None:
        return
    lm.put(spec, "parallelism.strategy", "zero", strategy)
    lm.put(spec, "parallelism.zero_stage", stage, strategy)
    lm.put(spec, "parallelism.offload_optimizer", "offload" in text, strategy)
    bucket = spec.fact(lm.HYPER + "bucket_mb")
    if bucket is not None and isinstance(bucket.value, int):
        lm.put(spec, "parallelism.reduce_bucket_elements", bucket.value * _BUCKET, bucket)


def _strategy(spec: TrainingSpec) -> tuple[int | None, str]:
    """(stage of ZeRO, Lightning's name of the strategy)."""
    strategy = spec.fact(lm.HYPER + "strategy")
    text = str(strategy.value) if strategy is not None else "auto"
    return native.number(text.partition("deepspeed_stage_")[2][:1]), text


def _vocabulary(spec: TrainingSpec) -> None:
    if not spec.get("vocabulary_size"):
        lm.put(spec, "vocabulary_size", _ROWS, spec.fact("vocabulary_size"), "RWKV's own vocabulary")


def _optimizer(spec: TrainingSpec) -> None:
    name: Name
    for name, value in (
        ("optimizer", "adamw"),
        ("optimizer_library", "deepspeed"),
        ("optimizer_implementation", "fused"),
    ):
        lm.put(spec, name, value, reason=f"{_VERSION}: DeepSpeed's FusedAdam")


def _precision(spec: TrainingSpec) -> None:
    """Under DeepSpeed everything is in 16 bits, beside fp32 copies in its optimizer."""
    stated = spec.fact("compute_dtype")
    dtype = spec.get("compute_dtype")
    lm.put(spec, "parameter_dtype", dtype, stated)
    lm.put(spec, "autocast", False, stated)
    lm.put(spec, "master_weights", dtype in lm.HALF, stated)


def _on_cpu(spec: TrainingSpec) -> str:
    return "accelerator cpu: the run is not on a GPU" if lm.setting(spec, "accelerator") == "cpu" else ""


def _named(spec: TrainingSpec) -> str:
    return str(spec.get("model") or "RWKV")


def _version(spec: TrainingSpec) -> str:
    version, item = _named(spec), lm.gap(spec, "my_testing")
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


def _unknown(spec: TrainingSpec) -> str:
    stage, text = _strategy(spec)
    if stage is None:
        return f"strategy {text}: RWKV's kernels without DeepSpeed are not known"
    if spec.get("compute_dtype") != "bfloat16":
        return f"precision {spec.get('compute_dtype')}: RWKV's kernels take bfloat16"
    if "device_count" not in spec:
        return "devices: how many there are is not stated"
    return own_way(spec)


def _finish(spec: TrainingSpec, reasons: Sequence[str], keys: Mapping[str, str]) -> TrainingSpec:
    spec.model_name = f"{_named(spec)}, {lm.setting(spec, 'n_layer')} x {lm.setting(spec, 'n_embd')}"
    lm.tokens(spec)
    spec.unknown_reason = next(iter(reasons), "")
    spec.architecture = None if spec.unknown_reason else "rwkv"
    return spec


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_devices, native.DEVICES, ("parallelism.",)),
        Step(_precision, ("parameter_dtype", "autocast", "master_weights")),
        Step(_vocabulary, ("vocabulary_size",)),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_on_cpu),
        Step(_version),
        Step(_stated),
        Step(_unknown),
    ),
    told=("on_cpu", "version", "stated", "unknown"),
    finish=_finish,
)
