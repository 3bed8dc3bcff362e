"""Peaks and phases, by hand and against a recount from scratch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.meta.tape import Label, Tape
from memlint.tape.phases import Peak, find_peak, live_storages, rounded_sizes
from tests.effort import counted_lines

LABEL = Label("activations", "model")


def tape_of(*steps: int | str) -> Tape:
    """A number allocates that many bytes, ``~i`` frees storage i, a word begins a phase."""
    tape = Tape()
    for step in steps:
        if isinstance(step, str):
            tape.mark(step)
        elif step >= 0:
            tape.allocate(step, LABEL)
        else:
            tape.free(~step)
    return tape


@pytest.mark.parametrize(
    ("steps", "peak"),
    [
        pytest.param((), Peak(0, -1, "setup", {"setup": 0}), id="an empty tape has no peak"),
        pytest.param((1,), Peak(512, 0, "setup", {"setup": 512}), id="one byte is a block of 512"),
        pytest.param((0, 0), Peak(0, -1, "setup", {"setup": 0}), id="empty storages take nothing"),
        pytest.param((512, 513), Peak(1536, 1, "setup", {"setup": 1536}), id="each storage is rounded by itself"),
        pytest.param((1024, ~0, 1024), Peak(1024, 0, "setup", {"setup": 1024}), id="a tie goes to the first"),
        pytest.param(
            ("forward", 1024, "backward", 512, ~0),
            Peak(1536, 1, "backward", {"forward": 1024, "backward": 1536}),
            id="what a phase inherits counts",
        ),
        pytest.param(
            ("forward", 1024, "optimizer_step", ~0),
            Peak(1024, 0, "forward", {"forward": 1024, "optimizer_step": 1024}),
            id="a phase that only frees begins at its peak",
        ),
        pytest.param(
            ("forward", 512, ~0, "backward", "forward", 1024, ~1),
            Peak(1024, 2, "forward", {"forward": 1024, "backward": 0}),
            id="a phase that comes again is one phase",
        ),
        pytest.param(
            (4096, "forward", 512), Peak(4608, 1, "forward", {"setup": 4096, "forward": 4608}), id="before any mark"
        ),
        pytest.param(
            ("setup", 512, "forward"), Peak(512, 0, "setup", {"setup": 512, "forward": 512}), id="an empty last phase"
        ),
    ],
)
def test_find_peak(steps: tuple[int | str, ...], peak: Peak) -> None:
    assert find_peak(tape_of(*steps)) == peak


def test_live_storages_come_in_order_of_allocation() -> None:
    tape = tape_of(512, 512, 512, ~1, 512, ~0)
    assert live_storages(tape, len(tape.events) - 1) == [2, 3]
    assert live_storages(tape, 2) == [0, 1, 2]
    assert live_storages(tape, -1) == []


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    steps: list[int | str] = []
    live: list[int] = []
    allocated = 0
    for _ in range(draw(st.integers(0, 40))):
        choice = draw(st.integers(0, 9))
        if choice == 0:
            steps.append(draw(st.sampled_from(["forward", "backward", "optimizer_step"])))
        elif live and choice < 5:
            steps.append(~live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            steps.append(draw(st.integers(0, 5000)))
            live.append(allocated)
            allocated += 1
    return tape_of(*steps)


@given(tape=tapes())
def test_peaks_are_those_of_a_recount_at_every_event(tape: Tape) -> None:
    sizes = rounded_sizes(tape)
    after = [sum(sizes[storage] for storage in live_storages(tape, event)) for event in range(len(tape.events))]
    peak = find_peak(tape)
    assert peak.peak_bytes == max(after, default=0)
    assert peak.event == (after.index(peak.peak_bytes) if peak.peak_bytes else -1)
    assert peak.peak_bytes == max(peak.phases.values())
    spans = [(0, "setup"), *tape.marks]
    for name, highest in peak.phases.items():
        within = [0]
        for (begin, span), (end, _) in zip(spans, [*spans[1:], (len(tape.events), "")]):
            if span == name:
                within += [after[begin - 1] if begin else 0, *after[begin:end]]
        assert highest == max(within)
    if peak.event >= 0:
        assert tape.events[peak.event] >= 0, "a peak is reached by an allocation"
        assert [name for begin, name in spans if begin <= peak.event][-1] == peak.phase


def test_an_event_costs_a_line_or_two() -> None:
    tape = tape_of(*(size * 1000 for size in range(2500)), *(~index for index in range(2500)))
    with counted_lines() as lines:
        find_peak(tape)
    assert lines.ran < 2 * len(tape.events)
