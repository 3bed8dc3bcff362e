from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.facts.spec import Name
from memlint.fixes import levers
from memlint.plugin import UNSAFE, Example, Finding, Rule, Run
from memlint.units import format_bytes

# Where the peak lies in one of these, what forward keeps may not matter to it.
ELSEWHERE = ("optimizer_step", "evaluation")


class CheckpointingNoOp(Rule):
    """checkpointing-no-op: activations are recomputed, and the peak is as high as without.

    ## What it does
    Where checkpointing is on and the peak is not in the forward or backward pass, re-estimates the run without it. It
    fires when the peak changes by less than 1 %.

    ## Why it matters
    Recomputing costs about a third more compute. It lowers what forward keeps, which here is not what decides.

    ## Example
    Checkpointing with a micro batch of one, where the optimizer's temporaries are the peak.

    ## Use instead
    A remedy for the phase that has the peak (MEM305, MEM701); then look again.

    ## Fix safety
    Unsafe: the same numbers, at another speed.

    ## References
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
    """

    code = "MEM203"
    name = "checkpointing-no-op"
    facts = ("checkpointing",)
    invalid = (
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(
                ("max_seq_len: 4096", "max_seq_len: 256"),
                ("batch_size: 4", "batch_size: 1"),
                ("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1"),
            ),
            expect="enable_activation_checkpointing",
        ),
    )
    valid = (
        Example("language_models/torchtune_llama3_1b.yaml"),
        Example("language_models/torchtitan_llama3_8b.toml"),
        Example("language_models/full_llamafactory.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        fact = run.fact("checkpointing")
        if run.estimate is None or fact is None or fact.value in (None, "none") or fact.node is None:
            return
        if run.estimate.peak_phase not in ELSEWHERE:
            return
        without = run.what_if(checkpointing="none")
        if without.device_bytes - run.estimate.device_bytes >= levers.TRIFLE * run.estimate.device_bytes:
            return
        fixes = []
        if run.can_set("checkpointing", "none"):
            changes: dict[Name, Any] = {"checkpointing": "none"}
            fixes = [run.fix(levers.describe(run, changes), UNSAFE, changes)]
        phase = run.estimate.peak_phase.replace("_", " ")
        yield self.finding(
            run,
            f"checkpointing saves nothing: the peak, {format_bytes(run.estimate.device_bytes)}, is in the {phase} "
            "and the same without it",
            fact,
            fixes=fixes,
        )
