from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, Example, Finding, Rule, Run
from memlint.units import format_bytes


class SmallPatch(Rule):
    """small-patch: the patch size makes the tokens explode.

    ## What it does
    When activations dominate, re-estimates the run with patches of twice the side; fires when that saves at least a
    third of the peak, and states the tokens now and after.

    ## Why it matters
    Half the side of a patch is four times the tokens, and sixteen times the attention probabilities.

    ## Example
    `DIT_PATCH_SIZE = 2` on 64 x 64 frames: 1,024 tokens per frame.

    ## Use instead
    `DIT_PATCH_SIZE = 4`: 256 tokens per frame.

    ## Fix safety
    Display: the model changes.

    ## References
    Peebles and Xie, "Scalable Diffusion Models with Transformers", arXiv 2212.09748, figure 6.
    """

    code = "MEM209"
    name = "small-patch"
    facts = ("patch_size", "attention_tokens")
    saves = True
    invalid = (
        Example(
            "dit3d/config.py",
            replace=(('"DiT3D-Tiny/4"', '"DiT3D-XL/2"'), ("DIT_PATCH_SIZE = (4, 16, 16)", "DIT_PATCH_SIZE = 2")),
            expect="DIT_PATCH_SIZE",
        ),
    )
    valid = (Example("dit3d/config.py"),)

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or not run.activations_dominate:
            return
        patch = run.fact("patch_size")
        assert patch is not None
        larger: int | list[int]
        if isinstance(patch.value, int):
            larger = patch.value * 2
        else:
            larger = [*patch.value[:-2], patch.value[-2] * 2, patch.value[-1] * 2]
        saved = run.estimate.device_bytes - run.what_if(patch_size=larger).device_bytes
        if not run.is_large(saved):
            return
        tokens = run.value("attention_tokens")
        fixes = []
        if run.can_set("patch_size", larger):
            fixes = levers.fix(run, levers.Lever(DISPLAY, {"patch_size": larger}))
        yield self.finding(
            run,
            f"{patch.label} {patch.value} makes {tokens:,} tokens; twice the side makes {tokens // 4:,} "
            f"and saves {format_bytes(saved)}",
            patch,
            size_bytes=saved,
            fixes=fixes,
        )
