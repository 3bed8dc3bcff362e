"""The first step, whose activations leave the blocks that the optimizer's states are cut out of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.meta.tape import Label, Tape
from memlint.models import Recording
from memlint.tape.allocator import simulate
from memlint.tape.first_step import from_the_start
from memlint.tape.phases import find_peak
from memlint.tape.summary import estimate

MiB = 2**20


def training_tape(activation: int, state: int, evaluated: bool = False) -> Tape:
    tape = Tape()
    tape.mark("setup")
    tape.allocate(20 * MiB, Label("parameters", "model"))
    tape.allocate(state, Label("optimizer", "model", "exp_avg"))
    tape.mark("forward")
    saved = tape.allocate(activation, Label("activations", "model"))
    tape.allocate(2 * MiB, Label("activations", "", "batch"))  # alive until the next one comes
    tape.mark("backward")
    gradient = tape.allocate(20 * MiB, Label("gradients", "model"))
    tape.free(saved)
    tape.mark("optimizer_step")
    tape.free(gradient)
    if evaluated:
        tape.mark("evaluation")
        tape.free(tape.allocate(activation, Label("activations", "model")))
    return tape


def test_events_by_hand() -> None:
    """Parameters, the step, the states before its gradient goes, what it has left; then the same with states."""
    assert from_the_start(training_tape(60 * MiB, 40 * MiB)) == [0, 2, 3, 4, ~2, 1, ~4, ~3, 2, 3, 4, ~2, ~4]


def test_master_weights_are_there_before_the_first_step() -> None:
    tape = training_tape(60 * MiB, 40 * MiB)
    tape.labels[1] = Label("optimizer", "", "master weights")
    assert from_the_start(tape)[:3] == [0, 1, 2]


def test_an_evaluation_comes_once() -> None:
    assert from_the_start(training_tape(60 * MiB, 40 * MiB, evaluated=True))[-4:] == [~2, ~4, 5, ~5]


def test_states_take_the_blocks_of_activations() -> None:
    """States of 40 MiB sit in the segment of 60: in the second step activations need one of their own. With states
    first, they would have one of 40."""
    tape = training_tape(60 * MiB, 40 * MiB)
    steady, real = simulate(tape), simulate(tape, events=from_the_start(tape))
    assert steady.segments == (20 * MiB, 40 * MiB, 60 * MiB, 20 * MiB, 20 * MiB)
    assert real.segments == (20 * MiB, 60 * MiB, 20 * MiB, 20 * MiB, 60 * MiB)


def test_states_that_find_room_need_no_segment() -> None:
    """Two activations of 40 MiB leave room for states of 40, and the second step for one activation."""
    tape = Tape()
    tape.mark("setup")
    tape.allocate(40 * MiB, Label("optimizer", "model", "exp_avg"))
    tape.mark("forward")
    for _ in range(2):
        tape.free(tape.allocate(40 * MiB, Label("activations", "model")))
    tape.mark("optimizer_step")
    assert sum(simulate(tape).segments) == 80 * MiB
    assert sum(simulate(tape, events=from_the_start(tape)).segments) == 80 * MiB


def test_an_estimate_asks_for_it_where_the_tape_says_so() -> None:
    tape = training_tape(60 * MiB, 40 * MiB)
    plain = estimate(Recording(tape, 1, 1))
    tape.states_late = True
    late = estimate(Recording(tape, 1, 1))
    assert late.reserved_bytes - plain.reserved_bytes == 20 * MiB
    assert late.allocated_bytes == plain.allocated_bytes
    assert late.phases == plain.phases


@settings(max_examples=100, deadline=None)
@given(activation=st.integers(1, 100 * MiB), state=st.integers(1, 100 * MiB), evaluated=st.booleans())
def test_what_is_allocated_stays(activation: int, state: int, evaluated: bool) -> None:
    tape = training_tape(activation, state, evaluated)
    events = from_the_start(tape)
    alive: set[int] = set()
    for event in events:
        if event >= 0:
            assert event not in alive
            alive.add(event)
        else:
            alive.remove(~event)
    result = simulate(tape, events=events)
    assert find_peak(tape).peak_bytes <= result.allocated_peak_bytes <= result.reserved_peak_bytes
    assert len(alive) == len(tape.events) - 2 * sum(event < 0 for event in tape.events)


def by_hand(*steps: tuple[str, str] | int | str) -> Tape:
    """(component, name) allocates, ``~i`` frees storage i, a word begins a phase."""
    tape = Tape()
    for step in steps:
        if isinstance(step, str):
            tape.mark(step)
        elif isinstance(step, int):
            tape.free(~step)
        else:
            tape.allocate(MiB, Label(step[0], "model", step[1]))
    return tape


STATE, WEIGHT, KEPT = ("optimizer", "exp_avg"), ("parameters", ""), ("activations", "")


def test_the_very_first_storage_may_be_a_state() -> None:
    tape = by_hand("setup", STATE, WEIGHT, "forward", KEPT, "optimizer_step", ~2)
    assert from_the_start(tape) == [1, 2, 0, ~2, 2, ~2]


def test_what_is_made_and_freed_before_the_step_is_no_state() -> None:
    tape = by_hand("setup", STATE, ~0, STATE, WEIGHT, "forward", KEPT, "optimizer_step", ~3)
    assert from_the_start(tape) == [0, ~0, 2, 3, 1, ~3, 3, ~3]


def test_what_the_optimizer_takes_for_a_moment_is_no_state() -> None:
    tape = by_hand("setup", WEIGHT, ~0, STATE, "forward", KEPT, "optimizer_step", ("optimizer", "temporary"), ~3, ~2)
    assert from_the_start(tape) == [0, ~0, 2, 1, 3, ~3, ~2, 2, 3, ~3, ~2]


def test_what_the_first_step_leaves_is_freed_before_the_second() -> None:
    assert from_the_start(by_hand("forward", KEPT, KEPT, ~1)) == [0, 1, ~1, ~0, 0, 1, ~1]
    assert from_the_start(by_hand("forward", KEPT, ~0)) == [0, ~0, 0, ~0]


def test_a_tape_without_a_step_comes_once() -> None:
    assert from_the_start(by_hand(WEIGHT, STATE)) == [0, 1]
