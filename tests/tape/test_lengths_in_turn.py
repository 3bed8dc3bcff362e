"""The events of a run over steps of several lengths (memlint/tape/lengths.py), one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memlint.meta.tape import Label, Tape
from memlint.tape import lengths
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import DEFAULT
from memlint.units import MiB

COMPONENTS = {"w": "parameters", "m": "optimizer", "master": "optimizer", "g": "gradients"}
NAMES = {"master": "master weights"}


def tape(story: str, late: bool = False) -> Tape:
    """A tape that is written as ``setup +w4 forward +x8 -x optimizer_step``: phases, and what comes and goes, with its
    size in MiB; ``+c2@1`` comes on another stream."""
    made = Tape()
    made.states_late = late
    live: dict[str, int] = {}
    for word in story.split():
        if word[0] == "+":
            size, _, stream = word[1:].partition("@")
            name = size.rstrip("0123456789")
            label = Label(COMPONENTS.get(name, "activations"), "", NAMES.get(name, name))
            live[name] = made.allocate(int(size[len(name) :]) * MiB, label, int(stream or 0))
        elif word[0] == "-":
            made.free(live.pop(word[1:]))
        else:
            made.mark(word)
    return made


def told(run: Tape | None) -> str:
    """What comes and goes, by its size in MiB, once nothing is known to go that is not there."""
    assert run is not None
    live: set[int] = set()
    words = []
    for event in run.events:
        storage = event if event >= 0 else ~event
        assert (storage in live) == (event < 0)
        live ^= {storage}
        words.append(f"{'+' if event >= 0 else '-'}{run.sizes[storage] // MiB}")
    return " ".join(words)


@pytest.mark.parametrize(
    ("shorter", "longest", "run"),
    [
        pytest.param(
            ["setup +w1 forward +x2 -x optimizer_step"],
            "setup +w1 forward +x4 -x optimizer_step",
            "+1 +2 -2 +4 -4",
            id="a step after the other, over the same weights",
        ),
        pytest.param(
            ["forward +x2 -x optimizer_step", "forward +x3 -x optimizer_step"],
            "forward +x4 -x optimizer_step",
            "+2 -2 +3 -3 +4 -4",
            id="steps without anything that was there before",
        ),
        pytest.param(
            ["setup +t9 +w1 -t forward +x2 -x optimizer_step"],
            "setup +t9 +w1 -t forward +x4 -x optimizer_step",
            "+9 +1 -9 +2 -2 +4 -4",
            id="what goes before the first step is no state",
        ),
        pytest.param(
            ["setup +w1 forward +x2 backward +g1 -x optimizer_step -g"],
            "setup +w1 forward +x4 backward +g1 -x optimizer_step -g",
            "+1 +2 +1 -2 -1 +4 +1 -4 -1",
            id="gradients go in the optimizer's step",
        ),
        pytest.param(
            ["setup +w1 forward +x2 backward +g1 -x optimizer_step"],
            "setup +w1 forward +x4 backward +g1 -x optimizer_step",
            "+1 +2 +1 -2 -1 +4 +1 -4",
            id="what a shorter step leaves is gone before the next one",
        ),
        pytest.param(
            ["setup +w1 forward +x2 -x optimizer_step +o3 -o evaluation +e5 -e"],
            "setup +w1 forward +x4 -x optimizer_step +o3 -o evaluation +e6 -e",
            "+1 +2 -2 +3 -3 +4 -4 +3 -3 +6 -6",
            id="shorter steps are not evaluated",
        ),
        pytest.param(
            ["setup +w1 forward +x2 backward +g1 -x forward +y2 backward +t7 -y optimizer_step -t -g"],
            "setup +w1 forward +x4 backward +g1 -x forward +y4 backward +t7 -y optimizer_step -t -g",
            "+1 +2 +1 -2 -1 +4 +1 -4 +4 +7 -4 -7 -1",
            id="of the micro-batches of a shorter step the first, with what it leaves to the optimizer",
        ),
        pytest.param(
            ["setup +w1 forward +x2 forward +y3 backward -y backward -x optimizer_step"],
            "setup +w1 forward +x4 forward +y6 backward -y backward -x optimizer_step",
            "+1 +2 +3 -3 -2 +4 +6 -6 -4",
            id="all micro-batches of a step that does not take one after the other",
        ),
        pytest.param(
            ["setup +w1 forward +x2 -x"],
            "setup +w1 forward +x4 -x",
            "+1 +2 -2 +4 -4",
            id="steps without an optimizer",
        ),
        pytest.param(["setup +w1"], "setup +w1", "+1", id="nothing but weights"),
        pytest.param(
            ["setup +w1 +b2 forward +x2 -x -b optimizer_step", "setup +w1 +b2 forward +x3 -x -b optimizer_step"],
            "setup +w1 +b2 forward +x4 -x -b optimizer_step",
            "+1 +2 +2 -2 +3 -3 +4 -4 -2",
            id="what was there before goes once",
        ),
    ],
)
def test_a_run_is(shorter: Sequence[str], longest: str, run: str) -> None:
    assert told(lengths.in_turn([tape(step) for step in shorter], tape(longest))) == run


LATE = "setup +w1 +m2 +master3 forward +x{} backward +g1 -x optimizer_step +o5 -o -g"


@pytest.mark.parametrize(
    ("steps", "run"),
    [
        pytest.param([4], "+1 +3 +4 +1 -4 +2 +5 -5 -1 +6 +1 -6 +5 -5 -1", id="the first shorter one, and no other"),
        pytest.param(
            [4, 5],
            "+1 +3 +4 +1 -4 +2 +5 -5 -1 +5 +1 -5 +5 -5 -1 +6 +1 -6 +5 -5 -1",
            id="the first shorter one, and no other of two",
        ),
        pytest.param([], "+1 +3 +2 +6 +1 -6 +5 -5 -1", id="none, where there is no shorter one: before it"),
    ],
)
def test_states_that_an_optimizer_makes_in_its_first_step_come_in(steps: list[int], run: str) -> None:
    shorter = [tape(LATE.format(size), late=True) for size in steps]
    assert told(lengths.in_turn(shorter, tape(LATE.format(6), late=True))) == run


def test_states_that_are_there_from_the_start_are_there_before_the_first_step() -> None:
    run = lengths.in_turn([tape(LATE.format(4))], tape(LATE.format(6)))
    assert told(run) == "+1 +2 +3 +4 +1 -4 +5 -5 -1 +6 +1 -6 +5 -5 -1"


def test_each_storage_stays_on_its_stream() -> None:
    shorter = [tape(f"setup +w1@3 forward +x{size} +c{size + 10}@{size} -c -x optimizer_step") for size in (2, 4)]
    run = lengths.in_turn(shorter, tape("setup +w1@3 forward +x5 +c15@1 -c -x optimizer_step"))
    assert told(run) == "+1 +2 +12 -12 -2 +4 +14 -14 -4 +5 +15 -15 -5"
    assert run is not None
    on = {run.sizes[storage] // MiB: stream for storage, stream in run.streams.items()}
    assert {size: on[size] for size in (1, 12, 14, 15)} == {1: 3, 12: 2, 14: 4, 15: 1}
    assert not {2, 4, 5} & set(on)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param("setup +w2 forward +x2 -x optimizer_step", id="of another size"),
        pytest.param("setup +w1 +v1 forward +x2 -x optimizer_step", id="more in number"),
        pytest.param("forward +x2 -x optimizer_step", id="fewer in number"),
    ],
)
def test_steps_over_weights_are_no_run_that_are(other: str) -> None:
    longest = tape("setup +w1 forward +x4 -x optimizer_step")
    assert lengths.in_turn([tape(other)], longest) is None
    assert lengths.in_turn([tape("setup +w1 forward +x2 -x optimizer_step"), tape(other)], longest) is None


def test_steps_in_between_keep_all_that_a_run_is_made_of() -> None:
    half, whole = (
        tape(f"setup +w1 +m2 forward +x{size} +c{size}@1 -c -x optimizer_step", late=True) for size in (8, 16)
    )
    first, second, third = lengths.between(half, whole)
    assert first is half
    for step, size in ((second, 12), (third, 14)):
        assert [size // MiB for size in step.sizes] == [1, 2, size, size]
        kept = (step.events, step.marks, step.streams, step.labels, step.states_late)
        assert kept == (whole.events, whole.marks, whole.streams, whole.labels, True)


def test_what_is_reserved_on_a_card_is_no_more_than_it_has_as_long_as_the_run_is_served() -> None:
    steps = [tape(f"setup +w64 forward +x{size} -x optimizer_step") for size in (256, 512)]
    run = lengths.in_turn(steps, tape("setup +w64 forward +x1024 -x optimizer_step"))
    assert run is not None
    whole, live = (64 + 256 + 512 + 1024) * MiB, (64 + 1024) * MiB
    assert simulate(run, DEFAULT).allocated_peak_bytes == live
    for room, reserved in ((None, whole), (whole, whole), (live, live), (live - 1, whole), (0, whole), (-1, whole)):
        assert lengths.reserved(run, DEFAULT, room) == reserved
