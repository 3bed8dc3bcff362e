"""The allocator under a driver that always gives, which every estimate asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.tape.allocator import ReservesMore, simulate
from memlint.tape.allocator_conf import parse_conf
from tests.tape.test_allocator import GiB, MiB, event_lists, run, tape_of

ENDLESS = 1 << 62  # more than any of these tapes asks for
CONFS = st.sampled_from(["", "roundup_power2_divisions:4", "large_segment_size_mb:14"])


@settings(max_examples=300, deadline=None)
@given(events=event_lists(), conf=CONFS)
def test_it_does_what_it_does_on_a_card_with_room_for_everything(events: list[int], conf: str) -> None:
    tape = tape_of(*events)
    assert simulate(tape, parse_conf(conf)) == simulate(tape, parse_conf(conf), ENDLESS)


@settings(max_examples=300, deadline=None)
@given(
    events=event_lists(),
    conf=st.sampled_from(["", "expandable_segments:True"]),
    spare=st.integers(-4 * MiB, 4 * MiB),
)
def test_who_asks_for_no_more_than_so_much_gets_the_run_or_hears_that_it_reserves_more(
    events: list[int], conf: str, spare: int
) -> None:
    tape = tape_of(*events)
    whole = simulate(tape, parse_conf(conf))
    most_bytes = whole.reserved_peak_bytes + spare
    if spare >= 0:
        assert simulate(tape, parse_conf(conf), most_bytes=most_bytes) == whole
    elif whole.reserved_peak_bytes:
        with pytest.raises(ReservesMore):
            simulate(tape, parse_conf(conf), most_bytes=most_bytes)


def test_a_run_that_reserves_more_is_not_served_to_its_end() -> None:
    """What follows would ask for an address that no int of this width holds."""
    with pytest.raises(ReservesMore):
        simulate(tape_of(30 * MiB, 40 * MiB, *[1 << 60] * 3), most_bytes=50 * MiB)


@settings(max_examples=50, deadline=None)
@given(events=event_lists())
def test_addresses_beyond_the_narrow_ints_are_served_alike(events: list[int]) -> None:
    """Three allocations of 1 TiB first: what follows lies above 2 TiB."""
    shifted = [event if event >= 0 else event - 3 for event in events]
    before = [1024 * GiB] * 3
    high = run(*before, *shifted)
    assert high == run(*before, *shifted, capacity=ENDLESS)
    low = run(*events)
    assert high.reserved_peak_bytes == low.reserved_peak_bytes + 3 * 1024 * GiB
    assert high.allocated_bytes == low.allocated_bytes + 3 * 1024 * GiB


def test_a_segment_of_terabytes_is_split_and_made_whole_again() -> None:
    whole = 5 * 1024 * GiB
    result = run(whole, ~0, 30 * MiB, 40 * MiB, ~1, ~2, whole)
    assert result.segments == (whole,)
    assert result.allocated_peak_bytes == whole
