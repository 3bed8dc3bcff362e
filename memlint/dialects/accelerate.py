"""Family accelerate, and accelerate's config as a companion of other families' runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from memlint.dialects.companions import Companion
from memlint.dialects.launchers import ACCELERATE, launcher
from memlint.documents.node import Command, Node, Unresolved
from memlint.facts.spec import DEFAULT, HYPER, WRITTEN, Fact, Missing, Name, TrainingSpec

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "no": None, "false": None, "none": None}
_VERSION = "accelerate 1.15"
SHARING_FILE: Final = "sharing_file"
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # numbered from 1


def truth(value: Any) -> bool:
    """``true`` as accelerate's config writes it: a boolean or its name."""
    return value is True or str(value).lower() in ("true", "yes", "1")


_DEGREES: tuple[Name, ...] = (
    *("parallelism.tensor", "parallelism.context", "parallelism.ulysses", "parallelism.shard", "parallelism.replicas"),
)


def accelerate_facts(root: Node, beside: str = "") -> Companion:
    """What an accelerate config says, as facts. ``beside`` is the file it was read from: a DeepSpeed config that it
    names is read too.

    ``mixed_precision`` is the dtype that the launcher hands to the trainer (``bfloat16``, ``float16``, ``fp8``, or
    None). Where the config says how many processes there are, ``device_count`` is that.
    """
    from memlint.dialects import registry

    stated, missing = registry.dialect("accelerate").facts_of(root)
    facts = {name: fact for name, fact in stated.items() if not name.startswith((HYPER, "parallelism.", "saves_"))}
    for degree in _DEGREES:
        _copy(facts, stated.get(degree), degree)
    count = facts.get("device_count")
    if count is not None and count.value is None:
        facts[HYPER + "num_processes"] = facts.pop("device_count")  # null: as many as there are
    precision = stated.get(HYPER + "mixed_precision")
    if precision is not None:
        text = str(precision.value).lower()
        facts["mixed_precision"] = precision._replace(name="mixed_precision", value=_DTYPES.get(text, text))
    compiler = stated.get(HYPER + "dynamo_backend")
    if compiler is not None and str(compiler.value).lower() not in ("no", "none", "false"):
        facts["compile"] = compiler._replace(name="compile", value=True)
    kind = stated.get(HYPER + "distributed_type")
    name = "NO" if kind is None or kind.value in (False, None) else str(kind.value).upper()
    sources: dict[str, str] = {}
    if name == "FSDP":
        assert kind is not None
        _fsdp(facts, stated, kind)
    elif name == "DEEPSPEED":
        assert kind is not None
        sources = _deepspeed(facts, stated, kind, missing, beside)
    elif name.startswith("MULTI_"):
        _copy(facts, kind, "parallelism.strategy", "ddp")
    elif name == "NO" and kind is not None:
        _copy(facts, kind, "parallelism.strategy", "none")
        _copy(facts, kind, "device_count", 1)  # accelerate starts one process, whatever num_processes says
    elif kind is not None:
        missing.append(Missing("distributed_type", _place(kind), f"{name} is not known"))
    return Companion(facts, tuple(missing), sources)


def _copy(facts: dict[str, Fact], origin: Fact | None, name: Name, value: Any = ...) -> None:
    if origin is not None:
        facts[name] = origin._replace(name=name, value=origin.value if value is ... else value)


def _place(fact: Fact) -> Any:
    assert fact.span is not None
    return fact.span


def _fsdp(facts: dict[str, Fact], stated: dict[str, Fact], kind: Fact) -> None:
    version = stated.get(HYPER + "fsdp_version")  # none where it is not a value that the key takes
    two = version is not None and str(version.value) == "2"
    origin = kind if version is None or version.node is None else version
    _copy(facts, origin, "parallelism.strategy", "fsdp2" if two else "fsdp1")
    reshard = stated.get(HYPER + "fsdp_reshard_after_forward")
    strategy = stated.get(HYPER + "fsdp_sharding_strategy")
    if two:
        if reshard is not None:
            _copy(facts, reshard, "parallelism.reshard_after_forward", truth(reshard.value))
    else:
        _sharding(facts, strategy or reshard)
    offload = stated.get(HYPER + "fsdp_offload_params")
    if offload is not None:
        _copy(facts, offload, "parallelism.cpu_offload", truth(offload.value))
    policy = stated.get(HYPER + "fsdp_auto_wrap_policy")
    wrap = "NO_WRAP" if policy is None else str(policy.value).upper()
    layers = stated.get(HYPER + "fsdp_layers")
    if wrap == "NO_WRAP":
        reason = f"{_VERSION}: without fsdp_auto_wrap_policy nothing is wrapped by itself"
        none = Fact("parallelism.wrap", "none", DEFAULT, reason=reason)
        facts["parallelism.wrap"] = none if policy is None else policy._replace(name="parallelism.wrap", value="none")
    elif wrap == "SIZE_BASED_WRAP":
        smallest = stated.get(HYPER + "fsdp_min_num_params")
        reason = f"{_VERSION}: fsdp_min_num_params"
        facts["parallelism.wrap_elements"] = (
            Fact("parallelism.wrap_elements", 10**8, DEFAULT, reason=reason)
            if smallest is None
            else smallest._replace(name="parallelism.wrap_elements")
        )
    elif layers is not None:
        names = layers.value if isinstance(layers.value, list) else str(layers.value).split(",")
        _copy(facts, layers, "parallelism.wrap", [name.strip() for name in names])
    backward, forward = (stated.get(f"parallelism.{way}_prefetch") for way in ("backward", "forward"))
    if backward is not None:
        _copy(facts, backward, "parallelism.backward_prefetch", str(backward.value).upper())
    if forward is not None:
        _copy(facts, forward, "parallelism.forward_prefetch", truth(forward.value))
    checkpointing = stated.get(HYPER + "fsdp_activation_checkpointing")
    if checkpointing is not None and truth(checkpointing.value):
        _copy(facts, checkpointing, "checkpointing", "full")
    saved = stated.get(HYPER + "fsdp_state_dict_type")
    if saved is not None:
        _copy(facts, saved, "saves_full_weights", str(saved.value).upper() == "FULL_STATE_DICT")


def _sharding(facts: dict[str, Fact], strategy: Fact | None) -> None:
    """FSDP's first version: one name for what is sharded and when it is freed."""
    if strategy is None:
        return
    name = str(strategy.value).upper()
    if name.isdigit() and 0 < int(name) <= len(_STRATEGIES):
        name = _STRATEGIES[int(name) - 1]
    if name == "NO_SHARD":
        _copy(facts, strategy, "parallelism.strategy", "ddp")
        return
    _copy(facts, strategy, "parallelism.reshard_after_forward", name not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"))
    if name.startswith("HYBRID"):
        count, machines = facts.get("device_count"), facts.get("machines")
        if count is not None and machines is not None and machines.value:
            _copy(facts, strategy, "parallelism.shard", max(1, count.value // machines.value))


def _deepspeed(
    facts: dict[str, Fact], stated: dict[str, Fact], kind: Fact, missing: list[Missing], beside: str
) -> dict[str, str]:
    from memlint.dialects import companions, deepspeed

    named = stated.get(HYPER + "deepspeed_config_file")
    if named is not None and isinstance(named.value, str) and named.value.lower() != "none":
        document, reason = companions.read(named.value, beside or _place(named).path)
        if document is None:
            missing.append(Missing(named.key, _place(named), reason))
            _copy(facts, named, "parallelism.strategy", "zero")
            return {}
        inner = deepspeed.deepspeed_facts(document.root)
        facts.update(inner.facts)
        missing.extend(inner.missing)
        return {document.path: document.text, **document.sources}
    facts.update(deepspeed.defaults())
    del facts["deepspeed_dtype"]  # it follows mixed_precision
    _copy(facts, kind, "parallelism.strategy", "zero")
    reason = f"{_VERSION}: zero_stage"
    facts["parallelism.zero_stage"] = Fact("parallelism.zero_stage", 2, DEFAULT, reason=reason)
    for name in ("zero_stage", "offload_optimizer", "offload_parameters"):
        fact = stated.get("parallelism." + name)
        if fact is not None and fact.value is not None:
            facts["parallelism." + name] = fact
    built = stated.get(HYPER + "zero3_init_flag")
    if built is not None and built.value is not None and not truth(built.value) and _is_stage_3(facts):
        _copy(facts, built, "parallelism.loaded_whole", True)
    if "saves_full_weights" in stated:
        _copy(facts, stated["saves_full_weights"], "saves_full_weights", truth(stated["saves_full_weights"].value))
    return {}


def _is_stage_3(facts: dict[str, Fact]) -> bool:
    return bool(facts["parallelism.zero_stage"].value == 3)


# ---------------------------------------------------------------------------------------------- launched with it

# The launcher's options that stand in a mapping of the config.
_INSIDE = {
    "deepspeed_config": (
        "deepspeed_config_file",
        "zero_stage",
        "gradient_accumulation_steps",
        "offload_optimizer_device",
        "offload_param_device",
    )
}
_KINDS = (("use_deepspeed", "DEEPSPEED"), ("use_fsdp", "FSDP"), ("multi_gpu", "MULTI_GPU"))


def launched(command: Command | None, beside: str, in_place: Callable[[Node], Node] | None = None) -> Companion | None:
    """What ``accelerate launch`` says: its config file, and its options, which go before; None without a launcher.

    ``in_place`` makes a config of the option that names one which is not there.
    """
    options = launcher(command, *ACCELERATE)
    if options is None or not isinstance(options.value, dict):
        return None
    by_name = {name.replace("-", "_"): node for name, node in options.value.items()}
    named = by_name.get("config_file")
    tree: dict[str, Node] = {}
    sources: dict[str, str] = {}
    missing: list[Missing] = []
    if named is not None:
        read, gap = named_config(named, beside)
        if read is None and in_place is not None:
            read, gap = (in_place(named), {}), None
        if gap is not None:
            missing.append(gap)
        if read is not None:
            root, sources = read
            tree.update(root.value if isinstance(root.value, dict) else {})
    merged = Node(_with_options(tree, by_name), options.span)
    found = accelerate_facts(merged, next(iter(sources), beside))
    facts = {name: _as_option(fact, sources) for name, fact in found.facts.items()}
    missing += [
        item if item.span.path in sources else item._replace(key=_option_name(item.key)) for item in found.missing
    ]
    if missing and "parallelism.strategy" not in facts:
        facts.update(unknown_sharing(named))
    return Companion(facts, tuple(missing), {**sources, **found.sources})


def unknown_sharing(named: Node | None) -> dict[str, Fact]:
    """The facts of a run whose accelerate config is named, and not there."""
    reason = "the file that would say it is not there"
    facts = {"parallelism.strategy": Fact("parallelism.strategy", "unknown", reason=reason)}
    if named is not None:
        key = "--" + (named.key_path or "config_file")
        value = named.value if isinstance(named.value, str) else ""
        facts[SHARING_FILE] = Fact(SHARING_FILE, value, WRITTEN, key, named)
    return facts


def _option_name(key: str) -> str:
    return "--" + key.rsplit(".", 1)[-1]


def _as_option(fact: Fact, sources: dict[str, str]) -> Fact:
    """A fact of the launcher's own option is spelled as one."""
    if fact.node is None or fact.node.span.path in sources or not fact.node.key_path:
        return fact
    return fact._replace(key=_option_name(fact.node.key_path))


def named_config(named: Node, beside: str) -> tuple[tuple[Node, dict[str, str]] | None, Missing | None]:
    """The accelerate config that an option names: (its tree, its sources), or the gap."""
    from memlint.dialects import companions

    key = "--" + (named.key_path or "config_file")
    if not isinstance(named.value, str):
        reason = named.value.reason if isinstance(named.value, Unresolved) else "not a file name"
        return None, Missing(key, named.key_span or named.span, reason)
    document, reason = companions.read(named.value, beside)
    if document is None:
        return None, Missing(key, named.key_span or named.span, reason)
    return (document.root, {document.path: document.text, **document.sources}), None


def _with_options(tree: dict[str, Node], options: dict[str, Node]) -> dict[str, Node]:
    """The config's tree with the launcher's options in it."""
    from memlint.dialects import registry
    from memlint.dialects import schema as schemas
    from memlint.dialects.options import typed

    schema = registry.dialect("accelerate").schema
    stated = schemas.properties(schema, schema)
    result = dict(tree)
    for name, node in options.items():
        parent = "fsdp_config" if name.startswith("fsdp_") and name != "fsdp_config" else ""
        parent = next((key for key, inside in _INSIDE.items() if name in inside), parent)
        known = schemas.properties(stated[parent], schema) if parent else stated
        if name not in known or name in ("fsdp_config", "deepspeed_config", "parallelism_config"):
            continue
        value = typed(node, known[name], schema)
        if parent:
            inner = result.get(parent)
            below = dict(inner.value) if inner is not None and isinstance(inner.value, dict) else {}
            below[name] = value
            result[parent] = Node(below, value.span, None, parent)
        else:
            result[name] = value
    for switch, kind in _KINDS:
        use = options.get(switch)
        if use is not None and use.value is not False:
            result["distributed_type"] = Node(kind, use.span, use.key_span, switch, use.via)
    if "distributed_type" not in result:
        count = result.get("num_processes")
        if count is not None and isinstance(count.value, int) and count.value > 1:
            result["distributed_type"] = Node("MULTI_GPU", count.span, count.key_span, "num_processes", count.via)
    return result


# ---------------------------------------------------------------------------------------------- as a family


def complete(spec: TrainingSpec) -> TrainingSpec:
    """An accelerate config says how processes share the work, and nothing of the model."""
    companion = accelerate_facts(spec.root, spec.document.path)
    what = "an accelerate config names no model; check the launch script that names this file"
    if spec.launch is not None:
        companion = launched(spec.launch, spec.document.path) or companion
        from memlint.dialects.training_program import of_no_family

        what = of_no_family(spec.launch)
    kept = {name: fact for name, fact in spec.facts.items() if name in ("framework", "framework_version")}
    spec.facts = {**kept, **{name: fact for name, fact in companion.facts.items() if fact.value != "auto"}}
    precision = spec.facts.pop("mixed_precision", None)
    spec.facts.pop("deepspeed_dtype", None)
    if precision is not None and precision.value in ("bfloat16", "float16"):
        spec.facts["compute_dtype"] = precision._replace(name="compute_dtype")
    if "device_count" in spec.facts:
        spec.facts["world_size"] = spec.facts["device_count"]._replace(name="world_size")
    known = {(item.key, item.span) for item in spec.missing}
    spec.missing = (*spec.missing, *(item for item in companion.missing if (item.key, item.span) not in known))
    sources = spec.document.sources or {spec.document.path: spec.document.text}
    spec.document = spec.document._replace(sources={**sources, **companion.sources})
    spec.model_name = str(spec.get("parallelism.strategy", "one process"))
    spec.unknown_reason = what
    spec.architecture = None
    return spec
