"""Published runs that nobody had looked at: what memlint said of them at first sight, beside what it says today.

    python -m benchmarks.accuracy.strangers [--only IDS] [--first-sight]

A run is a row of ``strangers.csv`` and a config in its framework's own format under ``strangers/``. ``first_sight.csv``
is what `check` said of these files before anything was mended for them; ``--first-sight`` adds the rows that are not
in it and never changes one. Nothing of these runs is a constant's source, and none of them widens an interval.
Runs that were written down at one time are a draw: a later draw meets a program that an earlier one has mended.

What a row reads:
    figure  the peak of a run whose sizes the config states: as in cases.csv
    bound   the peak of a run whose samples are shorter than the length that the config states: the upper end alone is
            held against it
    oom     a user's report that the run was out of memory on this card: the verdict is held against it
    fits    a report that the run ends on this card: OOM would be wrong
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.accuracy.runner import COUNTERS, HERE, median, percent, percentile, share

FOLDER = HERE / "strangers"
ROWS = HERE / "strangers.csv"
FIRST_SIGHT = HERE / "first_sight.csv"
READS = ("figure", "bound", "oom", "fits")
REPORTS = ("oom", "fits")  # these have no figure
UNKNOWN = "UNKNOWN"


class Stranger(NamedTuple):
    """One row of strangers.csv. ``measured_bytes`` is 0 where a report has no figure."""

    id: str
    draw: str
    source: str
    reads: str
    config: str
    gpu: str
    counter: str
    measured_bytes: int
    where: str
    note: str


class Sight(NamedTuple):
    """What `check` said: bytes of the row's counter, None without an estimate, and why there is none."""

    id: str
    predicted_bytes: int | None
    low_bytes: int | None
    high_bytes: int | None
    verdict: str
    unknown: str


class Seen(NamedTuple):
    """A row with what was said of it at some time."""

    row: Stranger
    sight: Sight

    @property
    def error(self) -> float | None:
        if self.row.reads != "figure" or self.sight.predicted_bytes is None:
            return None
        return (self.sight.predicted_bytes - self.row.measured_bytes) / self.row.measured_bytes

    @property
    def inside(self) -> bool | None:
        """Of a figure, whether the interval holds it; None without an estimate."""
        if self.sight.low_bytes is None or self.sight.high_bytes is None:
            return None
        return self.sight.low_bytes <= self.row.measured_bytes <= self.sight.high_bytes

    @property
    def beyond(self) -> bool | None:
        """More was measured than the whole interval allows; None without an estimate."""
        return None if self.sight.high_bytes is None else self.row.measured_bytes > self.sight.high_bytes


def load(path: Path = ROWS) -> list[Stranger]:
    """Raises ValueError for a row that cannot be a run."""
    found = []
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["reads"] not in READS or row["counter"] not in COUNTERS:
                raise ValueError(f"{path.name}: {row['id']}: reads {row['reads']!r}, counter {row['counter']!r}")
            if (row["reads"] in REPORTS) == bool(row["measured_bytes"]):
                raise ValueError(f"{path.name}: {row['id']}: a run has a figure or is a report without one")
            if not (path.parent / path.stem / row["config"]).is_file():
                raise ValueError(f"{path.name}: {row['id']}: no file {row['config']}")
            size = int(row.pop("measured_bytes") or 0)
            found.append(Stranger(**row, measured_bytes=size))
    return found


def look(row: Stranger, folder: Path = FOLDER) -> Sight:
    """One run through `memlint.check`, as the command line would put it."""
    from memlint.api import check as api_check

    options = {"gpu": row.gpu} if row.gpu else {}
    report = api_check(str(folder / row.config), isolated=True, **options)
    run = next(iter(report.runs), None)
    if run is None or run.estimate is None:
        why = [finding.message for finding in (run.findings if run else ()) if finding.code in ("MEM001", "MEM007")]
        why += [told for _, told in (*report.skipped, *report.errors, *report.unparsed)]
        told = (why[0] if why else "no run").replace(f"{folder}/", "")
        return Sight(row.id, None, None, None, run.verdict if run else UNKNOWN, told)
    interval = getattr(run.estimate, f"{row.counter}_interval")
    size = getattr(run.estimate, f"{row.counter}_bytes")
    return Sight(row.id, size, interval.low_bytes, interval.high_bytes, run.verdict, "")


def _whole(text: str) -> int | None:
    return int(text) if text else None


def first_sight(path: Path = FIRST_SIGHT) -> dict[str, Sight]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        return {
            row["id"]: Sight(
                row["id"],
                _whole(row["predicted_bytes"]),
                _whole(row["low_bytes"]),
                _whole(row["high_bytes"]),
                row["verdict"],
                row["unknown"],
            )
            for row in csv.DictReader(lines)
        }


def keep(sights: Iterable[Sight], path: Path = FIRST_SIGHT) -> None:
    """Add what is not yet in the file; what is in it stays as it is."""
    kept = first_sight(path)
    kept.update({sight.id: sight for sight in sights if sight.id not in kept})
    with path.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(Sight._fields)
        writer.writerows(["" if value is None else value for value in sight] for sight in kept.values())


# ------------------------------------------------------------------------------------------------- sums


class Summary(NamedTuple):
    """Of one source. Shares are of the rows with an estimate; of reports, counts of verdicts."""

    name: str
    figures: int
    unknown: int
    median: float | None
    p90: float | None
    inside: float | None
    bounds: int
    beyond: int


def summarise(name: str, seen: Sequence[Seen]) -> Summary:
    figures = [one for one in seen if one.row.reads == "figure"]
    bounds = [one for one in seen if one.row.reads == "bound"]
    sizes = [abs(one.error) for one in figures if one.error is not None]
    measured = [*figures, *bounds]
    return Summary(
        name,
        len(figures),
        sum(one.sight.predicted_bytes is None for one in measured),
        median(sizes),
        percentile(sizes, 0.9),
        share([bool(one.inside) for one in figures if one.inside is not None]),
        len(bounds),
        sum(bool(one.beyond) for one in measured),
    )


def verdicts(seen: Sequence[Seen], reads: str = "oom") -> dict[str, int]:
    """Of the reports that read so: verdict -> how many."""
    found = {"FITS": 0, "TIGHT": 0, "OOM": 0, UNKNOWN: 0}
    for one in seen:
        if one.row.reads == reads:
            found[one.sight.verdict] += 1
    return found


def both(only: tuple[str, ...] = ()) -> tuple[list[Seen], list[Seen]]:
    """What was said at first sight, and what is said today, of the same rows."""
    kept = first_sight()
    rows = [row for row in load() if row.id in kept and (not only or row.id.startswith(only))]
    return [Seen(row, kept[row.id]) for row in rows], [Seen(row, look(row)) for row in rows]


# ------------------------------------------------------------------------------------------------- text

GIB = 2**30


def _interval(sight: Sight) -> str:
    if sight.predicted_bytes is None:
        return UNKNOWN
    low, high = (sight.low_bytes or 0) / GIB, (sight.high_bytes or 0) / GIB
    return f"{sight.predicted_bytes / GIB:.2f} ({low:.2f} to {high:.2f})"


DRAWS = {
    "1": "the first",
    "2": "the second",
    "3": "the third",
    "4": "the fourth",
    "5": "the fifth",
    "6": "the sixth",
    "7": "the seventh",
    "8": "the eighth",
    "9": "the ninth",
}
COUNTS = {"oom": "of reports of a run out of memory", "fits": "of reports of a run that fits its card"}


def _sums(then: Sequence[Seen], now: Sequence[Seen]) -> list[str]:
    """The tables of one draw: its sources, and its reports."""
    from benchmarks.accuracy.page import table

    head = ["source", "figures", "UNKNOWN", "median", "90th", "in interval", "bounds", "beyond"]
    names = list(dict.fromkeys(one.row.source for one in then if one.row.reads not in REPORTS))
    cells = []
    for name in (*names, "all"):
        pairs = []
        for seen in (then, now):
            chosen = [one for one in seen if one.row.reads not in REPORTS and name in ("all", one.row.source)]
            pairs.append(summarise(name, chosen))
        first, today = pairs
        cells.append(
            [
                name,
                str(first.figures),
                f"{first.unknown}, {today.unknown}",
                f"{percent(first.median)}, {percent(today.median)}",
                f"{percent(first.p90)}, {percent(today.p90)}",
                f"{percent(first.inside)}, {percent(today.inside)}",
                str(first.bounds),
                f"{first.beyond}, {today.beyond}",
            ]
        )
    lines = ["Each cell: at first sight, today.", "", table(head, cells)]
    for reads, name in COUNTS.items():
        if any(one.row.reads == reads for one in then):
            told = (("at first sight", then), ("today", now))
            cells = [[when, *map(str, verdicts(seen, reads).values())] for when, seen in told]
            lines.append(table([name, "FITS", "TIGHT", "OOM", "UNKNOWN"], cells))
    return lines


def section(then: Sequence[Seen], now: Sequence[Seen]) -> str:
    """The page's part about these runs, a draw after the other."""
    from benchmarks.accuracy.page import table

    lines = [
        "## First sight: runs that nobody had looked at",
        "",
        "Published runs and users' reports, written down as configs and put to memlint before anything was mended for"
        " them (`benchmarks/accuracy/first_sight.csv`); today's figures beside. They are no source of a constant and"
        " widen no interval. A *bound* is a run whose samples are shorter than the length that its config states: only"
        " more than the upper end is held against it (`beyond`). A draw is what was written down at one time: the"
        " second met a program that had been mended for the first.",
        "",
    ]
    for draw in dict.fromkeys(one.row.draw for one in then):
        lines += [f"### Of {DRAWS[draw]} draw", ""]
        lines += _sums([one for one in then if one.row.draw == draw], [one for one in now if one.row.draw == draw])
    head = ["run", "counter", "measured", "first sight", "today", "error", "where and notes"]
    today = {one.row.id: one for one in now}
    cells = []
    for one in then:
        row, new = one.row, today[one.row.id]
        if row.reads in REPORTS:
            measured, first, said = (
                "out of memory" if row.reads == "oom" else "fits",
                one.sight.verdict,
                new.sight.verdict,
            )
            error = "" if new.sight.predicted_bytes is None else f"{new.sight.predicted_bytes / GIB:.1f}"
        else:
            measured, first, said = f"{row.measured_bytes / GIB:.2f}", _interval(one.sight), _interval(new.sight)
            error = percent(new.error, True) if row.reads == "figure" else "bound"
        counter = row.gpu if row.reads in REPORTS else row.counter
        notes = "; ".join(part for part in (row.where, row.note, new.sight.unknown[:160]) if part)
        cells.append([row.id, counter, measured, first, said, error, notes])
    lines += ["### Runs", "", "Sizes in GiB; of a report, its card and the verdicts.", "", table(head, cells, 2)]
    return "\n".join(lines)


def as_text(seen: Sequence[Seen]) -> str:
    lines = []
    for one in seen:
        row, sight = one.row, one.sight
        if sight.predicted_bytes is None:
            lines.append(f"{row.id:<12}{row.reads:<7}{sight.verdict:<8} {sight.unknown[:150]}")
            continue
        measured = f"{row.measured_bytes / GIB:8.2f}" if row.measured_bytes else f"{row.gpu:>8}"
        mark = "" if row.reads in REPORTS else "BEYOND" if one.beyond else "" if one.inside else "outside"
        said = f"{_interval(sight):<28}{percent(one.error, True):>9} {mark}"
        lines.append(f"{row.id:<12}{row.reads:<7}{sight.verdict:<8}{measured}  {said}")
    for name in dict.fromkeys(one.row.source for one in seen):
        lines.append(str(summarise(name, [one for one in seen if one.row.source == name])))
    lines += [f"{reads}: {verdicts(seen, reads)}" for reads in REPORTS]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="ids, or the beginning of ids, with commas")
    parser.add_argument("--first-sight", action="store_true", help="keep what is said of rows that are new")
    chosen = parser.parse_args(arguments)
    only = tuple(chosen.only.split(",")) if chosen.only else ()
    rows = [row for row in load() if not only or row.id.startswith(only)]
    seen = [Seen(row, look(row)) for row in rows]
    print(as_text(seen))
    if chosen.first_sight:
        keep(one.sight for one in seen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
