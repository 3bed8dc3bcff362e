"""Family llm-c: llm.c's trainer in CUDA, whose buffers are its own, and its twin in PyTorch."""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.dialects.spec import TrainingSpec
from memlint.documents.node import Edit

# train_gpt2.py: what --model says (layers, heads, width)
_SIZES = {"d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}
_NAMES = {"gpt2": "d12", "gpt2-medium": "d24", "gpt2-large": "d36", "gpt2-xl": "d48"}
_ROWS, _POSITIONS = 50257, 1024


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From the options of either program to the facts of a language model."""
    program = str(spec.launch.program.value).rsplit("/", 1)[-1] if spec.launch is not None else ""
    cuda = not program.endswith(".py")
    for name, value in (("micro_batch_size", 4), ("sequence_length", 1024 if cuda else 64)):
        if name not in spec:
            lm.put(spec, name, value, reason=f"llm.c: {program}")
    named = spec.fact("model")
    spec.model_name = str(named.value) if named is not None else "gpt2"
    device = str(lm.setting(spec, "device") or "cuda")
    on_cpu = "" if device.startswith("cuda") else f"device {device}: the run is not on a CUDA device"
    _processes(spec)
    own = "llm.c's CUDA program has buffers of its own, which are not known" if cuda else ""
    found = "" if cuda else _model(spec)
    _precision(spec, cuda)
    sharded = lm.setting(spec, "zero_stage")
    states = f"zero_stage {sharded}: ZeroRedundancyOptimizer beside DDP is not known" if sharded else ""
    keys = {"micro_batch_size": "batch_size", "sequence_length": "sequence_length"}
    return lm.finish(spec, (on_cpu, own, found, states), keys)


def _model(spec: TrainingSpec) -> str:
    named = spec.fact("model")
    text = str(named.value) if named is not None else "gpt2"
    if text not in _NAMES and text not in _SIZES:
        return f"--model {text}: no size of train_gpt2.py's"
    layers, heads, width = _SIZES[_NAMES.get(text, text)]
    lm.put(spec, "pretrained", text in _NAMES, named, "train_gpt2.py: from_pretrained where it is a published name")
    config = {
        "model_type": "gpt2",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "max_position_embeddings": _POSITIONS,
        "vocab_size": _ROWS,
        "tie_word_embeddings": True,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    }
    native.described(spec, config, named, "llm.c: train_gpt2.py")
    return ""


def _precision(spec: TrainingSpec, cuda: bool) -> None:
    stated = spec.fact(lm.HYPER + "dtype")
    if cuda:
        lm.put(spec, "parameter_dtype", "bfloat16", reason="llm.c: train_gpt2.cu is built for bfloat16")
        lm.put(spec, "compute_dtype", "bfloat16", reason="llm.c: train_gpt2.cu is built for bfloat16")
        lm.put(spec, "master_weights", bool(lm.setting(spec, "master_weights")), spec.fact(lm.HYPER + "master_weights"))
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


def spell(spec: TrainingSpec, fact: str, value: Any) -> list[Edit] | None:
    """Options of the program that runs; accumulation follows from the tokens of a step."""
    if fact == "compute_dtype":
        own = spec.fact(lm.HYPER + "dtype")
        return lm.write(spec, lm.HYPER + "dtype", value) if own is not None and own.node is not None else []
    known = spec.fact(fact)
    return None if known is not None and known.node is not None and known.key else []
