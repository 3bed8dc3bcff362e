"""How a run's states are spread over its devices, from what the config states."""

from __future__ import annotations

from math import prod

from memlint.facts.layout import layout_of
from memlint.facts.spec import TrainingSpec
from memlint.meta.tensor import DTYPES, DType
from memlint.models import UnknownModel
from memlint.models.split import FIRST, degree
from memlint.named_tuple import NamedTuple

# Optimizers' libraries that share states, and send gradients, in buffers of their own: ZeRO's are not theirs.
OWN_STATES = ("megatron", "nanotron", "nanochat")


class Plan(NamedTuple):
    """How states are spread, from the facts of ``docs/facts.md``, Parallelism.

    ranks     data-parallel degree: replicas of the batch
    shard     ranks that hold the states between them
    compute   dtype of gathered weights, None where they are gathered as they are stored
    reduce    dtype in which gradients are reduced, None where it is that of the gradients
    """

    strategy: str
    stage: int
    ranks: int
    shard: int
    compute: DType | None
    reduce: DType | None
    reshard: bool
    wrap: tuple[str, ...] | None
    wrap_elements: int
    offload_parameters: bool
    offload_optimizer: bool
    synchronises_last_only: bool
    expert: int = 1
    staged: bool = False  # a pipeline's stage: what is gathered stays for the step, reductions come after it
    ends: bool = False  # whether the embedding is a unit, and the last norm with the head
    output: DType | None = None  # FSDP2: the dtype that units hand on, None where it is that of their products
    last_stays: bool = False  # whether the last block stays gathered from its forward to its backward


def plan_of(spec: TrainingSpec) -> Plan | None:
    """None for a run whose states are on one device. Raises UnknownModel for numbers that do not fit."""
    strategy = spec.get("parallelism.strategy") or "none"
    stage = spec.get("parallelism.zero_stage")
    if strategy == "none" or (strategy == "zero" and stage == 0):
        strategy = "none" if strategy == "none" else "ddp"
    if strategy not in ("none", "ddp", "fsdp1", "fsdp2", "zero"):
        raise UnknownModel(f"how {strategy!r} spreads a run is not known")
    if strategy == "zero" and stage not in (1, 2, 3):
        raise UnknownModel(f"ZeRO has stages 0 to 3, not {stage!r}")
    layout = layout_of(spec)
    ranks, shard = layout.data, layout.shard
    if strategy == "none" or (strategy == "ddp" and ranks == 1):
        return None
    if ranks % shard:
        key = spec.spelled("parallelism.shard")
        raise UnknownModel(f"{key} = {shard:,} does not divide the {ranks:,} data-parallel ranks")
    # Ranks that share a sequence have the same weights, and share those too.
    ranks, shard = ranks * (layout.states // shard), layout.states
    stored, compute = spec.get("parameter_dtype", "float32"), spec.get("compute_dtype", "float32")
    reduce = spec.get("parallelism.reduce_dtype")
    wrap = spec.get("parallelism.wrap")
    offloaded = spec.get("parallelism.cpu_offload", False)
    return Plan(
        strategy,
        stage or 0,
        ranks,
        shard,
        DTYPES[compute] if compute != stored and not spec.get("parallelism.as_stored", False) else None,
        DTYPES[reduce] if reduce in DTYPES and reduce != compute else None,
        spec.get("parallelism.reshard_after_forward", True),
        None if wrap is None else () if wrap == "none" else (wrap,) if isinstance(wrap, str) else tuple(wrap),
        spec.get("parallelism.wrap_elements", 0),
        offloaded or spec.get("parallelism.offload_parameters", False),
        offloaded or spec.get("parallelism.offload_optimizer", False),
        bool(spec.get("parallelism.reduces_last_only")) or layout.pipeline > 1,
        layout.expert,
        strategy == "fsdp2" and layout.pipeline > 1,
        strategy == "fsdp2" and bool(spec.get("parallelism.wrap_ends", False)),
        DTYPES.get(spec.get("parallelism.output_dtype", "")),
        bool(spec.get("parallelism.last_stays", False)),
    )


def process_groups(spec: TrainingSpec) -> tuple[tuple[str, int], ...]:
    """Groups that a rank talks in: one per kind of parallelism, and one of all where there are several kinds."""
    plan = plan_of(spec)
    found: list[tuple[str, int]] = []
    if plan is not None:
        found = [("data", plan.shard)] if plan.strategy != "ddp" else [("data", plan.ranks)]
        if plan.strategy != "ddp" and plan.ranks > plan.shard:
            found.append(("replicas", plan.ranks // plan.shard))
    for kind in ("tensor", "pipeline", "context", "ulysses", "expert"):
        found.append((kind, degree(spec, kind)))
    found = [(kind, size) for kind, size in found if size > 1]
    # DeepSpeed shares states in a copy of the group of all (deepspeed/utils/groups.py, _clone_world_group), and the
    # trainer gathers losses in that group itself.
    copied = plan is not None and plan.strategy == "zero" and spec.get("optimizer_library") not in OWN_STATES
    if len(found) > 1 or (found and copied):
        # Ranks that share a sequence are among those that share the states.
        within = ("expert", "context", "ulysses") if plan is not None else ("expert",)
        found.append(("all", prod(size for kind, size in found if kind not in within)))
    return tuple(found)


def assumptions(spec: TrainingSpec, stage: str = "") -> tuple[tuple[str, str, str], ...]:
    """What the report says about the rank that is meant."""
    plan = plan_of(spec)
    found: list[tuple[str, str, str]] = []
    stages = degree(spec, "pipeline")
    if stage:
        why = "it has the embedding, and most micro-batches in flight" if stage == FIRST else "it has the head"
        found.append(("rank", f"the {stage} of {stages} stages", f"the fullest: {why}"))
    if plan is not None and plan.strategy != "ddp" and plan.shard > 1:
        found.append(("rank", f"0 of {plan.ranks}", "its shards are the largest: others get the padding"))
    if plan is not None and plan.strategy in ("fsdp1", "fsdp2"):
        reason = "collectives' streams keep blocks of their own; optimizer states get what the first step left"
        found.append(("reserved memory", "after two steps", reason))
    if plan is not None and plan.stage == 3:
        reason = "DeepSpeed fetches module by module; the estimate, layer by layer"
        found.append(("ZeRO-3 fetches", "by layer", reason))
    return tuple(found)
