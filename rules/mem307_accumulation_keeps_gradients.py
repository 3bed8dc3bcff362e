from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes

# Of what is allocated: where gradients go to the host, next to nothing of them is left on the card.
LEAST_SHARE = 1 / 1000


class AccumulationKeepsGradients(Rule):
    """accumulation-keeps-gradients: accumulation costs resident gradients, and by itself saves nothing.

    ## What it does
    Where the budget is short, re-estimates the run without accumulation; fires when that lowers the peak by half of
    the gradients or more. Where less than half of the model is trained (adapters) it has to be a notable part of the
    peak as well.

    ## Why it matters
    From the second micro batch on, the gradients of all parameters stay while the next activations grow. It neither
    doubles gradients nor lowers anything: only the smaller micro batch that it allows does.

    ## Example
    `gradient_accumulation_steps: 8` as a remedy for running out of memory.

    ## Use instead
    Accumulation together with a smaller micro batch.

    ## Fix safety
    No fix: the effective batch is yours to say.

    ## References
    torch.optim documentation, `zero_grad(set_to_none=True)`.
    """

    code = "MEM307"
    name = "accumulation-keeps-gradients"
    severity = INFO
    facts = ("gradient_accumulation_steps",)
    saves = True
    invalid = (Example("stdiff/kitti_range_train_config.yaml", budget="24GB", expect="gradient_accumulation_steps"),)
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("stdiff/kitti_range_train_config.yaml", note="no budget is short"),
        Example("language_models/lora_axolotl.yml", note="an adapter's gradients are next to nothing"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        steps = run.value("gradient_accumulation_steps")
        if run.estimate is None or not isinstance(steps, int) or steps < 2 or not run.is_short:
            return
        in_part = run.estimate.trainable_parameters * 2 < run.estimate.parameters
        gradients_bytes = run.estimate.component_bytes("gradients")
        least = NOTABLE_SHARE if in_part else 0.0
        if not run.is_large(gradients_bytes, least):
            return
        first = run.first_pass_bytes
        if first and run.estimate.allocated_bytes - first < gradients_bytes // 2:
            return  # one micro-batch alone takes as much
        extra = run.estimate.allocated_bytes - run.allocated_if(gradient_accumulation_steps=1)
        # Where the peak lies in a phase that has its gradients anyway, rounding may differ; that is no finding.
        most_of_it = max(gradients_bytes // 2, LEAST_SHARE * run.estimate.allocated_bytes)
        if extra < most_of_it or not run.is_large(extra, least):
            return
        yield self.finding(
            run,
            f"gradients stay between micro batches: {format_bytes(extra)} more at the peak than without accumulation",
            "gradient_accumulation_steps",
            size_bytes=extra,
        )
