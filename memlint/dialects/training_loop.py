"""Family training-loop: programs that train a model of transformers in a loop of their own."""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import loop_calls
from memlint.dialects.family import OWN_MODEL
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import WRITTEN, Fact, Name, OnTop, TrainingSpec
from memlint.trainers.table import TRAINERS

# Models that are asked for a score of each class: what they return is small, and nobody counts it.
_SMALL_OUTPUTS = ("sequence_classification", "token_classification", "question_answering")


def recognise(document: Document, root: Node) -> bool:
    """No file has these keys: they are read from a program's calls (:mod:`memlint.dialects.loop_scripts`)."""
    return False


def _model(spec: TrainingSpec) -> str:
    """A library's model by its name, or a module of the program's own."""
    told = spec.root.get(OWN_MODEL)
    if told is None:
        return lm.model(spec)
    spec.model_name = str(told.get("class").plain())  # type: ignore[union-attr]
    spec.facts[OWN_MODEL] = Fact(OWN_MODEL, told.plain(), WRITTEN, OWN_MODEL, told)
    return ""


def _model_class(spec: TrainingSpec) -> str:
    if spec.get("model_class") is None:
        lm.put(spec, "model_class", "causal_lm", reason="the loop asks a causal language model")
    return ""


def _length(spec: TrainingSpec) -> str:
    """Rows as long as the tokenizer cuts them, or fills them up to."""
    stated = spec.fact("sequence_length")
    filled = lm.switched(spec, "pad_to_max_length")
    if filled:
        lm.put(spec, "packing", True, stated, "every row is filled up")
    if stated is not None and stated.value is not None:
        return ""
    if lm.gap(spec, "max_seq_length") is not None:
        return lm.not_stated(spec, "max_seq_length")
    if stated is not None and stated.node is not None:
        return OnTop(f"{stated.key} is null: the longest sample is the tokenizer's limit or the data's")
    return OnTop("max_seq_length is not stated: the longest sample is the data's, which no file states")


def _optimizer(spec: TrainingSpec) -> str:
    """torch's take all parameters at once unless they are told otherwise."""
    stated = spec.fact(lm.HYPER + "optimizer_class")
    if stated is None or stated.value is None:
        return "" if spec.get("optimizer") is not None else "which optimizer steps is not followed"
    library, _, name = str(stated.value).partition(":")
    found = loop_calls.OPTIMIZERS.get(library, {}).get(name)
    if found is None:
        return f"the optimizer {stated.value} is not described"
    lm.put(spec, "optimizer", found.name, stated)
    lm.put(spec, "optimizer_library", found.library, stated)
    foreach, fused = spec.fact(lm.HYPER + "foreach"), spec.fact(lm.HYPER + "fused")
    if found.implementation:
        lm.put(spec, "optimizer_implementation", found.implementation, stated)
    elif fused is not None and fused.value:
        lm.put(spec, "optimizer_implementation", "fused", fused)
    elif foreach is not None and foreach.value is False:
        lm.put(spec, "optimizer_implementation", "loop", foreach)
    else:
        reason = "torch 2.13: optim/optimizer.py, _default_to_fused_or_foreach"
        lm.put(spec, "optimizer_implementation", "foreach", reason=reason)
    if found.paged:
        lm.put(spec, "optimizer_paged", True, stated)
    return ""


def _gradients(spec: TrainingSpec) -> None:
    """Whether those of a step are there while the next forward pass runs: zeros, or not yet let go."""
    where, to_none = spec.fact(lm.HYPER + "zero_grad"), spec.fact(lm.HYPER + "set_to_none")
    if where is None:
        return
    zeros = to_none.value is False if to_none is not None else spec.does("torch.keeps_gradients_as_zeros")
    if where.value in ("never", "after_forward"):
        lm.put(spec, "gradients_kept", True, where)
    else:
        lm.put(spec, "gradients_kept", bool(zeros), to_none or where)


def _loop(spec: TrainingSpec) -> str:
    """Which names hold what the model returned, and how accelerate hands it out."""
    stated, model = spec.fact("loop"), spec.get("model_class", "causal_lm")
    if stated is None:
        return ""
    statements = tuple(str(statement) for statement in stated.value)
    own = not any(words.split()[:3:2] == ["let", "model"] and "labels" in words for words in statements)
    if lm.has_one_size(spec) or model in _SMALL_OUTPUTS:
        spec.facts.pop("loop", None)
        return ""
    holds = kept(statements)
    if model != "causal_lm":
        spec.facts.pop("loop", None)
        return OnTop(f"what a loop keeps of what {model} returns is not known") if holds or own else ""
    if lm.setting(spec, "set_to_none") is False:  # zeros are written over, not let go
        statements = tuple(words for words in statements if words != "clear")
    lm.put(spec, "loop", statements, stated)
    mixed = lm.mixed_precision(spec)
    if lm.switched(spec, "accelerator") and mixed is not None:
        lm.put(spec, "outputs_kept", TRAINERS["accelerate.loop"].outputs, stated, TRAINERS["accelerate.loop"].source)
    else:
        lm.put(spec, "outputs_kept", holds, stated)
    return ""


def kept(statements: tuple[str, ...]) -> bool:
    """Whether a name holds logits, or all that the model returned, while the loop goes backward."""
    large: set[str] = set()
    names: dict[str, str] = {}
    for statement in statements:
        kind, *words = statement.split()
        if kind == "let" and words[1] not in ("loss", "cross_entropy", "cross_entropies", "scaled", "added"):
            large.add(words[0])
        elif kind == "name":
            names[words[0]] = words[1]
        elif kind == "backward":
            break
    return any(number in large for number in names.values())


def _processes(spec: TrainingSpec) -> None:
    lm.processes(spec)
    wrapped = spec.fact(lm.HYPER + "distributed")
    if wrapped is not None and spec.get("parallelism.strategy") is None:
        lm.put(spec, "parallelism.strategy", "ddp", wrapped)


def _precision(spec: TrainingSpec) -> str:
    if OWN_MODEL in spec:
        for name in ("parameter_dtype", "compute_dtype"):
            lm.put(spec, name, "float32", reason="torch makes parameters in float32")
        return ""
    why = lm.precision(spec, lm.older_weights(spec, lm.weights(spec, spec.fact(lm.HYPER + "dtype"))))
    lm.prepared(spec)
    return why


FAMILY = lm.Family(
    stated=Graph(Step(_model, (*lm.MODEL_FACTS, OWN_MODEL))),
    follows=Graph(
        Step(lm.on_cpu),
        Step(_model_class, ("model_class",)),
        Step(_length, ("sequence_length", "packing")),
        Step(lm.attention, ("attention",)),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_gradients, ("gradients_kept",)),
        Step(_loop, ("loop", "outputs_kept")),
        Step(lm.adapters, lm.ADAPTER_FACTS),
        Step(lm.quantization, lm.QUANTIZATION_FACTS),
        Step(_processes, lm.PROCESS_FACTS),
        Step(lm.checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_precision, (*lm.PRECISION_FACTS, "quantization.prepared")),
    ),
    told=("on_cpu", "model", "optimizer", "adapters", "sharing", "precision", "loop", "length"),
    keys={"micro_batch_size": "batch_size", "sequence_length": "max_seq_length", "optimizer": "optimizer"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Changes are written where the program has a value already; what it does not call, nobody adds to it."""
    known = spec.fact(fact)
    if known is None or known.node is None or fact in ("optimizer", "loss", "autocast", "compute_dtype", "loop"):
        return []
    return None
