from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class EmaOnGpu(Rule):
    """ema-on-gpu: the averaged copy of the weights lives on the card.

    ## What it does
    Fires when the exponential moving average takes a notable part of the peak.

    ## Why it matters
    It is a full second copy of the weights, needed once per step and never by backward.

    ## Example
    `use_ema: true`

    ## Use instead
    The copy in host memory, updated every few steps, or no average.

    ## Fix safety
    Display, and only where the run may not fit: the averaged weights are what many papers evaluate.

    ## References
    Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
    """

    code = "MEM306"
    name = "ema-on-gpu"
    facts = ("ema",)
    saves = True
    invalid = (Example("uni3d_dp/uni3d+dp.yaml", expect="use_ema", budget="16GB"),)
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml", replace=(("use_ema: true", "use_ema: false"),)),
        Example("video_llm/config.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None:
            return
        taken = run.estimate.component_bytes("ema")
        if not taken or not run.is_large(taken, NOTABLE_SHARE):
            return
        yield self.finding(
            run,
            f"the EMA copy takes {format_bytes(taken)} of the card",
            "ema",
            size_bytes=taken,
            fixes=lambda: levers.fixes(run, levers.no_ema) if run.is_short else [],
        )
