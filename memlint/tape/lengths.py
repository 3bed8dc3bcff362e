"""Steps whose samples are longer and longer: what the shorter ones leave in the allocator.

Where rows are filled up to the longest of a batch only, a step asks for blocks of other sizes than the step before it.
A block that is free serves no request that is larger, and segments do not grow (``c10/cuda/CUDACachingAllocator.cpp``:
``get_free_block``, ``alloc_block``): a batch that is longer than all before it takes new segments beside those that are
free. What is allocated is the longest step's, reserved bytes are not, and rise now and then for as long as longer
batches come. The allocator gives free segments back before it fails, so a full card may be none too small.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlint.meta.tape import Tape
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import DEFAULT as DEFAULT
from memlint.tape.allocator_conf import AllocatorConf
from memlint.tape.first_step import EVALUATION, MASTERS, STEP

# Of the longest: about what the longest of 1, of 3 and of 7 batches is where lengths are spread evenly.
SHARES = (1 / 2, 3 / 4, 7 / 8)


def between(half: Tape, longest: Tape) -> list[Tape]:
    """Steps of the lengths of :data:`SHARES`, of which the first, half as long as the longest, is given: a size grows
    with the length, or with its square, where it is a quarter. The first alone where a step takes another way."""
    if half.events != longest.events:
        return [half]
    made = [half]
    for share in SHARES[1:]:
        step = Tape()
        for name in ("events", "marks", "streams", "labels", "states_late"):
            setattr(step, name, getattr(longest, name))
        step.sizes = [
            int(more * share * share) if 4 * less == more else int(less + (more - less) * (2 * share - 1))
            for less, more in zip(half.sizes, longest.sizes)
        ]
        made.append(step)
    return made


def in_turn(shorter: Sequence[Tape], longest: Tape) -> Tape | None:
    """The events of a run that takes the shorter steps, each after the other, and then the longest one as often as it
    comes in its own tape; None where they are not steps of one model. It has sizes, streams and events, and no labels.

    The states are the longest one's: all steps find them where they are.
    """
    states = _kept(longest)
    begin = _begin(longest)
    late = _late(longest, states)
    taken = set(late)
    run = Tape()
    run.sizes = list(longest.sizes)
    run.streams = dict(longest.streams)
    run.events = [event for event in longest.events[:begin] if event not in taken]
    for tape in shorter:
        if [tape.sizes[storage] for storage in _kept(tape)] != [longest.sizes[storage] for storage in states]:
            return None
        _take(run, tape, late)
        late = []
    run.events += [*late, *longest.events[begin:]]
    return run


def reserved(run: Tape, conf: AllocatorConf, room: int | None) -> int:
    """Most bytes that are reserved in such a run. ``room``: what a card has for it, which a run that is served there
    does not exceed; None for no card in particular."""
    if room is not None and room > 0:
        served = simulate(run, conf, room)
        if served.oom_index is None:
            return served.reserved_peak_bytes
    return simulate(run, conf).reserved_peak_bytes


def _take(run: Tape, tape: Tape, late: list[int]) -> None:
    """One step of a tape, at whose end nothing is left but the states, and all of these. ``late``: those that its
    optimizer makes."""
    offset = len(run.sizes)
    run.sizes += tape.sizes
    run.streams.update({offset + storage: stream for storage, stream in tape.streams.items()})
    step = _mark(tape, STEP)
    alive: dict[int, None] = {}
    for at in (*range(_begin(tape), _once(tape, step)), *range(step, _mark(tape, EVALUATION))):
        if at == step:
            run.events += late
            late = []
        event = tape.events[at]
        if event >= 0:
            alive[offset + event] = None
            run.events.append(offset + event)
        elif offset + ~event in alive:  # else it is a state, or one of a micro-batch that is left out
            del alive[offset + ~event]
            run.events.append(~(offset + ~event))
    run.events += [*late, *[~storage for storage in alive]]


def _once(tape: Tape, step: int) -> int:
    """The end of a step's first micro-batch: others of its length find what it leaves. The step itself where they are
    not one after the other."""
    phases = [(at, phase) for at, phase in tape.marks if phase != "setup"]
    if [phase for _, phase in phases[:3]] == ["forward", "backward", "forward"]:
        return phases[2][0]
    return step


def _begin(tape: Tape) -> int:
    return next((at for at, phase in tape.marks if phase != "setup"), len(tape.events))


def _mark(tape: Tape, name: str) -> int:
    return next((at for at, phase in tape.marks if phase == name), len(tape.events))


def _kept(tape: Tape) -> list[int]:
    """What is there before the first step, and stays."""
    setup = tape.events[: _begin(tape)]
    freed = {~event for event in setup if event < 0}
    return [event for event in setup if event >= 0 and event not in freed]


def _late(tape: Tape, states: Sequence[int]) -> list[int]:
    """Of these, what the optimizer makes in its first step."""
    if not tape.states_late:
        return []
    labels = tape.labels
    return [at for at in states if labels[at].component == "optimizer" and labels[at].name != MASTERS]
