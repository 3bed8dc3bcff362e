"""How the devices of a run are grouped: which of them share samples, weights and states.

Every family fills the facts ``parallelism.*``, and whoever asks how many copies of the model there are reads them here.
"""

from __future__ import annotations

from math import prod
from typing import Final

from memlint.facts.spec import Name, TrainingSpec
from memlint.named_tuple import NamedTuple

# Ranks of these take the same samples: they hold parts of one copy of the model, or of one sequence.
OF_ONE_COPY: Final[tuple[Name, ...]] = (
    *("parallelism.tensor", "parallelism.pipeline", "parallelism.context", "parallelism.ulysses"),
)


class Layout(NamedTuple):
    """Numbers of ranks; 1 for a kind of parallelism that is not there.

    devices   of the run, as far as they are stated: 0 where nothing says so
    data      data-parallel ranks, each with samples of its own. The batch is shared by these, and by no others
    shard     of the data-parallel ranks, those that hold one set of states between them. Ranks that share a sequence
              (context, ulysses) hold the same weights, and share states as well: :attr:`states`
    replicas  groups of such ranks
    expert    ranks that share the experts; they are taken out of the data-parallel ones
    """

    devices: int
    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    ulysses: int = 1
    expert: int = 1
    shard: int = 1
    replicas: int = 1

    @property
    def of_one_copy(self) -> int:
        """Devices that take the same samples."""
        return self.tensor * self.pipeline * self.context * self.ulysses

    @property
    def states(self) -> int:
        """Ranks over which one set of weights and states may be shared."""
        return self.shard * self.context * self.ulysses


def layout_of(spec: TrainingSpec) -> Layout:
    """The layout that a run's facts state; what they leave open is data-parallel."""

    def ranks(name: Name) -> int:
        return int(spec.get(name) or 1)

    devices = int(spec.get("device_count") or spec.get("world_size") or 0)
    replicas, shard = ranks("parallelism.replicas"), int(spec.get("parallelism.shard") or 0)
    if spec.get("parallelism.data"):
        data = int(spec["parallelism.data"])
    elif devices:
        data = max(1, devices // prod(map(ranks, OF_ONE_COPY)))
    else:
        data = max(shard, 1) * replicas
    tensor, pipeline, context, ulysses = map(ranks, OF_ONE_COPY)
    expert = ranks("parallelism.expert")
    shard = shard or max(1, data // replicas)
    return Layout(devices, data, tensor, pipeline, context, ulysses, expert, shard, replicas)
