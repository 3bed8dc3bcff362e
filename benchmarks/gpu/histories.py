"""The allocator's own history as a sequence that the simulation can be held against.

``torch.cuda.memory._snapshot()`` lists every allocation, free and segment since recording began. Of these a fixture
keeps what decides: the sizes asked for and the order (a size allocates, ``~i`` frees the i-th allocation), and what was
reserved after each event at which that changed, beside the peaks that PyTorch's counters had at the end. This is the
format of the traces in ``tests/tape/fixtures``, with the reserved bytes run-length encoded.
"""

from __future__ import annotations

from typing import Any

from memlint.meta.tape import Label, Tape
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import parse_conf

MAX_ENTRIES = 2_000_000  # of the history; what is more pushes the beginning out
PREFIXES = 40  # of a sequence, replayed each by itself

GROWING, SHRINKING = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


class HistoryError(ValueError):
    """A history that cannot be replayed: it does not begin at an empty allocator, or has several streams."""


def sequence_of(entries: list[dict[str, Any]], **known: Any) -> dict[str, Any]:
    """A history (``snapshot["device_traces"][0]``) as a sequence.

    known  what the fixture says besides: ``conf`` (PYTORCH_ALLOC_CONF), ``capacity`` (bytes of the card) and ``peaks``
           ([allocated, reserved]) are what :func:`differences` needs
    Raises HistoryError.
    """
    if len(entries) >= MAX_ENTRIES:
        raise HistoryError(f"{len(entries)} entries: the first ones were overwritten")
    events: list[int] = []
    changes: list[list[int]] = []
    numbers: dict[int, int] = {}  # address -> number of the allocation that lies there
    streams: set[int] = set()
    allocations = reserved = told = 0
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), entry.get("size", 0)
        if action in GROWING:
            reserved += size
        elif action in SHRINKING:
            reserved -= size
        elif action == "alloc":
            streams.add(entry.get("stream", 0))
            numbers[address] = allocations
            allocations += 1
            events.append(size)
        elif action == "free_completed":
            if address not in numbers:
                raise HistoryError("memory is freed that was allocated before recording began")
            events.append(~numbers.pop(address))
        else:  # free_requested (the same free again), oom, snapshot, user_defined
            continue
        if reserved != told and action in ("alloc", "free_completed"):
            changes.append([len(events) - 1, reserved])
            told = reserved
    if len(streams) > 1:
        raise HistoryError(f"{len(streams)} streams, each with pools of its own")
    return {"conf": "", "capacity": None, **known, "events": events, "reserved": changes}


def tape_of(events: list[int]) -> Tape:
    tape = Tape()
    for event in events:
        if event >= 0:
            tape.allocate(event, Label("activations", ""))
        else:
            tape.free(~event)
    return tape


def differences(sequence: dict[str, Any]) -> list[str]:
    """What the simulated allocator does otherwise than the real one did; [] where they agree to the byte."""
    conf, capacity = parse_conf(sequence["conf"]), sequence["capacity"]
    events, changes = sequence["events"], sequence["reserved"]
    found = []
    result = simulate(tape_of(events), conf, capacity)
    if result.oom_index is not None:
        return [f"event {result.oom_index} finds no memory"]
    peaks = [result.allocated_peak_bytes, result.reserved_peak_bytes]
    for name, ours, theirs in zip(("allocated", "reserved"), peaks, sequence["peaks"]):
        if ours != theirs:
            found.append(f"{name} peak: {ours} simulated, {theirs} measured")
    every = max(1, len(changes) // PREFIXES)
    for at, reserved in changes[::every]:
        held = sum(simulate(tape_of(events[: at + 1]), conf, capacity).segments)
        if held != reserved:
            found.append(f"after event {at}: {held} bytes reserved, {reserved} measured")
    return found
