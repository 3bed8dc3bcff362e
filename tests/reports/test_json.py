"""The JSON report against its schema and the contract's example."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.check import check_paths
from memlint.documents.node import Unresolved
from memlint.meta.dims import Dim
from memlint.meta.tape import COMPONENTS
from memlint.reports import json as json_report
from memlint.reports.report import Report

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())

# Names of version 1, by place: other programs rely on each of them.
NAMES = {
    "": "version tool files summary",
    "tool": "name version",
    "files.0": "path run family model estimate budget measured findings",
    "files.0.model": "name parameters trainable_parameters parts",
    "files.0.estimate": "basis verdict peak_phase allocated_bytes reserved_bytes device_bytes saved_bytes attention "
    "low_bytes high_bytes interval components phases assumptions unresolved",
    "files.0.estimate.interval": "allocated reserved device",
    "files.0.estimate.components.0": "name bytes parts",
    "files.0.estimate.components.1.parts.0": "name bytes formula facts",
    "files.0.estimate.components.1.parts.0.facts.0": "key value line",
    "files.0.estimate.phases": "forward backward optimizer_step evaluation",
    "files.0.estimate.assumptions.0": "fact value reason",
    "files.0.estimate.unresolved.0": "key line reason",
    "files.0.budget": "bytes source headroom_bytes",
    "files.0.findings.0": "code name severity message path line column end_line end_column key related bytes "
    "confidence fingerprint url fixes",
    "files.0.findings.0.fixes.0": "title safety edits device_bytes_after saved_bytes fits",
    "files.0.findings.0.fixes.0.edits.0": "path line column end_line end_column text",
    "summary": "files errors warnings infos fixable seconds",
}


def at(value: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        value = value[int(part)] if part.isdigit() else value[part]
    return value


def test_report_is_valid_and_the_schema_too(report: Report) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(json.loads(json_report.render(report)))
    Draft202012Validator(SCHEMA).validate(json.loads(json_report.render(Report((), 0.0))))


@pytest.mark.parametrize("place", sorted(NAMES))
def test_names_are_those_of_version_1(report: Report, place: str) -> None:
    assert list(at(json_report.as_dict(report), place)) == NAMES[place].split()


def test_components_of_the_schema_are_those_of_the_tape() -> None:
    assert tuple(SCHEMA["$defs"]["component"]["properties"]["name"]["enum"]) == COMPONENTS


def test_figures_add_up(report: Report) -> None:
    entry = json_report.as_dict(report)["files"][0]
    estimate = entry["estimate"]
    assert sum(component["bytes"] for component in estimate["components"]) == estimate["device_bytes"]
    assert entry["budget"]["headroom_bytes"] == entry["budget"]["bytes"] - estimate["device_bytes"]
    assert estimate["components"][1]["parts"][0]["facts"] == [
        {"key": "dataloader.batch_size", "value": 128, "line": 3},
        {"key": "model.num_group", "value": 64, "line": None},
    ]


def test_an_unknown_model_has_no_estimate_and_no_headroom(report: Report) -> None:
    entry = json_report.as_dict(report)["files"][1]
    assert entry["estimate"] is None
    assert entry["unknown"]
    assert "unknown" not in json_report.as_dict(report)["files"][0]
    assert entry["budget"]["headroom_bytes"] is None
    assert entry["model"] == {"name": None, "parameters": None, "trainable_parameters": None, "parts": []}


def test_summary_counts(report: Report) -> None:
    assert json_report.as_dict(report)["summary"] == {
        "files": 2,
        "errors": 1,
        "warnings": 1,
        "infos": 1,
        "fixable": 2,
        "seconds": 0.0815,
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(Unresolved("a call")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_any_fact_can_be_written(value: object) -> None:
    written = json.loads(json.dumps(json_report.plain(value), allow_nan=False))
    if isinstance(value, (str, bool, int, type(None))) or (isinstance(value, float) and math.isfinite(value)):
        assert written == value


def test_a_dimension_is_a_plain_number() -> None:
    assert type(json_report.plain(Dim(4, "B", (("B", "micro_batch_size"),)))) is int


def test_lines_are_those_of_the_runs_own_file(report: Report) -> None:
    run = report.runs[0]
    elsewhere = run._replace(
        facts={name: fact._replace(line=7, path="configs/group.yaml") for name, fact in run.facts.items()},
        unresolved=(run.unresolved[0]._replace(path="configs/group.yaml"),),
    )
    written = json_report.as_dict(Report((elsewhere,), 0.0))
    Draft202012Validator(SCHEMA).validate(written)
    assert [fact["line"] for fact in at(written, "files.0.estimate.components.1.parts.0.facts")] == [None, None]
    assert at(written, "files.0.estimate.unresolved.0.line") is None


def test_each_run_says_why_it_is_unknown_where_one_line_of_a_base_is_why(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("model = dict(type='Nobodys', backbone=dict(type='ResNet', depth=50))\n")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(
            "_base_ = './base.py'\noptim_wrapper = dict(optimizer=dict(type='SGD'))\ntrain_cfg = dict(max_epochs=1)\n"
        )
    files = json_report.as_dict(check_paths([str(tmp_path)]))["files"]
    runs = [entry for entry in files if entry["path"].endswith(("a.py", "b.py"))]
    assert [entry["estimate"] for entry in runs] == [None, None]
    assert sorted(len(entry["findings"]) for entry in runs) == [0, 1], "one place is spoken of once"
    assert all("Nobodys" in entry["unknown"] for entry in runs)
