from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes


class EngineReservation(Rule):
    """engine-reservation: an inference engine on the same card takes a share of the whole card.

    ## What it does
    With a budget, takes the engine's share from it, and compares the rest with the estimate of training. It fires where
    training does not fit beside the engine, or where there is no estimate to say that it does.

    ## Why it matters
    The share is of the card, not of what training leaves free: 0.5 of 80 GB are 40 GB whatever else is there. Engines
    take it at their start, for weights and as many key-value blocks as fit.

    ## Example
    `vllm_mode: colocate` with `vllm_gpu_memory_utilization: 0.5`

    ## Use instead
    A smaller share, an engine that sleeps between generations, or one on cards of its own.

    ## Fix safety
    No fix: how fast samples are generated depends on it.

    ## References
    vLLM documentation, `gpu_memory_utilization`; TRL documentation, "vLLM Integration".
    """

    code = "MEM706"
    name = "engine-reservation"
    facts = ("engine_share",)
    needs_estimate = False
    invalid = (Example("language_models/grpo_trl.yaml", budget="24GB", expect="vllm_gpu_memory_utilization"),)
    valid = (
        Example("language_models/grpo_trl.yaml", note="without a budget"),
        Example(
            "language_models/grpo_trl.yaml",
            replace=(("vllm_mode: colocate", "vllm_mode: server"),),
            budget="24GB",
            note="an engine on cards of its own",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        share = run.value("engine_share")
        if run.value("engine_beside") is not None:  # it gives its share back while the model trains
            return
        if run.budget_bytes is None or not isinstance(share, (int, float)) or not 0 < share <= 1:
            return
        taken = int(share * run.budget_bytes)
        left = run.budget_bytes - taken
        message = (
            f"the engine takes {share:g} of the whole card: {format_bytes(taken)}, which leaves "
            f"{format_bytes(left)} for training"
        )
        size = taken
        if run.estimate is not None:
            # With a card the estimate counts the engine already.
            training = run.estimate.device_bytes - (taken if run.gpu else 0)
            if training <= left:
                return
            message += f", which needs {format_bytes(training)}"
            size = training - left
        yield self.finding(run, message, "engine_share", size_bytes=size)
