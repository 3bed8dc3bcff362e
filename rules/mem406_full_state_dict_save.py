from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import SAFE, Example, Finding, Fix, Rule, Run
from memlint.tape.estimate import Estimate
from memlint.units import format_bytes

SHARDED = ("fsdp1", "fsdp2", "zero")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class FullStateDictSave(Rule):
    """full-state-dict-save: a checkpoint of a sharded model is gathered whole on one rank.

    ## What it does
    Counts the bytes of all weights, which rank 0 collects to write a checkpoint: in host memory where the framework
    moves them there piece by piece, as accelerate's FSDP and DeepSpeed do. It fires when they are more than
    `--host-budget`.

    ## Why it matters
    Training runs until the first save, and the host's kernel ends it without a word about memory.

    ## Example
    `fsdp_state_dict_type: FULL_STATE_DICT`

    ## Use instead
    `fsdp_state_dict_type: SHARDED_STATE_DICT`, put together after training.

    ## Fix safety
    Safe: the same weights in more files.

    ## References
    accelerate documentation, "Saving and loading" of FSDP; DeepSpeed, `stage3_gather_16bit_weights_on_model_save`.
    """

    code = "MEM406"
    name = "full-state-dict-save"
    facts = ("saves_full_weights", "parallelism.strategy")
    invalid = (
        Example(
            "language_models/train_fsdp.sh",
            replace=(("--block_size 2048", "--block_size 1024"),),
            host_budget="16GB",
            expect="fsdp_state_dict_type",
        ),
    )
    valid = (
        Example("language_models/train_fsdp.sh", host_budget="256GB"),
        Example("language_models/run_clm_ddp.sh", host_budget="16GB"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        strategy = run.value("parallelism.strategy")
        if run.estimate is None or strategy not in SHARDED or not run.value("saves_full_weights"):
            return
        if strategy == "zero" and run.value("parallelism.zero_stage") != 3:
            return  # weights are whole everywhere
        half = strategy == "zero"  # of which the 16-bit copies are gathered
        size, kind = self._gathered(run, run.estimate, half)
        weights = kind.format(format_bytes(size))
        limit = run.host_budget_bytes
        if limit is None or size <= limit:
            return
        fixes: list[Fix] = []
        if run.can_set("saves_full_weights", False):
            fact = run.fact("saves_full_weights")
            title = f"{fact.label if fact is not None else 'checkpoint'}: each rank saves its shard"
            fixes = [Fix(title, SAFE, run.edits(saves_full_weights=False))]
        yield self.finding(
            run,
            f"a checkpoint gathers {weights} weights on rank 0; the host has {format_bytes(limit)}",
            "saves_full_weights",
            size_bytes=size,
            fixes=fixes,
        )

    def _gathered(self, run: Run, estimate: Estimate, half: bool) -> tuple[int, str]:
        """(bytes of all weights as they are held, words for them). Frozen ones have a dtype of their own; of quantised
        ones their codes are counted, and not what a config does not state: which weights are left as they are."""
        dtype = run.value("compute_dtype" if half else "parameter_dtype", "float32")
        trained, bits = estimate.trainable_parameters, run.value("quantization.bits")
        frozen = estimate.parameters - trained
        if not frozen:
            return trained * BYTES.get(dtype, 4), f"{{}} of {dtype}"
        own = trained * BYTES.get(dtype, 4)
        if isinstance(bits, int):
            return own + frozen * bits // 8, f"at least {{}} of {bits}-bit"
        kept = dtype if half else run.value("frozen_dtype", dtype)
        return own + frozen * BYTES.get(kept, 4), f"{{}} of {kept}"
