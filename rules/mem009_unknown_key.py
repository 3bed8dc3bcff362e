from __future__ import annotations

from collections.abc import Iterator

from memlint.dialects import schema
from memlint.dialects.rendering import text_of
from memlint.documents.lines import bounds
from memlint.documents.node import Span
from memlint.plugin import UNSAFE, Edit, Example, Finding, Fix, Rule, Run


class UnknownKey(Rule):
    """unknown-key: a key one slip away from one that matters for memory.

    ## What it does
    Reports keys that the family does not know and that differ by one typing error from one that it does.

    ## Why it matters
    Most trainers ignore a key that they do not know: `gradient_checkpoiting: true` checkpoints nothing.

    ## Example
    `use_gradient_checkpoiting: true`

    ## Use instead
    `use_gradient_checkpointing: true`

    ## Fix safety
    Unsafe: the renamed key takes effect.

    ## References
    The schema of the family in `schemas/`.
    """

    code = "MEM009"
    name = "unknown-key"
    needs_estimate = False
    invalid = (
        Example(
            "video_llm/config.yaml",
            replace=(("use_gradient_checkpointing", "use_gradient_checkpoiting"),),
            expect="use_gradient_checkpoiting",
        ),
    )
    valid = (
        Example("video_llm/config.yaml"),
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("stdiff/kitti_range_train_config.yaml"),
        Example("dit3d/config.py"),
        Example("lag_mode/train_lag_mode.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        for violation in schema.violations(run.spec):
            if violation.kind != "unknown-key":
                continue
            span = violation.node.key_span or violation.node.span
            fixes = []
            if violation.suggestion:
                old = violation.node.name
                edits = self._edits(run, span, old, violation.suggestion)
                fixes.append(Fix(f"{old} -> {violation.suggestion}", UNSAFE, edits))
            found = self.finding(run, violation.message, span=span, fixes=fixes)
            yield found._replace(key=violation.node.shown_path)

    def _edits(self, run: Run, span: Span, old: str, new: str) -> tuple[Edit, ...]:
        """The other name between the quotes or after the dashes of the one that is written."""
        text = text_of(run.spec, span.path)
        if text is None:
            return ()
        start, end = bounds(text.starts, span)
        written = text.text[start:end]
        return (Edit(span, written.replace(old, new)),) if written.count(old) == 1 else ()
