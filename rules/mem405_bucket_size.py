from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.facts.spec import Name
from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class BucketSize(Rule):
    """bucket-size: buckets for communication are a notable part of the peak.

    ## What it does
    Re-estimates a ZeRO run with buckets of 50 million elements, DeepSpeed's own size for prefetching, in place of
    larger ones, and fires when that saves a notable part of the peak.

    ## Why it matters
    A bucket of 500 million elements, the default, is a GB in bfloat16, and with `overlap_comm` there are two.

    ## Example
    `"reduce_bucket_size": 500000000`

    ## Use instead
    `"reduce_bucket_size": 50000000`, or `"auto"` where the Hugging Face integration fills it in.

    ## Fix safety
    Safe: the same sums in more pieces.

    ## References
    DeepSpeed documentation, "ZeRO Optimizations for FP16 Training".
    """

    code = "MEM405"
    name = "bucket-size"
    facts = ("parallelism.zero_stage",)
    saves = True
    invalid = (
        Example(
            "language_models/run_clm.sh",
            replace=(("train_batch_size 4", "train_batch_size 1"), ("--block_size 2048", "--block_size 512")),
            expect='"reduce_bucket_size"',
            budget="16GB",
        ),
    )
    valid = (
        Example("language_models/torchtitan_llama3_8b.toml"),
        Example("language_models/run_clm_ddp.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("parallelism.strategy") != "zero":
            return
        from memlint.models.parallel.plan import OWN_STATES  # which files without an estimate do without

        if run.value("optimizer_library") in OWN_STATES:
            return  # it shares states in buckets of its own
        least = NOTABLE_SHARE if run.is_short else 2 * NOTABLE_SHARE
        if not run.is_large(run.estimate.component_bytes("communication"), least):
            return
        lever = levers.smaller_buckets(run, settable=False)
        if lever is None or not run.is_large(self._most(run, lever.changes), least):
            return
        saved = run.saved_if(lever.changes, least)
        if not saved:
            return
        facts = run.those(*lever.changes)
        if not facts:
            return  # no key of this framework
        written = [fact for fact in facts if fact.node is not None]
        place = next(iter(written or facts), None)
        sizes = ", ".join(f"{fact.label} {fact.value:,}" for fact in facts)
        yield self.finding(
            run,
            f"{sizes} elements: smaller buckets would save {format_bytes(saved)}",
            place or "parallelism.zero_stage",
            size_bytes=saved,
            related=[fact for fact in written if fact is not place],
            fixes=lambda: levers.fixes(run, levers.smaller_buckets),
        )

    def _most(self, run: Run, changes: dict[Name, Any]) -> int:
        """What smaller buckets can save at most: elements of fp32, in two buffers where one fills as the other is sent.
        Asked first, because a re-estimate takes longer."""
        from memlint.models.parallel.zero import REDUCE_BUCKET  # which files without an estimate do without

        elements = sum(run.value(name, REDUCE_BUCKET) - smaller for name, smaller in changes.items())
        return int(2 * 4 * elements)
