"""ruff and mypy --strict, as pull requests are held to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "--no-cache", "."), id="ruff finds nothing"),
        pytest.param(("ruff", "format", "--check", "--no-cache", "."), id="the tree is formatted"),
        pytest.param(("mypy", "memlint", "rules"), id="mypy is strict and finds nothing"),
    ],
)
def test_clean(command: tuple[str, ...], tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path)) if command[0] == "mypy" else ()
    found = subprocess.run([sys.executable, "-m", *command, *cache], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
