"""The CUDA caching allocator's own history of a step -> what was alive at the peak, by the report's components.

Reads the dictionaries that ``torch.cuda.memory._snapshot()`` gives (documented in ``torch/cuda/memory.py``), before and
after the step, as plain data: nothing here needs a card, or torch. Whose a block is, is found in this order:

1. A block that was there before the step belongs to whoever's tensor lies in it (parameters, states, EMA, buffers).
2. A block that held a parameter's gradient at the end of a backward pass is a gradient.
3. A block that comes free when cuBLAS's workspaces are cleared is a workspace.
4. Everything else is what its phase makes: temporaries of the optimizer, or activations.

The allocator notes the text that was set with ``_set_memory_metadata``: the module at work, if the caller set it.
Sizes are rounded up to 512 bytes, as blocks are; what a block holds beyond that because it could not be split only the
counters know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.meta.tape import COMPONENTS, Label
from memlint.named_tuple import NamedTuple
from memlint.tape.allocator import round_size
from memlint.tape.breakdown import part_name
from memlint.tape.estimate import Component, Part

WORKSPACE = Label("workspace", "cuBLAS")
UNKNOWN = Label("buffers", "held by the code")


class Moment(NamedTuple):
    """Something that the run noted while it went, on the clock that the history is written by.

    time_us    microseconds since 1970
    phase      that begins; "" where none does
    gradients  address of a gradient's storage -> whose it is, at the end of a backward pass
    cleared    cuBLAS's workspaces are given back from now on, and the step is over
    """

    time_us: float
    phase: str = ""
    gradients: Mapping[int, Label] = {}
    cleared: bool = False


class History(NamedTuple):
    """peak_bytes  live at the peak, rounded; ``components`` add up to it
    phases      peak by phase
    phase       in which the peak lies
    """

    peak_bytes: int
    phase: str
    phases: dict[str, int]
    components: tuple[Component, ...]


class _Block:
    __slots__ = ("address", "freed_us", "label", "made_us", "size")

    def __init__(self, address: int, size: int, label: Label, made_us: float) -> None:
        self.address, self.size, self.label = address, round_size(size), label
        self.made_us, self.freed_us = made_us, float("inf")


def read(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    device: int,
    labels: Mapping[int, Label],
    moments: Sequence[Moment],
    max_entries: int,
) -> History | None:
    """The peak of one step; None where the history does not reach back to its begin.

    before, after  snapshots; the second's history begins with the first's
    labels         address of a storage -> whose it is, before the step
    moments        in order
    max_entries    of the history: a longer one has lost its beginning
    """
    entries = _trace(after, device)
    begin = len(_trace(before, device))
    if len(entries) >= max_entries or begin > len(entries):
        return None
    alive = {
        block.address: block
        for block in (
            _Block(address, size, labels.get(address, UNKNOWN), 0.0) for address, size in _blocks(before, device)
        )
    }
    every = list(alive.values())
    events: list[tuple[float, int, _Block]] = []  # (time, +1 or -1, block)
    for entry in entries[begin:]:
        action, time_us = entry["action"], float(entry["time_us"])
        if action == "alloc":
            phase = _phase(moments, time_us)
            component = "optimizer" if phase == "optimizer_step" else "activations"
            module = str(entry.get("user_metadata") or "")
            block = _Block(entry["addr"], entry["size"], Label(component, module), time_us)
            alive[block.address] = block
            every.append(block)
            events.append((time_us, 1, block))
        elif action == "free_requested":  # the counter of allocated bytes falls here, before the block can be used
            freed = alive.pop(entry["addr"], None)
            if freed is not None:
                freed.freed_us = time_us
                events.append((time_us, -1, freed))
    _name(every, moments)
    return _peak([block for block in every if not block.made_us], events, moments)


def _trace(snapshot: Mapping[str, Any], device: int) -> Sequence[Mapping[str, Any]]:
    traces = snapshot.get("device_traces") or []
    return traces[device] if device < len(traces) else []


def _blocks(snapshot: Mapping[str, Any], device: int) -> list[tuple[int, int]]:
    """(address, bytes asked for) of every block that a tensor uses."""
    found = []
    for segment in snapshot["segments"]:
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.append((block.get("address", address), block.get("requested_size", block["size"])))
            address += block["size"]
    return found


def _phase(moments: Sequence[Moment], time_us: float) -> str:
    phase = ""
    for moment in moments:
        if moment.time_us > time_us:
            break
        phase = moment.phase or phase
    return phase


def _name(blocks: Sequence[_Block], moments: Sequence[Moment]) -> None:
    """What is known of a block only after it was made."""
    at: dict[int, list[_Block]] = {}
    for block in blocks:
        at.setdefault(block.address, []).append(block)
    for moment in moments:
        for address, label in moment.gradients.items():
            for block in at.get(address, ()):
                if 0 < block.made_us <= moment.time_us < block.freed_us:
                    block.label = label
        if moment.cleared:
            for block in blocks:
                if block.made_us < moment.time_us <= block.freed_us < float("inf"):
                    block.label = WORKSPACE


def _peak(initial: Sequence[_Block], events: Sequence[tuple[float, int, _Block]], moments: Sequence[Moment]) -> History:
    end = next((moment.time_us for moment in moments if moment.cleared), float("inf"))
    first = moments[0].phase if moments else ""
    live = best = sum(block.size for block in initial)
    best_phase, best_at = first, 0  # events before the peak, the one that makes it included
    phases = {first: live}
    for at, (time_us, sign, block) in enumerate(events, 1):
        if time_us >= end:
            break
        live += sign * block.size
        phase = _phase(moments, time_us)
        phases[phase] = max(phases.get(phase, 0), live)
        if live > best:
            best, best_phase, best_at = live, phase, at
    held = dict.fromkeys(initial)
    for _, sign, block in events[:best_at]:
        if sign > 0:
            held[block] = None
        else:
            del held[block]
    return History(best, best_phase, phases, _components(list(held)))


def _components(blocks: Sequence[_Block]) -> tuple[Component, ...]:
    grouped: dict[str, dict[str, int]] = {}
    for block in blocks:
        sizes = grouped.setdefault(block.label.component, {})
        name = block.label.module if block.label in (WORKSPACE, UNKNOWN) else part_name(block.label.module)
        sizes[name] = sizes.get(name, 0) + block.size
    found = []
    for component in COMPONENTS:
        if component in grouped:
            parts = [Part(name, size) for name, size in grouped[component].items()]
            parts.sort(key=lambda part: (-part.size_bytes, part.name))
            found.append(Component(component, sum(part.size_bytes for part in parts), tuple(parts)))
    return tuple(found)
