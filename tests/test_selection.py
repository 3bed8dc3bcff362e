"""Which rules are on, and which findings a file's ignores leave."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.documents.node import Span
from memlint.plugin import ERROR, Finding
from memlint.rules_registry import NEVER_HIDDEN
from memlint.selection import Selected, known_rules, select_rules, without_ignored
from memlint.settings import Resolver, Settings, SettingsError


def settings(**options: Any) -> Settings:
    named = {key.replace("_", "-"): value for key, value in options.items()}
    return Resolver(named, isolated=True).for_path(".")


def chosen(**options: Any) -> list[Selected]:
    """The rules that are on, without those that always are."""
    return [selected for selected in select_rules(settings(**options)) if selected.info.code not in NEVER_HIDDEN]


def codes(**options: Any) -> list[str]:
    return [selected.info.code for selected in chosen(**options)]


def finding(code: str = "MEM201", path: str = "configs/a.yaml") -> Finding:
    return Finding(code, "token-explosion", ERROR, "message", Span(path, 1, 1, 1, 2))


def test_what_is_selected_is_on_and_what_is_ignored_is_not() -> None:
    assert codes(select=["MEM201", "MEM202"], ignore=["MEM202"]) == ["MEM201"]
    assert codes(select=["MEM201"], extend_select=["MEM301"]) == ["MEM201", "MEM301"]
    assert codes(select=["MEM2"], extend_ignore=["MEM2"]) == []
    assert codes(select=["token-explosion"]) == ["MEM201"]


def test_rules_in_preview_are_on_where_that_is_asked_for() -> None:
    assert codes(select=["MEM104"]) == []
    assert codes(select=["MEM104"], preview=True) == ["MEM104"]


def test_a_rule_gets_its_options_by_either_name() -> None:
    for name in ("MEM201", "token-explosion"):
        [selected] = chosen(select=["MEM201"], rules={name: {"factor": 2}})
        assert selected.options == {"factor": 2}
    [selected] = chosen(select=["MEM202"], rules={"MEM201": {"factor": 2}})
    assert selected.options == {}


@pytest.mark.parametrize("key", ["select", "ignore", "extend-select", "extend-ignore"])
def test_a_rule_that_does_not_exist_is_named_with_its_option(key: str) -> None:
    with pytest.raises(SettingsError, match=rf"{key}.*MEM99X"):
        codes(**{key: ["MEM99X"]})


def test_so_is_one_in_an_ignore_of_files_or_in_a_table() -> None:
    with pytest.raises(SettingsError, match=r"per-file-ignores.*MEM99X"):
        codes(per_file_ignores={"a.yaml": ["MEM99X"]})
    with pytest.raises(SettingsError, match=r"\[rules\.MEM99X\]"):
        codes(rules={"MEM99X": {"severity": "info"}})


def test_a_plugin_that_does_not_load_is_named() -> None:
    with pytest.raises(SettingsError, match=r"plugins.*no_such_module_of_rules"):
        known_rules(settings(plugins=["no_such_module_of_rules"]))


@pytest.mark.parametrize(
    ("ignores", "code", "kept"),
    [
        pytest.param({}, "MEM201", True, id="nothing is ignored"),
        pytest.param({"configs/*.yaml": ["MEM201"]}, "MEM201", False, id="its code"),
        pytest.param({"configs/*.yaml": ["MEM2"]}, "MEM201", False, id="a prefix of it"),
        pytest.param({"configs/*.yaml": ["token-explosion"]}, "MEM201", False, id="its name"),
        pytest.param({"configs/*.yaml": ["MEM3"]}, "MEM201", True, id="another code"),
        pytest.param({"other/*.yaml": ["MEM2"]}, "MEM201", True, id="in another folder"),
        pytest.param({"other/*.yaml": ["MEM3"], "configs/*": ["MEM2"]}, "MEM201", False, id="the second of two"),
        pytest.param({"configs/*": ["MEM2"], "**/a.yaml": ["MEM3"]}, "MEM201", False, id="the first of two"),
    ],
)
def test_what_the_ignores_of_a_file_leave(ignores: dict[str, list[str]], code: str, kept: bool) -> None:
    found = [finding(code), finding(code)]
    assert without_ignored(found, settings(per_file_ignores=ignores)) == (found if kept else [])


def test_ignores_are_those_of_the_file_that_a_finding_is_in() -> None:
    found = [finding(), finding(path="other/b.yaml"), finding()]
    assert without_ignored(iter(found), settings(per_file_ignores={"configs/*": ["ALL"]})) == [found[1]]


@pytest.mark.parametrize("code", sorted(NEVER_HIDDEN))
def test_faults_of_memlint_itself_stay(code: str) -> None:
    found = [finding(code)]
    assert without_ignored(found, settings(per_file_ignores={"configs/*": ["ALL"]})) == found
