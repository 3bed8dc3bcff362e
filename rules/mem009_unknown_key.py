from __future__ import annotations

from collections.abc import Iterator

from memlint.dialects import objections, own_code, scripts
from memlint.dialects.rendering import text_of
from memlint.documents.lines import bounds
from memlint.documents.node import Span
from memlint.facts.spec import ASSUMED
from memlint.plugin import UNSAFE, Edit, Example, Finding, Fix, Rule, Run


class UnknownKey(Rule):
    """unknown-key: a key one slip away from one that matters for memory.

    ## What it does
    Reports keys that the family does not know and that differ by one typing error from one that it does. An option that
    the command's own program names, where that is a file of the repository, is no error. Of a program that is neither a
    file nor a library's own example nothing is said.

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
        Example(
            "video_llm/config.yaml",
            replace=(("    name: google/gemma-2b", "    name: google/gemma-2b\n    flame: 1"),),
            note="a word of its own, not a slip of `name`",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if self._is_anybody_s(run):
            return
        found = [violation for violation in objections.violations(run.spec) if violation.kind == "unknown-key"]
        named = self._words_of_program(run) if found else frozenset()
        for violation in found:
            if violation.node.name in named:
                continue
            span = violation.node.key_span or violation.node.span
            fixes = []
            if violation.suggestion:
                old = violation.node.name
                edits = self._edits(run, span, old, violation.suggestion)
                fixes.append(Fix(f"{old} -> {violation.suggestion}", UNSAFE, edits))
            made = self.finding(run, violation.message, span=span, fixes=fixes)
            yield made._replace(key=violation.node.shown_path)

    def _is_anybody_s(self, run: Run) -> bool:
        """Whether the command's program is no script of the library's and not there to be read: it may have options of
        its own."""
        kind = run.spec.fact("model_class")
        unseen = run.spec.launch is not None and scripts.file_of(run.spec.launch, run.spec.document) is None
        return unseen and kind is not None and kind.origin == ASSUMED

    def _words_of_program(self, run: Run) -> frozenset[str]:
        """Names in the text of the command's program, and of what it imports, where these are files of the
        repository."""
        path = None if run.spec.launch is None else scripts.file_of(run.spec.launch, run.spec.document)
        return frozenset() if path is None else own_code.words(path)

    def _edits(self, run: Run, span: Span, old: str, new: str) -> tuple[Edit, ...]:
        """The other name between the quotes or after the dashes of the one that is written."""
        text = text_of(run.spec, span.path)
        if text is None:
            return ()
        start, end = bounds(text.starts, span)
        written = text.text[start:end]
        return (Edit(span, written.replace(old, new)),) if written.count(old) == 1 else ()
