from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import SAFE, Example, Finding, Rule, Run
from memlint.tape.estimate import FITS
from memlint.units import format_bytes

# A sample of half the permitted length stands for those that the first steps are made of.
SHORTER = 2


class PeakLater(Rule):
    """peak-later: the first steps fit the card, and a later one does not.

    ## What it does
    When the run does not surely fit the budget, re-estimates it with samples of half the permitted length, and with
    one row in an evaluation batch. It fires where one of the two fits: then the run starts, and ends later.

    ## Why it matters
    Batches are padded to their longest sample. The batch of full-length samples, or the first evaluation, may come
    hours after the start.

    ## Example
    `max_length: 4096` on a card that holds half of it, over a data set most of whose samples are short.

    ## Use instead
    What MEM101 and MEM102 propose; or try the run first with the longest samples, and evaluate before training.

    ## Fix safety
    No fix of its own.

    ## References
    transformers documentation, `DataCollatorWithPadding` and `eval_on_start`.
    """

    code = "MEM103"
    name = "peak-later"
    facts = ("micro_batch_size",)
    invalid = (
        Example("language_models/full_llamafactory.yaml", budget="32GB", expect="cutoff_len"),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("packed: true", "packed: false"),),
            budget="32GB",
            expect="max_seq_len",
        ),
    )
    valid = (
        Example("language_models/full_llamafactory.yaml", budget="64GB"),
        Example("language_models/full_llamafactory.yaml", budget="16GB", note="half the length does not fit either"),
        Example("language_models/torchtune_llama3_1b.yaml", budget="32GB", note="packed rows are always full"),
        Example("language_models/full_llamafactory.yaml", note="without a budget"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.budget_bytes is None or run.verdict == FITS:
            return
        if run.estimate.component_bytes("parameters") + run.estimate.component_bytes("optimizer") > run.budget_bytes:
            return  # in whatever step
        needed, budget = format_bytes(run.estimate.device_bytes), format_bytes(run.budget_bytes)
        if not run.over_budget:
            low, high = run.estimate.device_interval
            needed += f" ({format_bytes(low)} to {format_bytes(high)})"
        verb = "does" if run.over_budget else "may"
        over = max(run.estimate.device_interval.high_bytes - run.budget_bytes, 0)
        length, batch = run.fact("sequence_length"), run.fact("evaluation_batch_size")
        if length is not None and isinstance(length.value, int) and length.value >= SHORTER and self._varies(run):
            shorter = length.value // SHORTER
            if self._fits(run, levers.fewer(run, "sequence_length", shorter)):
                yield self.finding(
                    run,
                    f"the first steps may fit: samples of {shorter} tokens do, those of {length.label} {length.value} "
                    f"need {needed} of {budget}",
                    length,
                    size_bytes=over,
                )
        evaluates = run.estimate.peak_phase == "evaluation" and batch is not None
        if evaluates and batch is not None and self._fits(run, levers.Lever(SAFE, {"evaluation_batch_size": 1})):
            yield self.finding(
                run,
                f"training fits, the first evaluation {verb} not: it needs {needed} of {budget}",
                batch,
                size_bytes=over,
            )

    def _varies(self, run: Run) -> bool:
        """Whether batches are as long as their longest sample: the trainer neither packs nor fills rows up."""
        return run.value("packing") is False and run.value("method", "sft") != "pretraining"

    def _fits(self, run: Run, tried: levers.Lever) -> bool:
        return run.fits_if(**tried.changes, **tried.implied)
