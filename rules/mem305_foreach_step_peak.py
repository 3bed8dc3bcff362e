from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class ForeachStepPeak(Rule):
    """foreach-step-peak: the peak is the optimizer's own temporaries.

    ## What it does
    Fires when the run peaks in the optimizer step and the fused implementation would lower that peak.

    ## Why it matters
    `foreach`, what torch picks on CUDA, computes one list as large as all parameters while it updates them.

    ## Example
    AdamW with its defaults over 260 million parameters: 1 GB for a moment, and that moment is the peak.

    ## Use instead
    `fused: true`: one kernel, no temporaries.

    ## Fix safety
    Safe: the same update.

    ## References
    torch.optim documentation, "foreach" and "fused"; verl-project/verl issue 2556.
    """

    code = "MEM305"
    name = "foreach-step-peak"
    facts = ("optimizer_implementation",)
    saves = True
    invalid = (
        Example("uni3d_dp/uni3d+dp_after.yaml", expect="optimizer", budget="8GB"),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(
                ("train_batch_size: 8", "train_batch_size: 1"),
                ("accumulation_steps: 2", "accumulation_steps: 1"),
                ("cutoff_len: 2048", "cutoff_len: 128"),
            ),
            expect="optim",
            budget="16GB",
        ),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("max_seq_len: 4096", "max_seq_len: 256"), ("batch_size: 4", "batch_size: 1")),
            expect="_component_",
            budget="16GB",
        ),
    )
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("language_models/full_llamafactory.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.estimate.peak_phase != "optimizer_step":
            return
        if run.value("optimizer_implementation") not in ("foreach", "loop"):
            return
        saved = run.saved_if({"optimizer_implementation": "fused"}, NOTABLE_SHARE)
        if not saved:
            return
        fixes = levers.fixes(run, levers.fused_optimizer)
        switch = run.fact("optimizer_implementation")
        place = switch if switch is not None and switch.key else "optimizer"  # what has no key follows from the other
        yield self.finding(
            run,
            f"the peak is the optimizer step: {run.value('optimizer_implementation')} temporaries cost "
            f"{format_bytes(saved)}",
            place,
            size_bytes=saved,
            related=[fact for fact in (run.fact("optimizer"),) if fact is not None],
            fixes=fixes,
            notes=[] if fixes else ["pass fused=True where the optimizer is made"],
        )
