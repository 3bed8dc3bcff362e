"""Family torchtitan: job configs in TOML (to release 0.2), functions of a Python registry (from 0.3), and options."""

from __future__ import annotations

from typing import Any

from memlint import releases
from memlint.architectures import torchtitan as flavors
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native, torchtitan_forks
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, Fact, Name, TrainingSpec, UnknownModel, named
from memlint.named_tuple import NamedTuple

_TOML, _PYTHON = "torchtitan 0.2", "torchtitan 0.3"


class Shipped(NamedTuple):
    """A function of the registry that torchtitan comes with."""

    flavor: str
    batch: int
    length: int
    checkpointing: str
    tensor: int = 1
    expert: int = 1
    uncaptured: bool = False


# torchtitan 0.3, models/*/config_registry.py
_SHIPPED = {
    "llama3_debugmodel": Shipped("debugmodel", 8, 2048, "SelectiveAC"),
    "llama3_8b": Shipped("8B", 1, 8192, "SelectiveAC"),
    "llama3_70b": Shipped("70B", 8, 8192, "FullAC", 8),
    "qwen3_debugmodel": Shipped("debugmodel", 8, 2048, "SelectiveAC"),
    "qwen3_0_6b": Shipped("0.6B", 4, 4096, "SelectiveAC"),
    "qwen3_1_7b": Shipped("1.7B", 4, 4096, "SelectiveAC"),
    "qwen3_14b": Shipped("14B", 4, 4096, "FullAC"),
    "qwen3_32b": Shipped("32B", 2, 4096, "FullAC"),
    "qwen3_30b_a3b": Shipped("30B-A3B", 2, 4096, "FullAC"),
    "gpt_oss_20b": Shipped("20b", 1, 8192, "FullAC"),
    "gpt_oss_120b": Shipped("120b", 1, 8192, "FullAC"),
    "deepseek_v3_16b": Shipped("16B", 4, 4096, "SelectiveAC", 1, 8, True),
}
_OLD_DEGREES = ("data_parallel", "data_parallel_shard", "data_parallel_replicate", "tensor_parallel")
# Keys that cut a model otherwise.
_OWN_CUTS = (
    "pipeline_parallel_split_points",
    "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
    "module_fqns_per_model_part",
)
_BEFORE_LOCAL_BATCH = "torch 2.8"
_ONE_STAGE = ("1f1b", "gpipe")  # torch/distributed/pipelining/schedules.py, PipelineScheduleSingle
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}


def recognise(document: Document, root: Node) -> bool:
    """Another trainer's TOML may have a table [model] too, but no flavor that is text."""
    flavor = root.get("model.flavor")
    return flavor is None or not flavor.is_mapping


# ---------------------------------------------------------------------------------------------- the registry


def _is_registry(spec: TrainingSpec) -> bool:
    return spec.root.get("model_spec") is not None or lm.HYPER + "config_function" in spec


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    return _registry(spec), {}


def _registry(spec: TrainingSpec) -> str:
    """What the function says that a command names: in this repository, else one of those that torchtitan ships."""
    named = spec.fact(lm.HYPER + "config_function")
    if named is None or not _is_registry(spec):
        return ""
    module = str(lm.setting(spec, "module") or "")
    found = _function(spec, module, str(named.value), named)
    if found is not None:
        return found
    shipped = _SHIPPED.get(str(named.value))
    if shipped is None:
        return f"{named.key} {named.value}: a function of a config registry that is not in this repository"
    reason = f"{_PYTHON}: {named.value}"
    stated: dict[Name, Any] = {
        "model": shipped.flavor,
        "micro_batch_size": shipped.batch,
        "sequence_length": shipped.length,
        "parallelism.tensor": shipped.tensor,
        "parallelism.expert": shipped.expert,
        lm.HYPER + "checkpoint_class": shipped.checkpointing,
        lm.HYPER + "disable_cuda_graphs": shipped.uncaptured,
    }
    for name, value in stated.items():
        fact = spec.fact(name)
        if fact is None or fact.node is None:
            key = fact.key if fact is not None else ""
            spec.facts[name] = Fact(name, value, "default", key, None, reason)
    return ""


def _function(spec: TrainingSpec, module: str, name: str, stated: Fact) -> str | None:
    """The facts of a function of this repository, below those of the command; None where there is none."""
    from memlint.dialects import companions, registry

    folder = module.replace(".", "/")
    for path in (f"torchtitan/models/{folder}/config_registry.py", f"{folder}/config_registry.py"):
        document, _ = companions.read(path, stated.span.path if stated.span is not None else spec.document.path)
        node = document.root.get(name) if document is not None else None
        if document is None or node is None:
            continue
        facts, missing = registry.dialect(spec.family).facts_of(node)
        sources = spec.document.sources or {spec.document.path: spec.document.text}
        spec.document = spec.document._replace(sources={**sources, document.path: document.text})
        spec.missing = (*spec.missing, *missing)
        for fact_name, fact in facts.items():
            old = spec.fact(named(fact_name))
            if fact.node is not None and (old is None or old.node is None):
                spec.facts[fact_name] = fact
        return ""
    return None


def _model_name(spec: TrainingSpec) -> str:
    """llama3, qwen3, ...: as the table says, else by the function's name, else by the folder of the registry."""
    stated = spec.fact(lm.HYPER + "model_name")
    if stated is not None and stated.node is not None:
        return str(stated.value)
    module = lm.setting(spec, "module")
    if isinstance(module, str) and module:
        return module.rsplit(".", 1)[-1]
    if not _is_registry(spec):
        return str(stated.value) if stated is not None else "llama3"
    parts = spec.document.path.replace("\\", "/").split("/")
    if parts[1:] and parts[-1] == "config_registry.py":
        return parts[-2]
    return next((name for name in flavors.NAMES if spec.root.key_path.startswith(name + "_")), "")


def _model(spec: TrainingSpec) -> str:
    name, fact = _model_name(spec), spec.fact("model")
    if spec.unknown_reason:  # the function that would say the flavor is not there
        return ""
    if fact is None or not isinstance(fact.value, str):
        return lm.not_stated(spec, "model.flavor", "flavor")
    own = "" if fact.node is not None or _is_registry(spec) else torchtitan_forks.own_words(spec)
    if own:
        return f"{own}: a key of a fork's own says what the model is, and neither model.name nor model.flavor does"
    flavor, backend = fact.value, lm.setting(spec, "attn_backend")
    spec.model_name = f"{name} {flavor}"
    kernel = flavor.endswith(flavors.KERNELS) or str(backend or "").startswith(("flex", "varlen"))
    # FlexAttention keeps what FlashAttention keeps: queries, keys, values, the result and one sum per row.
    kernel = kernel or (name == "deepseek_v3" and flavor != "debugmodel")
    lm.put(spec, "attention", "flash" if kernel else "sdpa", reason=f"torchtitan: {name}")
    try:
        made = None if _is_registry(spec) else torchtitan_forks.decoder(spec, name, flavor)
        made = made or flavors.decoder(name, flavor)
    except UnknownModel as error:
        return f"{fact.key or 'model.flavor'} {fact.value}: {error}"
    native.describe(spec, made, fact, f"torchtitan: {name} {fact.value}")
    return ""


# ---------------------------------------------------------------------------------------------- the rest


def _length(spec: TrainingSpec) -> None:
    length = spec.fact(lm.HYPER + "max_context_length")
    if length is not None and isinstance(length.value, int):
        lm.put(spec, "sequence_length", length.value, length)


def _loss(spec: TrainingSpec) -> None:
    """The registry's loss makes float32 logits piece by piece."""
    target = spec.fact(lm.HYPER + "loss_target")
    stated = str(lm.setting(spec, "loss_target") or "ChunkedLossWrapper")
    if not _is_registry(spec) or not stated.startswith("Chunked"):
        lm.put(spec, "loss", "full", reason="torchtitan: cross_entropy_loss of float32 logits")
        return
    lm.put(spec, "loss", "chunked", target, f"{_PYTHON}: ChunkedLossWrapper")
    lm.put(spec, "loss_chunks", lm.setting(spec, "loss_chunks") or 8, target, f"{_PYTHON}: ChunkedLossWrapper")


def _version(spec: TrainingSpec) -> None:
    if _is_registry(spec):
        lm.put(spec, "implementation_version", "0.3", reason=f"{_PYTHON}: configs are functions of a registry")


def _micro_batch(spec: TrainingSpec) -> None:
    """After release 0.3 a micro batch is counted in tokens."""
    tokens = spec.fact(lm.HYPER + "microbatch_tokens")
    if tokens is not None and isinstance(tokens.value, int) and spec.get("sequence_length"):
        lm.put(spec, "micro_batch_size", max(1, tokens.value // spec["sequence_length"]), tokens)


def _optimizer(spec: TrainingSpec) -> None:
    name, fused = spec.fact(lm.HYPER + "optimizer_name"), spec.fact(lm.HYPER + "optimizer_fused")
    stated = spec.fact("optimizer_implementation")
    if name is None:
        return
    native.optimizer_class(spec, name._replace(value=f"torch.optim.{name.value}"))
    if stated is not None:
        spec.facts["optimizer_implementation"] = stated
        if stated.value == "fused_opt_states_bf16":
            lm.put(spec, "optimizer_implementation", "fused", stated)
            lm.put(spec, "optimizer_state_dtype", "bfloat16", stated)
    if fused is not None and (stated is None or stated.node is None):
        lm.put(spec, "optimizer_implementation", "fused" if truth(fused.value) else "foreach", fused)


def _checkpointing(spec: TrainingSpec) -> str:
    mode, option = spec.fact(lm.HYPER + "checkpoint_mode"), spec.fact(lm.HYPER + "checkpoint_option")
    named = spec.fact(lm.HYPER + "checkpoint_class")
    lm.put(spec, "checkpointing_reentrant", False, reason="torchtitan: checkpoint_wrapper")
    if _is_registry(spec):
        kind = str(named.value).split(".", 1)[0] if named is not None else "SelectiveAC"
        values = {"FullAC": "full", "SelectiveAC": "selective", "None": "none", "NoAC": "none"}
        node = spec.root.get("activation_checkpoint")
        if node is not None and node.value is None:
            kind = "None"
        if kind not in values:
            return f"activation_checkpoint {kind}: what it keeps is not known"
        lm.put(spec, "checkpointing", values[kind], named, f"{_PYTHON}: {kind}")
        return ""
    if mode is None:
        return lm.not_stated(spec, "activation_checkpoint.mode", "mode")
    if mode.value == "memory_budget":
        return "activation_checkpoint.mode memory_budget: what torch.compile keeps is not known"
    every = native.number(option.value) if option is not None else None
    origin = mode if mode.node is not None or option is None else option
    if mode.value != "selective":
        lm.put(spec, "checkpointing", mode.value, mode)
    elif every is not None:
        lm.put(spec, "checkpointing", "full" if every == 1 else "every", origin)
        lm.put(spec, "checkpointing_every", every, option)
    else:
        lm.put(spec, "checkpointing", "selective", origin)
    return ""


def _devices(spec: TrainingSpec) -> None:
    """FSDP2 over whatever tensor, pipeline and context parallelism and the replicas leave; DDP where nothing shards."""
    python = _is_registry(spec)
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count, origin = (found.total.value, found.total) if found.total is not None else (None, None)
    if spec.launch is not None and count is None:
        gpus = spec.launch.environment.get("NGPU")
        if gpus is not None and native.number(gpus.value):
            count = native.number(gpus.value)
            origin = Fact("device_count", count, "written", "NGPU", gpus)
    degrees = {
        name: spec.get(named(f"parallelism.{name}"), 1) or 1 for name in ("tensor", "pipeline", "context", "replicas")
    }
    others = degrees["tensor"] * degrees["pipeline"] * degrees["context"] * degrees["replicas"]
    shard = spec.fact("parallelism.shard")
    sharded = shard.value if shard is not None else None
    if isinstance(sharded, int) and count is None:
        count, origin = sharded * others, shard
    if sharded is None:
        spec.facts.pop("parallelism.shard", None)
        if shard is not None and shard.node is not None:
            spec.facts[lm.HYPER + "shards"] = shard  # as many as there are devices left
        if count is not None:
            lm.put(spec, "parallelism.shard", max(1, count // others), shard, "the devices that are left")
    shards = spec.get("parallelism.shard")
    if degrees["tensor"] > 1 and lm.setting(spec, "sequence_parallel") is not False:
        lm.put(
            spec, "parallelism.sequence", True, spec.fact("parallelism.tensor"), "torchtitan: beside tensor parallelism"
        )
    if degrees["tensor"] > 1:
        disabled = spec.fact(lm.HYPER + "disable_loss_parallel")
        shared = disabled is None or not truth(disabled.value)
        lm.put(spec, "parallelism.loss", shared, disabled, "torchtitan: loss_parallel beside tensor parallelism")
    if degrees["pipeline"] > 1:
        schedule = spec.fact(lm.HYPER + "pipeline_schedule")
        text = str(schedule.value).lower() if schedule is not None else "1f1b"
        lm.put(spec, "parallelism.schedule", _SCHEDULES.get(text, text), schedule)
        if text not in _ONE_STAGE:
            reason = "torchtitan: two stages per rank for a schedule of several (generate_split_points)"
            lm.put(spec, "parallelism.virtual_stages", 2, schedule, reason)
        _layers(spec, degrees["pipeline"] * spec.get("parallelism.virtual_stages", 1))
    if python or shards is None or shards > 1 or degrees["context"] > 1:
        strategy = "fsdp2"
    else:
        strategy = "ddp" if degrees["replicas"] > 1 else "none"
    _ends(spec)
    _reshard(spec, degrees["pipeline"])
    if count == 1 and not python:
        strategy = "none"
    if count is not None:
        for name in ("device_count", "world_size"):
            lm.put(spec, name, count, origin)
    version = _PYTHON if python else _TOML
    lm.put(spec, "parallelism.strategy", strategy, spec.fact("parallelism.shard"), f"{version}: parallelize_llama")
    lm.drop_what_no_strategy_reads(spec)


def _layers(spec: TrainingSpec, stages: int) -> None:
    """Layers of each stage. Until 2025-06 the first and the last had the least (generate_split_points); since then
    embedding and head count as a layer each, and the first ones have one more (generate_llm_fqn_per_model_part)."""
    made = spec.get(lm.DECODER)
    layers = made.layers if made is not None else None
    tables = [spec.root.get(name) for name in ("experimental", "parallelism")]
    stated = any(table.get(name) is not None for table in tables if table is not None for name in _OWN_CUTS)
    if not isinstance(layers, int) or stages > layers or stated:
        return
    if spec.root.get("experimental.pipeline_parallel_degree") is not None:
        least, more = divmod(layers, stages)
        found = [least + (0 < stage <= more and stage < stages - 1) for stage in range(stages)]
        found[-1] = layers - sum(found[:-1])
    else:
        least, more = divmod(layers + 2, stages)
        found = [least + (stage < more) for stage in range(stages)]
        found[0] -= 1
        found[-1] -= 1
    if min(found) > 0:
        lm.put(spec, "parallelism.stage_layers", tuple(found), None, "torchtitan: where it cuts a model")


def _ends(spec: TrainingSpec) -> None:
    """Embedding and head are units of their own since 2025-07 (pull request 1094). [compile] is a table since 2025-08
    (1608), the batch is said to be local since 2025-06. The registry's chunked loss does not call the head."""
    recent = any(spec.root.get(name) is not None for name in ("compile", "training.local_batch_size"))
    old = any(spec.root.get(name) is not None for name in ("training.compile", "training.batch_size", "experimental"))
    if recent and not old and spec.get("loss") == "full":
        lm.put(spec, "parallelism.wrap_ends", True, None, f"{_TOML}: apply_fsdp")


def _release(spec: TrainingSpec) -> None:
    """torchtitan runs on torch's nightly builds: what it was called when says which one at the most."""
    stated = spec.fact("framework_version")
    last = releases.series(_BEFORE_LOCAL_BATCH) or ()
    older = stated is not None and stated.origin == ASSUMED and last < (releases.series(stated.value) or last)
    if stated is not None and older and spec.root.get("training.batch_size") is not None:
        reason = "training.batch_size has another name since June 2025 (torchtitan's pull request 1238)"
        spec.facts["framework_version"] = stated._replace(value=_BEFORE_LOCAL_BATCH, reason=reason)


def _reshard(spec: TrainingSpec, pipeline: int) -> None:
    policy = spec.fact(lm.HYPER + "reshard")
    if policy is not None:
        value = {"always": True, "never": False, True: True, False: False}.get(policy.value, pipeline == 1)
        lm.put(spec, "parallelism.reshard_after_forward", value, policy)


def _precision(spec: TrainingSpec) -> None:
    """Under FSDP weights are gathered in another dtype; autocast only where neither it nor anything else divides."""
    mixed, weights = spec.fact(lm.HYPER + "mixed_precision_param"), spec.fact("parameter_dtype")
    if mixed is None or weights is None:
        return
    strategy = spec.get("parallelism.strategy", "none")
    alone = strategy not in ("fsdp1", "fsdp2") and not _is_registry(spec)
    divided = max(spec.get("parallelism.tensor", 1) or 1, spec.get("parallelism.pipeline", 1) or 1) > 1
    if alone and divided:
        lm.put(spec, "compute_dtype", weights.value, weights, f"{_TOML}: no mixed precision without FSDP here")
        lm.put(spec, "autocast", False, weights)
        return
    lm.put(spec, "compute_dtype", mixed.value, mixed)
    lm.put(spec, "autocast", alone and mixed.value != "float32", mixed, f"{_TOML}: autocast, as nothing shards")
    if not alone:
        lm.put(spec, "autocast", False, mixed, "torchtitan: MixedPrecisionPolicy of fully_shard")


def _batch(spec: TrainingSpec) -> None:
    """Accumulation is what the global batch leaves; a pipeline cuts the local batch into micro batches."""
    _micro_batch(spec)
    whole, local = spec.fact("global_batch_size"), spec.fact("micro_batch_size")
    if local is None or not isinstance(local.value, int):
        return
    steps, origin = 1, local
    if whole is not None and isinstance(whole.value, int) and whole.value > 0:
        ranks = (spec.get("parallelism.shard") or 1) * (spec.get("parallelism.replicas") or 1)
        if "device_count" in spec:
            steps, origin = max(1, whole.value // (local.value * ranks)), whole
    elif whole is not None:
        del spec.facts["global_batch_size"]
    stages = spec.get("parallelism.pipeline") or 1
    if stages > 1:
        cut = spec.fact(lm.HYPER + "pipeline_microbatch")
        size = cut.value if cut is not None and isinstance(cut.value, int) else 1
        why = f"{_TOML}: a pipeline's micro batch"
        if spec.root.get("experimental.pipeline_parallel_degree") is not None:
            # As long as pipelines were experimental, their micro batches were counted.
            cut = spec.fact(lm.HYPER + "pipeline_microbatches")
            counted = cut.value if cut is not None and isinstance(cut.value, int) else stages
            size = -(-local.value // counted)
            why = "torchtitan until 2025-03: as many micro batches as stages"
        lm.put(spec, "micro_batch_size", min(size, local.value), cut, why)
        lm.put(spec, "parallelism.micro_batches", max(1, local.value // size), cut, why)
        steps *= max(1, local.value // size)
    known = origin is whole or "global_batch_size" not in spec
    why = "" if known else "the number of devices is not stated: one micro batch per step"
    lm.put(spec, "gradient_accumulation_steps", steps, origin if known else None, why)


def _compiled(spec: TrainingSpec) -> None:
    """Compiling the loss alone leaves the model as it is."""
    switch, parts = spec.fact(lm.HYPER + "compile_enable"), lm.setting(spec, "compile_components")
    old = spec.fact(lm.HYPER + "training_compile")
    if old is not None and truth(old.value):
        lm.put(spec, "compile", True, old)
        # Degrees stood in this table until torchtitan compiled the loss too (components/loss.py).
        if any(spec.root.get(f"training.{name}_degree") is not None for name in _OLD_DEGREES):
            lm.put(spec, "compile_loss", False, reason="torchtitan: its loss is compiled since 2025-03")
    elif switch is not None:
        on = truth(switch.value) and (not isinstance(parts, list) or "model" in parts)
        lm.put(spec, "compile", on, switch)
        if isinstance(parts, list):
            lm.put(spec, "compile_loss", truth(switch.value) and "loss" in parts, switch)


def _graphs(spec: TrainingSpec) -> None:
    """A step is captured as a CUDA graph unless it is switched off, and then gradients are zeroed where they lie: the
    graph writes there (torchtitan 0.3, trainer.py). Pipelines cannot be captured."""
    switch = spec.fact(lm.HYPER + "disable_cuda_graphs")
    off = not _is_registry(spec) or (switch is not None and truth(switch.value))
    if off or (spec.get("parallelism.pipeline") or 1) > 1:
        return
    stated = switch if switch is not None and switch.node is not None else None
    lm.put(spec, "gradients_kept", True, stated, f"{_PYTHON}: a captured step keeps its gradients in place")


def _evaluation(spec: TrainingSpec) -> None:
    if not lm.switched(spec, "validation"):
        for name in ("evaluation_batch_size", "evaluation_sequence_length"):
            spec.facts.pop(name, None)
        return
    reason = "torchtitan: only the loss of an evaluation is kept"
    spec.facts["evaluation_accumulates"] = Fact("evaluation_accumulates", False, ASSUMED, reason=reason)


# torchao 0.18, float8/float8_linear.py: keeps input and weight as they were, and casts them again going back.
_FLOAT8 = ("float8", "Float8LinearConverter")


def _low_precision(spec: TrainingSpec) -> str:
    """What is exchanged in the model. Linear layers in float8 keep what others keep; of the rest it is not known."""
    old, origin = spec.fact(lm.HYPER + "float8_linear"), spec.fact(lm.HYPER + "converters")
    node = origin.node if origin is not None else spec.root.get("model_spec.converters")
    names = [_text(item) for item in node.value] if node is not None and isinstance(node.value, list) else []
    unknown = [name for name in names if name not in _FLOAT8]
    if unknown:
        key = origin.key if origin is not None else "model_spec.converters"
        return f"{key}: what {', '.join(unknown)} keeps is not known"
    gap = lm.gap(spec, "converters")
    if gap is not None and not names:
        return f"{gap.key} is not known: {gap.reason}"
    if node is not None and names:
        spec.facts["float8"] = Fact("float8", True, "written", node.key_path, node)
    elif old is not None and truth(old.value):
        lm.put(spec, "float8", True, old)
    return ""


def _text(item: Node) -> str:
    target = item.get("_target_") if item.is_mapping else item
    return str(target.value if target is not None else item.plain()).split(".", 1)[0]


FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(_model, (*native.MODEL_FACTS, "attention")),
        Step(_length, ("sequence_length",)),
        Step(_loss, ("loss", "loss_chunks")),
        Step(_version, ("implementation_version",)),
        Step(_release, ("framework_version",)),
        Step(_optimizer, (*lm.OPTIMIZER_FACTS, "optimizer_state_dtype")),
        Step(_checkpointing, ("checkpointing", "checkpointing_every", "checkpointing_reentrant")),
        Step(_devices, (*native.DEVICES, lm.HYPER + "shards"), ("parallelism.",)),
        Step(_precision, ("compute_dtype", "autocast")),
        Step(
            _batch,
            ("micro_batch_size", "global_batch_size", "gradient_accumulation_steps", "parallelism.micro_batches"),
        ),
        Step(_compiled, ("compile", "compile_loss")),
        Step(_graphs, ("gradients_kept",)),
        Step(_evaluation, lm.EVALUATION_FACTS),
        Step(_low_precision, ("float8",)),
    ),
    told=("sharing", "model", "low_precision", "checkpointing"),
    keys={
        "micro_batch_size": "training.local_batch_size",
        "sequence_length": "training.seq_len",
        "compute_dtype": "training.mixed_precision_param",
        "optimizer": "optimizer.name",
    },
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Keys of [training], [activation_checkpoint] and [optimizer]."""
    python = _is_registry(spec)
    if fact == "compute_dtype":
        return lm.write(spec, lm.HYPER + "mixed_precision_param", value) if value in ("bfloat16", "float32") else []
    if fact == "checkpointing":
        if python or value not in ("full", "none"):
            return []
        return lm.write(spec, lm.HYPER + "checkpoint_mode", value)
    if fact == "optimizer":
        names = {"adamw": "AdamW", "adam": "Adam"}
        return lm.write(spec, lm.HYPER + "optimizer_name", names[value]) if value in names and not python else []
    if fact == "optimizer_implementation" and python:
        return []
    if fact == "compile":
        return lm.write(spec, lm.HYPER + "compile_enable", value) if isinstance(value, bool) else []
    if fact == "micro_batch_size":
        known = spec.fact(fact)
        if (spec.get("parallelism.pipeline") or 1) > 1 or lm.HYPER + "microbatch_tokens" in spec or known is None:
            return []
        return None
    if fact in ("gradient_accumulation_steps", "autocast", "frozen_dtype", "attention", "attention_tokens", "loss"):
        return []
    if fact == "evaluation_batch_size" and fact not in spec:
        return []
    return None
