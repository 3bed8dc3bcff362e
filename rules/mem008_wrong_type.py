from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from memlint.dialects import objections
from memlint.dialects.base import file_text
from memlint.dialects.spelling import put_right
from memlint.documents.node import Span
from memlint.plugin import ERROR, SAFE, Example, Finding, Fix, Rule, Run


class WrongType(Rule):
    """wrong-type: a value that its key does not take.

    ## What it does
    Holds the config against its family's schema: types, bounds and enumerations. What a template leaves to be filled in
    (`...`, `<LENGTH>`) is no value.

    ## Why it matters
    The run stops when the value is first used, or worse, takes it for something else.

    ## Example
    `batch_size: "many"`

    ## Use instead
    A value of the type that the key takes; for a misspelt name, the one that the message proposes.

    ## Fix safety
    Safe: only a misspelt name is put right.

    ## References
    The schema of the family in `schemas/`.
    """

    code = "MEM008"
    name = "wrong-type"
    severity = ERROR
    needs_estimate = False
    invalid = (
        Example("video_llm/config.yaml", replace=(("batch_size: 4", "batch_size: many"),), expect="many"),
        Example("dit3d/config.py", replace=(("BATCH_SIZE = 1 ", "BATCH_SIZE = 'one' "),), expect="'one'"),
        Example("lag_mode/train_lag_mode.sh", replace=(("--depth 6", "--depth six"),), expect="six"),
    )
    valid = (
        Example("video_llm/config.yaml"),
        Example("uni3d_dp/uni3d+dp.yaml"),
        Example("stdiff/kitti_range_train_config.yaml"),
        Example("dit3d/config.py"),
        Example("lag_mode/train_lag_mode.sh"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        seen: set[Span] = set()
        for violation in objections.violations(run.spec):
            # A value that several keys take by interpolation is wrong once.
            if violation.kind == "unknown-key" or violation.node.span in seen:
                continue
            if _is_blank(violation.node.value):
                continue
            seen.add(violation.node.span)
            fixes = []
            if violation.suggestion != "":
                written, meant = violation.node.plain(), violation.suggestion
                edits = put_right(run.spec, violation.node, meant)
                fixes.append(Fix(f"{_quoted(written)} -> {file_text(meant)}", SAFE, tuple(edits)))
            found = self.finding(run, violation.message, span=violation.node.span, fixes=fixes)
            yield found._replace(key=violation.node.shown_path)
        yield from self._refused(run, seen)

    def _refused(self, run: Run, seen: set[Span]) -> Iterator[Finding]:
        """What contradicts other keys, or stands outside of the tree: in a command beside the file that it names."""
        for missing in run.spec.missing:
            if (
                missing.node is None
                or _is_blank(missing.node.value)
                or any(_within(span, missing.node.span) for span in seen)
            ):
                continue
            seen.add(missing.node.span)
            found = self.finding(run, f"{missing.key}: {missing.reason}", span=missing.node.span)
            yield found._replace(key=missing.key)


def _within(one: Span, other: Span) -> bool:
    return one.path == other.path and other[1:3] <= one[1:3] and one[3:5] <= other[3:5]


_BLANK = re.compile(
    r"\.\.\.|<[^<>]+>|(?i:to[ _-]be[ _-](?:filled|set|defined)\w*|todo|fixme|(?:change|fill)[ _-]?me|your[ _-]\w+|xxx+)"
)


def _is_blank(value: Any) -> bool:
    """Whether a value is a place that the reader of a template fills in: ``...``, ``<LENGTH>``, ``TO_BE_FILLED``."""
    return isinstance(value, str) and _BLANK.fullmatch(value.strip()) is not None


def _quoted(value: Any) -> str:
    """A text as such: the text "2" is not the number."""
    return f'"{value}"' if isinstance(value, str) else str(value)
