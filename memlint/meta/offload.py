"""Activations in host memory: what autograd saves is copied away, and fetched when its node runs.

While the copy is under way the original lives on: until five further tensors have been saved, or backward begins.
Parameters, buffers and what is smaller than a kibibyte stay where they are. Of a checkpointed block that is what it was
called with. Source: torchtune 0.6 ``training/_activation_offloading.py`` (TRL's is made after it).
"""

from __future__ import annotations

from typing import Any

from memlint.meta.tape import Label
from memlint.meta.tensor import Storage, Tensor, state

STASH = 5  # max_fwd_stash_size
SMALLEST_BYTES = 1024  # min_offload_size

_WEIGHTS = ("parameters", "buffers", "helper_models", "communication")


class Offload:
    """One forward pass's. ``host_bytes``: what is away."""

    def __init__(self) -> None:
        self.count = 0
        self.host_bytes = 0
        self.stash: dict[int, Storage] = {}

    def send(self, storage: Storage) -> Storage | Away:
        """The storage itself, or what stands for it while it is away."""
        self.count += 1
        label = state.tape.labels[storage.index]
        if storage.nbytes < SMALLEST_BYTES or label.component in _WEIGHTS:
            return storage
        for number in [number for number in self.stash if number <= self.count - STASH]:
            del self.stash[number]
        self.stash[self.count] = storage
        self.host_bytes += storage.nbytes
        return Away(self, self.count, storage.nbytes, label)

    def pack(self, node: Any) -> None:
        """What a node saved."""
        node.frame = Packed(self, [self.send(storage) for storage in node.saved])
        node.saved = ()


class Away:
    __slots__ = ("label", "nbytes", "number", "offload")

    def __init__(self, offload: Offload, number: int, nbytes: int, label: Label) -> None:
        self.offload, self.number, self.nbytes, self.label = offload, number, nbytes, label

    def fetch(self) -> Storage:
        held = self.offload.stash.get(self.number)
        if held is not None:
            return held
        saved, state.label = state.label, self.label
        fetched = Storage(self.nbytes, (self.nbytes,), 1)
        state.label = saved
        return fetched


class Packed:
    """Stands where a checkpoint frame does: the engine asks it for what a node saved."""

    policy = None

    def __init__(self, offload: Offload, parts: list[Storage | Away]) -> None:
        self.offload, self.parts = offload, parts

    def held(self) -> list[Storage]:
        return [part for part in self.parts if isinstance(part, Storage)]

    def unpack(self, node: Any) -> None:
        node.saved = tuple([part if isinstance(part, Storage) else part.fetch() for part in self.parts])
        self.parts = []
        self.offload.stash.clear()


class SentTensor:
    """A tensor that a checkpointed block was called with."""

    __slots__ = ("dtype", "part", "requires_grad", "shape", "strides")

    def __init__(self, x: Tensor, part: Storage | Away) -> None:
        self.shape, self.dtype, self.strides = x.shape, x.dtype, x.strides
        self.requires_grad, self.part = x.requires_grad, part

    def fetch(self) -> Tensor:
        storage = self.part if isinstance(self.part, Storage) else self.part.fetch()
        return Tensor(self.shape, self.dtype, storage, self.strides).requires_grad_(self.requires_grad)


def send_arguments(offload: Offload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(SentTensor(x, offload.send(x.storage)) if isinstance(x, Tensor) else x for x in args)


def fetch_arguments(offload: Offload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    fetched = tuple(x.fetch() if isinstance(x, SentTensor) else x for x in args)
    offload.stash.clear()
    return fetched
