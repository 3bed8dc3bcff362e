from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run


class UnresolvedValue(Rule):
    """unresolved-value: a value that matters for memory is not known before the run.

    ## What it does
    Names keys that matter for memory whose value comes from an environment variable, a resolver, a command
    substitution or an expression that would have to be executed, and that the estimate goes without. Where there is
    no estimate, unknown-model says why, and names them in its notes.

    ## Why it matters
    memlint runs nothing and guesses nothing: the estimate leaves the value out, or takes the family's default where
    the report says so.

    ## Example
    `batch_size: ${oc.env:BATCH}`

    ## Use instead
    A literal value, or `-o key=value` on the command line for the check.

    ## Fix safety
    No fix.

    ## References
    OmegaConf resolvers; parameter expansion in bash.
    """

    code = "MEM004"
    name = "unresolved-value"
    severity = INFO
    invalid = (
        Example(
            "uni3d_dp/uni3d+dp.yaml",
            replace=(("    use_checkpoint: false", "    use_checkpoint: ${oc.env:RECOMPUTE}"),),
            expect="use_checkpoint",
        ),
    )
    valid = (
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example(
            "uni3d_dp/uni3d+dp.yaml",
            replace=(("\ndataloader:\n  batch_size: 128", "\ndataloader:\n  batch_size: ${oc.env:BATCH}"),),
            note="there is no estimate without it, which unknown-model says",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        for missing in run.spec.missing:
            if missing.refused or missing.ours:
                continue  # MEM008 says it, or MEM007
            message = f"{missing.key} is not known before the run: {missing.reason}"
            found = self.finding(run, message, span=missing.span)
            yield found._replace(key=missing.key)
