"""Sizes that remember how they are computed, so that a recording with one batch or length serves those with others.

While a recording is followed, sizes that facts state are :class:`Size` in place of int. Arithmetic on them is noted in
a :class:`Program`, and so is each answer that they give: a comparison, the truth of one, and its value wherever
something takes it for a plain number (a range, a key, a text, a fraction). With other sizes the recording would go the
same way where all of these answers are the same, and :meth:`Program.run` says which numbers come out then.

A Size is no int, although ``isinstance`` takes it for one: whatever Python does with an int without asking it first,
it cannot do with a Size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

# Steps of one program: beyond them a recording asks so much of its sizes that another recording is as quick.
MOST_STEPS = 20_000

# What on the right side of an operator leaves a number as it is.
_IDLE = {operator.add: 0, operator.sub: 0, operator.mul: 1, operator.floordiv: 1}
_COMMUTE = (operator.add, operator.mul)


class Unfollowable(Exception):
    """A recording asks too much of its sizes."""


class Program:
    """Integer arithmetic on some inputs, step by step, and the answers that were taken from it.

    count  of its values
    steps  (operator, left, right, answer): a step's operands are the numbers of earlier values, inputs first. Where
           ``answer`` is None the result is the next value; else it is no value, and has to be that answer again. A
           constant is a step without operator.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.steps: list[tuple[Callable[[Any, Any], Any] | None, int, int, bool | None]] = []
        self._values: dict[Any, Size] = {}
        self._constants: dict[int, int] = {}
        self._answered: set[Any] = set()
        self.count = 0

    def input(self, name: str, value: int) -> int:
        """One of the sizes that may be others. All of them come before the first step."""
        assert not self.steps
        self.names.append(name)
        self.count += 1
        return cast("int", Size(self, value, self.count - 1))

    def _step(self, function: Callable[[Any, Any], Any] | None, left: int, right: int, answer: bool | None) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise Unfollowable
        self.steps.append((function, left, right, answer))
        self.count += answer is None

    def constant(self, value: int) -> int:
        """The number of a value that is always the same."""
        if value not in self._constants:
            self._constants[value] = self.count
            self._step(None, value, 0, None)
        return self._constants[value]

    def compute(self, function: Callable[[Any, Any], int], left: tuple[int, int], right: tuple[int, int]) -> Size:
        """``left`` and ``right``: (number of the value, what it is here)."""
        key = function, left[0], right[0]
        if key not in self._values:
            self._step(*key, None)
            self._values[key] = Size(self, function(left[1], right[1]), self.count - 1)
        return self._values[key]

    def answer(self, function: Callable[[Any, Any], bool], left: tuple[int, int], right: tuple[int, int]) -> bool:
        found = function(left[1], right[1])
        key = function, left[0], right[0]
        if left[0] != right[0] and key not in self._answered:
            self._answered.add(key)
            self._step(*key, found)
        return found

    def run(self, inputs: Sequence[int]) -> list[int] | None:
        """All values with other inputs; None where an answer would be another one."""
        values = list(inputs)
        try:
            for function, left, right, answer in self.steps:
                if function is None:
                    values.append(left)
                elif answer is None:
                    values.append(function(values[left], values[right]))
                elif function(values[left], values[right]) is not answer:
                    return None
        except ZeroDivisionError:
            return None
        return values


class _Now:
    """The program that is being written; None where nothing is followed."""

    __slots__ = ("program",)

    def __init__(self) -> None:
        self.program: Program | None = None


now = _Now()


@contextmanager
def following() -> Iterator[Program]:
    """A program of what happens inside. What is left of its sizes afterwards are plain numbers."""
    assert now.program is None
    now.program = program = Program()
    try:
        yield program
    finally:
        now.program = None


class Size:
    """A number of a program, in the eyes of ``isinstance`` an int."""

    __slots__ = ("number", "program", "value")

    def __init__(self, program: Program, value: int, number: int) -> None:
        self.program = program
        self.value = value
        self.number = number

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        """Its value, which something goes by: it has to be this one."""
        if self.program is now.program:
            self.program.answer(operator.eq, (self.number, self.value), (self.program.constant(self.value), self.value))
        return self.value

    __int__ = __trunc__ = __ceil__ = __floor__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __repr__(self) -> str:
        return repr(self.__index__())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec)

    def __bool__(self) -> bool:
        size: Any = self
        return bool(size != 0)

    def __pos__(self) -> Size:
        return self

    def __neg__(self) -> Any:
        size: Any = self
        return 0 - size

    def __abs__(self) -> Any:
        size: Any = self
        return size if size >= 0 else -size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__index__(), name)


NUMBERS = (int, float)


def _operands(size: Size, other: Any) -> tuple[Program, tuple[int, int], tuple[int, int]] | None:
    """The program that is being written, and the operands in it; None where there are none."""
    program = now.program
    if program is None or size.program is not program:
        return None
    if type(other) is Size:
        if other.program is not program:
            other = other.value
        else:
            return program, (size.number, size.value), (other.number, other.value)
    if type(other) is not int and type(other) is not bool:
        return None
    return program, (size.number, size.value), (program.constant(int(other)), int(other))


def _plain(other: Any) -> Any:
    return other.__index__() if type(other) is Size else other


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    idle = _IDLE.get(function)

    def forward(self: Size, other: Any) -> Any:
        if type(other) is int and other == idle:
            return self
        operands = _operands(self, other)
        if operands is None:
            return function(self.__index__(), _plain(other)) if isinstance(other, NUMBERS) else NotImplemented
        program, left, right = operands
        return program.compute(function, left, right)

    def reflected(self: Size, other: Any) -> Any:
        if function in _COMMUTE:
            return forward(self, other)
        operands = _operands(self, other)
        if operands is None:
            return function(_plain(other), self.__index__()) if isinstance(other, NUMBERS) else NotImplemented
        program, right, left = operands
        return program.compute(function, left, right)

    return forward, reflected


def _comparison(function: Callable[[Any, Any], bool]) -> Any:
    def compare(self: Size, other: Any) -> Any:
        operands = _operands(self, other)
        if operands is None:
            return function(self.__index__(), _plain(other)) if isinstance(other, NUMBERS) else NotImplemented
        program, left, right = operands
        return program.answer(function, left, right)

    return compare


def _pinned(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """What gives no size of a size: only this value has that result."""

    def forward(self: Size, other: Any) -> Any:
        return function(self.__index__(), _plain(other)) if isinstance(other, NUMBERS) else NotImplemented

    def reflected(self: Size, other: Any) -> Any:
        return function(_plain(other), self.__index__()) if isinstance(other, NUMBERS) else NotImplemented

    return forward, reflected


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _forward, _reflected = _arithmetic(getattr(operator, _name))
    setattr(Size, f"__{_name}__", _forward)
    setattr(Size, f"__r{_name}__", _reflected)
for _name in ("truediv", "pow", "lshift", "rshift"):
    _forward, _reflected = _pinned(getattr(operator, _name))
    setattr(Size, f"__{_name}__", _forward)
    setattr(Size, f"__r{_name}__", _reflected)
for _name, _logical in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor), ("divmod", divmod)):
    _forward, _reflected = _pinned(_logical)
    setattr(Size, f"__{_name}__", _forward)
    setattr(Size, f"__r{_name}__", _reflected)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _comparison(getattr(operator, _name)))
