"""A plan as a table, and as JSON, version 1: ``schemas/plan.schema.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint import __version__
from memlint.data.catalogue import Gpu, cards
from memlint.planning.rows import Row
from memlint.planning.starters import METHODS, TRAINERS, Wanted
from memlint.reports.full import finish
from memlint.reports.style import BOLD, VERDICT_COLOR, Style
from memlint.reports.text import clean, folded, width
from memlint.tape.estimate import FITS, TIGHT, Estimate
from memlint.units import format_bytes

# Without a card, of these the smallest that surely hold a row are named.
VENDOR = "nvidia"


def render(rows: Sequence[Row], trainer: str, style: Style) -> str:
    """A table for each card; one with the smallest cards that fit, where none is named."""
    first = rows[0].wanted
    known = next((row.estimate for row in rows if row.estimate is not None), None)
    size = "" if known is None else f", {_trained(known)} parameters"
    lines = [f"{clean(first.model)}{size}, {first.length:,} tokens, as {TRAINERS[trainer].title} trains it"]
    by_card: dict[str, list[Row]] = {}
    for row in rows:
        by_card.setdefault(row.card.name if row.card is not None else "", []).append(row)
    for here in by_card.values():
        lines += ["", *_table(here, style)]
    if any(row.newest_batch not in (None, row.batch or 0) for row in rows):
        said = "largest batch: surely fits, whichever release is installed; newest: with the newest alone"
        lines += ["", *folded(said, style.columns, 2)]
    whys = dict.fromkeys(row.why for row in rows if row.why)
    lines += ["", *(f"unknown: {clean(why)}" for why in whys)] if whys else []
    return finish(lines, style)


def _trained(estimate: Estimate) -> str:
    return f"{estimate.parameters / 1e9:.3g} billion" if estimate.parameters >= 1e9 else f"{estimate.parameters:,}"


def _table(rows: Sequence[Row], style: Style) -> list[str]:
    card = rows[0].card
    head = ["method", "devices", "sharding", "one sample"]
    if card is None:
        title = "per device, with one sample in a micro-batch"
        head += ["smallest cards that hold it"]
    else:
        title = f"{card.name}, {format_bytes(card.usable_bytes)}"
        head += ["verdict", "largest batch", "its peak", "tokens/step", "newest"]
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(width(cell[column]) for cell in cells) for column in range(len(head))]
    lines = [style.paint(title, BOLD)]
    for number, cell in enumerate(cells):
        padded = [
            " " * (size - width(text)) + text if column in (1, 3, 5, 6, 7, 8) else text + " " * (size - width(text))
            for column, (text, size) in enumerate(zip(cell, widths))
        ]
        if number and card is not None:
            padded[4] = style.paint(padded[4], VERDICT_COLOR.get(cell[4], 0))
        lines.append("  " + "  ".join(padded).rstrip())
    return lines


def _cells(row: Row) -> list[str]:
    wanted = row.wanted
    start = [wanted.method, str(wanted.devices), wanted.sharding]
    if row.estimate is None:
        return [*start, "unknown", *([""] if row.card is None else ["UNKNOWN", "", "", "", ""])]
    start.append(format_bytes(row.estimate.device_bytes))
    if row.card is None:
        return [*start, ", ".join(card.name for card in smallest(row.estimate)) or "none of the catalogue"]
    newest = str(row.newest_batch) if row.newest_batch else "none"
    if row.filled is None:
        over = row.estimate.device_interval.high_bytes - row.card.usable_bytes
        return [*start, row.verdict, "none", f"lacks {format_bytes(over)}" if over > 0 else "", "", newest]
    return [*start, row.verdict, str(row.batch), format_bytes(row.filled.device_bytes), f"{row.tokens:,}", newest]


def smallest(estimate: Estimate, count: int = 3) -> list[Gpu]:
    """The cards of the catalogue with the least memory that surely hold a run."""
    holding = [
        card for card in cards() if card.vendor == VENDOR and card.bf16 and estimate.verdict(card.usable_bytes) == FITS
    ]
    return sorted(holding, key=lambda card: (card.usable_bytes, card.name))[:count]


def nearest(rows: Sequence[Row]) -> str:
    """Of rows that do not fit, the one that lacks least."""
    short = [
        (row.estimate.device_interval.high_bytes - row.card.usable_bytes, row)
        for row in rows
        if row.estimate is not None and row.card is not None
    ]
    if not short:
        return "nothing is known of it"
    size, row = min(short, key=lambda entry: entry[0])
    doubt = " in the worst case" if row.verdict == TIGHT else ""
    devices = "1 device" if row.wanted.devices == 1 else f"{row.wanted.devices} devices ({row.wanted.sharding})"
    return f"the nearest, {row.wanted.method} on {devices}, lacks {format_bytes(size)}{doubt}"


def as_dict(rows: Sequence[Row], trainer: str) -> dict[str, Any]:
    return {
        "version": 1,
        "tool": {"name": "memlint", "version": __version__},
        "trainer": trainer,
        "model": rows[0].wanted.model,
        "length": rows[0].wanted.length,
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, Any]:
    wanted: Wanted = row.wanted
    return {
        "method": wanted.method,
        "stage": METHODS[wanted.method].stage,
        "tuning": METHODS[wanted.method].tuning,
        "devices": wanted.devices,
        "sharding": wanted.sharding,
        "gpu": row.card.name if row.card is not None else None,
        "verdict": row.verdict or None,
        "one_sample": _sizes(row.estimate),
        "largest_batch": row.batch,
        "largest_batch_with_newest_releases": row.newest_batch,
        "filled": _sizes(row.filled),
        "tokens_per_step": row.tokens if row.batch else None,
        "reason": row.why or None,
    }


def _sizes(estimate: Estimate | None) -> dict[str, int] | None:
    if estimate is None:
        return None
    low, high = estimate.device_interval
    return {"device_bytes": estimate.device_bytes, "low_bytes": low, "high_bytes": high}
