"""``DistributedDataParallel`` and ``ZeroRedundancyOptimizer`` of torch 2.13."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.facts.layout import layout_of
from memlint.facts.spec import TrainingSpec
from memlint.meta.tape import Label
from memlint.meta.tensor import Tensor, state
from memlint.models.depth import as_deep
from memlint.models.parallel.run import Spread, storage
from memlint.models.system import System

MIB = 1 << 20
# torch/csrc/distributed/c10d/reducer.hpp: the first bucket is small, so that communication starts early.
FIRST_BUCKET_BYTES = MIB


class Ddp(Spread):
    """Every rank has everything, and buckets that gradients are reduced in: copies of them, or what they are views
    of (PyTorch pull request 41954)."""

    def __init__(self, spec: TrainingSpec, system: System, updated: Sequence[Tensor]) -> None:
        super().__init__(system, updated)
        views = bool(spec.get("parallelism.gradient_as_bucket_view", False))
        cap = int(float(spec.get("parallelism.bucket_mb") or 25) * MIB)
        label = Label("gradients" if views else "communication", "", "bucket")
        trained = [parameter for parameter in as_deep(spec, system.model, updated) if parameter.requires_grad]
        self.buckets = [storage(size, label) for size in bucket_bytes(trained, cap)]
        if views and self.buckets:
            state.bucket = self.buckets[0]
        if spec.get("parallelism.zero_redundancy", False):
            self.optimized = fullest_share(updated, layout_of(spec).data)


def fullest_share(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Of whole parameters, the largest first, each to the rank that has least (torch 2.13,
    ``distributed/optim/zero_redundancy_optimizer.py``: _partition_parameters): those of the rank that has most."""
    shares: list[list[Tensor]] = [[] for _ in range(max(1, min(ranks, len(parameters))))]  # no more get any
    sizes = [0] * len(shares)
    for parameter in sorted(parameters, key=lambda x: x.numel, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(parameter)
        sizes[least] += parameter.numel
    return shares[sizes.index(max(sizes))]


def bucket_bytes(trained: Sequence[Tensor], cap_bytes: int) -> list[int]:
    """A bucket is closed once it holds its cap. Gradients come in about the reverse of the order of definition."""
    found: list[int] = []
    open_bytes, limit = 0, FIRST_BUCKET_BYTES
    for parameter in reversed(trained):
        open_bytes += parameter.nbytes
        if open_bytes >= limit:
            found.append(open_bytes)
            open_bytes, limit = 0, cap_bytes
    return [*found, open_bytes] if open_bytes else found
