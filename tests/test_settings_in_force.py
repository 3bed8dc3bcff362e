"""Which settings are in force for a file, and what is said of those that cannot be."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from memlint import work
from memlint.data.catalogue import gpu
from memlint.discover import Pattern
from memlint.settings import Allowance, Policy, Resolver, Settings, SettingsError, allowance, common_folder, user_file
from memlint.units import GiB


@pytest.fixture(autouse=True)
def _in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def own_of(tmp_path: Path, text: str) -> Path:
    """The user's own settings."""
    return write(tmp_path / "xdg" / "memlint" / "memlint.toml", text)


def refused(folder: Path, **given: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Resolver(**given).for_path(str(folder / "a.yaml"))
    return caught.value


# -- without any


def test_where_nothing_is_said_every_rule_is_on_and_nothing_is_written_or_left_out() -> None:
    in_force = Resolver().for_path("a.yaml")
    assert {name: value for name, value in in_force._asdict().items() if value not in ("", (), {}, False)} == {
        "fail_on": "error",
        "output_format": "full",
        "color": "auto",
        "work_limit": 8,
    }
    assert (in_force.selected, in_force.ignored, in_force.file_steps) == ((), (), 8_000_000)
    assert in_force.file_steps == work.FILE_STEPS


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        pytest.param({}, (), id="nothing: every rule that is stable"),
        pytest.param({"select": ["MEM2"]}, ("MEM2",), id="some alone"),
        pytest.param({"extend-select": ["MEM9"]}, ("ALL", "MEM9"), id="some more than all"),
        pytest.param({"select": ["MEM2"], "extend-select": ["MEM9"]}, ("MEM2", "MEM9"), id="some, and some more"),
    ],
)
def test_what_is_selected_by(given: dict[str, Any], selected: tuple[str, ...]) -> None:
    assert Resolver(given).for_path("a.yaml").selected == selected


def test_what_is_ignored_is_all_that_any_key_ignores() -> None:
    given = {"ignore": ["MEM2"], "extend-ignore": ["MEM9"]}
    assert Resolver(given).for_path("a.yaml").ignored == ("MEM2", "MEM9")


# -- values in the form that others use


def test_paths_of_files_are_those_beside_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "sub" / "memlint.toml", 'model-config = "../config.json"\nbaseline = "known.json"\n')
    in_force = Resolver().for_path("sub/a.yaml")
    assert in_force.model_config == str(tmp_path / "config.json")
    assert in_force.baseline == str(tmp_path / "sub" / "known.json")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    in_force = Resolver({"model-config": "~/config.json", "baseline": "known.json"}).for_path("sub/a.yaml")
    assert in_force.model_config == str(tmp_path / "home" / "config.json")
    assert in_force.baseline == str(tmp_path / "known.json")


def test_a_policy_that_says_little_fails_a_change_and_holds_for_every_run(tmp_path: Path) -> None:
    write(tmp_path / "memlint.toml", '[[policies]]\nincrease = "1GiB"\n')
    assert Resolver().for_path("a.yaml").policies == (Policy((), GiB, None, "", False, "fail"),)


def test_policies_and_waivers_hold_what_is_written(tmp_path: Path) -> None:
    write(
        tmp_path / "memlint.toml",
        '[[policies]]\npaths = ["a", "b/"]\nincrease-percent = 5\nover-budget = "tight"\nno-estimate = true\n'
        'action = "warn"\n'
        '[[waivers]]\npaths = ["c"]\nowner = "@a"\nreason = "why"\nuntil = 2027-03-31\n',
    )
    in_force = Resolver().for_path("a.yaml")
    base = str(tmp_path)
    assert in_force.policies == (Policy((Pattern(base, "a"), Pattern(base, "b/")), None, 5.0, "tight", True, "warn"),)
    assert isinstance(in_force.policies[0].increase_percent, float)
    [waiver] = in_force.waivers
    assert waiver == ((Pattern(base, "c"),), "@a", "why", datetime.date(2027, 3, 31))


def test_what_is_added_adds_up_and_what_is_set_is_set_anew(tmp_path: Path) -> None:
    write(
        tmp_path / "base.toml",
        'select = ["MEM1"]\nextend-select = ["MEM2"]\nextend-ignore = ["MEM3"]\nextend-exclude = ["a"]\n'
        'exclude = ["b"]\noverride = ["x=1"]\nper-file-ignores = { "c" = ["MEM4"] }\n[rules.MEM1]\nseverity = "info"\n'
        '[rules.MEM2]\nseverity = "info"\nfactor = 2\n',
    )
    write(
        tmp_path / "memlint.toml",
        'extend = "base.toml"\nselect = ["MEM5"]\nextend-select = ["MEM6"]\nextend-ignore = ["MEM7"]\n'
        'extend-exclude = ["d"]\nexclude = ["e"]\noverride = ["y=1"]\nper-file-ignores = { "f" = ["MEM8"] }\n'
        '[rules.MEM2]\nfactor = 3\n[rules.MEM9]\nseverity = "error"\n',
    )
    in_force = Resolver({"extend-select": ["MEM10"], "override": ["z=1"]}).for_path("a.yaml")
    assert in_force.select == ("MEM5",)
    assert in_force.extend_select == ("MEM2", "MEM6", "MEM10")
    assert in_force.extend_ignore == ("MEM3", "MEM7")
    assert [pattern.glob for pattern in in_force.extend_exclude] == ["a", "d"]
    assert [pattern.glob for pattern in in_force.exclude] == ["e"]
    assert in_force.override == ("x=1", "y=1", "z=1")
    assert [pattern.glob for pattern, _ in in_force.per_file_ignores] == ["f"]
    assert in_force.rules == {
        "MEM1": {"severity": "info"},
        "MEM2": {"severity": "info", "factor": 3},
        "MEM9": {"severity": "error"},
    }
    assert in_force.origins["select"] == "memlint.toml"
    assert in_force.origins["extend-select"] == "--extend-select"
    assert "extend" not in in_force.origins
    assert in_force.files == ("memlint.toml", "base.toml")


def test_reports_of_the_command_line_come_beside_those_of_a_file(tmp_path: Path) -> None:
    own_of(tmp_path, 'report = ["json=a"]\n')
    assert Resolver({"report": ["junit=b"]}).for_path("a.yaml").report == ("json=a", "junit=b")


def test_overrides_of_the_command_line_are_told_from_those_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "memlint.toml", 'override = ["x=1"]\n')
    assert Resolver({"override": ["y=1"]}).given == ("y=1",)
    assert Resolver().given == ()


# -- budgets


CARD = gpu("l4").usable_bytes
GPU = "l4"


@pytest.mark.parametrize(
    ("text", "given", "allowed"),
    [
        pytest.param("", {}, Allowance(None, "", "", None), id="nothing is known"),
        pytest.param('budget = "8GB"', {}, Allowance(8 * GiB, "memlint.toml: budget = 8GB", "", None), id="a size"),
        pytest.param(
            f'gpu = "{GPU}"', {}, Allowance(CARD, f"memlint.toml: gpu = {GPU}", GPU, None), id="a card of the file"
        ),
        pytest.param("", {"gpu": GPU}, Allowance(CARD, f"--gpu {GPU}", GPU, None), id="a card of the command line"),
        pytest.param(
            f'gpu = "{GPU}"\nbudget = "8GB"',
            {},
            Allowance(8 * GiB, "memlint.toml: budget = 8GB", GPU, None),
            id="a size over a card in one file",
        ),
        pytest.param(
            "",
            {"gpu": GPU, "budget": "8GB"},
            Allowance(8 * GiB, "--budget 8GB", GPU, None),
            id="a size over a card on the command line",
        ),
        pytest.param(
            'budget = "8GB"', {"gpu": GPU}, Allowance(CARD, f"--gpu {GPU}", GPU, None), id="the command line's card"
        ),
        pytest.param(
            f'gpu = "{GPU}"',
            {"budget": "8GB"},
            Allowance(8 * GiB, "--budget 8GB", GPU, None),
            id="the command line's size",
        ),
        pytest.param(
            'budget = "8GB"\n[[budgets]]\npaths = ["x", "*.yaml"]\nbudget = "4GB"',
            {},
            Allowance(4 * GiB, "memlint.toml: budgets, x: 4GB", "", None),
            id="a size for some files over one for all",
        ),
        pytest.param(
            'budget = "8GB"\n[[budgets]]\npaths = ["b.yaml"]\nbudget = "4GB"',
            {},
            Allowance(8 * GiB, "memlint.toml: budget = 8GB", "", None),
            id="a size for all over one for other files",
        ),
        pytest.param(
            '[[budgets]]\npaths = ["a.yaml"]\nbudget = "4GB"\n[[budgets]]\npaths = ["*.yaml"]\nbudget = "2GB"',
            {},
            Allowance(2 * GiB, "memlint.toml: budgets, *.yaml: 2GB", "", None),
            id="the last of several sizes for some files",
        ),
        pytest.param(
            '[[budgets]]\npaths = ["*.yaml"]\nbudget = "4GB"',
            {"gpu": GPU},
            Allowance(CARD, f"--gpu {GPU}", GPU, None),
            id="the command line's card over a size for some files",
        ),
        pytest.param(
            '[[budgets]]\npaths = ["*.yaml"]\nbudget = "4GB"',
            {"budget": "8GB"},
            Allowance(8 * GiB, "--budget 8GB", "", None),
            id="the command line's size over a size for some files",
        ),
        pytest.param(
            f'gpu = "{GPU}"\n[[budgets]]\npaths = ["*.yaml"]\nbudget = "4GB"',
            {"host-budget": "64GB"},
            Allowance(4 * GiB, "memlint.toml: budgets, *.yaml: 4GB", GPU, 64 * GiB),
            id="the host's beside them",
        ),
        pytest.param('host-budget = "64GB"', {}, Allowance(None, "", "", 64 * GiB), id="the host's alone"),
        pytest.param(
            f'gpu = "{GPU}"\nhost-budget = "64GB"',
            {},
            Allowance(CARD, f"memlint.toml: gpu = {GPU}", GPU, 64 * GiB),
            id="the host's beside a card",
        ),
    ],
)
def test_a_run_may_use(tmp_path: Path, text: str, given: dict[str, Any], allowed: Allowance) -> None:
    write(tmp_path / "memlint.toml", text)
    assert allowance(Resolver(given).for_path("a.yaml"), "a.yaml") == allowed


# -- where they are looked for


def test_settings_of_the_user_are_read_where_no_folder_has_any(tmp_path: Path) -> None:
    own_of(tmp_path, 'budget = "1GB"\nwork-limit = 9\n')
    in_force = Resolver().for_path("a/b.yaml")
    assert (in_force.budget, in_force.work_limit, in_force.in_tree) == ("1GB", 9, False)
    assert in_force.files == (os.path.join("xdg", "memlint", "memlint.toml"),)
    write(tmp_path / "memlint.toml", 'budget = "2GB"\n')
    in_force = Resolver().for_path("a/b.yaml")
    assert (in_force.budget, in_force.work_limit, in_force.in_tree) == ("2GB", 8, True)


def test_wrong_settings_of_the_user_are_an_error_of_every_file(tmp_path: Path) -> None:
    own_of(tmp_path, "budgt = 1\n")
    error = refused(tmp_path)
    assert "unknown setting 'budgt', did you mean 'budget'?" in str(error)
    assert not error.in_tree


def test_settings_are_read_once_for_all_folders_below(tmp_path: Path) -> None:
    file = write(tmp_path / "memlint.toml", 'budget = "1GB"\n')
    resolver = Resolver()
    first = resolver.for_path("a/b/c.yaml")
    file.write_text("budgt = 1\n")
    for path in ("a/b/d.yaml", "a/e.yaml", "f.yaml"):
        assert resolver.for_path(path) is first


def test_wrong_settings_are_wrong_for_each_file_below(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "memlint.toml", "budgt = 1\n")
    resolver = Resolver()
    for path in ("sub/a.yaml", "sub/b/c.yaml", "sub/a.yaml"):
        with pytest.raises(SettingsError, match="unknown setting 'budgt'"):
            resolver.for_path(path)
    assert resolver.for_path("a.yaml") == Settings()


def test_the_settings_of_a_folder_are_its_own(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "memlint.toml", 'budget = "1GB"\n')
    assert Resolver().for_path("sub").budget == Resolver().for_folder(str(tmp_path / "sub")).budget == "1GB"
    assert Resolver().for_path("sub.yaml").budget == ""


@pytest.mark.parametrize("how", ["an option", "the environment"])
def test_a_file_that_is_named_is_whose_who_runs_memlint(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may set what a file of the tree may not, also where it lies in the tree."""
    write(tmp_path / "memlint.toml", 'budget = "2GB"\n')
    write(tmp_path / "named.toml", 'budget = "1GB"\noutput-file = "out"\n')
    if how == "the environment":
        monkeypatch.setenv("MEMLINT_CONFIG", "named.toml")
    given = {"config": "named.toml"} if how == "an option" else {}
    in_force = Resolver(**given).for_path("a.yaml")  # type: ignore[arg-type]
    assert (in_force.budget, in_force.output_file, in_force.in_tree) == ("1GB", "out", False)
    write(tmp_path / "named.toml", "budgt = 1\n")
    with pytest.raises(SettingsError, match=r"named\.toml:1: unknown setting 'budgt'") as caught:
        Resolver(**given)  # type: ignore[arg-type]
    assert not caught.value.in_tree
    assert Resolver(isolated=True).for_path("a.yaml") == Settings()


def test_a_project_file_that_is_named_needs_a_table(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[project]\n")
    with pytest.raises(SettingsError) as caught:
        Resolver(config="pyproject.toml")
    assert str(caught.value) == "pyproject.toml: has no [tool.memlint] table"
    assert not caught.value.in_tree
    write(tmp_path / "pyproject.toml", "tool = 3\n")
    with pytest.raises(SettingsError, match=r"has no \[tool\.memlint\] table"):
        Resolver(config="pyproject.toml")
    write(tmp_path / "pyproject.toml", '[tool]\nmemlint = "x"\n')
    with pytest.raises(SettingsError, match=r"\[tool\.memlint\] takes a table"):
        Resolver(config="pyproject.toml")


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        pytest.param(["a/b/c.yaml"], "a/b", id="of one file: its folder"),
        pytest.param(["a/b"], "a/b", id="of one folder: itself"),
        pytest.param(["a/b/c.yaml", "a/d.yaml"], "a", id="of files: the deepest folder that holds them"),
        pytest.param(["a/b", "a/bc"], "a", id="names that begin alike are not one folder"),
    ],
)
def test_the_folder_whose_settings_decide_about_a_call_is_that(tmp_path: Path, paths: list[str], folder: str) -> None:
    for name in ("a/b", "a/bc"):
        (tmp_path / name).mkdir(parents=True)
    assert common_folder(paths) == str(tmp_path / folder)


def test_the_users_file_is_where_the_desktops_specification_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user_file() == str(tmp_path / "xdg" / "memlint" / "memlint.toml")
    monkeypatch.setenv("HOME", str(tmp_path))
    for home in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", home)
        assert user_file() == str(tmp_path / ".config" / "memlint" / "memlint.toml")


# -- what is said of wrong ones


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"budget": "lots"}, "option --budget 'lots' is not a size", id="no size"),
        pytest.param({"fail-on": "no"}, "option --fail-on takes error, warning, info", id="an unknown level"),
        pytest.param({"select": ["a", ""]}, "option --select entry 2 must not be empty", id="an empty entry"),
        pytest.param({"work-limit": 0}, "option --work-limit takes 1 to 1,000,000", id="too small a number"),
    ],
)
def test_a_wrong_option_is_called_one(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Resolver(given)
    assert str(caught.value).startswith(said)
    assert (caught.value.place, caught.value.in_tree) == ("", False)


LINES = 'budget = "1GB"\n\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("budgt = 1", 3, id="an unknown key"),
        pytest.param("[rules.MEM201]\nfactor = 1\nseverity = 'x'", 5, id="a key in a table"),
        pytest.param("[rules]\nMEM201.severity = 'x'", 4, id="a key with dots"),
        pytest.param("[[budgets]]\npaths = []\nbudget = '1GB'\n[[budgets]]\npaths = 3\nbudget = '1GB'", 7, id="a row"),
        pytest.param("[[budgets]]\npaths = [\n'a',\n\n3]\nbudget = '1GB'", 7, id="an entry of a list in a row"),
        pytest.param("[[budgets]]\npaths = []", 3, id="a row that lacks a key"),
        pytest.param("[per-file-ignores]\n'a' = ['x']\n'b' = 3", 5, id="a quoted key"),
        pytest.param("ignore = ['a', 3]", 3, id="an entry on the line of its key"),
        pytest.param("probe = { model = 'x', step = 3 }", 3, id="a key in braces"),
    ],
)
@pytest.mark.parametrize("name", ["memlint.toml", "pyproject.toml"])
def test_a_wrong_value_is_told_with_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    if name == "pyproject.toml":
        text = LINES.replace('budget = "1GB"', "[tool.memlint]") + text
        for table in ("rules", "budgets", "per-file-ignores"):
            text = text.replace(f"[{table}", f"[tool.memlint.{table}")
    else:
        text = LINES + text
    write(tmp_path / name, text)
    error = refused(tmp_path)
    assert error.place == f"{name}:{line}"
    assert error.in_tree


def test_what_only_shows_in_use_is_told_where_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "memlint.toml", 'extend = "base.toml"\nignore = ["MEM9999"]\n')
    write(tmp_path / "base.toml", 'select = ["MEM9998"]\n')
    in_force = Resolver({"extend-ignore": ["MEM9997"]}).for_path("a.yaml")
    for key, place, in_tree in (
        ("ignore", "memlint.toml", True),
        ("select", "base.toml", True),
        ("extend-ignore", "--extend-ignore", False),
        ("budget", "budget", False),
    ):
        error = in_force.error(key, "why")
        assert (str(error), error.in_tree) == (f"{place}: why", in_tree)
    own_of(tmp_path / "other", 'ignore = ["MEM9999"]\n')
    named = Resolver(config="base.toml").for_path("a.yaml")
    assert named.error("select", "why").in_tree is False


def test_a_settings_file_outside_of_the_working_folder_is_told_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "memlint.toml", "budgt = 1\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert refused(tmp_path).place == f"{tmp_path / 'memlint.toml'}:1"


# -- bounds


KIB = 1024


@pytest.mark.parametrize("name", ["memlint.toml", "pyproject.toml"])
def test_a_settings_file_has_256_kib_at_most(tmp_path: Path, name: str) -> None:
    text = '[tool.memlint]\nbudget = "1GB"\n#' if name == "pyproject.toml" else 'budget = "1GB"\n#'
    write(tmp_path / name, text.ljust(256 * KIB, "x"))
    assert Resolver().for_path("a.yaml").budget == "1GB"
    write(tmp_path / name, text.ljust(256 * KIB + 1, "x"))
    hint = "; write the settings into a memlint.toml" if name == "pyproject.toml" else ""
    assert str(refused(tmp_path)) == f"{name}: is longer than 256 KiB, which no settings are{hint}"


def test_a_long_project_file_without_our_table_is_none_of_ours(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "#".ljust(256 * KIB + 1, "x"))
    assert Resolver().for_path("a.yaml") == Settings()


@pytest.mark.parametrize(
    ("text", "deepest"),
    [  # beside the file itself, the rules and the rule
        pytest.param("[rules.x]\ny = {}", 97, id="lists"),
        pytest.param("[rules.x.{}]", 97, id="tables"),
    ],
)
def test_a_settings_file_nests_100_levels_at_most(tmp_path: Path, text: str, deepest: int) -> None:
    def nested(levels: int) -> str:
        return text.format("[" * levels + "]" * levels if "y =" in text else ".".join("t" * levels))

    write(tmp_path / "memlint.toml", nested(deepest))
    assert Resolver().for_path("a.yaml").rules
    write(tmp_path / "memlint.toml", nested(deepest + 1))
    assert str(refused(tmp_path)) == "memlint.toml: nests deeper than 100 levels"


def test_what_nobody_can_read_is_refused_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "memlint.toml").write_bytes(b"\xff\xfe\0")
    assert str(refused(tmp_path)).startswith("memlint.toml: cannot be read: ")
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(SettingsError, match=r"pyproject\.toml: cannot be read: "):
        Resolver(config="pyproject.toml")
