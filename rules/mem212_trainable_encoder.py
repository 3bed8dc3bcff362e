from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class TrainableEncoder(Rule):
    """trainable-encoder: an encoder trains although the config could freeze it.

    ## What it does
    Fires when the family has a switch that freezes a pretrained part, the switch is off, and freezing would save a
    notable part of the peak.

    ## Why it matters
    A frozen encoder whose inputs need no gradient keeps nothing for backward, and has no gradients or optimizer states.

    ## Example
    `freeze_weights: false`

    ## Use instead
    `freeze_weights: true`, where the pretrained features are good enough.

    ## Fix safety
    Display: what is learned changes.

    ## References
    The PyTorch notes on autograd mechanics, "Locally disabling gradient computation".
    """

    code = "MEM212"
    name = "trainable-encoder"
    facts = ("encoder_frozen",)
    saves = True
    invalid = (Example("uni3d_dp/uni3d+dp.yaml", expect="freeze_weights"),)
    valid = (Example("uni3d_dp/uni3d+dp_after.yaml"),)

    def check(self, run: Run) -> Iterator[Finding]:
        fixes = levers.fixes(run, levers.frozen_encoder)
        if not fixes or not run.is_large(fixes[0].saved_bytes or 0, 2 * NOTABLE_SHARE):
            return
        saved = fixes[0].saved_bytes or 0
        yield self.finding(
            run,
            f"the encoder trains: frozen, it would save {format_bytes(saved)}",
            "encoder_frozen",
            size_bytes=saved,
            fixes=fixes,
        )
