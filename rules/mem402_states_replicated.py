from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.layout import layout_of
from memlint.fixes import levers
from memlint.plugin import LARGE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes

STATES = ("parameters", "gradients", "optimizer")


class StatesReplicated(Rule):
    """states-replicated: every device holds all weights, gradients and optimizer states.

    ## What it does
    Where states are a large part of the peak of a data-parallel run, re-estimates it with their shards, as
    `fully_shard` makes them over all devices, and fires when that saves a large part of the peak.

    ## Why it matters
    N devices hold N copies of what they could hold once, at the price of gathering weights layer by layer.

    ## Example
    A full fine-tune on eight cards whose launcher names neither DeepSpeed nor FSDP.

    ## Use instead
    DeepSpeed's ZeRO stage 2 or 3, or FSDP.

    ## Fix safety
    Unsafe: sums of gradients come in another order, and trainers may keep other dtypes with it.

    ## References
    Rajbhandari et al., "ZeRO", arXiv 1910.02054; Zhao et al., "PyTorch FSDP", arXiv 2304.11277.
    """

    code = "MEM402"
    name = "states-replicated"
    facts = ("parallelism.strategy", "device_count")
    saves = True
    invalid = (
        Example(
            "language_models/run_clm_ddp.sh",
            replace=(("--nproc_per_node 4", "--nproc_per_node 16"), ("accumulation_steps 8", "accumulation_steps 1")),
            expect="--nproc_per_node",
        ),
    )
    valid = (
        Example(
            "language_models/run_clm_ddp.sh",
            note="the Trainer's FSDP keeps whole gradients between micro-batches, which leaves little to save",
        ),
        Example("language_models/run_clm.sh"),
        Example("language_models/run_clm_ddp.sh", replace=(("--nproc_per_node 4", "--nproc_per_node 1"),)),
        Example(
            "language_models/run_clm_ddp.sh",
            replace=(("train_batch_size 1", "train_batch_size 16"),),
            note="the logits are most of it",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        devices = layout_of(run.spec).data
        if run.estimate is None or run.value("parallelism.strategy") != "ddp" or devices < 2:
            return
        states = sum(map(run.estimate.component_bytes, STATES))
        if not run.is_large(states):
            return
        saved = run.estimate.device_bytes - run.what_if({"parallelism.strategy": "fsdp2"}).device_bytes
        if not run.is_large(saved, LARGE_SHARE):
            return
        yield self.finding(
            run,
            f"each of {devices} data-parallel devices holds all {format_bytes(states)} of weights, gradients and "
            f"optimizer states: fully sharded, the peak would be {format_bytes(saved)} lower",
            "device_count",
            size_bytes=saved,
            fixes=lambda: levers.fixes(run, levers.sharded_states),
            notes=lambda fixes: (
                [] if fixes else ["shard them with FSDP or DeepSpeed's ZeRO in the launcher's or trainer's config"]
            ),
        )
