"""The text that a span selects, cut out of the file itself."""

from __future__ import annotations

from pathlib import Path

from memlint.documents.node import Span


def selected(span: Span) -> str:
    lines = Path(span.path).read_text(encoding="utf-8-sig").splitlines(keepends=True)
    part = lines[span.line - 1 : span.end_line]
    if not part:
        return ""
    part[-1] = part[-1][: span.end_column - 1]
    part[0] = part[0][span.column - 1 :]
    return "".join(part)
