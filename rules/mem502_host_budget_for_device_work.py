from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run
from memlint.units import format_bytes


class HostBudgetForDeviceWork(Rule):
    """host-budget-for-device-work: host memory is given as the budget of a run whose tensors live on the device.

    ## What it does
    Fires when `--host-budget` is the only budget of a run that trains on an accelerator, and says what a device needs.

    ## Why it matters
    Parameters, optimizer states and activations never touch host memory. A machine with 330 GB of it runs out of
    memory like any other when its accelerators have 16 GB each.

    ## Example
    `memlint check --host-budget 330GB train_lag_mode.sh`

    ## Use instead
    `--budget 16GB` or `--gpu NAME`, with `--host-budget` beside it for data loading.

    ## Fix safety
    No fix.

    ## References
    JAX documentation, "GPU memory allocation": arrays live in the device's memory.
    """

    code = "MEM502"
    name = "host-budget-for-device-work"
    severity = INFO
    invalid = (Example("lag_mode/train_lag_mode.sh", host_budget="330GB"),)
    valid = (
        Example("lag_mode/train_lag_mode.sh", host_budget="330GB", budget="16GB"),
        Example("lag_mode/train_lag_mode.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.host_budget_bytes is None or run.budget_bytes is not None or run.estimate is None:
            return
        needed = run.estimate.device_bytes
        devices = run.value("device_count", 1)
        where = "the device" if devices == 1 else f"each of {devices} devices"
        yield self.finding(
            run,
            f"{format_bytes(run.host_budget_bytes)} is host memory, but this run needs {format_bytes(needed)} "
            f"on {where}: give --budget or --gpu",
            "device_count",
            size_bytes=needed,
        )
