"""Sizes that code loops over: from runs at three values to runs at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.measure.courses import Event, Kind, Loop, Word
from memlint.measure.loops import NotAlike, Sample, generalized, tidied
from memlint.profiles.expression import parse

Program = Callable[[int], list[Event]]


def kind(name: str, size: str = "512") -> Kind:
    return ("activations", "cell", name, size)


def made(name: str, size: str = "512") -> Event:
    return Event("+", kind(name, size))


def freed(name: str, size: str = "512", depth: int = 0) -> Event:
    return Event("-", kind(name, size), str(depth))


def sample(program: Program, value: int) -> Sample:
    return Sample(
        value, (("forward", tuple(program(value))),), (f"{16 * value + 4}*B",), (f"{4 * value}*B != {value}",)
    )


def at(words: Iterable[Word], value: int) -> list[Event]:
    """The words with a value for S, loops written out."""

    def number(text: str) -> int:
        return int(parse(text).value({"S": value, "B": 1000}))

    found: list[Event] = []
    for word in words:
        if isinstance(word, Loop):
            found += at(word.body, value) * number(word.times)
        else:
            component, module, name, size = word.kind
            found.append(Event(word.mark, (component, module, name, str(number(size))), str(number(word.depth))))
    return found


PROGRAMS: dict[str, Program] = {
    "a loop with a first and a last step of their own": lambda s: [
        made("first"),
        *[made("step"), made("gate"), freed("gate")] * (s - 2),
        made("last"),
    ],
    "a loop there and a loop back": lambda s: [made("state")] * s + [freed("state")] * s,
    "two loops over the same words": lambda s: [made("a"), freed("a")] * s + [made("b")] + [made("a"), freed("a")] * s,
    "sizes that grow with the number of steps": lambda s: [
        made("stack", f"{64 * s}*B"),
        *[made("step", "64*B")] * s,
        freed("stack", f"{64 * s}*B"),
    ],
    "a square of it": lambda s: [made("scores", f"{4 * s * s}*B"), *[made("row")] * s],
    "a storage below all steps": lambda s: [made("x")] * (s + 1) + [freed("x", depth=s)],
    "no loop at all": lambda s: [made("batch", f"{12 * s}"), freed("batch", f"{12 * s}")],
    "a step that begins as what follows": lambda s: [made("a"), made("b")] * s + [made("a"), made("c")],
    "several loops in constant layers": lambda s: ([made("x"), *[made("h"), freed("h")] * s]) * 3,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_said_of_three_values_holds_for_others(program: Program) -> None:
    found = generalized("S", [sample(program, value) for value in (5, 6, 7)])
    [(phase, words)] = found.course
    assert phase == "forward"
    for value in (4, 9, 40):
        assert at(words, value) == at(program(value), value)
    assert parse(found.formulas[0]).value({"S": 9, "B": 2}) == (16 * 9 + 4) * 2


def test_two_sizes_are_taken_one_after_the_other() -> None:
    def program(frames: int, steps: int) -> list[Event]:
        return ([made("frame", f"{8 * frames}"), *[made("step", f"{steps}*B")] * steps]) * frames

    def over_steps(frames: int) -> Sample:
        found = generalized("S", [sample(lambda s: program(frames, s), value) for value in (11, 12, 13)])
        return found._replace(value=frames)

    [(_, words)] = generalized("F", [over_steps(frames) for frames in (5, 6, 7)]).course
    [loop] = words
    assert isinstance(loop, Loop)
    assert loop.times == "F"
    inner = loop.body[-1]
    assert isinstance(inner, Loop)
    assert inner.times == "S"
    assert {kind[3] for kind in (loop.body[0].kind, inner.body[0].kind)} == {"8*F", "B*S"}  # type: ignore[union-attr]


def test_a_distance_above_one_holds_for_its_multiples() -> None:
    def program(s: int) -> list[Event]:
        return [made("chunk", f"{s // 2}*B")] * (s // 2)

    [(_, words)] = generalized("S", [sample(program, value) for value in (6, 8, 10)]).course
    assert at(words, 30) == at(program(30), 30)


UNLIKE: dict[str, Program] = {
    "steps that grow": lambda s: [made("seen", f"{4 * t}") for t in range(1, s + 1)],
    "steps of steps": lambda s: [made(f"{t % 2}") for t in range(s) for _ in range(t)],
    "other words at another value": lambda s: [made("odd" if s % 2 else "even")],
    "steps without order": lambda s: [made(str(s * t % 7)) for t in range(s)],
}


@pytest.mark.parametrize("program", UNLIKE.values(), ids=UNLIKE)
def test_what_does_not_follow_is_refused(program: Program) -> None:
    with pytest.raises(NotAlike):
        generalized("S", [sample(program, value) for value in (5, 6, 7)])


def test_conditions_go_with_the_size() -> None:
    found = generalized("S", [sample(lambda s: [made("a")], value) for value in (5, 6, 7)])
    [guard] = found.guards
    assert parse(guard).value({"S": 9, "B": 1})
    assert not parse("4*B != 4").value({"B": 1})
    for s, b in ((9, 1), (4, 7)):
        assert parse(guard).value({"S": s, "B": b}) == (4 * s * b != s)


LETTERS = st.lists(st.sampled_from("abcd"), max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(LETTERS, LETTERS, st.integers(-2, 2)), min_size=1, max_size=3))
def test_a_guess_is_right_at_the_values_that_it_was_made_from(parts: list[tuple[list[str], list[str], int]]) -> None:
    def program(s: int) -> list[Event]:
        found: list[Event] = []
        for before, body, extra in parts:
            found += [made(letter) for letter in before]
            found += [made(letter) for letter in body] * (s + extra)
        return found

    try:
        [(_, words)] = generalized("S", [sample(program, value) for value in (5, 6, 7)]).course
    except NotAlike:
        return
    for value in (5, 6, 7):
        assert at(words, value) == at(program(value), value)


@settings(deadline=None)  # sympy's first formula takes its time
@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 9), st.integers(1, 60))
def test_tidied_it_is_worth_the_same(a: int, b: int, c: int, s: int) -> None:
    text = f"(({a})+({b})*S**2*S+({a})*S)//{c}"
    assert parse(tidied(text)).value({"S": s}) == (a + b * s**3 + a * s) // c
