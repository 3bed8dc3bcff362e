from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run
from memlint.units import format_bytes


class AutoBatch(Rule):
    """auto-batch: the trainer looks for a batch that fits, and the estimate is for where it starts.

    ## What it does
    Fires where a switch lets the trainer shrink the batch after running out of memory.

    ## Why it matters
    Which batch is found decides how many steps an epoch has, and differs from card to card.

    ## Example
    `auto_find_batch_size: true`

    ## Use instead
    A batch that is known to fit, with accumulation.

    ## Fix safety
    No fix.

    ## References
    transformers documentation, `TrainingArguments.auto_find_batch_size`.
    """

    code = "MEM804"
    name = "auto-batch"
    severity = INFO
    facts = ("auto_batch_size", "micro_batch_size")
    needs_estimate = False
    invalid = (
        Example(
            "language_models/sft_trl.yaml",
            replace=(("bf16: true", "bf16: true\nauto_find_batch_size: true"),),
            expect="auto_find_batch_size",
        ),
    )
    valid = (
        Example("language_models/sft_trl.yaml", replace=(("bf16: true", "bf16: true\nauto_find_batch_size: false"),)),
        Example("language_models/sft_trl.yaml"),
        Example(
            "language_models/sft_trl.yaml",  # there is no estimate of a run on the CPU
            replace=(("bf16: true", "bf16: true\nauto_find_batch_size: true\nuse_cpu: true"),),
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if not run.value("auto_batch_size") or (run.estimate is None and run.partial is None):
            return
        batch = run.fact("micro_batch_size")
        assert batch is not None
        message = f"the batch is looked for: the estimate is for {batch.label} {batch.value}, where it starts"
        if run.estimate is not None and run.over_budget and run.budget_bytes is not None:
            message += f", which does not fit {format_bytes(run.budget_bytes)}"
        yield self.finding(run, message, "auto_batch_size", related=[batch])
