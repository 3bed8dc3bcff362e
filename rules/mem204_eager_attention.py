from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class EagerAttention(Rule):
    """eager-attention: attention probabilities are kept though a fused kernel would not need them.

    ## What it does
    Fires when attention is computed as separate products and softmax, and a fused kernel would save a notable part
    of the peak: the run is re-estimated with one.

    ## Why it matters
    Plain attention keeps batch x heads x tokens x tokens numbers per layer, often several times over.

    ## Example
    `attn_implementation: eager`

    ## Use instead
    `attn_implementation: sdpa`

    ## Fix safety
    Unsafe: the same result up to rounding.

    ## References
    Dao et al., "FlashAttention", arXiv 2205.14135; Rabe and Staats, arXiv 2112.05682.
    """

    code = "MEM204"
    name = "eager-attention"
    facts = ("attention",)
    saves = True
    invalid = (Example("stdiff/kitti_range_train_config.yaml", expect="use_xformers"),)
    valid = (
        Example("stdiff/kitti_range_train_config.yaml", replace=(("use_xformers: false", "use_xformers: true"),)),
        Example("uni3d_dp/uni3d+dp.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        saved = run.saved_if({"attention": "sdpa"}, NOTABLE_SHARE) if run.value("attention") == "eager" else 0
        if not saved:
            return
        fixes = levers.fixes(run, levers.fused_attention)
        yield self.finding(
            run,
            f"attention probabilities are kept: {format_bytes(saved)} that a fused kernel does not need",
            "attention",
            size_bytes=saved,
            related=[fact for fact in (run.fact("micro_batch_size"),) if fact is not None],
            fixes=fixes,
            notes=[] if fixes else ["this config has no key for it: the model's code decides"],
        )
