"""What earlier checks estimated is used again where, and only where, a check of its own would find the same."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memlint import cache, models, work
from memlint.cache import FILE, MOST, Cache
from memlint.check import check_paths
from memlint.estimates import kept_in
from memlint.reports import json as as_json
from memlint.reports.report import Report
from memlint.settings import Resolver

CONFIG = """model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: 4
max_length: 512
gradient_checkpointing: false
output_dir: x
"""
SMALLER = CONFIG.replace("batch_size: 4", "batch_size: 2")
ZERO = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}\n'


class Checks:
    """Checks of one folder, as separate invocations that share a cache, and how many steps each had to record."""

    def __init__(self, tree: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = tree
        self.folder = folder
        self.recorded = 0
        record = models.record

        def counted(*arguments: object, **options: object) -> object:
            self.recorded += 1
            return record(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(models, "record", counted)

    def write(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.tree / f"{name}.yaml").write_text(text)

    def __call__(self, cached: bool = True, **options: Any) -> Report:
        self.recorded = 0
        resolver = Resolver({"budget": "8GB", **options})
        if not cached:
            return check_paths([str(self.tree)], resolver)
        with kept_in(str(self.folder)):
            return check_paths([str(self.tree)], resolver)


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").mkdir()
    return Checks(tree, tmp_path / "cache", monkeypatch)


def said(report: Report) -> str:
    return as_json.render(report._replace(seconds=0.0, rule_seconds={}))


def test_a_second_check_records_nothing_and_says_the_same(checks: Checks) -> None:
    checks.write(a=CONFIG, b=SMALLER)
    first = checks()
    assert checks.recorded > 2
    assert any(finding.fixes for finding in first.findings)
    again = checks()
    assert checks.recorded == 0
    assert said(again) == said(first) == said(checks(cached=False))


def test_of_many_configs_only_the_one_that_changed_is_estimated_again(checks: Checks) -> None:
    checks.write(a=CONFIG, b=SMALLER)
    checks()
    whole = checks.recorded
    checks.write(a=CONFIG.replace("512", "768"))
    changed = checks()
    assert 0 < checks.recorded < whole
    assert said(changed) == said(checks(cached=False))


def test_what_is_no_fact_changes_no_estimate_and_moves_the_findings(checks: Checks) -> None:
    checks.write(a=CONFIG)
    before = checks()
    checks.write(a="# one more line\n" + CONFIG + "run_name: another\n")
    after = checks()
    assert checks.recorded == 0
    assert [one.span.line for one in after.findings] == [one.span.line + 1 for one in before.findings]
    assert said(after) == said(checks(cached=False))


def _companion(tree: Path) -> None:
    (tree / "ds.json").write_text(ZERO.replace("3", "2"))


def _pins(tree: Path) -> None:
    (tree / "requirements.txt").write_text("transformers==4.40.0\ntorch==2.0.1\ntrl==0.9.4\ndeepspeed==0.12.0\n")


def _launch(tree: Path) -> None:
    (tree / "train.sh").write_text("accelerate launch --num_processes 4 sft.py --config a.yaml\n")


def _budget(tree: Path) -> None:
    (tree / "memlint.toml").write_text('gpu = "t4"\n[rules.MEM206]\nseverity = "info"\n')


def _model(tree: Path, layers: int = 3) -> None:
    (tree / "tiny").mkdir(exist_ok=True)
    (tree / "tiny" / "config.json").write_text(
        '{"model_type": "qwen2", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, '
        f'"intermediate_size": 512, "vocab_size": 1000, "num_hidden_layers": {layers}}}'
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_companion, id="the DeepSpeed config that it names"),
        pytest.param(_pins, id="releases that a file above it pins"),
        pytest.param(_launch, id="the command that starts it"),
        pytest.param(_budget, id="settings: a card, a rule's severity"),
        pytest.param(_model, id="the model's own config.json"),
    ],
)
def test_whatever_changes_around_a_config_is_heeded(change: Callable[[Path], None], checks: Checks) -> None:
    _model(checks.tree, layers=2)
    (checks.tree / "ds.json").write_text(ZERO)
    checks.write(a=CONFIG.replace("Qwen/Qwen2.5-0.5B", "./tiny") + "deepspeed: ds.json\n")
    before = said(checks())
    change(checks.tree)
    after = said(checks())
    assert after == said(checks(cached=False))
    assert after != before


def test_formulas_are_kept_beside_plain_estimates(checks: Checks) -> None:
    checks.write(a=CONFIG)
    checks()
    with kept_in(str(checks.folder)):
        symbolic = check_paths([str(checks.tree)], Resolver({"budget": "8GB"}), formulas=True)
        checks.recorded = 0
        again = check_paths([str(checks.tree)], Resolver({"budget": "8GB"}), formulas=True)
    assert checks.recorded == 0
    assert said(again) == said(symbolic)
    assert any(part.formula for part in again.runs[0].estimate.components[0].parts)  # type: ignore[union-attr]


def test_a_file_whose_work_is_limited_ends_where_it_did(checks: Checks) -> None:
    """What an earlier check found costs what it cost then."""
    checks.write(a=CONFIG)
    spent = []
    for cached in (True, True, False):
        with work.limited(1 << 40) as meter:
            checks(cached)
        spent.append(meter.used)
    assert spent[0] == spent[1] == spent[2]


def test_a_limit_that_ended_an_estimate_does_not_shorten_the_next_one(checks: Checks) -> None:
    checks.write(a=CONFIG)
    short = checks(True, **{"work-limit": 1})
    assert any(one.code == "MEM011" for one in short.findings) or short.runs[0].estimate is not None
    assert said(checks()) == said(checks(cached=False))


def test_another_memlint_has_its_own_answers(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.write(a=CONFIG)
    checks()
    monkeypatch.setattr(cache, "_this_memlint", lambda: "another")
    checks()
    assert checks.recorded > 0


def test_a_file_of_memlint_that_changed_makes_it_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules").mkdir()
    rule = tmp_path / "rules" / "mem999.py"
    rule.write_text("A = 1\n")
    monkeypatch.setattr("memlint.__path__", [str(tmp_path)])
    before = cache._this_memlint()
    assert cache._this_memlint() == before
    rule.write_text("A = 22\n")
    assert cache._this_memlint() != before


# -- a cache that cannot be used costs nothing but time --------------------------------------------------------------


def _garbage(folder: Path) -> None:
    (folder / FILE).write_bytes(b"no database" * 1000)


def _truncated(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[: len(data) // 2])


def _entries(folder: Path, data: bytes) -> None:
    with sqlite3.connect(folder / FILE) as database:
        database.execute("UPDATE runs SET answers = ?", (data,))
    database.close()


class _Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("harm-was-done",))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_garbage, id="no database"),
        pytest.param(_truncated, id="half a database"),
        pytest.param(lambda folder: _entries(folder, b"\x80\x04garbage"), id="entries that are garbage"),
        pytest.param(lambda folder: _entries(folder, b""), id="entries that are empty"),
        pytest.param(lambda folder: _entries(folder, pickle.dumps(7)), id="entries of another shape"),
        pytest.param(lambda folder: _entries(folder, pickle.dumps(_Harmful())), id="entries that would run something"),
        pytest.param(lambda folder: shutil.rmtree(folder), id="gone"),
        pytest.param(lambda folder: (folder / FILE).chmod(0o666), id="a file that others may write"),
    ],
)
def test_a_damaged_cache_is_as_none(
    damage: Callable[[Path], None], checks: Checks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checks.write(a=CONFIG)
    expected = said(checks())
    damage(checks.folder)
    assert said(checks()) == expected
    assert checks.recorded > 0
    assert not (tmp_path / "harm-was-done").exists()


def test_an_entry_makes_nothing_but_parts_of_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that was put there as ours are."""
    monkeypatch.chdir(tmp_path)
    ours = Cache.of(str(tmp_path / "c"))
    assert ours is not None
    ours.put("run", _Harmful())
    assert ours.get("run") is None
    assert not (tmp_path / "harm-was-done").exists()
    ours.close()


def test_a_folder_that_is_a_link_or_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(mine)
    assert Cache.of(str(tmp_path / "link")) is None
    mine.chmod(0o777)
    assert Cache.of(str(mine)) is None
    mine.chmod(0o700)
    found = Cache.of(str(mine))
    assert found is not None
    found.close()


def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / FILE).symlink_to(target)
    assert Cache.of(str(folder)) is None
    assert target.read_text() == "kept"


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(f"CREATE VIEW runs AS {ENDLESS} 'x' || i AS run, i AS answers FROM n", id="a view"),
        pytest.param(
            "CREATE TABLE runs (run TEXT PRIMARY KEY, answers BLOB);"
            f"CREATE TRIGGER t AFTER INSERT ON runs BEGIN {ENDLESS} count(*) FROM n; END",
            id="a trigger",
        ),
    ],
)
def test_a_database_with_queries_of_its_own_is_made_anew(tmp_path: Path, said: str) -> None:
    with sqlite3.connect(tmp_path / FILE) as made:
        made.executescript(said)
    made.close()
    found = Cache.of(str(tmp_path))
    assert found is not None
    assert found.get("a run") is None
    found.put("a run", 1)
    found.close()
    again = Cache.of(str(tmp_path))
    assert again is not None
    assert again.get("a run") == 1


@pytest.mark.parametrize("name", ["", "/dev/null/x", "/proc/none/x"], ids=["none", "below a device", "where none is"])
def test_where_no_folder_can_be_there_is_no_cache(name: str) -> None:
    assert Cache.of(name) is None


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    found = Cache.of(str(tmp_path / "a" / "b"))
    assert found is not None
    found.put("run", (["fact"], []))
    found.close()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_two_at_once_find_what_the_other_one_saved(tmp_path: Path) -> None:
    one, other = Cache.of(str(tmp_path / "c")), Cache.of(str(tmp_path / "c"))
    assert one is not None
    assert other is not None
    one.put("run", (["fact"], []))
    assert one.get("run") == (["fact"], [])
    assert other.get("run") is None
    one.save()
    assert other.get("run") == (["fact"], [])
    one.close()
    other.close()


def test_while_another_process_holds_it_a_check_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WAIT_SECONDS", 0.01)
    ours = Cache.of(str(tmp_path / "c"))
    assert ours is not None
    holder = sqlite3.connect(tmp_path / "c" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    ours.put("run", 1)
    ours.save()
    holder.execute("ROLLBACK")
    holder.close()
    assert ours.get("run") is None
    ours.close()


def test_the_oldest_go_where_there_are_too_many(tmp_path: Path) -> None:
    ours = Cache.of(str(tmp_path / "c"))
    assert ours is not None
    for number in range(MOST + 10):
        ours.put(f"run {number}", number)
    ours.save()
    assert ours.get("run 9") is None
    assert ours.get("run 10") == 10
    assert ours.get(f"run {MOST + 9}") == MOST + 9
    ours.close()
