"""What fails a check: each policy over a repository with a broken, an unknown, an empty and a tight config."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = "model_name_or_path: {model}\nper_device_train_batch_size: 1\nmax_length: 64\noutput_dir: out\n"
FILES = {
    "fits.yaml": RUN.format(model="Qwen/Qwen2.5-0.5B"),
    "unknown.yaml": RUN.format(model="nobody/knows"),
    "broken.yaml": RUN.format(model="Qwen/Qwen2.5-0.5B") + "\tbroken: [1\n",
    "empty.yaml": "",
    "tight.yaml": RUN.format(model="Qwen/Qwen2.5-0.5B").replace("64", "2048"),
    "zero.json": '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}\n',
}
SIZES = {"fits.yaml": "80GB", "tight.yaml": "10GB"}


def gate(folder: Path, names: list[str], *arguments: str) -> tuple[int, str]:
    for name in names:
        (folder / name).write_text(FILES[name], encoding="utf-8")
    budgets = "".join(f'[[budgets]]\npaths = ["{name}"]\nbudget = "{size}"\n' for name, size in SIZES.items())
    (folder / "memlint.toml").write_text('budget = "80GB"\n' + budgets, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "memlint", "check", *(arguments or ())],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
    )
    return done.returncode, done.stderr


CASES = [
    # (files, arguments, exit code, what failed)
    (["fits.yaml"], [], 0, ""),
    (["fits.yaml"], ["--strict", "--fail-on", "unknown"], 0, ""),
    (["unknown.yaml"], [], 0, ""),
    (["unknown.yaml"], ["--fail-on", "tight"], 0, ""),
    (["unknown.yaml"], ["--fail-on", "unknown"], 1, "--fail-on unknown: 1 UNKNOWN"),
    (["unknown.yaml"], ["--strict"], 1, "--fail-on error --strict: 1 UNKNOWN"),
    (["fits.yaml", "broken.yaml"], [], 0, ""),
    (["fits.yaml", "broken.yaml"], ["--fail-on", "unknown"], 0, ""),
    (["fits.yaml", "broken.yaml"], ["--strict"], 1, "--fail-on error --strict: 1 not parsed"),
    (["fits.yaml", "empty.yaml"], [], 0, ""),
    (["fits.yaml", "empty.yaml"], ["--strict"], 1, "--fail-on error --strict: 1 empty"),
    (["empty.yaml"], [], 0, ""),
    (["empty.yaml"], ["--strict"], 1, "--fail-on error --strict: 1 empty, no training configs"),
    (["empty.yaml"], ["--strict", "empty.yaml"], 1, "--fail-on error --strict: 1 skipped, no training configs"),
    (["tight.yaml"], [], 0, ""),
    (["tight.yaml"], ["--strict"], 0, ""),
    (["tight.yaml"], ["--fail-on", "tight"], 1, "--fail-on tight: 1 TIGHT"),
    (["tight.yaml"], ["--fail-on", "unknown"], 1, "--fail-on unknown: 1 TIGHT"),
    (["tight.yaml"], ["--fail-on", "tight", "--exit-zero"], 0, ""),
    (["fits.yaml", "zero.json"], ["--strict", "fits.yaml", "zero.json"], 0, ""),
    (list(FILES), ["--strict", "--fail-on", "tight"], 1, "1 TIGHT, 1 UNKNOWN, 1 not parsed, 1 empty"),
]


@pytest.mark.parametrize(
    ("names", "arguments", "code", "failed"),
    [pytest.param(*case, id=f"{' and '.join(case[0])} under {' '.join(case[1]) or 'no option'}") for case in CASES],
)
def test_a_policy_fails_for_what_it_names(
    names: list[str], arguments: list[str], code: int, failed: str, tmp_path: Path
) -> None:
    found, said = gate(tmp_path, names, *arguments)
    assert found == code, said
    last = said.splitlines()[-1] if said else ""
    assert ("failed by" in last) == bool(failed)
    assert failed in last
