from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import ERROR, WARNING, Example, Finding, Rule, Run
from memlint.units import format_bytes


class StatesExceedGpu(Rule):
    """states-exceed-gpu: weights, gradients and optimizer alone are larger than the budget.

    ## What it does
    Compares what the optimizer's step holds, weights, gradients and states without temporaries, with the budget. A
    warning where one device is an assumption.

    ## Why it matters
    No batch is small enough: the run cannot start on this card.

    ## Example
    A full fine-tune of a 2.5-billion-parameter model with AdamW in fp32: 37.3 GiB on a 16 GB card.

    ## Use instead
    Adapters on frozen weights, quantised weights, sharding over several cards, or offload.

    ## Fix safety
    No fix: each of these is another kind of training.

    ## References
    Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.
    """

    code = "MEM308"
    name = "states-exceed-gpu"
    severity = ERROR
    invalid = (
        Example(
            "video_llm/config_before.yaml",
            replace=(("max_frames: null ", "max_frames: 50 "),),
            budget="16GB",
            expect="dtype",
        ),
    )
    valid = (
        Example("video_llm/config_before.yaml", replace=(("max_frames: null ", "max_frames: 50 "),), budget="80GB"),
        Example("uni3d_dp/uni3d+dp.yaml", budget="16GB"),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("max_seq_len: 4096", "max_seq_len: 256"), ("batch_size: 4", "batch_size: 1")),
            budget="10GB",
            note="temporaries of the step exceed it, states do not",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.budget_bytes is None or not run.over_budget:
            return
        # The step holds all three at once. Its temporaries are none of them: one fused kernel does without.
        apart = run.value("optimizer_implementation") in ("foreach", "loop")
        step = run.what_if(optimizer_implementation="fused") if apart else run.estimate
        total = step.phases.get("optimizer_step", 0)
        if total <= run.budget_bytes:
            return
        weights = run.estimate.component_bytes("parameters")
        stated = run.those("model", "parameter_dtype", "optimizer")
        place = next((fact for fact in stated if fact.node is not None), None)
        yield self.finding(
            run,
            f"weights ({format_bytes(weights)}), gradients and optimizer states alone take {format_bytes(total)} of "
            f"{format_bytes(run.budget_bytes)}",
            place,
            severity="" if run.is_launched else WARNING,
            size_bytes=total - run.budget_bytes,
        )
