"""The table: one CSV, a line per case, each line with the machine and the versions that it was measured with."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, str]

PHASES = ("forward", "backward", "optimizer_step")
OK, OOM, FAILED, UNTRACED = "ok", "oom", "failed", "untraced"
FINISHED = (OK, OOM)  # what a resumed run leaves as it is

CASE = ("case", "kind", "family", "scale", "device", "status", "error", "compiled", "probed")
SETTINGS = (
    *("precision", "optimizer", "implementation", "accumulation", "checkpointing", "attention", "ema", "batch"),
    "settings",
)
TIERS = ("allocated", "reserved", "device")
STATIC = (
    *(f"static_{tier}_bytes" for tier in TIERS),
    *("static_device_low_bytes", "static_device_high_bytes", "static_workspace_bytes"),
    *(f"static_{phase}_bytes" for phase in PHASES),
    "static_peak_phase",
)
TRACED = (
    *(f"traced_{tier}_bytes" for tier in TIERS),
    "traced_workspace_bytes",
    *(f"traced_{phase}_bytes" for phase in PHASES),
    "traced_peak_phase",
)
MEASURED = (
    *("measured_allocated_bytes", "measured_reserved_bytes", "measured_reserved_settled_bytes"),
    *("measured_device_bytes", "device_source"),
    *(f"measured_{phase}_bytes" for phase in PHASES),
    *("measured_peak_phase", "cublas_workspace_bytes", "context_bytes"),
    *("context_kernel_bytes", "context_matmul_bytes", "context_matmul_bf16_bytes", "context_conv_bytes"),
)
ERRORS = (
    *("trace_allocated_error_pct", "trace_tensors_error_pct", "trace_reserved_error_pct", "trace_device_error_pct"),
    *("static_allocated_error_pct", "static_tensors_error_pct", "static_reserved_error_pct", "static_device_error_pct"),
)
SECONDS = ("static_seconds", "trace_seconds", "measure_seconds", "step_seconds")
MACHINE = (
    *("machine", "gpu", "gpu_bytes", "capability", "driver", "cuda", "cudnn", "torch", "python", "memlint"),
    "measured_at",
)
COLUMNS = (*CASE, *SETTINGS, "parameters", *STATIC, *TRACED, *MEASURED, *ERRORS, *SECONDS, "history", *MACHINE)
# A table is of one machine: what must be the same in every line of it.
SAME = tuple(column for column in (*MACHINE, "scale", "device") if column != "measured_at")


def errors(row: Mapping[str, Any]) -> dict[str, float | None]:
    """How far each prediction is from what was measured, in percent of what was measured.

    PyTorch's counters of a card include the cuBLAS workspaces, which come from its allocator; in an Estimate they are a
    component of their own. So *allocated* and *reserved* are compared with the predicted workspaces added, and
    *tensors* without either's. The CPU has no such workspaces, no segments and no context: only tensors are compared.
    """
    found: dict[str, float | None] = dict.fromkeys(ERRORS)
    if row.get("status") != OK:
        return found
    on_card = row.get("device") == "cuda"
    own_workspace = number(row, "cublas_workspace_bytes") if on_card else 0.0
    measured = {tier: number(row, f"measured_{tier}_bytes") for tier in TIERS}
    for source, prefix in (("traced", "trace"), ("static", "static")):
        predicted = {tier: number(row, f"{source}_{tier}_bytes") for tier in TIERS}
        workspace = (number(row, f"{source}_workspace_bytes") or 0.0) if on_card else 0.0
        found[f"{prefix}_allocated_error_pct"] = _percent(predicted["allocated"], measured["allocated"], workspace)
        if measured["allocated"] is not None and own_workspace is not None:
            tensors = measured["allocated"] - own_workspace
            found[f"{prefix}_tensors_error_pct"] = _percent(predicted["allocated"], tensors)
        found[f"{prefix}_reserved_error_pct"] = _percent(predicted["reserved"], measured["reserved"], workspace)
        found[f"{prefix}_device_error_pct"] = _percent(predicted["device"], measured["device"])
    return found


def _percent(predicted: float | None, measured: float | None, beside: float = 0.0) -> float | None:
    if predicted is None or not measured:
        return None
    return 100.0 * (predicted + beside - measured) / measured


def number(row: Mapping[str, Any], column: str) -> float | None:
    """A cell as a number; None for an empty one."""
    value = row.get(column)
    return None if value in (None, "") else float(value)


def cells(row: Mapping[str, Any]) -> Row:
    """A row as text. Raises KeyError for a column that the table does not have."""
    unknown = set(row) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
    return {column: _text(column, row.get(column)) for column in COLUMNS}


def _text(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if column.endswith("_pct") else f"{value:.3f}"
    return " ".join(str(value).split())


def append(path: Path, row: Mapping[str, Any]) -> Row:
    """Add a line, on the disk before this returns; a new table gets its header first."""
    found = cells(row)
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(found)
        file.flush()
        os.fsync(file.fileno())
    return found


def read(path: Path) -> list[Row]:
    """The lines of a table; a last line that a killed run left unfinished is no line.

    Raises ValueError where the header is not this version's.
    """
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines(keepends=True)
    reader = csv.DictReader(lines)
    if lines and tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path} has other columns than this version of the benchmark writes")
    return list(reader)


def rewrite(path: Path, rows: Iterable[Row]) -> None:
    """Put these lines in place of a table's, in one go."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
