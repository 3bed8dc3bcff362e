from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run


class AutocastOverHalf(Rule):
    """autocast-over-half: mixed precision over weights that are 16 bits already.

    ## What it does
    Fires when the weights are bfloat16 or float16 and mixed precision is switched on besides.

    ## Why it matters
    There is nothing left to cast down: it saves no memory, and what autocast computes in fp32 (norms, softmax, loss)
    takes more than before. A gradient scaler has nothing to do with bfloat16 either.

    ## Example
    `dtype: bfloat16` with `use_mixed_precision: true`

    ## Use instead
    One of the two: 16-bit weights without autocast, or fp32 weights with it.

    ## Fix safety
    No fix: which of the two is meant is yours to say.

    ## References
    torch.amp documentation, "Ops that can autocast to float32".
    """

    code = "MEM302"
    name = "autocast-over-half"
    severity = INFO
    facts = ("compute_dtype", "parameter_dtype")
    needs_estimate = False
    invalid = (Example("video_llm/config.yaml", expect="use_mixed_precision"),)
    valid = (Example("video_llm/config_before.yaml"),)

    def check(self, run: Run) -> Iterator[Finding]:
        half = ("bfloat16", "float16")
        if run.value("autocast") and run.value("parameter_dtype") in half:
            weights = run.fact("parameter_dtype")
            yield self.finding(
                run,
                f"mixed precision over {run.value('parameter_dtype')} weights saves nothing",
                "autocast",
                related=[weights] if weights is not None else [],
            )
