from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes

# Code bases with gradient buffers of their own in place of DistributedDataParallel's buckets.
OWN_BUFFERS = ("megatron", "neox", "nanotron", "nanotron qwen2")


class DdpGradientCopy(Rule):
    """ddp-gradient-copy: DistributedDataParallel keeps every gradient twice.

    ## What it does
    Re-estimates a data-parallel run with gradients that are views of the buckets in which they are reduced, and fires
    when that saves a notable part of the peak.

    ## Why it matters
    Gradients are copied into buckets for communication. Together the buckets are as large as all gradients.

    ## Example
    Four processes that each train all 1.2 billion parameters: 2.3 GiB of buckets in bfloat16, 4.6 in fp32.

    ## Use instead
    `DistributedDataParallel(model, gradient_as_bucket_view=True)`

    ## Fix safety
    Safe: the same numbers in the same order.

    ## References
    torch.nn.parallel.DistributedDataParallel documentation, `gradient_as_bucket_view`.
    """

    code = "MEM401"
    name = "ddp-gradient-copy"
    facts = ("parallelism.strategy",)
    saves = True
    invalid = (Example("language_models/run_clm_ddp.sh", expect="--nproc_per_node"),)
    valid = (
        Example("language_models/run_clm.sh"),
        Example("language_models/run_clm_ddp.sh", replace=(("--nproc_per_node 4", "--nproc_per_node 1"),)),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("parallelism.strategy") != "ddp":
            return
        if run.value("implementation") in OWN_BUFFERS:
            return
        name: Final = "parallelism.gradient_as_bucket_view"
        if run.value(name) or not run.is_large(run.estimate.component_bytes("communication"), NOTABLE_SHARE):
            return
        saved = run.saved_if({name: True}, NOTABLE_SHARE)
        if not saved:
            return
        fixes = levers.fixes(run, levers.bucket_views)
        yield self.finding(
            run,
            f"buckets are a second copy of all gradients: gradient_as_bucket_view would save {format_bytes(saved)}",
            "device_count",
            size_bytes=saved,
            fixes=fixes,
            notes=[] if fixes else ["pass gradient_as_bucket_view=True where DistributedDataParallel is made"],
        )
