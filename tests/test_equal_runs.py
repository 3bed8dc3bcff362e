"""Runs with equal facts are estimated once, and reported each on its own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import models
from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import EqualRuns, Estimates
from memlint.settings import Settings

CONFIG = """model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: 4
max_length: 512
gradient_checkpointing: false
output_dir: x
"""


def recordings_of(folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[list[object]]]:
    """(steps that were recorded, the findings of each file without its path)"""
    for number, text in enumerate(texts):
        (folder / f"f{number:02}.yaml").write_text(text)
    made = 0
    record = models.record

    def counted(*args: object, **options: object) -> object:
        nonlocal made
        found = record(*args, **options)  # type: ignore[arg-type]
        made += 1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(models, "record", counted)
        report = check_paths([str(folder)], Settings(budget="8GB"))
    said = [
        [(one.code, one.message, one.span.line, [fix.device_bytes_after for fix in one.fixes]) for one in run.findings]
        for run in report.runs
    ]
    return made, said


def test_equal_runs_are_recorded_once_and_each_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    once, [alone] = recordings_of(tmp_path / "one", [CONFIG], monkeypatch)
    moved = "# a comment moves every line\n" + CONFIG
    often, said = recordings_of(tmp_path / "many", [CONFIG, moved, CONFIG], monkeypatch)
    assert once > 1
    assert often == once
    assert said[0] == said[2] == alone
    assert [entry[:2] for entry in said[1]] == [entry[:2] for entry in alone]
    assert [entry[2] for entry in said[1]] == [entry[2] + 1 for entry in alone]


@pytest.mark.parametrize(
    "unresolved", ["", "per_device_eval_batch_size: ${oc.env:STEPS}\n"], ids=["all known", "a variable unknown"]
)
def test_tables_of_equal_runs_are_recorded_once(
    unresolved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    sharded = f"{CONFIG}{unresolved}fsdp: full_shard\n"  # over nobody says how many devices
    once, [alone] = recordings_of(tmp_path / "one", [sharded], monkeypatch)
    often, said = recordings_of(tmp_path / "many", [sharded, sharded], monkeypatch)
    assert "MEM007" in {code for code, *_ in alone}
    assert often == once > 1
    assert said == [alone, alone]


@pytest.mark.parametrize("other", [CONFIG.replace("512", "513"), CONFIG + "bf16: false\n"], ids=["length", "a default"])
def test_runs_that_differ_in_a_fact_or_in_where_it_comes_from_are_not_equal(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "both").mkdir()
    once, [alone] = recordings_of(tmp_path / "one", [other], monkeypatch)
    both, said = recordings_of(tmp_path / "both", [CONFIG, other], monkeypatch)
    assert said[1] == alone
    assert both > once


def test_equal_runs_are_recorded_once_however_many_others_lie_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "twice").mkdir()
    different = [CONFIG.replace("512", str(512 + number)) for number in range(EqualRuns.KEPT_RECORDINGS + 2)]
    once, alone = recordings_of(tmp_path / "once", different, monkeypatch)
    again, said = recordings_of(tmp_path / "twice", [*different, *different], monkeypatch)
    assert again == once
    assert said == [*alone, *alone]


def test_a_run_whose_recordings_are_gone_answers_as_before(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    [spec] = registry.specs(load(str(path)), ())
    runs = EqualRuns()
    first = runs.estimates(spec, "", ())
    estimate = first.own()
    expected = first.packed_bytes(estimate), first.first_pass_bytes()
    later = Estimates(spec)
    later.own()
    later._made.forget_recordings()
    assert (later.packed_bytes(estimate), later.first_pass_bytes()) == expected
    assert expected[0] > 0


def test_a_row_of_a_table_answers_no_config_that_may_ask_for_more_work(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    [spec] = registry.specs(load(str(path)), ())
    runs = EqualRuns()
    row = runs.estimates(spec, "", (), in_table=True)
    assert runs.estimates(spec, "", (), in_table=True)._made is row._made
    assert runs.estimates(spec, "", ())._made is not row._made
