"""The least intrusive plan for a budget: which changes of a config, together, make its run surely fit.

Changes are of four tiers, by what they touch: nothing that anybody notices, speed, numerics, and what is optimised. A
plan is less intrusive than another where it has fewer changes of the highest tier in which they differ; of equally
many, the ones that :data:`RUNGS` names first. Every plan that is looked at is written into the texts and read again, so
its peak is the one that a check of the changed files gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from memlint import work
from memlint.documents.node import Edit
from memlint.facts.spec import Name, TrainingSpec, UnknownModel
from memlint.fixes import levers
from memlint.fixes.levers import Lever
from memlint.named_tuple import NamedTuple
from memlint.plugin import DISPLAY, UNSAFE, Run
from memlint.tape.estimate import Estimate

FREE, COMPUTE, NUMERICS, OPTIMISATION = TIERS = range(4)
TIER_WORDS = ("free", "takes time", "changes numerics", "changes the optimisation")

WORK_LIMIT = 200  # million steps for one config: a search reads and estimates it a few dozen times
LEAST_TOKENS = 128  # a sample of text is not cut shorter
MAX_WAYS = 4  # sets of changes, where some exclude each other
MAX_TOGETHER = 2  # changes of one tier that are tried in every combination; beyond, one after the other is left out


class Step(NamedTuple):
    """One change of a plan, in the config's own words."""

    tier: int
    said: str


class Plan(NamedTuple):
    """Changes, and the run with them. ``fits`` as `check` of the changed files says: with all of the interval."""

    steps: tuple[Step, ...]
    edits: tuple[Edit, ...]
    estimate: Estimate
    fits: bool


class Move(NamedTuple):
    """A change that a plan may have. ``others``: milder ones of the same kind, from the mildest on."""

    tier: int
    lever: Lever
    others: tuple[Lever, ...] = ()


def _set(name: Name, *values: Any, unless: Callable[[Run], bool] = lambda run: False) -> Callable[[Run], Lever | None]:
    """The lever that gives a fact the first of some values that the family can write."""

    def lever(run: Run) -> Lever | None:
        value = next((value for value in values if run.can_set(name, value)), None)
        return None if value is None or run.value(name) == value or unless(run) else Lever(UNSAFE, {name: value})

    return lever


def _not_zero(run: Run) -> bool:
    return bool(run.value("parallelism.strategy") != "zero")


def _sharded_weights(run: Run) -> Lever | None:
    """Weights in shards too, where gradients and states are, or may be."""
    name: Name = "parallelism.zero_stage"
    strategy = run.value("parallelism.strategy")
    if strategy not in ("ddp", "zero") or run.value(name) == 3 or not run.can_set(name, 3):
        return None
    return Lever(UNSAFE, {name: 3}, {"parallelism.strategy": "zero"} if strategy == "ddp" else {})


def _adapters(run: Run) -> list[Lever]:
    """LoRA in the place of training all weights, and the same with the frozen weights in four bits."""
    if run.value("tuning", "full") != "full" or not run.can_set("tuning", "lora"):
        return []
    found = [Lever(DISPLAY, {"tuning": "lora"})]
    if not run.value("quantization.bits") and run.can_set("quantization.bits", 4):
        found.append(Lever(DISPLAY, {"tuning": "lora", "quantization.bits": 4}))
    return found


def _four_bits(run: Run) -> Lever | None:
    """The frozen weights in four bits, of a run that trains adapters."""
    trains_all = run.value("tuning", "full") == "full"
    if trains_all or run.value("quantization.bits") or not run.can_set("quantization.bits", 4):
        return None
    return Lever(DISPLAY, {"quantization.bits": 4})


# From the least to the most intrusive.
RUNGS: tuple[tuple[int, Callable[[Run], Lever | None]], ...] = (
    (FREE, levers.fused_optimizer),
    (FREE, levers.bucket_views),
    (FREE, levers.smaller_buckets),
    (FREE, levers.fused_attention),
    (FREE, levers.fused_loss),
    (COMPUTE, levers.checkpointing),
    (COMPUTE, levers.precomputed_reference),
    (COMPUTE, levers.sharded_states),
    (COMPUTE, _sharded_weights),
    (COMPUTE, _set("activation_offloading", True)),
    (COMPUTE, _set("parallelism.offload_optimizer", True, unless=_not_zero)),
    (COMPUTE, _set("parallelism.cpu_offload", True, unless=lambda run: not run.value("parallelism.strategy"))),
    (NUMERICS, levers.mixed_precision),
    (NUMERICS, levers.small_optimizer),
    (NUMERICS, levers.half_weights),
    (OPTIMISATION, levers.no_ema),
    (OPTIMISATION, levers.frozen_encoder),
    (OPTIMISATION, _four_bits),
)


class Allowed(NamedTuple):
    """What a plan may change that it leaves alone unless told: the effective batch size, and the length of samples."""

    batch: bool = False
    length: bool = False


def moves(run: Run, allowed: Allowed) -> list[Move]:
    """What may be changed in a run, from the least to the most intrusive."""
    found = [Move(tier, lever) for tier, propose in RUNGS if (lever := propose(run)) is not None]
    batches = _smaller_batches(run, allowed.batch)
    if batches:
        found.append(Move(OPTIMISATION if allowed.batch else COMPUTE, batches[-1], tuple(batches[:-1])))
    lengths = _shorter(run) if allowed.length else []
    if lengths:
        found.append(Move(OPTIMISATION, lengths[-1], tuple(lengths[:-1])))
    return sorted(found, key=lambda move: move.tier)


def _smaller_batches(run: Run, alone: bool) -> list[Lever]:
    """Halvings of the micro batch, the largest first, with as much more accumulation unless it goes down alone."""
    found = []
    for batch in levers.halvings(run):
        changes: dict[Name, Any] = {"micro_batch_size": batch}
        if not alone:
            changes = levers.batch_changes(run, batch)
        if run.can_set("micro_batch_size", batch):
            found.append(Lever(DISPLAY if alone else UNSAFE, levers.with_evaluation(run, changes)))
    return found


def _shorter(run: Run) -> list[Lever]:
    """Halvings of what a sample is longest in (its tokens, or frames, points, pixels), down to what a model takes."""
    size, found = levers.largest_size(run), []
    if size is None:
        return []
    least = LEAST_TOKENS if size.name == "sequence_length" else 1
    value = size.value // 2
    while value >= least:
        if run.can_set(size.name, value):
            found.append(levers.fewer(run, size.name, value))
        value //= 2
    while found and not _has_estimate(run, found[-1]):
        found.pop()
    return found


def _has_estimate(run: Run, lever: Lever) -> bool:
    """Whether the run still reads, and is a model's, with a change written."""
    try:
        spec = run.read_again(run.edits(lever.changes))
        return spec is not None and run.allocated_as(spec) > 0
    except UnknownModel:
        return False


def plan(run: Run, allowed: Allowed = Allowed()) -> Plan | None:  # noqa: B008  (a tuple)
    """The least intrusive plan that fits the run's budget; where none does, the one with the lowest peak, which does
    not fit. None where the run has no estimate, or no budget."""
    if run.estimate is None or run.budget_bytes is None:
        return None
    return _Search(run, allowed).found()


class _Search:
    def __init__(self, run: Run, allowed: Allowed) -> None:
        self.run = run
        self.allowed = allowed
        self.specs: dict[tuple[Edit, ...], TrainingSpec | None] = {}
        self.judged: dict[tuple[Edit, ...], Estimate | None] = {}

    def found(self) -> Plan | None:
        if (own := self._fitting([])) is not None:
            return Plan((), (), own, True)
        ways: list[list[Move]] = [[]]
        chosen: list[Move] | None = None
        known = moves(self.run, self.allowed)
        for tier in TIERS:
            ways = self._ways(ways, [move for move in known if move.tier == tier])
            chosen = self._least_of(ways, tier)
            if chosen is not None:
                break
        for lever in _adapters(self.run) if chosen is None else ():
            adapted = [beside for every in ways if (beside := self._beside(Move(OPTIMISATION, lever), every))]
            chosen = self._least_of(adapted, OPTIMISATION)
            if chosen is not None:
                break
            ways = adapted or ways  # what comes nearest, if nothing fits
        if chosen is None:
            tried = [self._lowest(every) for every in ways]
            lowest, estimate = min(tried, key=lambda one: one[1].device_interval.high_bytes)
            if self._fitting(lowest) is None:
                steps = tuple(Step(move.tier, levers.describe(self.run, move.lever.changes)) for move in lowest)
                return Plan(steps, self._edits(lowest), estimate, False)
            chosen = self._least(lowest, OPTIMISATION)
        return self._plan(self._mildest(chosen))

    def _ways(self, before: list[list[Move]], new: list[Move]) -> list[list[Move]]:
        """Sets of changes that can be written together: each one before with as many of the new ones as it takes, and
        where some exclude each other, one for each of these (:data:`MAX_WAYS` at most)."""
        ways: list[list[Move]] = []
        for every in before:
            whole = self._usable(every, new)
            ways.append(whole)
            for move in (move for move in new if move not in whole):
                beside = [other for other in whole if self._spec([other, move]) is not None]
                if len(beside) < len(whole):
                    ways.append(self._usable([*beside, move], new))
        unlike = [way for place, way in enumerate(ways) if way not in ways[:place] and self._spec(way) is not None]
        return unlike[:MAX_WAYS] or before

    def _usable(self, before: list[Move], new: list[Move]) -> list[Move]:
        """Changes that can be written together: all of them, else those that can after the ones before."""
        new = [move for move in new if move not in before]
        together = [*before, *new]
        if self._spec(together) is not None:
            return together
        usable = before
        for move in new:
            if self._spec([*usable, move]) is not None:
                usable = [*usable, move]
        return usable

    def _least_of(self, ways: list[list[Move]], top: int) -> list[Move] | None:
        """The least intrusive changes that fit, whichever of the ways they are of; None where none fits."""
        found = [self._least(every, top) for every in ways if self._fitting(every) is not None]
        return min(found, key=_intrusion, default=None)

    def _beside(self, adapters: Move, every: list[Move]) -> list[Move]:
        """Adapters, and those of some changes that mean the same beside them: other weights have gradients and states,
        and are kept in other formats. Empty where adapters cannot be written."""
        if self._spec([adapters]) is None:
            return []
        usable = [adapters]
        for move in every:
            if "tuning" not in move.lever.changes and self._spec([*usable, move]) is not None:
                usable.append(move)
        return sorted(usable, key=lambda move: move.tier)

    def _least(self, every: list[Move], top: int) -> list[Move]:
        """The least intrusive of some changes that still fit: of the highest tier as few as may be, and so on down."""
        kept: list[Move] = []
        for tier in range(top, -1, -1):
            milder = [move for move in every if move.tier < tier]
            here = [move for move in every if move.tier == tier]
            kept = [*next(self._subsets(milder, here, kept)), *kept]
        return kept

    def _subsets(self, milder: list[Move], here: list[Move], kept: list[Move]) -> Iterator[list[Move]]:
        """Those of one tier's changes that fit with all milder ones, the fewest and the first named first."""
        for number in range(min(MAX_TOGETHER, len(here)) + 1):
            for some in combinations(here, number):
                if self._fitting([*milder, *some, *kept]) is not None:
                    yield list(some)
        rest = list(here)
        for move in reversed(here):
            fewer = [other for other in rest if other is not move]
            if self._fitting([*milder, *fewer, *kept]) is not None:
                rest = fewer
        yield rest

    def _mildest(self, chosen: list[Move]) -> list[Move]:
        """The same changes, each graded one as mild as fits."""
        for place, move in enumerate(chosen):
            grades = [*move.others, move.lever]
            low, high = 0, len(grades) - 1  # the mildest that fits is in between, and the last one does
            while low < high:
                middle = (low + high) // 2
                tried = [*chosen[:place], move._replace(lever=grades[middle]), *chosen[place + 1 :]]
                low, high = (low, middle) if self._fitting(tried) is not None else (middle + 1, high)
            chosen = [*chosen[:place], move._replace(lever=grades[high]), *chosen[place + 1 :]]
        return chosen

    def _lowest(self, every: list[Move]) -> tuple[list[Move], Estimate]:
        """Of all changes those that lower the high end of the interval, one after the other, which comes nearest to the
        budget: together they are not always lower than some of them."""
        assert self.run.estimate is not None
        kept: list[Move] = []
        best = self.run.estimate
        for move in every:
            after = self._estimate([*kept, move])
            if after is not None and after.device_interval.high_bytes < best.device_interval.high_bytes:
                kept, best = [*kept, move], after
        for move in reversed(kept):  # what lowered it before the others came may not do so beside them
            fewer = [other for other in kept if other is not move]
            after = self._estimate(fewer) if fewer else None
            if after is not None and after.device_interval.high_bytes <= best.device_interval.high_bytes:
                kept, best = fewer, after
        return kept, best

    def _estimate(self, chosen: Sequence[Move]) -> Estimate | None:
        """The run with some changes, with all of its interval; None where they cannot be made."""
        spec = self._spec(chosen)
        try:
            return None if spec is None else self.run.estimate_as(spec)
        except UnknownModel:
            return None

    def _plan(self, chosen: list[Move]) -> Plan | None:
        estimate = self._fitting(chosen)
        assert estimate is not None
        chosen = sorted(chosen, key=lambda move: move.tier)
        steps = tuple(Step(move.tier, levers.describe(self.run, move.lever.changes)) for move in chosen)
        return Plan(steps, self._edits(chosen), estimate, True)

    # -- one plan

    def _edits(self, chosen: Sequence[Move]) -> tuple[Edit, ...]:
        changes = {name: value for move in chosen for name, value in move.lever.changes.items()}
        if any(move.lever.changes.get("optimizer") for move in chosen):
            changes.pop("optimizer_implementation", None)  # torch's own switch, which other optimizers do not have
        return self.run.edits(changes)

    def _spec(self, chosen: Sequence[Move]) -> TrainingSpec | None:
        """The run with some changes as it is read from the texts with them; None where they cannot be written so that
        each of them holds, and nothing changes that is to stay."""
        if not chosen:
            return self.run.spec
        edits = self._edits(chosen)
        if not edits:
            return None
        if edits not in self.specs:
            try:
                self.specs[edits] = self.run.read_again(edits)
            except (UnknownModel, work.OutOfWork):
                self.specs[edits] = None
        spec = self.specs[edits]
        return spec if spec is not None and self._is_meant(spec, chosen) else None

    def _is_meant(self, spec: TrainingSpec, chosen: Sequence[Move]) -> bool:
        for move in chosen:
            for name, value in move.lever.changes.items():
                dropped = name == "optimizer_implementation" and spec.get("optimizer") != self.run.value("optimizer")
                # A pass without gradients is one to speak of only where it is the larger one.
                dropped = dropped or (name == "evaluation_batch_size" and name not in spec)
                if not dropped and spec.get(name) != value:
                    return False
        if not self.allowed.batch and samples_per_step(spec) != samples_per_step(self.run.spec):
            return False
        return self.allowed.length or spec.get("sequence_length") == self.run.value("sequence_length")

    def _fitting(self, chosen: Sequence[Move]) -> Estimate | None:
        """The estimate with some changes where it surely fits; None where it does not, or they cannot be made."""
        spec = self._spec(chosen)
        if spec is None:
            return None
        key = self._edits(chosen) if chosen else ()
        if key not in self.judged:
            try:
                self.judged[key] = self.run.fits_as(spec)
            except UnknownModel:
                self.judged[key] = None
        return self.judged[key]


def _intrusion(chosen: Sequence[Move]) -> tuple[int, ...]:
    """How many changes are of each tier, the highest first."""
    return tuple(sum(move.tier == tier for move in chosen) for tier in reversed(TIERS))


def samples_per_step(spec: TrainingSpec) -> int | None:
    """Samples of one device between two steps of the optimizer, or of all devices where that is what the config states;
    None where that is not known."""
    batch, steps = spec.get("micro_batch_size"), spec.get("gradient_accumulation_steps")
    if steps is None:
        whole = spec.fact("global_batch_size")
        if whole is not None and whole.node is not None and isinstance(whole.value, int):
            return whole.value
        steps = 1
    return batch * steps if isinstance(batch, int) and isinstance(steps, int) else None
