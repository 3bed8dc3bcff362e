from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import ERROR, Example, Finding, Rule, Run


class AllocatorConfInvalid(Rule):
    """allocator-conf-invalid: PYTORCH_ALLOC_CONF holds what torch does not take.

    ## What it does
    Reads the allocator's settings as torch does and reports keys and values that it rejects or ignores.

    ## Why it matters
    A rejected setting stops the run at its first CUDA call; an ignored one leaves fragmentation as it was.

    ## Example
    `export PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True`

    ## Use instead
    `export PYTORCH_ALLOC_CONF=expandable_segments:True`

    ## Fix safety
    No fix: the message proposes the spelling.

    ## References
    The PyTorch notes on CUDA semantics, "Optimizing memory usage with PYTORCH_ALLOC_CONF".
    """

    code = "MEM602"
    name = "allocator-conf-invalid"
    severity = ERROR
    facts = ("allocator_conf",)
    needs_estimate = False
    invalid = (
        Example(
            "stdiff/train.sh",
            replace=(("expandable_segments:True", "expandable_segment:True"),),
            expect="expandable_segment:True",
        ),
    )
    valid = (Example("stdiff/train.sh"),)

    def check(self, run: Run) -> Iterator[Finding]:
        from memlint.tape.allocator import ConfError, parse_conf

        fact = run.fact("allocator_conf")
        assert fact is not None
        try:
            parse_conf(str(fact.value))
        except ConfError as error:
            span = fact.node.span if fact.node is not None else None
            yield self.finding(run, str(error), fact, span=span)
