"""Edits on the original text: comments, quotes, anchors and order survive because nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterable

from memlint.documents.lines import bounds, line_starts
from memlint.documents.node import Edit


class EditError(ValueError):
    """Edits that cannot be applied: they overlap, leave the text, or belong to different files."""


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """``text`` with every edit applied at its original position; edits may come in any order.

    Insertions at one position keep their order. All edits must belong to one file.
    Raises :class:`EditError` where two edits overlap or a span is not inside the text.
    """
    edits = list(edits)
    if not edits:
        return text
    paths = {edit.span.path for edit in edits}
    if len(paths) > 1:
        raise EditError("edits of different files: " + ", ".join(sorted(paths)))
    starts = line_starts(text, edits[0].span.path)
    placed = []
    for order, edit in enumerate(edits):
        try:
            start, end = bounds(starts, edit.span)
        except IndexError:
            start, end = 0, -1
        if not 0 <= start <= end <= len(text):
            raise EditError(f"{edit.span} is not inside the text of {len(text)} characters")
        placed.append((start, end, order, edit.text))
    placed.sort()
    pieces: list[str] = []
    last = 0
    for start, end, _, replacement in placed:
        if start < last:
            path = edits[0].span.path
            raise EditError(f"{path}: two edits change the same text at offset {start}")
        pieces += (text[last:start], replacement)
        last = end
    pieces.append(text[last:])
    return "".join(pieces)
