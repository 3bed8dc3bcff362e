"""Runs on several devices: what one rank keeps, gathers and sends while it takes a step.

A :class:`Spread` stands between the training loop (:mod:`memlint.models.step`) and a System. It makes shards of the
parameters' storages, and gives modules a ``unit`` that runs around each of their calls. Collectives are what they
allocate.

Where ranks differ, the one with the largest shards is meant (rank 0). Sources: ``torch/nn/parallel``,
``torch/distributed/fsdp`` of torch 2.13, and DeepSpeed 0.18, ``deepspeed/runtime/zero``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlint.facts.spec import TrainingSpec
from memlint.meta.tensor import Tensor
from memlint.models.parallel.plan import Plan, assumptions, plan_of, process_groups
from memlint.models.parallel.run import Spread, WholeGraph
from memlint.models.system import System

__all__ = ("Plan", "Spread", "assumptions", "plan_of", "process_groups", "spread")


def spread(spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]) -> Spread:
    """Take a system apart for one rank; call it before anything but parameters is on the tape.

    ``updated`` are the parameters that train, ``every`` are all of the model's and of its helpers'.
    """
    plan = plan_of(spec)
    megatrons = spec.get("optimizer_library") == "megatron"
    if megatrons and (plan is None or plan.strategy == "ddp"):
        from memlint.models.parallel.megatron import AddedGradients

        return AddedGradients(spec, system, updated)
    if spec.get("optimizer_library") == "nanotron":
        from memlint.models.parallel.nanotron import NanotronStates

        return NanotronStates(spec, system, updated)
    if spec.get("optimizer_library") == "nanochat":  # which shares states by itself
        return WholeGraph(system, updated) if spec.get("compile", False) else Spread(system, updated)
    if spec.get("parallelism.strategy") == "zero" and spec.get("parallelism.zero_stage") == 0:
        from memlint.models.parallel.zero import WholeStates

        return WholeStates(1 if plan is None else plan.ranks, spec, system, updated)
    if plan is None:
        return Spread(system, updated)
    if plan.strategy == "ddp":
        from memlint.models.parallel.ddp import Ddp

        return Ddp(spec, system, updated)
    if plan.strategy == "zero":
        from memlint.models.parallel.zero import ZeroGradients, ZeroParameters

        half = any(x.dtype.itemsize == 2 for x in updated)
        added = megatrons or (half and spec.get("gradient_dtype") == "float32")
        if plan.stage == 1 and added:
            from memlint.models.parallel.megatron import MainGradients

            return MainGradients(plan, spec, system, updated, every)
        kind: type[ZeroGradients] = ZeroParameters if plan.stage == 3 else ZeroGradients
        return kind(plan, spec, system, updated, every)
    if plan.strategy == "fsdp1":
        from memlint.models.parallel.fsdp1 import FlatlySharded

        return FlatlySharded(plan, spec, system, updated, every)
    from memlint.models.parallel.fsdp2 import Sharded

    return Sharded(plan, spec, system, updated, every)
