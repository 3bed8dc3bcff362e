"""Watches tensor memory while PyTorch code runs: every storage's birth and death, in order.

``StorageTracker`` is a dispatch mode. It looks at the results of every ATen operator, books each storage it has not
seen, and hears of its end through a weak reference. Views, in-place operations, tensors saved for backward,
recomputation, the autocast cache and an optimizer's temporaries then come out by themselves. It writes the same
:class:`~memlint.meta.tape.Tape` as the static engine, so both can be laid side by side.

Under ``FakeTensorMode`` nothing is computed and nothing is allocated; the tracker must be entered *after* the fake
mode, and the model built inside it (or its weights are booked where they are first used)::

    with FakeTensorMode(), StorageTracker() as tracker:
        model = build()
        with tracker.phase("forward"):
            loss = model(batch).sum()
        with tracker.phase("backward"):
            loss.backward()
    tracker.peak_bytes, tracker.phase_peaks["backward"], tracker.tape
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from memlint.meta.tape import Label, Tape

# What the caching allocator rounds a request up to (c10/core/AllocatorConfig.h, kMinBlockSize).
ALLOCATION_GRANULARITY_BYTES = 512

aten = torch.ops.aten
Result = TypeVar("Result")


class _Booked:
    """One storage that is alive: its number on the tape, its size, and the weak reference that tells of its end."""

    __slots__ = ("index", "reference", "rounded_bytes", "size_bytes")

    def __init__(self, index: int, size_bytes: int, rounded_bytes: int, reference: Any) -> None:
        self.index = index
        self.size_bytes = size_bytes
        self.rounded_bytes = rounded_bytes
        self.reference = reference


class StorageTracker(TorchDispatchMode):  # type: ignore[misc]
    """Books storages as operators make them.

    granularity_bytes  live and peak bytes count each storage rounded up to this (1: exactly what was asked for);
                       the tape always holds what was asked for
    live_bytes         alive now
    peak_bytes         the most that was alive at once, since the start or ``reset_peak``
    phase_peaks        the same, by phase (a phase that begins again goes on where it was)
    tape               every allocation and free, labelled with the operator that made it
    """

    def __init__(self, granularity_bytes: int = ALLOCATION_GRANULARITY_BYTES) -> None:
        super().__init__()
        self.granularity_bytes = granularity_bytes
        self.tape = Tape()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.phase_peaks: dict[str, int] = {}
        self._phase = ""
        self._alive: dict[int, _Booked] = {}  # by the address of the C++ storage, valid while it is alive
        self._elsewhere: dict[int, Any] = {}  # storages that are not the device's, with a weak reference each
        self._paused = False
        # What code does in streams of a card, it does in those of torch.cpu where it runs on the host.
        self._streams: list[Any] = [torch.cpu.current_stream()]

    # -- phases

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to a phase (setup, forward, backward, optimizer_step, evaluation)."""
        before = self._phase
        self._enter_phase(name)
        try:
            yield
        finally:
            self._enter_phase(before)

    def _enter_phase(self, name: str) -> None:
        self._phase = name
        self.tape.mark(name)
        self._raise_peak()

    def reset_peak(self) -> None:
        """Forget the peaks so far; what is alive stays booked."""
        self.peak_bytes = self.live_bytes
        self.phase_peaks.clear()
        self._raise_peak()

    def _raise_peak(self) -> None:
        live = self.live_bytes
        if live > self.peak_bytes:
            self.peak_bytes = live
        if live > self.phase_peaks.get(self._phase, 0):
            self.phase_peaks[self._phase] = live

    # -- storages

    def book(self, tensor: torch.Tensor, label: Label | None = None) -> None:
        """Book a tensor's storage unless it is booked already; a storage that grew or shrank is booked anew."""
        self.book_storage(tensor.untyped_storage(), label)

    def book_storage(self, storage: Any, label: Label | None = None) -> None:
        """``book`` for a storage itself."""
        address = storage._cdata
        if address in self._elsewhere:
            return
        size_bytes = storage.nbytes()
        known = self._alive.get(address)
        if known is not None:
            if known.size_bytes == size_bytes:
                return
            label = label or self.tape.labels[known.index]
            self._end(address)
        if size_bytes == 0:
            return  # the allocator hands out nothing for an empty request
        rounded = -(-size_bytes // self.granularity_bytes) * self.granularity_bytes
        index = self.tape.allocate(size_bytes, label or Label("activations", ""), self._stream())
        reference = weakref.ref(storage, lambda _, address=address: self._end(address))  # type: ignore[misc]
        self._alive[address] = _Booked(index, size_bytes, rounded, reference)
        self.live_bytes += rounded
        self._raise_peak()

    def _stream(self) -> int:
        """Number of the current stream, in the order in which they are met."""
        current = torch.cpu.current_stream()
        for number, stream in enumerate(self._streams):
            if stream is current:
                return number
        self._streams.append(current)
        return len(self._streams) - 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is made inside is not booked (host memory, shapes that are only asked for)."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def ran(self, func: Any) -> None:
        """Hear of an operator that somebody runs in this tracker's place."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's storage is on the books."""
        return tensor.untyped_storage()._cdata in self._alive

    def forget(self, tensor: torch.Tensor) -> None:
        """Never book a tensor's storage: it is not memory of the device (a step counter on the host)."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        self._end(address)
        elsewhere = self._elsewhere
        elsewhere[address] = weakref.ref(storage, lambda _: elsewhere.pop(address, None))

    def label(self, tensor: torch.Tensor, label: Label) -> None:
        """Say whose memory a booked tensor's storage is (a parameter, optimizer state, EMA)."""
        booked = self._alive.get(tensor.untyped_storage()._cdata)
        if booked is not None:
            self.tape.labels[booked.index] = label

    def label_of(self, tensor: torch.Tensor) -> Label | None:
        """Whose memory a tensor's storage is; None where it is not on the books."""
        return self.label_of_storage(tensor.untyped_storage())

    def label_of_storage(self, storage: Any) -> Label | None:
        booked = self._alive.get(storage._cdata)
        return None if booked is None else self.tape.labels[booked.index]

    def _end(self, address: int) -> None:
        booked = self._alive.pop(address, None)
        if booked is not None:
            self.live_bytes -= booked.rounded_bytes
            self.tape.free(booked.index)

    # -- the mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if wraps(types):
            return NotImplemented
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default and args[0].dim() == 0:
            # torch.tensor(3.0): a Python number. On a CUDA machine it stays on the host, too.
            number = func(*args, **kwargs)
            self.forget(number)
            return number
        if func is aten._local_scalar_dense.default:
            return _read_scalar(func, args[0])
        if torch.is_inference_mode_enabled() and func.namespace == "aten" and func._can_decompose():
            # Inference mode skips autograd's layer, where composite operators are usually taken apart.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if self._paused:
            return result
        label: Label | None = None
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor):
                if label is None:
                    label = Label("activations", "", func._schema.name.partition("::")[2])
                self.book(leaf, label)
        return result


def wraps(types: Iterable[type]) -> bool:
    """Whether some operand wraps other tensors (a quantised weight), which take memory where it takes none: what its
    class makes of the operator is what runs. DTensors are left alone: their local tensors come by themselves."""
    return any(hasattr(kind, "__tensor_flatten__") and kind.__name__ != "DTensor" for kind in types)


def _read_scalar(func: Any, tensor: torch.Tensor) -> Any:
    """``.item()``: a fake tensor has no value, so mask checks hear True and counters 1; real tensors answer."""
    try:
        return func(tensor)
    except DataDependentOutputException:
        return True if tensor.dtype is torch.bool else 1.0 if tensor.dtype.is_floating_point else 1


class SavedTensors(saved_tensors_hooks):  # type: ignore[misc]
    """Counts what autograd holds for backward, while it holds it.

    Every tensor that an operator saves inside the block is counted until its node lets go of it. A storage counts
    once however often it is saved; storages of ``exclude`` (parameters, buffers) do not count, nor, where a tracker is
    given, those that are not on its books (random seeds on the host).

    Hooks of an inner ``saved_tensors_hooks`` (checkpointing, offloading) hide what they pack, as they replace it.
    """

    def __init__(self, exclude: Iterable[torch.Tensor] = (), tracker: StorageTracker | None = None) -> None:
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._tracker = tracker
        self._excluded = {tensor.untyped_storage()._cdata for tensor in exclude}
        super().__init__(self._pack, _unpack)

    def __enter__(self) -> SavedTensors:
        super().__enter__()
        return self

    def _pack(self, tensor: torch.Tensor) -> _Held:
        # Detached: an operator's own result would otherwise hold its node, which holds the result.
        held = _Held(tensor.detach())
        self._held.add(held)
        return held

    def storages(self) -> dict[int, int]:
        """Address -> bytes of each distinct storage that is held now."""
        found = {}
        for held in self._held:
            storage = held.tensor.untyped_storage()
            if storage._cdata in self._excluded:
                continue
            if self._tracker is None or self._tracker.holds(held.tensor):
                found[storage._cdata] = storage.nbytes()
        return found

    @property
    def bytes(self) -> int:
        """Bytes of distinct storages that autograd holds now."""
        return sum(self.storages().values())


class _Held:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _unpack(held: _Held) -> torch.Tensor:
    return held.tensor


def saved_bytes(
    function: Callable[[], Result], exclude: Iterable[torch.Tensor] = (), tracker: StorageTracker | None = None
) -> tuple[Result, int]:
    """Run a function; its result, and the bytes of distinct storages that its graph holds for backward.

    The result must be kept for the figure to stay true: dropping it drops the graph.
    """
    with SavedTensors(exclude, tracker) as saved:
        result = function()
    return result, saved.bytes
