from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.facts.spec import Name
from memlint.fixes import levers
from memlint.plugin import INFO, SAFE, Example, Finding, Rule, Run
from memlint.units import format_bytes

# Of the peak. Segments never fit sizes exactly; from about here on another allocator setting is worth a word.
WASTE_SHARE = 1 / 10

EXPANDABLE = "expandable_segments:True"


# Two answers of a pair, whose logits in float32 come and go in blocks of their own.
ORPO = """\
trl orpo --model_name_or_path gpt2 --dataset_name trl-lib/ultrafeedback_binarized --per_device_train_batch_size 4 \\
    --use_peft --lora_r 16 --lora_target_modules c_attn --optim rmsprop --max_length 1024 --bf16 --output_dir out
"""


class Fragmentation(Rule):
    """fragmentation: memory that the allocator holds in pieces no tensor fits into.

    ## What it does
    Replays the step through the caching allocator with expandable segments, where the config states no allocator
    settings, and fires when that saves a tenth of the peak. It is silent where an engine on the same card generates:
    one that gives its memory back keeps it in a pool for which PyTorch has no expandable segments (pytorch issue
    147851), and vLLM 0.8 to 0.20 ends at that setting.

    ## Why it matters
    Segments of fixed size stay reserved for the sizes that they were made for. Batches of other lengths ask for other
    sizes, so what one estimated step wastes is the least of it.

    ## Example
    Batches that are padded to their longest sample, without `PYTORCH_ALLOC_CONF`.

    ## Use instead
    `export PYTORCH_ALLOC_CONF=expandable_segments:True`

    ## Fix safety
    Safe: the allocator moves no number.

    ## References
    The PyTorch notes on CUDA semantics, "Optimizing memory usage with PYTORCH_ALLOC_CONF"; vLLM pull requests 14189
    and 40812.
    """

    code = "MEM601"
    name = "fragmentation"
    severity = INFO
    saves = True
    invalid = (Example("train.sh", ORPO, expect="--per_device_train_batch_size", budget="8GB"),)
    valid = (
        Example("stdiff/train.sh", note="it sets them"),
        Example("uni3d_dp/uni3d+dp_after.yaml"),
        Example("language_models/full_llamafactory.yaml", note="expandable segments would hold as much"),
        Example("language_models/sft_trl.yaml", note="its losses in tiles ask for few sizes"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("allocator_conf") or run.value("framework") == "jax":
            return
        if run.value("engine_share"):
            return
        lost = run.estimate.component_bytes("fragmentation")
        if not run.is_large(lost, WASTE_SHARE):
            return
        changes: dict[Name, Any] = {"allocator_conf": EXPANDABLE}
        saved = run.saved_if(changes, WASTE_SHARE)
        if not saved:
            return
        fixes = [run.fix(levers.describe(run, changes), SAFE, changes)] if run.edits(changes) else []
        notes = [] if fixes else [f"set PYTORCH_ALLOC_CONF={EXPANDABLE} in the environment of the run"]
        if run.value("packing") is False:
            notes.append("rows are not packed: batches of other lengths fragment further")
        yield self.finding(
            run,
            f"the allocator holds {format_bytes(lost)} that no tensor uses at the peak: expandable segments would "
            f"save {format_bytes(saved)}",
            "micro_batch_size",
            size_bytes=saved,
            fixes=fixes,
            notes=notes,
        )
