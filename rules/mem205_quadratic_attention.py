from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, Example, Finding, Fix, Rule, Run
from memlint.units import GiB, format_bytes

# Tokens from which one head's fp32 probabilities of one sample take 1 GiB: 16384**2 x 4 B.
GIB_ATTENTION_TOKENS = int((GiB / 4) ** 0.5)


class QuadraticAttention(Rule):
    """quadratic-attention: the number of tokens itself is the problem.

    ## What it does
    Where attention keeps its probabilities, fires when a sample has so many tokens that those of one head take a GiB
    (16,384 tokens), or when the quadratic part is a third of the peak and the config has no key for a fused kernel.

    ## Why it matters
    Half the side of an image is a quarter of the tokens and a sixteenth of the probabilities. Without a fused kernel
    no batch size is small enough; with one, the compute stays quadratic.

    ## Example
    A UNet with attention at half the resolution of 64 x 2048 range images: 32,768 tokens.

    ## Use instead
    Attention at deeper levels only, larger patches, windows, linear attention, or smaller images.

    ## Fix safety
    Display: the model changes.

    ## References
    Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, table 1.
    """

    code = "MEM205"
    name = "quadratic-attention"
    facts = ("attention_tokens",)
    saves = True
    invalid = (Example("stdiff/kitti_range_train_config.yaml", expect="sample_size"),)
    valid = (
        Example("stdiff/kitti_range_train_config_after.yaml"),
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example(
            "language_models/sft_trl.yaml",
            replace=(("max_length: 4096", "max_length: 32768"),),
            note="a fused kernel keeps no probabilities",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        tokens = run.value("attention_tokens")
        exploded = tokens >= GIB_ATTENTION_TOKENS and run.value("attention", "eager") == "eager"
        if not exploded and levers.fused_attention(run) is not None:
            return
        taken = run.attention_bytes
        if not exploded and not run.is_large(taken):
            return
        one_head = tokens * tokens * 4
        message = f"{tokens:,} tokens attend to each other: {format_bytes(one_head)} per head and sample in fp32"
        if taken:
            message += f", {format_bytes(taken)} of the peak here"
        place = next(
            (fact for fact in run.those("patch_size", "image_size", "sequence_length") if fact.node),
            run.fact("attention_tokens"),
        )
        yield self.finding(run, message, place, size_bytes=taken or one_head, fixes=lambda: self._fixes(run))

    def _fixes(self, run: Run) -> list[Fix]:
        patch = run.value("patch_size")
        if not isinstance(patch, int) or not run.can_set("patch_size", patch * 2):
            return []
        return levers.fix(run, levers.Lever(DISPLAY, {"patch_size": patch * 2}))
