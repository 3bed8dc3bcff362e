from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

MOST = 1 / 2  # of the peak


class OptimizerStatesDominate(Rule):
    """optimizer-states-dominate: the optimizer is the largest part of the peak.

    ## What it does
    Fires when states and step temporaries of the optimizer are the largest component and a third of the peak, where
    the budget is short; else where they are half of it, the devices are no assumption, and the config can state a
    smaller optimizer.

    ## Why it matters
    AdamW keeps eight bytes per fp32 parameter, whatever the batch; no change to batch or tokens touches them.

    ## Example
    A full fine-tune of a 2.5-billion-parameter model: 18.7 GiB of states in fp32.

    ## Use instead
    States in eight bits, a factored optimizer, or sharding over several cards.

    ## Fix safety
    Unsafe: numerics change.

    ## References
    Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861; Shazeer and Stern,
    "Adafactor", arXiv 1804.04235.
    """

    code = "MEM304"
    name = "optimizer-states-dominate"
    facts = ("optimizer",)
    saves = True
    invalid = (
        Example(
            "video_llm/config.yaml",
            replace=(("max_frames: 100", "max_frames: 1"), ("batch_size: 4", "batch_size: 1")),
            expect="optimizer",
        ),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("train_batch_size: 8", "train_batch_size: 1"), ("cutoff_len: 2048", "cutoff_len: 128")),
            budget="1GB",
            expect="optim",
        ),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("max_seq_len: 4096", "max_seq_len: 256"), ("batch_size: 4", "batch_size: 1")),
            budget="1GB",
            expect="_component_",
        ),
    )
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("language_models/lora_axolotl.yml", note="those of adapters are small"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None:
            return
        taken = run.estimate.component_bytes("optimizer")
        if taken < max(part.size_bytes for part in run.estimate.components) or not run.is_large(taken):
            return
        fixes = levers.fixes(run, levers.small_optimizer) if run.details or not run.is_short else []
        if not run.is_short and not (run.is_launched and fixes and run.is_large(taken, MOST)):
            return
        yield self.finding(
            run,
            f"optimizer states take {format_bytes(taken)}, {taken / run.estimate.device_bytes:.0%} of the peak",
            "optimizer",
            size_bytes=taken,
            fixes=fixes,
        )
