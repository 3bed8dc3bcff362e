"""Records a profile: the trace of :mod:`memlint.measure.trace` with named dimensions instead of sizes.

The model's code runs once for each course of events that it takes: PyTorch's symbolic integers flow through it, and
what it decides by their values becomes a guard. Where the guards end, it is run again with values from beyond them.
A size that the code loops over is a plain number to it: runs at three values show what repeats
(:mod:`memlint.measure.loops`), and runs at further values prove it. Before anything is written, settings drawn at
random are traced afresh and compared, byte for byte.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any

import torch

import memlint
from memlint.measure import training
from memlint.measure.child import MeasureError
from memlint.measure.courses import Course, Kind, course_of, fold, kinds_in, ordered, spelled, starred
from memlint.measure.factory import workload
from memlint.measure.loops import NotAlike, Sample, generalized
from memlint.measure.symbolic import Dimensions, NotExpressible, SymbolicCudaSemantics, SymbolicTracker
from memlint.measure.trace import (
    CONVOLUTIONS,
    MATRIX_PRODUCTS,
    CudaOnCpu,
    Recorder,
    Traced,
    explained,
    run_steps,
    trace,
)
from memlint.meta.tape import Label, Tape
from memlint.named_tuple import NamedTuple
from memlint.profiles import profile as profiles
from memlint.profiles.evaluate import OutsideGuards, choose, evaluate
from memlint.profiles.expression import Expression, ExpressionError, parse
from memlint.profiles.profile import ACCUMULATION, Dimension, Profile, ProfileError, Regime, dumps
from memlint.profiles.runs import digest

USES = {"matmul": MATRIX_PRODUCTS, "convolution": CONVOLUTIONS}
MAX_REGIMES = 12
MAX_TRACES = 16
CHECKED_SETTINGS = 3
# Where three runs begin, and how far they are apart, for a size that the code loops over. From 5 on, first and last
# steps are not the same ones; numbers like S - 4 are not 0, so that they show in formulas.
LOOP_STARTS = (5, 8)
MAX_LOOP_STEP = 16
MAX_DOUBLED = 128  # a loop longer than this is not run at twice its length
DESCRIPTIONS = ("config.json", "model_index.json")  # of a model in a folder
MAX_FACTOR = 8  # of the recorded value: what is tried beyond it

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


class _Run(NamedTuple):
    """What one symbolic run gave, or several together.

    pinned  dimensions that the code turned into a plain number: the run says nothing of other values
    """

    course: Course
    saved: str
    guards: tuple[str, ...]
    parameters: str
    trainable: str
    uses: frozenset[str]
    pinned: tuple[str, ...] = ()


def record(request: dict[str, Any], progress: Callable[[str], None] = lambda line: None) -> Profile:
    """The profile of a request's model. Raises MeasureError for what cannot be recorded.

    Beside what a trace needs, a request has ``dimensions`` (each with name, fact, key, value, and ``leaves``: the
    paths in the config that hold it) and ``output`` (where the profile will be).
    """
    return _Recording(request, progress).made()


class _Recording:
    """Runs of one model, and the profile that they amount to."""

    def __init__(self, request: dict[str, Any], progress: Callable[[str], None]) -> None:
        self.request = request
        self.progress = progress
        self.dimensions = [
            Dimension(one["name"], one["fact"], one["key"], one["value"]) for one in request["dimensions"]
        ]
        if not self.dimensions:
            raise MeasureError("no dimension is named: say which sizes the profile is to be in")
        self.loops = [one.name for one in self.dimensions if one.fact == ACCUMULATION]
        self.log: dict[str, Any] = {}
        self.names: list[str] = []  # of the model's class
        self.before = set(sys.modules)
        self.regimes: list[tuple[list[tuple[str, ...]], _Run]] = []
        self.traces = 0
        self.looped: dict[str, tuple[int, int]] = {}  # between which values loops over a dimension were compared
        self.plain: tuple[str, ...] = ()  # dimensions that the code cannot do with as symbols
        self.unlike: set[tuple[str, ...]] = set()  # dimensions for which no repetition was found
        self.plan: tuple[tuple[str, ...], int, int] | None = None  # what worked before: names, first value, distance

    def made(self) -> Profile:
        for values in self.settings():
            if self.regimes:
                if len(self.regimes) >= MAX_REGIMES or self.traces >= MAX_TRACES:
                    break
                beyond = any(values[name] > high for name, (_, high) in self.looped.items())
                if beyond or _covered(self.profile(), values):
                    continue
            try:
                run = self.as_before(values)
                if run is None:
                    run = self.first(values)
                    run = self.over_loops(run, values) or run
            except MeasureError:
                if not self.regimes:
                    raise
                continue  # the model does not run at these values: no one needs its memory there
            self.traces += 1
            self.add(run, values)
            for other in self.without_accumulation(run, values):
                self.add(other, values)
        found = self.profile()
        return found._replace(checked=tuple(_check(self.request, found, self.progress)))

    def settings(self) -> Iterator[dict[str, int]]:
        """What is tried: what anyone may ask for, then the values for which a loop is too short to be one."""
        yield from _settings_to_try(self.dimensions)
        recorded = {one.name: one.recorded for one in self.dimensions}
        for name, (low, _) in self.looped.items():
            for value in range(1, low):
                for count in (training.MICRO_BATCHES, 1):
                    yield {**recorded, name: value, **dict.fromkeys(self.loops, count)}

    def first(self, values: Mapping[str, int]) -> _Run:
        """The symbolic run at some values. Where parts of PyTorch (recurrent networks, for one) cannot do with symbols,
        as few dimensions as need be are plain numbers: those count as looped over."""
        names = [one.name for one in self.dimensions if one.name not in self.loops]
        try:
            return self.trace(values) if not self.plain else self.partly(values, self.plain)
        except MeasureError as error:
            try:
                trace(_with_plain_sizes(self.request, values))
            except MeasureError:
                raise error from None  # it is not the symbols
            for size in range(1, len(names) + 1):
                for fixed in combinations(names, size):
                    try:
                        run = self.partly(values, fixed)
                    except MeasureError:
                        continue
                    self.plain = fixed
                    return run
            raise

    def partly(self, values: Mapping[str, int], fixed: tuple[str, ...]) -> _Run:
        run = self.trace(values, fixed)
        course = tuple((phase, tuple(fold(words))) for phase, words in run.course)
        return run._replace(
            course=course,
            guards=(*run.guards, *(f"{name} == {values[name]}" for name in fixed)),
            pinned=tuple(name for name in values if name in fixed or name in run.pinned),
        )

    def trace(self, values: Mapping[str, int], fixed: Iterable[str] = ()) -> _Run:
        self.progress("tracing " + _said(values))
        return _trace(self.request, dict(values), self.log, self.names, tuple(fixed))

    def add(self, run: _Run, values: Mapping[str, int]) -> None:
        if self.regimes:
            known = self.regimes[0][1]
            for one, other in ((known.parameters, run.parameters), (known.trainable, run.trainable)):
                if one != other and _value(one, values) != _value(other, values):
                    raise MeasureError(
                        f"the number of parameters is {one} for one setting and {other} for another in a way "
                        "that no one formula says: record without that dimension"
                    )
        for when, known in self.regimes:
            if known.course == run.course and known.saved == run.saved:
                when.append(run.guards)
                return
        self.regimes.append(([run.guards], run))

    def profile(self, checked: Sequence[dict[str, int]] = ()) -> Profile:
        return self.of(self.regimes, checked)

    def of(self, regimes: Sequence[tuple[Sequence[tuple[str, ...]], _Run]], checked: Sequence[Any] = ()) -> Profile:
        names = frozenset(one.name for one in self.dimensions)
        places: dict[Kind, int] = {}
        written = []
        for when, run in regimes:
            tape = []
            for phase, words in run.course:
                for kind in kinds_in(words):
                    places.setdefault(kind, len(places))
                tape.append((phase, " ".join(spelled(words, places))))
            guards = tuple(tuple(_formula(guard, names) for guard in one) for one in when)
            written.append(Regime(guards, tuple(tape), _formula(run.saved, names)))
        first = regimes[0][1]
        return Profile(
            path=self.request["output"],
            model=self.names[0],
            made_with={"memlint": memlint.__version__, "torch": torch.__version__},
            dimensions=tuple(self.dimensions),
            settings=_settings(self.log, self.request),
            training={name: self.request["facts"].get(name) for name in TRAINING_FACTS},
            sources=_sources(self.request, self.before, self.log),
            parameters=_formula(first.parameters, names),
            trainable_parameters=_formula(first.trainable, names),
            uses=tuple(sorted(frozenset().union(*(run.uses for _, run in regimes)))),
            kinds=tuple(profiles.Kind(*kind[:3], _formula(kind[3], names)) for kind in places),
            regimes=tuple(written),
            checked=tuple(checked),
        )

    def holds(self, run: _Run, values: Mapping[str, int]) -> bool:
        """Whether a fresh trace at these values is what a run says. Its guards are not asked."""
        self.progress("comparing " + _said(values))
        try:
            ours = evaluate(self.of([([()], run)]), values)
            return not compare(ours, trace(_with_plain_sizes(self.request, values)).tape)
        except (MeasureError, ProfileError, ExpressionError):
            return False

    # -- what one run says of others

    def without_accumulation(self, run: _Run, values: Mapping[str, int]) -> Iterator[_Run]:
        """A step of one micro-batch is one of two without the second: if so, it need not be run symbolically."""
        phases = [phase for phase, _ in run.course]
        if phases != ["setup", *["forward", "backward"] * training.MICRO_BATCHES, "optimizer_step"]:
            return
        [name] = self.loops
        course = (*run.course[:3], run.course[-1])
        guards = tuple(f"{name} == 1" if guard.startswith(f"{name} >= ") else guard for guard in run.guards)
        single = run._replace(course=course, guards=guards)
        if self.holds(single, {**values, name: 1}):
            yield single

    def as_before(self, values: Mapping[str, int]) -> _Run | None:
        """The run over the loops that are known by now, where nothing else is a plain number."""
        if self.plan is None or any(values[name] < self.looped[name][0] for name in self.plan[0]):
            return None
        names, start, step = self.plan
        return self.over(names, start, step, values, names, {})

    def over_loops(self, run: _Run, values: Mapping[str, int]) -> _Run | None:
        """The run for all values of the sizes that its code loops over; None where no repetition explains them."""
        if not run.pinned or run.pinned in self.unlike:
            return None
        known: dict[tuple[int, ...], _Run] = {}
        # Below the range of a loop, it is too short to be one.
        pinned = tuple(name for name in run.pinned if values[name] >= self.looped.get(name, (0, 0))[0])
        together = [pinned] if len(pinned) > 1 else []
        for names in (*together, *((name,) for name in pinned)):
            for start, step in _loop_plans([values[name] for name in names]):
                found = self.over(names, start, step, values, run.pinned, known)
                if found is not None:
                    rest = tuple(f"{name} == {values[name]}" for name in run.pinned if name not in names)
                    if not rest:
                        self.plan = (names, start, step)
                    return found._replace(guards=(*found.guards, *rest))
        if pinned == run.pinned:
            self.unlike.add(pinned)
        return None

    def over(
        self,
        names: tuple[str, ...],
        start: int,
        step: int,
        values: Mapping[str, int],
        fixed: tuple[str, ...],
        known: dict[tuple[int, ...], _Run],
    ) -> _Run | None:
        uses: set[str] = set()
        # No two sizes at the same value: their numbers would be taken for one another's.
        starts = {name: start + 3 * step * number for number, name in enumerate(names)}

        def sample(at: dict[str, int], rest: tuple[str, ...]) -> Sample:
            if rest:
                name, *others = rest
                points = [starts[name] + number * step for number in range(3)]
                three = [sample({**at, name: point}, tuple(others))._replace(value=point) for point in points]
                return generalized(name, three)
            key = tuple({**values, **at}.values())
            if key not in known:
                known[key] = self.trace({**values, **at}, fixed)
            run = known[key]
            if not set(run.pinned) <= set(fixed):
                raise NotAlike(f"{run.pinned} are plain numbers, too")
            uses.update(run.uses)
            return Sample(0, run.course, (run.saved, run.parameters, run.trainable), run.guards)

        try:
            found = sample({}, names)
        except (NotAlike, MeasureError):
            return None
        course = tuple((phase, tuple(fold(words))) for phase, words in found.course)
        run = _Run(course, found.formulas[0], found.guards, found.formulas[1], found.formulas[2], frozenset(uses))
        bounds = self.proven(run, starts, step, values)
        if bounds is None:
            return None
        guards = list(found.guards)
        for name, (low, high) in bounds.items():
            self.looped.setdefault(name, (low, high))
            guards += [f"{name} >= {low}", f"{name} <= {high}"]
            if step > 1:
                guards.append(f"{name}%{step} == {start % step}")
        return run._replace(guards=tuple(guards))

    def proven(
        self, run: _Run, starts: Mapping[str, int], step: int, values: Mapping[str, int]
    ) -> dict[str, tuple[int, int]] | None:
        """Lowest and highest value of each loop at which fresh traces bear the run out; None where they do not."""
        names = tuple(starts)
        fourth = {name: start + 3 * step for name, start in starts.items()}
        longer = frozenset().union(*(profiles.names_of(words) for _, words in self.of([([()], run)]).regimes[0].tape))
        high = {}
        for name in names:
            most = 1 if values[name] > MAX_DOUBLED else 2
            high[name] = max(fourth[name], values[name] * (most if name in longer else MAX_FACTOR))
        trials = [fourth, {name: values[name] for name in names}, high]
        if len(names) > 1:
            trials += [{**{other: values[other] for other in names}, name: high[name]} for name in names]
        for trial in {tuple(trial.items()): trial for trial in trials}.values():
            if not self.holds(run, {**values, **trial}):
                return None
        bounds = {}
        for name in names:
            low = min(starts[name], values[name])
            while low > step and self.holds(run, {**values, name: low - step}):
                low -= step
            bounds[name] = (low, high[name])
        return bounds


def _loop_plans(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first value, distance) of the three runs: one apart, or as far as the sizes are even."""
    for start in LOOP_STARTS:
        yield start, 1
    step = min(min(value & -value for value in values), MAX_LOOP_STEP)
    if step > 1:
        yield step * -(-LOOP_STARTS[0] // step), step


def _formula(text: str, names: frozenset[str]) -> Expression:
    expression = parse(text)
    unknown = expression.names - names
    if unknown:
        raise MeasureError(f"the size {text} depends on {sorted(unknown)[0]}, which is none of the dimensions")
    return expression


def _value(text: str, values: Mapping[str, int]) -> Any:
    try:
        return parse(text).value(values)
    except ExpressionError:
        return None


def _said(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


# -- one run ---------------------------------------------------------------------------------------------------------


def _trace(
    request: dict[str, Any], values: dict[str, int], log: dict[str, Any], names: list[str], fixed: tuple[str, ...] = ()
) -> _Run:
    """One symbolic run with these values behind the names. ``names`` gets the class of the model.

    fixed  dimensions that are to stay plain numbers
    """
    loop = {one["name"] for one in request["dimensions"] if one["fact"] == ACCUMULATION}
    dimensions = Dimensions(values, fixed={*loop, *fixed})
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
            traced = run_steps(inner, plan, watched_work, recorder)
        except MeasureError:
            raise
        except Exception as error:
            raise explained(error, recorder, work) from error
    try:
        return _run_of(request, traced, recorder, dimensions, fixed)
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


def _run_of(
    request: dict[str, Any], traced: Traced, recorder: _Recorder, dimensions: Dimensions, fixed: tuple[str, ...]
) -> _Run:
    texts = [dimensions.text(size) for size in recorder.sizes]
    tape = traced.tape
    kinds: list[Kind] = []
    for place, label in zip(tape.sizes, tape.labels):
        kinds.append((label.component, starred(label.module), label.name, texts[place]))
    course = course_of(tape, kinds)
    guards = dimensions.guards()
    pinned = []
    for one in request["dimensions"]:
        name, value = one["name"], dimensions.values[one["name"]]
        equal = f"{name} == {value}"
        if one["fact"] == ACCUMULATION:
            guards = [guard for guard in guards if guard != equal]
            guards.insert(0, f"{name} == 1" if value == 1 else f"{name} >= {training.MICRO_BATCHES}")
        elif name in fixed:
            guards = [guard for guard in guards if guard != equal]
        elif value > 1 and equal in guards:
            pinned.append(name)
    return _Run(
        tuple((phase, tuple(words if fixed else fold(words))) for phase, words in course),
        dimensions.text(tape.saved_bytes),
        tuple(guards),
        dimensions.text(traced.parameters),
        dimensions.text(traced.trainable_parameters),
        frozenset(name for name, operators in USES.items() if recorder.operators & operators),
        tuple(pinned),
    )


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


def _sources(request: dict[str, Any], before: set[str], log: Mapping[str, Any]) -> dict[str, str]:
    """Digest of every module that the recording imported from the project's own folders, and of the descriptions of
    the checkpoints that the config names there, by path from the profile."""
    ours = os.path.dirname(os.path.abspath(memlint.__file__)) + os.sep
    base = os.path.dirname(request["output"])
    found = {}
    paths = [getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before]
    for named in log.values():
        if isinstance(named, str) and named:
            folders = (os.path.join(folder, named) for folder in request["folders"])
            paths += [os.path.join(folder, name) for folder in folders for name in DESCRIPTIONS]
    for path in paths:
        if not path or not path.endswith((".py", ".json")) or not os.path.isfile(path):
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
    for name in loops:  # two micro-batches first: one is mostly told by them
        variants = [{**one, name: count} for one in variants for count in (training.MICRO_BATCHES, 1)]
    for variant in variants:
        yield variant
    for factor in (2, 1 / 2, 4, 1 / 4, MAX_FACTOR, 0):
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
        for event in ordered(tape.events[begin:end]):
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
        values = sorted({max(1, int(one.recorded * factor)) for factor in (1 / 4, 1 / 2, 1, 2, 4, MAX_FACTOR)} | {1})
        held = [value for value in values if _covered(profile, {**base, one.name: value})]
        said = ", ".join(map(str, held))
        without = "" if len(held) == len(values) else f"; not for {', '.join(str(v) for v in values if v not in held)}"
        yield f"{one.name} ({one.key}) holds for {said}{without}"
