"""Folded tapes: unfolded, they are the tapes of the whole model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.meta.fold import fold
from memlint.meta.tape import Label, Tape
from tests.tape.layered import KIB, MIB, Run

SIZES = st.sampled_from((0, 4, 512, 700, 300 * KIB, MIB, MIB + 1, 2 * MIB, 9 * MIB, 20 * MIB, 33 * MIB))
RUNS = st.builds(
    Run,
    weights=st.lists(SIZES, min_size=1, max_size=3).map(tuple),
    kept=st.lists(SIZES, max_size=3).map(tuple),
    passing=st.lists(SIZES, max_size=5).map(tuple),
    between=SIZES,
    fetched=st.sampled_from((0, 8 * MIB, 24 * MIB)),
    gradients=st.booleans(),
    micro_batches=st.sampled_from((1, 2)),
    backward=st.lists(SIZES, max_size=2).map(tuple),
)


@settings(max_examples=80, deadline=None)
@given(RUNS, st.integers(3, 6), st.integers(7, 30))
def test_what_is_folded_unfolds_to_the_tape_of_the_whole_model(run: Run, short: int, layers: int) -> None:
    folded = fold(run.tape(short), run.tape(short + 1), layers - short)
    if folded is None:
        return  # recorded in full: the next test says when that may not be
    whole, unfolded = run.tape(layers), folded.unfold()
    assert unfolded.events == whole.events
    assert unfolded.sizes == whole.sizes
    assert unfolded.marks == whole.marks
    assert unfolded.streams == whole.streams


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(), id="gradients stay until the optimizer has stepped"),
        pytest.param(Run(gradients=False, micro_batches=2), id="two micro-batches"),
        pytest.param(Run(fetched=24 * MIB), id="layers are fetched ahead"),
        pytest.param(Run(weights=(4096, 4096, 4096)), id="parameters of one size"),
    ],
)
def test_loops_over_layers_are_found(run: Run) -> None:
    folded = fold(run.tape(5), run.tape(6), 95)
    assert folded is not None
    assert sum(len(piece.events) for piece in folded.pieces) < len(run.tape(6).events)
    assert folded.unfold().events == run.tape(100).events


def test_a_number_that_depends_on_the_depth_is_not_folded() -> None:
    def tape(layers: int) -> Tape:
        made = Run().tape(layers)
        made.free(made.allocate(layers * MIB, Label("optimizer", "", "flat")))
        return made

    assert fold(tape(5), tape(6), 20) is None


def test_layers_that_differ_are_not_folded() -> None:
    one, two = Run().tape(5), Run(passing=(8 * MIB,)).tape(6)
    assert fold(one, two, 20) is None


def test_what_is_counted_over_layers_is_counted_on() -> None:
    one, two = Run().tape(5), Run().tape(6)
    one.saved_bytes, two.saved_bytes = 100, 110
    one.probabilities_kept_bytes, two.probabilities_kept_bytes = 7, 7
    folded = fold(one, two, 20)
    assert folded is not None
    assert (folded.saved_bytes, folded.probabilities_kept_bytes) == (300, 7)
    assert folded.unfold().saved_bytes == 300
