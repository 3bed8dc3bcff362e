from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import ERROR, Finding, Rule, Run


class InternalError(Rule):
    """internal-error: a rule, a reader or the estimate itself failed.

    ## What it does
    Stands for a defect of memlint or of a plugin: whatever raises while a file is checked becomes this finding, and
    everything else goes on. The exit code is 2.

    ## Why it matters
    A crash that passes silently looks like a clean result.

    ## Example
    A plugin's rule divides by a batch size that the config leaves out.

    ## Use instead
    Report it with the message; `--ignore` the rule meanwhile.

    ## Fix safety
    No fix.

    ## References
    The check itself writes this finding; the class gives it its page.
    """

    code = "MEM001"
    name = "internal-error"
    severity = ERROR
    needs_estimate = False

    def check(self, run: Run) -> Iterator[Finding]:
        yield from ()
