"""Which other releases may run a config that pins none, and why none older.

Whatever is not pinned was installed on some day, all of it on the same one. So a candidate is a day, and with it the
newest release of each library on that day. Behaviour changes at the borders of ``memlint.releases`` alone, and only
behaviours count that the run was asked about: the candidates are the days before the borders of those. No day is one
that is older than what the run itself states: a release that is pinned, a model, a key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import memlint.data
from memlint import releases
from memlint.dialects.spec import ASSUMED, OVERRIDE, Fact
from memlint.named_tuple import NamedTuple
from memlint.units import format_bytes

if TYPE_CHECKING:
    from memlint.dialects.spec import TrainingSpec
    from memlint.tape.estimate import Estimate, Interval


class Candidate(NamedTuple):
    """A run as it would be with what was newest before a border.

    behaviours  those that the border changed, of those that the run was asked about: the last that changed
    """

    spec: TrainingSpec
    behaviours: tuple[str, ...]
    day: str


def candidates(spec: TrainingSpec) -> Iterator[Candidate]:
    """The run under each other set of releases that is plausible, from the latest on. One that is as the one before it
    is left out. What a candidate's own model asks, once it is recorded, counts for those that come after it."""
    if spec.under is None:
        return
    first, day, before = earliest(spec), TODAY, spec
    asked = dict(spec.asked)
    changed = {name: fact.value for name, fact in spec.facts.items() if fact.origin == OVERRIDE}
    while True:
        day, behaviours = _latest(spec, asked, first, day)
        if not behaviours:
            return
        other = spec.under({fact.name: fact for fact in _newest(spec, asked, day)})
        other.under = spec.under  # what is asked from here on, a model asks
        other = other.with_facts(**changed) if changed else other
        if other.architecture is None and other.architecture_on_devices and spec.architecture is not None:
            other.architecture = other.architecture_on_devices
        if other.architecture is not None and (any(asked[name] for name in behaviours) or _differs(before, other)):
            yield Candidate(other, tuple(behaviours), day)
            before = other
        for name in other.asked:
            asked[name] = asked.get(name, False) or other.asked[name]


TODAY = "9999"  # after every release


def _latest(spec: TrainingSpec, asked: Mapping[str, bool], first: str, last: str) -> tuple[str, list[str]]:
    """The last day between two on which one of the behaviours changed, and all that changed on it."""
    found: dict[str, list[str]] = {}
    for name in asked:
        library = releases.BEHAVIOURS[name].library
        assumed = releases.series(_assumed(spec, library))
        for border in releases.borders(name) if _is_open(spec, library) else ():
            day = releases.DAYS.get(library, {}).get(border, "")
            if first < day < last and (assumed is None or border <= assumed):
                found.setdefault(day, []).append(name)
    day = max(found, default="")
    return day, found.get(day, [])


def _is_open(spec: TrainingSpec, library: str) -> bool:
    """Whether nothing states a library's release."""
    fact = spec.facts.get(releases.LIBRARIES[library].fact)
    return fact is None or fact.origin == ASSUMED


def _newest(spec: TrainingSpec, asked: Iterable[str], day: str) -> Iterator[Fact]:
    """The releases, before a day, of the libraries whose behaviour was asked about."""
    for library in dict.fromkeys(releases.BEHAVIOURS[name].library for name in asked):
        if _is_open(spec, library):
            name, release = releases.LIBRARIES[library].fact, releases.on(library, day, _assumed(spec, library))
            value = f"{library} {release}" if name == "framework_version" else release
            yield Fact(name, value, ASSUMED, library, reason=f"the newest one before {day}")


def _assumed(spec: TrainingSpec, library: str) -> Any:
    """The release that is assumed of a library, which its keys date: no later one is plausible."""
    fact = spec.facts.get(releases.LIBRARIES[library].fact)
    return None if fact is None else fact.value


def _differs(spec: TrainingSpec, other: TrainingSpec) -> bool:
    """Whether two runs differ in a fact that is no release."""
    own = {library.fact for library in releases.LIBRARIES.values()}
    names = {*spec.facts, *other.facts} - own
    return any(_value(spec, name) != _value(other, name) for name in names)


def _value(spec: TrainingSpec, name: str) -> Any:
    fact = spec.facts.get(name)
    return None if fact is None else (fact.value,)


def earliest(spec: TrainingSpec) -> str:
    """The day that no release which runs the config is older than, for all that it states; "" where it states none."""
    ages, library = _ages(), "implementation" in spec.facts
    found = [_pinned(library, spec) for library in releases.LIBRARIES]
    found += [ages["implementations"].get(str(spec.facts["implementation"].value), "")] if library else []
    found += [ages[kind].get(name, "") for kind, name in _model_words(spec)]
    if spec.family in DATED_FAMILIES and isinstance(spec.root.value, dict):
        found += [ages["keys"].get(str(key).replace("-", "_"), "") for key in spec.root.value]
    return max(found, default="")


# The families whose keys are TRL's and transformers' own.
DATED_FAMILIES = ("hf-trainer", "trl")


def _model_words(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Of a model and its parts, what its ``config.json`` states that not every release of transformers knows."""
    config = spec.facts.get("hyperparameters.config")
    if config is not None and isinstance(config.value, dict):
        for part in (config.value, *(part for part in config.value.values() if isinstance(part, dict))):
            rope = part.get("rope_scaling") or part.get("rope_parameters")
            yield "model_types", str(part.get("model_type", ""))
            yield "rope_types", str(rope.get("rope_type", "")) if isinstance(rope, dict) else ""


@cache
def _ages() -> dict[str, dict[str, str]]:
    """What dates a run -> the day that it is younger than."""
    path = os.path.join(os.path.dirname(memlint.data.__file__), "ages.json")
    with open(path, encoding="utf-8") as file:
        contents = json.load(file)
    return {kind: {name: day for day, names in contents[kind].items() for name in names} for kind in KINDS}


KINDS = ("implementations", "rope_types", "model_types", "keys")


def _pinned(library: str, spec: TrainingSpec) -> str:
    """The day of the last border before a release that is pinned."""
    fact = spec.facts.get(releases.LIBRARIES[library].fact)
    stated = None if fact is None or fact.node is None or fact.origin == ASSUMED else releases.series(fact.value)
    if stated is None:
        return ""
    return max((day for border, day in releases.DAYS.get(library, {}).items() if border <= stated), default="")


def spanning(found: Estimate, others: Sequence[tuple[Candidate, int]], whole: Sequence[Estimate]) -> Estimate:
    """The estimate with intervals that hold the candidates' peaks as well. ``others``: what each allocates, in bytes;
    ``whole``: those estimates that may be the highest. Of each library an assumption says which release is taken, and
    how much more or less it would be before which border."""
    said: dict[str, list[str]] = {}
    low, high = found.allocated_interval
    for candidate, size in others:
        if not low <= size <= high or any(
            estimate.device_bytes > found.device_interval.high_bytes for estimate in whole
        ):
            library, reason = _reason(candidate, size - found.allocated_bytes)
            said.setdefault(library, []).append(reason)
    least = min((low, *(size for _, size in others)))
    notes = [(releases.LIBRARIES[name].title, releases.LIBRARIES[name].newest, said[name]) for name in said]
    noted = tuple((title, newest, f"no file pins it: {', '.join(reasons)}") for title, newest, reasons in notes)
    return found._replace(
        allocated_interval=_wider(found.allocated_interval, least - low, [one.allocated_interval for one in whole]),
        reserved_interval=_wider(found.reserved_interval, least - low, [one.reserved_interval for one in whole]),
        device_interval=_wider(found.device_interval, least - low, [one.device_interval for one in whole]),
        assumptions=(*found.assumptions, *noted),
    )


def _wider(own: Interval, less: int, others: Sequence[Interval]) -> Interval:
    """An interval that begins lower by so much, and ends where the last one does."""
    return own._replace(
        low_bytes=own.low_bytes + less, high_bytes=max((own.high_bytes, *(o.high_bytes for o in others)))
    )


def _reason(candidate: Candidate, more: int) -> tuple[str, str]:
    """(library, what the peak is more before its border, and what changed there)."""
    rows = [releases.BEHAVIOURS[name] for name in candidate.behaviours]
    days = releases.DAYS[rows[0].library]
    border = next(border for border in releases.borders(candidate.behaviours[0]) if days[border] == candidate.day)
    what = "; ".join(f"{'since' if row.since == border else 'until'} then {row.what}" for row in rows)
    size = format_bytes(abs(more))
    return rows[0].library, f"{'+' if more >= 0 else '-'}{size} before {'.'.join(map(str, border))} ({what})"
