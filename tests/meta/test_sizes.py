"""Sizes that are followed: other inputs give what plain numbers give, or the program says that it does not know."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.meta import sizes
from memlint.meta.sizes import MOST_STEPS, Program, Size, Unfollowable, following

NUMBERS = st.integers(1, 40)


def followed(function: Callable[..., Any], *values: int) -> tuple[Program, Any, Any]:
    """(program, what comes of the values, the same as it was followed)"""
    with following() as program:
        result = function(*[program.input(str(place), value) for place, value in enumerate(values)])
        numbers = [program.constant(one) if type(one) is int else one.number for one in result]
    return program, function(*values), numbers


WAYS: dict[str, Callable[[int, int], list[int]]] = {
    "arithmetic": lambda b, s: [b * s * 3, (b + s) // 4, s % 7, -(-s // b), 5 - b, 64 // s, 100 % b, abs(b - s)],
    "a comparison": lambda b, s: [b if b > s else s, min(b, s), max(b, 8), b * s if b == 1 else s],
    "products": lambda b, s: [prod((b, 2, s)), sum([b, s, b])],
    "a loop": lambda b, s: [s + turn for turn in range(b)],
    "a list": lambda b, s: [s] * min(b, 3),
    "a slice": lambda b, s: list(range(10))[:b],
    "a place": lambda b, s: [(s, 2 * s, 3 * s)[min(b, 2)]],
    "a fraction": lambda b, s: [ceil(b * 0.5), int(0.5 * s), round(s / b), int(s**0.5), 1 << min(b, 5), b & 3],
    "a key": lambda b, s: [{1: s, 2: 2 * s}.get(b, b), len({b, s, 2 * b})],
    "a text": lambda b, s: [len(f"{b} x {s}"), len(str(b)), int(format(s, "d"))],
    "truth": lambda b, s: [s if b - 1 else b, int(bool(s - b)), s if not b // 4 else b],
    "equality of tuples": lambda b, s: [s if (b, 4) == (s, 4) else b, [b, s].index(s)],
    "an order": lambda b, s: sorted([b, s, 12]),
    "both in one": lambda b, s: [*divmod(s, b), s.bit_length()],
}


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
@pytest.mark.parametrize("way", WAYS)
def test_with_other_sizes_a_program_gives_what_plain_numbers_give_or_nothing(
    way: str, batch: int, length: int, other: int, longer: int
) -> None:
    program, plain, numbers = followed(WAYS[way], batch, length)
    here = program.run([batch, length])
    assert here is not None
    assert [here[number] for number in numbers] == plain
    there = program.run([other, longer])
    if there is not None:
        assert [there[number] for number in numbers] == WAYS[way](other, longer)


@given(NUMBERS, NUMBERS)
def test_sizes_whose_values_nobody_asked_for_may_be_any(length: int, other: int) -> None:
    program, _, numbers = followed(lambda b, s: [b * s, prod((s, b, 4)), s // 2], 4, length)
    values = program.run([3, other])
    assert values is not None
    assert [values[number] for number in numbers] == [3 * other, 12 * other, other // 2]


PINNING: dict[str, Callable[[Any], object]] = {
    "range": range,
    "an index": lambda s: "x" * 10 + "y" * s,
    "a slice": lambda s: [1, 2, 3][:s],
    "int": int,
    "float": float,
    "hash": hash,
    "a set": lambda s: {s},
    "text": str,
    "a format": lambda s: f"{s:5}",
    "a product with a fraction": lambda s: 0.5 * s,
    "a fraction": lambda s: s / 3,
    "a root": lambda s: s**0.5,
    "a list's length": lambda s: [0] * s,
    "bits": lambda s: s.bit_length(),
}


@pytest.mark.parametrize("taken", PINNING)
def test_what_takes_a_size_for_a_number_holds_it_to_its_value(taken: str) -> None:
    with following() as program:
        PINNING[taken](program.input("s", 5))
    assert program.run([5]) is not None
    assert program.run([6]) is None


def test_a_size_is_a_whole_number_in_the_eyes_of_who_asks() -> None:
    with following() as program:
        size: Any = program.input("s", 5)
        assert isinstance(size, int)
        assert not isinstance(size, bool)
        assert type(size) is Size
        assert (size == None, size != "s", size == 5) == (False, True, True)  # noqa: E711
        with pytest.raises(TypeError):
            size + "s"


def test_a_division_by_what_may_be_nothing_is_no_answer() -> None:
    program, _, _ = followed(lambda b, s: [s // (b - 1)], 3, 8)
    assert program.run([1, 8]) is None


def test_a_size_of_another_program_is_a_plain_number() -> None:
    with following() as program:
        early = program.input("s", 5)
    assert (early + 1, type(early * 2), hash(early), [1] * early) == (6, int, 5, [1] * 5)
    with following() as program:
        late = program.input("s", 7)
        total: Any = late + early
    values = program.run([100])
    assert values is not None
    assert values[total.number] == 105
    assert sizes.now.program is None


def test_an_endless_program_is_given_up() -> None:
    with following() as program:
        size: Any = program.input("s", 5)
        with pytest.raises(Unfollowable):
            reduce(operator.add, [size] * (MOST_STEPS + 2))
    assert sizes.now.program is None
