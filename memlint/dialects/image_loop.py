"""Family image-loop: programs that train an image classifier of timm's or torchvision's in a loop of their own.

Source: timm 1.0.31 (``timm/models/_factory.py``, create_model), torchvision 0.28.0 (``torchvision/models``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.library_models import timm_classes, timm_program, timm_side
from memlint.data import programs
from memlint.dialects import key_facts, loop_calls
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Edit, Node
from memlint.facts.spec import DEFAULT, HYPER, Fact, Name, OnTop, TrainingSpec

TIMM, TORCHVISION = "timm/", "torchvision/"
_CLASSES = HYPER + "num_classes"
# Of the optimizers that a loop may call, those that a classifier's step is known with.
_OPTIMIZERS = ("adam", "adamw", "sgd")


def recognise(document: Document, root: Node) -> bool:
    """No file has these keys: they are read from a program's calls (:mod:`memlint.dialects.image_calls`)."""
    return False


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where its program ships."""
    before = spec.unknown_reason
    spec = key_facts.complete(spec)
    stated = spec.fact("model")
    if stated is None or not isinstance(stated.value, str):
        return spec
    name = stated.value
    program = name if name.startswith(TORCHVISION) else timm_program(name.removeprefix(TIMM))[0]
    try:
        own = programs.value(program)["sizes"]["H"]
    except KeyError:
        kind = name.partition("/")[0]
        spec.unknown_reason = f"the model {name} is none of {kind}'s that memlint knows: {key_facts.WAY_OUT}"
        return spec
    why = _optimizer(spec) or _batch(spec)
    if why:
        spec.unknown_reason = why
        return spec
    spec.architecture, spec.unknown_reason = "classifier", before if isinstance(before, OnTop) else ""
    lm.put(spec, HYPER + "program", program, stated)
    _size(spec, own, name)
    _put(spec, _CLASSES, timm_classes(name) or 1000 if name.startswith(TIMM) else 1000, "as its weights have it")
    _put(spec, "parameter_dtype", "float32", "as the library makes it")
    _put(spec, HYPER + "no_prefetcher", True, "a loop over a DataLoader")
    _gradients(spec)
    wrapped = spec.fact(HYPER + "distributed")
    if wrapped is not None and spec.get("parallelism.strategy") is None:
        lm.put(spec, "parallelism.strategy", "ddp", wrapped)
    return spec


def _optimizer(spec: TrainingSpec) -> str:
    stated = spec.fact(HYPER + "optimizer_class")
    if stated is None or stated.value is None:
        return "which optimizer steps is not followed"
    library, _, name = str(stated.value).partition(":")
    found = loop_calls.OPTIMIZERS.get(library, {}).get(name)
    if found is None or found.library != "torch" or found.name not in _OPTIMIZERS:
        return f"the optimizer {stated.value} is not described"
    lm.put(spec, "optimizer", found.name, stated)
    foreach, fused = spec.fact(HYPER + "foreach"), spec.fact(HYPER + "fused")
    if fused is not None and fused.value:
        lm.put(spec, "optimizer_implementation", "fused", fused)
    elif foreach is not None and foreach.value is False:
        lm.put(spec, "optimizer_implementation", "loop", foreach)
    else:
        lm.put(spec, "optimizer_implementation", "foreach", reason="torch.optim on CUDA")
    return ""


def _batch(spec: TrainingSpec) -> str:
    gap = lm.gap(spec, "batch_size")
    return "" if gap is None else f"{gap.key} is not known: {gap.reason}"


def _size(spec: TrainingSpec, own: int, name: str) -> None:
    if spec.get("image_size") is None:
        side = (timm_side(name.removeprefix(TIMM)) if name.startswith(TIMM) else None) or own
        _put(spec, "image_size", side, f"{name}: the size it is for")


def _gradients(spec: TrainingSpec) -> None:
    """Whether those of a step are there while the next forward pass runs: zeros, or not yet let go."""
    where, to_none = spec.fact(HYPER + "zero_grad"), spec.fact(HYPER + "set_to_none")
    if where is None:
        return
    zeros = to_none.value is False if to_none is not None else spec.does("torch.keeps_gradients_as_zeros")
    late = where.value == "after_forward" and not zeros
    lm.put(spec, HYPER + "clears_late", late, where)
    lm.put(spec, "gradients_kept", bool(zeros) or where.value == "never", to_none or where)


def _put(spec: TrainingSpec, name: Name, value: object, reason: str) -> None:
    if spec.get(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Changes are written where the program has a value already; what it does not call, nobody adds to it."""
    known = spec.fact(fact)
    if known is None or known.node is None or fact in ("optimizer", "autocast", "compute_dtype"):
        return []
    return None
