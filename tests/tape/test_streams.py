"""Several streams: pools of their own, one card. Against traces of the real allocator, and the law of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.data.catalogue import gpu
from memlint.meta.tape import Label, Tape
from memlint.models import Recording
from memlint.tape.allocator import AllocatorResult, parse_conf, simulate
from memlint.tape.summary import Device, estimate
from tests.tape.test_allocator import ANY_CONF, GiB, MiB, event_lists

REAL: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "real_streams.json").read_text())
ENDLESS = 1 << 62


def tape_of(events: list[int], streams: list[int]) -> Tape:
    """A size allocates, ``~i`` frees the i-th allocation; ``streams`` by allocation."""
    tape = Tape()
    for event in events:
        if event >= 0:
            tape.allocate(event, Label("activations", "model"), streams[len(tape.sizes)])
        else:
            tape.free(~event)
    return tape


def run(events: list[int], streams: list[int], conf: str = "", capacity: int | None = None) -> AllocatorResult:
    return simulate(tape_of(events, streams), parse_conf(conf), capacity)


@pytest.mark.parametrize("trace", REAL["traces"], ids=lambda trace: f"{trace['conf'] or 'default'}")
def test_every_event_agrees_with_the_allocator_of_torch(trace: dict[str, Any]) -> None:
    allocated, reserved = trace["allocated"], trace["reserved"]
    for count in range(1, len(allocated) + 1):
        result = run(trace["events"][:count], trace["streams"], trace["conf"], trace["capacity"])
        assert result.oom_index is None
        assert result.allocated_bytes == allocated[count - 1]
        assert sum(result.segments) == reserved[count - 1]
        if count == len(allocated):
            assert [result.allocated_peak_bytes, result.reserved_peak_bytes] == trace["peaks"]
    assert run(trace["events"], trace["streams"], trace["conf"], trace["capacity"]).oom_index == trace["oom"]


def test_the_traces_have_full_cards_and_every_setting() -> None:
    """Otherwise what is released for another stream would not be among them."""
    assert sum(trace["oom"] is not None for trace in REAL["traces"]) > 5
    assert {trace["conf"] for trace in REAL["traces"]} >= {"", "expandable_segments:True", "max_split_size_mb:20"}
    assert all(len(set(trace["streams"])) == 3 for trace in REAL["traces"])


@pytest.mark.parametrize(
    ("events", "streams", "capacity", "reserved", "peak", "oom"),
    [
        pytest.param([40 * MiB, ~0, 40 * MiB], [0, 0], None, 40, 40, None, id="what a stream has freed, it gets again"),
        pytest.param([40 * MiB, ~0, 40 * MiB], [0, 1], None, 80, 80, None, id="another stream does not get it"),
        pytest.param([1 * MiB, 1 * MiB], [0, 1], None, 4, 4, None, id="the small pool has streams, too"),
        pytest.param([4 * MiB, 4 * MiB], [1, 2], None, 40, 40, None, id="two streams never share a segment of 20 MiB"),
        pytest.param(
            [40 * MiB, ~0, 40 * MiB], [0, 1], 60 * MiB, 40, 40, None, id="a full card takes it from the other stream"
        ),
        pytest.param(
            [40 * MiB, 4 * MiB, ~0, 40 * MiB],
            [0, 0, 1],
            80 * MiB,
            60,
            60,
            None,
            id="only what is entirely free is taken: the segment of 20 MiB stays",
        ),
        pytest.param(
            [30 * MiB, 10 * MiB, ~0, 40 * MiB], [0, 0, 1], 60 * MiB, 40 + 10, 50, None, id="10 MiB have a segment alone"
        ),
        pytest.param([40 * MiB, 40 * MiB], [0, 1], 60 * MiB, 40, 40, 1, id="what is in use cannot be taken"),
    ],
)
def test_two_streams(
    events: list[int], streams: list[int], capacity: int | None, reserved: int, peak: int, oom: int | None
) -> None:
    result = run(events, streams, capacity=capacity)
    assert sum(result.segments) == reserved * MiB
    assert result.reserved_peak_bytes == peak * MiB
    assert result.oom_index == oom


STREAMS = st.lists(st.integers(0, 3), min_size=60, max_size=60)


@settings(max_examples=200, deadline=None)
@given(events=event_lists(), streams=STREAMS, conf=ANY_CONF)
def test_without_a_limit_each_stream_holds_what_it_would_hold_alone(
    events: list[int], streams: list[int], conf: str
) -> None:
    alone = []
    for stream in range(4):
        numbers: dict[int, int] = {}
        own: list[int] = []
        storage = -1
        for event in events:
            storage += event >= 0
            if event >= 0 and streams[storage] == stream:
                numbers[storage] = len(numbers)
                own.append(event)
            elif event < 0 and ~event in numbers:
                own.append(~numbers[~event])
        alone.append(run(own, [0] * 60, conf))
    result = run(events, streams, conf)
    assert sorted(result.segments) == sorted(size for one in alone for size in one.segments)
    assert result.reserved_peak_bytes == sum(one.reserved_peak_bytes for one in alone)
    assert result.allocated_bytes == sum(one.allocated_bytes for one in alone)
    assert result.allocated_peak_bytes <= sum(one.allocated_peak_bytes for one in alone)
    assert result.allocated_peak_bytes <= result.reserved_at_allocated_peak <= result.reserved_peak_bytes


@settings(max_examples=100, deadline=None)
@given(events=event_lists(), streams=STREAMS)
def test_the_loop_without_a_limit_does_what_the_other_does(events: list[int], streams: list[int]) -> None:
    assert run(events, streams) == run(events, streams, capacity=ENDLESS)


@settings(max_examples=100, deadline=None)
@given(events=event_lists(), conf=ANY_CONF)
def test_one_stream_is_like_another(events: list[int], conf: str) -> None:
    assert run(events, [3] * 60, conf) == run(events, [0] * 60, conf)


def sharded_tape(layers: int) -> Tape:
    """Activations in the default stream, and after them gradients in another: never all at once."""
    tape = Tape()
    tape.mark("forward")
    saved = [tape.allocate(GiB, Label("activations", "model")) for _ in range(layers)]
    for storage in saved:
        tape.free(storage)
    tape.mark("backward")
    for _ in range(layers):
        tape.allocate(GiB, Label("gradients", "model", "shard"), 2)
    return tape


@pytest.mark.parametrize(
    ("layers", "reserved", "said"),
    [
        pytest.param(5, 10, False, id="where there is room, both streams keep what they have"),
        pytest.param(20, 23, True, id="on a full card one gives back"),
        pytest.param(24, 48, False, id="what is too much for the card is said as if it had no end"),
    ],
)
def test_an_estimate_on_a_card_of_24_gib(layers: int, reserved: int, said: bool) -> None:
    found = estimate(Recording(sharded_tape(layers), 1, 1), Device(gpu("rtx3090")))
    assert found.reserved_bytes == reserved * GiB
    assert any(value == "the whole card" for _, value, _ in found.assumptions) == said
    assert estimate(Recording(sharded_tape(layers), 1, 1)).reserved_bytes == 2 * layers * GiB
