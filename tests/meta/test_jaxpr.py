"""Liveness of a compiled program: when arrays begin and end, what is fused away, what the backward pass keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.meta import jax_numpy as jnp
from memlint.meta.jaxpr import PLAIN, Array, Program, checkpoint, repeat
from memlint.meta.tape import Tape

N = 1000  # elements of an array: 4,000 bytes


def new(program: Program, count: int = 1) -> list[Array]:
    """Arrays that exist beforehand and need cotangents, as parameters do."""
    return [program.parameter(N) for _ in range(count)]


def tape_of(program: Program, *results: Array, fuse: bool = True) -> Tape:
    program.write(PLAIN, -1, *(result.var for result in results))
    tape = Tape()
    program.run(tape, [], program.inputs, fuse)
    return tape


def live(tape: Tape) -> list[int]:
    """Arrays of N elements alive after each event."""
    counts, now = [], 0
    for event in tape.events:
        now += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        counts.append(now // (4 * N))
    return counts


def costly_chain(x: Array, length: int) -> Array:
    for _ in range(length):
        x = jnp.matmul(x, x, (N,))
    return x


# -- liveness


def test_an_array_lives_from_its_equation_to_its_last_reader() -> None:
    program = Program()
    (x,) = new(program)
    program.tracking = False
    tape = tape_of(program, costly_chain(x, 5))
    assert live(tape) == [1, 2, 1, 2, 1, 2, 1, 2, 1, 0]


def test_dead_code_is_no_memory() -> None:
    program = Program()
    (x,) = new(program)
    used = costly_chain(x, 1)
    costly_chain(x, 4)
    assert live(tape_of(program, used)) == [1, 0]


def test_arguments_are_not_freed() -> None:
    program = Program()
    x, y = new(program, 2)
    assert live(tape_of(program, jnp.matmul(x, y, (N,)))) == [1, 0]


def test_phases_begin_at_their_equations() -> None:
    program = Program()
    (x,) = new(program)
    out = costly_chain(x, 2)
    program.write(PLAIN, -1, out.var)
    tape = Tape()
    program.run(tape, [(1, "backward"), (2, "optimizer_step")], program.inputs)
    assert tape.marks == [(1, "backward"), (3, "optimizer_step")]


# -- fusion, by the rules of xla/service/instruction_fusion.cc


def fused_arrays(build: Callable[[Array, Array], Array]) -> int:
    """Arrays of N elements that are memory, of those that ``build`` makes of two products, for a third one."""
    program = Program()
    x, y = (jnp.matmul(one, one, (N,)) for one in new(program, 2))
    with program.scope("build"):
        out = build(x, y)
    tape = tape_of(program, jnp.matmul(out, out, (N,)))
    return sum(size == 4 * N and label.module == "build" for size, label in zip(tape.sizes, tape.labels))


@pytest.mark.parametrize(
    ("build", "arrays"),
    [
        (lambda x, y: x, 0),
        (lambda x, y: jnp.scale(x), 1),
        (lambda x, y: jnp.scale(jnp.scale(jnp.scale(x))), 1),
        (lambda x, y: jnp.add(jnp.multiply(x, y), jnp.subtract(x, y)), 1),
        (lambda x, y: both(jnp.scale(x)), 1),
        (lambda x, y: both(jnp.add(x, y)), 2),
        (lambda x, y: both(jnp.exp(x)), 2),
        (lambda x, y: jnp.scale(jnp.exp(x)), 1),
        (lambda x, y: jnp.multiply(x, jnp.sum_(jnp.scale(y), (0,), keepdims=True)), 1),
        (lambda x, y: jnp.scale(jnp.zeros(x.program, (N,))), 1),
    ],
    ids=[
        "a product that a product reads",
        "what a product reads is written out",
        "a chain is one loop",
        "values with one reader each are part of it",
        "a cheap value of one array is computed twice",
        "a sum of two arrays with two readers is kept",
        "an exponential with two readers is kept",
        "an exponential with one reader is not",
        "a reduction reads through what it sums",
        "a constant is no memory, what is made of it for a product is",
    ],
)
def test_what_is_memory(build: Callable[[Array, Array], Array], arrays: int) -> None:
    assert fused_arrays(build) == arrays


def both(x: Array) -> Array:
    """Two readers of x."""
    return jnp.multiply(jnp.scale(x), jnp.sum_(x, (0,), keepdims=True))


def test_a_fused_value_keeps_what_it_is_made_of_alive() -> None:
    program = Program()
    (x,) = new(program)
    first = jnp.matmul(x, x, (N,))
    doubled = jnp.scale(first)
    other = costly_chain(x, 2)
    out = jnp.add(doubled, other)
    assert live(tape_of(program, out)) == [1, 2, 3, 2, 1, 0]


def test_without_fusion_every_array_is_memory() -> None:
    program = Program()
    (x,) = new(program)
    tape = tape_of(program, jnp.scale(jnp.scale(jnp.scale(x))), fuse=False)
    assert live(tape) == [1, 2, 1, 2, 1, 0]


# -- what the backward pass keeps


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: jnp.scale(x), 0),
        (lambda x: jnp.add(x, x), 0),
        (lambda x: jnp.multiply(x, x), 1),
        (lambda x: jnp.square(x), 1),
        (lambda x: jnp.exp(x), 1),
        (lambda x: jnp.tanh(x), 2),
        (lambda x: jnp.gelu(x), 5),
        (lambda x: jnp.silu(x), 3),
        (lambda x: jnp.softmax(jnp.reshape(x, 10, 100)), 1),
        (lambda x: jnp.square(jnp.softmax(jnp.reshape(x, 10, 100))), 2),
        (lambda x: jnp.dropout(x, 0.5), 1.25),
        (lambda x: jnp.layer_norm(x), 2),
    ],
    ids=[
        "a scale keeps nothing",
        "a sum keeps nothing",
        "a product keeps its operands",
        "a square keeps twice its operand",
        "an exponential keeps its result",
        "a hyperbolic tangent keeps its result and one minus that",
        "gelu keeps five arrays",
        "silu keeps its operand, the sigmoid and its derivative",
        "softmax keeps the exponentials",
        "and what reads it the quotient",
        "dropout keeps a mask of bytes and its zeros",
        "layer norm keeps twice its operand and the centred one",
    ],
)
def test_kept_arrays(function: Callable[[Array], Array], kept: float) -> None:
    """By the function alone: a sum, which keeps nothing, reads its result. In arrays of its operand's size."""
    program = Program()
    (weight,) = new(program)
    out = function(jnp.scale(weight))
    program.backward(jnp.sum_(out, range(len(out.shape))))
    assert program.residual_bytes() / (4 * N) == pytest.approx(kept, abs=0.05)


def test_a_parameter_is_not_counted_as_kept() -> None:
    program = Program()
    x, weight = new(program, 2)
    program.backward(jnp.sum_(jnp.matmul(x, weight, (N,)), (0,)))
    assert program.residual_bytes() == 0


def test_a_value_kept_twice_is_counted_once() -> None:
    program = Program()
    (weight,) = new(program)
    y = jnp.scale(weight)
    program.backward(jnp.sum_(jnp.add(jnp.multiply(y, weight), jnp.multiply(y, weight)), (0,)))
    assert program.residual_bytes() == 4 * N


# -- blocks written once


def block(x: Array, weight: Array) -> Array:
    return jnp.gelu(jnp.matmul(jnp.dropout(x, 0.1), weight, (N,)))


def in_turns(count: int, written_once: bool) -> tuple[Program, list[int]]:
    program = Program()
    weight, scale = new(program, 2)
    start = jnp.scale(weight)

    def turn() -> tuple[Array, ...]:
        return block(start, weight), jnp.multiply(start, scale)

    turns = repeat(program, count, turn) if written_once else [turn() for _ in range(count)]
    total = turns[0][0]
    for index, (first, second) in enumerate(turns):
        total = jnp.add(total, first)
        if index % 2:  # the second result is not always used
            total = jnp.add(total, second)
    program.backward(jnp.sum_(jnp.square(total), (0,)))
    gradients = [program.cotangents[array.var] for array in (weight, scale) if array.var in program.cotangents]
    program.write(PLAIN, -1, *gradients)
    return program, gradients


@given(st.integers(1, 7))
def test_turns_written_once_are_the_turns_written_out(count: int) -> None:
    once, _ = in_turns(count, True)
    out, _ = in_turns(count, False)
    assert once.residual_bytes() == out.residual_bytes()
    peaks = []
    for program in (once, out):
        tape = Tape()
        program.run(tape, [], program.inputs)
        assert live(tape)[-1] == 0
        peaks.append(max(live(tape)))
    # Gradients of a turn are added up when it is over instead of one by one.
    assert abs(peaks[0] - peaks[1]) <= 2


def test_a_checkpointed_block_keeps_its_input_and_runs_twice() -> None:
    def program(remat: bool) -> Program:
        made = Program()
        (weight,) = new(made)
        x = jnp.scale(weight)
        for _ in range(3):
            x = checkpoint(block, x, weight) if remat else block(x, weight)
        made.backward(jnp.sum_(x, (0,)))
        return made

    plain, remat, evaluated = program(False), program(True), Program()
    evaluated.tracking = False
    x, weight = new(evaluated, 2)
    for _ in range(3):
        x = block(x, weight)
    assert remat.residual_bytes() == 3 * 4 * N
    assert plain.residual_bytes() > 15 * 4 * N
    assert len(remat.written) == len(plain.written) + len(evaluated.written)


def test_a_block_that_is_only_evaluated_is_not_checkpointed() -> None:
    program = Program()
    program.tracking = False
    (weight,) = new(program)
    checkpoint(block, weight, weight)
    assert program.rules == []
