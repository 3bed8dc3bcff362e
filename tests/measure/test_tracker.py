"""The storage tracker: what is booked, when it is let go, and what autograd holds."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.tracker import SavedTensors, StorageTracker, saved_bytes
from memlint.meta.tape import Label

KB = 256 * 4  # bytes of a tensor of 256 floats


def live_on_tape(tracker: StorageTracker) -> int:
    sizes = tracker.tape.sizes
    return sum(sizes[event] if event >= 0 else -sizes[~event] for event in tracker.tape.events)


@pytest.fixture(params=["fake tensors", "real tensors"])
def tracker(request: pytest.FixtureRequest) -> Any:
    tracker = StorageTracker(granularity_bytes=1)
    if request.param == "fake tensors":
        with FakeTensorMode(), tracker:
            yield tracker
    else:
        with tracker:
            yield tracker


def test_a_new_tensor_is_booked_and_its_end_is_heard(tracker: StorageTracker) -> None:
    x = torch.zeros(256)
    assert tracker.live_bytes == KB
    del x
    assert tracker.live_bytes == 0
    assert tracker.peak_bytes == KB
    assert tracker.tape.sizes == [KB]
    assert tracker.tape.events == [0, ~0]
    assert tracker.tape.labels == [Label("activations", "", "zeros")]


@pytest.mark.parametrize(
    "alias",
    [
        lambda x: x.view(16, 16),
        lambda x: x.view(16, 16).t(),
        lambda x: x[10:20],
        lambda x: x.expand(3, 256),
        lambda x: x.detach(),
        lambda x: x.add_(1),
        lambda x: x.view(16, 16).relu_(),
        lambda x: x.chunk(2)[1],
    ],
)
def test_aliases_and_in_place_operations_take_nothing_and_keep_the_storage(tracker: StorageTracker, alias: Any) -> None:
    x = torch.zeros(256)
    y = alias(x)
    del x
    assert tracker.live_bytes == tracker.peak_bytes == KB
    del y
    assert tracker.live_bytes == 0


def test_every_result_of_an_operator_is_booked(tracker: StorageTracker) -> None:
    values, indices = torch.zeros(16, 16).max(1)
    assert tracker.live_bytes == 16 * 4 + 16 * 8
    assert tracker.peak_bytes == KB + 16 * 4 + 16 * 8
    del values, indices


def test_addresses_that_are_used_again_do_not_confuse_it(tracker: StorageTracker) -> None:
    kept = []
    for number in range(200):
        x = torch.zeros(number + 1)
        if number % 10 == 0:
            kept.append(x)
        del x
    expected = sum(4 * len(x) for x in kept)
    assert tracker.live_bytes == live_on_tape(tracker) == expected
    assert len(tracker.tape.sizes) == 200


def test_a_storage_that_grows_is_booked_anew(tracker: StorageTracker) -> None:
    x = torch.empty(0)
    x.resize_(256)
    assert tracker.live_bytes == KB
    assert live_on_tape(tracker) == KB


def test_sizes_are_rounded_as_the_allocator_rounds_but_not_on_the_tape() -> None:
    with StorageTracker() as tracker:
        x, y = torch.zeros(1), torch.zeros(129)
    assert tracker.live_bytes == 512 + 1024
    assert tracker.tape.sizes == [4, 129 * 4]
    del x, y
    assert tracker.live_bytes == 0


def test_phases_have_their_own_peaks(tracker: StorageTracker) -> None:
    with tracker.phase("forward"):
        x = torch.zeros(256)
        y = x + 1
        del y
    with tracker.phase("backward"):
        z = x + 1
        with tracker.phase("optimizer_step"):
            w = x + 1
        del w
    with tracker.phase("forward"):
        pass
    assert tracker.phase_peaks == {"forward": 2 * KB, "backward": 3 * KB, "optimizer_step": 3 * KB, "": 2 * KB}
    assert [name for _, name in tracker.tape.marks][:2] == ["forward", ""]
    tracker.reset_peak()
    assert tracker.peak_bytes == tracker.live_bytes == 2 * KB
    del x, z


def test_what_is_made_while_paused_is_not_booked(tracker: StorageTracker) -> None:
    with tracker.paused():
        x = torch.zeros(256)
    assert tracker.live_bytes == 0
    assert not tracker.holds(x)
    tracker.book(x)
    assert tracker.holds(x)
    tracker.label(x, Label("parameters", "layer", "weight"))
    assert tracker.tape.labels == [Label("parameters", "layer", "weight")]


def test_host_memory_stays_off_the_books(tracker: StorageTracker) -> None:
    step = torch.tensor(0.0)
    step += 1
    x = torch.zeros(256)
    tracker.forget(x)
    x.add_(1)
    assert tracker.live_bytes == 0
    # The address may serve another storage later, which is booked.
    del x
    y = torch.zeros(256)
    assert tracker.live_bytes == KB
    del y, step


def test_fake_numbers_are_answered_and_real_ones_read() -> None:
    with FakeTensorMode(), StorageTracker():
        assert torch.ones(()).bool().item() is True
        assert bool((torch.ones(3) > 0).all()) is True
        assert torch.ones(()).long().item() == 1
        assert isinstance(torch.ones(()).item(), float)
    with StorageTracker():
        assert torch.full((), 7).item() == 7
        assert torch.zeros(()).bool().item() is False


def test_inference_mode_shows_the_same_storages_as_no_grad() -> None:
    def run(context: Any) -> list[int]:
        with FakeTensorMode(), StorageTracker() as tracker, context:
            x, w, b = torch.zeros(2, 3, 4), torch.zeros(5, 4), torch.zeros(5)
            torch.nn.functional.linear(x, w, b).softmax(-1)
        return tracker.tape.sizes

    assert run(torch.inference_mode()) == run(torch.no_grad())


def test_nothing_is_kept_alive_by_the_tracker() -> None:
    tracker = StorageTracker()
    with FakeTensorMode(), tracker:
        x = torch.zeros(256, requires_grad=True)
        y = (x.exp() * 2).sum()
        y.backward()
    del x, y
    gc.collect()
    assert tracker.live_bytes == 0


Step = tuple[str, int, int]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["new", "view", "add", "add_", "drop"]), st.integers(0, 5), st.integers(1, 9)))
)
def test_what_is_booked_is_what_is_alive(program: list[Step]) -> None:
    with FakeTensorMode(), StorageTracker(granularity_bytes=1) as tracker:
        slots: dict[int, torch.Tensor] = {}
        most = 0
        for action, slot, size in program:
            if action == "new":
                slots[slot] = torch.empty(size)
            elif action == "drop":
                slots.pop(slot, None)
            elif slot in slots:
                x = slots[slot]
                slots[size % 6] = x[:1] if action == "view" else x + 1 if action == "add" else x.add_(1)
                del x
            alive = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in slots.values()}
            assert tracker.live_bytes == live_on_tape(tracker) == sum(alive.values())
            most = max(most, tracker.live_bytes)
            assert tracker.peak_bytes >= most


# -- what autograd holds


def test_a_tensor_that_is_saved_twice_counts_once() -> None:
    with FakeTensorMode(), StorageTracker():
        x = torch.zeros(256, requires_grad=True)
        result, size = saved_bytes(lambda: x.sin() + x.cos() + x.view(16, 16).sin().view(256))
        assert size == KB
        del result


def test_parameters_do_not_count_and_inputs_do() -> None:
    with FakeTensorMode(), StorageTracker():
        layer = torch.nn.Linear(16, 8)
        x = torch.zeros(4, 16)
        result, size = saved_bytes(lambda: layer(layer(x)[:, :1] + x), layer.parameters())
        # The input of each of the two calls.
        assert size == 2 * 4 * 16 * 4
        assert saved_bytes(lambda: layer(x))[1] == 4 * 16 * 4
        x.requires_grad_()
        assert saved_bytes(lambda: layer(x), layer.parameters())[1] == 4 * 16 * 4
        assert saved_bytes(lambda: layer(x))[1] == 4 * 16 * 4 + 8 * 16 * 4
        del result


def test_backward_lets_go_of_what_was_saved() -> None:
    with FakeTensorMode(), StorageTracker():
        x = torch.zeros(256, requires_grad=True)
        with SavedTensors() as saved:
            y = x.exp().exp().sum()
        assert saved.bytes == 2 * KB
        y.backward()
        assert saved.bytes == 0


def test_a_dropped_graph_holds_nothing() -> None:
    with FakeTensorMode(), StorageTracker():
        x = torch.zeros(256, requires_grad=True)
        with SavedTensors() as saved:
            y = x.exp()
        del y
        assert saved.bytes == 0


def test_nothing_is_saved_without_gradients() -> None:
    x = torch.zeros(256)
    result, size = saved_bytes(lambda: x.exp())
    assert size == 0
    with torch.no_grad():
        x.requires_grad_()
        assert saved_bytes(lambda: x.exp())[1] == 0
    del result


def test_saved_host_memory_does_not_count_where_a_tracker_tells() -> None:
    with FakeTensorMode(), StorageTracker() as tracker:
        x = torch.zeros(256, requires_grad=True)
        tracker.forget(x)
        result, size = saved_bytes(lambda: x.sin(), tracker=tracker)
        assert size == 0
        assert saved_bytes(lambda: x.sin())[1] == KB
        del result


class Packed(torch.Tensor):
    """A weight of which a byte per entry is there, and made in float32 for each product."""

    packed: torch.Tensor

    @staticmethod
    def __new__(cls, packed: torch.Tensor) -> Packed:
        made = torch.Tensor._make_wrapper_subclass(cls, packed.shape, dtype=torch.float32)
        made.packed = packed
        return made

    def __tensor_flatten__(self) -> Any:
        return ["packed"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].packed)
        return func(*(x.packed.float() if isinstance(x, cls) else x for x in args), **(kwargs or {}))


@pytest.mark.parametrize("semantics", [False, True], ids=["by itself", "with CUDA's semantics"])
def test_of_a_wrapped_tensor_what_it_wraps_is_booked_and_what_its_operators_make(semantics: bool) -> None:
    tracker = StorageTracker(1)
    with FakeTensorMode(), tracker, CudaSemantics(tracker) if semantics else nullcontext():
        weight = torch.nn.Parameter(Packed(torch.zeros(64, 32, dtype=torch.int8)), requires_grad=False)
        assert tracker.live_bytes == 64 * 32
        x = torch.zeros(8, 64)
        tracker.reset_peak()
        out = x @ weight
        assert tracker.peak_bytes == (64 + 4 * 64) * 32 + 4 * 8 * (64 + 32)
        assert tracker.live_bytes == 64 * 32 + 4 * 8 * (64 + 32)
    del out
