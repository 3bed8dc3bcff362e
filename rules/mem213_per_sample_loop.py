from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, Example, Finding, Rule, Run
from memlint.units import format_bytes


class PerSampleLoop(Rule):
    """per-sample-loop: a loop over samples or frames keeps the activations of every pass.

    ## What it does
    Fires where the model runs a part of itself once per sample of a set (leave-one-out) or per frame inside one step,
    and the extra passes cost at least a quarter of the peak.

    ## Why it matters
    All passes happen before the backward pass, so all of their activations are alive together.

    ## Example
    `--sample_size 6` in a leave-one-out encoder: six encoder passes per step.

    ## Use instead
    Smaller sets, rematerialised passes, or one encoding shared by all.

    ## Fix safety
    Display: the task changes.

    ## References
    `memlint explain` shows how often each of the encoder's arrays is there.
    """

    code = "MEM213"
    name = "per-sample-loop"
    facts = ("loop_passes",)
    saves = True
    invalid = (Example("lag_mode/train_lag_mode.sh", expect="--sample_size"),)
    valid = (Example("uni3d_dp/uni3d+dp.yaml"),)

    def check(self, run: Run) -> Iterator[Finding]:
        fact = run.fact(run.value("loop_passes"))
        if run.estimate is None or fact is None or not isinstance(fact.value, int) or fact.value < 2:
            return
        extra = run.estimate.device_bytes - run.what_if({fact.name: 1}).device_bytes
        if not run.is_large(extra, 0.25):
            return
        fixes = []
        if run.can_set(fact.name, fact.value // 2):
            fixes = levers.fix(run, levers.Lever(DISPLAY, {fact.name: fact.value // 2}))
        yield self.finding(
            run,
            f"{fact.label} {fact.value}: {fact.value} passes are alive at once; all but one cost {format_bytes(extra)}",
            fact,
            size_bytes=extra,
            fixes=fixes,
        )
