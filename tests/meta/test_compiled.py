"""What a compiled function has in memory, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from memlint.meta import functional as F
from memlint.meta.autograd import backward, saved_storages
from memlint.meta.compiled import compiled
from memlint.meta.nn import parameter
from memlint.meta.tensor import Tensor, empty, recording, stored

UNIT = 64 * 64 * 4  # bytes of what the functions below compute with


def square() -> Tensor:
    return empty((64, 64)).requires_grad_()


def peak(function: Callable[[], Tensor]) -> tuple[int, int, int]:
    """Of a forward and a backward pass, in UNITs beyond the arguments: most alive in each, and what is kept."""
    with recording() as tape:
        out = function()
        kept = sum(saved_storages(out).values()) // UNIT
        tape.mark("backward")
        start = len(tape.events)
        backward(out, empty(out.shape))
        del out
        live, peaks = 0, [0, 0]
        for number, event in enumerate(tape.events):
            live += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
            peaks[number >= start] = max(peaks[number >= start], live)
    return peaks[0] // UNIT, peaks[1] // UNIT, kept


def test_a_chain_of_elementwise_operations_is_one_kernel() -> None:
    def chain(x: Tensor) -> Tensor:
        return F.tanh(F.sigmoid(F.exp(x) * 2.0) + x)

    eager, fused = peak(lambda: chain(square())), peak(lambda: compiled(chain, square()))
    assert fused == (2, 4, 2)  # in and out, which are kept; with two gradients
    assert eager[0] > fused[0]
    assert eager[2] > fused[2]


def test_products_read_and_write_memory() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return F.sigmoid(F.mm(F.sigmoid(x), weight))

    # Kept are what the product reads, its weight, and what leaves: from these both sigmoids' gradients are made.
    assert peak(lambda: compiled(layer, square(), square()))[2] == 3


def test_both_gradients_of_a_gate_read_one_incoming_gradient() -> None:
    """A SwiGLU in the backward pass: two products' results are kept; the gradient that comes in lives until the second
    of theirs is there."""

    def gated(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        return F.mm(F.silu(first) * second, weight)

    def run() -> Tensor:
        first, second, weight = square(), square(), square()
        return compiled(gated, F.clone(first), F.clone(second), weight)  # type: ignore[no-any-return]

    with recording() as tape:
        out = run()
        names = {storage: size for storage, size in saved_storages(out).items() if size == UNIT}
    assert len(names) == 4  # the gate, the other, their product, and the weight
    assert tape.sizes.count(UNIT) >= 4


def test_a_result_that_nobody_needs_is_never_in_memory() -> None:
    def unused(x: Tensor) -> Tensor:
        dead = F.exp(x)
        del dead
        return x * 2.0

    with recording() as tape:
        compiled(unused, empty((64, 64)))
    assert tape.sizes == [UNIT, UNIT]


def test_what_leaves_is_in_memory_and_so_is_its_gradient() -> None:
    with recording():
        leaf = parameter(64, 64)
        first, second = compiled(lambda x: (x * 2.0, F.exp(x)), leaf)
        assert first.storage.index >= 0
        assert second.storage.index >= 0
        backward(first + second, empty((64, 64)))
        assert leaf.grad is not None
        assert leaf.grad.storage.index >= 0


def test_reading_a_result_twice_makes_it_once() -> None:
    def twice(x: Tensor, weight: Tensor) -> Tensor:
        y = F.exp(x)
        return F.mm(y, weight) + F.mm(y, weight)

    with recording() as tape:
        compiled(twice, empty((64, 64)), empty((64, 64)))
    assert tape.sizes.count(UNIT) == 6  # two arguments, one exponential, two products, their sum


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exp": lambda x, w: F.exp(x),
    "tanh": lambda x, w: F.tanh(x),
    "double": lambda x, w: x * 2.0,
    "square": lambda x, w: x * x,
    "product": lambda x, w: F.mm(x, w),
    "mean": lambda x, w: x - F.mean(x, -1, keepdim=True),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8))
def test_a_compiled_function_never_keeps_or_takes_more_than_the_same_uncompiled(names: Sequence[str]) -> None:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x, weight)
        return x

    eager, fused = peak(lambda: run(square(), square())), peak(lambda: compiled(run, square(), square()))
    assert fused[0] <= eager[0]
    assert fused[2] <= eager[2]


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8))
def test_everything_that_comes_into_memory_leaves_it(names: Sequence[str]) -> None:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x, weight)
        return x

    with recording() as tape:
        x, weight = square(), square()
        out = compiled(run, x, weight)
        backward(stored(out), empty(out.shape))
        x.grad = weight.grad = None
        del out, x, weight
        alive: set[int] = set()
        for event in tape.events:
            alive.symmetric_difference_update((event if event >= 0 else ~event,))
    assert alive == set()
