from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

# A billion fp32 weights are 4 GB before anything else; from about there on checkpoints are published in 16 bits.
LARGE_PARAMETERS = 1_000_000_000


class WeightsLoadedFp32(Rule):
    """weights-loaded-fp32: a large pretrained model is loaded in fp32.

    ## What it does
    Fires when a model of a billion parameters or more is loaded with four bytes per weight.

    ## Why it matters
    Four bytes per weight, and with AdamW sixteen per trainable one. Checkpoints of that size are published in 16 bits.

    ## Example
    `dtype: float32`

    ## Use instead
    `dtype: bfloat16`

    ## Fix safety
    Unsafe: numerics change, and pure bfloat16 training rounds small updates away.

    ## References
    The `dtype` argument of `from_pretrained` in transformers.
    """

    code = "MEM303"
    name = "weights-loaded-fp32"
    facts = ("parameter_dtype", "pretrained")
    invalid = (
        Example("video_llm/config_before.yaml", replace=(("max_frames: null ", "max_frames: 50 "),), expect="dtype"),
    )
    valid = (
        Example("video_llm/config.yaml"),
        Example("uni3d_dp/uni3d+dp.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("parameter_dtype") != "float32" or not run.value("pretrained"):
            return
        if run.estimate.parameters < LARGE_PARAMETERS:
            return
        fixes = levers.fixes(run, levers.half_weights)
        taken = run.estimate.component_bytes("parameters")
        yield self.finding(
            run,
            f"{run.estimate.parameters / 1e9:.2f} billion weights in fp32 take {format_bytes(taken)}",
            "parameter_dtype",
            size_bytes=taken // 2,
            fixes=fixes,
        )
