from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run


class BadSuppression(Rule):
    """bad-suppression: a suppression comment is malformed or names a rule that does not exist.

    ## What it does
    Reports comments that begin with `memlint:` but are none of `ignore[CODES]`, `file-ignore[CODES]`,
    `disable[CODES]` and `enable[CODES]`, that name an unknown code, or that name none: no form hides everything.
    `check` itself makes this finding.

    ## Why it matters
    A comment that does nothing looks exactly like one that works.

    ## Example
    `# memlint: ignore`, or `# memlint: ignore[MEM999]`.

    ## Use instead
    `# memlint: ignore[MEM201] the loader drops the long samples`

    ## Fix safety
    No fix: what was meant is not known.

    ## References
    Suppression comments, in the manual.
    """

    code = "MEM005"
    name = "bad-suppression"
    needs_estimate = False
    invalid = (
        Example("blanket.yaml", "# memlint: file-ignore\nlr: 1\nlr: 2\n", expect="# memlint: file-ignore"),
        Example("unknown.yaml", "lr: 1\nlr: 2  # memlint: ignore[MEM999]\n", expect="# memlint: ignore[MEM999]"),
    )
    valid = (Example("good.yaml", "lr: 1\nlr: 2  # memlint: ignore[MEM006] meant\n"),)

    def check(self, run: Run) -> Iterator[Finding]:
        yield from ()
