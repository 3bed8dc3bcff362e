from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run


class UnusedSuppression(Rule):
    """A suppression comment hides nothing.

    What it does
    Reports `# memlint: ignore[...]`, `file-ignore[...]` and `disable[...]` whose codes no finding needed. It keeps
    quiet about rules that are off or could not run: those that need an estimate where there is none, and MEM1xx
    without a budget. The checker makes this finding once all runs of a file are known.

    Why it matters
    A comment that once explained a known risk hides the next one on its line when nobody remembers it.

    Example
        batch_size: 4  # memlint: ignore[MEM006] two keys on purpose

    Use instead
        batch_size: 4

    Fix safety
    Safe: only the comment, or the codes in it that are not needed, is removed.

    References
    Suppression comments: the manual's section of that name.
    """

    code = "MEM002"
    name = "unused-suppression"
    needs_estimate = False
    invalid = (
        Example(
            "broken.yaml",
            "# memlint: file-ignore[MEM006] nothing is written twice here\noptimizer: [adamw\n",
            expect="# memlint: file-ignore[MEM006] nothing is written twice here",
        ),
    )
    valid = (
        Example(
            "doubled.yaml",
            "# memlint: file-ignore[MEM006] the second one is meant\nlr: 1\nlr: 2\n",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        yield from ()
