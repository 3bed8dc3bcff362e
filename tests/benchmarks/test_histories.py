"""Allocator histories: a snapshot's entries become a sequence that the simulation replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import histories
from benchmarks.gpu.histories import HistoryError, differences, sequence_of

ROOT = Path(__file__).parents[2]
MiB = 2**20
# What torch's own allocator did, event by event.
REAL = json.loads((ROOT / "tests" / "tape" / "fixtures" / "real_allocator.json").read_text())["traces"]
# The settings under which a segment is one call of the driver; growing ones show as segment_map.
SERVED = [trace for trace in REAL if trace["oom"] is None]
MEASURED = sorted((ROOT / "benchmarks" / "measured").glob("*.history.json"))


def snapshot_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The history that ``_snapshot()`` would show of a recorded trace: invented addresses, everything else real."""
    entries: list[dict[str, Any]] = []
    sizes: list[int] = []
    reserved = 0
    for event, held in zip(trace["events"], trace["reserved"]):
        change = held - reserved
        reserved = held
        if change:
            action = "segment_alloc" if change > 0 else "segment_free"
            entries.append({"action": action, "addr": 1, "size": abs(change), "stream": 0, "time_us": 1})
        if event > 0:
            entries.append({"action": "alloc", "addr": 4096 * (len(sizes) + 1), "size": event, "stream": 0})
        elif event < 0 and sizes[~event]:
            for action in ("free_requested", "free_completed"):
                entries.append({"action": action, "addr": 4096 * (~event + 1), "size": sizes[~event], "stream": 0})
        if event >= 0:
            sizes.append(event)
    return entries


def without_empty(events: list[int]) -> list[int]:
    """A trace's events as a history has them: empty tensors never reach the allocator."""
    found: list[int] = []
    number: dict[int, int] = {}
    allocated = 0
    for event in events:
        if event > 0:
            number[allocated] = len(number)
            found.append(event)
        elif event < 0 and ~event in number:
            found.append(~number[~event])
        allocated += event >= 0
    return found


def known(trace: dict[str, Any]) -> dict[str, Any]:
    return {"conf": trace["conf"], "capacity": trace["capacity"], "peaks": trace["peaks"]}


@pytest.mark.parametrize("trace", SERVED, ids=lambda trace: trace["conf"] or "default")
def test_a_history_comes_back_as_the_sequence_that_made_it(trace: dict[str, Any]) -> None:
    sequence = sequence_of(snapshot_of(trace), **known(trace))
    assert sequence["events"] == without_empty(trace["events"])
    curve = dict(sequence["reserved"])
    assert list(curve) == sorted(curve)
    assert max(curve.values()) == max(trace["reserved"])
    assert json.loads(json.dumps(sequence)) == sequence


@pytest.mark.parametrize("trace", SERVED, ids=lambda trace: trace["conf"] or "default")
def test_the_simulation_agrees_with_a_real_history(trace: dict[str, Any]) -> None:
    assert differences(sequence_of(snapshot_of(trace), **known(trace))) == []


def test_a_history_by_hand() -> None:
    entries = [
        {"action": "segment_alloc", "addr": 100, "size": 2 * MiB, "stream": 0},
        {"action": "alloc", "addr": 100, "size": 1000, "stream": 0},
        {"action": "alloc", "addr": 200, "size": 10, "stream": 0},
        {"action": "free_requested", "addr": 100, "size": 1000, "stream": 0},
        {"action": "free_completed", "addr": 100, "size": 1000, "stream": 0},
        {"action": "segment_alloc", "addr": 300, "size": 20 * MiB, "stream": 0},
        {"action": "alloc", "addr": 300, "size": 3 * MiB, "stream": 0},
        {"action": "alloc", "addr": 100, "size": 8, "stream": 0},  # where the first one was
        {"action": "free_completed", "addr": 100, "size": 8, "stream": 0},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
    ]
    sequence = sequence_of(entries, case="by hand", peaks=[3 * MiB + 2 * 512, 22 * MiB])
    assert sequence["events"] == [1000, 10, ~0, 3 * MiB, 8, ~3]
    assert sequence["reserved"] == [[0, 2 * MiB], [3, 22 * MiB]]
    assert sequence["case"] == "by hand"
    assert differences(sequence) == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another reserved peak": ({"peaks": [512, 20 * MiB]}, "reserved peak: 2097152 simulated, 20971520 measured"),
    "another allocated peak": ({"peaks": [1024, 2 * MiB]}, "allocated peak: 512 simulated, 1024 measured"),
    "another curve": ({"reserved": [[0, 4 * MiB]]}, "after event 0: 2097152 bytes reserved, 4194304 measured"),
    "no memory": ({"capacity": MiB}, "event 0 finds no memory"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_what_differs_is_named(change: dict[str, Any], said: str) -> None:
    entries = [{"action": "segment_alloc", "size": 2 * MiB}, {"action": "alloc", "addr": 1, "size": 100}]
    sequence = sequence_of(entries, peaks=[512, 2 * MiB])
    assert differences(sequence) == []
    assert differences({**sequence, **change}) == [said]


def test_a_history_that_began_too_late_is_refused() -> None:
    with pytest.raises(HistoryError, match="before recording began"):
        sequence_of([{"action": "free_completed", "addr": 1, "size": 1}])


def test_a_history_of_several_streams_is_refused() -> None:
    entries = [{"action": "alloc", "addr": at, "size": 1, "stream": at} for at in (1, 2)]
    with pytest.raises(HistoryError, match="2 streams"):
        sequence_of(entries)


def test_a_history_that_overflowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_ENTRIES", 2)
    with pytest.raises(HistoryError, match="overwritten"):
        sequence_of([{"action": "alloc", "addr": at, "size": 1} for at in (1, 2)])


def test_every_committed_history_agrees_with_the_simulation() -> None:
    wrong = {path.name: differences(json.loads(path.read_text())) for path in MEASURED}
    assert not {name: found for name, found in wrong.items() if found}
