"""The rows of a plan: each is the check of a config that could be written as it stands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from memlint import files, work
from memlint.check import check_paths
from memlint.checking.reading import stated_model, with_devices
from memlint.data.catalogue import Gpu
from memlint.estimates import EqualRuns, Estimates
from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.named_tuple import NamedTuple
from memlint.planning.starters import TRAINERS, Unplanned, Wanted, starter
from memlint.reports.report import RunReport
from memlint.settings import Allowance, Resolver, Settings
from memlint.tape.estimate import FITS, Estimate

MOST = 4096  # samples of a micro-batch that are looked at


class Seen(NamedTuple):
    """What a check said of a config."""

    run: RunReport
    spec: TrainingSpec
    estimates: Estimates
    settings: Settings

    @property
    def why(self) -> str:
        said = [finding.message for finding in self.run.findings if finding.code in ("MEM001", "MEM007", "MEM011")]
        return said[0] if said else "no estimate"


class Row(NamedTuple):
    """One method on some devices of one kind.

    card      None: for no card in particular
    estimate  with one sample per device; None where there is none, and ``why``
    batch     the most samples per device with which it surely fits the card; 0: it does not fit with one. None where it
              was not looked for
    filled    the estimate with that batch
    newest_batch  the most that surely fit with the newest release of each library, which no starter pins
    """

    wanted: Wanted
    card: Gpu | None
    estimate: Estimate | None
    why: str = ""
    batch: int | None = None
    filled: Estimate | None = None
    newest_batch: int | None = None

    @property
    def verdict(self) -> str:
        if self.estimate is None:
            return "UNKNOWN"
        return "" if self.card is None else self.estimate.verdict(self.card.usable_bytes)

    @property
    def tokens(self) -> int:
        """Of one optimizer step of all devices, with the largest batch."""
        return (self.batch or 0) * self.wanted.devices * self.wanted.length


class Planner:
    """Plans for one model and one trainer. Configs are written to a folder of its own, and checked as files are."""

    def __init__(self, trainer: str, model_config: str = "") -> None:
        self.trainer = trainer
        self.model_config = model_config
        self.equal_runs = EqualRuns()

    def rows(self, wanted: Wanted, cards: Sequence[Gpu]) -> Iterator[Row]:
        """One for each card; without any, one for no card in particular."""
        if not cards:
            yield from self._rows(wanted, [None])
        for half, has_it in (("bf16", True), ("fp16", False)):
            able = [card for card in cards if card.bf16 == has_it]
            if able:
                yield from self._rows(wanted._replace(half=half), able)

    def _rows(self, wanted: Wanted, cards: Sequence[Gpu | None]) -> Iterator[Row]:
        try:
            starter(self.trainer, wanted, "plan")
        except Unplanned as error:
            yield from (Row(wanted, card, None, str(error)) for card in cards)
            return
        with self.checked(wanted) as seen:
            for card in cards:
                if seen.run.estimate is None:
                    yield Row(wanted, card, None, seen.why)
                elif card is None:
                    yield Row(wanted, None, seen.run.estimate)
                else:
                    yield self._filled(wanted, card, seen)

    def _filled(self, wanted: Wanted, card: Gpu, seen: Seen) -> Row:
        spec = with_devices(seen.spec, Allowance(None, "", card.name, None))
        estimates = self.equal_runs.estimates(spec, card.name, ())

        def fits_newest(batch: int) -> bool:
            changed = spec.with_facts(micro_batch_size=batch)
            return estimates.newest(changed).verdict(card.usable_bytes) == FITS

        def fits(batch: int) -> bool:
            """With the older releases that may be in use as well, whose interval is never narrower."""
            changed = spec.with_facts(micro_batch_size=batch)
            return fits_newest(batch) and estimates.fitting(changed, card.usable_bytes) is not None

        with work.limited(work.INVOCATION_STEPS), files.named([seen.run.path]), stated_model(seen.settings):
            one = estimates.own()
            batch = most(fits) if one.verdict(card.usable_bytes) == FITS else 0
            newest = most(fits_newest) if fits_newest(1) else 0
        self.equal_runs.save()
        filled: Estimate | None = None
        if batch:
            with self.checked(wanted._replace(micro_batch=batch), card.name) as again:
                filled = again.run.estimate
        return Row(wanted, card, one, "", batch, filled, newest)

    @contextmanager
    def checked(self, wanted: Wanted, gpu: str = "") -> Iterator[Seen]:
        """What `check --gpu` says of the config that is written for a run. Its files are there as long as it lasts."""
        found: list[Seen] = []

        def each(run: RunReport, spec: TrainingSpec, estimates: Estimates, settings: Settings) -> None:
            found.append(Seen(run, spec, estimates, settings))

        with tempfile.TemporaryDirectory(prefix="memlint-") as folder:
            os.mkdir(os.path.join(folder, ".git"))  # nothing around it belongs to it
            path = os.path.join(os.path.realpath(folder), name := f"plan{TRAINERS[self.trainer].suffix}")
            for other, text in starter(self.trainer, wanted, name).items():
                with open(os.path.join(os.path.dirname(path), other), "w", encoding="utf-8") as file:
                    file.write(text)
            options = {"select": ["MEM007"], **({"gpu": gpu} if gpu else {})}
            if self.model_config:
                options["model-config"] = os.path.abspath(self.model_config)
            check_paths([path], Resolver(options, isolated=True), details=False, each=each, equal_runs=self.equal_runs)
            if not found:
                raise UnknownModel(f"{self.trainer}'s config was not read")
            yield found[0]


def most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, of those up to ``MOST``, where 1 does and what fits is a beginning: one more does
    not fit."""
    low, high = 1, 2
    while high <= MOST and fits(high):
        low, high = high, 2 * high
    high = min(high, MOST + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
