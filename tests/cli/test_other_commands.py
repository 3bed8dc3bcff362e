"""``explain``, ``rule``, ``gpus``, ``config show`` and the command itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memlint import __version__, rules_registry
from memlint.cli.main import COMMANDS, main
from tests import demo_family
from tests.demo_family import CONFIG, SMALL


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in ("MEMLINT_CONFIG", "GITHUB_ACTIONS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _demo(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_family.install(monkeypatch)
    Path("large.yaml").write_text(CONFIG)
    Path("small.yaml").write_text(SMALL)


def run(*arguments: str, **options: Any) -> Result:
    result = CliRunner().invoke(main, arguments, **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# -- the command itself


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str) -> None:
    assert run(option).stdout == f"memlint {__version__}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), ("config", "show")])
def test_every_command_has_help(command: tuple[str, ...], option: str) -> None:
    result = run(*command, option)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")


def test_help_lists_the_commands() -> None:
    listed = re.findall(r"^  ([a-z]+)  ", run("--help").stdout, re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("command", ["init", "server"])
def test_commands_that_are_not_built_do_not_exist(command: str) -> None:
    result = run(command)
    assert result.exit_code == 2
    assert f"No such command '{command}'." in result.stderr


def test_a_mistyped_command_is_named() -> None:
    assert "Did you mean 'explain'?" in run("explian").stderr


# -- explain


@pytest.mark.usefixtures("_demo")
def test_explain_shows_components_with_bars_formulas_facts_and_phases() -> None:
    result = run("explain", "large.yaml", "--budget", "2GB")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "OOM large.yaml: peak 4.06 GiB, budget 2.00 GiB (--budget 2GB): over by 2.06 GiB"
    assert lines[1] == "  demo, demo-net, 16,777,216 parameters, peak in backward"
    text = result.stdout
    assert "  device       4.06 GiB\n" in text
    assert re.search(r"^  backward +4\.06 GiB  \S+  <- peak$", text, re.MULTILINE)
    assert re.search(r"^  activations +4\.00 GiB  .* 98\.5%$", text, re.MULTILINE)
    assert "      4.00 GiB  net.blocks\n                = B*W*1048576 bytes\n" in text
    assert "                  B: demo.batch = 4  large.yaml:2\n" in text
    assert text.index("activations") < text.index("parameters ")
    assert "framework_version = torch 2.13" not in text or "Assumed" in text


@pytest.mark.usefixtures("_demo")
def test_explain_with_overrides_and_without_unicode() -> None:
    result = run("explain", "small.yaml", "-o", "demo.batch=2")
    assert "      2.00 GiB  net.blocks\n" in result.stdout
    assert "demo.batch = 2" in result.stdout


EXPLAIN_FAILS = [
    pytest.param(["none.yaml"], "none.yaml: no such file or folder", id="no file"),
    pytest.param(["other.yaml"], "other.yaml: no known family of training configs", id="no family"),
    pytest.param(["bare"], "bare: no training config", id="a folder without one"),
    pytest.param(["small.yaml", "--run", "eval"], "has no run named 'eval' (runs: train)", id="no such run"),
    pytest.param(["small.yaml", "--parts", "0"], "must be at least 1", id="no parts"),
    pytest.param(["small.yaml", "--budget", "x"], "'x' is not a size", id="no size"),
]


@pytest.mark.usefixtures("_demo")
@pytest.mark.parametrize(("arguments", "message"), EXPLAIN_FAILS)
def test_explain_says_what_is_wrong(arguments: list[str], message: str) -> None:
    Path("other.yaml").write_text("x: 1\n")
    Path("bare").mkdir()
    result = run("explain", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.usefixtures("_demo")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("demo:\n  batch: 1\n  model: my-net\n", "no model 'my-net'", id="an unknown model"),
        pytest.param("demo: [1\n", "MEM003", id="text that does not parse"),
        pytest.param("demo:\n  batch: 1\n  model: crash\n", "MEM001", id="an internal error"),
    ],
)
def test_explain_without_an_estimate_says_why(text: str, message: str) -> None:
    Path("x.yaml").write_text(text)
    result = run("explain", "x.yaml")
    assert result.exit_code == 2
    assert message in result.stdout


# -- rule


def test_rule_lists_all_rules() -> None:
    lines = run("rule").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [info.code for info in rules_registry.built_in()]
    assert lines[0].startswith("MEM001  internal-error")


@pytest.mark.parametrize("name", ["MEM006", "mem006", "duplicate-key"])
def test_rule_is_found_by_code_and_by_name(name: str) -> None:
    assert run("rule", name).stdout.startswith("MEM006 duplicate-key (warning)\n====")


def test_rule_pages_have_their_headings_in_every_format() -> None:
    text = run("rule", "MEM006").stdout
    markdown = run("rule", "MEM006", "--output-format", "markdown").stdout
    for heading in ("What it does", "Why it matters", "Example", "Use instead", "Fix safety", "References"):
        assert f"\n{heading}\n{'-' * len(heading)}\n" in text
        assert f"\n## {heading}\n" in markdown
    assert markdown.startswith("# duplicate-key\n")


def test_rule_in_json() -> None:
    page = json.loads(run("rule", "MEM006", "--output-format", "json").stdout)
    assert (page["code"], page["name"], page["severity"]) == ("MEM006", "duplicate-key", "warning")
    assert set(page) == {"code", "name", "severity", "preview", "summary", "manual", "distribution"}
    pages = json.loads(run("rule", "--all", "--output-format", "json").stdout)
    assert [page["code"] for page in pages] == [info.code for info in rules_registry.built_in()]
    assert all(page["summary"] and page["manual"] for page in pages)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["duplicate-keys"], "did you mean duplicate-key?", id="a mistyped name"),
        pytest.param(["MEM0"], "unknown rule 'MEM0'", id="a prefix is not one rule"),
        pytest.param(["MEM006", "--all"], "not both", id="one and all"),
    ],
)
def test_rule_mistakes(arguments: list[str], message: str) -> None:
    result = run("rule", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


# -- config show


@pytest.mark.usefixtures("_demo")
def test_config_show_names_files_values_and_reasons() -> None:
    Path("memlint.toml").write_text('budget = "8GB"\nignore = ["MEM99"]\nexclude = ["old/"]\n')
    lines = run("config", "show", "large.yaml", "--select", "MEM990,MEM006").stdout.splitlines()
    assert lines[:2] == ["settings files: memlint.toml", "budget: 8.00 GiB (memlint.toml: budget = 8GB)"]
    assert "  exclude = [old/]  (memlint.toml)" in lines
    assert "  select = [MEM990, MEM006]  (--select)" in lines
    assert "  on   MEM001 internal-error  (cannot be ignored)" in lines
    assert "  on   MEM990 demo-large  (select MEM990)" in lines
    assert "  off  MEM992 demo-preview  (ignore MEM99)" in lines
    assert "  off  MEM190 demo-over-budget  (not selected)" in lines
    plain = run("config", "show", "--isolated").stdout
    assert "settings files: none\nbudget: none\n\nsettings:\n  all defaults\n" in plain
    assert "  off  MEM992 demo-preview  (in preview, which is off)" in plain


def test_config_show_refuses_what_check_refuses() -> None:
    Path("memlint.toml").write_text('select = ["MEM9999"]\n')
    result = run("config", "show")
    assert result.exit_code == 2
    assert "memlint.toml: unknown rule 'MEM9999'" in result.stderr


# -- gpus


def test_gpus_lists_the_catalogue() -> None:
    from memlint.data.catalogue import cards

    lines = run("gpus").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [card.name for card in cards()]
    entries = json.loads(run("gpus", "--output-format", "json").stdout)
    assert [entry["usable_bytes"] for entry in entries] == [card.usable_bytes for card in cards()]


def test_gpus_shows_the_card_that_a_loose_name_means() -> None:
    assert run("gpus", "NVIDIA A100-SXM4-80GB").stdout.splitlines()[1].startswith("a100-80gb ")
    assert json.loads(run("gpus", "A100 80GB", "--output-format", "json").stdout)["name"] == "a100-80gb"


def test_an_unknown_card_is_named_with_its_neighbours() -> None:
    for command in (("gpus", "l40z"), ("check", ".", "--gpu", "l40z"), ("explain", "x.yaml", "--gpu", "l40z")):
        result = run(*command)
        assert result.exit_code == 2
        assert "l40s" in result.stderr


@pytest.mark.usefixtures("_demo")
def test_a_card_is_a_budget() -> None:
    from memlint.data.catalogue import gpu

    report = json.loads(run("check", "large.yaml", "--gpu", "a100-80gb", "--output-format", "json").stdout)
    assert report["files"][0]["budget"]["bytes"] == gpu("a100-80gb").usable_bytes
    assert report["files"][0]["budget"]["source"] == "--gpu a100-80gb"
    Path("memlint.toml").write_text('budget = "1GB"\ngpu = "t4"\n')
    report = json.loads(run("check", "large.yaml", "--output-format", "json").stdout)
    assert report["files"][0]["budget"]["source"] == "memlint.toml: budget = 1GB"
    report = json.loads(run("check", "large.yaml", "--gpu", "l40s", "--output-format", "json").stdout)
    assert report["files"][0]["budget"]["source"] == "--gpu l40s"
