"""Records a profile: the trace of :mod:`memlint.measure.trace` with named dimensions instead of sizes.

The model's code runs once for each course of events that it takes: PyTorch's symbolic integers flow through it, and
what it decides by their values becomes a guard. Where the guards end, it is run again with values from beyond them.
Before anything is written, settings drawn at random are traced afresh and compared, byte for byte.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

import memlint
from memlint.measure import training
from memlint.measure.child import MeasureError
from memlint.measure.factory import workload
from memlint.measure.symbolic import Dimensions, NotExpressible, SymbolicCudaSemantics, SymbolicTracker
from memlint.measure.trace import (
    CONVOLUTIONS,
    MATRIX_PRODUCTS,
    CudaOnCpu,
    Recorder,
    Traced,
    _explained,
    _run,
    trace,
)
from memlint.meta.tape import Label, Tape
from memlint.named_tuple import NamedTuple
from memlint.profiles.evaluate import OutsideGuards, choose, evaluate
from memlint.profiles.expression import Expression, parse
from memlint.profiles.profile import ACCUMULATION, Dimension, Kind, Profile, Regime, dumps
from memlint.profiles.runs import digest

USES = {"matmul": MATRIX_PRODUCTS, "convolution": CONVOLUTIONS}
MAX_REGIMES = 8
MAX_TRACES = 16
CHECKED_SETTINGS = 3

# Facts of the training loop that a recording holds for; a run with others needs another recording.
TRAINING_FACTS = (
    "optimizer",
    "optimizer_implementation",
    "parameter_dtype",
    "compute_dtype",
    "autocast",
    "ema",
    "hyperparameters.momentum",
    "hyperparameters.weight_decay",
)


class Watched(dict[str, Any]):
    """A config that remembers which of its values were read, by dotted key; what it hands out does so, too."""

    def __init__(self, values: Mapping[str, Any], log: dict[str, Any], path: str = "") -> None:
        super().__init__({key: watched(value, log, f"{path}{key}") for key, value in values.items()})
        self.log = log
        self.path = path

    def _read(self, key: str) -> None:
        value = dict.get(self, key)
        if not isinstance(value, Watched):
            self.log[f"{self.path}{key}"] = value

    def __getitem__(self, key: str) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._read(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._read(key)
        return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._read(key)
        return super().__contains__(key)

    # Who goes through all of it has read all of it. (Overriding __iter__ also keeps C code off the short way.)

    def _read_all(self) -> None:
        for key in dict.keys(self):
            self._read(key)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def copy(self) -> Any:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: Any) -> Watched:
        return Watched({key: dict.__getitem__(self, key) for key in dict.keys(self)}, self.log, self.path)


def watched(value: Any, log: dict[str, Any], path: str) -> Any:
    if isinstance(value, dict):
        return Watched({k: dict.__getitem__(value, k) for k in dict.keys(value)}, log, path + ".")
    if isinstance(value, list):
        return [watched(item, log, f"{path}.{at}") for at, item in enumerate(value)]
    return value


class _Recorder(Recorder, SymbolicTracker):
    """Labels as a trace does, books formulas."""

    def ran(self, func: Any) -> None:
        self.operators.add(func._schema.name.partition("::")[2])


class _Course(NamedTuple):
    """What one symbolic run gave. ``steps`` are of kinds by their place in ``kinds``."""

    kinds: list[tuple[str, str, str, str]]
    tape: list[tuple[str, list[str]]]
    saved: str
    guards: list[str]
    parameters: str
    trainable: str
    uses: set[str]
    dimensions: Dimensions
    decided: dict[str, str]


def record(request: dict[str, Any], progress: Callable[[str], None] = lambda line: None) -> Profile:
    """The profile of a request's model. Raises MeasureError for what cannot be recorded.

    Beside what a trace needs, a request has ``dimensions`` (each with name, fact, key, value, and ``leaves``: the
    paths in the config that hold it) and ``output`` (where the profile will be).
    """
    dimensions = [Dimension(one["name"], one["fact"], one["key"], one["value"]) for one in request["dimensions"]]
    if not dimensions:
        raise MeasureError("no dimension is named: say which sizes the profile is to be in")
    log: dict[str, Any] = {}
    before = set(sys.modules)
    kinds: dict[tuple[str, str, str, str], int] = {}
    regimes: list[tuple[list[list[str]], tuple[tuple[str, str], ...], str]] = []
    counts = ("", "")
    uses: set[str] = set()
    names: list[str] = []
    traces = 0

    def profile(checked: Sequence[dict[str, int]] = ()) -> Profile:
        known = frozenset(one.name for one in dimensions)
        return Profile(
            path=request["output"],
            model=names[0],
            made_with={"memlint": memlint.__version__, "torch": torch.__version__},
            dimensions=tuple(dimensions),
            settings=_settings(log, request),
            training={name: request["facts"].get(name) for name in TRAINING_FACTS},
            sources=_sources(request, before),
            parameters=parse(counts[0]),
            trainable_parameters=parse(counts[1]),
            uses=tuple(sorted(uses)),
            kinds=tuple(Kind(*kind[:3], _formula(kind[3], known)) for kind in kinds),
            regimes=tuple(
                Regime(
                    tuple(tuple(_formula(guard, known) for guard in guards) for guards in when),
                    tape,
                    _formula(saved, known),
                )
                for when, tape, saved in regimes
            ),
            checked=tuple(checked),
        )

    for values in _settings_to_try(dimensions):
        if regimes:
            if len(regimes) >= MAX_REGIMES or traces >= MAX_TRACES:
                break
            if _covered(profile(), values):
                continue
        progress("tracing " + _said(values))
        try:
            course = _trace(request, values, log, names)
        except MeasureError:
            if not regimes:
                raise
            continue  # the model does not run at these values: no one needs its memory there
        traces += 1
        uses |= course.uses
        if counts[0] and counts != (course.parameters, course.trainable):
            raise MeasureError(
                f"the number of parameters is {counts[0]} for one setting and {course.parameters} for another in a way "
                "that no one formula says: record without that dimension"
            )
        counts = (course.parameters, course.trainable)
        places = [kinds.setdefault(kind, len(kinds)) for kind in course.kinds]
        tape = tuple((phase, " ".join(fold(_placed(words, places)))) for phase, words in course.tape)
        for when, known, saved in regimes:
            if known == tape and saved == course.saved:
                when.append(course.guards)
                break
        else:
            regimes.append(([course.guards], tape, course.saved))
    made = profile()
    return made._replace(checked=tuple(_check(request, made, progress)))


def _formula(text: str, names: frozenset[str]) -> Expression:
    expression = parse(text)
    unknown = expression.names - names
    if unknown:
        raise MeasureError(f"the size {text} depends on {sorted(unknown)[0]}, which is none of the dimensions")
    return expression


def _said(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


# -- one run ---------------------------------------------------------------------------------------------------------


def _trace(request: dict[str, Any], values: dict[str, int], log: dict[str, Any], names: list[str]) -> _Course:
    """One symbolic run with these values behind the names. ``names`` gets the class of the model."""
    loop = {one["name"] for one in request["dimensions"] if one["fact"] == ACCUMULATION}
    dimensions = Dimensions(values, fixed=loop)
    recorder = _Recorder(_vocabulary(request))
    recorder.dimensions = dimensions
    inner = _with_sizes(request, dimensions.sizes, log)
    plan = training.plan_of(inner)
    work = workload(inner)

    def build() -> Any:
        model = work.build()
        names.append(type(model).__name__)
        return model

    watched_work = work._replace(build=build)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        dimensions.mode.allow_non_fake_inputs = True
        stack.enter_context(dimensions.mode)
        stack.enter_context(recorder)
        stack.enter_context(SymbolicCudaSemantics(recorder))
        stack.enter_context(CudaOnCpu())
        stack.enter_context(recorder.watching_modules())
        try:
            traced = _run(inner, plan, watched_work, recorder)
        except MeasureError:
            raise
        except Exception as error:
            raise _explained(error, recorder, work) from error
    try:
        return _course(request, traced, recorder, dimensions)
    except NotExpressible as error:
        raise MeasureError(f"{work.source}: a size cannot be written as a formula: {error}") from None


def _vocabulary(request: dict[str, Any]) -> int | None:
    vocabulary = request["facts"].get("vocabulary_size")
    return vocabulary if isinstance(vocabulary, int) else None


def _with_sizes(request: dict[str, Any], sizes: Mapping[str, Any], log: dict[str, Any]) -> dict[str, Any]:
    """The request with the dimensions' sizes in its config and its facts."""
    config = _copied(request["config"])
    facts = dict(request["facts"])
    for one in request["dimensions"]:
        size = sizes[one["name"]]
        for leaf in one["leaves"]:
            place: Any = config
            for key in leaf[:-1]:
                place = place[key]
            place[leaf[-1]] = size
        facts[one["fact"]] = size
    return {**request, "config": Watched(config, log), "facts": facts}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _course(request: dict[str, Any], traced: Traced, recorder: _Recorder, dimensions: Dimensions) -> _Course:
    texts = [dimensions.text(size) for size in recorder.sizes]
    kinds: dict[tuple[str, str, str, str], int] = {}
    by_storage = []
    tape = traced.tape
    for place, label in zip(tape.sizes, tape.labels):
        kind = (label.component, starred(label.module), label.name, texts[place])
        by_storage.append(kinds.setdefault(kind, len(kinds)))
    phases = _words(tape, by_storage, len(kinds))
    guards = dimensions.guards()
    for one in request["dimensions"]:
        if one["fact"] == ACCUMULATION:
            name, value = one["name"], dimensions.values[one["name"]]
            guards = [guard for guard in guards if guard != f"{name} == {value}"]
            guards.insert(0, f"{name} == 1" if value == 1 else f"{name} >= {training.MICRO_BATCHES}")
    return _Course(
        list(kinds),
        phases,
        dimensions.text(tape.saved_bytes),
        guards,
        dimensions.text(traced.parameters),
        dimensions.text(traced.trainable_parameters),
        {name for name, operators in USES.items() if recorder.operators & operators},
        dimensions,
        recorder.decided,
    )


def starred(module: str) -> str:
    """A module path with stars for the numbers of repeated blocks, as breakdowns write it."""
    names = []
    for name in module.split("."):
        stem, _, number = name.rpartition("_")
        names.append("*" if name.isdigit() else f"{stem}_*" if stem and number.isdigit() else name)
    return ".".join(names)


def _words(tape: Tape, kinds: list[int], count: int) -> list[tuple[str, list[str]]]:
    """Events as words of :mod:`memlint.profiles.profile`, by phase."""
    alive: list[list[int]] = [[] for _ in range(count)]
    starts = [at for at, _ in tape.marks] + [len(tape.events)]
    found: list[tuple[str, list[str]]] = []
    for (begin, phase), end in zip(tape.marks, starts[1:]):
        words = []
        for event in _ordered(tape.events[begin:end]):
            if event >= 0:
                alive[kinds[event]].append(event)
                words.append(f"+{kinds[event]}")
                continue
            held = alive[kinds[~event]]
            depth = len(held) - 1 - held.index(~event)
            words.append(f"-{kinds[~event]}" if not depth else f"-{kinds[~event]}.{depth}")
            if depth and depth == len(held) - 1:
                words[-1] = f"<{kinds[~event]}"
            held.remove(~event)
        found.append((phase, words))
    return found


def _ordered(events: Sequence[int]) -> Iterator[int]:
    """The events with frees that follow each other newest first. What order they had means nothing: where autocast
    drops its cast weights, it is that of addresses."""
    frees: list[int] = []
    for event in events:
        if event < 0:
            frees.append(event)
            continue
        yield from sorted(frees)
        frees.clear()
        yield event
    yield from sorted(frees)


def _placed(words: Iterable[str], places: Sequence[int]) -> list[str]:
    """The words with kinds numbered as in the profile."""
    found = []
    for word in words:
        kind, dot, depth = word[1:].partition(".")
        found.append(f"{word[0]}{places[int(kind)]}{dot}{depth}")
    return found


MIN_SAVED_WORDS = 6
MAX_PERIOD = 4096
CANDIDATES = 24


def fold(words: Sequence[str]) -> list[str]:
    """Write consecutive repetitions once: ``a b a b a b`` is ``3x( a b )``. Unrolled it is the same again."""
    following: dict[tuple[str, ...], list[int]] = {}
    for at in range(len(words) - 2):
        following.setdefault(tuple(words[at : at + 3]), []).append(at)
    cursor = dict.fromkeys(following, 0)
    folded: list[str] = []
    at = 0
    while at < len(words):
        best_period = best_times = 0
        key = tuple(words[at : at + 3])
        places = following.get(key, [])
        index = cursor.get(key, 0)
        while index < len(places) and places[index] <= at:
            index += 1
        cursor[key] = index
        for place in places[index : index + CANDIDATES]:
            period = place - at
            if period > MAX_PERIOD:
                break
            body = words[at : at + period]
            times = 1
            while words[at + times * period : at + (times + 1) * period] == body:
                times += 1
            if times > 1 and period * (times - 1) > best_period * max(0, best_times - 1):
                best_period, best_times = period, times
        if best_period * (best_times - 1) >= MIN_SAVED_WORDS:
            folded += [f"{best_times}x(", *fold(words[at : at + best_period]), ")"]
            at += best_period * best_times
        else:
            folded.append(words[at])
            at += 1
    return folded


# -- what it was made from -------------------------------------------------------------------------------------------


def _settings(log: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The values that were read, without the dimensions."""
    sizes = {".".join(map(str, leaf)) for one in request["dimensions"] for leaf in one["leaves"]}
    found = {}
    for key, value in log.items():
        for dotted, plain in _leaves(key, value):
            if dotted not in sizes:
                found[dotted] = plain
    return dict(sorted(found.items()))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name in dict.keys(value):
            yield from _leaves(f"{key}.{name}", dict.__getitem__(value, name))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _leaves(f"{key}.{at}", item)
    else:
        yield key, value


def _sources(request: dict[str, Any], before: set[str]) -> dict[str, str]:
    """Digest of every module that the recording imported from the project's own folders, by path from the profile."""
    ours = os.path.dirname(os.path.abspath(memlint.__file__)) + os.sep
    base = os.path.dirname(request["output"])
    found = {}
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if not path or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        if path.startswith(ours) or f"{os.sep}site-packages{os.sep}" in path:
            continue
        if any(path.startswith(os.path.join(folder, "")) for folder in request["folders"]):
            made = digest(path)
            if made is None:
                raise MeasureError(f"{path} cannot be read, or is too long for a source file")
            found[os.path.relpath(path, base).replace(os.sep, "/")] = made
    return dict(sorted(found.items()))


# -- which settings --------------------------------------------------------------------------------------------------


def _settings_to_try(dimensions: Sequence[Dimension]) -> Iterator[dict[str, int]]:
    """The recorded setting first, then what rules and fixes ask for: halves, doubles, one, and other accumulation."""
    base = {one.name: one.recorded for one in dimensions}
    loops = [one.name for one in dimensions if one.fact == ACCUMULATION]
    variants = [base]
    for name in loops:
        variants = [{**one, name: count} for one in variants for count in (min(one[name], 2), 3 - min(one[name], 2))]
    for variant in variants:
        yield variant
    for factor in (2, 1 / 2, 4, 1 / 4, 8, 0):
        for variant in variants:
            for name, value in base.items():
                if name not in loops:
                    yield {**variant, name: max(1, int(value * factor))}


def _covered(profile: Profile, values: Mapping[str, int]) -> bool:
    try:
        choose(profile, values)
    except OutsideGuards:
        return False
    return True


# -- the proof -------------------------------------------------------------------------------------------------------


def _check(request: dict[str, Any], profile: Profile, progress: Callable[[str], None]) -> Iterator[dict[str, int]]:
    """Settings at which a fresh trace gave the same tape. Raises MeasureError for one that did not."""
    drawn = random.Random(profile.model)
    done: list[dict[str, int]] = []
    for _ in range(20 * CHECKED_SETTINGS):
        values = {
            one.name: drawn.choice((1, 2))
            if one.fact == ACCUMULATION
            else drawn.randint(max(1, one.recorded // 2), max(2, one.recorded + one.recorded // 2))
            for one in profile.dimensions
        }
        if values in done or not _covered(profile, values):
            continue
        done.append(values)
        progress("checking " + _said(values))
        fresh = trace(_with_plain_sizes(request, values)).tape
        difference = compare(evaluate(profile, values), fresh)
        if difference:
            raise MeasureError(f"the recording does not hold at {_said(values)}: {difference}. Nothing was written")
        yield values
        if len(done) == CHECKED_SETTINGS:
            return


def _with_plain_sizes(request: dict[str, Any], values: Mapping[str, int]) -> dict[str, Any]:
    changed = _with_sizes(request, values, {})
    return {**changed, "config": _copied(changed["config"])}


def compare(ours: Tape, fresh: Tape) -> str:
    """How two tapes differ in bytes, event for event and phase for phase; "" where they do not."""
    if ours.saved_bytes != fresh.saved_bytes:
        return f"autograd keeps {fresh.saved_bytes:,} bytes, not {ours.saved_bytes:,}"
    left, right = list(_flow(ours)), list(_flow(fresh))
    for number, (one, other) in enumerate(zip(left, right)):
        if one != other:
            return f"event {number} is {other}, not {one}"
    return "" if len(left) == len(right) else f"there are {len(right)} events, not {len(left)}"


def _flow(tape: Tape) -> Iterator[tuple[str, int, Label]]:
    """(phase, bytes allocated or freed, whose) for every event that moves bytes."""
    ends = [*(at for at, _ in tape.marks[1:]), len(tape.events)]
    for (begin, phase), end in zip(tape.marks, ends):
        for event in _ordered(tape.events[begin:end]):
            storage = event if event >= 0 else ~event
            size = tape.sizes[storage]
            label = tape.labels[storage]
            if size:
                module = starred(label.module.replace("*", "0"))
                yield phase, size if event >= 0 else -size, Label(label.component, module, label.name)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the measuring process answers to ``memlint record``."""
    from memlint.measure.worker import tell

    profile = record(request, lambda line: tell(request, line))
    return {"profile": dumps(profile), "checked": len(profile.checked), "notes": list(_notes(profile))}


def _notes(profile: Profile) -> Iterator[str]:
    """For each dimension, the values (others as recorded) that the recording covers, of those that were tried."""
    base = profile.recorded()
    for one in profile.dimensions:
        if one.fact == ACCUMULATION:
            continue
        values = sorted({max(1, int(one.recorded * factor)) for factor in (1 / 4, 1 / 2, 1, 2, 4, 8)} | {1})
        held = [value for value in values if _covered(profile, {**base, one.name: value})]
        said = ", ".join(map(str, held))
        without = "" if len(held) == len(values) else f"; not for {', '.join(str(v) for v in values if v not in held)}"
        yield f"{one.name} ({one.key}) holds for {said}{without}"
