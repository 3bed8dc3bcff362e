from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, UNSAFE, Example, Finding, Rule, Run

TRAIN = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
output_dir: out
max_seq_length: 1024
per_device_train_batch_size: 4
bf16: true
"""


class EmptyCacheInLoop(Rule):
    """empty-cache-in-loop: emptying the allocator's cache every few steps lowers no peak.

    ## What it does
    Fires where a key has `torch.cuda.empty_cache()` called while the run trains.

    ## Why it matters
    It gives back blocks that no tensor uses, and the next step asks the driver for them again, which waits for the
    card. What is alive at the peak stays as it is. It helps another process on the same card, or a run whose blocks
    fragment, for which there are expandable segments.

    ## Example
    `torch_empty_cache_steps: 4`

    ## Use instead
    `PYTORCH_ALLOC_CONF=expandable_segments:True` against fragmentation; a smaller micro batch against a high peak.

    ## Fix safety
    Unsafe: where blocks fragment, reserved memory grows.

    ## References
    The PyTorch notes on CUDA semantics, "Memory management"; transformers, `TrainingArguments.torch_empty_cache_steps`.
    """

    code = "MEM603"
    name = "empty-cache-in-loop"
    severity = INFO
    facts = ("empty_cache_steps",)
    needs_estimate = False
    invalid = (Example("config.yaml", TRAIN + "torch_empty_cache_steps: 4\n", expect="torch_empty_cache_steps"),)
    valid = (
        Example("config.yaml", TRAIN),
        Example("config.yaml", TRAIN + "torch_empty_cache_steps: null\n", note="it is not called"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        stated = run.fact("empty_cache_steps")
        if stated is None or stated.node is None or not isinstance(stated.value, int) or stated.value < 1:
            return
        every = "every step" if stated.value == 1 else f"every {stated.value:,} steps"
        fixes = [run.fix(f"{stated.label}: null", UNSAFE, {"empty_cache_steps": None})]
        yield self.finding(
            run,
            f"empty_cache() {every} frees nothing that is alive, and the next step takes it from the driver again",
            stated,
            fixes=[fix for fix in fixes if fix.edits],
        )
