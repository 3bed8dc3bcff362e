"""Settings at their bounds: long reasons, files that extend one another, tables that are none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from memlint.setting_values import check_values
from memlint.settings import Resolver, SettingsError


@pytest.fixture(autouse=True)
def _no_outer_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def refused(folder: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        Resolver().for_path(str(folder / "a.yaml"))
    return str(caught.value)


def test_a_reason_is_cut_where_it_is_too_long() -> None:
    assert SettingsError("x" * 500).reason == "x" * 500
    assert SettingsError("x" * 501).reason == "x" * 497 + "..."
    assert str(SettingsError("why", "memlint.toml:3")) == "memlint.toml:3: why"
    assert str(SettingsError("why")) == "why"


@pytest.mark.parametrize("key", ["probe", "rules", "per-file-ignores", "budgets"])
@pytest.mark.parametrize("value", [3, "x", True, 1.5])
def test_a_table_that_is_none_is_refused(key: str, value: object) -> None:
    assert check_values({key: value}) is not None


POLICY = {"paths": ["a"], "action": "warn"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        pytest.param("work-limit", 1, None, id="a million steps are the least"),
        pytest.param("work-limit", 0, "takes 1 to 1,000,000 million steps", id="none are too few"),
        pytest.param("work-limit", 1_000_000, None, id="the most steps"),
        pytest.param("work-limit", 1_000_001, "takes 1 to 1,000,000 million steps", id="more than the most"),
        pytest.param("work-limit", True, "takes a whole number of million steps, not true/false", id="a flag"),
        pytest.param("select", ["MEM2"] * 1000, None, id="as many entries as a list may have"),
        pytest.param("select", ["MEM2"] * 1001, "takes at most 1,000 entries", id="one entry more"),
        pytest.param("rules", {f"MEM{n}": {} for n in range(1000)}, None, id="as many entries as a table may have"),
        pytest.param("rules", {f"MEM{n}": {} for n in range(1001)}, "takes at most 1,000 entries", id="one row more"),
        pytest.param("rules", {"MEM201": 3}, "'MEM201' takes a table, not a number", id="options that are no table"),
        pytest.param("rules", {"MEM201": "x"}, "'MEM201' takes a table, not text", id="options that are a word"),
        pytest.param("gpu", "no-such-card", "not in the catalogue of GPUs", id="a card that nobody knows"),
        pytest.param("report", ["json=a\0b"], "must not hold a null character", id="a null in a report's path"),
        pytest.param("report", [3], "takes text, not a number", id="a report that is a number"),
        pytest.param("policies", [{**POLICY, "increase-percent": 0}], None, id="no increase at all"),
        pytest.param("policies", [{**POLICY, "increase-percent": 0.5}], None, id="half a percent"),
        pytest.param("policies", [{**POLICY, "increase-percent": -0.5}], "0 or more", id="less than nothing"),
        pytest.param("policies", [{**POLICY, "increase-percent": 999_999}], None, id="ten thousand times"),
        pytest.param("policies", [{**POLICY, "increase-percent": 1_000_000}], "0 or more", id="beyond any sense"),
    ],
)
def test_a_value_at_its_bound(key: str, value: object, said: str | None) -> None:
    wrong = check_values({key: value})
    if said is None:
        assert wrong is None
    else:
        assert wrong is not None
        assert said in wrong[0]


def test_an_empty_table_is_one() -> None:
    assert check_values({"probe": {}, "rules": {}, "per-file-ignores": {}}) is None


def test_files_that_extend_one_another_in_a_ring_are_refused(tmp_path: Path) -> None:
    (tmp_path / "memlint.toml").write_text('extend = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extend = "c.toml"\n')
    (tmp_path / "c.toml").write_text('extend = "b.toml"\n')
    assert "'extend' leads back to b.toml" in refused(tmp_path)


def test_16_files_extend_one_another_and_no_more(tmp_path: Path) -> None:
    names = ["memlint.toml", *(f"s{number}.toml" for number in range(1, 17))]
    for name, following in pairwise(names):
        (tmp_path / name).write_text(f'extend = "{following}"\n')
    (tmp_path / names[-1]).write_text('budget = "1GB"\n')
    assert "more than 16 files extend one another" in refused(tmp_path)
    (tmp_path / names[-2]).write_text('budget = "1GB"\n')
    assert Resolver().for_path(str(tmp_path / "a.yaml")).budget == "1GB"


def test_a_project_file_that_is_extended_needs_settings(tmp_path: Path) -> None:
    (tmp_path / "memlint.toml").write_text('extend = "sub/pyproject.toml"\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert "which has no [tool.memlint]" in refused(tmp_path)
    (tmp_path / "sub" / "pyproject.toml").write_text('[tool.memlint]\nbudget = "2GB"\n')
    assert Resolver().for_path(str(tmp_path / "a.yaml")).budget == "2GB"


def test_what_is_extended_has_to_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "memlint.toml").write_text('extend = "sub"\n')
    assert "which does not exist" in refused(tmp_path)
    (tmp_path / "sub").mkdir()
    assert "which is no regular file" in refused(tmp_path)
