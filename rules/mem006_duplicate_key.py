from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run


class DuplicateKey(Rule):
    """duplicate-key: a key is written twice, and the second one silently wins.

    ## What it does
    Reports the later of two equal keys of one mapping in YAML and JSON.

    ## Why it matters
    The loaders of both formats keep the last value without a word: the batch size that you read is not the one that
    trains.

    ## Example
    `batch_size: 8` at the top of a section and `batch_size: 64` at its end.

    ## Use instead
    One of them.

    ## Fix safety
    No fix: which of the two is meant is yours to say.

    ## References
    YAML 1.2, section 3.2.1.1: keys are unique.
    """

    code = "MEM006"
    name = "duplicate-key"
    needs_estimate = False
    invalid = (
        Example("config.yaml", "data:\n  max_frames: 1\n  max_frames: 2\n", expect="max_frames"),
        Example("config.json", '{"a": 1, "a": 2}\n', expect='"a"'),
    )
    valid = (Example("config.yaml", "data:\n  max_frames: 1\nmax_frames: 2\n"),)

    def check(self, run: Run) -> Iterator[Finding]:
        for fault in run.faults:
            if fault.code == self.code:
                found = self.finding(run, fault.message, span=fault.span)
                yield found._replace(related=tuple((span, "the first one") for span in fault.related))
