from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, ERROR, Example, Finding, Rule, Run


class BatchNotDivisible(Rule):
    """batch-not-divisible: the devices cannot share the global batch evenly.

    ## What it does
    Fires when a global batch is split over devices and does not divide by their number.

    ## Why it matters
    The run stops with an error at its first step.

    ## Example
    `--batch_size 4` with eight devices.

    ## Use instead
    The nearest multiple of the number of devices.

    ## Fix safety
    Display: the batch changes.

    ## References
    `jax.pmap`: the mapped axis has the size of the devices.
    """

    code = "MEM404"
    name = "batch-not-divisible"
    severity = ERROR
    facts = ("global_batch_size", "device_count")
    needs_estimate = False
    invalid = (
        Example(
            "lag_mode/train_lag_mode.sh",
            replace=(("python main_jax.py", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 python main_jax.py"),),
            expect="--batch_size",
        ),
    )
    valid = (
        Example(
            "lag_mode/train_lag_mode.sh",
            replace=(("python main_jax.py", "CUDA_VISIBLE_DEVICES=0,1,2,3 python main_jax.py"),),
        ),
        Example("lag_mode/train_lag_mode.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        batch, devices = run.value("global_batch_size"), run.value("device_count")
        if not isinstance(batch, int) or not isinstance(devices, int) or devices < 2 or batch % devices == 0:
            return
        nearest = max(devices, round(batch / devices) * devices)
        fact, count = run.fact("global_batch_size"), run.fact("device_count")
        assert fact is not None
        fixes = []
        if run.can_set("global_batch_size", nearest):
            title = levers.describe(run, {"global_batch_size": nearest})
            fixes = [run.fix(title, DISPLAY, global_batch_size=nearest)]
        yield self.finding(
            run,
            f"{fact.label} {batch} does not divide by {devices} devices: the run stops at its first step",
            fact,
            related=[count] if count is not None else [],
            fixes=fixes,
        )
