from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.facts.spec import Name
from memlint.fixes.levers import TRIFLE
from memlint.plugin import INFO, Example, Finding, Rule, Run
from memlint.units import format_bytes

# fact -> (values that are a remedy, what they are a remedy against)
LEVERS: dict[Name, tuple[tuple[Any, ...], Any]] = {
    "activation_offloading": ((True,), False),
    "optimizer_in_backward": ((True,), False),
    "ema": ((True,), False),
    "optimizer": (("adamw_8bit", "adamw_4bit", "lion_8bit", "ademamix_8bit"), "adamw"),
}


class UnusedLever(Rule):
    """unused-lever: a setting that is meant to save memory saves less than a hundredth of the peak.

    ## What it does
    Records the run without each written setting that is a memory remedy, and fires when what is live at the peak
    changes by less than 1 % of the peak.

    ## Why it matters
    Such a setting costs speed or precision, and takes the place of one that would help.

    ## Example
    An 8-bit optimizer beside LoRA: its states are of the adapters alone.

    ## Use instead
    The remedies for what the peak is made of: `memlint explain`.

    ## Fix safety
    No fix: what it costs is not in the config.

    ## References
    `memlint explain` shows the parts of the peak.
    """

    code = "MEM214"
    name = "unused-lever"
    severity = INFO
    invalid = (
        Example("language_models/lora_axolotl.yml", expect="optimizer"),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(
                ("optimizer_in_bwd: false", "optimizer_in_bwd: true"),
                ("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1"),
                ("  lr: 2e-5", "  lr: 2e-5\n  fused: true"),
            ),
            expect="optimizer_in_bwd",
            note="the peak is at the loss, before there is any gradient of a weight",
        ),
    )
    valid = (
        Example("language_models/full_llamafactory.yaml"),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(
                ("finetuning_type: full", "finetuning_type: lora"),
                ("bf16: true", "bf16: true\nuse_unsloth: true"),
                ("cutoff_len: 2048", "cutoff_len: 64"),
                ("train_batch_size: 8", "train_batch_size: 1"),
            ),
            note="a switch that brings kernels as well is set for their speed",
        ),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("optim: adamw_torch", "optim: adamw_bnb_8bit"), ("cutoff_len: 2048", "cutoff_len: 256")),
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None:
            return
        for name, (remedies, without) in LEVERS.items():
            fact = run.fact(name)
            if fact is None or fact.node is None or fact.value not in remedies:
                continue
            kernels = run.fact("fused_kernels")
            if kernels is not None and kernels.node is fact.node:
                continue  # the same value brings kernels, and is set for their speed
            changes: dict[Name, Any] = {name: without}
            if name == "optimizer":
                changes |= {"optimizer_library": "torch", "optimizer_paged": False}
            before = run.estimate.device_bytes
            # Of what is live: the pieces that the allocator keeps beside it come and go with every size.
            saved = run.allocated_if(changes) - run.estimate.allocated_bytes
            if abs(saved) >= TRIFLE * before:
                continue
            yield self.finding(
                run,
                f"{fact.label} {fact.written} saves {format_bytes(max(saved, 0))} of a peak of {format_bytes(before)}",
                fact,
                size_bytes=max(saved, 0),
            )
