"""Family gpt-neox: its config files, of which a run merges several."""

from __future__ import annotations

import os
from typing import Any

from memlint.architectures.megatron import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import pretraining
from memlint.dialects.deepspeed import AUTO, deepspeed_facts
from memlint.documents.node import Document, Edit, Node, Unresolved
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Fact, Missing, Name, OnTop, TrainingSpec, named

_VERSION = "GPT-NeoX 2.0"
_GATED = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu", "bilinear": "linear", "glu": "sigmoid"}
_KEYS = {
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "sequence_length": "seq_length",
    "optimizer": "optimizer.type",
    "compute_dtype": "precision",
}
_SIZES = {name: name for name in ("num_layers", "hidden_size", "num_attention_heads")}


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    """What all files that the run merges state, DeepSpeed's keys among them."""
    why = _merged(spec)
    found = deepspeed_facts(_underscored(spec.root))
    kept = ("parallelism.", "loss_scaling", "optimizer")
    for name, fact in found.facts.items():
        if name.startswith(kept) and fact.value != AUTO and (fact.node is not None or name not in spec):
            spec.facts[name] = fact
    return why, {}


def _pipeline(spec: TrainingSpec) -> None:
    pipeline = spec.fact("parallelism.pipeline")
    if pipeline is not None and pipeline.value == 0:
        lm.put(spec, "parallelism.pipeline", 1, pipeline, "0 is no pipeline")
    elif spec.get("parallelism.pipeline", 1) > 1:
        lm.put(spec, "parallelism.schedule", "1f1b", reason="DeepSpeed 0.19: runtime/pipe/schedule.py")
    if pipeline is not None and pipeline.value:  # a pipeline of one stage is one as well (is_pipe_parallel)
        lm.put(spec, "parallelism.buffered_outputs", spec.get("compute_dtype"), pipeline)


# ---------------------------------------------------------------------------------------------- several files


def _merged(spec: TrainingSpec) -> str:
    """``deepy.py train.py -d configs a.yml b.yml``: the files in turn, of which a later one goes before."""
    if spec.launch is None or spec.document.format != "shell":
        return ""
    from memlint.dialects import companions, registry

    words = [word for word in spec.launch.words if not isinstance(word.value, dict)]
    folder = ""
    names: list[Node] = []
    skip = False
    for word, following in zip(words, [*words[1:], None]):
        if skip:
            skip = False
        elif word.value in ("-d", "--conf_dir") and following is not None:
            folder, skip = str(following.value), True
        elif isinstance(word.value, Unresolved):
            spec.missing = (*spec.missing, Missing(word.value.text, word.span, word.value.reason))
            return f"{word.value.text} is not known: {word.value.reason}"
        elif isinstance(word.value, str) and not word.value.startswith("-") and not word.value.endswith(".py"):
            names.append(word)
    if not names:
        return "the command names no config file"
    entries: dict[str, Node] = {}
    sources = dict(spec.document.sources or {spec.document.path: spec.document.text})
    last: Document | None = None
    for word in names:
        name = os.path.join(folder, str(word.value))
        name = name if name.endswith((".yml", ".yaml", ".json")) else name + ".yml"
        document, why = companions.read(name, spec.document.path)
        if document is None or not isinstance(document.root.value, dict):
            why = why or "not a mapping of keys"
            spec.missing = (*spec.missing, Missing(name, word.span, why))
            return f"{name}: {why}"
        last = document
        sources.update({document.path: document.text, **document.sources})
        for key, node in document.root.value.items():
            entries.pop(key.replace("_", "-"), None)
            entries.pop(key.replace("-", "_"), None)
            entries[key] = node
    assert last is not None
    spec.root = Node(entries, last.root.span)
    spec.document = last._replace(sources=sources)
    spec.of_several = len(names) > 1
    dialect = registry.dialect(spec.family)
    facts, missing = dialect.facts_of(spec.root)
    for stated in dialect.keys:
        spec.facts.pop(stated.annotation.get("fact", ""), None)
    spec.facts.update(facts)
    spec.missing = (*spec.missing, *missing)
    return ""


def _underscored(root: Node) -> Node:
    """The tree with the keys that DeepSpeed reads, which NeoX takes with dashes too."""
    if not isinstance(root.value, dict):
        return root
    return Node({name.replace("-", "_"): node for name, node in root.value.items()}, root.span)


def _devices(spec: TrainingSpec) -> str:
    return pretraining.devices(spec, _counts(spec))


def _counts(spec: TrainingSpec) -> list[Fact]:
    """What is multiplied to all devices, where keys say how many: the launcher takes all that there are."""
    every = spec.fact(lm.HYPER + "global_num_gpus")
    if every is not None and isinstance(every.value, int):
        return [every]
    gpus, nodes = spec.fact(lm.HYPER + "num_gpus"), spec.fact(lm.HYPER + "num_nodes")
    if gpus is None or not isinstance(gpus.value, int):
        return []
    several = nodes is not None and isinstance(nodes.value, int) and nodes.value > 0
    return [gpus, nodes] if nodes is not None and several else [gpus]


# ---------------------------------------------------------------------------------------------- the model


def _decoder(spec: TrainingSpec) -> str:
    why = pretraining.unstated(spec, _SIZES)
    if why:
        return why
    rows, why = _vocabulary(spec)
    if rows is None:
        return why
    kind = str(lm.setting(spec, "pos_emb"))
    positions = {"rotary": "rope", "learned": "learned", "alibi": "alibi", "none": "none"}.get(kind)
    if positions is None:
        return f"pos_emb {kind} is not known"
    norm = str(lm.setting(spec, "norm")).removeprefix("te_")
    if norm not in ("layernorm", "rmsnorm"):
        return f"norm {norm} is not known"
    stated = lm.setting(spec, "activation")
    gated = stated in _GATED
    heads, width = pretraining.number(spec, "num_attention_heads"), pretraining.number(spec, "hidden_size")
    biased = lm.switched(spec, "use_bias_in_attn_linear")
    made = decoder(
        layers=pretraining.number(spec, "num_layers"),
        width=width,
        heads=heads,
        groups=pretraining.number(spec, "num_kv_heads") or heads,
        inner=perceptron_width(
            width,
            gated,
            pretraining.number(spec, "intermediate_size"),
            pretraining.share(spec, "expansion_factor"),
            pretraining.number(spec, "mlp_multiple_of"),
        ),
        vocabulary=rows.value,
        length=pretraining.number(spec, "max_position_embeddings") or spec.get("sequence_length") or 0,
        positions=positions,
        rotary_share=pretraining.share(spec, "rotary_pct"),
        norm="rms" if norm == "rmsnorm" else "layer",
        gated=gated,
        activation=_GATED[stated] if gated else str(stated),
        biased=biased,
        perceptron_biased=lm.switched(spec, "use_bias_in_mlp") and (biased or not gated),
        parallel=lm.switched(spec, "gpt_j_residual"),
        tied=not lm.switched(spec, "no_weight_tying"),
        attention_dropout=pretraining.share(spec, "attention_dropout"),
        hidden_dropout=pretraining.share(spec, "hidden_dropout"),
    )
    spec.facts["vocabulary_size"] = rows
    pretraining.describe(spec, made, "the keys' own sizes")
    return ""


def perceptron_width(width: int, gated: bool, inner: int, factor: float, multiple: int) -> int:
    """What the second layer of the perceptron reads (GPT-NeoX 2.0, model/transformer.py, ParallelMLP): a gate takes a
    third of the stated width for each of its halves."""
    size = inner or (int(factor * width) if factor else 4 * width)
    if gated:
        size = int(size * 2 / 3) // 2
    return pretraining.padded(size, max(multiple, 1))


def _vocabulary(spec: TrainingSpec) -> tuple[Fact | None, str]:
    whole = spec.fact(lm.HYPER + "padded_vocab_size")
    if whole is not None and whole.value:
        return whole._replace(name="vocabulary_size"), ""
    multiple = pretraining.number(spec, "make_vocab_size_divisible_by") * spec.get("parallelism.tensor", 1)
    kind, source = spec.fact(lm.HYPER + "tokenizer_type"), spec.fact(lm.HYPER + "vocab_file")
    return pretraining.vocabulary(spec, kind, source, multiple, "padded_vocab_size")


def _exotic(spec: TrainingSpec) -> str:
    """Parts of the model, and losses, that are not known."""
    loss = lm.setting(spec, "train_impl")
    if loss not in (None, "normal"):
        why = f"train_impl {loss}: its loss, and what stands beside the model, are not known"
        return why if loss == "rm" else OnTop(why)  # of a reward model the head is another one
    if pretraining.number(spec, "moe_num_experts") > 1:
        return "moe_num_experts: GPT-NeoX's experts are not known"
    for name in ("te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha", "te_fp8_mha"):
        if lm.switched(spec, name):
            return f"{name}: modules of Transformer Engine are not known"
    if lm.switched(spec, "gpt_j_residual") and lm.switched(spec, "gpt_j_tied"):
        return "gpt_j_tied: one norm for attention and perceptron is not known"
    return ""


# ---------------------------------------------------------------------------------------------- precision, states


def _precision(spec: TrainingSpec) -> str:
    """``precision``, else DeepSpeed's own blocks; ``fp16`` with ``type: bfloat16`` is bfloat16."""
    item = lm.gap(spec, "precision", "enabled")
    if item is not None:
        return f"{item.key} is not known: {item.reason}"
    stated = spec.fact(lm.HYPER + "precision")
    if stated is not None and stated.value is not None:
        dtype = {"fp16": "float16", "bfloat16": "bfloat16", "fp32": "float32"}[str(stated.value)]
    else:
        blocks = {"bf16": "bfloat16", "fp16": "float16"}
        name = next((name for name in blocks if lm.switched(spec, name)), "")
        stated, dtype = spec.fact(lm.HYPER + name), blocks.get(name, "float32")
    kind = spec.fact(lm.HYPER + "fp16_type")
    if kind is not None and kind.value == "bfloat16" and dtype == "float16":
        stated, dtype = kind, "bfloat16"
    pretraining.half(spec, stated, dtype, "float32" if dtype == "bfloat16" else dtype)
    if dtype != "float16":
        spec.facts.pop("loss_scaling", None)
    elif "loss_scaling" not in spec:
        lm.put(spec, "loss_scaling", "dynamic", stated)
    return ""


def _optimizer(spec: TrainingSpec) -> str:
    """apex's fused Adam, unless the type says otherwise (GPT-NeoX 2.0, training.py, get_optimizer)."""
    stated = spec.fact(lm.HYPER + "optimizer_type")
    if stated is None:
        return ""
    kind = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "sgd": "sgd", "adafactor": "adafactor"}.get(
        str(stated.value).lower()
    )
    if kind is None:
        spec.facts.pop("optimizer", None)
        return f"optimizer.type {stated.value} is not known"
    lm.put(spec, "optimizer", kind, stated)
    lm.put(spec, "optimizer_library", "apex" if kind == "adamw" else "deepspeed", stated)
    lm.put(spec, "optimizer_implementation", "fused", stated, f"{_VERSION}: get_optimizer")
    return ""


def _states(spec: TrainingSpec) -> None:
    stage = spec.fact("parallelism.zero_stage")
    level = stage.value if stage is not None and isinstance(stage.value, int) else 0
    reason = ""
    if not level and spec.get("parameter_dtype") == "bfloat16":
        level, reason = 1, "DeepSpeed 0.19: BF16_Optimizer divides the optimizer's states by itself"
    for name in ("parallelism.strategy", "parallelism.zero_stage"):
        spec.facts.pop(name, None)
    pretraining.sharing(spec, level, stage, reason)
    if spec.get("parallelism.strategy") != "zero":
        for name in [name for name in spec.facts if name.startswith("parallelism.")]:
            if name.rpartition(".")[2] in _ZERO:
                del spec.facts[name]


_ZERO = frozenset(
    (
        *("reduce_bucket_elements", "gather_bucket_elements", "prefetch_bucket_elements", "live_parameter_elements"),
        *("reuse_distance_elements", "persistence_elements", "sub_group_elements", "overlap", "contiguous_gradients"),
        *("secondary_shard", "offload_optimizer", "offload_parameters"),
    )
)


# ---------------------------------------------------------------------------------------------- activations


def _activations(spec: TrainingSpec) -> str:
    """Attention, fused kernels and recomputation. Why the last is not known, or ""."""
    stated = spec.fact(lm.HYPER + "attention_config")
    kinds = _kinds(stated.value) if stated is not None else []
    if stated is not None and kinds and all(kind.startswith("flash") for kind in kinds):
        lm.put(spec, "attention", "flash", stated)
    elif stated is None or not kinds or set(kinds) == {"global"}:
        reason = "" if kinds else f"{_VERSION}: attention_config is global for every layer"
        lm.put(spec, "attention", "eager", stated, reason)
    else:
        lm.put(spec, "attention", ", ".join(dict.fromkeys(kinds)), stated)
    fused = []
    if lm.switched(spec, "rope_fusion"):
        fused.append("rotary")
    if lm.switched(spec, "layernorm_fusion") or lm.switched(spec, "rmsnorm_fusion"):
        fused.append("rms_norm")
    lm.put(spec, "fused_kernels", fused, reason=f"{_VERSION}: fusions are off unless a key turns them on")
    switch = spec.fact(lm.HYPER + "checkpoint_activations")
    if switch is None:
        return lm.not_stated(spec, "checkpoint_activations", "checkpoint-activations")
    if not switch.value:
        lm.put(spec, "checkpointing", "none", switch)
        return ""
    return pretraining.recomputed(spec, switch._replace(value="full"), "uniform", "checkpoint_num_layers")


def _kinds(value: Any) -> list[str]:
    """``[[["flash", "global"], 12]]`` -> its kinds of attention, each once per mention."""
    found: list[str] = []
    for entry in value if isinstance(value, list) else ():
        first = entry[0] if isinstance(entry, list) and entry else entry
        found += [str(kind) for kind in (first if isinstance(first, list) else [first])]
    return found


FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(_pipeline, ("parallelism.pipeline", "parallelism.schedule", "parallelism.buffered_outputs")),
        Step(_devices, pretraining.DEVICES),
        Step(_precision, (*pretraining.HALF_FACTS, "loss_scaling")),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_states, (*pretraining.SHARED, *(named(f"parallelism.{name}") for name in sorted(_ZERO)))),
        Step(_decoder, (lm.DECODER, "vocabulary_size")),
        Step(_activations, ("attention", "fused_kernels", *pretraining.RECOMPUTED)),
        Step(_exotic),
        Step(pretraining.undecided),
    ),
    told=("sharing", "exotic", "decoder", "devices", "precision", "optimizer", "activations", "undecided"),
    keys=_KEYS,
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that NeoX states in words of its own; None for the generic spelling."""
    known = spec.fact(fact)
    if spec.launch is not None and (known is None or known.node is None):
        return []  # which of the files would state it?
    if fact == "checkpointing":
        return lm.write(spec, lm.HYPER + "checkpoint_activations", True) if value == "full" else []
    if fact == "attention":
        layers = pretraining.number(spec, "num_layers")
        whole = spec.get("compute_dtype") in lm.HALF and value == "flash" and layers
        return lm.write(spec, lm.HYPER + "attention_config", [[["flash"], layers]]) if whole else []
    if fact == "compute_dtype" and value in lm.HALF and spec.get("compute_dtype") == "float32":
        return lm.write(spec, lm.HYPER + "precision", "fp16" if value == "float16" else value)
    if fact in ("compute_dtype", "parameter_dtype", "frozen_dtype", "optimizer", "optimizer_implementation", "loss"):
        return []
    if fact == "sequence_length":
        rows = pretraining.number(spec, "max_position_embeddings")
        return [] if rows and isinstance(value, int) and value > rows else None
    if fact.startswith("parallelism.") and fact.rpartition(".")[2] in _ZERO:
        return []
    return None
