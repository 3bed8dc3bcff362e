"""The allocator's history of a step, read without a card: snapshots written by hand in PyTorch's documented format."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from memlint.measure import history
from memlint.measure.history import History, Moment
from memlint.measure.probe import _breakdown
from memlint.meta.tape import Label
from memlint.tape.estimate import Component
from memlint.units import MiB

WEIGHT, STATE, SCRATCH, CONSTANT = 0x1000, 0x2000, 0x3000, 0x4000  # alive before the step
HIDDEN, OUTPUT, GRADIENT, TEMPORARY = 0x5000, 0x6000, 0x7000, 0x8000
SMALL = 100  # bytes, of which a block has 512

LABELS = {WEIGHT: Label("parameters", "fc", "weight"), STATE: Label("optimizer", "fc", "exp_avg")}


def block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
    return {"address": address, "size": -(-size // 512) * 512, "requested_size": size, "state": state, "frames": []}


def event(action: str, address: int, size: int, time_us: int, module: str = "") -> dict[str, Any]:
    found = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": []}
    return {**found, "user_metadata": module} if module else found


def alloc(address: int, size: int, time_us: int, module: str = "") -> dict[str, Any]:
    return event("alloc", address, size, time_us, module)


def free(address: int, size: int, time_us: int) -> list[dict[str, Any]]:
    """As the allocator writes it: asked for, then done."""
    return [event("free_requested", address, size, time_us), event("free_completed", address, size, time_us)]


BEFORE: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": WEIGHT,
            "total_size": 20 * MiB,
            "stream": 0,
            "segment_type": "large",
            "blocks": [
                block(WEIGHT, 4 * MiB),
                block(STATE, 8 * MiB),
                block(0x9000, 2 * MiB, "inactive"),
                block(SCRATCH, 1 * MiB),
                block(CONSTANT, SMALL),
            ],
        },
        {"device": 1, "address": 1, "total_size": MiB, "stream": 0, "segment_type": "small", "blocks": [block(1, MiB)]},
    ],
    "device_traces": [[alloc(WEIGHT, 4 * MiB, 1), event("segment_alloc", WEIGHT, 20 * MiB, 1)], []],
}

# forward: hidden and output; backward: output goes, the gradient takes an activation's place; step: a temporary
STEP = [
    alloc(HIDDEN, 3 * MiB, 110, "layers.0.fc"),
    alloc(OUTPUT, 2 * MiB, 120, "layers.1.fc"),
    *free(OUTPUT, 2 * MiB, 210),
    alloc(OUTPUT, 4 * MiB, 220),  # the same address again: the gradient
    *free(HIDDEN, 3 * MiB, 230),
    alloc(TEMPORARY, 5 * MiB, 310),
    *free(TEMPORARY, 5 * MiB, 320),
    *free(OUTPUT, 4 * MiB, 330),
    event("snapshot", 0, 0, 340),
    *free(SCRATCH, 1 * MiB, 410),
]
MOMENTS = (
    Moment(100, "forward"),
    Moment(200, "backward"),
    Moment(290, gradients={OUTPUT: Label("gradients", "fc", "weight")}),
    Moment(300, "optimizer_step"),
    Moment(400, cleared=True),
)


def after(*step: dict[str, Any]) -> dict[str, Any]:
    return {"segments": [], "device_traces": [[*BEFORE["device_traces"][0], *step], []]}


def read(step: list[dict[str, Any]], tmp_path: Path | None = None, **changes: Any) -> History | None:
    taken = after(*step)
    if tmp_path is not None:  # as torch.cuda.memory._dump_snapshot writes it
        (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(taken))
        taken = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    options = {"device": 0, "labels": LABELS, "moments": MOMENTS, "max_entries": 1000, **changes}
    return history.read(BEFORE, taken, **options)


def parts(found: History) -> dict[str, dict[str, int]]:
    return {entry.name: {part.name: part.size_bytes for part in entry.parts} for entry in found.components}


ALWAYS = 4 * MiB + 8 * MiB + 1 * MiB + 512


def test_the_peak_and_whose_it_is(tmp_path: Path) -> None:
    found = read(STEP, tmp_path)
    assert found is not None
    assert found.peak_bytes == ALWAYS + (4 + 5) * MiB
    assert found.phase == "optimizer_step"
    assert found.phases == {
        "forward": ALWAYS + 5 * MiB,
        "backward": ALWAYS + 7 * MiB,
        "optimizer_step": ALWAYS + 9 * MiB,
    }
    assert parts(found) == {
        "parameters": {"fc": 4 * MiB},
        "gradients": {"fc": 4 * MiB},
        "optimizer": {"fc": 8 * MiB, "(model)": 5 * MiB},
        "buffers": {"held by the code": 512},
        "workspace": {"cuBLAS": 1 * MiB},
    }
    assert sum(entry.size_bytes for entry in found.components) == found.peak_bytes


def test_activations_have_the_module_that_the_allocator_noted() -> None:
    found = read(STEP[:3])
    assert found is not None
    assert found.phase == "forward"
    assert parts(found)["activations"] == {"layers.*.fc": 5 * MiB}


def test_a_gradient_is_known_by_its_address_at_the_end_of_backward_and_no_other_time() -> None:
    """The same address held an activation before: a block is not its address."""
    found = read(STEP[:6], labels={})
    assert found is not None
    assert found.phase == "backward"
    assert {name: sum(sizes.values()) for name, sizes in parts(found).items()} == {
        "gradients": 4 * MiB,
        "activations": 3 * MiB,
        "buffers": ALWAYS,  # without labels, what was there before is anyone's
    }


def test_without_a_cleared_workspace_nothing_is_called_one() -> None:
    found = read(STEP, moments=MOMENTS[:-1])
    assert found is not None
    assert "workspace" not in parts(found)


LOST = {
    "a history that has lost its beginning": {"max_entries": len(STEP) + 2},
    "a device without a history": {"device": 1, "max_entries": 0},
}


@pytest.mark.parametrize("changes", LOST.values(), ids=LOST)
def test_a_history_that_does_not_reach_back_is_no_answer(changes: dict[str, Any]) -> None:
    assert read(STEP, **changes) is None


def test_a_history_that_was_cleared_in_between_is_no_answer() -> None:
    assert history.read(BEFORE, {"segments": [], "device_traces": [[], []]}, 0, {}, MOMENTS, 1000) is None


# -- which breakdown is shown

FOUND = History(100 * MiB, "backward", {}, (Component("activations", 100 * MiB),))
SHOWN: dict[str, tuple[int, History | None, str, str]] = {
    # bytes that the tracker saw, the history -> whose breakdown, the note
    "the tracker's where the two agree": (95 * MiB, FOUND, "tracker", "the tracker's, 0.00% from"),
    "the history's where the tracker saw more": (120 * MiB, FOUND, "history", "the tracker's is 25.0% from it"),
    "the tracker's where there is no history": (95 * MiB, None, "tracker", "does not reach back to the step's begin"),
}


@pytest.mark.parametrize(("seen", "told", "whose", "said"), SHOWN.values(), ids=SHOWN)
def test_which_breakdown_is_shown_is_said(seen: int, told: History | None, whose: str, said: str) -> None:
    tracked = (Component("parameters", seen),)
    shown, note = _breakdown(tracked, told, 5 * MiB)
    assert said in note
    if whose == "history":
        assert shown == FOUND.components
    else:
        assert {entry.name: entry.size_bytes for entry in shown} == {"parameters": seen, "workspace": 5 * MiB}
