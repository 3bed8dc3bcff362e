"""However the program ends, its exit code says so: 0 and 1 for what was found, 2 for all else. Where output goes."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from memlint.check import Interrupted, _Checker, check_paths
from memlint.cli import checking, output, plain
from memlint.data import catalogue
from memlint.discover import Found
from memlint.settings import Settings
from tests.hostile.test_settings import CONFIG, memlint

PROGRAM = os.path.join(os.path.dirname(sys.executable), "memlint")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "t.yaml").write_text(CONFIG)
    return tree


def shell(command: str, tree: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tree.parent / "home"), "MEMLINT": PROGRAM}
    return subprocess.run(["sh", "-c", command], cwd=tree, env=environment, capture_output=True, text=True, timeout=100)


# -- output that cannot be written

# With --statistics click reads the command line, without it memlint does.
WAYS = ["", "--statistics", "--output-format json"]


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(
    ("where", "said"),
    [
        pytest.param(">&-", "standard output is closed", id="closed"),
        pytest.param("> /dev/full", "standard output cannot be written: No space left", id="full"),
    ],
)
def test_a_report_that_nobody_gets_is_an_error(tree: Path, where: str, said: str, options: str) -> None:
    done = shell(f'"$MEMLINT" check {options} t.yaml {where}', tree)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_a_closed_standard_error_costs_no_report(tree: Path) -> None:
    for where in ("2>&-", "2>/dev/full"):
        done = shell(f'"$MEMLINT" check --output-format json missing.yaml t.yaml {where}', tree)
        assert done.returncode == 2
        assert [run["path"] for run in json.loads(done.stdout)["files"]] == ["t.yaml"]


def test_a_closed_standard_input_is_an_error(tree: Path) -> None:
    done = shell('"$MEMLINT" check - <&-', tree)
    assert (done.returncode, "standard input is closed" in done.stderr) == (2, True)


def test_standard_input_without_end_is_an_error(tree: Path) -> None:
    done = shell('yes | "$MEMLINT" check -', tree)
    assert (done.returncode, "standard input is larger than" in done.stderr) == (2, True)


def test_with_closed_output_a_named_file_is_written(tree: Path) -> None:
    done = shell('"$MEMLINT" check --output-format json --output-file r.json t.yaml >&- 2>&-', tree)
    assert done.returncode == 0
    assert json.loads((tree / "r.json").read_text())["files"]


@pytest.mark.parametrize("options", WAYS)
def test_a_reader_that_has_seen_enough_hears_of_no_error(tree: Path, options: str) -> None:
    done = shell(f'("$MEMLINT" check {options} t.yaml; echo $? >code) | true', tree)
    assert ((tree / "code").read_text(), done.stderr) == ("2\n", "")


def test_a_working_folder_that_is_gone_is_an_error(tree: Path) -> None:
    done = shell(f'mkdir gone; cd gone; rmdir ../gone; "$MEMLINT" check {tree}/t.yaml', tree)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "the working folder is gone" in done.stderr


# -- interrupted


# A signal comes in the midst of a check, where what is raised is lost if it is raised at once.
INTERRUPTED = """
import os
import signal
import time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it
from memlint import check
from memlint.cli import plain

file = check._Checker.file

class Dying:
    def __del__(self):
        os.kill(os.getpid(), int(os.environ["SENT"]))

def told(self, found, *rest, **more):
    if found.path == "u2.yaml":
        Dying()
        time.sleep(60)
    return file(self, found, *rest, **more)

check._Checker.file = told
plain.program()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("options", [[], ["--statistics"]], ids=["understood by itself", "understood by click"])
def test_an_interrupted_check_reports_what_it_has(tree: Path, sent: signal.Signals, options: list[str]) -> None:
    for number in range(4):
        (tree / f"u{number}.yaml").write_text(CONFIG)
    command = [sys.executable, "-c", INTERRUPTED, "check", "--output-format", "json", *options, "."]
    environment = {**os.environ, "SENT": str(int(sent))}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "memlint: error: interrupted: 3 of 5 files are checked" in done.stderr
    assert [run["path"] for run in json.loads(done.stdout)["files"]] == ["t.yaml", "u0.yaml", "u1.yaml"]


def test_the_api_lets_an_interrupt_through_with_the_report(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "u.yaml").write_text(CONFIG)
    monkeypatch.chdir(tree)
    file = _Checker.file

    def told(self: _Checker, found: Found) -> None:
        if found.path == "u.yaml":
            raise KeyboardInterrupt
        file(self, found)

    monkeypatch.setattr(_Checker, "file", told)
    with pytest.raises(KeyboardInterrupt) as raised:
        check_paths(["."], Settings())
    assert isinstance(raised.value, Interrupted)
    assert [run.path for run in raised.value.report.runs] == ["t.yaml"]
    assert raised.value.report.exit_code("error", True) == 2


# -- what nobody expected


@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError(), OSError(5, "Input/output error")])
@pytest.mark.parametrize("arguments", [["check", "t.yaml"], ["check", "--statistics", "t.yaml"], ["gpus"]])
def test_what_nobody_expected_is_one_line(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: Exception,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.chdir(tree)
    monkeypatch.setattr(checking, "run", fail)
    monkeypatch.setattr(catalogue, "cards", fail)
    monkeypatch.delenv(output.DEBUG, raising=False)
    assert plain.run(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(rf"^memlint: error: {type(error).__name__}.* at test_program_ends\.py:\d+, in fail", said)
    monkeypatch.setenv(output.DEBUG, "1")
    assert plain.run(arguments) == 2
    assert "Traceback" in capsys.readouterr().err


# -- a file is no option


@pytest.mark.parametrize("name", ["--trace", "--output-file=x.yaml", "--config=t.yaml", "--exit-zero", "-o", "-q"])
def test_a_file_that_is_named_like_an_option_is_not_obeyed(tree: Path, name: str) -> None:
    (tree / name).write_text(CONFIG)
    done = memlint("check", "--force-exclude", *sorted(os.listdir(tree))[:1], "t.yaml", name, cwd=tree)
    assert done.returncode == 2
    assert f"{name} is an option and a file here: write ./{name}" in done.stderr
    assert not (tree / "x.yaml").exists()


def test_behind_two_dashes_it_is_a_file(tree: Path) -> None:
    (tree / "--exit-zero.yaml").write_text(CONFIG)
    done = memlint("check", "--output-format", "concise", "--select", "MEM3", "--", "--exit-zero.yaml", cwd=tree)
    assert done.returncode in (0, 1), done.stderr


# -- where output goes


def report_to(path: str, tree: Path) -> subprocess.CompletedProcess[str]:
    return memlint("check", "--output-format", "concise", "--output-file", path, "t.yaml", cwd=tree)


def test_a_report_is_not_written_through_a_link(tree: Path) -> None:
    victim = tree.parent / "victim"
    victim.write_text("kept\n")
    (tree / "report.txt").symlink_to(victim)
    (tree / "dangling.txt").symlink_to(tree.parent / "new")
    for name in ("report.txt", "dangling.txt"):
        done = report_to(name, tree)
        assert (done.returncode, f"{name} is a symbolic link" in done.stderr) == (2, True), done.stderr
    assert victim.read_text() == "kept\n"
    assert not (tree.parent / "new").exists()


@pytest.mark.parametrize("here", ["the tree", "above it", "elsewhere"])
def test_a_report_is_not_written_through_a_linked_folder_of_a_checkout(tree: Path, here: str) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (tree / "reports").symlink_to(outside)
    cwd = {"the tree": tree, "above it": tree.parent, "elsewhere": outside}[here]
    for path in (tree / "reports" / "r.txt", tree / "reports" / "none" / ".." / "r.txt"):
        shown = str(path) if here == "elsewhere" else os.path.relpath(path, cwd)
        done = memlint("check", "--output-file", shown, str(tree / "t.yaml"), cwd=cwd)
        assert (done.returncode, "reports is a symbolic link" in done.stderr) == (2, True), done.stderr
    assert os.listdir(outside) == []


def test_a_way_back_up_is_not_through_a_link(tree: Path) -> None:
    outside = tree.parent / "outside" / "deep"
    outside.mkdir(parents=True)
    (tree / "reports").symlink_to(outside)
    assert report_to("reports/../r.txt", tree).returncode == 0
    assert (tree / "r.txt").exists()
    assert os.listdir(outside.parent) == ["deep"]


def test_a_link_of_the_machine_is_no_obstacle(tree: Path) -> None:
    # As /tmp is one to /private/tmp on macOS.
    (tree.parent / "real").mkdir()
    (tree.parent / "linked").symlink_to("real")
    assert report_to(str(tree.parent / "linked" / "r.txt"), tree).returncode == 0
    assert (tree.parent / "real" / "r.txt").exists()


def test_a_hard_link_is_not_written_through(tree: Path) -> None:
    victim = tree.parent / "victim"
    victim.write_text("kept\n")
    os.link(victim, tree / "r.txt")
    assert report_to("r.txt", tree).returncode == 0
    assert victim.read_text() == "kept\n"


def test_a_report_is_never_a_program(tree: Path) -> None:
    (tree / "r.txt").write_text("")
    (tree / "r.txt").chmod(0o4755)
    assert report_to("r.txt", tree).returncode == 0
    assert stat.S_IMODE((tree / "r.txt").stat().st_mode) == 0o644


def test_a_report_that_fails_leaves_the_old_one_and_nothing_else(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "r.txt").write_text("old\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(output.Stop, match="No space left on device"):
        output.write_file(str(tree / "r.txt"), "new\n")
    assert (tree / "r.txt").read_text() == "old\n"
    assert sorted(os.listdir(tree)) == [".git", "r.txt", "t.yaml"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("/dev/full", "No space left on device", id="a full device"),
        pytest.param("none/r.txt", "No such file or directory", id="no such folder"),
        pytest.param("t.yaml/r.txt", "Not a directory", id="a file for a folder"),
        pytest.param(".git", "Is a directory", id="a folder for a file"),
        pytest.param("pipe", "No such device or address", id="a pipe that nobody reads"),
        pytest.param("/proc/none/x", "No such file or directory", id="no file of the system's"),
    ],
)
def test_what_cannot_be_written_is_an_error(tree: Path, path: str, said: str) -> None:
    os.mkfifo(tree / "pipe")
    done = report_to(path, tree)
    assert (done.returncode, f"{path}: cannot be written: {said}" in done.stderr) == (2, True), done.stderr


def test_streams_of_the_system_are_written_to(tree: Path) -> None:
    for command in (
        '"$MEMLINT" check --output-format json --output-file /dev/stdout t.yaml | cat',
        '"$MEMLINT" check --output-format json --output-file /dev/stdout t.yaml >out; cat out',
        '"$MEMLINT" check --output-format json --output-file /dev/fd/3 t.yaml 3>&1 | cat',
        'mkfifo pipe; cat pipe & sleep 0.2; "$MEMLINT" check --output-format json --output-file pipe t.yaml; wait',
    ):
        done = shell(command, tree)
        assert json.loads(done.stdout)["files"], done.stderr
    assert report_to("/dev/null", tree).returncode == 0


def test_a_snapshot_of_a_probe_is_not_written_through_a_link(tree: Path) -> None:
    (tree / "snapshot").symlink_to(tree.parent / "victim")
    done = memlint("probe", "t.yaml", "--snapshot", "snapshot", cwd=tree)
    assert (done.returncode, "snapshot is a symbolic link" in done.stderr) == (2, True), done.stderr


def test_a_measurement_is_not_saved_through_a_link(tree: Path) -> None:
    victim = tree.parent / "victim.json"
    (tree / "t.yaml.memlint-measured.json").symlink_to(victim)
    with pytest.raises(output.Stop, match="is a symbolic link"):
        output.write_file(str(tree / "t.yaml.memlint-measured.json"), "{}", folders=True)
    assert not victim.exists()
