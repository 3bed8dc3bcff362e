"""Family llm-c: llm.c's trainer in CUDA, and its twin in PyTorch."""

from __future__ import annotations

from typing import Any

from memlint.architectures import gpt2
from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Name, TrainingSpec, UnknownModel


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From the options of either program to the facts of a language model."""
    spec = FAMILY.complete(spec)
    if spec.architecture is not None and _is_cuda(spec):
        spec.architecture = "llm_c"
    return spec


def _program(spec: TrainingSpec) -> str:
    return spec.launch.called.rsplit("/", 1)[-1] if spec.launch is not None else ""


def _is_cuda(spec: TrainingSpec) -> bool:
    """Whether it is the program in CUDA, and not its twin in PyTorch."""
    return not _program(spec).endswith(".py")


def _another(spec: TrainingSpec) -> str:
    """Programs that began as the twin, such as those of modded-nanogpt, keep its options and not its model."""
    name = _program(spec)
    if not name.endswith(".py") or name.startswith(_TWINS):
        return ""
    return f"{name} has options of llm.c's train_gpt2.py, and what model it makes is its own"


_TWINS = ("train_gpt2", "train_gpt3", "train_llama")


def _sizes(spec: TrainingSpec) -> None:
    name: Name
    for name, value in (("micro_batch_size", 4), ("sequence_length", 1024 if _is_cuda(spec) else 64)):
        if name not in spec:
            lm.put(spec, name, value, reason=f"llm.c: {_program(spec)}")


def _on_cpu(spec: TrainingSpec) -> str:
    device = str(lm.setting(spec, "device") or "cuda")
    if _is_cuda(spec) or device.startswith("cuda"):
        return ""
    return f"device {device}: the run is not on a CUDA device"


def _kernels(spec: TrainingSpec) -> None:
    """The program in CUDA: what its options say, and what it was built with, where the script builds it."""
    if not _is_cuda(spec):
        return
    built = "USE_CUDNN=1" in spec.document.text
    reason = "the script builds with USE_CUDNN=1" if built else "llm.c: its Makefile takes cuDNN only if it is told to"
    lm.put(spec, "attention", "flash" if built else "eager", reason=reason)
    spec.facts.pop("implementation", None)
    lm.put(spec, "checkpointing", "blocks", reason="llm.c: what -r says")


def _unsharded(spec: TrainingSpec) -> str:
    stage = lm.setting(spec, "zero_stage")
    return "" if _is_cuda(spec) or stage in (None, 0, 1) else f"zero_stage {stage}: train_gpt2.py has none but 0 and 1"


def _model(spec: TrainingSpec) -> str:
    named = spec.fact("model")
    text = spec.model_name = str(named.value) if named is not None else "gpt2"
    try:
        if _is_cuda(spec):
            made = gpt2.descriptor(text if named is not None else "gpt2_124M_bf16.bin")
            native.describe(spec, made, named, "llm.c: train_gpt2.cu")
            return ""
        made = gpt2.twin(text)
    except UnknownModel as error:
        return str(error)
    published = text in gpt2.PUBLISHED
    lm.put(spec, "pretrained", published, named, "train_gpt2.py: from_pretrained where it is a published name")
    native.describe(spec, made, named, "llm.c: train_gpt2.py")
    return ""


def _precision(spec: TrainingSpec) -> None:
    stated, copied = spec.fact(lm.HYPER + "dtype"), spec.fact(lm.HYPER + "master_weights")
    if _is_cuda(spec):
        single = "PRECISION=FP32" in spec.document.text
        reason = "llm.c: train_gpt2.cu is built for bfloat16"
        said = "the script builds with PRECISION=FP32" if single else reason
        lm.put(spec, "parameter_dtype", "float32" if single else "bfloat16", reason=said)
        lm.put(spec, "compute_dtype", "float32" if single else "bfloat16", reason=said)
        lm.put(spec, "master_weights", bool(copied is not None and copied.value), copied)
        lm.put(spec, "autocast", False, reason=reason)
    elif stated is not None:
        lm.put(spec, "parameter_dtype", "float32", reason="llm.c: train_gpt2.py never casts weights")
        lm.put(spec, "compute_dtype", stated.value, stated)
        lm.put(spec, "autocast", stated.value != "float32", stated)


def _processes(spec: TrainingSpec) -> None:
    """DDP under torchrun or mpirun. Accumulation is what the tokens of a step leave."""
    count = native.replicated(spec, "one process")
    stage = spec.fact(lm.HYPER + "zero_stage")
    if _is_cuda(spec) and stage is not None and stage.value:
        lm.put(spec, "parallelism.zero_stage", 1, stage, "llm.c: stages 2 and 3 are not there, 1 is taken")
    elif not _is_cuda(spec) and stage is not None and stage.value and spec.get("parallelism.strategy") == "ddp":
        lm.put(spec, "parallelism.zero_redundancy", True, stage)
    total = spec.fact(lm.HYPER + "total_tokens")
    tokens = spec.get("micro_batch_size") * spec.get("sequence_length") * (count or 1)
    if total is not None and isinstance(total.value, int) and total.value > 0:
        lm.put(spec, "gradient_accumulation_steps", max(1, total.value // tokens), total)


FAMILY = lm.Family(
    beside=None,
    stated=Graph(Step(_sizes, ("micro_batch_size", "sequence_length"))),
    follows=Graph(
        Step(_another),
        Step(_on_cpu),
        Step(_model, (*native.MODEL_FACTS, "pretrained")),
        Step(_kernels, ("attention", "implementation", "checkpointing")),
        Step(_precision, ("parameter_dtype", "compute_dtype", "master_weights", "autocast")),
        Step(_processes, (*native.DEVICES, "gradient_accumulation_steps"), ("parallelism.",)),
        Step(_unsharded),
    ),
    told=("another", "on_cpu", "model", "unsharded"),
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Options of the program that runs; accumulation follows from the tokens of a step."""
    if fact == "compute_dtype":
        own = spec.fact(lm.HYPER + "dtype")
        return lm.write(spec, lm.HYPER + "dtype", value) if own is not None and own.node is not None else []
    known = spec.fact(fact)
    return None if known is not None and known.node is not None and known.key else []
