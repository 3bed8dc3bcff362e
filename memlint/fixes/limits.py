"""How far a run may grow in its budget: the largest batch, the longest sample, the fewest devices, the smallest card.

Each answer comes with its bracket: what fits, and the next one that does not. Both are verdicts of whole estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.facts.spec import Name, UnknownModel
from memlint.fixes.levers import fewer
from memlint.named_tuple import NamedTuple
from memlint.plugin import Run
from memlint.tape.estimate import FITS, Estimate

MAX_SIZE = 2**24  # of what is searched: no batch or sample is larger
MAX_DEVICES = 1024


class End(NamedTuple):
    """One end of a bracket: a value, its estimate, and why there is none."""

    value: str
    estimate: Estimate | None
    reason: str = ""


class Bracket(NamedTuple):
    """``inside`` fits, ``outside`` is its neighbour and does not; None where there is none."""

    what: str
    inside: End | None
    outside: End | None


def largest_batch(run: Run) -> Bracket | None:
    """The micro batch up to which the run fits, all else as it is."""
    return _largest(run, "micro batch", "micro_batch_size", lambda size: {"micro_batch_size": size})


def longest_sequence(run: Run) -> Bracket | None:
    """The length of the longest sample up to which the run fits, in tokens."""

    def changes(size: int) -> dict[Name, Any]:
        lever = fewer(run, "sequence_length", size)
        return {**lever.changes, **lever.implied}

    return _largest(run, "sequence length", "sequence_length", changes)


def fewest_devices(run: Run) -> Bracket | None:
    """The number of cards of this kind from which the run fits, sharing the work as it does."""
    if run.budget_bytes is None:
        return None

    def tried(size: int) -> End:
        return _end(run, size, {"device_count": size, "world_size": size})

    return _smallest("cards", tried)


def _largest(run: Run, what: str, name: Name, changes: Callable[[int], dict[Name, Any]]) -> Bracket | None:
    now = run.value(name)
    if not isinstance(now, int) or now < 1 or run.budget_bytes is None:
        return None
    ends: dict[int, End] = {}

    def fits(size: int) -> bool:
        if size not in ends:
            ends[size] = _end(run, size, changes(size))
        return _is_inside(ends[size])

    if fits(now):
        low, high = now, 2 * now
        while fits(high):
            if high >= MAX_SIZE:
                return Bracket(what, ends[high], None)
            low, high = high, 2 * high
    else:
        high, low = now, now // 2
        while low and not fits(low):
            low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Bracket(what, ends[low] if low else None, ends[high])


def _smallest(what: str, tried: Callable[[int], End]) -> Bracket:
    """Of 1, 2, 4 and so on, which is how machines come, and what batches and heads divide by."""
    before: End | None = None
    size = 1
    while size <= MAX_DEVICES:
        end = tried(size)
        if _is_inside(end):
            return Bracket(what, end, before)
        before = end
        size *= 2
    return Bracket(what, None, before)


def _end(run: Run, size: int, changes: dict[Name, Any]) -> End:
    try:
        spec = run.spec.with_facts(changes)
        found = run.fits_as(spec)
        if found is not None:
            return End(f"{size:,}", found)
        return End(f"{size:,}", run.estimate_as(spec), "does not surely fit")
    except UnknownModel as error:
        return End(f"{size:,}", None, str(error))


def _is_inside(end: End) -> bool:
    return end.estimate is not None and not end.reason


def smallest_card(run: Run, on: Callable[[str], Estimate]) -> Bracket | None:
    """The card with the least memory on which the run fits, as many of them as it has now.

    on  name of a card -> the run's estimate there
    """
    from memlint.data.catalogue import cards

    before: End | None = None
    for card in sorted(cards(), key=lambda card: card.usable_bytes):
        if run.estimate is not None and card.usable_bytes < run.estimate.allocated_bytes:
            continue
        try:
            found = on(card.name)
        except UnknownModel as error:
            return Bracket("card", None, End(card.name, None, str(error)))
        if found.verdict(card.usable_bytes) == FITS:
            return Bracket("card", End(card.name, found), before)
        before = End(card.name, found, "does not surely fit")
    return Bracket("card", None, before)
