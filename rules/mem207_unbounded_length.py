from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import Name
from memlint.plugin import DISPLAY, Example, Finding, Rule, Run

# Facts that bound a sample; `longest_<fact>` is what the family's documentation proposes.
# A length that may have no bound -> the longest sample of the data set, where a family states it.
BOUNDS: dict[Name, Name | None] = {"frames": "longest_frames", "sequence_length": None, "points": None}


class UnboundedLength(Rule):
    """unbounded-length: nothing bounds the length of a sample.

    ## What it does
    Fires on a frame, token or point limit that is written as "no limit", where something else bounds the estimate.
    Where nothing does, there is none, and unknown-model says so.

    ## Why it matters
    The longest sample of the data set decides the peak, and it may come hours into the run.

    ## Example
    `max_frames: null`

    ## Use instead
    `max_frames: 100`: the estimate then holds for every batch.

    ## Fix safety
    Display: longer samples are cut.

    ## References
    Out of memory "40 steps in", pytorch/rfcs issue 108.
    """

    code = "MEM207"
    name = "unbounded-length"
    invalid = (Example("video_llm/config_before.yaml", expect="max_frames"),)
    valid = (
        Example("video_llm/config.yaml"),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("max_seq_len: 4096", "max_seq_len: null"),),
            note="nothing else bounds it: there is no estimate, which unknown-model says",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        for name, longest in BOUNDS.items():
            fact = run.fact(name)
            if fact is None or fact.value is not None or fact.node is None:
                continue
            bound = run.value(longest) if longest else None
            fixes = [run.fix(f"{fact.label} null -> {bound}", DISPLAY, **{name: bound})] if bound else []
            message = f"{fact.label} has no bound: the longest sample of the data set decides the peak"
            yield self.finding(run, message, fact, fixes=fixes)
