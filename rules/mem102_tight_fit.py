from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes


class TightFit(Rule):
    """tight-fit: the estimate's interval straddles the budget.

    ## What it does
    Fires when the budget lies inside the estimate's interval: it may fit, and it may not.

    ## Why it matters
    What decides is not in the config: the card's own context, the workspaces of its libraries, fragmentation.

    ## Example
    An estimate of 15.6 GiB, between 15.3 and 16.4, on a 16 GB card.

    ## Use instead
    One of the fixes, or a measured step.

    ## Fix safety
    As named with each fix.

    ## References
    `memlint explain` shows the interval's parts.
    """

    code = "MEM102"
    name = "tight-fit"
    invalid = (Example("uni3d_dp/uni3d+dp.yaml", budget="12.2GB", expect="batch_size"),)
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml", budget="24GB"),
        Example("uni3d_dp/uni3d+dp.yaml", budget="6GB", note="that is MEM101's"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.verdict != "TIGHT" or run.estimate is None or run.budget_bytes is None:
            return
        low, high = run.estimate.device_interval
        message = (
            f"may not fit: needs {format_bytes(run.estimate.device_bytes)} "
            f"({format_bytes(low)} to {format_bytes(high)}) of {format_bytes(run.budget_bytes)}"
        )
        found = (
            levers.fused_optimizer,
            levers.fused_attention,
            levers.fused_loss,
            levers.checkpointing,
            levers.smaller_batch,
        )
        yield self.finding(
            run,
            message,
            "micro_batch_size",
            size_bytes=high - run.budget_bytes,
            fixes=lambda: levers.fixes(run, *found),
        )
