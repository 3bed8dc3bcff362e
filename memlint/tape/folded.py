"""What :mod:`memlint.tape.phases`, ``breakdown`` and ``allocator`` say of a tape, of one in pieces.

The figures are those of the whole tape, to the byte: sums over turns are products.
"""

from __future__ import annotations

from memlint.meta.dims import Symbols
from memlint.meta.fold import Folded, Piece
from memlint.named_tuple import NamedTuple
from memlint.tape.breakdown import MODULE_DEPTH, Terms, part_name, rank
from memlint.tape.estimate import Component, Part
from memlint.tape.phases import ROUNDING_BYTES, SETUP, SMALL_BYTES


class FoldedPeak(NamedTuple):
    """As :class:`memlint.tape.phases.Peak`; ``piece``, ``turn`` and ``place`` say which event reaches it."""

    peak_bytes: int
    piece: int
    turn: int
    place: int
    phase: str
    phases: dict[str, int]


def _rounded(size: int) -> int:
    if size >= 0:
        return (size + ROUNDING_BYTES - 1) & -ROUNDING_BYTES
    return -((ROUNDING_BYTES - 1 - size) & -ROUNDING_BYTES)


def find_peak(tape: Folded) -> FoldedPeak:
    """As :func:`memlint.tape.phases.find_peak`."""
    peak, where, phase, phases = _highest(tape.pieces)
    return FoldedPeak(peak, *where, phase, phases)


def _highest(pieces: list[Piece]) -> tuple[int, tuple[int, int, int], str, dict[str, int]]:
    phases: dict[str, int] = {}
    peak, where, phase = 0, (-1, 0, 0), SETUP
    live = 0
    for number, piece in enumerate(pieces):
        name = piece.phase or SETUP
        if not piece.events and piece.phase is None:
            continue
        if piece.begins:
            phases[name] = max(phases.get(name, 0), live)
            if live > peak:
                peak, where, phase = live, (number, 0, -1), name
        highest, at, now = 0, -1, 0
        for place, delta in enumerate(map(_rounded, piece.deltas)):
            now += delta
            if now > highest:
                highest, at = now, place
        if at >= 0:
            turn = piece.times - 1 if now > 0 else 0
            top = live + turn * now + highest
            phases[name] = max(phases[name], top)
            if top > peak:
                peak, where, phase = top, (number, turn, at), name
        live += now * piece.times
    return peak, where, phase, phases


def first_pass_bytes(tape: Folded) -> int:
    """As :func:`memlint.tape.phases.first_pass_bytes`."""
    begins = [number for number, piece in enumerate(tape.pieces) if piece.begins and piece.phase == "forward"]
    return _highest(tape.pieces[: begins[1]])[0] if len(begins) > 1 else 0


def packed_bytes(tape: Folded) -> int:
    """As :func:`memlint.tape.phases.packed_bytes`."""
    live: dict[int, int] = {}
    peaks: dict[int, int] = {}
    streams: dict[int, int] = {}
    for piece in tape.pieces:
        for place, stream in piece.streams.items():
            for turn in range(piece.times):
                streams[piece.first + turn * len(piece.sizes) + place] = stream
    for piece in tape.pieces:
        change: dict[int, int] = {}
        highest: dict[int, int] = {}
        for event, delta in zip(piece.events, map(_rounded, piece.deltas)):
            small = abs(delta) <= SMALL_BYTES
            pool = 2 * (streams.get(event if event >= 0 else ~event, 0) if streams else 0) + (not small)
            now = change[pool] = change.get(pool, 0) + delta
            if now > highest.get(pool, 0):
                highest[pool] = now
        for pool, now in change.items():
            before = live.get(pool, 0)
            top = before + highest.get(pool, 0) + max(now, 0) * (piece.times - 1)
            peaks[pool] = max(peaks.get(pool, 0), top)
            live[pool] = before + now * piece.times
    return sum(peaks.values())


def _formula(terms: Terms | None) -> tuple[str, Symbols]:
    return ("", ()) if terms is None else terms.written()


def break_down(tape: Folded, peak: FoldedPeak, depth: int = MODULE_DEPTH) -> tuple[Component, ...]:
    """Components of what is live at the peak, as :func:`memlint.tape.breakdown.break_down` has them."""
    names: dict[str, str] = {}
    found: dict[str, dict[str, list[int]]] = {}
    formulas: dict[tuple[str, str], Terms] = {}
    for number, piece in enumerate(tape.pieces[: peak.piece + 1]):
        times = piece.times
        for place, (event, label, delta) in enumerate(zip(piece.events, piece.labels, piece.deltas)):
            if number == peak.piece:
                times = peak.turn + (place <= peak.place)
            module = label.module
            name = names.get(module)
            if name is None:
                name = names[module] = part_name(module, depth)
            parts = found.setdefault(label.component, {})
            known = parts.get(name)
            if known is None:
                known = parts[name] = [0, 0]
            known[0] += times if event >= 0 else -times
            known[1] += times * _rounded(delta)
            if piece.shapes:
                terms = formulas.setdefault((label.component, name), Terms())
                terms.add(piece.shapes[place], abs(delta), times if event >= 0 else -times)
    components = []
    for component in sorted(found, key=rank):
        live = [
            Part(name, held[1], *_formula(formulas.get((component, name))), tape.titles.get(name, ""))
            for name, held in found[component].items()
            if held[0]
        ]
        live.sort(key=lambda part: (-part.size_bytes, part.name))
        total = sum(part.size_bytes for part in live)
        if total:
            components.append(Component(component, total, tuple(live)))
    return tuple(components)
