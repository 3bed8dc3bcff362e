from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import ERROR, Finding, Rule, Run


class WorkLimit(Rule):
    """work-limit: checking the file would take more work than a config may ask for.

    ## What it does
    Stands for a file whose work was not finished: what was under way when its steps were used up, and what the report
    therefore leaves out. Everything said about the file before that stands, and all other files are checked.

    ## Why it matters
    A file of a few hundred bytes can ask for more work than a machine has years. Unchecked is not the same as clean, so
    this is an error.

    ## Example
    Sixteen shell variables, each of which adds up the one before it five times.

    ## Use instead
    A config that states its values. For one that is honest and only large, `--work-limit` on the command line raises
    the limit.

    ## Fix safety
    No fix.

    ## References
    The check itself writes this finding (`memlint/work.py`); the class gives it its page.
    """

    code = "MEM011"
    name = "work-limit"
    severity = ERROR
    needs_estimate = False

    def check(self, run: Run) -> Iterator[Finding]:
        yield from ()
