"""Settings that came with the linted tree: what they may choose, and what they never decide."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memlint import work
from memlint.check import check_paths
from memlint.setting_values import KEYS
from memlint.settings import RESERVED, Resolver, Settings, SettingsError, user_file

CONFIG = (
    "model_name_or_path: Qwen/Qwen2.5-1.5B\ndataset_name: a/b\nmax_length: 1024\nper_device_train_batch_size: 4\n"
    "optim: adamw_torch\noutput_dir: out/x\n"
)


def memlint(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, with no settings but those of the tree."""
    given = {"PATH": os.environ["PATH"], "HOME": str(cwd.parent / "home"), "LC_ALL": "C.UTF-8", **environment}
    program = os.path.join(os.path.dirname(sys.executable), "memlint")
    return subprocess.run([program, *arguments], cwd=cwd, env=given, capture_output=True, text=True, timeout=100)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / ".git" / "hooks").mkdir(parents=True)
    return tree


def test_a_checkout_cannot_make_the_report_a_hook_that_git_runs(tree: Path) -> None:
    hook = tree / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho kept\n")
    hook.chmod(0o755)
    (tree / "memlint.toml").write_text('output-format = "concise"\noutput-file = ".git/hooks/pre-commit"\n')
    (tree / "conf;touch PWNED;.yaml").write_text(CONFIG)
    done = memlint("check", "--force-exclude", "conf;touch PWNED;.yaml", cwd=tree)
    subprocess.run(["sh", str(hook)], cwd=tree, check=False, capture_output=True)
    assert not (tree / "PWNED").exists()
    assert hook.read_text() == "#!/bin/sh\necho kept\n"
    assert done.returncode == 2
    assert "memlint.toml:2: " in done.stderr
    assert "'output-file'" in done.stderr
    assert "--config" in done.stderr


# -- two levels of trust

VALUES = {
    "output-file": '"report.txt"',
    "report": '["json=report.json"]',
    "plugins": '["evil"]',
    "show-files": "true",
    "changed-since": '"main"',
    "write-baseline": '"known.json"',
    "add-ignore": '"known"',
    "work-limit": "1000",
}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)


def refused(tree: Path) -> str:
    with pytest.raises(SettingsError) as raised:
        Resolver().for_path(str(tree))
    assert raised.value.in_tree
    return str(raised.value)


def test_each_reserved_key_is_tried() -> None:
    assert set(VALUES) == set(RESERVED)


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("name", [".memlint.toml", "memlint.toml", "pyproject.toml"])
def test_a_file_of_the_tree_may_not_set_a_reserved_key(tree: Path, name: str, key: str) -> None:
    table = "[tool.memlint]\n" if name == "pyproject.toml" else "preview = true\n"
    (tree / name).write_text(f"{table}{key} = {VALUES[key]}\n")
    said = refused(tree)
    assert f"{name}:2: setting {key!r}" in said
    assert "--config" in said


@pytest.mark.parametrize("key", VALUES)
def test_what_the_tree_extends_may_not_either(tree: Path, key: str) -> None:
    (tree / "sub").mkdir()
    (tree / "sub" / "memlint.toml").write_text('extend = "../base.toml"\n')
    (tree / "base.toml").write_text(f"{key} = {VALUES[key]}\n")
    assert f"base.toml:1: setting {key!r}" in refused(tree / "sub")


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("source", ["--config", "MEMLINT_CONFIG", "the user's own folder"])
def test_whoever_runs_memlint_may(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, key: str
) -> None:
    own = tmp_path / "xdg" / "memlint" / "memlint.toml"
    own.parent.mkdir(parents=True)
    own.write_text('extend = "base.toml"\n')
    (own.parent / "base.toml").write_text(f"{key} = {VALUES[key]}\n")
    if source == "MEMLINT_CONFIG":
        monkeypatch.setenv("MEMLINT_CONFIG", str(own))
    found = Resolver(config=str(own) if source == "--config" else "").for_path(str(tree))
    assert getattr(found, key.replace("-", "_")) != getattr(Settings(), key.replace("-", "_"))
    assert not found.in_tree


def test_a_folder_of_the_users_own_settings_is_not_a_linted_tree_that_brings_them(tmp_path: Path) -> None:
    own = tmp_path / "xdg" / "memlint"
    own.mkdir(parents=True)
    (own / "memlint.toml").write_text("work-limit = 7\n")
    assert Resolver().for_path(str(own / "x.yaml")).work_limit == 7


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_a_home_that_is_no_absolute_path_is_none(tree: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tree.parent))
    monkeypatch.setenv(variable, ".")
    assert not user_file().startswith(".")
    (tree / "memlint").mkdir()
    (tree / ".config" / "memlint").mkdir(parents=True)
    for folder in (tree / "memlint", tree / ".config" / "memlint"):
        (folder / "memlint.toml").write_text("work-limit = 7\n")
    monkeypatch.chdir(tree)
    assert Resolver().for_path(str(tree)).work_limit == Settings().work_limit


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("{outside}/base.toml", id="an absolute path"),
        pytest.param("{tree}/base.toml", id="an absolute path into the tree"),
        pytest.param("../outside/base.toml", id="a way up and out"),
        pytest.param("link.toml", id="a link out"),
        pytest.param("folder/base.toml", id="a linked folder out"),
    ],
)
def test_a_file_of_the_tree_extends_none_outside(tree: Path, target: str) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    for folder in (outside, tree):
        (folder / "base.toml").write_text('budget = "1GB"\nsecret = 1\n')
    (tree / "link.toml").symlink_to(outside / "base.toml")
    (tree / "folder").symlink_to(outside)
    (tree / "memlint.toml").write_text(f'extend = "{target.format(outside=outside, tree=tree)}"\n')
    said = refused(tree)
    assert "is not in the tree" in said
    assert "secret" not in said


def test_the_tree_of_a_subfolder_is_its_repository(tree: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "base.toml").write_text('budget = "1GB"\n')
    (tree / "a" / "b" / "memlint.toml").write_text('extend = "../../base.toml"\n')
    assert Resolver().for_path(str(tree / "a" / "b")).budget == "1GB"


def test_a_settings_file_that_is_a_link_out_of_the_tree_is_not_read(tree: Path) -> None:
    outside = tree.parent / "secret.toml"
    outside.write_text("password = 1\n")
    (tree / "memlint.toml").symlink_to(outside)
    said = refused(tree)
    assert "link out of the linted tree" in said
    assert "password" not in said


def test_the_probe_table_is_the_trees_own_and_a_check_does_not_act_on_it(tree: Path) -> None:
    (tree / "t.yaml").write_text(CONFIG)
    (tree / "memlint.toml").write_text('[probe]\nmodel = "evil:build"\nbatch = "evil:batch"\nstep = "evil:step"\n')
    (tree / "evil.py").write_text("open('CANARY', 'w')\n")
    for arguments in (("check", "t.yaml"), ("check", "--force-exclude", "t.yaml"), ("explain", "t.yaml")):
        done = memlint(*arguments, cwd=tree)
        assert done.returncode == 0, done.stderr
        assert not (tree / "CANARY").exists()


def test_nothing_but_a_measurement_reads_the_probe_table() -> None:
    package = Path(__file__).parents[2] / "memlint"
    readers = [path for path in package.rglob("*.py") if re.search(r"settings\.probe\b", path.read_text())]
    assert [path.relative_to(package).as_posix() for path in readers] == ["measure/request.py"]


def test_the_documentation_has_each_key_with_who_may_set_it() -> None:
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    said = {}
    for keys, who in re.findall(r"^\| (`.*?`) \| (tree|yours) \|", text, re.MULTILINE):
        said.update(dict.fromkeys(re.findall(r"`(.*?)`", keys), who))
    assert said == {key: "yours" if key in RESERVED else "tree" for key in KEYS}


# -- files that cost time, or are none


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("x = " + "[" * 100_000, "nests deeper than 100 levels", id="brackets that do not close"),
        pytest.param("[rules.x]\ny = " + "[" * 150 + "]" * 150, "nests deeper than 100", id="deep lists"),
        pytest.param("[" + ".".join(["rules"] * 40_000) + "]", "nests deeper than 100", id="a deep table"),
        pytest.param(" . ".join(["'a'"] * 40_000) + "= 1", "nests deeper than 100", id="a deep quoted key"),
        pytest.param("rules = {" + ".".join(["a"] * 40_000) + " = 1}", "nests deeper than 100", id="a deep inline key"),
        pytest.param("# " + "x" * 300_000, "is longer than 256 KiB", id="a long file"),
        pytest.param("exclude = [" + '"x",' * 1001 + "]", "takes at most 1,000 entries", id="many patterns"),
        pytest.param("[rules.x]\ny = " + "9" * 5000, "number of thousands of digits", id="a number without end"),
        pytest.param('budget = "1' + "0" * 400 + 'GB"', "is not a size", id="a size of 400 digits"),
        pytest.param('budget = "9999999999999TB"', "more memory than 64 bits can address", id="a size beyond all"),
        pytest.param('budget = "' + "9" * 200_000 + 'Z"', "is not a size", id="a size that a pattern tries for ever"),
        pytest.param('extend = "\\u0000"', "must not hold a null character", id="a null character"),
        pytest.param('"' + "k" * 100_000 + '" = 1', "unknown setting", id="a long key"),
    ],
)
def test_a_settings_file_that_asks_for_work_is_refused(tree: Path, text: str, message: str) -> None:
    (tree / "memlint.toml").write_text(text)
    said = refused(tree)
    assert message in said
    assert len(said) < 1000


def test_what_looks_deep_in_strings_and_comments_is_not(tree: Path) -> None:
    dots = "." * 500
    (tree / "memlint.toml").write_text(
        f'# {dots}\nbudget = "1GB"  # {dots}\nignore = ["{dots}"]\nselect = [\'{dots}\', """{dots}\n{dots}"""]\n'
    )
    assert Resolver().for_path(str(tree)).budget == "1GB"


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder", "dangling link"])
@pytest.mark.parametrize("name", [".memlint.toml", "memlint.toml", "pyproject.toml"])
def test_what_is_no_file_is_no_settings_file(tree: Path, name: str, kind: str) -> None:
    place = tree / name
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to({"device": "/dev/zero", "loop": name, "dangling link": "nowhere"}[kind])
    assert Resolver().for_path(str(tree)) == Settings()


def test_extending_a_pipe_does_not_wait(tree: Path) -> None:
    os.mkfifo(tree / "base.toml")
    (tree / "memlint.toml").write_text('extend = "base.toml"\n')
    assert "is no regular file" in refused(tree)


def test_a_pyproject_that_is_no_text_is_no_settings_file(tree: Path) -> None:
    (tree / "pyproject.toml").write_bytes(b"\xff\xfe[tool.memlint]\n\0")
    assert Resolver().for_path(str(tree)) == Settings()


def test_settings_are_found_above_a_thousand_folders(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "memlint.toml").write_text('budget = "1GB"\n')
    deep = os.path.join(str(tree), *["d"] * 1500)
    assert Resolver().for_folder(deep).budget == "1GB"


def test_settings_are_counted_as_work(tree: Path) -> None:
    (tree / "memlint.toml").write_text("# " + "x" * 1000)
    with work.limited(500), pytest.raises(work.OutOfWork, match="reading settings"):
        Resolver().for_path(str(tree))


# -- one broken settings file costs what it governs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("budgt = 1\n", "sub/memlint.toml:1: unknown setting 'budgt'", id="a misspelled key"),
        pytest.param('ignore = ["MEM9999"]\n', "sub/memlint.toml: unknown rule 'MEM9999'", id="an unknown rule"),
        pytest.param('override = ["a=[1"]\n', "sub/memlint.toml: ", id="an override that is none"),
        pytest.param('output-file = "x"\n', "sub/memlint.toml:1: setting 'output-file'", id="a reserved key"),
    ],
)
def test_broken_settings_of_a_subfolder_leave_the_report_of_the_rest(tree: Path, text: str, message: str) -> None:
    for folder in (tree / "sub" / "below", tree / "sub", tree):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "t.yaml").write_text(CONFIG)
    (tree / "sub" / "memlint.toml").write_text(text)
    for paths in ((".",), ("t.yaml", "sub/t.yaml", "sub/below/t.yaml")):
        done = memlint("check", "--output-format", "json", *paths, cwd=tree)
        assert done.returncode == 2, done.stderr
        assert [run["path"] for run in json.loads(done.stdout)["files"]] == ["t.yaml"]
        assert done.stderr.count(message) == 1, done.stderr
        assert "what this file governs is not checked" in done.stderr


def test_a_wrong_option_is_an_error_of_the_whole_call(tree: Path) -> None:
    (tree / "t.yaml").write_text(CONFIG)
    with pytest.raises(SettingsError, match="MEM9999"):
        check_paths([str(tree)], Resolver({"ignore": ["MEM9999"]}))


# -- the work limit


def test_the_work_limit_is_that_of_each_file_and_the_whole_grows_with_it(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "t.yaml").write_text(CONFIG)
    limits: list[int] = []
    limited = work.limited
    monkeypatch.setattr(work, "limited", lambda steps, **more: limits.append(steps) or limited(steps, **more))
    check_paths([str(tree)], Resolver({"work-limit": 2 * Settings().work_limit}))
    assert limits[:3] == [2 * work.INVOCATION_STEPS, 2 * work.FILE_STEPS, 2 * work.FILE_STEPS]
    limits.clear()
    check_paths([str(tree)], Resolver())
    assert limits[:3] == [work.INVOCATION_STEPS, work.FILE_STEPS, work.FILE_STEPS]


@pytest.mark.parametrize("command", ["check", "explain"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "1000001"])
def test_a_work_limit_that_is_none_is_refused(tree: Path, command: str, value: str) -> None:
    (tree / "t.yaml").write_text(CONFIG)
    done = memlint(command, "--work-limit", value, "t.yaml", cwd=tree)
    assert done.returncode == 2
    assert "work-limit" in done.stderr


def test_what_is_written_of_the_default_work_limit_is_the_default(tree: Path) -> None:
    default = Settings().work_limit
    assert f"(default: {default})" in " ".join(memlint("check", "--help", cwd=tree).stdout.split())
    root = Path(__file__).resolve().parents[2]
    assert f"for each file, {default} by default" in (root / "docs" / "settings.md").read_text(encoding="utf-8")
    assert f"; {default} where it is not given" in (root / "schemas" / "settings.schema.json").read_text(
        encoding="utf-8"
    )


def test_a_work_limit_on_the_command_line_is_taken(tree: Path) -> None:
    (tree / "t.yaml").write_text(CONFIG)
    assert memlint("check", "--work-limit", "60", "t.yaml", cwd=tree).returncode == 0
