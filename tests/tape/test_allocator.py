"""The allocator: rule by rule, against traces of the real one, and against a naive second implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import work
from memlint.meta.tape import Label, Tape
from memlint.tape.allocator import (
    DEFAULT,
    AllocatorConf,
    AllocatorResult,
    Clearing,
    parse_conf,
    round_size,
    segment_size,
    simulate,
)

KiB, MiB, GiB = 2**10, 2**20, 2**30
REAL: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "real_allocator.json").read_text())


def tape_of(*events: int) -> Tape:
    """A size allocates, ``~i`` frees the i-th allocation."""
    tape = Tape()
    for event in events:
        if event >= 0:
            tape.allocate(event, Label("activations", "model"))
        else:
            tape.free(~event)
    return tape


def run(*events: int, conf: str = "", capacity: int | None = None) -> AllocatorResult:
    return simulate(tape_of(*events), parse_conf(conf), capacity)


# -- one rule each -----------------------------------------------------------------------------------

DIVISIONS = parse_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions


@pytest.mark.parametrize(
    ("size", "divisions", "block"),
    [
        pytest.param(0, (), 0, id="an empty tensor takes nothing"),
        pytest.param(1, (), 512, id="one byte takes 512"),
        pytest.param(512, (), 512, id="512 bytes take 512"),
        pytest.param(513, (), 1024, id="beyond 512 the next multiple of 512"),
        pytest.param(1200, (4,) * 16, 1536, id="at most 512 x divisions bytes are rounded as without divisions"),
        pytest.param(3000, (4,) * 16, 3072, id="four divisions between 2048 and 4096 are 512 apart"),
        pytest.param(4096, (4,) * 16, 4096, id="a power of two stays"),
        pytest.param(600 * MiB, DIVISIONS, 768 * MiB, id="two divisions from 512 MiB on"),
        pytest.param(1100000000, DIVISIONS, 1342177280, id="four divisions from 1 GiB on"),
        pytest.param(2200000000, DIVISIONS, 2415919104, id="eight divisions above the last interval"),
        pytest.param(300 * MiB + 1, DIVISIONS, 300 * MiB + 512, id="one division rounds as none"),
    ],
)
def test_round_size(size: int, divisions: tuple[int, ...], block: int) -> None:
    assert round_size(size, divisions) == block


@pytest.mark.parametrize(
    ("block", "conf", "segment"),
    [
        pytest.param(512, "", 2 * MiB, id="small blocks come from 2 MiB segments"),
        pytest.param(1 * MiB, "", 2 * MiB, id="1 MiB is still small"),
        pytest.param(1 * MiB + 512, "", 20 * MiB, id="above 1 MiB segments have 20 MiB"),
        pytest.param(10 * MiB - 512, "", 20 * MiB, id="just below 10 MiB they still have"),
        pytest.param(10 * MiB, "", 10 * MiB, id="from 10 MiB on a segment has the block's own size"),
        pytest.param(11 * MiB, "", 12 * MiB, id="rounded up to 2 MiB"),
        pytest.param(3 * MiB, "large_segment_size_mb:12", 12 * MiB, id="large_segment_size_mb replaces the 20 MiB"),
    ],
)
def test_segment_size(block: int, conf: str, segment: int) -> None:
    assert segment_size(block, parse_conf(conf)) == segment


@pytest.mark.parametrize(
    ("events", "conf", "capacity", "allocated", "reserved"),
    [
        pytest.param((MiB, MiB, 1), "", None, 2 * MiB + 512, 4 * MiB, id="small requests share a 2 MiB segment"),
        pytest.param((512, 2 * MiB), "", None, 2 * MiB + 512, 22 * MiB, id="small and large requests never share one"),
        pytest.param((19 * MiB, ~0, 19 * MiB), "", None, 20 * MiB, 20 * MiB, id="a freed block is used again"),
        pytest.param((19 * MiB,), "", None, 20 * MiB, 20 * MiB, id="a rest of 1 MiB or less stays in the block"),
        pytest.param((18 * MiB, ~0, 16 * MiB, MiB + 1), "", None, 18 * MiB, 18 * MiB, id="a larger rest is split off"),
        pytest.param(
            (40 * MiB, 60 * MiB, ~1, ~0, 30 * MiB, 50 * MiB),
            "",
            None,
            80 * MiB,
            100 * MiB,
            id="the best fit is the smallest that is large enough",
        ),
        pytest.param(
            (12 * MiB, ~0, 4 * MiB, 4 * MiB, 4 * MiB, ~1, ~3, ~2, 12 * MiB),
            "",
            None,
            12 * MiB,
            12 * MiB,
            id="a freed block merges with free neighbours",
        ),
        pytest.param(
            (12 * MiB, ~0, 4 * MiB, 4 * MiB, 4 * MiB, ~1, ~3, 8 * MiB),
            "",
            None,
            12 * MiB,
            32 * MiB,
            id="blocks with a live one between do not merge",
        ),
        pytest.param(
            (20 * MiB, 20 * MiB, ~0, ~1, 40 * MiB),
            "",
            None,
            40 * MiB,
            80 * MiB,
            id="blocks of different segments do not merge",
        ),
        pytest.param(
            (20 * MiB, ~0, 30 * MiB),
            "",
            40 * MiB,
            30 * MiB,
            30 * MiB,
            id="idle segments are returned before an allocation fails",
        ),
        pytest.param(
            (100 * MiB, ~0, 30 * MiB),
            "max_split_size_mb:64",
            None,
            30 * MiB,
            130 * MiB,
            id="a small request leaves an oversize block alone",
        ),
        pytest.param(
            (100 * MiB, ~0, 90 * MiB),
            "max_split_size_mb:64",
            None,
            100 * MiB,
            100 * MiB,
            id="a large request takes an oversize block whole",
        ),
        pytest.param(
            (100 * MiB, ~0, 80 * MiB),
            "max_split_size_mb:64",
            None,
            80 * MiB,
            180 * MiB,
            id="but not if 20 MiB of it would be wasted",
        ),
        pytest.param(
            (100 * MiB, ~0, 80 * MiB),
            "max_split_size_mb:64,max_non_split_rounding_mb:21",
            None,
            100 * MiB,
            100 * MiB,
            id="max_non_split_rounding_mb sets how much may be",
        ),
        pytest.param(
            (21 * MiB, MiB),
            "expandable_segments:True",
            None,
            22 * MiB,
            42 * MiB,
            id="expandable pages have 20 MiB and 2 MiB",
        ),
        pytest.param(
            (21 * MiB,),
            "expandable_segments:True,large_segment_size_mb:12",
            None,
            21 * MiB,
            24 * MiB,
            id="large_segment_size_mb sets the large page",
        ),
        pytest.param(
            (21 * MiB, 10 * MiB, 9 * MiB),
            "expandable_segments:True",
            None,
            40 * MiB,
            40 * MiB,
            id="an expandable segment is filled before it grows",
        ),
        pytest.param(
            (19 * MiB + 512,),
            "expandable_segments:True",
            None,
            19 * MiB + 512,
            20 * MiB,
            id="expandable blocks are split down to 512 bytes",
        ),
        pytest.param(
            (30 * MiB, ~0, 40 * MiB, ~1, 50 * MiB),
            "expandable_segments:True",
            None,
            50 * MiB,
            60 * MiB,
            id="growing sizes reuse an expandable segment",
        ),
        pytest.param(
            (30 * MiB, ~0, 40 * MiB, ~1, 50 * MiB),
            "",
            None,
            50 * MiB,
            120 * MiB,
            id="growing sizes each take a segment otherwise",
        ),
        pytest.param(
            (10 * MiB, ~0, 20 * MiB, ~1, 50 * MiB),
            "garbage_collection_threshold:0.2,per_process_memory_fraction:0.9",
            100 * MiB,
            50 * MiB,
            50 * MiB,
            id="idle segments are collected above the threshold",
        ),
        pytest.param(
            (10 * MiB, ~0, 20 * MiB, ~1, 50 * MiB),
            "garbage_collection_threshold:0.2",
            100 * MiB,
            50 * MiB,
            80 * MiB,
            id="nothing is collected without a memory fraction",
        ),
        pytest.param(
            (12 * MiB, 14 * MiB, ~0, 16 * MiB, ~1, 18 * MiB),
            "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9",
            100 * MiB,
            34 * MiB,
            48 * MiB,
            id="the segments that were idle for longest are collected first, and no more than needed",
        ),
        pytest.param(
            (20 * MiB, 20 * MiB, ~0, 160 * MiB, ~1, 100 * MiB),
            "garbage_collection_threshold:0.2,per_process_memory_fraction:0.9",
            1000 * MiB,
            260 * MiB,
            280 * MiB,
            id="collecting ends where just enough is given back",
        ),
        pytest.param((0, 0), "", None, 0, 0, id="empty tensors never reach the allocator"),
    ],
)
def test_a_rule_of_the_allocator(
    events: tuple[int, ...], conf: str, capacity: int | None, allocated: int, reserved: int
) -> None:
    result = run(*events, conf=conf, capacity=capacity)
    assert result.oom_index is None
    assert (result.allocated_bytes, sum(result.segments)) == (allocated, reserved)


@pytest.mark.parametrize(
    ("events", "conf", "capacity", "oom"),
    [
        pytest.param((30 * MiB, 30 * MiB), "", 60 * MiB, None, id="the last byte can be had"),
        pytest.param((30 * MiB, 30 * MiB), "", 60 * MiB - 1, 1, id="a byte less is an out-of-memory"),
        pytest.param(
            (20 * MiB, ~0, 4 * MiB, 30 * MiB), "", 48 * MiB, 3, id="a segment with one live block cannot be returned"
        ),
        pytest.param(
            (20 * MiB, ~0, 4 * MiB, 30 * MiB),
            *("expandable_segments:True", 48 * MiB, None),
            id="but the rest of its page can be continued by an expandable segment",
        ),
        pytest.param(
            (20 * MiB, 20 * MiB, ~0, 30 * MiB),
            *("expandable_segments:True", 60 * MiB, None),
            id="pages that are free in an expandable segment can be mapped elsewhere",
        ),
        pytest.param(
            (60 * MiB, ~0, 4 * MiB, 30 * MiB),
            *("expandable_segments:True", 64 * MiB, None),
            id="the free pages of an expandable segment can be used again",
        ),
        pytest.param(
            (40 * MiB, 60 * MiB, ~1, 20 * MiB, ~0, 40 * MiB, 50 * MiB),
            "",
            110 * MiB,
            6,
            id="a tie in size goes to the lowest address, which leaves no idle segment here",
        ),
        pytest.param(
            (30 * MiB,),
            "per_process_memory_fraction:0.5",
            50 * MiB,
            0,
            id="a memory fraction is a limit like the card's",
        ),
        pytest.param(
            (20 * MiB, ~0, 30 * MiB),
            *("throw_on_cudamalloc_oom:True", 40 * MiB, 2),
            id="throw_on_cudamalloc_oom gives up without returning idle segments",
        ),
        pytest.param(
            (20 * MiB, ~0, 30 * MiB),
            "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.8",
            50 * MiB,
            None,
            id="but not under a memory fraction, whose limit is looked at first",
        ),
    ],
)
def test_out_of_memory(events: tuple[int, ...], conf: str, capacity: int, oom: int | None) -> None:
    assert run(*events, conf=conf, capacity=capacity).oom_index == oom


@pytest.mark.parametrize(
    ("size", "held"),
    [
        pytest.param(128, [64, 128], id="as few as free exactly what is asked for"),
        pytest.param(126, [64, 126], id="as few as free more than that"),
        pytest.param(130, [130], id="all, where two are not enough"),
        pytest.param(64, [64, 64, 64], id="none, where one of them serves it"),
    ],
)
def test_of_oversize_blocks_a_full_card_gives_back(size: int, held: list[int]) -> None:
    blocks = (64 * MiB, 64 * MiB, 64 * MiB, ~0, ~1, ~2)
    result = run(*blocks, size * MiB, conf="max_split_size_mb:64", capacity=200 * MiB)
    assert result.oom_index is None
    assert [segment // MiB for segment in result.segments] == held


def test_each_event_that_is_served_is_work() -> None:
    with work.limited(3):
        assert run(MiB, ~0, MiB).oom_index is None
    with work.limited(3), pytest.raises(work.OutOfWork, match="simulating the allocator"):
        run(MiB, ~0, MiB, MiB)


def test_reserved_when_the_allocated_peak_is_reached_may_be_below_the_reserved_peak() -> None:
    result = run(30 * MiB, 30 * MiB, ~0, ~1, 40 * MiB)
    assert result.allocated_peak_bytes == 60 * MiB
    assert result.reserved_at_allocated_peak == 60 * MiB
    assert result.reserved_peak_bytes == 100 * MiB


# -- the real allocator ------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", REAL["traces"], ids=lambda trace: f"{trace['conf'] or 'default'}")
def test_every_event_agrees_with_the_allocator_of_torch(trace: dict[str, Any]) -> None:
    conf = parse_conf(trace["conf"])
    allocated, reserved = trace["allocated"], trace["reserved"]
    for count in range(1, len(allocated) + 1):
        result = simulate(tape_of(*trace["events"][:count]), conf, trace["capacity"])
        assert result.oom_index is None
        assert result.allocated_bytes == allocated[count - 1]
        assert sum(result.segments) == reserved[count - 1]
        assert result.allocated_peak_bytes == max(allocated[:count])
        assert result.reserved_peak_bytes >= max(reserved[:count])  # within one event it may rise and fall
        if count == len(allocated):
            assert [result.allocated_peak_bytes, result.reserved_peak_bytes] == trace["peaks"]
    assert simulate(tape_of(*trace["events"]), conf, trace["capacity"]).oom_index == trace["oom"]


# -- a second implementation -------------------------------------------------------------------------


class Block:
    def __init__(self, address: int, size: int, segment: int) -> None:
        self.address, self.size, self.segment = address, size, segment
        self.free = True


class NaiveAllocator:
    """One list of blocks in order of address, searched from end to end: as plain as the rules can be put."""

    def __init__(self, conf: AllocatorConf, capacity: int | None) -> None:
        self.conf, self.capacity = conf, capacity
        self.blocks: list[Block] = []
        self.segments: dict[int, tuple[bool, int]] = {}  # number -> (small, size)
        self.end = 0

    def reserved(self) -> int:
        return sum(size for _, size in self.segments.values())

    def allocated(self) -> int:
        return sum(block.size for block in self.blocks if not block.free)

    def allocate(self, request: int) -> Block | None:
        size = -(-request // 512) * 512
        small = size <= MiB
        limit = self.conf.max_split_bytes
        fits = [
            block
            for block in self.blocks
            if block.free and block.size >= size and self.segments[block.segment][0] == small
        ]
        best = min(fits, key=lambda block: (block.size, block.address), default=None)
        if best is not None and limit is not None:
            wasteful = size >= limit and best.size >= size + self.conf.max_non_split_rounding_bytes
            if wasteful or size < limit <= best.size:
                best = None
        best = best or self.extend(small, size) or self.retry(small, size)
        if best is None:
            return None
        rest = best.size - size
        if rest >= 512 if small else rest > MiB and (limit is None or size < limit):
            best.size = size
            self.blocks.append(Block(best.address + size, rest, best.segment))
        best.free = False
        return best

    def extend(self, small: bool, size: int) -> Block | None:
        whole = 2 * MiB if small else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
        if self.capacity is not None and self.reserved() + whole > self.capacity:
            return None
        number = max(self.segments, default=0) + 1
        self.segments[number] = (small, whole)
        block = Block(self.end, whole, number)
        self.end += whole
        self.blocks.append(block)
        return block

    def idle(self, small: bool | None = None) -> list[Block]:
        return [
            block
            for block in self.blocks
            if block.free
            and block.size == self.segments[block.segment][1]
            and small in (None, self.segments[block.segment][0])
        ]

    def release(self, block: Block) -> None:
        self.blocks.remove(block)
        del self.segments[block.segment]

    def retry(self, small: bool, size: int) -> Block | None:
        limit = self.conf.max_split_bytes
        if limit is not None:
            wanted = max(size, limit)
            oversize = sorted(self.idle(small), key=lambda block: (block.size, block.address))
            enough = [block for block in oversize if block.size >= wanted]
            released = 0
            for block in enough[:1] or reversed([block for block in oversize if block.size >= limit]):
                if released < wanted:
                    released += block.size
                    self.release(block)
            found = self.extend(small, size) if released >= wanted else None
            if found is not None:
                return found
        for block in self.idle():
            self.release(block)
        return self.extend(small, size)

    def free(self, block: Block) -> None:
        block.free = True
        self.blocks.sort(key=lambda block: block.address)
        merged: list[Block] = []
        for each in self.blocks:
            if merged and merged[-1].free and each.free and merged[-1].segment == each.segment:
                merged[-1].size += each.size
            else:
                merged.append(each)
        self.blocks = merged


@st.composite
def event_lists(draw: st.DrawFn) -> list[int]:
    sizes = st.one_of(
        st.integers(0, 4096),
        st.integers(0, 2 * MiB),
        st.integers(MiB, 24 * MiB),
        st.sampled_from([MiB, MiB + 1, 10 * MiB - 512, 10 * MiB - 511, 10 * MiB, 19 * MiB, 32 * MiB, 60 * MiB]),
    )
    events: list[int] = []
    live: list[int] = []
    allocated = 0
    for _ in range(draw(st.integers(1, 60))):
        if live and draw(st.booleans()):
            events.append(~live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            events.append(draw(sizes))
            live.append(allocated)
            allocated += 1
    return events


CONFS = st.sampled_from(["", "max_split_size_mb:20", "max_split_size_mb:21,max_non_split_rounding_mb:30"])
ANY_CONF = st.sampled_from(
    ["", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4", "large_segment_size_mb:14"]
)
CAPACITIES = st.one_of(st.none(), st.integers(2 * MiB, 200 * MiB))


@settings(max_examples=300, deadline=None)
@given(events=event_lists(), conf=CONFS, capacity=CAPACITIES)
def test_a_naive_allocator_agrees_event_by_event(events: list[int], conf: str, capacity: int | None) -> None:
    naive = NaiveAllocator(parse_conf(conf), capacity)
    held: list[Block | None] = []
    for position, event in enumerate(events):
        result = run(*events[: position + 1], conf=conf, capacity=capacity)
        if event > 0:
            block = naive.allocate(event)
            if block is None:
                assert result.oom_index == position
                return
            held.append(block)
        elif event == 0:
            held.append(None)
        else:
            block = held[~event]
            if block is not None:
                naive.free(block)
        assert result.oom_index is None
        assert (result.allocated_bytes, sum(result.segments)) == (naive.allocated(), naive.reserved())


# -- laws --------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(events=event_lists(), conf=ANY_CONF, capacity=CAPACITIES)
def test_reserved_is_never_below_allocated_nor_above_the_card(
    events: list[int], conf: str, capacity: int | None
) -> None:
    result = run(*events, conf=conf, capacity=capacity)
    assert result.allocated_bytes <= sum(result.segments) <= result.reserved_peak_bytes
    assert result.allocated_peak_bytes <= result.reserved_at_allocated_peak <= result.reserved_peak_bytes
    assert capacity is None or result.reserved_peak_bytes <= capacity


def freed(events: list[int]) -> list[int]:
    """The same events, and at last a free for everything still live."""
    count = sum(event >= 0 for event in events)
    return [*events, *(~index for index in range(count) if ~index not in events)]


@settings(max_examples=200, deadline=None)
@given(events=event_lists(), conf=ANY_CONF)
def test_freeing_everything_leaves_nothing_allocated(events: list[int], conf: str) -> None:
    assert run(*freed(events), conf=conf).allocated_bytes == 0


@settings(max_examples=200, deadline=None)
@given(events=event_lists())
def test_freeing_everything_makes_each_segment_whole_again(events: list[int]) -> None:
    segments = run(*freed(events)).segments
    large = [size for size in segments if size > 2 * MiB]
    assert run(*freed(events), *large).segments == segments


@settings(max_examples=100, deadline=None)
@given(events=event_lists())
def test_segments_are_whole_2_mib(events: list[int]) -> None:
    assert all(size % (2 * MiB) == 0 for size in run(*events).segments)


@settings(max_examples=100, deadline=None)
@given(events=event_lists(), conf=ANY_CONF, capacity=CAPACITIES)
def test_the_same_tape_gives_the_same_result(events: list[int], conf: str, capacity: int | None) -> None:
    tape = tape_of(*events)
    assert simulate(tape, parse_conf(conf), capacity) == simulate(tape, parse_conf(conf), capacity)
    assert tape.events == tape_of(*events).events


@settings(max_examples=100, deadline=None)
@given(events=event_lists(), conf=ANY_CONF)
def test_a_card_with_room_for_the_reserved_peak_is_enough(events: list[int], conf: str) -> None:
    peak = run(*events, conf=conf).reserved_peak_bytes
    assert run(*events, conf=conf, capacity=peak).oom_index is None


def test_the_default_conf_is_the_empty_text() -> None:
    assert parse_conf("") == DEFAULT


def test_a_cache_that_is_emptied_gives_idle_segments_back_where_more_than_a_share_is_reserved() -> None:
    """What lies free before the third event goes back to the driver, and the next request asks it again."""
    events = (30 * MiB, ~0, 50 * MiB)  # a block of 30 MiB is let go; no segment of 30 holds 50
    tape = tape_of(*events)
    kept = simulate(tape)
    assert kept.segments == (30 * MiB, 50 * MiB)
    emptied = simulate(tape, clearing=Clearing(before=2, over_bytes=30 * MiB - 1))
    assert (emptied.segments, emptied.reserved_peak_bytes) == ((50 * MiB,), 50 * MiB)
    below = simulate(tape, clearing=Clearing(before=2, over_bytes=30 * MiB))
    assert below == kept
    late = simulate(tape, clearing=Clearing(before=3, over_bytes=0))
    assert late == kept
