from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, INFO, Example, Finding, Rule, Run
from memlint.tape.estimate import FITS
from memlint.units import format_bytes


class UnusedHeadroom(Rule):
    """unused-headroom: the budget holds a micro batch at least twice as large.

    ## What it does
    Doubles the micro batch, with as much less accumulation, for as long as even the high end of the estimate's
    interval fits the budget. It fires where one doubling does.

    ## Why it matters
    Small matrix products leave a card idle, and each micro batch pays for launches and communication.

    ## Example
    `batch_size: 1` on a card that holds 8.

    ## Use instead
    The batch in the fix. Where accumulation makes up for it, the optimizer sees what it saw before.

    ## Fix safety
    Display: without accumulation to take from, the effective batch changes.

    ## References
    PyTorch documentation, "Performance Tuning Guide".
    """

    code = "MEM104"
    name = "unused-headroom"
    severity = INFO
    preview = True
    facts = ("micro_batch_size",)
    invalid = (
        Example("uni3d_dp/uni3d+dp_after.yaml", budget="80GB", expect="batch_size"),
        Example("language_models/run_clm.sh", budget="80GB", expect="--per_device_train_batch_size"),
    )
    valid = (
        Example("uni3d_dp/uni3d+dp_upstream_default.yaml", budget="24GB"),
        Example("language_models/run_clm.sh", budget="32GB"),
        Example("language_models/run_clm.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        batch = run.fact("micro_batch_size")
        if run.estimate is None or run.budget_bytes is None or run.verdict != FITS:
            return
        if batch is None or not isinstance(batch.value, int) or not run.can_set("micro_batch_size", batch.value * 2):
            return
        changes = levers.larger_batch(run)
        if not changes:
            return
        after = run.what_if(**changes)
        yield self.finding(
            run,
            f"{format_bytes(run.budget_bytes)} hold {batch.label} {changes['micro_batch_size']} "
            f"({format_bytes(after.device_bytes)}): {batch.value} leaves "
            f"{format_bytes(run.budget_bytes - run.estimate.device_bytes)} unused",
            batch,
            size_bytes=run.budget_bytes - run.estimate.device_bytes,
            fixes=[run.fix(levers.describe(run, changes), DISPLAY, **changes)],
        )
