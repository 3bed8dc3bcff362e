from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run

LONGEST = "the longest sample is"


class UnknownModel(Rule):
    """unknown-model: there is no estimate for this run.

    ## What it does
    Says why the run has no estimate: its model, or a size that the estimate cannot do without, is not known.

    ## Why it matters
    UNKNOWN is an answer; a guess would not be one. Rules that need no estimate still run.

    ## Example
    A frame limit of `null`: the number of tokens has no bound.

    ## Use instead
    State the value, in the config or with `-o key=value`.

    ## Fix safety
    No fix.

    ## References
    `memlint explain` on a config with an estimate shows what it is made of.
    """

    code = "MEM007"
    name = "unknown-model"
    severity = INFO
    needs_estimate = False
    invalid = (
        Example("video_llm/config_before.yaml", replace=(("    max_seq_length: 8192     # Gemma's context\n", ""),)),
    )
    valid = (
        Example("video_llm/config_before.yaml"),
        Example("video_llm/config.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None and run.spec.family:
            reason = run.spec.unknown_reason or "the model is not known"
            # The longest sample is known to whoever knows the data.
            notes = [f"`-o {reason.split()[0].lstrip('-')}=2048` tries a length"] if LONGEST in reason else []
            key = run.at_fault
            found = self.finding(run, f"no estimate: {reason}", key, notes=notes)
            value = key.node.span if key is not None and key.node is not None else found.span
            if key is not None and (value.path, value.line) != (found.span.path, found.span.line):
                # of a variable of a script, or what is interpolated
                found = found._replace(related=((value, f"{key.label}: {key.written}"),))
            yield found
