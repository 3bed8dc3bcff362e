"""The table of all estimates says what changed, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import frozen


def run(size: int, **more: Any) -> dict[str, Any]:
    figures = {"bytes": [size] * 4, "intervals": [size] * 6, "components": {"parameters": size}, "phases": {}}
    return {"family": "trl", "parameters": [1, 1], **figures, **more}


UNKNOWN = {"family": "trl", "unknown": "the model is not stated"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(run(100), run(100), "", id="the same figures"),
        pytest.param(run(100), run(110), "100 -> 110 bytes (+10.00%): parameters +10", id="a component that grew"),
        pytest.param(run(100), run(100, intervals=[0] * 6), "100 -> 100 bytes (+0.00%): intervals", id="an interval"),
        pytest.param(UNKNOWN, run(100), "won: 100 bytes (was: the model is not stated)", id="an answer for UNKNOWN"),
        pytest.param(run(100), UNKNOWN, "LOST: the model is not stated", id="UNKNOWN for an answer"),
        pytest.param(
            UNKNOWN,
            {**UNKNOWN, "unknown": "no length"},
            "reason: the model is not stated -> no length",
            id="another reason",
        ),
    ],
)
def test_a_change_is_said_in_a_line(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    assert frozen.change(before, after) == said
    assert frozen.compare({"a": before}, {"a": after}) == ({"trl": [("a", said)]} if said else {})


def test_runs_that_came_and_went_are_changes() -> None:
    assert frozen.compare({"a": run(1)}, {"b": run(1)}) == {"trl": [("a", "GONE"), ("b", "new")]}


def test_the_exit_code_says_whether_anything_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"one.json": {"a": run(100)}, "other.json": {"a": run(110)}}
    for name, table in tables.items():
        (tmp_path / name).write_text(json.dumps(table))
    one, other = (str(tmp_path / name) for name in tables)
    assert frozen.main(["compare", one, one]) == 0
    assert frozen.main(["compare", one, other]) == 1
    assert "1 runs: 1 changed" in capsys.readouterr().out


def test_the_table_has_an_entry_of_every_run_with_its_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks.accuracy import runner

    monkeypatch.setattr(frozen, "FOLDERS", ("examples/video_llm",))
    monkeypatch.setattr(runner, "load_cases", lambda: [])
    assert frozen.main(["write", str(tmp_path / "table.json")]) == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert any(name.startswith("video_llm: config.yaml") for name in table)
    for figures in table.values():
        assert sum(figures["components"].values()) == figures["bytes"][2]
