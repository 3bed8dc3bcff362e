"""Loops that are written by hand: which turn of one reaches the peak, and what is live then."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from memlint.meta.fold import Folded, Piece
from memlint.meta.tape import Label, Tape
from memlint.tape import folded as pieces
from memlint.tape import phases
from memlint.tape.breakdown import break_down
from memlint.units import KiB, MiB

LAYERS = 4


class Step(NamedTuple):
    """Four layers. On the way forth each keeps something; on the way back each makes its gradient, then something that
    passes, and lets go what it kept. Sizes in bytes."""

    kept: int
    gradient: int
    passing: int = 0
    stream: int = 0  # of what passes

    def tape(self) -> Folded:
        layer = [Label(name, "layers.0.mlp") for name in ("activations", "gradients", "activations")]
        there, gradient, passing = layer
        forth = Piece(
            phase="forward",
            begins=True,
            times=LAYERS,
            events=[0],
            steps=[1],
            deltas=[self.kept],
            first=0,
            sizes=[self.kept],
            streams={},
            labels=[there],
        )
        back = Piece(
            phase="backward",
            begins=True,
            times=LAYERS,
            events=[LAYERS, LAYERS + 1, ~(LAYERS + 1), ~(LAYERS - 1)],
            steps=[2, 2, -2, 1],
            deltas=[self.gradient, self.passing, -self.passing, -self.kept],
            first=LAYERS,
            sizes=[self.gradient, self.passing],
            streams={1: self.stream} if self.stream else {},
            labels=[gradient, passing, passing, there],
        )
        return _folded(forth, back)


def _folded(*made: Piece) -> Folded:
    tape = Folded(list(made), Tape(), Tape(), 0)
    tape.streams = any(piece.streams for piece in made)
    return tape


def _event(tape: Folded, peak: pieces.FoldedPeak) -> int:
    """Which of the whole tape's events it is."""
    before = sum(len(piece.events) * piece.times for piece in tape.pieces[: peak.piece])
    return before + peak.turn * len(tape.pieces[peak.piece].events) + peak.place


@pytest.mark.parametrize(
    ("step", "piece", "turn", "place", "peak"),
    [
        pytest.param(Step(4 * MiB, 4 * MiB, MiB), 1, 0, 1, 21 * MiB, id="the first of turns that leave nothing behind"),
        pytest.param(Step(4 * MiB, 5 * MiB, MiB), 1, 3, 1, 25 * MiB, id="the last of turns that leave more and more"),
        pytest.param(Step(4 * MiB, 3 * MiB, MiB), 1, 0, 1, 20 * MiB, id="the first of turns that leave less and less"),
        pytest.param(Step(4 * MiB, 4 * MiB), 1, 0, 0, 20 * MiB, id="where the gradient is made, if nothing passes"),
        pytest.param(Step(4 * MiB, 0), 0, 3, 0, 16 * MiB, id="before a loop that only lets go"),
        pytest.param(Step(512, 512, 512), 1, 0, 1, 6 * 512, id="one block each"),
        pytest.param(Step(1, 1, 1), 1, 0, 1, 6 * 512, id="one byte each, in blocks of 512"),
        pytest.param(Step(513, 1, 1), 1, 0, 1, 10 * 512, id="what is a block and a byte takes two"),
    ],
)
def test_a_peak_is_reached_in(step: Step, piece: int, turn: int, place: int, peak: int) -> None:
    tape = step.tape()
    found, whole = pieces.find_peak(tape), tape.unfold()
    assert (found.peak_bytes, found.piece, found.turn, found.place) == (peak, piece, turn, place)
    expected = phases.find_peak(whole)
    assert (found.peak_bytes, found.phase, found.phases) == (expected.peak_bytes, expected.phase, expected.phases)
    assert _event(tape, found) == expected.event
    assert pieces.break_down(tape, found) == break_down(whole, expected.event)


def test_what_is_live_in_the_first_of_equal_turns_is_what_none_of_them_has_let_go() -> None:
    tape = Step(4 * MiB, 4 * MiB, MiB).tape()
    live = {part.name: part.size_bytes for part in pieces.break_down(tape, pieces.find_peak(tape))}
    assert live == {"activations": 17 * MiB, "gradients": 4 * MiB}


@pytest.mark.parametrize(
    ("step", "packed"),
    [
        pytest.param(Step(4 * MiB, 4 * MiB, 8 * MiB), 28 * MiB, id="all in one pool, in the first turn"),
        pytest.param(Step(4 * MiB, 8 * MiB, 4 * MiB), 40 * MiB, id="all in one pool, in the last turn"),
        pytest.param(Step(4 * MiB, 2 * MiB, 8 * MiB), 26 * MiB, id="fewer bytes from turn to turn"),
        pytest.param(Step(4 * MiB, 4 * MiB, 8 * MiB, stream=2), 28 * MiB, id="what passes on another stream"),
        pytest.param(Step(4 * MiB, 5 * MiB, 8 * MiB, stream=2), 32 * MiB, id="two streams, one of which grows"),
        pytest.param(Step(4 * MiB, 5 * MiB, 8 * MiB), 32 * MiB, id="as much on one stream"),
        pytest.param(Step(4 * MiB, MiB, 512 * KiB), 20 * MiB + 512 * KiB, id="small blocks apart"),
        pytest.param(Step(MiB, MiB, MiB), 6 * MiB, id="a mebibyte is small"),
        pytest.param(Step(MiB + 1, MiB, 0), 4 * (MiB + 512) + 4 * MiB, id="a byte more is not"),
        pytest.param(Step(4 * MiB, MiB, 2 * MiB), 22 * MiB, id="small blocks that stay"),
    ],
)
def test_packed_bytes_are_the_peaks_of_all_pools(step: Step, packed: int) -> None:
    tape = step.tape()
    assert phases.packed_bytes(tape.unfold()) == packed
    assert pieces.packed_bytes(tape) == packed


def test_the_first_pass_of_a_loop_over_micro_batches_ends_where_the_second_one_begins() -> None:
    forth, back = Step(4 * MiB, 4 * MiB, MiB).tape().pieces
    again = forth._replace(events=[12], first=12, deltas=[9 * MiB], sizes=[9 * MiB])
    tape = _folded(forth, back, again)
    assert pieces.first_pass_bytes(tape) == phases.first_pass_bytes(tape.unfold()) == 21 * MiB
    assert pieces.first_pass_bytes(_folded(forth, back)) == 0
    assert pieces.find_peak(tape).peak_bytes == (16 + 36) * MiB
