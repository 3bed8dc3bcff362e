from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import DISPLAY, Example, Finding, Rule, Run
from memlint.units import format_bytes


class FramesInBatch(Rule):
    """frames-in-batch: frames are folded into the batch and multiply the activations.

    ## What it does
    Re-estimates the run with a single frame; fires when the others cost at least a third of the peak.

    ## Why it matters
    A model that treats each frame as an image of its own sees batch x frames images, whatever the batch size says.

    ## Example
    `batch_size: 2` with `num_predict_frames: 5`: ten images per step.

    ## Use instead
    Fewer frames, frames in chunks, or a smaller batch.

    ## Fix safety
    Display: the task changes.

    ## References
    `memlint explain` shows which parts carry the factor.
    """

    code = "MEM208"
    name = "frames-in-batch"
    facts = ("frames_in_batch", "micro_batch_size")
    saves = True
    invalid = (Example("stdiff/kitti_range_train_config.yaml", expect="rand_Tp"),)
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("video_llm/config.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        fact = run.fact(run.value("frames_in_batch"))
        if run.estimate is None or fact is None or not isinstance(fact.value, int) or fact.value < 2:
            return
        # Folded frames multiply activations and nothing else: without that many bytes there is nothing to find.
        if not run.is_large(run.activation_bytes * (fact.value - 1) // fact.value):
            return
        extra = run.estimate.device_bytes - run.what_if({fact.name: 1}).device_bytes
        if not run.is_large(extra):
            return
        batch = run.fact("micro_batch_size")
        assert batch is not None
        half = levers.Lever(DISPLAY, {fact.name: fact.value // 2})
        yield self.finding(
            run,
            f"{fact.label} {fact.value} x {batch.label} {batch.value} = {fact.value * batch.value} inputs at once: "
            f"all frames but one cost {format_bytes(extra)}",
            fact,
            size_bytes=extra,
            related=[batch],
            fixes=lambda: levers.fix(run, half) if run.can_set(fact.name, fact.value // 2) else [],
        )
