from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.layout import layout_of
from memlint.facts.spec import ASSUMED
from memlint.fixes import levers
from memlint.plugin import DISPLAY, ERROR, WARNING, Example, Finding, Rule, Run

SPLIT = """\
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 \\
    --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 6 --bf16 \\
    --tensor-model-parallel-size 4 --vocab-size 32000 --tokenizer-type NullTokenizer
"""


class BatchNotDivisible(Rule):
    """batch-not-divisible: the devices cannot share the global batch evenly.

    ## What it does
    Fires when a global batch is split over devices and does not divide by their number; where several devices hold one
    copy of the model (tensor, pipeline or context parallelism), by the number of copies. A warning where that number
    rests on an assumption.

    ## Why it matters
    Most programs stop with an error at their first step; the others train with another batch than the one stated.

    ## Example
    `--batch_size 4` with eight devices.

    ## Use instead
    The nearest multiple of that number.

    ## Fix safety
    Display: the batch changes.

    ## References
    `jax.pmap`: the mapped axis has the size of the devices.
    """

    code = "MEM404"
    name = "batch-not-divisible"
    severity = ERROR
    facts = ("global_batch_size", "device_count")
    needs_estimate = False
    invalid = (
        Example(
            "lag_mode/train_lag_mode.sh",
            replace=(("python main_jax.py", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 python main_jax.py"),),
            expect="--batch_size",
        ),
    )
    valid = (
        Example("pretrain.sh", SPLIT, note="four devices hold one copy of the model: two copies share the batch"),
        Example(
            "lag_mode/train_lag_mode.sh",
            replace=(("python main_jax.py", "CUDA_VISIBLE_DEVICES=0,1,2,3 python main_jax.py"),),
        ),
        Example("lag_mode/train_lag_mode.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        batch, devices = run.value("global_batch_size"), run.value("device_count")
        if not isinstance(batch, int) or not isinstance(devices, int):
            return
        layout = layout_of(run.spec)
        copies = layout.data
        if copies < 2 or batch % copies == 0:
            return
        nearest = self._product(run, copies) or max(copies, round(batch / copies) * copies)
        whom = f"{devices} devices" if copies == devices else f"the {copies} copies of the model on {devices} devices"
        fact, count = run.fact("global_batch_size"), run.fact("device_count")
        assert fact is not None
        fixes = []
        if run.can_set("global_batch_size", nearest):
            title = levers.describe(run, {"global_batch_size": nearest})
            fixes = [run.fix(title, DISPLAY, global_batch_size=nearest)]
        yield self.finding(
            run,
            f"{fact.label} {batch} does not divide by {whom}: they cannot share it evenly",
            fact,
            severity=WARNING if any(each.origin == ASSUMED for each in (fact, count) if each is not None) else "",
            related=[count] if count is not None else [],
            fixes=fixes,
        )

    def _product(self, run: Run, copies: int) -> int:
        """The only batch that agrees with a micro batch and an accumulation that are stated too; 0 where one is not."""
        parts = [run.fact(name) for name in ("micro_batch_size", "gradient_accumulation_steps")]
        total = copies
        for part in parts:
            if part is None or part.node is None or part.value != part.written or not isinstance(part.value, int):
                return 0
            total *= part.value
        return total
