from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

# Of the peak: recomputing costs about a third more time.
WORTH_RECOMPUTING = 1 / 10


class CheckpointingDisabled(Rule):
    """checkpointing-disabled: activations dominate and activation checkpointing is off.

    ## What it does
    Fires when activations are the largest part of the peak and the family's checkpointing switch is off or absent.
    Where the budget is not short, what is live, or the peak, has to fall by a tenth of the peak. A run from scratch
    that fits its card (without a budget: 80 GB) leaves recomputing out on purpose, for the time that it costs over
    weeks, and none is asked for.

    ## Why it matters
    With checkpointing a block keeps only its input and recomputes the rest when backward reaches it.

    ## Example
    `use_gradient_checkpointing: false`

    ## Use instead
    `use_gradient_checkpointing: true`

    ## Fix safety
    Unsafe: the same numbers for about a third more compute; random state is restored for dropout.

    ## References
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
    """

    code = "MEM202"
    name = "checkpointing-disabled"
    facts = ("checkpointing",)
    saves = True
    invalid = (
        Example(
            "video_llm/config_before.yaml",
            replace=(("max_frames: null ", "max_frames: 50 "),),
            expect="use_gradient_checkpointing",
        ),
        Example("language_models/sft_trl.yaml", expect="gradient_checkpointing"),
        Example(
            "language_models/lora_axolotl.yml",
            replace=(("gradient_checkpointing: true", "gradient_checkpointing: false"),),
            expect="gradient_checkpointing",
        ),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("bf16: true", "bf16: true\ndisable_gradient_checkpointing: true"),),
            expect="disable_gradient_checkpointing",
        ),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("enable_activation_checkpointing: true", "enable_activation_checkpointing: false"),),
            expect="enable_activation_checkpointing",
        ),
        Example(
            "language_models/torchtitan_llama3_8b.toml",
            replace=(('mode = "full"', 'mode = "none"'),),
            expect="mode",
        ),
        Example(
            "language_models/run_clm.sh",
            replace=(("    --gradient_checkpointing true \\\n", ""),),
            expect="run_clm.py",
        ),
    )
    valid = (
        Example("video_llm/config.yaml"),
        Example("uni3d_dp/uni3d+dp_after.yaml"),
        Example("language_models/torchtitan_llama3_8b.toml"),
        Example(
            "language_models/torchtitan_llama3_8b.toml",  # from scratch, on a card that it fits
            replace=(('mode = "full"', 'mode = "none"'), ("seq_len = 8192", "seq_len = 2048")),
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.value("checkpointing") != "none" or not run.activations_dominate or _goes_without(run):
            return
        lever = levers.checkpointing(run)
        if lever is None or run.estimate is None:
            return
        changes = {**lever.changes, **lever.implied}
        saved = run.estimate.allocated_bytes - run.allocated_if(changes)
        worthwhile = run.is_short or run.is_large(saved, WORTH_RECOMPUTING)
        if saved <= 0 or not (worthwhile or run.saved_if(changes, WORTH_RECOMPUTING)):
            return
        yield self.finding(
            run,
            f"activations take {format_bytes(run.activation_bytes)} and checkpointing is off: "
            f"with it {format_bytes(saved)} less is live",
            "checkpointing",
            size_bytes=saved,
            fixes=lambda: levers.fix(run, lever),
        )


def _goes_without(run: Run) -> bool:
    """Whether a run is a pretraining that fits as it is."""
    if run.value("pretrained", True) or run.is_short or run.estimate is None:
        return False
    return run.budget_bytes is not None or run.estimate.device_bytes <= run.card_bytes
