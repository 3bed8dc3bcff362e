"""Which other releases may run a config that pins none, and why none older.

Whatever is not pinned was installed on some day, all of it on the same one. So a candidate is a day, and with it the
newest release of each library on that day. Behaviour changes at the borders of ``memlint.releases`` alone, and only
behaviours count that the run was asked about: the candidates are the days before the borders of those. No day is one
that is older than what the run itself states: a release that is pinned, a model, a key.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import memlint.data
from memlint import releases
from memlint.facts.spec import ASSUMED, HYPER, OVERRIDE, Fact, Name, named
from memlint.named_tuple import NamedTuple
from memlint.releases.behaviour import EITHER, LESS, LITTLE, MORE, Series
from memlint.releases.days import DAYS
from memlint.trainers.embedders import embedder
from memlint.units import format_bytes

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.tape.estimate import Estimate, Interval


class Candidate(NamedTuple):
    """A run as it would be with what was newest before a day.

    changed  (behaviour, the release that changed it) of all that was asked about and changed from this day on
    """

    spec: TrainingSpec
    changed: tuple[tuple[str, Series], ...]
    day: str


# How many there are of what only the data say, objects of the fullest image or voxels of a scene, and how large images
# are, and the fewest and the most that other data may have, of families that say so.
COUNTED: tuple[tuple[Name, Name], ...] = (
    (HYPER + "boxes", HYPER + "boxes_between"),
    ("image_size", HYPER + "image_size_between"),
    (HYPER + "voxels", HYPER + "voxels_between"),
    (HYPER + "voxels_alone", HYPER + "voxels_alone_between"),
)


def candidates(spec: TrainingSpec) -> list[Candidate]:
    """The run under those other sets of releases that are plausible and may take the most memory, or the least; with
    the shortest sample, where nothing but the model bounds the longest one; and with the fewest and the most images,
    where only the data say how many there are."""
    if spec.under is None:
        return []
    every = list(_candidates(spec)) if spec.asked else []
    return [*_of_other_data(spec), *_with_kernels(spec), *_with_older_code(spec), *_turning(every)]


def _of_other_data(spec: TrainingSpec) -> list[Candidate]:
    bounded = spec.facts.get("sequence_bound")
    found: list[dict[Name, Any]] = []
    few: dict[Name, Any] = {"images_per_sample": spec.get("fewest_images", 0)} if may_be_blind(spec) else {}
    shortest: dict[Name, Any] = {"sequence_length": _fewest_tokens(spec)} if bounded and bounded.value else {}
    if shortest and few and spec.get("fewest_images"):
        shortest.update(few)  # an image that stands in for none is in the shortest sample, too
        found.append(shortest)
    else:
        found += [facts for facts in (shortest, few) if facts]
    if few and spec.get("most_images"):
        found.append({"images_per_sample": spec["most_images"]})
    counts = [(name, ends.value) for name, between in COUNTED if (ends := _ends(spec, name, between)) is not None]
    if counts:
        found += [{name: ends[side] for name, ends in counts} for side in (0, 1)]
    return [Candidate(spec.with_facts(facts), (), "") for facts in found]


def _fewest_tokens(spec: TrainingSpec) -> int:
    """Of a row: one for each device that shares the rows, which code that leaves no rest fills them up to."""
    shared: tuple[Name, ...] = ("parallelism.tensor", "parallelism.context", "parallelism.ulysses")
    return math.prod(int(spec.get(name) or 1) for name in shared)


def _ends(spec: TrainingSpec, name: Name, between: Name) -> Fact | None:
    """The fewest and the most of what is assumed, where both are said."""
    known = spec.facts.get(name)
    return spec.facts.get(between) if known is not None and known.origin == ASSUMED else None


def is_counted(spec: TrainingSpec) -> bool:
    """Whether only the data say how many there are of something, and between which ends."""
    return any(between in spec.facts for _, between in COUNTED)


def others(spec: TrainingSpec) -> list[TrainingSpec]:
    """The run under other sets of releases that are plausible, where it is known under them as far as it is itself."""
    return [candidate.spec for candidate in _candidates(spec)] if spec.under is not None and spec.asked else []


def _with_kernels(spec: TrainingSpec) -> list[Candidate]:
    """The run with a kernel that no file states, nor rules out: Apertus' activation has one in a package of its own."""
    config, known = spec.facts.get("hyperparameters.config"), spec.facts.get("fused_kernels")
    kind = config.value.get("model_type") if config is not None and isinstance(config.value, dict) else ""
    kernels = list(known.value or ()) if known is not None else []
    if kind != "apertus" or "xielu" in kernels:
        return []
    return [Candidate(spec.with_facts({"fused_kernels": [*kernels, "xielu"]}), (), "")]


def _with_older_code(spec: TrainingSpec) -> list[Candidate]:
    """The run under older code of a program whose releases have no numbers (memlint/dialects/embedders.py)."""
    name = HYPER + "tevatron"
    code = spec.facts.get(name)
    if code is None or code.origin != ASSUMED or not code.value.startswith("since "):
        return []
    return [Candidate(spec.with_facts({name: code.value.replace("since", "before")}), (), "")]


def may_be_blind(spec: TrainingSpec) -> bool:
    """Whether only the data say that samples have images."""
    images = spec.facts.get("images_per_sample")
    return images is not None and images.origin == ASSUMED and bool(images.value)


def _turning(every: Sequence[Candidate]) -> Iterator[Candidate]:
    """Those from which on memory may fall where it rose until then, or rise where it fell, going back in time, and the
    oldest one."""
    came: set[str] = set()
    known = 0
    for number, one in enumerate(every):
        came = _signs(one.changed[known:]) or came  # with little ones it goes on as it went
        known = len(one.changed)
        if number + 1 == len(every) or len(came | _signs(every[number + 1].changed[known:])) > 1:
            yield one


def _signs(changed: Iterable[tuple[str, Series]]) -> set[str]:
    """Whether a run took more or less memory before these changes, little ones aside."""
    found = set()
    for name, border in changed:
        row = releases.BEHAVIOURS[name]
        other = {MORE: LESS, LESS: MORE}.get(row.takes, row.takes)
        found |= {other if border == row.since else row.takes}
    found -= {LITTLE}
    return {MORE, LESS} if EITHER in found else found


def _candidates(spec: TrainingSpec) -> Iterator[Candidate]:
    """The run before each day on which something changed that was asked about, from the latest on. One that is as the
    one before it is left out."""
    assert spec.under is not None
    first, day, before = earliest(spec), TODAY, spec
    asked = dict(spec.asked)
    stated = spec.facts if spec.derivation is None else spec.derivation.tried
    tried = {named(name): fact.value for name, fact in stated.items() if fact.origin == OVERRIDE}
    changed: list[tuple[str, Series]] = []
    while True:
        day, changes = _latest(spec, asked, first, day)
        if not changes:
            return
        other = spec.under({fact.name: fact for fact in _newest(spec, asked, day)})
        other = other.stating(tried) if tried else other
        if other.architecture is None and other.architecture_on_devices and spec.architecture is not None:
            other.architecture = other.architecture_on_devices
        if other.architecture is None and spec.architecture_at_least:
            other.architecture = other.architecture_at_least or None
        if other.architecture is not None and (any(asked[name] for name, _ in changes) or _differs(before, other)):
            changed += changes
            yield Candidate(other, tuple(changed), day)
            before = other
        asked = {**other.asked, **asked}


TODAY = "9999"  # after every release


def _latest(spec: TrainingSpec, asked: Iterable[str], first: str, last: str) -> tuple[str, list[tuple[str, Series]]]:
    """The last day between two on which one of the behaviours changed, and all that changed on it."""
    found: dict[str, list[tuple[str, Series]]] = {}
    for name in asked:
        library = releases.BEHAVIOURS[name].library
        if releases.BEHAVIOURS[name].brief:
            continue  # (may_have_met)
        assumed = releases.series(_assumed(spec, library))
        for border in releases.borders(name) if _is_open(spec, library) else ():
            day = DAYS.get(library, {}).get(border, "")
            if first < day < last and (assumed is None or border <= assumed):
                found.setdefault(day, []).append((name, border))
    day = max(found, default="")
    return day, found.get(day, [])


def may_have_met(spec: TrainingSpec, behaviour: str) -> bool:
    """Whether nothing pins a release, and the run is no older than a behaviour that was gone after weeks, nor younger:
    of all the days of an older run it had few."""
    row = releases.BEHAVIOURS[behaviour]
    known = DAYS[row.library]
    since, until = (known.get(border, "") if border is not None else "" for border in (row.since, row.until))
    limit = releases.series(_assumed(spec, row.library))
    if not _is_open(spec, row.library) or (limit is not None and row.until is not None and limit < row.until):
        return False
    return since <= earliest(spec) < until


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
            yield Fact(named(name), value, ASSUMED, library, reason=f"the newest one before {day}")


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
    """The day that no release which runs the config is older than: for what the run states, and because what no file
    pins was installed in the last years."""
    ages, library = _ages(), "implementation" in spec.facts
    newest = max(day for days in DAYS.values() for day in days.values())
    found = [f"{int(newest[:4]) - UNPINNED_YEARS}{newest[4:]}"]
    found += [_pinned(name, spec) for name in releases.LIBRARIES]
    least = spec.facts.get("oldest_releases")
    found += [_since(name, release) for name, release in least.value.items()] if least else []
    found += [ages["implementations"].get(str(spec.facts["implementation"].value), "")] if library else []
    found += [ages[kind].get(name, "") for kind, name in _model_words(spec)]
    program = None if spec.launch is None else embedder(spec.launch.called)
    found += [program.since] if program is not None else []
    return max(*found, youngest_key(spec))


def youngest_key(spec: TrainingSpec) -> str:
    """The day that some key of a config is no older than, whether it says a fact or not; "" for none."""
    if spec.family not in DATED_FAMILIES or not isinstance(spec.root.value, dict):
        return ""
    days = _ages()["keys"]
    return max((days.get(str(key).replace("-", "_"), "") for key in spec.root.value), default="")


UNPINNED_YEARS = 3  # back from the newest release known: longer than a Python or a card's driver stays as it is
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
    return _since(library, None if fact is None or fact.node is None or fact.origin == ASSUMED else fact.value)


def _since(library: str, release: object) -> str:
    """The day of the last border that a release is not before; "" where there is none."""
    stated = releases.series(release)
    if stated is None:
        return ""
    return max((day for border, day in DAYS.get(library, {}).items() if border <= stated), default="")


def assumed(spec: TrainingSpec) -> tuple[tuple[str, str, str], ...]:
    """The assumption that names the releases which nothing states, of libraries that no fact names already."""
    open_ = dict.fromkeys(releases.BEHAVIOURS[name].library for name in spec.asked)
    named = [releases.LIBRARIES[name] for name in open_ if releases.LIBRARIES[name].fact not in spec.facts]
    if not named:
        return ()
    taken = ", ".join(sorted(f"{library.title} {library.newest}" for library in named))
    return (("releases", taken, "the newest that are known: no file pins them"),)


def spanning(found: Estimate, others: Sequence[tuple[Candidate, Estimate]]) -> Estimate:
    """The estimate with intervals that hold the candidates' as well. Of each library an assumption says which release
    is taken, and how much more or less the run takes before which of its changes."""
    notes = []
    for candidate, other in others:
        low, high = found.device_interval
        if low <= other.device_bytes <= high:
            continue
        more = other.device_bytes - found.device_bytes
        size = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} with what was newest before {candidate.day}"
        named: dict[str, list[str]] = {}
        for name, border in candidate.changed:
            row = releases.BEHAVIOURS[name]
            if row.takes == LITTLE:
                continue
            what = f"{'.'.join(map(str, border))}: {'' if row.since == border else 'no more '}{row.what}"
            named.setdefault(row.library, []).append(what)
        for library, changes in named.items():
            title, newest = releases.LIBRARIES[library].title, releases.LIBRARIES[library].newest
            notes.append((title, newest, f"no file pins it: {size} ({'; '.join(changes)})"))
    return found._replace(
        allocated_interval=_wider(found.allocated_interval, [other.allocated_interval for _, other in others]),
        reserved_interval=_wider(found.reserved_interval, [other.reserved_interval for _, other in others]),
        device_interval=_wider(found.device_interval, [other.device_interval for _, other in others]),
        assumptions=(*found.assumptions, *notes),
    )


def _wider(own: Interval, others: Sequence[Interval]) -> Interval:
    ends = (own, *others)
    return own._replace(low_bytes=min(end.low_bytes for end in ends), high_bytes=max(end.high_bytes for end in ends))
