"""A real bash, asked about many scripts in one process: nothing but its verdicts and words are used, and nothing is run
that a test has not written."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="the oracle is a real bash")

# A wrong condition is an error that bash -n prints and ends with 0 after.
_JUDGE = """for file; do
  said=$("$BASH" -n "$file" 2>&1); code=$?
  case $code$said in 0) echo fine;; 0*warning*) echo fine;; *) echo broken;; esac
done"""


def rejects(scripts: Sequence[str | Path]) -> list[bool]:
    """Whether ``bash -n`` finds each script (a text, or a file) broken."""
    assert BASH is not None
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, script in enumerate(scripts):
            file = script if isinstance(script, Path) else Path(folder, str(number))
            if isinstance(script, str):
                file.write_bytes(script.encode())
            files.append(str(file))
        done = subprocess.run([BASH, "-c", _JUDGE, BASH, *files], capture_output=True, text=True, timeout=100)
    answers = done.stdout.split()
    assert len(answers) == len(scripts), done.stderr
    return [answer == "broken" for answer in answers]


def complaints(scripts: Sequence[str]) -> list[str]:
    """What ``bash -n`` says of each script."""
    assert BASH is not None
    loop = 'for script; do "$BASH" -n -c "$script" 2>&1; printf \'\\0\'; done'
    done = subprocess.run([BASH, "-c", loop, BASH, *scripts], capture_output=True, text=True, timeout=100)
    return done.stdout.split("\0")[:-1]


def words(commands: Sequence[str], before: str = "") -> list[list[str]]:
    """The words of each command line after ``before``, as bash expands them. A line that bash gives up on has none."""
    assert BASH is not None
    show = 'show() { printf \'%s\\0\' "$#" "$@"; }\n'
    lines = "".join(f"({before}\nshow {command}\n) || printf '0\\0'\n" for command in commands)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([BASH, "-c", show + lines], capture_output=True, cwd=folder, env={}, timeout=60)
    fields = done.stdout.decode().split("\0")[:-1]
    found: list[list[str]] = []
    at = 0
    while at < len(fields):
        count = int(fields[at])
        found.append(fields[at + 1 : at + 1 + count])
        at += 1 + count
    assert len(found) == len(commands), done.stderr
    return found
