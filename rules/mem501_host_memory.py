from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

# torch.utils.data.DataLoader: `prefetch_factor` batches per worker, 2 unless stated.
DEFAULT_PREFETCH = 2


class HostMemory(Rule):
    """host-memory: data loading alone exceeds the host's memory.

    ## What it does
    With `--host-budget`, adds up the batches that workers hold ready (workers x prefetch x batch x sample), once more
    where memory is pinned.

    ## Why it matters
    The kernel kills a worker or the whole run, and the message names no key.

    ## Example
    64 workers with batches of a thousand images each on a 32 GB machine.

    ## Use instead
    Fewer workers or a smaller prefetch factor.

    ## Fix safety
    No fix.

    ## References
    torch.utils.data documentation, "Multi-process data loading".
    """

    code = "MEM501"
    name = "host-memory"
    facts = ("workers", "sample_bytes", "micro_batch_size")
    needs_estimate = False
    invalid = (Example("uni3d_dp/uni3d+dp.yaml", host_budget="10MB", expect="num_workers"),)
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml", host_budget="64GB"),
        Example("uni3d_dp/uni3d+dp.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.host_budget_bytes is None:
            return
        workers, batch = run.value("workers"), run.value("micro_batch_size")
        prefetch = run.value("prefetch_factor", DEFAULT_PREFETCH)
        ready = max(workers * prefetch, 1)
        size = ready * batch * run.value("sample_bytes")
        if run.value("pin_memory"):
            size += batch * run.value("sample_bytes")
        if size <= run.host_budget_bytes:
            return
        yield self.finding(
            run,
            f"{workers} workers hold {ready} batches ready: {format_bytes(size)} of host memory, "
            f"{format_bytes(run.host_budget_bytes)} are there",
            "workers",
            size_bytes=size - run.host_budget_bytes,
        )
