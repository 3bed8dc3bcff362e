"""Small trees of configs, and a git repository to keep them in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "language_models"
LORA = (EXAMPLES / "lora_axolotl.yml").read_text(encoding="utf-8")
SFT = (EXAMPLES / "sft_trl.yaml").read_text(encoding="utf-8")


class Repo:
    """A repository, and git as a user calls it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main", ".")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def commit(self, files: Mapping[str, str] = {}) -> str:
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """Of two configs, and the working folder is its root."""
    root = tmp_path / "repo"
    root.mkdir()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)
    monkeypatch.chdir(root)
    made = Repo(root)
    made.commit({"configs/lora.yml": LORA, "configs/sft.yaml": SFT, "README.md": "# runs\n"})
    return made


@pytest.fixture
def run() -> Callable[..., tuple[int, str]]:
    """memlint's exit code and what it says, standard error included."""
    from click.testing import CliRunner

    from memlint.cli.main import main

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(words))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return done.exit_code, done.output

    return call
