from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import ERROR, Example, Finding, Rule, Run


class ParseError(Rule):
    """parse-error: the file is not what its name says.

    ## What it does
    Reports text that is not valid YAML, JSON, TOML, shell or Python, and defaults lists that cannot be composed, on
    the line of the fault.

    ## Why it matters
    The run would stop at its first line, after the queue and the container start.

    ## Example
    `batch_size: [1, 2` without its closing bracket.

    ## Use instead
    Valid syntax.

    ## Fix safety
    No fix.

    ## References
    YAML 1.1, RFC 8259 (JSON), TOML 1.0, the grammars of bash and Python.
    """

    code = "MEM003"
    name = "parse-error"
    severity = ERROR
    needs_estimate = False
    invalid = (
        Example("config.yaml", "data: {max_frames: [1\n", note="a bracket that never closes"),
        Example("config.json", '{"train_micro_batch_size_per_gpu": 1,}\n', note="a trailing comma"),
        Example("config.toml", "batch_size = \n", note="a key without a value"),
        Example("train.sh", "python train.py --batch_size $((1 +\n", note="arithmetic that never closes"),
        Example("config.py", "class Config:\nBATCH_SIZE = 1\n", note="a class without a body"),
    )
    valid = (Example("config.yaml", "data: {max_frames: [1]}\n"),)

    def check(self, run: Run) -> Iterator[Finding]:
        for fault in run.faults:
            if fault.code == self.code:
                yield self.finding(run, fault.message, span=fault.span)
