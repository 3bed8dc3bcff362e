from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes.levers import HALF
from memlint.plugin import INFO, Example, Finding, Rule, Run


class AutocastOverHalf(Rule):
    """autocast-over-half: mixed precision over weights that are 16 bits already.

    ## What it does
    Fires when all weights, trained and frozen, are bfloat16 or float16 and mixed precision is switched on besides. Not
    of transformers' trainers, whose recipes say both: there the switch is how the dtype of everything else is told.

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
    saves = True
    invalid = (Example("video_llm/config.yaml", expect="use_mixed_precision"),)
    valid = (
        Example("language_models/sft_trl.yaml", note="both are in every recipe of transformers"),
        Example("video_llm/config_before.yaml"),
        Example(
            "language_models/sft_trl.yaml",
            replace=(("bf16: true", "bf16: true\nuse_peft: true\nlora_r: 16\nlora_target_modules: all-linear"),),
            note="adapters are in fp32",
        ),
        Example("language_models/full_llamafactory.yaml", note="LLaMA-Factory loads fp32 weights with bf16"),
        Example(
            "language_models/lora_axolotl.yml",
            replace=(
                (
                    "adapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\n"
                    "lora_target_linear: true\n",
                    "",
                ),
            ),
            note="Axolotl's bf16 is the dtype of weights, and autocast besides",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        switch, weights = run.fact("autocast"), run.fact("parameter_dtype")
        assert weights is not None
        if run.value("implementation") == "transformers":
            return
        if switch is not None and switch.value and self._all_half(run):
            if switch.key == weights.key:
                return  # one key says both: the trainer goes over its half weights with autocast whatever it is told
            yield self.finding(
                run, f"mixed precision over {weights.value} weights saves nothing", switch, related=[weights]
            )

    def _all_half(self, run: Run) -> bool:
        """Products with a weight in fp32, trained or frozen, are what autocast is for. Quantised ones have no dtype."""
        stored = run.value("parameter_dtype")
        frozen = stored if run.value("quantization.bits") else run.value("frozen_dtype", stored)
        return stored in HALF and frozen in HALF
