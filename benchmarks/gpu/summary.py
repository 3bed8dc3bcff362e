"""What a table says: how far predictions are from measurements, and whether that is good enough.

    python benchmarks/gpu/summary.py TABLE.csv [--check]

``--check`` ends with exit code 1 where a table is not what the project accepts: see :func:`problems`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.table import COLUMNS, OK, OOM, SAME, Row, number, read

# The acceptance, in percent: medians of the error's size over all cases
MEDIAN_LIMITS = {"trace_allocated_error_pct": 2.0, "static_device_error_pct": 5.0}
# and what a single case may be off before its mechanism has to be written down
CASE_LIMITS = {"trace_allocated_error_pct": 3.0, "static_device_error_pct": 5.0}
MIN_CASES = 80
SHOWN = {
    "trace_allocated_error_pct": "trace, allocated",
    "trace_tensors_error_pct": "trace, tensors only",
    "trace_reserved_error_pct": "trace, reserved",
    "static_allocated_error_pct": "static, allocated",
    "static_reserved_error_pct": "static, reserved",
    "static_device_error_pct": "static, device",
}
# What a table has to cover: column -> values that must occur among the measured cases
COVERED: dict[str, tuple[str, ...]] = {
    "family": (
        *("stdiff", "uni3d+dp", "dit3d", "video-llm", "lag-mode"),
        *("decoder", "encoder", "vit", "unet", "dit", "resnet"),
    ),
    "precision": ("fp32", "autocast-bf16", "bf16"),
    "optimizer": ("adamw", "sgd"),
    "implementation": ("loop", "foreach", "fused"),
    "checkpointing": ("none", "full"),
    "attention": ("flash", "efficient", "math"),
    "accumulation": ("1", "2"),
    "ema": ("no", "yes"),
    "compiled": ("no", "yes"),
}
CASES_OF = ("system", "model", "layer")  # kinds with a prediction


class Spread:
    """Sizes of errors, in percent."""

    def __init__(self, errors: Mapping[str, float]) -> None:
        sizes = sorted(abs(error) for error in errors.values())
        self.count = len(sizes)
        self.median = statistics.median(sizes)
        self.p90 = sizes[max(0, -(-9 * len(sizes) // 10) - 1)]  # nearest rank
        self.worst_case = max(errors, key=lambda case: abs(errors[case]))
        self.worst = errors[self.worst_case]


def compared(rows: Iterable[Row]) -> list[Row]:
    """The lines whose prediction is of the same thing as the measurement: compiled code is traced uncompiled."""
    return [row for row in rows if row["kind"] in CASES_OF and row["status"] == OK and row["compiled"] != "yes"]


def spread(rows: Iterable[Row], column: str) -> Spread | None:
    """Over the lines that have a figure there; None if none has."""
    found = {row["case"]: value for row in rows if (value := number(row, column)) is not None}
    return Spread(found) if found else None


def coverage(rows: Iterable[Row]) -> tuple[int, int]:
    """(cases whose measured device bytes lie in the static estimate's interval, cases that have both)."""
    inside = total = 0
    for row in rows:
        low, high = number(row, "static_device_low_bytes"), number(row, "static_device_high_bytes")
        device = number(row, "measured_device_bytes")
        if low is not None and high is not None and device is not None:
            total += 1
            inside += low <= device <= high
    return inside, total


def summary(rows: Sequence[Row]) -> str:
    """The table in one screen."""
    lines = []
    if rows:
        first = rows[0]
        made = [first["gpu"] or first["machine"], f"torch {first['torch']}", f"memlint {first['memlint']}"]
        if first["driver"]:
            made.append(f"driver {first['driver']}")
        lines.append(", ".join(made))
    counts = {status: sum(row["status"] == status for row in rows) for status in sorted({r["status"] for r in rows})}
    lines.append(f"{len(rows)} cases: " + (", ".join(f"{n} {status}" for status, n in counts.items()) or "none"))
    chosen = compared(rows)
    lines.append("")
    lines.append(f"{'error':22} {'cases':>5} {'median':>8} {'p90':>8} {'worst':>9}  case")
    for column, title in SHOWN.items():
        found = spread(chosen, column)
        if found is not None:
            figures = f"{found.count:5} {found.median:7.2f}% {found.p90:7.2f}% {found.worst:+8.2f}%"
            lines.append(f"{title:22} {figures}  {found.worst_case}")
    families = sorted({row["family"] for row in chosen})
    for family in families:
        own = spread((row for row in chosen if row["family"] == family), "trace_allocated_error_pct")
        if own is not None:
            figures = f"{own.count:5} {own.median:7.2f}% {own.p90:7.2f}% {own.worst:+8.2f}%"
            lines.append(f"  {'trace, ' + family:20} {figures}  {own.worst_case}")
    compiled = [row for row in rows if row["compiled"] == "yes" and row["status"] == OK]
    eager = spread(compiled, "trace_allocated_error_pct")
    if eager is not None:
        figures = f"{eager.count:5} {eager.median:7.2f}% {eager.p90:7.2f}% {eager.worst:+8.2f}%"
        lines.append(f"{'compiled, traced eager':22} {figures}  {eager.worst_case}")
    inside, total = coverage(chosen)
    if total:
        lines.append(f"{inside} of {total} measured device figures lie in the static estimate's interval")
    over = misses(chosen)
    if over:
        lines.append("")
        lines += [
            f"{column.removesuffix('_error_pct')} {value:+.2f}%  {case}" for (case, column), value in over.items()
        ]
    failed = [row for row in rows if row["status"] not in (OK, OOM) or row["error"]]
    if failed:
        lines.append("")
        lines += [f"{row['status']}  {row['case']}: {row['error'][:160]}" for row in failed]
    return "\n".join(lines)


def misses(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """(case, column) -> error in percent, of everything over :data:`CASE_LIMITS`."""
    found = {}
    for row in rows:
        for column, limit in CASE_LIMITS.items():
            value = number(row, column)
            if value is not None and abs(value) > limit:
                found[row["case"], column] = value
    return found


def problems(rows: Sequence[Row], explained: Mapping[tuple[str, str], str] | None = None) -> list[str]:
    """Why a table is not accepted; [] if it is.

    - medians over :data:`MEDIAN_LIMITS`, or a limit that nothing was measured for;
    - a single case over :data:`CASE_LIMITS` whose mechanism nobody found (``explained``: by case and column), and an
      explanation of what is no longer a miss;
    - fewer than :data:`MIN_CASES` cases, or a value of :data:`COVERED` that does not occur among them;
    - lines of different machines or versions, of a CPU, of small sizes, or twice of the same case.
    """
    found = []
    chosen = compared(rows)
    measured = [row for row in rows if row["kind"] in CASES_OF and row["status"] in (OK, OOM)]
    for column in SAME:
        values = sorted({row[column] for row in rows})
        if len(values) > 1:
            found.append(f"lines of different {column}: {', '.join(values)}")
    if any(row["device"] != "cuda" for row in rows):
        found.append("figures of a CPU say nothing about a card")
    if any(row["scale"] != "real" for row in rows):
        found.append("small sizes are for testing the program")
    names = [row["case"] for row in rows]
    found += [f"{name} is there {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    if len(measured) < MIN_CASES:
        found.append(f"{len(measured)} cases were measured, {MIN_CASES} are wanted")
    for column, wanted in COVERED.items():
        lacking = [value for value in wanted if value not in {row[column] for row in measured}]
        if lacking:
            found.append(f"no measured case with {column} {', '.join(lacking)}")
    for column, limit in MEDIAN_LIMITS.items():
        errors = spread(chosen, column)
        if errors is None:
            found.append(f"{SHOWN[column]}: nothing to compare")
        elif errors.median > limit:
            found.append(f"{SHOWN[column]}: the median error is {errors.median:.2f} %, over {limit:g} %")
    over = misses(chosen)
    explained = explained or {}
    for (case, column), value in over.items():
        if not explained.get((case, column), "").strip():
            found.append(f"{case}: {SHOWN[column]} is off by {value:+.2f} %, and no mechanism is written down")
    found += [f"{case}: {column} is explained, but no miss" for case, column in explained if (case, column) not in over]
    return found


def explanations(path: Path) -> dict[tuple[str, str], str]:
    """``<table>.misses.csv`` beside a table: case, column, mechanism. {} where there is none.

    Raises ValueError for other columns.
    """
    beside = path.with_suffix(".misses.csv")
    if not beside.exists():
        return {}
    with open(beside, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != ("case", "column", "mechanism"):
            raise ValueError(f"{beside}: the columns are case, column, mechanism")
        return {(row["case"], row["column"]): row["mechanism"] for row in reader}


def tables(folder: Path) -> list[Path]:
    """The tables of a folder, without the explanations beside them."""
    return sorted(path for path in folder.glob("*.csv") if not path.name.endswith(".misses.csv"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="summary.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--check", action="store_true", help="exit code 1 where the table is not accepted")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.table)
        explained = explanations(options.table)
    except (OSError, ValueError) as error:
        print(f"summary.py: {error}", file=sys.stderr)
        return 2
    print(summary(rows))
    if not options.check:
        return 0
    found = problems(rows, explained)
    print()
    print("\n".join(f"not accepted: {problem}" for problem in found) or "accepted")
    return 1 if found else 0


assert set(COVERED) | set(MEDIAN_LIMITS) | set(CASE_LIMITS) <= set(COLUMNS)

if __name__ == "__main__":
    sys.exit(main())
