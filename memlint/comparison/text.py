"""A comparison for people, and as Markdown for one comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memlint.comparison.model import ADDED, CHANGED, REMOVED, UNKNOWN, Cause, Change, Comparison
from memlint.comparison.policy import FAIL, WAIVED, WARN, Verdict, percent, signed
from memlint.reports.full import finish
from memlint.reports.markdown import cell
from memlint.reports.style import BOLD, DIM, GREEN, RED, VERDICT_COLOR, YELLOW, Style
from memlint.reports.text import clean, shorten
from memlint.units import format_bytes

MARKER = "<!-- memlint diff -->"  # by which the comment is found again
# GitHub takes 65,536 characters of a comment, and refuses a longer one.
MAX_COMMENT = 60_000
VALUE = 60  # characters of a value
COMPONENTS = 4  # that are named
LISTED = 20  # runs without an estimate that are named

_WORDS = {FAIL: "error", WARN: "warning", WAIVED: "waived"}
_COLORS = {FAIL: RED, WARN: YELLOW, WAIVED: DIM}


def headline(comparison: Comparison) -> str:
    """``2 of 14 runs changed, 1 added, 1 removed, the largest increase +3.20 GiB; 2 without an estimate``."""
    count = len(comparison.changes)
    changed = comparison.of(CHANGED)
    parts = [f"{len(changed)} of {_runs(count)} changed"]
    parts += [f"{len(comparison.of(kind))} {kind}" for kind in (ADDED, REMOVED) if comparison.of(kind)]
    most = max((change.delta_bytes or 0 for change in changed), default=0)
    if most > 0:
        parts.append(f"the largest increase {signed(most)}")
    unknown = comparison.of(UNKNOWN)
    if unknown:
        parts.append(f"{len(unknown)} without an estimate")
    return ", ".join(parts)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def name_of(change: Change) -> str:
    path, run = change.key
    return path if run == "train" else f"{path} [{run}]"


def _said(value: object) -> str:
    return "not stated" if value is None else clean(shorten(" ".join(str(value).split()), VALUE))


def _shown(comparison: Comparison, only_increases: bool) -> list[Change]:
    return comparison.increases if only_increases else comparison.different


# -- for people ----------------------------------------------------------------------------------------------------


def render(comparison: Comparison, title: str, verdicts: Sequence[Verdict], only_increases: bool, style: Style) -> str:
    lines = [f"{clean(title)}: {headline(comparison)}"]
    for change in _shown(comparison, only_increases):
        lines += ["", *_change(change, style)]
    unknown = comparison.of(UNKNOWN)
    if unknown:
        lines += ["", style.paint(f"without an estimate, on one side or both: {_runs(len(unknown))}", BOLD)]
        for change in unknown[:LISTED]:
            lines.append(f"  {clean(name_of(change))}: {clean(_why(change))}")
        if len(unknown) > LISTED:
            lines.append(f"  and {len(unknown) - LISTED} more")
    if verdicts:
        lines.append("")
    for verdict in verdicts:
        word = style.paint(_WORDS[verdict.action], _COLORS[verdict.action])
        about = "" if verdict.change is None else f"{clean(name_of(verdict.change))}: "
        lines.append(f"{word}: {about}{clean(verdict.said)}")
    return finish(lines, style)


def _change(change: Change, style: Style) -> Iterator[str]:
    old, new = change.before, change.after
    delta = change.delta_bytes
    name = style.paint(clean(name_of(change)), BOLD)
    if old is None or new is None or delta is None:
        side = change.newest
        assert side.device_bytes is not None
        verdict = _verdict(side.verdict, side.budget_bytes, style)
        yield f"{name}  {change.kind}, {format_bytes(side.device_bytes)}{verdict}"
        return
    assert old.device_bytes is not None
    assert new.device_bytes is not None
    color = RED if delta > 0 else GREEN
    sizes = f"{format_bytes(old.device_bytes)} -> {format_bytes(new.device_bytes)}"
    moved = "the same peak, and another interval"
    if delta:
        moved = style.paint(f"{signed(delta)} ({percent(change)})", color)
    was = "" if old.verdict == new.verdict or old.verdict in ("", "UNKNOWN") else f"{old.verdict} -> "
    yield f"{name}  {sizes}  {moved}{_verdict(new.verdict, new.budget_bytes, style, was)}"
    width = max([len(_cause(cause)) for cause in change.causes] or [0])
    for cause in change.causes:
        place = f"  {clean(cause.path)}:{cause.line}" if cause.line else ""
        size = "not tried alone" if cause.size_bytes is None else signed(cause.size_bytes)
        yield f"    {_cause(cause):<{width}}  {size:>10}{place}"
    if change.rest_bytes:
        yield f"    {_rest(change)}  {signed(change.rest_bytes)}"
    if change.more:
        yield f"    and {change.more} more keys, which are not tried"
    parts = [f"{part.replace('_', ' ')} {signed(size)}" for part, size in change.components.items()]
    if parts:
        yield style.paint(f"    in {', '.join(parts[:COMPONENTS])}" + (", ..." if len(parts) > COMPONENTS else ""), DIM)


def _rest(change: Change) -> str:
    return "these together, beyond each alone" if len(change.causes) > 1 else "what no key states"


def _cause(cause: Cause) -> str:
    return f"{clean(cause.key)} {_said(cause.before)} -> {_said(cause.after)}"


def _verdict(verdict: str, budget: int | None, style: Style, was: str = "") -> str:
    if budget is None:
        return ""
    return f"  {was}{style.paint(verdict, VERDICT_COLOR.get(verdict, 0))} of {format_bytes(budget)}"


def _why(change: Change) -> str:
    lost = "had an estimate, and has none: " if change.lost_estimate else ""
    sides = [side for side in (change.after, change.before) if side is not None and side.device_bytes is None]
    return lost + sides[0].why


# -- for a pull request --------------------------------------------------------------------------------------------


def markdown(comparison: Comparison, title: str, verdicts: Sequence[Verdict], only_increases: bool) -> str:
    """One comment: its first line is :data:`MARKER`, by which the next push finds it. No foreign text in it is more
    than text."""
    lines = [MARKER, "### GPU memory of training configs", "", f"{cell(title)}: {cell(headline(comparison))}", ""]
    failed = [verdict for verdict in verdicts if verdict.action != WAIVED]
    for verdict in verdicts:
        about = "" if verdict.change is None else f"`{_code(name_of(verdict.change))}`: "
        lines.append(f"- **{_WORDS[verdict.action]}** {about}{cell(verdict.said)}")
    if verdicts:
        lines.append("")
    shown = _shown(comparison, only_increases)
    if shown:
        lines += ["| run | before | after | change | verdict |", "|---|---:|---:|---:|---|"]
        lines += [_row(change) for change in shown]
    elif not failed:
        lines.append("No run needs more than before." if only_increases else "No run needs more or less than before.")
    causes = [line for change in shown for line in _details(change)]
    if causes:
        lines += ["", "<details><summary>What did it</summary>", "", *causes, "", "</details>"]
    unknown = comparison.of(UNKNOWN)
    if unknown:
        lines += ["", f"<details><summary>Without an estimate: {_runs(len(unknown))}</summary>", ""]
        lines += [f"- `{_code(name_of(change))}`: {cell(shorten(_why(change), 200))}" for change in unknown[:LISTED]]
        if len(unknown) > LISTED:
            lines.append(f"- and {len(unknown) - LISTED} more")
        lines += ["", "</details>"]
    return _cut(lines)


def _row(change: Change) -> str:
    old, new = (
        "" if side is None or side.device_bytes is None else format_bytes(side.device_bytes)
        for side in (change.before, change.after)
    )
    delta = change.delta_bytes
    moved = change.kind if delta is None else f"{signed(delta)} ({percent(change)})"
    verdict = change.newest.verdict if change.newest.budget_bytes is not None else ""
    was = change.before.verdict if change.before is not None and change.after is not None else verdict
    said = verdict if was == verdict or not verdict else f"{was} → {verdict}"
    return f"| `{_code(name_of(change))}` | {old} | {new} | {moved} | {said} |"


def _details(change: Change) -> list[str]:
    if not (change.causes or change.rest_bytes):
        return []
    lines = [f"`{_code(name_of(change))}`", ""]
    for cause in change.causes:
        size = "not tried alone" if cause.size_bytes is None else signed(cause.size_bytes)
        place = f" ({cell(cause.path)}:{cause.line})" if cause.line else ""
        values = f"{cell(_said(cause.before))} → {cell(_said(cause.after))}"
        lines.append(f"- `{_code(cause.key)}` {values}: {size}{place}")
    if change.rest_bytes:
        lines.append(f"- {_rest(change)}: {signed(change.rest_bytes)}")
    if change.more:
        lines.append(f"- and {change.more} more keys, which are not tried")
    return [*lines, ""]


def _code(text: str) -> str:
    """Foreign text within backticks in a table's cell, which nothing in it can end."""
    return clean(" ".join(text.split())).replace("`", "'").replace("|", "\\|")


def _cut(lines: list[str]) -> str:
    """So much that GitHub takes it: what is left out is counted, and what was opened is closed."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_COMMENT:
            kept = lines[:index]
            opened = sum(one.startswith("<details>") for one in kept) - kept.count("</details>")
            closed = ["</details>"] * opened
            return "\n".join([*kept, "", *closed, f"{len(lines) - index} more lines are left out."]) + "\n"
    return "\n".join(lines) + "\n"
