from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import Example, Finding, Rule, Run


class ShapeConflict(Rule):
    """shape-conflict: two keys of one config state different shapes.

    ## What it does
    Compares keys of the family that describe the same tensor, and patches with the input that they divide.

    ## Why it matters
    Which of the two the code reads decides the memory, and it is not always the one that was edited.

    ## Example
    `INPUT_SHAPE = (3, 32, 224, 224)` beside `DIT_VIDEO_SIZE = (16, 64, 64)`.

    ## Use instead
    One shape, from which the other is computed.

    ## Fix safety
    No fix: which of the two is meant is yours to say.

    ## References
    The family's schema in `schemas/` says which keys belong together.
    """

    code = "MEM801"
    name = "shape-conflict"
    needs_estimate = False
    invalid = (
        Example(
            "dit3d/config.py",
            replace=(
                ("INPUT_SHAPE = (3, 16, 64, 64)", "INPUT_SHAPE = (3, 32, 64, 64)"),
                ("NUM_FRAMES = INPUT_SHAPE[1]", "NUM_FRAMES = 16"),
            ),
        ),
    )
    valid = (
        Example("dit3d/config.py"),
        Example("uni3d_dp/uni3d+dp.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        for conflict in run.spec.conflicts:
            found = self.finding(run, conflict.message, span=conflict.span)
            yield found._replace(key=conflict.key, related=tuple((span, "the other one") for span in conflict.related))
