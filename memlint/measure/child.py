"""Runs a measurement in a process of its own, so that neither torch nor a user's code enters this one.

The child gets a request (plain data, JSON) and leaves an answer (plain data, JSON) in a folder that is removed
afterwards; nothing that it writes is unpickled or run. However it ends, no process of its stays behind: it leads a
session of its own, and whatever it started carries a mark in its environment by which it is found (Linux) even if
it left that session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "MEMLINT_MEASUREMENT"  # environment variable of everything that a measurement starts
POLL_S = 0.05
END_S = 10.0  # for processes to go that were told to; one in an uninterruptible call may take longer
OUTPUT_LINES = 3  # of a child that died: the end of a traceback

# Nothing in the current folder stands in for a module of ours, or of Python.
START = (
    "import sys; sys.path = [p for p in sys.path if p] + [{root!r}]; from memlint.measure.{module} import main; main()"
)


class MeasureError(Exception):
    """A measurement that gave no answer. The text says what went wrong and what to do."""


class TimedOut(MeasureError):
    """The child did not finish in time; it and what it started are gone."""


def measure(
    request: dict[str, Any],
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The child's answer. ``progress`` is called with each line that it reports meanwhile.

    Raises MeasureError where the child says that it cannot, where it dies, and (TimedOut) after ``timeout_s``.
    """
    import json
    import shutil
    import tempfile
    import uuid

    folder = tempfile.mkdtemp(prefix="memlint-")
    mark = uuid.uuid4().hex
    process: subprocess.Popen[bytes] | None = None
    try:
        with open(os.path.join(folder, "request.json"), "w", encoding="utf-8") as file:
            json.dump(request, file)
        with open(os.path.join(folder, "output"), "wb") as output:
            process = _start(folder, mark, output)
        status = _wait(process, folder, timeout_s, progress)
        try:
            with open(os.path.join(folder, "answer.json"), encoding="utf-8") as file:
                answer: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            raise MeasureError(last_words(status, tail(os.path.join(folder, "output")))) from None
        if "error" in answer:
            raise MeasureError(str(answer["error"]))
        return answer
    finally:
        if process is not None:
            end(process, mark)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str, mark: str, output: Any) -> subprocess.Popen[bytes]:
    import memlint

    root = os.path.dirname(os.path.dirname(os.path.abspath(memlint.__file__)))
    options: dict[str, Any] = {}
    if os.name == "posix":
        options["start_new_session"] = True
    else:
        options["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    return subprocess.Popen(
        [sys.executable, "-c", START.format(root=root, module="worker"), folder],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, MARK: mark},
        **options,
    )


def _wait(
    process: subprocess.Popen[bytes], folder: str, timeout_s: float | None, progress: Callable[[str], None] | None
) -> int:
    begin = time.monotonic()
    told = 0
    while True:
        try:
            status: int | None = process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            status = None
        if progress is not None:
            told = _tell(os.path.join(folder, "progress"), told, progress)
        if status is not None:
            return status
        if timeout_s is not None and time.monotonic() - begin > timeout_s:
            raise TimedOut(
                f"no answer after {timeout_s:g} s, and was ended; give it longer with --probe-timeout, or a smaller "
                "batch with -o"
            )


def _tell(path: str, begin: int, progress: Callable[[str], None]) -> int:
    """Report the whole lines that a file has beyond ``begin``; where to go on."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read()
    except OSError:
        return begin
    end = data.rfind(b"\n") + 1
    for line in data[:end].decode("utf-8", "replace").splitlines():
        progress(line)
    return begin + end


def tail(path: str) -> list[str]:
    """The last lines of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-OUTPUT_LINES:]


def last_words(status: int, output: list[str]) -> str:
    """What is known of a process that ended without an answer: its exit code, and the end of its output."""
    said = f"; it last said: {' / '.join(line.strip() for line in output)}" if output else ""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = ""
        if -status == getattr(signal, "SIGKILL", 9):
            hint = ", as the system does to a process when the host's memory runs out"
        return f"the measuring process was ended by {name}{hint}{said}"
    return f"the measuring process ended with exit code {status} and no answer{said}"


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the child, its session, and everything that carries its mark; when this returns, they are gone."""
    if os.name == "posix":
        ended = set(marked(mark))
        # The group outlives its leader, so this is right after the child has ended, too.
        _kill(process.pid, os.killpg)
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            left = marked(mark)  # again: what is being started while we look
            ended.update(left)
            for number in left:
                _kill(number, os.kill)
            process.poll()  # so that the child itself is not left a zombie
            # Of a process that is ending the mark goes first.
            if not left and not any(_is_alive(number) for number in ended):
                break
            time.sleep(0.01)
    elif process.poll() is None:
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
    process.wait()


def _kill(number: int, how: Callable[[int, int], None]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        how(number, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Processes that carry a mark and still run (Linux; elsewhere none are found)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for number in numbers:
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                carries = wanted in file.read().split(b"\0")
        except OSError:
            continue
        if carries and _is_alive(number):
            found.append(number)
    return found


def _is_alive(number: int) -> bool:
    """Linux: whether a process runs, which one that only waits to be asked how it ended does not."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])
    except OSError:
        return False
