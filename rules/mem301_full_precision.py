from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class FullPrecision(Rule):
    """full-precision: fp32 compute where 16 bits would do.

    ## What it does
    Fires when weights and compute are fp32 and mixed precision would save a notable part of the peak: with bfloat16,
    or float16 where the card that is named has no other, unless the checkpoint's weights are in bfloat16. Where it
    would save little, because plain softmax keeps a second copy, it stays silent.

    ## Why it matters
    Autocast halves most activations; weights, gradients and optimizer states stay as they are.

    ## Example
    `use_mixed_precision: false`

    ## Use instead
    `use_mixed_precision: true`

    ## Fix safety
    Unsafe: numerics change.

    ## References
    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
    """

    code = "MEM301"
    name = "full-precision"
    facts = ("compute_dtype",)
    saves = True
    invalid = (
        Example(
            "stdiff/kitti_range_train_config.yaml",
            replace=(("use_xformers: false", "use_xformers: true"),),
            expect="mixed_precision",
        ),
    )
    valid = (
        Example("stdiff/kitti_range_train_config.yaml", note="plain softmax under autocast would keep a second copy"),
        Example("video_llm/config.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.value("compute_dtype") != "float32" or run.value("parameter_dtype", "float32") != "float32":
            return
        half = next(iter(levers.halves(run)), None)
        if run.estimate is None or half is None:
            return
        saved = run.saved_if({"compute_dtype": half}, NOTABLE_SHARE)
        if not saved:
            return
        fixes = levers.fixes(run, levers.mixed_precision)
        yield self.finding(
            run,
            f"computes in fp32: mixed precision would save {format_bytes(saved)}",
            "compute_dtype",
            size_bytes=saved,
            related=[fact for fact in (run.fact("micro_batch_size"),) if fact is not None],
            fixes=fixes,
            notes=[] if fixes else ["this config has no key for it: the training loop decides"],
        )
