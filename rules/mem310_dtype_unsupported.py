from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import ERROR, WARNING, Example, Finding, Rule, Run


class DtypeUnsupported(Rule):
    """dtype-unsupported: the card does not compute in the config's dtype, or the weights do not stand it.

    ## What it does
    With `--gpu`, fires when products are in bfloat16 or float8 and the card's matrix units take neither. Without a
    card, warns of float16 over weights whose checkpoint is in bfloat16.

    ## Why it matters
    A trainer refuses such a run, or emulates the dtype at a fraction of the speed. Numbers beyond 65,504, which
    bfloat16 holds, are infinite in float16.

    ## Example
    `bf16: true` on a V100.

    ## Use instead
    float16 with loss scaling on cards before Ampere; bfloat16 where the checkpoint has it.

    ## Fix safety
    No fix: another dtype is another training.

    ## References
    NVIDIA CUDA C++ Programming Guide, "Compute Capabilities"; torch.amp documentation.
    """

    code = "MEM310"
    name = "dtype-unsupported"
    severity = ERROR
    facts = ("compute_dtype",)
    needs_estimate = False
    invalid = (
        Example("language_models/full_llamafactory.yaml", gpu="v100-32gb", expect="bf16"),
        Example("language_models/lora_axolotl.yml", gpu="t4", expect="bf16"),
    )
    valid = (
        Example("language_models/full_llamafactory.yaml", gpu="a100-80gb"),
        Example("language_models/full_llamafactory.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        products = run.fact("compute_dtype")
        assert products is not None
        if run.gpu:
            from memlint.data.catalogue import parse_gpu

            card = parse_gpu(run.gpu)[0]
            if products.value == "bfloat16" and not card.bf16:
                yield self.finding(run, f"{card.label} does not multiply in bfloat16", products)
            if run.value("float8") and not card.fp8:
                yield self.finding(run, f"{card.label} does not multiply in float8", "float8")
            if products.value == "float16" and card.bf16 and self._was_bfloat16(run):
                yield self.finding(
                    run,
                    "float16 over weights whose checkpoint is in bfloat16: what is larger than 65,504 becomes infinite",
                    products,
                    severity=WARNING,
                )

    def _was_bfloat16(self, run: Run) -> bool:
        return levers.checkpoint_dtype(run) == "bfloat16" and bool(run.value("pretrained", True))
