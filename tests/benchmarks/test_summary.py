"""The table and its verdict: what is compared with what, and what is not accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import summary, table
from benchmarks.gpu.cases import cases, settings_of
from benchmarks.gpu.summary import explanations, problems

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "measured"
MiB = 2**20
TRACE, DEVICE = "trace_allocated_error_pct", "static_device_error_pct"


def line(**cells: Any) -> table.Row:
    """A line as the program writes it, its errors computed."""
    row: dict[str, Any] = {"status": "ok", "device": "cuda", "scale": "real", "compiled": False, **cells}
    return table.cells({**row, **table.errors(row)})


def good() -> list[table.Row]:
    """Every case of the catalogue, measured on a card that does nearly what was predicted."""
    rows = []
    for at, case in enumerate(cases()):
        figures: dict[str, Any] = {}
        if case.kind != "context":
            off = 1 + (at % 5 - 2) / 200  # -1 % to 1 %
            figures = {
                "traced_allocated_bytes": 1000 * MiB,
                "traced_workspace_bytes": 64 * MiB,
                "measured_allocated_bytes": int(1064 * MiB * off),
                "cublas_workspace_bytes": 64 * MiB,
            }
        if case.kind == "system":
            figures.update(
                static_device_bytes=2000 * MiB,
                static_device_low_bytes=1900 * MiB,
                static_device_high_bytes=2100 * MiB,
                measured_device_bytes=int(2000 * MiB * off),
            )
        facts = case.facts or {"optimizer": "adamw"}
        rows.append(
            line(
                case=case.name,
                kind=case.kind,
                family=case.family,
                compiled=case.compiled,
                gpu="H",
                torch="2.13",
                **settings_of(facts),
                **figures,
            )
        )
    return rows


def changed(case: str, **cells: Any) -> list[table.Row]:
    """The good table, with one line otherwise."""
    rows = good()
    [at] = [number for number, row in enumerate(rows) if row["case"] == case]
    row = {**rows[at], "compiled": rows[at]["compiled"] == "yes", **cells}
    rows[at] = table.cells({**row, **table.errors(row)})
    return rows


# -- errors


ERRORS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "a card's counters include the cuBLAS workspaces, predicted and measured": (
        {
            **{"traced_allocated_bytes": 900, "traced_workspace_bytes": 80, "measured_allocated_bytes": 1000},
            **{"cublas_workspace_bytes": 100},
        },
        {"trace_allocated_error_pct": -2.0, "trace_tensors_error_pct": 0.0},
    ),
    "reserved bytes include them as well, device bytes say all": (
        {
            **{"static_allocated_bytes": 900, "static_workspace_bytes": 100, "measured_allocated_bytes": 1000},
            **{"static_reserved_bytes": 1400, "measured_reserved_bytes": 2000},
            **{"static_device_bytes": 2310, "measured_device_bytes": 2200},
        },
        {"static_allocated_error_pct": 0.0, "static_reserved_error_pct": -25.0, "static_device_error_pct": 5.0},
    ),
    "the CPU has no workspaces": (
        {
            **{"device": "cpu", "traced_allocated_bytes": 900, "traced_workspace_bytes": 80},
            **{"measured_allocated_bytes": 1000},
        },
        {"trace_allocated_error_pct": -10.0, "trace_tensors_error_pct": -10.0},
    ),
    "what ran out of memory is compared with nothing": (
        {"status": "oom", "traced_allocated_bytes": 900, "measured_allocated_bytes": 1000},
        {},
    ),
    "what has no measurement is compared with nothing": ({"traced_allocated_bytes": 900}, {}),
}


@pytest.mark.parametrize(("row", "expected"), ERRORS.values(), ids=ERRORS)
def test_errors(row: dict[str, Any], expected: dict[str, float]) -> None:
    found = table.errors({"status": "ok", "device": "cuda", **row})
    assert {name: value for name, value in found.items() if value is not None} == pytest.approx(expected)


# -- the file


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    first = table.append(path, {"case": "a, b", "status": "ok", "error": 'said "no"\nand more', "compiled": True})
    second = table.append(path, {"case": "c", "trace_seconds": 1.23456, TRACE: -0.005})
    assert table.read(path) == [first, second]
    assert first["error"] == 'said "no" and more'
    assert (first["compiled"], second["trace_seconds"], second[TRACE]) == ("yes", "1.235", "-0.01")


def test_a_line_that_was_cut_off_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [table.append(path, {"case": name}) for name in ("a", "b")]
    for length in range(1, len(path.read_text().splitlines()[2])):
        cut = tmp_path / "cut.csv"
        cut.write_text(path.read_text()[:-length])
        assert table.read(cut) == rows[:1]


def test_a_column_that_is_not_the_tables_is_an_error() -> None:
    with pytest.raises(KeyError, match="no such column: peak"):
        table.cells({"peak": 1})


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("case,peak\na,1\n")
    with pytest.raises(ValueError, match="other columns"):
        table.read(tmp_path / "t.csv")


# -- the verdict


def test_a_good_table_is_accepted() -> None:
    assert problems(good()) == []


def biased(percent: float, kind: str, column: str) -> list[table.Row]:
    """The good table, everything of a kind measured as more than it is."""
    rows = []
    for row in good():
        if row["kind"] == kind or (kind == "any" and row[column]):
            row = {**row, column: str(int(float(row[column]) * (1 + percent / 100)))} if row[column] else row
            row = table.cells({**row, **table.errors({**row})})
        rows.append(row)
    return rows


NOT_ACCEPTED: dict[str, tuple[list[table.Row], str]] = {
    "a median trace error over 2 %": (
        biased(2.5, "any", "measured_allocated_bytes"),
        r"trace, allocated: the median error is 2\.\d\d %, over 2 %",
    ),
    "a median device error over 5 %": (
        biased(6, "system", "measured_device_bytes"),
        r"static, device: the median error is 5\.\d\d %, over 5 %",
    ),
    "a case that is off by more than 3 %": (
        changed("vit/b16/bf16", measured_allocated_bytes=1100 * MiB),
        r"vit/b16/bf16: trace, allocated is off by -3\.27 %, and no mechanism is written down",
    ),
    "a device figure that is off by more than 5 %": (
        changed("dit3d/before", measured_device_bytes=1500 * MiB),
        r"dit3d/before: static, device is off by \+33\.33 %",
    ),
    "too few cases": ([row for row in good() if row["kind"] != "model"], r"37 cases were measured, 80 are wanted"),
    "a setting that was not measured": (
        [row for row in good() if row["implementation"] != "fused"],
        r"no measured case with implementation fused",
    ),
    "a system that failed throughout": (
        [table.cells({**row, "status": "failed"}) if row["family"] == "lag-mode" else row for row in good()],
        r"no measured case with family lag-mode",
    ),
    "nothing static": (
        [table.cells({**row, DEVICE: ""}) for row in good()],
        r"static, device: nothing to compare",
    ),
    "two machines": (changed("vit/b16/bf16", gpu="A"), r"lines of different gpu: A, H"),
    "a CPU": ([table.cells({**row, "device": "cpu"}) for row in good()], r"figures of a CPU"),
    "small sizes": ([table.cells({**row, "scale": "small"}) for row in good()], r"small sizes"),
    "a case twice": ([*good(), good()[5]], r"is there 2 times"),
}


@pytest.mark.parametrize(("rows", "said"), NOT_ACCEPTED.values(), ids=NOT_ACCEPTED)
def test_what_is_not_accepted(rows: list[table.Row], said: str) -> None:
    import re

    assert any(re.search(said, problem) for problem in problems(rows)), problems(rows)


def test_compiled_code_is_not_held_against_a_trace_of_the_uncompiled() -> None:
    rows = changed("vit/b16/compiled", measured_allocated_bytes=700 * MiB)
    assert problems(rows) == []
    assert "compiled, traced eager" in summary.summary(rows)


def test_a_miss_whose_mechanism_is_known_is_accepted_and_a_stale_explanation_is_not(tmp_path: Path) -> None:
    rows = changed("vit/b16/bf16", measured_allocated_bytes=1100 * MiB)
    beside = tmp_path / "h200.misses.csv"
    beside.write_text(f"case,column,mechanism\nvit/b16/bf16,{TRACE},the kernel's padding\n")
    explained = explanations(tmp_path / "h200.csv")
    assert problems(rows, explained) == []
    assert problems(good(), explained) == [f"vit/b16/bf16: {TRACE} is explained, but no miss"]
    assert len(problems(rows, {("vit/b16/bf16", TRACE): " "})) == 1
    assert summary.tables(tmp_path) == []


def test_the_command_says_yes_or_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h200.csv"
    table.rewrite(path, good())
    assert summary.main([str(path), "--check"]) == 0
    assert capsys.readouterr().out.endswith("\naccepted\n")
    table.rewrite(path, changed("vit/b16/bf16", measured_allocated_bytes=1100 * MiB))
    assert summary.main([str(path)]) == 0
    assert summary.main([str(path), "--check"]) == 1
    assert "not accepted: vit/b16/bf16" in capsys.readouterr().out
    assert summary.main([str(tmp_path / "none.csv")]) == 2


def test_the_summary_has_median_p90_and_worst() -> None:
    rows = [
        line(
            case=f"vit/{at}",
            kind="model",
            family="vit",
            traced_allocated_bytes=100 + at,
            measured_allocated_bytes=100,
        )
        for at in range(1, 11)
    ]
    found = summary.spread(rows, TRACE)
    assert found is not None
    assert (found.count, found.median, found.p90) == (10, 5.5, 9)
    assert (found.worst, found.worst_case) == (10, "vit/10")
    assert "5.50%    9.00%   +10.00%  vit/10" in summary.summary(rows)
    assert summary.spread(rows, DEVICE) is None
    assert "0 cases: none" in summary.summary([])


def test_the_interval_of_the_static_estimate_is_held_against_the_card() -> None:
    rows = [
        line(case=name, kind="system", static_device_low_bytes=10, static_device_high_bytes=20, measured_device_bytes=m)
        for name, m in (("low", 9), ("edge", 10), ("in", 15), ("high", 21))
    ]
    assert summary.coverage(rows) == (2, 4)


def test_every_committed_table_is_accepted() -> None:
    wrong = {path.name: problems(table.read(path), explanations(path)) for path in summary.tables(MEASURED)}
    assert not {name: found for name, found in wrong.items() if found}
