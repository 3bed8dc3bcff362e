"""A comparison as JSON, version 1: ``schemas/diff.schema.json``. Sizes are bytes, differences after minus before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint import __version__
from memlint.comparison.model import ADDED, CHANGED, REMOVED, SAME, UNKNOWN, Cause, Change, Comparison, Figure
from memlint.comparison.policy import Verdict
from memlint.reports.json import plain
from memlint.reports.report import shortened

VERSION = 1


def render(comparison: Comparison, title: str, verdicts: Sequence[Verdict], only_increases: bool) -> str:
    import json

    text = json.dumps(as_dict(comparison, title, verdicts, only_increases), indent=2, ensure_ascii=True) + "\n"
    return text.replace("\x7f", "\\u007f")


def as_dict(
    comparison: Comparison, title: str, verdicts: Sequence[Verdict], only_increases: bool = False
) -> dict[str, Any]:
    """The comparison as plain dicts and lists: runs that differ, or have no estimate."""
    shown = comparison.increases if only_increases else comparison.different
    return {
        "version": VERSION,
        "tool": {"name": "memlint", "version": __version__},
        "compared": title,
        "runs": [_change(change) for change in (*shown, *comparison.of(UNKNOWN))],
        "policies": [
            {
                "action": verdict.action,
                "path": None if verdict.change is None else verdict.change.key[0],
                "run": None if verdict.change is None else verdict.change.key[1],
                "message": verdict.said,
            }
            for verdict in verdicts
        ],
        "errors": [
            {"side": name, "path": path, "reason": why}
            for name, side in (("before", comparison.before), ("after", comparison.after))
            for path, why in side.errors
        ],
        "summary": {kind: len(comparison.of(kind)) for kind in (CHANGED, ADDED, REMOVED, SAME, UNKNOWN)},
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "path": change.key[0],
        "run": change.key[1],
        "kind": change.kind,
        "before": _figure(change.before),
        "after": _figure(change.after),
        "delta_bytes": change.delta_bytes,
        "components": change.components,
        "causes": [_cause(cause) for cause in change.causes],
        "rest_bytes": change.rest_bytes,
        "causes_left_out": change.more,
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    known = figure.device_bytes is not None
    return {
        "path": figure.path,
        "family": figure.family or None,
        "device_bytes": figure.device_bytes,
        "low_bytes": figure.low_bytes if known else None,
        "high_bytes": figure.high_bytes if known else None,
        "verdict": figure.verdict,
        "budget_bytes": figure.budget_bytes,
        "reason": figure.why or None,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "key": cause.key,
        "before": _value(cause.before),
        "after": _value(cause.after),
        "bytes": cause.size_bytes,
        "path": cause.path or None,
        "line": cause.line or None,
    }


def _value(value: object) -> Any:
    found = plain(value)
    return found if not isinstance(found, (str, list, dict)) or len(str(found)) <= 500 else shortened(str(found))[:500]
