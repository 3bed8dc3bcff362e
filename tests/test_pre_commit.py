"""The hook as pre-commit installs and runs it: a clone, an environment of its own, no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT_BYTES = 60 * 1024 * 1024

CONFIG = "lr: 1\nepochs: 3\nlr: 2\n"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hook_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree, uncommitted changes included, as a repository of its own."""
    clone = tmp_path_factory.mktemp("hook") / "memlint"
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, clone / name)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "working tree")
    return clone


@pytest.fixture(scope="module")
def project(hook_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's repository with a staged config; pre-commit's cache lies beside it."""
    project = tmp_path_factory.mktemp("user") / "project"
    project.mkdir()
    git(project, "init", "-q")
    (project / "train.yaml").write_text(CONFIG)
    (project / "notes.md").write_text("# notes\n")
    git(project, "add", "-A")
    return project


def pre_commit(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PRE_COMMIT_HOME": str(project.parent / "cache"), "PRE_COMMIT_COLOR": "never"}
    for name in ("PYTHONPATH", "MEMLINT_CONFIG", "GIT_DIR", "GIT_INDEX_FILE", "GITHUB_ACTIONS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pre_commit", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)


def test_try_repo_finds_what_is_wrong_with_a_staged_config(hook_repository: Path, project: Path) -> None:
    tried = pre_commit(project, "try-repo", str(hook_repository), "memlint", "--verbose")
    said = tried.stdout + tried.stderr
    assert "MEM006" in said, said
    assert "train.yaml:3" in said
    assert "notes.md" not in said
    assert tried.returncode == 0, said  # a warning alone does not stop a commit


def test_the_hooks_environment_is_small_and_it_stops_a_bad_commit(hook_repository: Path, project: Path) -> None:
    (project / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hook_repository}\n  rev: {git(hook_repository, 'rev-parse', 'HEAD').strip()}\n"
        "  hooks:\n  - id: memlint\n"
    )
    git(project, "add", "-A")
    installed = pre_commit(project, "install-hooks")
    assert installed.returncode == 0, installed.stdout + installed.stderr

    environments = list((project.parent / "cache").glob("repo*/py_env-*"))
    assert len(environments) == 1
    files = [path for path in environments[0].rglob("*") if path.is_file() and not path.is_symlink()]
    packages = {path.name for path in environments[0].glob("lib/python*/site-packages/*")}
    assert {"memlint", "yaml"} <= packages
    assert not packages & {"torch", "jax", "numpy", "omegaconf", "hydra", "rich"}
    assert sum(path.stat().st_size for path in files) < LIMIT_BYTES

    (project / "train.yaml").write_text("lr: [1\n")
    git(project, "add", "-A")
    failed = pre_commit(project, "run")
    assert "MEM003" in failed.stdout
    assert failed.returncode == 1

    (project / "memlint.toml").write_text('exclude = ["train.yaml"]\n')
    git(project, "add", "-A")
    excluded = pre_commit(project, "run")
    assert excluded.returncode == 0, excluded.stdout  # the hook passes --force-exclude
