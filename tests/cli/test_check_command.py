"""``memlint check``: options, exit codes, where output goes."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from memlint.check import NOT_A_CONFIG
from memlint.cli.main import main
from tests import demo_family
from tests.demo_family import CONFIG, SMALL

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    demo_family.install(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in ("MEMLINT_CONFIG", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("large.yaml").write_text(CONFIG)
    Path("small.yaml").write_text(SMALL)


def run(*arguments: str, **options: Any) -> Result:
    result = CliRunner().invoke(main, ["check", *arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# -- exit codes

EXITS = [
    pytest.param(["small.yaml"], 0, id="no findings"),
    pytest.param(["large.yaml"], 1, id="an error"),
    pytest.param(["large.yaml", "--exit-zero"], 0, id="an error, exit zero"),
    pytest.param(["small.yaml", "--preview"], 0, id="a warning"),
    pytest.param(["small.yaml", "--preview", "--fail-on", "warning"], 1, id="a warning that fails"),
    pytest.param(["."], 1, id="a folder"),
    pytest.param([], 1, id="no path is this folder"),
    pytest.param(["none.yaml"], 2, id="a file that is not there"),
    pytest.param(["none.yaml", "--exit-zero"], 2, id="a file that is not there, exit zero"),
    pytest.param(["small.yaml", "--budget", "lots"], 2, id="a bad size"),
    pytest.param(["small.yaml", "--host-budget", "12"], 2, id="a bad host size"),
    pytest.param(["small.yaml", "--select", "MEM9999"], 2, id="an unknown code"),
    pytest.param(["small.yaml", "--fail-on", "never"], 2, id="an unknown level"),
    pytest.param(["small.yaml", "--output-format", "xml"], 2, id="an unknown format"),
    pytest.param(["small.yaml", "--report", "xml=x"], 2, id="an unknown report format"),
    pytest.param(["small.yaml", "-o", "demo.batch"], 2, id="an override without a value"),
    pytest.param(["small.yaml", "--config", "none.toml"], 2, id="a settings file that is not there"),
    pytest.param(["small.yaml", "--per-file-ignores", "MEM2"], 2, id="a per-file ignore without a pattern"),
    pytest.param(["small.yaml", "--nothing"], 2, id="an unknown option"),
    pytest.param(["-", "small.yaml"], 2, id="standard input and a file"),
    pytest.param(["small.yaml", "--stdin-filename", "x.yaml"], 2, id="a name for no standard input"),
    pytest.param(["small.yaml", "--output-file", "none/x.txt"], 2, id="an output folder that is not there"),
]


@pytest.mark.parametrize(("arguments", "code"), EXITS)
def test_exit_code(arguments: list[str], code: int) -> None:
    assert run(*arguments).exit_code == code


HINTS = [
    pytest.param(["--budgt", "1GB"], "--budget", id="an option"),
    pytest.param(["--select", "demo-lage"], "demo-large", id="a rule"),
    pytest.param(["--budget", "16 gigs"], "write it like 16GB, 16GiB, 80g or 16384MiB", id="a size"),
    pytest.param(["--fail-on", "warn"], "'warning'", id="a level"),
]


@pytest.mark.parametrize(("arguments", "hint"), HINTS)
def test_mistakes_name_what_would_be_right(arguments: list[str], hint: str) -> None:
    result = run("small.yaml", *arguments)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stdout == ""


# -- what is said on standard error


def test_a_folder_without_configs_says_so() -> None:
    Path("empty").mkdir()
    result = run("empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "memlint: no training configs found in empty\n"


def test_a_named_file_that_is_no_config_is_skipped_with_one_line() -> None:
    Path("other.yaml").write_text("x: 1\n")
    result = run("other.yaml", "small.yaml")
    assert result.exit_code == 0
    assert result.stderr == f"memlint: other.yaml: skipped, {NOT_A_CONFIG}\n"


def test_a_named_file_of_another_kind_is_skipped_with_one_line() -> None:
    Path("notes.rst").write_text("# notes\n")
    result = run("notes.rst", "small.yaml")
    assert result.exit_code == 0
    assert result.stderr.startswith("memlint: notes.rst: skipped, not a kind of file")
    assert result.stderr.count("\n") == 1


def test_files_that_do_not_parse_are_counted_and_listed_on_request() -> None:
    Path("broken.yaml").write_text("a: [1\n")
    result = run(".", "--exit-zero")
    assert result.stderr == "memlint: 1 file could not be parsed, passed over (-v lists them)\n"
    assert "memlint: broken.yaml: passed over, line " in run(".", "-v").stderr
    assert run(".", "-q").stderr == ""


def test_an_unreadable_file_is_named() -> None:
    assert run("none.yaml").stderr == "memlint: error: none.yaml: no such file or folder\n"


# -- formats and files


def test_concise() -> None:
    lines = run("--output-format", "concise").stdout.splitlines()
    assert [line.partition(": peak ")[0] for line in lines] == [
        "large.yaml: NO BUDGET",
        "large.yaml:2:3: MEM990 batch 4 is large",
        "small.yaml: NO BUDGET",
    ]


def test_json_is_valid_and_has_formulas() -> None:
    result = run("--output-format", "json", "--budget", "2GB")
    report = json.loads(result.stdout)
    Draft202012Validator(SCHEMA).validate(report)
    large = next(entry for entry in report["files"] if entry["path"] == "large.yaml")
    part = large["estimate"]["components"][1]["parts"][0]
    assert part["formula"] == "B*W*1048576"
    assert part["facts"][0] == {"key": "demo.batch", "value": 4, "line": 2}
    assert large["budget"]["source"] == "--budget 2GB"
    assert large["findings"][1]["fixes"][0]["edits"][0]["text"] == "1"


def test_json_without_runs_is_a_report_too() -> None:
    Path("empty").mkdir()
    report = json.loads(run("empty", "--output-format", "json").stdout)
    Draft202012Validator(SCHEMA).validate(report)
    assert report["files"] == []


def test_github_annotates_and_writes_the_summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = run("--output-format", "github")
    properties = "file=large.yaml,line=2,endLine=2,col=3,endColumn=8,title=MEM990 demo-large"
    assert result.stdout.startswith(f"::error {properties}::")
    assert "MEM990" in (tmp_path / "summary.md").read_text()


def test_under_actions_no_line_of_text_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    name = "::error::x.yaml"
    Path(name).write_text(CONFIG)
    for arguments in ([name], [name, "none::.yaml", "--output-format", "concise"]):
        result = run(*arguments)
        for line in (result.stdout + result.stderr).splitlines():
            assert not line.lstrip().startswith("::")


def test_no_error_message_carries_foreign_lines() -> None:
    folder = Path("\n::error::x")
    folder.mkdir()
    (folder / "memlint.toml").write_text("budgt = 1\n")
    (folder / "x.yaml").write_text(CONFIG)
    result = run(str(folder / "x.yaml"))
    assert result.exit_code == 2
    assert "\\x0a::error::x" in result.stderr
    assert not any(line.startswith("::") for line in result.stderr.splitlines())


def test_output_file_is_whole_or_absent_and_keeps_its_mode() -> None:
    Path("out.txt").write_text("before\n")
    os.chmod("out.txt", 0o640)
    result = run("--output-format", "concise", "--output-file", "out.txt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "\nlarge.yaml:2:3: MEM990 batch 4 is large\n" in Path("out.txt").read_text()
    assert stat.S_IMODE(os.stat("out.txt").st_mode) == 0o640
    assert sorted(os.listdir()) == ["large.yaml", "out.txt", "small.yaml"]


def test_output_file_is_not_written_through_a_link() -> None:
    Path("real.txt").write_text("before\n")
    Path("link.txt").symlink_to("real.txt")
    result = run("--output-format", "concise", "--output-file", "link.txt")
    assert result.exit_code == 2
    assert "link.txt is a symbolic link" in result.stderr
    assert Path("link.txt").is_symlink()
    assert Path("real.txt").read_text() == "before\n"


def test_output_file_may_be_a_device() -> None:
    assert run("--output-file", "/dev/null").exit_code == 1


def test_a_report_that_cannot_be_written_costs_no_other() -> None:
    result = run("--report", "json=none/a.json", "--report", "concise=b.txt", "--report", "full=none/c.txt")
    assert result.exit_code == 2
    assert "MEM990" in result.stdout
    assert "MEM990" in Path("b.txt").read_text()
    assert "none/a.json: cannot be written" in result.stderr
    assert "none/c.txt: cannot be written" in result.stderr


def test_several_reports_in_one_run() -> None:
    result = run("--report", "json=a.json", "--report", "concise=b.txt")
    assert "MEM990" in result.stdout
    Draft202012Validator(SCHEMA).validate(json.loads(Path("a.json").read_text()))
    assert Path("b.txt").read_text().count("\n") == 3


def test_statistics_count_findings_and_time() -> None:
    text = run("--statistics").stdout
    assert re.search(r"^ +1 +[\d.]+ ms  MEM990 demo-large$", text, re.MULTILINE)
    machine = run("--statistics", "--output-format", "json")
    json.loads(machine.stdout)
    assert "MEM990 demo-large" in machine.stderr


def test_show_files_lists_training_configs_only() -> None:
    Path("other.yaml").write_text("x: 1\n")
    result = run("--show-files")
    assert (result.exit_code, result.stdout) == (0, "large.yaml\nsmall.yaml\n")


# -- colours

COLORS = [
    pytest.param([], {}, False, id="no terminal"),
    pytest.param([], {"FORCE_COLOR": "1"}, True, id="FORCE_COLOR"),
    pytest.param([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, id="NO_COLOR wins"),
    pytest.param(["--color", "always"], {"NO_COLOR": "1"}, True, id="the option wins"),
    pytest.param(["--color", "never"], {"FORCE_COLOR": "1"}, False, id="the option wins against FORCE_COLOR"),
    pytest.param(["--color", "always", "--output-format", "json"], {}, False, id="never in json"),
]


@pytest.mark.parametrize(("arguments", "environment", "colored"), COLORS)
def test_color(arguments: list[str], environment: dict[str, str], colored: bool) -> None:
    result = run(*arguments, env=environment)
    assert ("\x1b[" in result.stdout) == colored


def test_files_have_no_colour() -> None:
    run("--color", "always", "--output-file", "out.txt", "--report", "full=full.txt")
    assert "\x1b" not in Path("out.txt").read_text() + Path("full.txt").read_text()


# -- standard input


def test_standard_input_is_checked_under_its_name() -> None:
    result = run("-", "--stdin-filename", "conf/x.yaml", "--output-format", "concise", input=CONFIG)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == ["conf/x.yaml:2:3: MEM990 batch 4 is large"]


def test_standard_input_takes_the_settings_of_its_name() -> None:
    Path("conf").mkdir()
    Path("conf/memlint.toml").write_text('ignore = ["MEM990"]\n')
    assert run("-", "--stdin-filename", "conf/x.yaml", input=CONFIG).exit_code == 0
    assert run("-", "--stdin-filename", "x.yaml", input=CONFIG).exit_code == 1


def test_standard_input_without_a_name_is_yaml() -> None:
    assert run("-", input=CONFIG).exit_code == 1


def test_standard_input_that_is_no_text() -> None:
    result = run("-", input=b"\xff\xfe\x00")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


# -- settings and selection from the command line


def test_command_line_wins_over_the_file() -> None:
    Path("memlint.toml").write_text('fail-on = "warning"\nbudget = "1GB"\noutput-format = "concise"\n')
    assert run("small.yaml").stdout.splitlines()[1:] == ["small.yaml:1:1: MEM190 does not fit"]
    assert run("small.yaml", "--budget", "80GB").exit_code == 0
    assert run("small.yaml", "--isolated").exit_code == 0
    assert run("small.yaml", "--ignore", "MEM190", "--preview").exit_code == 1
    assert run("small.yaml", "--ignore", "MEM190", "--preview", "--fail-on", "error").exit_code == 0


def test_codes_with_commas_and_repeated() -> None:
    assert run("--ignore", "MEM990,MEM991", "--ignore", "MEM992").exit_code == 0


def test_per_file_ignores_of_the_command_line() -> None:
    assert run("--per-file-ignores", "large.yaml:MEM990,MEM002").exit_code == 0
    assert run("--per-file-ignores", "small.yaml:MEM990").exit_code == 1


def test_exclude_and_force_exclude() -> None:
    assert run("--exclude", "large.yaml").exit_code == 0
    assert run("large.yaml", "--exclude", "large.yaml").exit_code == 1
    assert run("large.yaml", "--exclude", "*.yaml", "--force-exclude").exit_code == 0


def test_a_broken_settings_file_is_named_with_its_line() -> None:
    Path("memlint.toml").write_text('budget = "1GB"\nfail-no = "error"\n')
    result = run()
    assert result.exit_code == 2
    assert "memlint.toml:2: unknown setting 'fail-no', did you mean 'fail-on'?" in result.stderr


def test_overrides() -> None:
    assert run("large.yaml", "-o", "demo.batch=1").exit_code == 0
    assert run("small.yaml", "-o", "demo.batch=2", "-o", "demo.width=2048").exit_code == 1


def test_terminal_escapes_of_a_config_do_not_reach_the_terminal() -> None:
    Path("evil\x1b[2J.yaml").write_text('demo:\n  batch: 9  # \x1b]0;owned\x07 "\n')
    result = run(".", "none\x1b[2J.yaml")
    assert "\x1b" not in result.stdout + result.stderr


def test_of_many_paths_without_a_config_a_few_are_named(tmp_path: Path) -> None:
    folders = [tmp_path / f"f{number}" for number in range(30)]
    for folder in folders:
        folder.mkdir()
    done = CliRunner().invoke(main, ["check", *map(str, folders)])
    assert done.stderr.rstrip().endswith("f4 and 25 more")
