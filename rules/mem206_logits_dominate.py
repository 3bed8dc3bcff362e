from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, Example, Finding, Fix, Rule, Run
from memlint.units import format_bytes


class LogitsDominate(Rule):
    """logits-dominate: the logits and their gradients are a large share of the peak.

    ## What it does
    Fires when what the loss keeps and makes per token and vocabulary entry is a large part of the peak.

    ## Why it matters
    A stock cross entropy holds twelve bytes per logit in its backward pass: log-probabilities and two gradients in
    fp32. Activation checkpointing does not touch them.

    ## Example
    4 x 2048 tokens over a vocabulary of 256,000 are 23.4 GiB.

    ## Use instead
    A chunked or fused cross entropy (Liger, cut cross entropy, the trainer's own). Where the budget is short and
    there is no key for one, a smaller micro batch with as much more accumulation; shorter sequences last.

    ## Fix safety
    Unsafe for another loss: the same result up to rounding. Display for shorter sequences.

    ## References
    Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv 2411.09009.
    """

    code = "MEM206"
    name = "logits-dominate"
    saves = True
    invalid = (
        Example("video_llm/config.yaml", expect="max_frames"),
        Example("language_models/full_llamafactory.yaml", expect="cutoff_len"),
        Example("language_models/torchtune_llama3_1b.yaml", expect="max_seq_len"),
    )
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("language_models/sft_trl.yaml", note="TRL goes through the head in tiles"),
        Example(
            "video_llm/config.yaml", replace=(("max_frames: 100", "max_frames: 1"), ("batch_size: 4", "batch_size: 1"))
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None:
            return
        taken = run.estimate.component_bytes("logits")
        if not taken or not run.is_large(taken, 0.25):
            return
        if not run.is_short and not _in_loop(run) and levers.fused_loss(run) is None:
            return  # nothing in such a trainer does without them
        batch, length = run.fact("micro_batch_size"), run.fact("sequence_length")
        vocabulary = run.value("vocabulary_size")
        message = f"logits take {format_bytes(taken)}, {taken / run.estimate.device_bytes:.0%} of the peak"
        if batch is not None and length is not None and vocabulary:
            pair = run.value("sequences_per_sample", 1)  # a chosen and a rejected answer
            times = f" x {pair}" if pair != 1 else ""
            message += f": {batch.value}{times} x {length.value} tokens x {vocabulary:,} entries"
        place = next(
            (fact for fact in run.those("sequence_length", "frames", "micro_batch_size") if fact.node),
            batch,
        )
        yield self.finding(
            run,
            message,
            place,
            size_bytes=taken,
            fixes=lambda: self._fixes(run),
            notes=lambda _: self._in_tiles(run),
        )

    def _fixes(self, run: Run) -> list[Fix]:
        found = levers.fixes(run, levers.fused_loss)
        if found or not run.is_short:
            return found
        found = levers.fixes(run, levers.smaller_batch)
        if found:
            return found
        for name in ("sequence_length", "frames"):
            value = run.value(name)
            if isinstance(value, int) and value > 1 and run.can_set(name, value // 2):
                return levers.fix(run, levers.fewer(run, name, value // 2))
        return []

    def _in_tiles(self, run: Run) -> list[str]:
        """What a loss in tiles would save where the config has no key for one."""
        if run.value("loss", "full") != "full" or not _in_loop(run):
            return []
        if levers.fused_loss(run) is not None:
            return []
        saved = run.saved_if({"loss": "fused"}, NOTABLE_SHARE)
        if not saved:
            return []
        return [f"a loss in tiles (Liger, cut cross entropy) in the training loop would save {format_bytes(saved)}"]


def _in_loop(run: Run) -> bool:
    """Whether the loss is one over tokens, in the place of which a training loop can have one in tiles."""
    return run.value("method", "sft") in ("sft", "pretraining")
