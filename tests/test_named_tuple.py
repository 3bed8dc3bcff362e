"""Our named tuples are those of typing: same behaviour, less work to make a class."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from memlint.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A place."""

    line: int
    name: str = "x"
    rest: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}:{self.line}"


class Theirs(typing.NamedTuple):
    """A place."""

    line: int
    name: str = "x"
    rest: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}:{self.line}"


class One(NamedTuple):
    only: int


class Child(Ours):
    def twice(self) -> int:
        return 2 * self.line


ASKED: dict[str, typing.Callable[[typing.Any], object]] = {
    "positional": lambda kind: tuple(kind(1, "a", (2,))),
    "by name": lambda kind: tuple(kind(rest=(2,), line=3)),
    "fields": lambda kind: (kind(1).line, kind(1).name, kind(1).rest),
    "a property": lambda kind: kind(4, "b").shown,
    "replaced": lambda kind: tuple(kind(1)._replace(name="c")),
    "as a dictionary": lambda kind: kind(1)._asdict(),
    "made": lambda kind: tuple(kind._make([1, "a", ()])),
    "field names": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__),
    "equal to a tuple": lambda kind: kind(1) == (1, "x", ()),
    "hash": lambda kind: hash(kind(1)),
    "documented": lambda kind: (kind.__doc__, typing.get_type_hints(kind), kind.__module__),
    "shown": lambda kind: repr(kind(1)).replace(kind.__name__, ""),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_it_does_as_typings(asked: typing.Callable[[typing.Any], object]) -> None:
    assert asked(Ours) == asked(Theirs)


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param(lambda kind: kind(), TypeError, id="a field is missing"),
        pytest.param(lambda kind: kind(1, "a", (), 2), TypeError, id="a field too many"),
        pytest.param(lambda kind: kind(1, nmae="a"), TypeError, id="a misspelled field"),
        pytest.param(
            lambda kind: kind(1)._replace(nmae="a"), (TypeError, ValueError), id="to replace one there is not"
        ),
        pytest.param(lambda kind: kind._make([1]), TypeError, id="made of too little"),
        pytest.param(lambda kind: setattr(kind(1), "line", 2), AttributeError, id="a field is not set"),
    ],
)
def test_what_typings_refuse_it_refuses(
    kind: typing.Any, call: typing.Callable[[typing.Any], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(kind)


def test_it_is_copied_and_pickled() -> None:
    place = Ours(1, "a", (2,))
    assert pickle.loads(pickle.dumps(place)) == copy.copy(place) == copy.deepcopy(place) == place
    assert type(copy.copy(place)) is Ours


def test_a_class_may_have_one_field_and_children() -> None:
    assert One(5).only == 5
    assert One(only=5) == (5,)
    assert Child(3).twice() == 6
    assert type(Child(3)._replace(line=4)) is Child


def test_a_field_without_a_default_cannot_follow_one_with_a_default() -> None:
    with pytest.raises(TypeError, match="Wrong: a field without a default"):

        class Wrong(NamedTuple):
            first: int = 1
            second: int  # type: ignore[misc]
