"""Family llm-c: llm.c's trainer in CUDA, and its twin in PyTorch."""

from __future__ import annotations

from typing import Any

from memlint.architectures import gpt2
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.dialects.spec import Name, TrainingSpec, UnknownModel
from memlint.documents.node import Edit


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From the options of either program to the facts of a language model."""
    program = str(spec.launch.program.value).rsplit("/", 1)[-1] if spec.launch is not None else ""
    cuda = not program.endswith(".py")
    name: Name
    for name, value in (("micro_batch_size", 4), ("sequence_length", 1024 if cuda else 64)):
        if name not in spec:
            lm.put(spec, name, value, reason=f"llm.c: {program}")
    named = spec.fact("model")
    spec.model_name = str(named.value) if named is not None else "gpt2"
    device = str(lm.setting(spec, "device") or "cuda")
    on_cpu = "" if device.startswith("cuda") else f"device {device}: the run is not on a CUDA device"
    _processes(spec)
    if cuda:
        return _cuda(spec)
    found = _model(spec)
    _precision(spec, cuda)
    sharded = lm.setting(spec, "zero_stage")
    if sharded and spec.get("parallelism.strategy") == "ddp":
        lm.put(spec, "parallelism.zero_redundancy", True, spec.fact(lm.HYPER + "zero_stage"))
    states = "" if sharded in (None, 0, 1) else f"zero_stage {sharded}: train_gpt2.py has none but 0 and 1"
    keys = {"micro_batch_size": "batch_size", "sequence_length": "sequence_length"}
    return lm.finish(spec, (on_cpu, found, states), keys)


def _cuda(spec: TrainingSpec) -> TrainingSpec:
    """The program in CUDA: what its options say, and what it was built with, where the script builds it."""
    _precision(spec, True)
    text = spec.document.text
    built = "USE_CUDNN=1" in text
    reason = "the script builds with USE_CUDNN=1" if built else "llm.c: its Makefile takes cuDNN only if it is told to"
    lm.put(spec, "attention", "flash" if built else "eager", reason=reason)
    if "PRECISION=FP32" in text:
        for name in ("parameter_dtype", "compute_dtype"):
            lm.put(spec, name, "float32", reason="the script builds with PRECISION=FP32")
    spec.facts.pop("implementation", None)
    lm.put(spec, "checkpointing", "blocks", reason="llm.c: what -r says")
    stage = spec.fact(lm.HYPER + "zero_stage")
    if stage is not None and stage.value:
        lm.put(spec, "parallelism.zero_stage", 1, stage, "llm.c: stages 2 and 3 are not there, 1 is taken")
    named = spec.fact("model")
    why = ""
    try:
        made = gpt2.descriptor(str(named.value) if named is not None else "gpt2_124M_bf16.bin")
        native.describe(spec, made, named, "llm.c: train_gpt2.cu")
    except UnknownModel as error:
        why = str(error)
    spec = lm.finish(spec, (why,), {"micro_batch_size": "-b", "sequence_length": "-t"})
    if spec.architecture is not None:
        spec.architecture = "llm_c"
    return spec


def _model(spec: TrainingSpec) -> str:
    named = spec.fact("model")
    text = str(named.value) if named is not None else "gpt2"
    try:
        made = gpt2.twin(text)
    except UnknownModel as error:
        return str(error)
    published = text in gpt2.PUBLISHED
    lm.put(spec, "pretrained", published, named, "train_gpt2.py: from_pretrained where it is a published name")
    native.describe(spec, made, named, "llm.c: train_gpt2.py")
    return ""


def _precision(spec: TrainingSpec, cuda: bool) -> None:
    stated = spec.fact(lm.HYPER + "dtype")
    if cuda:
        lm.put(spec, "parameter_dtype", "bfloat16", reason="llm.c: train_gpt2.cu is built for bfloat16")
        lm.put(spec, "compute_dtype", "bfloat16", reason="llm.c: train_gpt2.cu is built for bfloat16")
        lm.put(spec, "master_weights", bool(lm.setting(spec, "master_weights")), spec.fact(lm.HYPER + "master_weights"))
        lm.put(spec, "autocast", False, reason="llm.c: train_gpt2.cu is built for bfloat16")
    elif stated is not None:
        lm.put(spec, "parameter_dtype", "float32", reason="llm.c: train_gpt2.py never casts weights")
        lm.put(spec, "compute_dtype", stated.value, stated)
        lm.put(spec, "autocast", stated.value != "float32", stated)


def _processes(spec: TrainingSpec) -> None:
    """DDP under torchrun or mpirun. Accumulation is what the tokens of a step leave."""
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count = found.total.value if found.total is not None else None if found.distributed else 1
    native.divided(
        spec, "ddp" if found.distributed else "none", count, found.total, "" if found.total else "one process"
    )
    total = spec.fact(lm.HYPER + "total_tokens")
    tokens = spec.get("micro_batch_size") * spec.get("sequence_length") * (count or 1)
    if total is not None and isinstance(total.value, int) and total.value > 0:
        lm.put(spec, "gradient_accumulation_steps", max(1, total.value // tokens), total)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Options of the program that runs; accumulation follows from the tokens of a step."""
    if fact == "compute_dtype":
        own = spec.fact(lm.HYPER + "dtype")
        return lm.write(spec, lm.HYPER + "dtype", value) if own is not None and own.node is not None else []
    known = spec.fact(fact)
    return None if known is not None and known.node is not None and known.key else []
