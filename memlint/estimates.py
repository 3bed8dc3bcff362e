"""TrainingSpec -> Estimate, and what-ifs: the models and the tape's consumers put together."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from memlint import work
from memlint.facts.spec import UnknownModel

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.models import Recording
    from memlint.models.templates import Templates
    from memlint.profiles.measurement import Measurement
    from memlint.tape.estimate import Estimate

Changes = tuple[tuple[str, str], ...]
GONE = "-"  # in the place of a fact's name, before that of one that a change takes away


class Made:
    """What was made for one run, and serves every run whose facts are equal."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self.asked: tuple[TrainingSpec, Recording] | None = None
        self.own: dict[bool, Estimate] = {}  # by whether sizes keep their formulas
        self.totals: dict[Changes, Estimate] = {}
        self.whole: dict[Changes, Estimate] = {}
        self.allocated_bytes: dict[Changes, int] = {}
        self.saved_bytes: dict[Changes, int] = {}
        self.packed_bytes: int | None = None
        self.first_pass_bytes: int | None = None
        self.read: set[str] = set()  # the facts that any of this was made of

    def forget_recordings(self) -> None:
        """Keep what was estimated, which takes kilobytes, and not what it was made of, which takes megabytes."""
        self.recordings.clear()
        self.asked = None

    def alike(self, changes: Changes) -> Estimate | None:
        """Totals of a run that differs from another one in nothing but facts that nobody asks for."""
        wanted = self._told(changes)
        return next((found for known, found in self.totals.items() if self._told(known) == wanted), None)

    def _told(self, changes: Changes) -> set[tuple[str, str]]:
        return {change for change in changes if (change[1] if change[0] == GONE else change[0]) in self.read}


class EqualRuns:
    """The runs of one invocation, so that those with equal facts are estimated once: a folder often holds a run under
    many names, and a script starts it many times. Of the latest few the recordings are kept, too."""

    KEPT = 500
    KEPT_RECORDINGS = 4

    def __init__(self) -> None:
        from memlint.models.templates import Templates

        self._latest: dict[str, Made] = {}
        self._templates = Templates()

    def estimates(self, spec: TrainingSpec, gpu: str, measurements: Sequence[Measurement]) -> Estimates:
        self._templates.begin()
        if measurements or spec.missing or spec.architecture in (None, "recorded"):
            # What else than facts decides there is not compared.
            return Estimates(spec, gpu, measurements, templates=self._templates)
        key = _identity(spec, gpu)
        made = self._latest.pop(key, None) or Made()
        self._latest[key] = made
        if len(self._latest) > self.KEPT:
            del self._latest[next(iter(self._latest))]
        for earlier in islice(reversed(self._latest.values()), self.KEPT_RECORDINGS, self.KEPT_RECORDINGS + 1):
            earlier.forget_recordings()
        return Estimates(spec, gpu, made=made, templates=self._templates)


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

    def own(self, symbolic: bool = False) -> Estimate:
        """The run's. Raises models.UnknownModel."""
        made = self._made
        if symbolic not in made.own:
            watched = self.spec.watched(made.read)
            found = estimate_spec(
                watched,
                self.gpu,
                symbolic,
                recordings=made.recordings,
                measurements=self.measurements,
                templates=self._templates,
            )
            made.own[symbolic] = self._spanning(self.spec, found)
        return made.own[symbolic]

    def totals(self, changed: TrainingSpec) -> Estimate:
        """Without components. Raises models.UnknownModel."""
        made, changes = self._made, _changes(self.spec, changed)
        if changes not in made.totals and (alike := made.alike(changes)) is not None:
            made.totals[changes] = alike
        if changes not in made.totals:
            same = made.recordings if _same_step(self.spec, changed) else None
            if not same and made.asked is not None and _same_step(made.asked[0], changed):
                same = [made.asked[1]]
            watched = changed.watched(made.read)
            made.totals[changes] = estimate_spec(
                watched,
                self.gpu,
                detailed=False,
                recordings=same,
                measurements=self.measurements,
                templates=self._templates,
            )
        return made.totals[changes]

    def whole(self, changed: TrainingSpec) -> Estimate:
        """With components. Raises models.UnknownModel."""
        made, changes = self._made, _changes(self.spec, changed)
        if changes not in made.whole:
            found = estimate_spec(changed, self.gpu, measurements=self.measurements, templates=self._templates)
            made.whole[changes] = self._spanning(changed, found)
        return made.whole[changes]

    def _spanning(self, spec: TrainingSpec, found: Estimate) -> Estimate:
        """An estimate whose intervals hold those under the other releases that the run may be made with, too, where
        half of the work that is left is enough for them. Which release it is does not matter to a measurement."""
        if self.measurements or not (spec.asked or "images_per_sample" in spec.facts):
            return found
        try:
            with work.limited(work.meter().left // 2):
                return self._widened(spec, found)
        except work.OutOfWork:
            note = ("releases", "newest", "what older ones take would be more work than is left")
            return found._replace(assumptions=(*found.assumptions, note))

    def _widened(self, spec: TrainingSpec, found: Estimate) -> Estimate:
        from memlint import plausible

        others = []
        for candidate in plausible.candidates(spec):
            with contextlib.suppress(UnknownModel):
                recording = record(candidate.spec, self._templates)
                low, high = found.allocated_interval
                if not low <= allocated_bytes(candidate.spec, recording) <= high:  # else nothing is wider
                    other = estimate_spec(candidate.spec, self.gpu, detailed=False, recordings=[recording])
                    others.append((candidate, other))
        found = found._replace(assumptions=(*found.assumptions, *plausible.assumed(spec)))
        return plausible.spanning(found, others)

    def allocated_bytes(self, changed: TrainingSpec) -> int:
        """``totals(changed).allocated_bytes``. Raises models.UnknownModel."""
        made, changes = self._made, _changes(self.spec, changed)
        if changes not in made.allocated_bytes:
            recording = record(changed.watched(made.read), self._templates)
            made.asked = changed, recording
            made.allocated_bytes[changes] = allocated_bytes(changed, recording)
        return made.allocated_bytes[changes]

    def saved_bytes(self, changed: TrainingSpec) -> int:
        """Bytes that autograd holds at the end of forward. Raises models.UnknownModel."""
        made, changes = self._made, _changes(self.spec, changed)
        if changes not in made.saved_bytes:
            made.saved_bytes[changes] = saved_bytes(changed, self._templates)
        return made.saved_bytes[changes]

    def packed_bytes(self, estimate: Estimate) -> int:
        """What any settings of the allocator reserve at least for the run, whose estimate this is."""
        made = self._made
        if made.packed_bytes is None:
            recording = self._recording()
            found = estimate.allocated_bytes if recording is None else packed_bytes(recording, estimate, self.gpu)
            made.packed_bytes = found
        return made.packed_bytes

    def first_pass_bytes(self) -> int:
        """Most bytes live until the run's second micro-batch begins; 0 where there is none, or that is not known."""
        made = self._made
        if made.first_pass_bytes is None:
            recording = self._recording()
            made.first_pass_bytes = 0 if recording is None else first_pass_bytes(recording)
        return made.first_pass_bytes

    def _recording(self) -> Recording | None:
        """The run's own; None where sizes keep their formulas, which leaves none."""
        made = self._made
        if not made.recordings and False in made.own:
            made.recordings.append(record(self.spec, self._templates))
        return made.recordings[0] if made.recordings else None


def _identity(spec: TrainingSpec, gpu: str) -> str:
    """Text that two runs share exactly where their estimates are the same, assumptions and their words included."""
    facts = sorted((name, fact.key, repr(fact.value), fact.origin, fact.reason) for name, fact in spec.facts.items())
    return repr((gpu, spec.family, spec.architecture, spec.run, spec.model_name, facts))


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
) -> Estimate:
    """The estimate of one run on a card ("" for none in particular). Raises models.UnknownModel.

    Without ``detailed`` it has totals only: what a what-if needs. ``measurements`` of its config narrow it.
    ``recordings``: the recording of this very step, or a place to leave it for later. ``templates``: those of runs with
    other sizes.
    """
    from memlint import models
    from memlint.facts.spec import ASSUMED
    from memlint.tape.allocator_conf import ConfError, parse_conf
    from memlint.tape.summary import Device, estimate

    if recordings:
        recording = recordings[0]
    else:
        recording = models.record(spec, symbolic=symbolic, named=detailed, folded=True, templates=templates)
        if recordings is not None and not symbolic:
            recordings.append(recording)
    beside = spec.get("engine_beside")
    device = Device(
        version=str(spec.get("framework_version") or ""),
        engine_share=float(spec.get("engine_share") or 0.0),
        engine_beside=None if beside is None else tuple(beside),
    )
    if isinstance(spec.get("allocator_conf"), str):
        # What torch would reject is MEM602's to say; the figures are then those of the defaults.
        with contextlib.suppress(ConfError):
            device = device._replace(allocator_conf=parse_conf(spec["allocator_conf"]))
    if gpu:
        from memlint.data.catalogue import parse_gpu

        device = device._replace(gpu=parse_gpu(gpu)[0])
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
    return estimate(recording, device, assumptions=assumed, calibration=calibration, detailed=detailed)


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

    return models.record(spec, named=False, folded=True, templates=templates)


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
