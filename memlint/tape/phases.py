"""Peaks: how many bytes are live after each event, and where within the step they are most."""

from __future__ import annotations

from itertools import accumulate

from memlint.meta.tape import Tape
from memlint.named_tuple import NamedTuple

ROUNDING_BYTES = 512  # kMinBlockSize in c10/core/AllocatorConfig.h (torch 2.13): no block is finer
SMALL_BYTES = 1 << 20  # kSmallSize: larger blocks are never in one segment with smaller ones
SETUP = "setup"  # the phase of everything before the first mark


class Peak(NamedTuple):
    """The most bytes live at once.

    peak_bytes  sum of the live storages, each rounded up to 512 bytes
    event       position in ``tape.events`` of the allocation that first reaches it; -1 if there is none
    phase       the phase that this event belongs to
    phases      most bytes live within each phase, in order of appearance; what a phase inherits counts
    """

    peak_bytes: int
    event: int
    phase: str
    phases: dict[str, int]


def rounded_sizes(tape: Tape) -> list[int]:
    """Bytes by storage, each rounded up to whole 512-byte blocks; an empty storage takes none."""
    return list(map(_rounded(tape).__getitem__, tape.sizes))


def _rounded(tape: Tape) -> dict[int, int]:
    """Of each size that occurs: tens of thousands of storages have some dozens."""
    mask = -ROUNDING_BYTES
    return {size: (size + ROUNDING_BYTES - 1) & mask for size in set(tape.sizes)}


def find_peak(tape: Tape) -> Peak:
    """Walk the events once and return the peak of the whole tape and of each phase."""
    sizes = _rounded(tape)
    freed = {size: -rounded for size, rounded in sizes.items()}
    # An event is an index or its complement, and ~i counts from the end of a list: with the negated sizes
    # appended backwards, the same subscript reads +size for an allocation and -size for a free.
    signed = list(map(sizes.__getitem__, tape.sizes))
    signed += map(freed.__getitem__, reversed(tape.sizes))
    live = list(accumulate(map(signed.__getitem__, tape.events), initial=0))

    phases: dict[str, int] = {}
    peak_bytes, index, phase = 0, -1, SETUP
    for begin, end, name in _spans(tape):
        highest = max(live[begin : end + 1])  # live[begin] is what the phase inherits
        phases[name] = max(phases.get(name, 0), highest)
        if highest > peak_bytes:
            peak_bytes, phase = highest, name
            index = live.index(highest, begin, end + 1) - 1
    return Peak(peak_bytes, index, phase, phases)


def first_pass_bytes(tape: Tape) -> int:
    """Most bytes live until the second micro-batch begins; 0 where there is none."""
    begins = [at for at, name in tape.marks if name == "forward"]
    if len(begins) < 2:
        return 0
    sizes = rounded_sizes(tape)
    return max(accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in tape.events[: begins[1]]))


def packed_bytes(tape: Tape) -> int:
    """What the allocator holds at least, however large its segments are: blocks of two streams, or small and large
    ones, never share one (:mod:`memlint.tape.allocator`), so the peaks of each add up."""
    sizes = rounded_sizes(tape)
    pools = [2 * tape.streams.get(storage, 0) + (size > SMALL_BYTES) for storage, size in enumerate(sizes)]
    live = dict.fromkeys(pools, 0)
    peaks = dict(live)
    for event in tape.events:
        if event >= 0:
            pool = pools[event]
            live[pool] += sizes[event]
            if live[pool] > peaks[pool]:
                peaks[pool] = live[pool]
        else:
            live[pools[~event]] -= sizes[~event]
    return sum(peaks.values())


def live_storages(tape: Tape, index: int) -> list[int]:
    """Numbers of the storages that are live right after ``tape.events[index]``, in order of allocation."""
    live: dict[int, None] = {}
    for event in tape.events[: index + 1]:
        if event >= 0:
            live[event] = None
        else:
            del live[~event]
    return list(live)


def _spans(tape: Tape) -> list[tuple[int, int, str]]:
    """(first event, one past the last, phase), in order; a phase that holds no event is kept."""
    marks = tape.marks
    spans = []
    first = marks[0][0] if marks else len(tape.events)
    if first or not marks:
        spans.append((0, first, SETUP))
    for number, (begin, name) in enumerate(marks):
        end = marks[number + 1][0] if number + 1 < len(marks) else len(tape.events)
        spans.append((begin, end, name))
    return spans
