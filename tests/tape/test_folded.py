"""A tape in pieces has the peaks, the parts and the reserved bytes of the whole tape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.meta.fold import Folded, fold
from memlint.meta.tape import Label, Tape
from memlint.tape import folded as pieces
from memlint.tape import phases
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import DEFAULT, AllocatorConf, parse_conf
from memlint.tape.breakdown import break_down
from tests.meta.test_fold import RUNS
from tests.tape.layered import MIB, Run


def folded(run: Run, layers: int) -> Folded:
    found = fold(run.tape(5), run.tape(6), layers - 5)
    assert found is not None
    return found


def same_as_whole(run: Run, tape: Folded, layers: int, conf: AllocatorConf = DEFAULT) -> None:
    whole = run.tape(layers)
    peak, expected = pieces.find_peak(tape), phases.find_peak(whole)
    assert (peak.peak_bytes, peak.phase, peak.phases) == (expected.peak_bytes, expected.phase, expected.phases)
    assert pieces.break_down(tape, peak) == break_down(whole, expected.event)
    assert pieces.packed_bytes(tape) == phases.packed_bytes(whole)
    assert simulate(tape.unfold(), conf) == simulate(whole, conf)


@settings(max_examples=120, deadline=None)
@given(RUNS, st.integers(8, 40))
def test_figures_are_those_of_the_whole_tape(run: Run, layers: int) -> None:
    tape = fold(run.tape(5), run.tape(6), layers - 5)
    if tape is not None:
        same_as_whole(run, tape, layers)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(between=16 * MIB, kept=(16 * MIB,)), id="what is kept takes segments of its own"),
        pytest.param(Run(between=3 * MIB, kept=(3 * MIB, MIB // 2)), id="what is kept shares segments"),
        pytest.param(
            Run(passing=(40 * MIB, 7 * MIB, 40 * MIB, 3 * MIB), micro_batches=2), id="large and small ones pass"
        ),
        pytest.param(Run(fetched=24 * MIB, micro_batches=2), id="layers are fetched on a stream of their own"),
        pytest.param(Run(between=400, kept=(100,), passing=(512, 70_000)), id="small blocks"),
    ],
)
@pytest.mark.parametrize(
    "conf",
    ["", "roundup_power2_divisions:4", "expandable_segments:True", "max_split_size_mb:32"],
    ids=["the defaults", "sizes rounded up", "expandable segments", "large blocks are not split"],
)
def test_figures_hold_under_settings_of_the_allocator(run: Run, conf: str) -> None:
    same_as_whole(run, folded(run, 30), 30, parse_conf(conf) if conf else DEFAULT)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(weights=(4 * MIB,), kept=(4 * MIB,)), id="a turn frees as much as it makes: the first one"),
        pytest.param(Run(weights=(5 * MIB,), kept=(4 * MIB,)), id="a turn leaves more behind: the last one"),
        pytest.param(
            Run(weights=(MIB,), kept=(8 * MIB,), backward=(64 * MIB,)), id="a turn leaves less behind: the first one"
        ),
    ],
)
def test_a_peak_in_a_loop_is_in_the_turn_of_the_whole_tape(run: Run) -> None:
    same_as_whole(run, folded(run, 30), 30)


@pytest.mark.parametrize("size", [2**41, 2**45], ids=["2 TiB a layer", "32 TiB a layer"])
def test_more_than_any_card_has_is_summed_up_all_the_same(size: int) -> None:
    run = Run(between=size, kept=(size, size // 3), passing=(size,))
    same_as_whole(run, folded(run, 30), 30)


def test_packing_is_a_bound_for_all_settings() -> None:
    run = Run(between=3 * MIB, kept=(3 * MIB, MIB // 2), fetched=24 * MIB)
    whole = run.tape(30)
    packed = phases.packed_bytes(whole)
    assert packed > phases.find_peak(whole).peak_bytes  # two streams peak at different times
    for conf in ("expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"):
        assert simulate(whole, parse_conf(conf)).reserved_peak_bytes >= packed


def test_the_first_pass_ends_where_the_second_micro_batch_begins() -> None:
    run = Run(between=4 * MIB, micro_batches=2)
    whole = run.tape(20)
    second = [at for at, name in whole.marks if name == "forward"][1]
    first = Tape()
    first.sizes, first.labels, first.events = whole.sizes, whole.labels, whole.events[:second]
    assert phases.first_pass_bytes(whole) == phases.find_peak(first).peak_bytes
    assert pieces.first_pass_bytes(folded(run, 20)) == phases.first_pass_bytes(whole)
    assert phases.first_pass_bytes(Run().tape(20)) == pieces.first_pass_bytes(folded(Run(), 20)) == 0


@st.composite
def plain_tapes(draw: st.DrawFn) -> Tape:
    """Any events, in any phases and streams: no loops."""
    tape = Tape()
    live: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 4)) == 0:
            tape.mark(draw(st.sampled_from(["setup", "forward", "backward"])))
        if live and draw(st.booleans()):
            tape.free(live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            label = Label("activations", draw(st.sampled_from(["a", "b.c"])))
            size = draw(st.sampled_from([0, 1, 512, MIB, MIB + 1, 3 * MIB]))
            live.append(tape.allocate(size, label, draw(st.sampled_from([0, 0, 1]))))
    return tape


@settings(max_examples=150, deadline=None)
@given(plain_tapes())
def test_a_tape_without_loops_is_what_it_is(tape: Tape) -> None:
    pieced = fold(tape, tape, 0)
    assert pieced is not None
    peak, expected = pieces.find_peak(pieced), phases.find_peak(tape)
    assert (peak.peak_bytes, peak.phase, peak.phases) == (expected.peak_bytes, expected.phase, expected.phases)
    assert pieces.break_down(pieced, peak) == break_down(tape, expected.event)
    assert pieces.packed_bytes(pieced) == phases.packed_bytes(tape)
    assert simulate(pieced.unfold()) == simulate(tape)
