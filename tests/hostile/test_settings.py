"""Settings that came with the linted tree: what they may choose, and what they never decide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
