"""Programs around transformers' Trainer that train embeddings of queries and passages, or scores of pairs of both.

A sample is a query and a group of passages. Both are cut to a length of their own, filled up to the longest of a batch,
and go through the model one after the other; the estimate takes rows that are as long as they may be. What each program
does where its command says nothing is data (:mod:`memlint.trainers.embedders`).
"""

from __future__ import annotations

import re
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import own_code, scripts
from memlint.dialects.accelerate import truth
from memlint.documents.node import Unresolved
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Name, TrainingSpec, named
from memlint.trainers.embedders import EMBEDDINGS, PAIRS, Embedder, embedder

# Of when Tevatron's code is, as far as memory is concerned, and its values.
CODE: Name = lm.HYPER + "tevatron"
NOW, BEFORE = "since February 2025", "before February 2025"
# What a program states of itself, before adapters and dtypes are known.
FACTS: tuple[Name, ...] = (
    *("lora.r", "lora.alpha", "lora.dropout", "lora.targets", lm.HYPER + "use_peft", lm.HYPER + "dtype", CODE),
)
# What follows of its options.
JOINED: tuple[Name, ...] = (
    *("query_length", "sequences_per_sample", "sub_batch_size", "embedding_pooling", "embedding_normalized"),
    *("embedding_tempered", "negatives", "distillation", "padding", "method", "labels"),
)
_NAMES_A_DTYPE = re.compile(r"\btorch_dtype\b")
_POOLINGS = {
    **dict.fromkeys(("cls", "first"), "cls"),
    **dict.fromkeys(("last_token", "last", "eos"), "last"),
    **dict.fromkeys(("mean", "avg", "average"), "mean"),
}


def row(spec: TrainingSpec) -> Embedder | None:
    """The program, where it is one of these."""
    return None if spec.launch is None else embedder(spec.launch.called)


def _given(spec: TrainingSpec, name: str) -> Any:
    """The value of an option that no fact stands for; None for what switches nothing on."""
    node = spec.root.get(name)
    return None if node is None or node.value in (False, "False", "false", "", None, "None") else node.value


def _option(spec: TrainingSpec, made: Embedder, name: str) -> Fact:
    """An option of its own: as written, else its default. One whose value is refused ends the run (``spec.fact``)."""
    fact = spec.fact(lm.HYPER + name)
    if fact is not None and fact.value is not None:
        return fact
    own = made.names.get(name, name)
    node = spec.root.get(own) if name in made.names else None
    if node is not None and node.value is not None:
        return Fact(named(lm.HYPER + name), node.plain(), WRITTEN, f"--{own}", node)
    return Fact(named(lm.HYPER + name), made.defaults.get(name), DEFAULT, f"--{own}", reason=made.source)


def prepare(spec: TrainingSpec) -> None:
    """What the program does where its command says nothing."""
    made = row(spec)
    if made is None:
        return
    if made.adapters is not None:
        _adapts(spec, made)
    else:
        lm.put(spec, lm.HYPER + "use_peft", False, reason=f"{made.source}: it makes no adapters")
    if made.halves:
        _loads_halves(spec, made)


def _adapts(spec: TrainingSpec, made: Embedder) -> None:
    key, default = made.switch
    switch = spec.fact(lm.HYPER + "use_peft")
    if key != "use_peft":
        node = spec.root.get(key)
        if node is None:
            switch = None
        elif not isinstance(node.value, Unresolved):
            switch = Fact(named(lm.HYPER + "use_peft"), truth(node.plain()), WRITTEN, f"--{key}", node)
    if switch is None or switch.value is None:
        lm.put(spec, lm.HYPER + "use_peft", default, reason=made.source)
    else:
        lm.put(spec, lm.HYPER + "use_peft", switch.value, switch)
    for name, value in (made.adapters or {}).items():
        known = spec.fact(named(name))
        if known is None or (known.node is None and lm.gap(spec, known.key.lstrip("-")) is None):
            key = "" if known is None else known.key
            spec.facts[named(name)] = Fact(named(name), value, DEFAULT, key, reason=made.source)
    targets = spec.fact("lora.targets")
    if targets is not None and _given(spec, "additional_special_tokens") is None:
        left = [name for name in lm.names_of(targets.value) if name != "embed_tokens"]
        lm.put(spec, "lora.targets", left, targets)


def _loads_halves(spec: TrainingSpec, made: Embedder) -> None:
    """Tevatron loads the weights in the half that it computes in, and asks for FlashAttention, since February 2025
    (ce07901). Nothing numbers its code: a copy in the repository tells which it is, and options that it has since then.
    Gradients in float16 cannot be scaled by transformers' Trainer, and FlashAttention takes no float32: such runs are
    older. Else both may be."""
    code = _code(spec)
    if not code:
        tried = spec.tried(CODE)
        code = NOW if tried is None else str(tried.value)
        reason = "nothing says of when its code is; older code loads weights in float32"
        spec.facts[CODE] = Fact(CODE, code, ASSUMED, "Tevatron", reason=reason)
    else:
        lm.put(spec, lm.HYPER + "tevatron", code, reason=made.source)
    if code == BEFORE:
        lm.put(spec, lm.HYPER + "dtype", "float32", reason="Tevatron before February 2025")
        return
    for switch, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if lm.switched(spec, switch):
            lm.put(spec, lm.HYPER + "dtype", dtype, spec.fact(named(lm.HYPER + switch)), made.source)
            return
    lm.put(spec, lm.HYPER + "dtype", "float32", reason=made.source)


def _code(spec: TrainingSpec) -> str:
    """Of when the code is; "" where nothing tells."""
    path = scripts.file_of(spec.launch, spec.document) if spec.launch is not None else None
    if path is not None:
        return NOW if own_code.matches(path, _NAMES_A_DTYPE) else BEFORE
    if spec.root.get("attn_implementation") is not None:
        return NOW
    if spec.root.get("deepspeed") is not None:
        return ""  # which casts the weights itself, and may state the half
    return "" if lm.switched(spec, "bf16") else BEFORE


def attention(spec: TrainingSpec) -> None:
    """What it asks for where no option does."""
    made, stated = row(spec), spec.stated("attention")
    if made is not None and made.halves and spec.get(CODE) == BEFORE:
        return
    if made is not None and made.attention and (stated is None or stated.node is None):
        lm.put(spec, "attention", made.attention, stated, made.source)


def model_class(spec: TrainingSpec, made: Embedder) -> str:
    """What it builds, and why that is not known."""
    lm.put(spec, "model_class", made.builds, reason=made.source)
    for name, what in made.refused.items():
        node = spec.root.get(name)
        if node is not None and isinstance(node.value, Unresolved):
            return f"--{name} is not known: {node.value.reason}"
        if _given(spec, name) not in (None, made.builds):
            return f"--{name}: {what}: not described"
    unknown = lm.gap(spec, *made.defaults, *made.names.values())
    return "" if unknown is None else unknown.message


def join(spec: TrainingSpec) -> str:
    """Facts of what is compared, and how; why that is not known."""
    made = row(spec)
    if made is None:
        return ""
    group = _option(spec, made, "train_group_size")
    lm.put(spec, "sequences_per_sample", group.value, group, "passages of a query")
    lm.put(spec, "padding", True, reason=f"{made.source}: texts are filled up to the longest of a batch")
    distils = _option(spec, made, "knowledge_distillation")
    if truth(distils.value):
        kind = _option(spec, made, "kd_loss_type")
        if made.makes == EMBEDDINGS and kind.value not in ("kl_div", "m3_kd_loss"):
            return f"{kind.key} {kind.value} is not known"
        lm.put(spec, "distillation", kind.value if made.makes == EMBEDDINGS else "kl_div", distils)
    if made.makes == PAIRS:
        lm.put(spec, "method", "rerank", reason=made.source)
        lm.put(spec, "labels", 1, reason=made.source)
        return ""
    return _vectors(spec, made)


def _vectors(spec: TrainingSpec, made: Embedder) -> str:
    query = _option(spec, made, "query_max_len")
    lm.put(spec, "query_length", _filled(spec, made, query.value), query)
    piece = _option(spec, made, "sub_batch_size")
    if isinstance(piece.value, int) and piece.value > 0:
        lm.put(spec, "sub_batch_size", piece.value, piece)
    pooling = _option(spec, made, "sentence_pooling_method")
    kind = _POOLINGS.get(str(pooling.value))
    if kind is None:
        return f"{pooling.key} {pooling.value} is not known"
    from_left = _given(spec, "padding_side") == "left"
    how = {"mean": made.mean, "last": "last" if from_left else made.last}
    lm.put(spec, "embedding_pooling", how.get(kind, kind), pooling)
    normalized = _option(spec, made, "normalize_embeddings")
    lm.put(spec, "embedding_normalized", truth(normalized.value), normalized)
    lm.put(spec, "embedding_tempered", made.tempered, reason=made.source)
    across, within = _option(spec, made, "negatives_cross_device"), _option(spec, made, "use_inbatch_neg")
    if within.value is not None and not truth(within.value):
        lm.put(spec, "negatives", "own", within)
    elif truth(across.value):
        lm.put(spec, "negatives", "across_devices", across)
    elif made.gathers and (spec.get("device_count") or 1) > 1:
        lm.put(spec, "negatives", "across_devices", reason=made.source)
    if truth(_option(spec, made, "fix_position_embedding").value):
        lm.put(spec, "frozen_parts", ["positions"], _option(spec, made, "fix_position_embedding"))
    return ""


def _filled(spec: TrainingSpec, made: Embedder, length: int) -> int:
    """Rows are as long as a multiple that they are filled up to."""
    stated = _option(spec, made, "pad_to_multiple_of").value
    multiple = stated if isinstance(stated, int) and stated > 0 else made.pads or 1
    return -(-length // multiple) * multiple


def length(spec: TrainingSpec, made: Embedder) -> None:
    """Of the longest passage, or pair."""
    parts = [_option(spec, made, name) for name in made.length]
    if not parts:
        if spec.get("sequence_length") is None and lm.gap(spec, "max_len") is None:
            value = made.defaults["max_seq_length"]
            spec.facts["sequence_length"] = Fact("sequence_length", value, DEFAULT, "--max_len", reason=made.source)
        return
    last, whole = parts[-1], sum(part.value for part in parts)
    names = " and ".join(part.key for part in parts)
    rows = _filled(spec, made, whole)
    reason = f"{names} together" if len(parts) > 1 else last.reason
    lm.put(spec, "sequence_length", rows, last, reason)
