from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Finding, Rule, Run


class UnusedSuppression(Rule):
    """unused-suppression: a suppression comment hides nothing.

    ## What it does
    Reports `# memlint: ignore[...]`, `file-ignore[...]` and `disable[...]` whose codes no finding needed. It keeps
    quiet about rules that are off or could not run: those that need an estimate where there is none, and MEM1xx
    without a budget. `check` itself makes this finding, once all runs of a file are known.

    ## Why it matters
    A comment that once explained a known risk hides the next one on its line, when nobody remembers it.

    ## Example
    `batch_size: 4  # memlint: ignore[MEM006] two keys on purpose`, where there is only one.

    ## Use instead
    `batch_size: 4`

    ## Fix safety
    Safe: only the comment goes, or the codes in it that are not needed.

    ## References
    Suppression comments, in the manual.
    """

    code = "MEM002"
    name = "unused-suppression"
    needs_estimate = False

    def check(self, run: Run) -> Iterator[Finding]:
        yield from ()
