"""Settings: where they come from, what they may be, and that the schema says the same."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.setting_values import KEYS, check_values
from memlint.settings import Resolver, Settings, SettingsError, allowance

SCHEMA = json.loads((Path(__file__).parent.parent / "schemas" / "settings.schema.json").read_text())


@pytest.fixture(autouse=True)
def _no_outer_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def budget(folder: Path, **given_: Any) -> str:
    return Resolver(**given_).for_path(str(folder)).budget


# -- where settings come from


def test_nothing_given_means_defaults(tmp_path: Path) -> None:
    assert Resolver().for_path(str(tmp_path)) == Settings()


def test_precedence_of_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project" / "configs"
    folder.mkdir(parents=True)
    write(tmp_path / "xdg" / "memlint" / "memlint.toml", 'budget = "1GB"')
    assert budget(folder) == "1GB"
    write(tmp_path / "pyproject.toml", '[tool.memlint]\nbudget = "2GB"')
    assert budget(folder) == "2GB"
    write(tmp_path / "project" / "pyproject.toml", '[project]\nname = "no table here"')
    assert budget(folder) == "2GB"
    write(tmp_path / "project" / "pyproject.toml", '[tool.memlint]\nbudget = "3GB"')
    assert budget(folder) == "3GB"
    write(tmp_path / "project" / "memlint.toml", 'budget = "4GB"')
    assert budget(folder) == "4GB"
    write(tmp_path / "project" / ".memlint.toml", 'budget = "5GB"')
    assert budget(folder) == "5GB"
    write(folder / "memlint.toml", 'gpu = ""'.replace('gpu = ""', "preview = true"))
    assert budget(folder) == ""  # the nearest file alone counts
    elsewhere = write(tmp_path / "elsewhere" / "lint.toml", 'budget = "6GB"')
    monkeypatch.setenv("MEMLINT_CONFIG", str(elsewhere))
    assert budget(folder) == "6GB"
    other = write(tmp_path / "elsewhere" / "other.toml", 'budget = "7GB"')
    assert budget(folder, config=str(other)) == "7GB"
    assert budget(folder, config=str(other), options={"budget": "8GB"}) == "8GB"
    assert budget(folder, isolated=True) == ""


def test_nearest_to_the_file_not_to_the_working_directory(tmp_path: Path) -> None:
    write(tmp_path / "a" / "memlint.toml", 'budget = "1GB"')
    write(tmp_path / "b" / "memlint.toml", 'budget = "2GB"')
    resolver = Resolver()
    assert resolver.for_path(str(tmp_path / "a" / "x.yaml")).budget == "1GB"
    assert resolver.for_path(str(tmp_path / "b" / "x.yaml")).budget == "2GB"


def test_extend_inherits_and_the_nearer_value_wins(tmp_path: Path) -> None:
    write(
        tmp_path / "base.toml",
        'budget = "1GB"\nfail-on = "info"\nextend-select = ["MEM2"]\n[rules.MEM201]\nseverity = "info"\nfactor = 2\n',
    )
    write(
        tmp_path / "a" / "memlint.toml",
        'extend = "../base.toml"\nbudget = "2GB"\nextend-select = ["MEM3"]\n[rules.MEM201]\nseverity = "error"\n',
    )
    found = Resolver().for_path(str(tmp_path / "a"))
    assert (found.budget, found.fail_on) == ("2GB", "info")
    assert found.extend_select == ("MEM2", "MEM3")
    assert found.rules == {"MEM201": {"severity": "error", "factor": 2}}
    assert found.files == (os.path.join("a", "memlint.toml"), "base.toml")
    assert found.origins["budget"] == os.path.join("a", "memlint.toml")
    assert found.origins["fail-on"] == "base.toml"


def test_patterns_belong_to_the_folder_of_their_file(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'exclude = ["old/"]')
    write(tmp_path / "a" / "memlint.toml", 'extend = "../base.toml"\n[per-file-ignores]\n"x/*.yaml" = ["MEM2"]')
    found = Resolver({"extend-exclude": ["tmp"]}).for_path(str(tmp_path / "a"))
    assert [pattern.base for pattern in found.exclude] == [str(tmp_path)]
    assert found.per_file_ignores[0][0].base == str(tmp_path / "a")
    assert found.extend_exclude[0].base == str(tmp_path)  # the command line's: the working directory


def test_pyproject_without_our_table_is_not_parsed(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "this is = = not TOML")
    assert Resolver().for_path(str(tmp_path)) == Settings()


# -- what is wrong with them

WRONG = [
    pytest.param('budgt = "1GB"', "memlint.toml:1: unknown setting 'budgt', did you mean 'budget'?", id="unknown key"),
    pytest.param('\nfail_on = "info"', "memlint.toml:2: unknown setting 'fail_on', did you mean 'fail-on'", id="snake"),
    pytest.param("budget = 16", "'budget' takes text, not a number", id="a size without unit"),
    pytest.param('budget = "lots"', "'lots' is not a size", id="no size"),
    pytest.param("preview = 1", "takes true or false, not a number", id="one for true"),
    pytest.param('fail-on = "never"', "takes error, warning, info, tight or unknown, not 'never'", id="unknown level"),
    pytest.param('select = "MEM2"', "takes a list, not text", id="text for a list"),
    pytest.param('select = [\n "MEM2",\n 3,\n]', "memlint.toml:3: setting 'select' entry 2 takes text", id="entry"),
    pytest.param('[[budgets]]\npaths = ["a"]', "needs the key 'budget'", id="half a budget"),
    pytest.param(
        '[[budgets]]\npaths = ["a"]\nbudgit = "1GB"', ":3: setting 'budgets' entry 1 has no key 'budgit'", id="typo"
    ),
    pytest.param('[rules.MEM201]\nseverity = "fatal"', ":2: setting 'rules' 'MEM201' 'severity' takes", id="severity"),
    pytest.param('report = ["yaml=x"]', "is not FORMAT=FILE", id="report format"),
    pytest.param('override = ["a.b"]', "'a.b' is not KEY=VALUE", id="override without a value"),
    pytest.param('[probe]\nmodell = "x"', "has no key 'modell', did you mean 'model'?", id="probe key"),
    pytest.param('extend = "none.toml"', "'extend' names none.toml, which does not exist", id="extend leads nowhere"),
    pytest.param('extend = "memlint.toml"', "'extend' leads back to memlint.toml", id="extend itself"),
    pytest.param("select = [", "is not valid TOML", id="no TOML"),
    pytest.param(
        'output-format = "xml"',
        "takes full, concise, json, json-lines, github, gitlab, junit, markdown, rdjson or sarif, not 'xml'",
        id="format not built",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_settings_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "memlint.toml", text)
    with pytest.raises(SettingsError) as raised:
        Resolver().for_path(str(tmp_path))
    assert message in str(raised.value)
    assert "memlint.toml" in str(raised.value)


def test_pyproject_errors_name_the_line_in_pyproject(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[project]\nname = "x"\n\n[tool.memlint]\nbugdet = "1GB"\n')
    with pytest.raises(SettingsError, match=r"pyproject\.toml:5: unknown setting 'bugdet', did you mean 'budget'"):
        Resolver().for_path(str(tmp_path))


def test_isolated_and_config_contradict(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be combined"):
        Resolver(config="x.toml", isolated=True)


def test_a_missing_config_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"x\.toml: cannot be read"):
        Resolver(config="x.toml")


# -- budgets


def test_budget_of_a_file(tmp_path: Path) -> None:
    write(
        tmp_path / "memlint.toml",
        'budget = "8GB"\n[[budgets]]\npaths = ["big/"]\nbudget = "80GB"\n'
        '[[budgets]]\npaths = ["big/small.yaml"]\nbudget = "4GB"\n',
    )
    resolver = Resolver()

    def size(path: str) -> tuple[int | None, str]:
        allowed = allowance(resolver.for_path(path), path)
        return allowed.size_bytes, allowed.source

    assert size("x.yaml") == (8 << 30, "memlint.toml: budget = 8GB")
    assert size("big/x.yaml") == (80 << 30, "memlint.toml: budgets, big/: 80GB")
    assert size("big/small.yaml")[0] == 4 << 30
    given_ = Resolver({"budget": "16GB", "host-budget": "64GB"})
    allowed = allowance(given_.for_path("big/x.yaml"), "big/x.yaml")
    assert allowed == (16 << 30, "--budget 16GB", "", 64 << 30)


# -- the schema

GOOD = {
    "extend": "x.toml",
    "budget": "16GB",
    "host-budget": "80g",
    "model-config": "models/x.json",
    "budgets": [{"paths": ["a"], "budget": "1GiB"}],
    "override": ["a=1", "~b"],
    "select": ["MEM2"],
    "ignore": [],
    "extend-select": ["ALL"],
    "extend-ignore": ["MEM201"],
    "per-file-ignores": {"a/*.yaml": ["MEM2"]},
    "preview": True,
    "fail-on": "warning",
    "strict": True,
    "exit-zero": False,
    "output-format": "json",
    "output-file": "x.json",
    "report": ["github=x"],
    "no-ignores": True,
    "require-ignore-reason": True,
    "exclude": ["a"],
    "extend-exclude": ["b"],
    "force-exclude": True,
    "statistics": True,
    "show-files": False,
    "quiet": True,
    "verbose": True,
    "color": "never",
    "plugins": ["mine"],
    "rules": {"MEM201": {"severity": "info", "factor": 3}},
    "probe": {"model": "m:f", "batch": "m:g", "step": "m:h"},
    "families": {"x": {}},
    "policies": [{"paths": ["a/**"], "increase": "1GiB", "increase-percent": 5, "over-budget": "oom"}],
    "waivers": [{"paths": ["a"], "owner": "@a", "reason": "new hardware", "until": "2027-03-31"}],
    "baseline": "known.json",
    "write-baseline": "known.json",
    "add-ignore": "known since spring",
    "changed-since": "main",
    "work-limit": 60,
}


def test_schema_and_code_know_the_same_keys() -> None:
    assert set(SCHEMA["properties"]) == set(KEYS) == set(GOOD) | {"gpu"}
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_schema_and_code_accept_a_good_value(key: str) -> None:
    assert check_values({key: GOOD[key]}) is None
    assert Draft202012Validator(SCHEMA).is_valid({key: GOOD[key]})


JUNK = st.recursive(
    st.sampled_from([None, True, 3, 1.5, "", "x", "info", "json", "json=x", "a=b", "16GB", "MEM2"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "paths", "budget", "severity", "model"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(key=st.sampled_from(sorted(GOOD)), value=JUNK)
def test_schema_and_code_agree_on_any_value(key: str, value: Any) -> None:
    assert (check_values({key: value}) is None) == Draft202012Validator(SCHEMA).is_valid({key: value})


def test_schema_and_code_refuse_unknown_keys() -> None:
    assert check_values({"nothing": 1}) is not None
    assert not Draft202012Validator(SCHEMA).is_valid({"nothing": 1})


# -- what `diff` allows


def test_a_day_is_written_as_toml_or_as_text(tmp_path: Path) -> None:
    waiver = '[[waivers]]\npaths = ["a"]\nowner = "@a"\nreason = "x"\nuntil = '
    write(tmp_path / "one" / "memlint.toml", waiver + "2027-03-31")
    write(tmp_path / "two" / "memlint.toml", waiver + '"2027-03-31"')
    (one,), (two,) = (Resolver().for_path(str(tmp_path / name)).waivers for name in ("one", "two"))
    assert one.until == two.until == datetime.date(2027, 3, 31)


@pytest.mark.parametrize("until", ["2027-02-30", "spring", 3, "2027-03-31T00:00:00"])
def test_a_day_that_is_none_is_refused(until: object) -> None:
    waiver = {"paths": ["a"], "owner": "@a", "reason": "x", "until": until}
    assert "such as 2027-03-31" in str(check_values({"waivers": [waiver]}))


def test_a_policy_that_limits_nothing_is_refused() -> None:
    assert "limits nothing" in str(check_values({"policies": [{"action": "warn"}]}))


@pytest.mark.parametrize("key", ["write-baseline", "add-ignore", "changed-since"])
def test_a_tree_neither_writes_nor_leaves_out(key: str, tmp_path: Path) -> None:
    write(tmp_path / "memlint.toml", f'{key} = "x"')
    with pytest.raises(SettingsError, match="which a settings file of the linted tree may not"):
        Resolver().for_path(str(tmp_path))
