"""docs/accuracy.md and its plots, from the outcome of a run. Nothing in it is written by hand."""

from __future__ import annotations

import platform
from pathlib import Path

from benchmarks.accuracy import plots
from benchmarks.accuracy.peers import PEERS
from benchmarks.accuracy.runner import (
    SMALL_DIFFERENCE,
    Outcome,
    Pair,
    Result,
    Summary,
    constants,
    load_rows,
    median,
    percent,
    share,
)

GIB = 2**30

INTRODUCTION = """\
# Accuracy

Published, measured peaks of real training runs, against what `memlint check` predicts from a config file of the run.
The page is written by `python -m benchmarks.accuracy.runner --docs`, offline; nothing in it is written by hand.

A case is a config in its framework's own format (`benchmarks/accuracy/cases/`) with the measured bytes and the counter
that they were read from: `allocated` and `reserved` are PyTorch's, `device` is the driver's. Each case is held against
its own counter. The error is (predicted - measured) / measured. A case without an estimate is UNKNOWN: it is counted,
and no hit. No estimate is fitted to a case, a row or a model: constants that are neither the config's nor PyTorch's are
listed below with their sources. The width of the intervals is: see below the table.
"""


def table(head: list[str], rows: list[list[str]], right: int = 1) -> str:
    """A Markdown table, of which all columns from ``right`` on are aligned to the right."""
    rule = ["---" if index < right else "--:" for index in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)) + "\n"


def _summary_row(summary: Summary) -> list[str]:
    return [
        summary.name,
        str(summary.cases),
        str(summary.unknown),
        percent(summary.median),
        percent(summary.p90),
        percent(summary.worst_over, True),
        percent(summary.worst_under, True),
        percent(summary.inside),
        percent(summary.under),
        percent(summary.width),
    ]


def _case_row(result: Result, model: str) -> list[str]:
    measured = f"{result.case.measured_bytes / GIB:.2f}"
    if result.predicted_bytes is None:
        return [result.case.id, model, result.case.counter, measured, "UNKNOWN", "", "", result.unknown]
    return [
        result.case.id,
        model,
        result.case.counter,
        measured,
        f"{result.predicted_bytes / GIB:.2f}",
        percent(result.error, True),
        f"{(result.low_bytes or 0) / GIB:.2f} to {(result.high_bytes or 0) / GIB:.2f}",
        "; ".join(
            part for part in (f"apart: {result.case.apart}" if result.case.apart else "", result.case.note) if part
        ),
    ]


def _pairs_text(pairs: list[Pair]) -> str:
    known = [pair for pair in pairs if pair.predicted_bytes is not None and pair.measured_bytes]
    signs = share([pair.sign_right for pair in known])
    return (
        f"{len(pairs)} pairs, {len(pairs) - len(known)} UNKNOWN; sign right in {percent(signs)}, median error of the"
        f" difference {percent(median([pair.error for pair in known if pair.error is not None]))}"
    )


def page(found: Outcome, strangers: str = "") -> str:
    """``strangers``: the part about runs that nobody had looked at (strangers.section)."""
    published = {row["id"]: row for row in load_rows("measured.csv")}
    parts = [INTRODUCTION]
    pool = [result for result in found.results if not result.case.apart]
    apart = [result for result in found.results if result.case.apart]
    parts.append(
        f"## Result\n\n{len(found.results)} cases, of which {len(apart)} are reported apart (reasons below).\n"
    )
    head = [
        "source",
        "cases",
        "UNKNOWN",
        "median",
        "90th percentile",
        "worst over",
        "worst under",
        "in interval",
        "beyond it",
        "width",
    ]
    summaries = (*found.sources, found.even, found.pooled, found.apart, found.everything)
    parts.append(table(head, [_summary_row(summary) for summary in summaries]))
    parts.append(
        "`beyond it`: more was measured than the interval allows; `width`: the median of how wide an interval is, as a"
        " share of its estimate. These are of the cases with an estimate. `of sources`: the mean of the sources, each"
        " weighing as much as any other. Intervals are widened by what the published runs lie apart from their"
        " estimates beyond releases and allocator (`python -m benchmarks.accuracy.unexplained`): that nine of ten lie"
        " inside is what the two shares were chosen by.\n"
    )
    parts.append("Verdicts, with a budget of so many times what was measured:\n")
    head = ["budget", "FITS", "TIGHT", "OOM"]
    rows = [[f"{row.factor:.2f} x", percent(row.fits), percent(row.tight), percent(row.oom)] for row in found.verdicts]
    parts.append(table(head, rows))
    parts.append("![Predicted against measured](accuracy/predicted.svg)\n\n![Errors by source](accuracy/errors.svg)\n")
    parts.append("![Stated intervals](accuracy/intervals.svg)\n")
    parts.append("## Peers, on the same cases in the same run\n")
    rows = []
    for comparison in found.comparisons:
        ratio = "-"
        if comparison.median and comparison.ours is not None:
            ratio = f"{comparison.ours / comparison.median:.2f}"
        rows.append(
            [
                comparison.peer,
                str(comparison.cases),
                percent(comparison.median),
                percent(comparison.p90),
                percent(comparison.ours),
                percent(comparison.ours_p90),
                str(comparison.unknown),
                ratio,
            ]
        )
    head = [
        "peer",
        "cases",
        "its median",
        "its 90th",
        "memlint's median",
        "memlint's 90th",
        "UNKNOWN to memlint",
        "ratio",
    ]
    parts.append(table(head, rows))
    parts.append(
        "Each row compares the cases that the peer can be given; `UNKNOWN` counts those of them that memlint has no"
        " estimate for. A peer's own overhead and margin are left out where PyTorch's counters were measured.\n"
    )
    parts.append("\n".join(f"- {peer.name}: {peer.about}" for peer in PEERS) + "\n")
    refusals = [
        f"- {comparison.peer} could not be given: "
        + "; ".join(f"{count} x {reason}" for reason, count in list(comparison.refused.items())[:5])
        for comparison in found.comparisons
        if comparison.refused
    ]
    parts.append("\n".join(refusals) + "\n")
    parts.append("## Pairs that differ in one setting\n")
    pooled_pairs = [pair for pair in found.pairs if not pair.apart]
    large = [pair for pair in pooled_pairs if not pair.small]
    parts.append(
        f"- pooled: {_pairs_text(pooled_pairs)}\n"
        f"- of them with a difference of at least {100 * SMALL_DIFFERENCE:.0f} % of the peak: {_pairs_text(large)}\n"
        f"- with those apart: {_pairs_text(list(found.pairs))}\n"
    )
    rows = []
    for pair in found.pairs:
        ours = "UNKNOWN" if pair.predicted_bytes is None else f"{pair.predicted_bytes / GIB:+.2f}"
        names = f"{pair.first} -> {pair.second}"
        rows.append([names, pair.setting, f"{pair.measured_bytes / GIB:+.2f}", ours, percent(pair.error)])
    parts.append(table(["pair", "setting", "measured, GiB", "predicted, GiB", "error"], rows, 2))
    parts.append("## Cases\n\nSizes in GiB (2**30 bytes).\n")
    head = ["case", "model", "counter", "measured", "predicted", "error", "interval", "notes"]
    for name, results in (("", pool), ("### Reported apart\n", apart)):
        if name:
            parts.append(name)
        parts.append(table(head, [_case_row(result, published[result.case.id]["model"]) for result in results], 3))
    told = load_rows("explained.csv")
    parts.append("## What lies beside\n")
    parts.append(
        "Rows more than 10 % beside their figure, sources whose median is above 4 %, and runs out of memory that were"
        " told FITS: by what, or that nothing explains them.\n"
    )
    parts.append(table(["rows", "", "by what"], [[row["rows"], row["state"], row["what"]] for row in told], 3))
    if strangers:
        parts.append(strangers)
    parts.append("## Constants\n\nOf neither the config, the model nor PyTorch; from `memlint/data/overhead.json`.\n")
    parts.append(table(["constant", "value", "source"], [list(entry) for entry in constants()], 3))
    parts.append("## Sources\n")
    sources = dict.fromkeys((row["source_repo_or_doc"], row["source_location"]) for row in published.values())
    parts.append("\n".join(f"- {where}: {place}" for where, place in sources) + "\n")
    parts.append(f"Run on Python {platform.python_version()}.\n")
    return "\n".join(parts)


def write(found: Outcome, docs: Path, strangers: str = "") -> None:
    """Write accuracy.md and accuracy/*.svg below ``docs``."""
    folder = docs / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    known = [result for result in found.results if result.predicted_bytes is not None]
    dots = [
        (r.case.id, r.case.source, float(r.case.measured_bytes), float(r.predicted_bytes or 0), bool(r.case.apart))
        for r in known
    ]
    (folder / "predicted.svg").write_text(
        plots.scatter(dots, "Predicted against measured peak memory"), encoding="utf-8"
    )
    errors = [(r.case.id, r.case.source, r.error or 0.0, bool(r.case.apart)) for r in known]
    (folder / "errors.svg").write_text(plots.strips(errors, "Errors by source"), encoding="utf-8")
    ranges = [
        (
            r.case.id,
            r.case.source,
            (r.low_bytes or 0) / r.case.measured_bytes,
            (r.predicted_bytes or 0) / r.case.measured_bytes,
            (r.high_bytes or 0) / r.case.measured_bytes,
        )
        for r in known
        if not r.case.apart
    ]
    (folder / "intervals.svg").write_text(plots.coverage(ranges, "Stated intervals"), encoding="utf-8")
    (docs / "accuracy.md").write_text(page(found, strangers), encoding="utf-8")
