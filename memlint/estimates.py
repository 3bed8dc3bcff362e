"""TrainingSpec -> Estimate, and what-ifs: the models and the tape's consumers put together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from memlint import work
from memlint.facts.spec import UnknownModel

if TYPE_CHECKING:
    from memlint.cache import Cache
    from memlint.facts.spec import TrainingSpec
    from memlint.models import Recording
    from memlint.models.templates import Templates
    from memlint.profiles.measurement import Measurement
    from memlint.tape.estimate import Estimate
    from memlint.tape.summary import Device

Changes = tuple[tuple[str, str], ...]
_Answer = TypeVar("_Answer")
_Newest = tuple["Estimate", tuple[tuple[str, bool], ...]]  # under the newest releases, and what it was asked of them
Question = tuple[str, Any]  # what is asked of a run, and what of it is changed for that
GONE = "-"  # in the place of a fact's name, before that of one that a change takes away


class Made:
    """What was made for one run, and serves every run whose facts are equal."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self.asked: tuple[TrainingSpec, Recording] | None = None
        self.answers: dict[Question, Any] = {}
        self.steps: dict[Question, int] = {}  # that an answer took
        self.read: set[str] = set()  # the facts that any of this was made of
        self._unpaid: set[Question] = set()  # answers of an earlier invocation that this one did not ask for yet
        self._hasty: set[Question] = set()  # answers that more work would have changed
        self._is_new = False

    def answer(self, question: Question, make: Callable[[], _Answer]) -> _Answer:
        """An answer, made where it is not there. One of an earlier invocation takes the work that it took then, once,
        so that a file whose work is limited ends where it did."""
        if question in self._unpaid:
            self._unpaid.remove(question)
            work.spend(self.steps[question], "estimating what an earlier check did")
        if question not in self.answers:
            before = work.meter().used
            self.answers[question] = make()
            self.steps[question] = work.meter().used - before
            self._is_new = True
        return cast(_Answer, self.answers[question])

    def hurried(self, question: Question) -> None:
        """An answer is one for want of work: the next invocation is to find its own."""
        self._hasty.add(question)

    def forget_recordings(self) -> None:
        """Keep what was estimated, which takes kilobytes, and not what it was made of, which takes megabytes."""
        self.recordings.clear()
        self.asked = None

    def alike(self, changes: Changes) -> _Newest | None:
        """What is known of a run that differs from another one in nothing but facts that nobody asks for."""
        wanted = self._told(changes)
        known_ones = ((changes, found) for (kind, changes), found in self.answers.items() if kind == NEWEST)
        return next((found for known, found in known_ones if self._told(known) == wanted), None)

    def _told(self, changes: Changes) -> set[tuple[str, str]]:
        return {change for change in changes if (change[1] if change[0] == GONE else change[0]) in self.read}

    def restore(self, kept: Any) -> None:
        """What ``worth_keeping`` gave in an earlier invocation."""
        read, answers = kept
        self.read.update(read)
        for question, answer, steps in answers:
            self.answers[question], self.steps[question] = answer, steps
            self._unpaid.add(question)

    def worth_keeping(self) -> Any:
        """What the next invocation can use, in numbers, texts and estimates; None where it has all of it already."""
        if not self._is_new:
            return None
        self._is_new = False
        kept = [(one, found, self.steps[one]) for one, found in self.answers.items() if one not in self._hasty]
        return (sorted(self.read), kept) if kept else None


# What is asked of a run.
OWN, OWN_NEWEST, NEWEST, WITHIN, WHOLE, FITS = "own", "own newest", "newest", "within", "whole", "fits"
ALLOCATED, SAVED, PACKED, FIRST_PASS = "allocated", "saved", "packed", "first pass"
_OF_STATES = ("parameters", "gradients", "optimizer")


NAMELESS = " at 0x"  # in the text of something that another process has elsewhere


class _Kept:
    """The cache of a folder, opened when the first run asks for it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.cache: Cache | None = None
        self._asked = False

    def opened(self) -> Cache | None:
        if not self._asked:
            from memlint.cache import Cache

            self._asked = True
            self.cache = Cache.of(self.folder)
        return self.cache


_kept: ContextVar[_Kept | None] = ContextVar("memlint_kept", default=None)


@contextlib.contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """While it lasts, what is estimated is taken from the cache in a folder, and left there (:mod:`memlint.cache`)."""
    kept = _Kept(folder)
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        if kept.cache is not None:
            kept.cache.close()


class EqualRuns:
    """The runs of one invocation, so that those with equal facts are estimated once: a folder often holds a run under
    many names, and a script starts it many times. Of the latest few the recordings are kept, too. Within
    :func:`kept_in` they begin with what earlier invocations found."""

    KEPT = 500
    KEPT_RECORDINGS = 4

    def __init__(self, templates: Templates | None = None) -> None:
        """``templates``: recordings of other invocations, which serve this one's runs of other sizes."""
        if templates is None:
            from memlint.models.templates import Templates

            templates = Templates()
        self._latest: dict[str, Made] = {}
        self._templates = templates
        self._kept = _kept.get()

    def estimates(
        self, spec: TrainingSpec, gpu: str, measurements: Sequence[Measurement], in_table: bool = False
    ) -> Estimates:
        """``in_table``: a config's run with more stated, as a row of its table. It has a part of the work that the
        config may ask for, so that what it had to leave out answers other rows alone."""
        if not in_table:
            self._templates.begin()
        if measurements or spec.refuses or spec.architecture in (None, "recorded"):
            # What else than facts decides there is not compared.
            return Estimates(spec, gpu, measurements, templates=self._templates)
        key = _identity(spec, gpu, in_table)
        made = self._latest.pop(key) if key in self._latest else self._made(key)
        self._latest[key] = made
        if len(self._latest) > self.KEPT:
            oldest = next(iter(self._latest))
            self._keep(oldest, self._latest.pop(oldest))
        for earlier in islice(reversed(self._latest.values()), self.KEPT_RECORDINGS, self.KEPT_RECORDINGS + 1):
            earlier.forget_recordings()
        return Estimates(spec, gpu, made=made, templates=self._templates)

    def save(self) -> None:
        """Leave what was found to later invocations, where there is a cache."""
        for key, made in self._latest.items():
            self._keep(key, made)
        if self._kept is not None and self._kept.cache is not None:
            self._kept.cache.save()

    def _made(self, key: str) -> Made:
        made = Made()
        if self._kept is not None and NAMELESS not in key and (cache := self._kept.opened()) is not None:
            kept = cache.get(key)
            if kept is not None:
                made.restore(kept)
        return made

    def _keep(self, key: str, made: Made) -> None:
        if self._kept is not None and self._kept.cache is not None and NAMELESS not in key:
            kept = made.worth_keeping()
            if kept is not None:
                self._kept.cache.put(key, kept)


def _answered(spec: TrainingSpec, newest: _Newest) -> Estimate:
    """The estimate of a run, which knows from then on what of its releases decides."""
    found, asked = newest
    spec.asked.update(asked)
    return found


class _TakesMore(Exception):
    """A run may take more than is of interest."""


def _at_most(found: Estimate, most_bytes: int | None) -> Estimate:
    """The estimate. Raises _TakesMore for one that may take more."""
    if most_bytes is not None and found.device_interval.high_bytes > most_bytes:
        raise _TakesMore
    return found


class Estimates:
    """Of one run, and of the same run with some facts changed: what :class:`memlint.plugin.Run` asks for.

    A step is recorded once where only the allocator's settings change, and where one rule asks what is live and the
    next one what the allocator makes of it.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        gpu: str = "",
        measurements: Sequence[Measurement] = (),
        made: Made | None = None,
        templates: Templates | None = None,
    ) -> None:
        self.spec = spec
        self.gpu = gpu
        self.measurements = measurements
        self._made = made or Made()
        self._templates = templates

    def own(self, symbolic: bool = False, spans: bool = True) -> Estimate:
        """The run's. Without ``spans`` its interval is that of the newest releases alone, for who reads the peak: what
        older ones take is as much work again. Raises models.UnknownModel."""
        question = (OWN, symbolic)

        def newest() -> _Newest:
            watched = self.spec.watched(self._made.read)
            found = self._estimate(watched, symbolic=symbolic, recordings=self._made.recordings)
            return found, tuple(self.spec.asked.items())

        def whole() -> Estimate:
            found = _answered(self.spec, self._made.answers.get((OWN_NEWEST, symbolic)) or newest())
            return self._spanning(self.spec, found, question)

        return self._made.answer(question, whole) if spans else self._made.answer((OWN_NEWEST, symbolic), newest)[0]

    def newest(self, changed: TrainingSpec) -> Estimate:
        """Under the newest releases alone. Raises models.UnknownModel."""
        question = (NEWEST, _changes(self.spec, changed))
        return _answered(changed, self._made.answer(question, lambda: self._newest(changed)))

    def newest_within(self, changed: TrainingSpec, most_reserved_bytes: int) -> Estimate | None:
        """``newest(changed)``, None for a run that reserves more: which is seen as soon as it does. Raises
        models.UnknownModel."""
        from memlint.tape.allocator import ReservesMore

        def make() -> _Newest | None:
            try:
                return self._newest(changed, most_reserved_bytes)
            except ReservesMore:
                return None

        changes = _changes(self.spec, changed)
        found = self._made.answer((WITHIN, (changes, most_reserved_bytes)), make)
        return None if found is None else _answered(changed, self._made.answer((NEWEST, changes), lambda: found))

    def _newest(self, changed: TrainingSpec, most_reserved_bytes: int | None = None) -> _Newest:
        made = self._made
        if (alike := made.alike(_changes(self.spec, changed))) is not None:
            return alike
        recordings = [self._recorded(changed)]
        watched = changed.watched(made.read)
        found = self._estimate(watched, recordings=recordings, most_reserved_bytes=most_reserved_bytes)
        return found, tuple(changed.asked.items())

    def whole(self, changed: TrainingSpec) -> Estimate:
        """With all of its interval. Raises models.UnknownModel."""
        question, newest = (WHOLE, _changes(self.spec, changed)), self.newest(changed)  # work of an answer of its own
        return self._made.answer(question, lambda: self._spanning(changed, newest, question))

    def fitting(self, changed: TrainingSpec, budget_bytes: int) -> Estimate | None:
        """``whole(changed)`` where all of its interval fits; None where it does not, which is seen as soon as a part of
        it does not. Raises models.UnknownModel."""
        made, changes = self._made, _changes(self.spec, changed)
        question, newest = (WHOLE, changes), self.newest(changed)

        def make() -> Estimate | None:
            try:
                return self._spanning(changed, newest, question, budget_bytes)
            except _TakesMore:
                return None

        fits = (FITS, (changes, budget_bytes))
        if question in made.answers and fits not in made.answers:
            whole = self.whole(changed)
            return whole if whole.device_interval.high_bytes <= budget_bytes else None
        found = made.answer(fits, make)
        return None if found is None else made.answer(question, lambda: found)

    def _recorded(self, changed: TrainingSpec) -> Recording:
        """The step of a run, which is there already where it is the same as this one's, or as that of the run that was
        asked for last. Raises models.UnknownModel."""
        made = self._made
        if made.recordings and _same_step(self.spec, changed):
            changed.asked.update(self.spec.asked)
            return made.recordings[0]
        if made.asked is None or not _same_step(made.asked[0], changed):
            made.asked = changed, record(changed.watched(made.read), self._templates)
        changed.asked.update(made.asked[0].asked)
        return made.asked[1]

    def _estimate(self, spec: TrainingSpec, **options: Any) -> Estimate:
        return estimate_spec(spec, self.gpu, measurements=self.measurements, templates=self._templates, **options)

    def _spanning(
        self, spec: TrainingSpec, found: Estimate, question: Question, most_bytes: int | None = None
    ) -> Estimate:
        """An estimate whose intervals hold what may be on the card besides, those under the other releases that the run
        may be made with, where half of the work that is left is enough for them, and what shorter batches leave. Which
        release it is does not matter to a measurement. Raises _TakesMore where that is seen to be more than
        ``most_bytes``."""
        if self.measurements:
            return _at_most(found, most_bytes)
        from memlint import upper_ends
        from memlint.plausible import is_counted

        found = _at_most(upper_ends.held(spec, found), most_bytes)
        if spec.asked or "images_per_sample" in spec.facts or is_counted(spec):
            try:
                with work.limited(work.meter().left // 2):
                    found = _at_most(self._widened(spec, found, most_bytes), most_bytes)
            except work.OutOfWork:
                self._made.hurried(question)
                note = ("releases", "newest", "what older ones take would be more work than is left")
                found = found._replace(assumptions=(*found.assumptions, note))
        return _at_most(self._over_lengths(spec, found), most_bytes)

    def _over_lengths(self, spec: TrainingSpec, found: Estimate) -> Estimate:
        """An estimate whose upper ends hold what shorter batches leave in the allocator, where batches differ in length
        and half of the work that is left is enough to see it. Of a card that is named: how much the allocator keeps
        depends on how much there is, and it gives free segments back before it fails."""
        from memlint import upper_ends

        if not self.gpu or not upper_ends.lengths_vary(spec):
            return found
        try:
            with work.limited(work.meter().left // 2), contextlib.suppress(UnknownModel):
                reserved = self._reserved_over_lengths(spec, found)
                return found if reserved is None else upper_ends.with_lengths(found, reserved)
        except work.OutOfWork:
            pass
        return found

    def _reserved_over_lengths(self, spec: TrainingSpec, found: Estimate) -> int | None:
        """Bytes reserved by a run whose batches are longer and longer. Raises models.UnknownModel."""
        from memlint.tape import lengths
        from memlint.tape.allocator_conf import ConfError, parse_conf
        from memlint.tape.summary import whole_tape

        conf = lengths.DEFAULT
        if isinstance(spec.get("allocator_conf"), str):
            with contextlib.suppress(ConfError):
                conf = parse_conf(spec["allocator_conf"])
        if conf.expandable_segments:
            return None  # they grow, and leave nothing
        recording = self._recorded(spec)
        if recording.framework != "torch":
            return None
        longest = whole_tape(recording)
        half = spec.with_facts({"sequence_length": int(lengths.SHARES[0] * spec["sequence_length"])})
        run = lengths.in_turn(lengths.between(whole_tape(record(half, self._templates)), longest), longest)
        if run is None:
            return None
        from memlint.data.catalogue import parse_gpu

        beside = found.device_interval.high_bytes - found.reserved_interval.high_bytes
        return lengths.reserved(run, conf, parse_gpu(self.gpu)[0].usable_bytes - beside)

    def _widened(self, spec: TrainingSpec, found: Estimate, most_bytes: int | None) -> Estimate:
        from memlint import plausible

        others = []
        for candidate in plausible.candidates(spec):
            with contextlib.suppress(UnknownModel):
                recording = record(candidate.spec, self._templates)
                low, high = found.allocated_interval
                alone = candidate.spec.get("engine_share") == spec.get("engine_share")  # decides what is allocated
                if not (alone and low <= allocated_bytes(candidate.spec, recording) <= high):  # else nothing is wider
                    other = estimate_spec(candidate.spec, self.gpu, detailed=False, recordings=[recording])
                    others.append((candidate, _at_most(other, most_bytes)))
        found = found._replace(assumptions=(*found.assumptions, *plausible.assumed(spec)))
        return plausible.spanning(found, others)

    def allocated_bytes(self, changed: TrainingSpec) -> int:
        """``newest(changed).allocated_bytes``. Raises models.UnknownModel."""
        made = self._made

        def make() -> int:
            return allocated_bytes(changed, self._recorded(changed))

        return made.answer((ALLOCATED, _changes(self.spec, changed)), make)

    def states_bytes(self, changed: TrainingSpec) -> int:
        """Weights, gradients and optimizer states at the run's peak. Raises models.UnknownModel."""
        found = self.newest(changed)
        return sum(found.component_bytes(name) for name in _OF_STATES)

    def saved_bytes(self, changed: TrainingSpec) -> int:
        """Bytes that autograd holds at the end of forward. Raises models.UnknownModel."""
        question = (SAVED, _changes(self.spec, changed))
        return self._made.answer(question, lambda: saved_bytes(changed, self._templates))

    def packed_bytes(self, estimate: Estimate) -> int:
        """What any settings of the allocator reserve at least for the run, whose estimate this is."""

        def make() -> int:
            recording = self._recording()
            return estimate.allocated_bytes if recording is None else packed_bytes(recording, estimate, self.gpu)

        return self._made.answer((PACKED, None), make)

    def first_pass_bytes(self) -> int:
        """Most bytes live until the run's second micro-batch begins; 0 where there is none, or that is not known."""

        def make() -> int:
            recording = self._recording()
            return 0 if recording is None else first_pass_bytes(recording)

        return self._made.answer((FIRST_PASS, None), make)

    def _recording(self) -> Recording | None:
        """The run's own; None where sizes keep their formulas, which leaves none."""
        made = self._made
        if not made.recordings and (OWN, False) in made.answers:
            made.recordings.append(record(self.spec, self._templates))
        return made.recordings[0] if made.recordings else None


def _identity(spec: TrainingSpec, gpu: str, in_table: bool) -> str:
    """Text that two runs share exactly where their estimates are the same, assumptions and their words included."""
    facts = sorted((name, fact.key, repr(fact.value), fact.origin, fact.reason) for name, fact in spec.facts.items())
    youngest = ""
    if spec.under is not None:
        from memlint import plausible

        youngest = plausible.youngest_key(spec)
    missing = [(item.key, item.fact, item.reason) for item in spec.missing]
    return repr((in_table, gpu, spec.family, spec.architecture, spec.run, spec.model_name, facts, youngest, missing))


def _changes(spec: TrainingSpec, changed: TrainingSpec) -> Changes:
    """What a what-if changes: (fact, value), and (GONE, fact)."""
    facts = spec.facts
    other = [(name, repr(fact.value)) for name, fact in changed.facts.items() if facts.get(name) is not fact]
    return tuple(sorted([*other, *((GONE, name) for name in facts if name not in changed.facts)]))


def estimate_spec(
    spec: TrainingSpec,
    gpu: str = "",
    symbolic: bool = False,
    detailed: bool = True,
    measurements: Sequence[Measurement] = (),
    recordings: list[Recording] | None = None,
    templates: Templates | None = None,
    most_reserved_bytes: int | None = None,
) -> Estimate:
    """The estimate of one run on a card ("" for none in particular). Raises models.UnknownModel.

    Without ``detailed`` it has no components, and nothing of what a compiler may make of it. ``measurements`` of its
    config narrow it. ``recordings``: the recording of this very step, or a place to leave it for later. ``templates``:
    those of runs with other sizes. Raises ReservesMore for a run that reserves more than ``most_reserved_bytes``.
    """
    from memlint import models
    from memlint.facts.spec import ASSUMED
    from memlint.tape.summary import estimate

    if recordings:
        recording = recordings[0]
    else:
        recording = models.record(spec, symbolic=symbolic, folded=True, templates=templates)
        if recordings is not None and not symbolic:
            recordings.append(recording)
    if detailed:
        recording = models.with_upper(recording, spec, folded=True, templates=templates)
    device = _device(spec, gpu, most_reserved_bytes)
    calibration = None
    if measurements:
        from memlint.profiles.measurement import facts_of
        from memlint.tape.calibration import choose

        release = spec.fact("framework_version")
        stated = str(release.value) if release is not None and release.node is not None else ""
        calibration = choose(measurements, spec.run, facts_of(spec), device.gpu, stated)
    assumed = tuple(
        (fact.key or name, str(fact.value), fact.reason)
        for name, fact in dict.items(spec.facts)
        if fact.origin == ASSUMED  # said, and not asked for
    )
    if spec.architecture == "language_model" and spec.launch is None and "device_count" not in spec.facts:
        assumed = (*assumed, ("devices", "1", ONE_DEVICE))
    found = estimate(recording, device, assumptions=assumed, calibration=calibration, detailed=detailed)
    if spec.get("quantization.bits") not in (4, 8):
        return found
    from memlint import upper_ends

    return upper_ends.read_ahead(spec, found)


def _device(spec: TrainingSpec, gpu: str, most_reserved_bytes: int | None) -> Device:
    """The card and its libraries, and what of it is another's."""
    from memlint.data.catalogue import parse_gpu
    from memlint.tape.allocator_conf import ConfError, parse_conf
    from memlint.tape.summary import Device

    beside = spec.get("engine_beside")
    device = Device(
        version=str(spec.get("framework_version") or ""),
        engine_share=float(spec.get("engine_share") or 0.0),
        engine_beside=None if beside is None else tuple(beside),
        processes=int(spec.get("processes_per_device") or 1),
        most_reserved_bytes=most_reserved_bytes,
    )
    if isinstance(spec.get("allocator_conf"), str):
        # What torch would reject is MEM602's to say; the figures are then those of the defaults.
        with contextlib.suppress(ConfError):
            device = device._replace(allocator_conf=parse_conf(spec["allocator_conf"]))
    return device._replace(gpu=parse_gpu(gpu)[0]) if gpu else device


ONE_DEVICE = "nothing here says that more share the run"


def _same_step(one: TrainingSpec, other: TrainingSpec) -> bool:
    """Whether two runs allocate the same: they differ in how the allocator serves it, if at all."""
    names = {*one.facts, *other.facts} - {"allocator_conf"}
    return all(_said(one, name) == _said(other, name) for name in names)


def _said(spec: TrainingSpec, name: str) -> tuple[Any, ...] | None:
    """A fact without the place where it is written, which differs between files that say the same."""
    fact = spec.facts.get(name)
    return None if fact is None else (fact.value, fact.origin, fact.key)


def saved_bytes(spec: TrainingSpec, templates: Templates | None = None) -> int:
    """Bytes that autograd holds at the end of forward. Raises models.UnknownModel."""
    from memlint import models

    return models.saved_bytes(spec, templates)


def record(spec: TrainingSpec, templates: Templates | None = None) -> Recording:
    """What totals are estimated from. Raises models.UnknownModel."""
    from memlint import models

    return models.record(spec, folded=True, templates=templates)


def allocated_bytes(spec: TrainingSpec, recording: Recording | None = None) -> int:
    """``estimate_spec(spec).allocated_bytes``, without what the allocator makes of it. Raises models.UnknownModel."""
    from memlint.tape.summary import allocated_peak

    if recording is None:
        recording = record(spec)
    if recording.loading is not None:  # whether that is the peak is for the allocator to say
        return estimate_spec(spec, detailed=False, recordings=[recording]).allocated_bytes
    return allocated_peak(recording.whole)


def packed_bytes(recording: Recording, estimate: Estimate, gpu: str) -> int:
    """Bytes that any settings of the allocator reserve for a recording at least."""
    from memlint.tape.summary import packed

    tape = recording.whole
    if gpu and tape.streams:
        from memlint.data.catalogue import parse_gpu

        room = parse_gpu(gpu)[0].usable_bytes - (estimate.device_bytes - estimate.reserved_bytes)
        if estimate.allocated_bytes <= room:
            return estimate.allocated_bytes  # a full card gives back what is free
    return packed(tape)


def first_pass_bytes(recording: Recording) -> int:
    """Most bytes live until the second micro-batch of a recording begins; 0 where there is none."""
    from memlint.tape.summary import first_pass

    return first_pass(recording.whole)
