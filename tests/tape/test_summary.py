"""A tape summed up: the figures hang together."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.data.catalogue import gpu
from memlint.meta.fold import Folded
from memlint.meta.tape import COMPONENTS, Label, Tape
from memlint.models import Recording, UnknownModel
from memlint.tape.allocator import AllocatorConf, parse_conf
from memlint.tape.estimate import Estimate, Interval
from memlint.tape.overhead import unexplained
from memlint.tape.summary import Device, estimate
from tests.effort import counted_lines

MiB = 2**20


def training_tape(layers: int, size: int = 3 * MiB) -> Tape:
    """Parameters, then a step: activations pile up, gradients replace them, the optimizer takes two temporaries."""
    tape = Tape()
    tape.mark("setup")
    names = [f"model.layers.{layer}.mlp" for layer in range(layers)]
    for name in names:
        tape.allocate(size, Label("parameters", name))
    tape.mark("forward")
    saved = [tape.allocate(2 * size, Label("activations", name)) for name in names]
    tape.saved_bytes = 2 * size * layers
    tape.mark("backward")
    gradients = []
    for storage, name in zip(reversed(saved), reversed(names)):
        gradients.append(tape.allocate(size, Label("gradients", name)))
        tape.free(storage)
    tape.mark("optimizer_step")
    for storage in [tape.allocate(size, Label("workspace", name, "foreach")) for name in names[:2]]:
        tape.free(storage)
    for storage in gradients:
        tape.free(storage)
    return tape


def summed(tape: Tape | Folded, **options: Any) -> Estimate:
    """``options``: of the recording, of the device that runs it, and of the summing up."""
    recording = Recording(Tape(), 10, 7, folded=tape) if isinstance(tape, Folded) else Recording(tape, 10, 7)
    for name in [name for name in options if name in Recording._fields]:
        if name != "assumptions":
            recording = recording._replace(**{name: options.pop(name)})
    device = {name: options.pop(name) for name in Device._fields if name in options}
    return estimate(recording, Device(**device), **options)


def test_an_estimate_by_hand() -> None:
    result = summed(training_tape(4), gpu=gpu("rtx3090"), assumptions=(("batch", "8", "stated"),))
    # Peak: 4 parameters of 3 MiB, 4 activations of 6 MiB and the first gradient of 3 MiB.
    assert result.allocated_bytes == 39 * MiB
    assert result.peak_phase == "backward"
    assert result.phases == {"forward": 36 * MiB, "backward": 39 * MiB, "optimizer_step": 30 * MiB}
    # Segments of 20 MiB: all parameters and one activation; three activations; the gradient.
    assert result.reserved_bytes == 60 * MiB
    assert {component.name: component.size_bytes for component in result.components} == {
        "parameters": 12 * MiB,
        "gradients": 3 * MiB,
        "activations": 24 * MiB,
        "workspace": 2 * 8_519_680,
        "fragmentation": 21 * MiB,
        "context": 256 * MiB,
    }
    assert result.device_bytes == (60 + 256) * MiB + 2 * 8_519_680
    assert result.allocated_interval.low_bytes == 39 * MiB
    assert result.reserved_interval == Interval(39 * MiB, 60 * MiB)
    assert result.device_interval == Interval((39 + 256) * MiB + 8_519_680, (60 + 616) * MiB + 2 * 8_519_680)
    assert (result.basis, result.parameters, result.trainable_parameters) == ("static", 10, 7)
    assert result.saved_bytes == 24 * MiB
    assert [fact for fact, _, _ in result.assumptions] == ["batch", "cuda_context"]


@pytest.mark.parametrize("temporaries", [MiB, 32 * MiB], ids=["fewer bytes than cuBLAS takes", "more of them"])
def test_the_optimizers_temporaries_and_cublas_are_one_component_of_two_parts(temporaries: int) -> None:
    tape = Tape()
    tape.mark("optimizer_step")
    tape.allocate(temporaries, Label("workspace", "model", "foreach"))
    [workspace] = [component for component in summed(tape).components if component.name == "workspace"]
    parts = [(part.name, part.size_bytes) for part in workspace.parts]
    assert parts == sorted([("cuBLAS", 2 * 8_519_680), ("model", temporaries)], key=lambda part: -part[1])
    assert workspace.size_bytes == temporaries + 2 * 8_519_680


def test_the_high_end_of_allocated_counts_rests_that_blocks_keep() -> None:
    tape = Tape()
    tape.allocate(19 * MiB, Label("parameters", "model"))
    assert summed(tape).allocated_interval == Interval(19 * MiB, 20 * MiB)


def test_what_published_runs_lie_apart_widens_what_is_no_state() -> None:
    alone, of_a_library = summed(training_tape(4)), summed(training_tape(4), library=True)
    below, above = unexplained(has_card=False)
    states = (12 + 3) * MiB  # parameters and the gradient at the peak
    # Of 39 MiB allocated and 60 MiB reserved.
    assert of_a_library[:6] == alone[:6]
    less = int(below * (39 * MiB - states))
    more = int(above * (60 * MiB - states))
    assert of_a_library.allocated_interval == Interval(39 * MiB - less, 39 * MiB + int(above * (39 * MiB - states)))
    # A perfect packing of the least that is allocated: nothing of the simulated packing is in the low end.
    assert of_a_library.reserved_interval == Interval(39 * MiB - less, 60 * MiB + more)
    low, high = of_a_library.device_interval
    assert low == alone.device_interval.low_bytes - less
    assert high == alone.device_interval.high_bytes + more
    assert "unexplained" in [fact for fact, _, _ in of_a_library.assumptions]


def test_a_packing_that_is_nearly_perfect_is_no_bound_to_what_is_unexplained() -> None:
    tape = Tape()
    tape.allocate(20 * MiB, Label("activations", "model"))
    low, high = summed(tape, library=True).reserved_interval
    below, above = unexplained(has_card=False)
    assert low == 20 * MiB - int(below * 20 * MiB)
    assert high == 20 * MiB + int(above * 20 * MiB)


def test_jax_has_no_segments() -> None:
    result = summed(training_tape(5), framework="jax")
    assert result.reserved_bytes == result.allocated_bytes
    assert result.component_bytes("fragmentation") == 0
    assert "preallocation" in [fact for fact, _, _ in result.assumptions]


def test_the_allocator_conf_reaches_the_allocator() -> None:
    tape = Tape()
    for size in (30, 40, 50):
        tape.free(tape.allocate(size * MiB, Label("activations", "model")))
    assert summed(tape).reserved_bytes == 120 * MiB
    assert summed(tape, allocator_conf=parse_conf("expandable_segments:True")).reserved_bytes == 60 * MiB


def test_a_pool_that_is_not_simulated_is_named() -> None:
    notes = summed(Tape(), allocator_conf=parse_conf("backend:cudaMallocAsync")).assumptions
    assert notes[0][:2] == ("allocator_conf", "backend:cudaMallocAsync")


def test_an_empty_tape_needs_the_context_only() -> None:
    result = summed(Tape(), has_matmul=False)
    assert [component.name for component in result.components] == ["context"]
    assert (result.allocated_bytes, result.reserved_bytes, result.peak_phase) == (0, 0, "setup")


SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MiB), st.integers(0, 40 * MiB))


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    tape = Tape()
    live: list[int] = []
    for _ in range(draw(st.integers(0, 40))):
        choice = draw(st.integers(0, 9))
        if choice == 0:
            tape.mark(draw(st.sampled_from(["setup", "forward", "backward", "optimizer_step", "evaluation"])))
        elif live and choice < 5:
            tape.free(live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            label = Label(draw(st.sampled_from(COMPONENTS[:9])), draw(st.sampled_from(["a", "a.0.b", "c.d"])))
            live.append(tape.allocate(draw(SIZES), label))
    return tape


@settings(max_examples=200, deadline=None)
@given(
    tape=tapes(),
    conf=st.sampled_from(["", "expandable_segments:True", "roundup_power2_divisions:2"]).map(parse_conf),
    card=st.sampled_from([None, "t4", "h100-80gb", "mi300x"]),
    framework=st.sampled_from(["torch", "jax"]),
    has_matmul=st.booleans(),
    has_convolution=st.booleans(),
)
def test_components_add_up_and_every_figure_lies_in_its_interval(
    tape: Tape, conf: AllocatorConf, card: str | None, framework: str, has_matmul: bool, has_convolution: bool
) -> None:
    result = summed(
        tape,
        allocator_conf=conf,
        gpu=gpu(card) if card else None,
        framework=framework,
        has_matmul=has_matmul,
        has_convolution=has_convolution,
    )
    assert sum(component.size_bytes for component in result.components) == result.device_bytes
    assert all(component.size_bytes > 0 for component in result.components)
    assert [COMPONENTS.index(component.name) for component in result.components] == sorted(
        COMPONENTS.index(component.name) for component in result.components
    )
    assert result.allocated_bytes <= result.reserved_bytes <= result.device_bytes
    for point, (low, high) in (
        (result.allocated_bytes, result.allocated_interval),
        (result.reserved_bytes, result.reserved_interval),
        (result.device_bytes, result.device_interval),
    ):
        assert low <= point <= high
    assert max(result.phases.values(), default=0) == result.allocated_bytes
    for component in result.components:
        if component.parts:
            assert sum(part.size_bytes for part in component.parts) == component.size_bytes


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_an_event_costs_the_same_on_a_long_tape_as_on_a_short_one(conf: str) -> None:
    costs = []
    for count in (625, 2500):
        tape = training_tape(count)
        with counted_lines() as lines:
            summed(tape, allocator_conf=parse_conf(conf))
        costs.append(lines.ran / len(tape.events))
    assert costs[1] == pytest.approx(costs[0], rel=0.05)
    assert costs[1] < 60


def test_importing_the_consumers_imports_nothing_heavy() -> None:
    code = "import sys, memlint.tape.summary; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"json", "re", "dataclasses", "logging", "pathlib", "torch", "jsonschema", "difflib", "importlib.metadata"}
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, memlint.units; print(*sys.modules)"], capture_output=True, text=True
    ).stdout.split()
    assert heavy & set(loaded) <= heavy & set(bare)


def test_an_inference_engine_beside_the_training_takes_its_share_of_the_card() -> None:
    card = gpu("rtx3090")
    alone, beside = summed(training_tape(4), gpu=card), summed(training_tape(4), gpu=card, engine_share=0.3)
    engine = int(0.3 * card.usable_bytes)
    assert beside.device_bytes - alone.device_bytes == engine
    assert beside.device_interval.low_bytes - alone.device_interval.low_bytes == engine
    assert beside.device_interval.high_bytes - alone.device_interval.high_bytes == engine
    assert beside.component_bytes("helper_models") == engine
    assert sum(component.size_bytes for component in beside.components) == beside.device_bytes
    assert ("inference_engine", "30%") in [note[:2] for note in beside.assumptions]
    assert summed(training_tape(4), engine_share=0.3).device_bytes == summed(training_tape(4)).device_bytes


def test_while_the_engine_generates_what_it_shares_the_card_with_is_all_that_stays() -> None:
    """An engine that sleeps while the model trains: the peak is the larger of the two."""
    card = gpu("rtx3090")
    trained = summed(training_tape(4), gpu=card)
    weights = next(component for component in trained.components if component.name == "parameters")
    outside = sum(trained.component_bytes(name) for name in ("context", "workspace", "communication"))
    engine = int(0.5 * card.usable_bytes)
    found = summed(training_tape(4), gpu=card, engine_share=0.5, engine_beside=("parameters",))
    assert found.device_bytes == weights.size_bytes + engine + outside > trained.device_bytes
    assert found.peak_phase == "generation"
    assert [component.name for component in found.components] == ["parameters", "helper_models", "workspace", "context"]
    assert found.component_bytes("helper_models") == engine
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
    assert found.device_interval.low_bytes <= found.device_bytes <= found.device_interval.high_bytes


def test_an_engine_that_takes_less_than_training_changes_nothing_but_the_bounds() -> None:
    card = gpu("rtx3090")
    trained = summed(training_tape(400), gpu=card)
    found = summed(training_tape(400), gpu=card, engine_share=0.05, engine_beside=("parameters",))
    assert trained.device_bytes > int(0.05 * card.usable_bytes) + trained.component_bytes("parameters")
    assert (found.device_bytes, found.peak_phase) == (trained.device_bytes, trained.peak_phase)
    assert [component.name for component in found.components] == [component.name for component in trained.components]


@pytest.mark.parametrize("processes", [2, 3])
def test_each_process_on_a_card_has_a_context_of_its_own(processes: int) -> None:
    alone, together = summed(training_tape(4)), summed(training_tape(4), processes=processes)
    more = (processes - 1) * alone.component_bytes("context")
    assert more > 0
    assert together.device_bytes - alone.device_bytes == more
    assert ("processes", str(processes)) in [note[:2] for note in together.assumptions]
    ends = [
        (interval.low_bytes - alone.component_bytes("parameters"), interval.high_bytes)
        for interval in (alone.device_interval, together.device_interval)
    ]
    assert ends[0][0] < ends[1][0]
    assert ends[0][1] < ends[1][1]


def test_a_size_that_no_device_ever_had_is_a_slip_of_the_keyboard() -> None:
    with pytest.raises(UnknownModel, match=r"would allocate 26 PiB on one device"):
        summed(training_tape(4, size=2**51))
