"""How many processes there are and what they share: launchers, accelerate, DeepSpeed, FSDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from memlint.dialects import launchers, shardings
from memlint.dialects.accelerate import SHARING_FILE, launched, truth
from memlint.dialects.companions import Companion
from memlint.dialects.deepspeed import AUTO, deepspeed_facts
from memlint.dialects.stated import (
    CONFIG,
    DECODER,
    TRANSFORMERS,
    gap,
    names_of,
    not_stated,
    put,
    text_config,
)
from memlint.dialects.trainer_switches import OPTIMIZER_FACTS
from memlint.documents.node import Node
from memlint.facts.spec import HYPER, WRITTEN, Conflict, Fact, Missing, Name, TrainingSpec, named


def add(spec: TrainingSpec, companion: Companion) -> None:
    """What a companion says, beside what the config itself says: its gaps and texts, and the facts that are new."""
    known = {(item.key, item.span) for item in spec.missing}
    spec.missing = (*spec.missing, *(item for item in companion.missing if (item.key, item.span) not in known))
    if companion.sources:
        sources = spec.document.sources or {spec.document.path: spec.document.text}
        spec.document = spec.document._replace(sources={**sources, **companion.sources})
    spec.facts.update(companion.facts)


def absent(spec: TrainingSpec) -> shardings.Absent | None:
    """The file that would say how devices share a run, where it is named and not there."""
    named = spec.fact(SHARING_FILE)
    if named is None:
        return None
    return shardings.Absent(named.key, str(named.value), "deepspeed" in named.key)


def parallelism(spec: TrainingSpec, launcher_config: Companion | None = None) -> str:
    """How many processes there are and what they share: launchers, accelerate, DeepSpeed, FSDP.

    ``launcher_config`` is what the trainer itself hands to accelerate, where no ``accelerate launch`` does.
    A run of several processes that shares nothing is data parallel. Why the estimate cannot be made, or "".
    """
    reason, _ = stated_sharing(spec, launcher_config)
    processes(spec)
    return reason


def stated_sharing(spec: TrainingSpec, launcher_config: Companion | None = None) -> tuple[str, dict[str, Fact]]:
    """What launchers and the configs of accelerate, DeepSpeed and FSDP state: (why it is not known, or "", the facts of
    DeepSpeed's config that go before what the trainer's own keys would make)."""
    deep, fsdp = spec.facts.pop(HYPER + "deepspeed", None), spec.facts.pop(HYPER + "fsdp", None)
    beside_bare = spec.facts.pop(HYPER + "deepspeed_config", None)
    fsdp_config = spec.facts.pop(HYPER + "fsdp_config", None)
    if deep is not None and deep.value is True:
        deep = beside_bare
    spec.missing = (*spec.missing, *launchers.processes(spec.launch).missing)
    tried = spec.tried(SHARDING)
    made = None if tried is None else lambda named: shardings.accelerate(tried.value, named.span)
    companion = launched(spec.launch, _script(spec), made) or launcher_config
    if companion is not None:
        _from_accelerate(spec, companion)
    reason = ""
    before: dict[str, Fact | None] = {name: spec.facts.get(name) for name in OPTIMIZER_FACTS}
    if deep is not None and deep.value not in (None, False, ""):
        reason = _from_deepspeed(spec, deep)
    elif (unresolved := gap(spec, "deepspeed")) is not None:
        if tried is not None:
            spec.missing = tuple(item for item in spec.missing if item is not unresolved)
            reason = _use_deepspeed(spec, shardings.deepspeed(tried.value, unresolved.span), {})
        else:
            reason = not_stated(spec, "deepspeed")
            spec.facts[SHARING_FILE] = Fact(SHARING_FILE, "", WRITTEN, unresolved.key)
    elif fsdp is not None and fsdp.value not in (None, False, "", [], "false", "False"):
        reason = _from_fsdp(spec, fsdp, fsdp_config)
    overruling = {name: fact for name, fact in spec.facts.items() if name in before and before[name] is not fact}
    strategy = spec.fact("parallelism.strategy")
    if strategy is not None and strategy.value == _UNKNOWN:
        item = gap(spec, "config_file", "accelerate_config")
        reason = reason or (f"{item.key}: {item.reason}" if item is not None else strategy.reason)
    elif strategy is None and reason:
        spec.facts["parallelism.strategy"] = Fact("parallelism.strategy", _UNKNOWN, reason=reason)
    return reason, overruling


SHARDING: Final = "sharding"
_UNKNOWN = "unknown"  # the strategy of a run where a file that would say it is not there


def processes(spec: TrainingSpec) -> None:
    """How many there are, and that several which share nothing are data parallel."""
    found = launchers.processes(spec.launch)
    count = found.total if found.total is not None else spec.fact("device_count")
    strategy = spec.fact("parallelism.strategy")
    unknown = strategy is not None and strategy.value == _UNKNOWN
    if unknown:
        del spec.facts["parallelism.strategy"]
        strategy = None
    if count is None and strategy is not None and strategy.value != "none" and not found.missing:
        count = launchers.seen(spec.launch)
    if count is not None:
        put(spec, "device_count", count.value, count)
        put(spec, "world_size", count.value, count)
    several = count.value > 1 if count is not None else found.distributed
    if found.total is None and spec.tried("device_count") is not None:
        several = several and (found.distributed or _one_process_each(spec))
    if strategy is None and several and not unknown:
        put(spec, "parallelism.strategy", "ddp", count, "several processes, and nothing that shards")
    drop_what_no_strategy_reads(spec)


def on_devices(spec: TrainingSpec) -> None:
    """A run of which nothing says on how many devices it is: on several (``--gpu "NAME x8"``) it is data parallel."""
    tried = spec.tried("device_count")
    if tried is not None:
        put(spec, "parallelism.strategy", "ddp" if tried.value > 1 else "none", tried)


def _one_process_each(spec: TrainingSpec) -> bool:
    """Whether several devices would each have a process of their own: what starts a config is not in it, and a
    program of the library starts them itself. A script that python runs bare is one process for all of them."""
    launch = spec.launch
    return launch is None or bool(launch.launchers) or not launch.called.endswith(".py")


def _script(spec: TrainingSpec) -> str:
    """The script that starts the run, or the config itself."""
    return spec.launch.program.span.path if spec.launch is not None else spec.document.path


def _from_accelerate(spec: TrainingSpec, companion: Companion) -> None:
    """The trainer's own keys go before accelerate's, except where accelerate alone knows."""
    mine, stated = dict(spec.facts), companion.facts
    companion = companion._replace(facts=_known(stated))
    add(spec, companion)
    _automatic(spec, stated)
    for name, fact in companion.facts.items():
        old = mine.get(name)
        if old is None or name == "deepspeed_dtype":
            continue
        if name == "checkpointing" and fact.value == "full":
            continue  # FSDP's own checkpointing runs whatever the trainer says
        spec.facts[name] = old
    if companion.facts.get("gradient_accumulation_steps") is not None:
        _states(spec, mine, companion.facts["gradient_accumulation_steps"], "gradient_accumulation_steps")


def _from_deepspeed(spec: TrainingSpec, named: Fact) -> str:
    from memlint.dialects import companions

    path = named.span.path if named.span is not None else spec.document.path
    sources: dict[str, str] = {}
    if isinstance(named.value, str):
        document, why = companions.read(named.value, path)
        tried = spec.tried(SHARDING)
        if document is not None:
            root, sources = document.root, {document.path: document.text, **document.sources}
        elif tried is not None:
            root = shardings.deepspeed(tried.value, named.span or spec.root.span)
        else:
            key = named.key or "deepspeed"
            place = named.span or spec.root.span
            if gap(spec, "deepspeed") is None:
                spec.missing = (*spec.missing, Missing(key, place, why))
            spec.facts[SHARING_FILE] = named._replace(name=SHARING_FILE, key=key)
            return f"{key}: {why}"
    elif isinstance(named.value, dict) and named.node is not None:
        root = named.node
    else:
        return ""
    return _use_deepspeed(spec, root, sources)


_BY_ENGINE = ("training-loop",)


def _use_deepspeed(spec: TrainingSpec, root: Node, sources: dict[str, str]) -> str:
    found = deepspeed_facts(root)._replace(sources=sources)
    mine = dict(spec.facts)
    filled = _known(found.facts)
    add(spec, found._replace(facts=filled))
    for name in ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size"):
        # transformers stops where its own number is another one; a loop on DeepSpeed's engine goes by the file.
        by_engine = spec.family in _BY_ENGINE and name in filled and mine.get(name, filled[name]).origin != WRITTEN
        if by_engine:
            mine.pop(name, None)
        elif name in mine:
            spec.facts[name] = mine[name]
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        if name in filled:
            _states(spec, mine, filled[name], name)
    _automatic(spec, found.facts)
    return ""


def _known(facts: dict[str, Fact]) -> dict[str, Fact]:
    """Without those that the trainer fills in; of the dtype that is known later (:func:`language_model.precision`)."""
    return {name: fact for name, fact in facts.items() if fact.value != AUTO or name == "deepspeed_dtype"}


# transformers 5, integrations/deepspeed.py, and accelerate 1.15, Accelerator._prepare_deepspeed: what "auto" means for
# sizes that depend on the model's width.
_BY_WIDTH: dict[Name, Callable[[int], int]] = {
    "parallelism.reduce_bucket_elements": lambda width: width * width,
    "parallelism.prefetch_bucket_elements": lambda width: int(0.9 * width * width),
    "parallelism.persistence_elements": lambda width: 10 * width,
}


def _automatic(spec: TrainingSpec, stated: dict[str, Fact]) -> None:
    described = spec.get(DECODER)
    width = described.width if described is not None else text_config(spec.get(CONFIG) or {}).get("hidden_size")
    for name, size in _BY_WIDTH.items():
        fact = stated.get(name)
        if fact is not None and fact.value == AUTO and isinstance(width, int):
            put(spec, name, size(width), fact, f"{TRANSFORMERS}: auto, by the model's width")


def _states(spec: TrainingSpec, mine: dict[str, Fact], other: Fact, name: str) -> None:
    """A second file that states a size of its own: transformers stops where the two differ."""
    own = mine.get(name)
    if own is None or other.value in (None, AUTO) or other.origin != WRITTEN:
        return
    if own.value == other.value:
        spec.repeated = {**spec.repeated, name: (*spec.repeated.get(name, ()), other)}
        return
    place = own if own.span is not None else other
    if place.span is None:
        return
    label = own.label.lstrip("-")
    message = f"{label} is {own.value}, but {other.key} is {other.value}: the two must agree"
    related = tuple(span for span in (own.span, other.span) if span is not None and span != place.span)
    spec.conflicts = (*spec.conflicts, Conflict(place.key, place.span, message, related))


def _from_fsdp(spec: TrainingSpec, switch: Fact, config: Fact | None) -> str:
    """transformers' own ``fsdp`` and ``fsdp_config`` (training_args._process_fsdp_args)."""
    root: Node | None = config.node if config is not None else None
    if config is not None and isinstance(config.value, str):
        from memlint.dialects import companions

        document, why = companions.read(config.value, config.span.path if config.span else spec.document.path)
        if document is None:
            place = config.span or spec.root.span
            spec.missing = (*spec.missing, Missing(config.key, place, why))
            return f"{config.key}: {why}"
        root = document.root
        add(spec, Companion({}, (), {document.path: document.text, **document.sources}))
    entries = root.value if root is not None and isinstance(root.value, dict) else {}
    inside = {name.removeprefix("fsdp_"): node for name, node in entries.items()}

    def entry(name: str, fact: Name, value: Any) -> None:
        node = inside[name]
        spec.facts[fact] = Fact(fact, value, WRITTEN, f"fsdp_config.{node.key_path.rsplit('.', 1)[-1]}", node)

    # A command's one word has them all: --fsdp "full_shard auto_wrap offload".
    said = switch.value if isinstance(switch.value, list) else [switch.value]
    words = [word for part in said for word in str(part).split()]
    _version_of_fsdp(spec, switch, inside.get("version"))
    if "shard_grad_op" in words or "hybrid_shard_zero2" in words:
        put(spec, "parallelism.reshard_after_forward", False, switch)
    if "no_shard" in words:
        put(spec, "parallelism.strategy", "ddp", switch)
    if "offload" in words:
        put(spec, "parallelism.cpu_offload", True, switch)
    if "reshard_after_forward" in inside:
        value = str(inside["reshard_after_forward"].value).lower()
        entry(
            "reshard_after_forward",
            "parallelism.reshard_after_forward",
            value not in ("false", "shard_grad_op", "hybrid_shard_zero2"),
        )
    if "cpu_offload" in inside or "offload_params" in inside:
        name = "cpu_offload" if "cpu_offload" in inside else "offload_params"
        entry(name, "parallelism.cpu_offload", truth(inside[name].value))
    policy = inside.get("auto_wrap_policy")
    if policy is not None and str(policy.value).upper() == "NO_WRAP":
        entry("auto_wrap_policy", "parallelism.wrap", "none")
    elif "transformer_layer_cls_to_wrap" in inside:
        entry(
            "transformer_layer_cls_to_wrap",
            "parallelism.wrap",
            names_of(inside["transformer_layer_cls_to_wrap"].plain()),
        )
    elif "parallelism.wrap" in spec:
        put(spec, "parallelism.wrap", names_of(spec["parallelism.wrap"]), spec.fact("parallelism.wrap"))
    if "activation_checkpointing" in inside and truth(inside["activation_checkpointing"].value):
        entry("activation_checkpointing", "checkpointing", "full")
    return ""


def _version_of_fsdp(spec: TrainingSpec, switch: Fact, stated: Node | None) -> None:
    if stated is not None:
        put(spec, "parallelism.strategy", "fsdp2" if str(stated.value) == "2" else "fsdp1", switch)
    elif not spec.does("transformers.fsdp_is_version_2"):
        reason = f"transformers {spec['transformers_version']}: fsdp_config's version is 1 where it is not stated"
        put(spec, "parallelism.strategy", "fsdp1", switch, reason)
    else:
        reason = f"{TRANSFORMERS}: fsdp_config's version is 2 where it is not stated"
        put(spec, "parallelism.strategy", "fsdp2", switch, reason)


# Facts of a strategy -> the strategies in which they say something.
_SHARDED = ("fsdp1", "fsdp2")

_OF_STRATEGY: dict[str, tuple[str, ...]] = {
    "bucket_mb": ("ddp",),
    **dict.fromkeys(("wrap", "wrap_elements", "reshard_after_forward", "cpu_offload"), _SHARDED),
    **dict.fromkeys(("backward_prefetch", "forward_prefetch"), _SHARDED),
    **dict.fromkeys(("zero_stage", "offload_optimizer", "offload_parameters", "contiguous_gradients"), ("zero",)),
    **dict.fromkeys(("overlap", "secondary_shard", "reduce_bucket_elements", "gather_bucket_elements"), ("zero",)),
    **dict.fromkeys(("prefetch_bucket_elements", "live_parameter_elements", "persistence_elements"), ("zero",)),
    **dict.fromkeys(("reuse_distance_elements", "sub_group_elements"), ("zero",)),
}

PROCESS_FACTS: tuple[Name, ...] = (
    *("device_count", "world_size", "parallelism.strategy"),
    *(named(f"parallelism.{short}") for short in _OF_STRATEGY),
)


def drop_what_no_strategy_reads(spec: TrainingSpec) -> None:
    """Facts of a strategy that is not in use say nothing."""
    strategy = spec.get("parallelism.strategy", "none")
    for name in list(spec.facts):
        room, _, short = name.partition(".")
        if room == "parallelism" and strategy not in _OF_STRATEGY.get(short, (strategy,)):
            del spec.facts[name]
    if strategy == "ddp" and "parallelism.bucket_mb" not in spec:
        put(spec, "parallelism.bucket_mb", 25, reason="torch 2.13: DistributedDataParallel")
