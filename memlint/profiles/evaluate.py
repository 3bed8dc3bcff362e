"""Profile + values of its dimensions -> Tape. No PyTorch, no code of the recorded model."""

from __future__ import annotations

from collections.abc import Mapping

from memlint import work
from memlint.meta.dims import Dim
from memlint.meta.tape import Label, Tape
from memlint.named_tuple import NamedTuple
from memlint.profiles.expression import Expression, ExpressionError
from memlint.profiles.profile import MAX_EVENTS, MAX_VALUE, Profile, ProfileError, Regime, names_of, unroll


class OutsideGuards(Exception):
    """The recording says nothing about these values; ``guard`` is the first condition that does not hold."""

    def __init__(self, guard: str, values: Mapping[str, int]) -> None:
        stated = ", ".join(f"{name} = {value}" for name, value in values.items())
        super().__init__(f"the recording holds where {guard}, which is not so for {stated}")
        self.guard = guard


class _Course(NamedTuple):
    """A regime's events, written out: the same for all values of the sizes that it does not loop over."""

    kinds: list[int]  # by storage
    events: list[int]
    marks: list[tuple[int, str]]


_Tape = tuple[tuple[str, str], ...]
_looped: dict[_Tape, tuple[str, ...]] = {}  # the dimensions that say how often something repeats
_courses: dict[tuple[str, _Tape, tuple[int, ...]], _Course] = {}
MOVED_PER_STEP = 1000
MAX_COURSES = 32  # what a check tries, and not what a long-lived process has ever been asked


def evaluate(profile: Profile, values: Mapping[str, int], symbolic: bool = False) -> Tape:
    """The tape of the recorded step with these dimensions.

    values    by name of the dimension (``{"B": 8}``), each at least 1
    symbolic  storages keep their formulas
    Raises OutsideGuards for values that the recording does not cover, ProfileError for a profile that contradicts
    itself.
    """
    regime = choose(profile, values)
    course = _course(profile, regime, {**profile.recorded(), **values})
    sizes: dict[int, int] = {}
    try:
        for kind in set(course.kinds):
            sizes[kind] = profile.kinds[kind].size.size(values)
    except ExpressionError as error:
        raise ProfileError(profile.path, f"kinds[{kind}]: {error}") from None
    labels = [
        Label(kind.component, kind.module.replace("*", "0"), kind.name) for kind in profile.kinds
    ]  # breakdowns write numbers as stars
    tape = Tape(symbolic)
    tape.sizes = [sizes[kind] for kind in course.kinds]
    tape.labels = [labels[kind] for kind in course.kinds]
    tape.events = list(course.events)
    tape.marks = list(course.marks)
    if symbolic:
        shapes = {kind: _shape(profile, profile.kinds[kind].size, values) for kind in sizes}
        tape.shapes = [shapes[kind] for kind in course.kinds]
    tape.saved_bytes = _saved(profile, regime, values)
    return tape


def saved_bytes(profile: Profile, values: Mapping[str, int]) -> int:
    """Bytes that autograd holds at the end of the last forward. Raises as :func:`evaluate`."""
    return _saved(profile, choose(profile, values), values)


def _saved(profile: Profile, regime: Regime, values: Mapping[str, int]) -> int:
    try:
        return regime.saved.size(values)
    except ExpressionError as error:
        raise ProfileError(profile.path, f"saved: {error}") from None


def choose(profile: Profile, values: Mapping[str, int]) -> Regime:
    """The regime that holds for these values. Raises OutsideGuards, naming a guard of the one that comes closest."""
    known = {one.name: values.get(one.name, one.recorded) for one in profile.dimensions}
    for name, value in known.items():
        if value < 1:
            raise OutsideGuards(f"{name} >= 1", known)
        if value > MAX_VALUE:
            raise OutsideGuards(f"{name} <= {MAX_VALUE}", known)
    nearest: tuple[int, str] | None = None
    for regime in profile.regimes:
        for guards in regime.when:
            broken = [guard.text for guard in guards if not _holds(profile, guard, known)]
            if not broken:
                return regime
            if nearest is None or len(broken) < nearest[0]:
                nearest = (len(broken), broken[0])
    raise OutsideGuards(nearest[1] if nearest is not None else "nothing is stated", known)


def _holds(profile: Profile, guard: Expression, values: Mapping[str, int]) -> bool:
    try:
        return bool(guard.value(values))
    except ExpressionError:
        return False  # a division by zero: whatever was recorded, it was not this


def _course(profile: Profile, regime: Regime, values: Mapping[str, int]) -> _Course:
    looped = _looped.get(regime.tape)
    if looped is None:
        looped = tuple(sorted(frozenset().union(*(names_of(words) for _, words in regime.tape))))
        _looped[regime.tape] = looped
    key = (profile.path, regime.tape, tuple(values[name] for name in looped))
    if key not in _courses:
        if len(_courses) >= MAX_COURSES:
            _courses.clear()
        _courses[key] = _written_out(profile, regime, values)
    return _courses[key]


def _written_out(profile: Profile, regime: Regime, values: Mapping[str, int]) -> _Course:
    kinds: list[int] = []
    events: list[int] = []
    marks: list[tuple[int, str]] = []
    alive: list[list[int]] = [[] for _ in profile.kinds]
    for phase, words in regime.tape:
        marks.append((len(events), phase))
        try:
            steps = unroll(words, values)
        except ValueError as error:
            raise ProfileError(profile.path, f"{phase}: {error}") from None
        if len(events) + len(steps) > MAX_EVENTS:
            raise ProfileError(profile.path, f"more than {MAX_EVENTS:,} events")
        work.spend(len(steps), "writing out a recorded step")
        for mark, kind, depth in steps:
            held = alive[kind]
            if mark == "+":
                held.append(len(kinds))
                events.append(len(kinds))
                kinds.append(kind)
            elif depth < len(held):
                after = len(held) - 1 if mark == "<" else depth  # each of them moves up by one
                if after > MOVED_PER_STEP:
                    work.spend(after // MOVED_PER_STEP, "writing out a recorded step")
                events.append(~held.pop(-1 - after))
            else:
                raise ProfileError(profile.path, f"{phase}: frees a storage of kind {kind} that is not alive")
    return _Course(kinds, events, marks)


def _shape(profile: Profile, size: Expression, values: Mapping[str, int]) -> tuple[tuple[int, ...], int] | None:
    """A formula as the shape of bytes that :func:`memlint.tape.breakdown.closed_form` reads; None for a constant."""
    from memlint.profiles.expression import parse

    if not size.names:
        return None
    facts = {one.name: (one.name, one.fact) for one in profile.dimensions}
    dimensions: list[int] = []
    try:
        for text in size.factors():
            factor = parse(text)
            value = factor.value(values)
            if isinstance(value, (bool, float)):
                return None
            symbols = tuple(facts[name] for name in sorted(factor.names))
            dimensions.append(Dim(value, text, symbols) if symbols else value)
    except ExpressionError:
        return None  # no product of factors that are formulas themselves: its brackets are too many
    return tuple(dimensions), 1
