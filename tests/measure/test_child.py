"""The measuring process: however it ends, there is an answer and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memlint.measure import child
from memlint.measure.child import MeasureError, TimedOut, marked, measure
from tests.effort import wait_until
from tests.measure.training_runs import MODEL, plain_request, project

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The marks of the children that a test starts."""
    found: list[str] = []
    end = child.end
    monkeypatch.setattr(child, "end", lambda process, mark: (found.append(mark), end(process, mark)))
    return found


def at_build(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return MODEL.replace("def build_model(config):\n", f"def build_model(config):\n{body}")


def nothing_left(marks: list[str], tmp_path: Path) -> None:
    assert len(marks) == 1
    assert marked(marks[0]) == []
    assert list((tmp_path / "scratch").iterdir()) == []


DEATHS = {
    "killed": (at_build("import os", "os.kill(os.getpid(), 9)"), ("SIGKILL", "memory runs out")),
    "a crash of the interpreter": (at_build("import ctypes", "ctypes.string_at(0)"), ("SIGSEGV",)),
    "an exit of its own": (
        at_build("import os, sys", "print('so long', flush=True)", "os._exit(7)"),
        ("exit code 7", "so long"),
    ),
    "sys.exit": (at_build("raise SystemExit(3)"), ("exit code 3",)),
}


@pytest.mark.parametrize(("model", "said"), DEATHS.values(), ids=DEATHS)
def test_a_child_that_dies_is_said_to(model: str, said: tuple[str, ...], tmp_path: Path, marks: list[str]) -> None:
    with pytest.raises(MeasureError) as caught:
        measure(plain_request(tmp_path / "project", model=model))
    for part in said:
        assert part in str(caught.value)
    nothing_left(marks, tmp_path)


def time_is_up_when(ready: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's clock jumps by an hour once something has happened: no machine is too slow for the test."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * ready(), sleep=time.sleep)
    monkeypatch.setattr(child, "time", clock)


def test_a_child_that_never_ends_is_ended_with_all_that_it_started(
    tmp_path: Path, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sleeper in the child's session, and one that left it."""
    model = at_build(
        "import subprocess, sys, time",
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        "two = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)",
        f"open({str(tmp_path / 'started')!r}, 'w').write(f'{{one.pid}} {{two.pid}} .')",
        "time.sleep(600)",
    )
    started = tmp_path / "started"
    time_is_up_when(lambda: started.exists() and started.read_text().endswith("."), monkeypatch)
    with pytest.raises(TimedOut, match="no answer after 600 s"):
        measure(plain_request(tmp_path / "project", model=model), timeout_s=600)
    for number in map(int, started.read_text().split()[:2]):
        assert not runs(number)
    nothing_left(marks, tmp_path)


def runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_what_a_child_leaves_running_ends_with_a_good_answer_too(tmp_path: Path, marks: list[str]) -> None:
    model = at_build(
        "import subprocess, sys",
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)",
        f"open({str(tmp_path / 'started')!r}, 'w').write(str(left.pid))",
    )
    answer = measure(plain_request(tmp_path / "project", model=model))
    assert answer["estimate"][0] == "trace"
    assert not runs(int((tmp_path / "started").read_text()))
    nothing_left(marks, tmp_path)


def test_what_user_code_prints_does_not_reach_the_answer_or_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], marks: list[str]
) -> None:
    answer = measure(plain_request(tmp_path / "project", model=at_build("print('{\"error\": 1}')")))
    assert "estimate" in answer
    assert capfd.readouterr() == ("", "")


def test_progress_is_told_line_by_line(tmp_path: Path) -> None:
    request: dict[str, Any] = {**plain_request(tmp_path / "project"), "kind": "probe", "device": "cpu"}
    lines: list[str] = []
    measure(request, progress=lines.append)
    assert lines == ["building the model", "warm-up step", "measured step"]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is a signal on Linux only")
def test_the_child_does_not_outlive_a_killed_memlint(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    project(folder, model=at_build("import os, time", "open('up', 'w').write(str(os.getpid()))", "time.sleep(600)"))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-m", "memlint", "check", "--trace", "train.yaml"], cwd=folder, env=env)
    wait_until(lambda: (folder / "up").exists() and (folder / "up").read_text(), "a child that is up")
    number = int((folder / "up").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not runs(number), "the child's end")
