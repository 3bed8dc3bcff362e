from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import devices, levers
from memlint.plugin import ERROR, WARNING, Example, Finding, Fix, Rule, Run
from memlint.units import format_bytes

NO_PLAN = (
    "no batch, checkpointing, precision or optimizer that this config can state surely fits the budget; "
    "`memlint fit` also tries adapters, four bits and offloading"
)


class BudgetExceeded(Rule):
    """budget-exceeded: the run does not fit the card.

    ## What it does
    Compares the device peak (tensors, allocator, workspaces, CUDA context) with the budget. It fires when even the low
    end of the estimate's interval is above it, or, where a run has no estimate, when weights, gradients and optimizer
    states alone are. A warning where one device is an assumption.

    ## Why it matters
    The run ends in an out-of-memory error, in its first steps or hours later.

    ## Example
    `batch_size: 128` with 512 groups on a 16 GB card.

    ## Use instead
    The plan in the fix: the least intrusive changes that together fit, each re-estimated.

    ## Fix safety
    That of the most intrusive change in the plan.

    ## References
    `memlint explain` shows where every GiB comes from.
    """

    code = "MEM101"
    name = "budget-exceeded"
    severity = ERROR
    needs_estimate = False
    invalid = (Example("uni3d_dp/uni3d+dp_upstream_default.yaml", budget="16GB", expect="batch_size"),)
    valid = (
        Example("uni3d_dp/uni3d+dp_after.yaml", budget="16GB"),
        Example("uni3d_dp/uni3d+dp_upstream_default.yaml", note="without a budget"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.budget_bytes is None:
            return
        least = None if run.partial is None else run.partial.least_bytes
        if least is not None and least > run.budget_bytes:
            yield self._whatever_the_rest(run, least, run.budget_bytes)
        if not run.over_budget or run.estimate is None:
            return
        estimate = run.estimate
        over = estimate.device_bytes - run.budget_bytes
        largest = max(estimate.components, key=lambda component: component.size_bytes)
        message = (
            f"needs {format_bytes(estimate.device_bytes)} of {format_bytes(run.budget_bytes)}: "
            f"{format_bytes(over)} too much; the largest part: {largest.name}, {format_bytes(largest.size_bytes)}"
        )
        yield self.finding(
            run,
            message,
            "micro_batch_size",
            size_bytes=over,
            severity="" if run.is_launched else WARNING,
            fixes=lambda: self._plan(run),
            notes=lambda fixes: [*([] if fixes else [NO_PLAN]), *devices.alone(run)],
        )

    def _whatever_the_rest(self, run: Run, least_bytes: int, budget_bytes: int) -> Finding:
        over = least_bytes - budget_bytes
        return self.finding(
            run,
            f"weights, gradients and optimizer states alone take {format_bytes(least_bytes)} of "
            f"{format_bytes(budget_bytes)}: {format_bytes(over)} too much, whatever else it holds",
            "model",
            size_bytes=over,
            severity="" if run.is_launched else WARNING,
        )

    def _plan(self, run: Run) -> list[Fix]:
        plan = levers.plan(run)
        return [] if plan is None else [plan]
