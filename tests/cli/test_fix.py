"""``memlint check --fix`` and its kin: what is written, what is not, and how they end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memlint.cli.main import main

pytestmark = pytest.mark.usefixtures("answers_kept")

# A foreach optimizer (a safe fix), no checkpointing (an unsafe one), a batch (which changes the optimisation).
CONFIG = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B  # small\n"
    "stage: sft\ndo_train: true\nfinetuning_type: lora\nlora_target: all\ndataset: x\ntemplate: qwen\n"
    "cutoff_len: 2048\nper_device_train_batch_size: 8  # many\ndisable_gradient_checkpointing: true\n"
    "bf16: true\noutput_dir: out\n"
)
TIGHT = "4GiB"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MEMLINT_CONFIG", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path(".git").mkdir()
    Path("sft.yaml").write_text(CONFIG)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["check", "--isolated", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def text() -> str:
    return Path("sft.yaml").read_text()


def test_unsafe_fixes_wait_for_their_option() -> None:
    result = run("sft.yaml", "--budget", TIGHT, "--fix-only")
    assert result.exit_code == 0
    assert text() == CONFIG
    assert "more with --unsafe-fixes" in result.stderr


def test_what_changes_the_optimisation_waits_for_its_name() -> None:
    run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes", "--fixable", "MEM2")
    assert "per_device_train_batch_size: 8" in text()
    assert "disable_gradient_checkpointing: true" not in text()


def test_a_named_rule_is_fixed_alone() -> None:
    run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes", "--fixable", "checkpointing-disabled")
    changed = [(a, b) for a, b in zip(CONFIG.splitlines(), text().splitlines()) if a != b]
    assert [a for a, _ in changed] == ["disable_gradient_checkpointing: true"]


def test_an_unfixable_rule_is_left_alone() -> None:
    run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes", "--unfixable", "MEM1,MEM2")
    assert text() == CONFIG


def test_a_patch_is_printed_and_nothing_written() -> None:
    result = run("sft.yaml", "--budget", TIGHT, "--diff", "--unsafe-fixes")
    assert result.exit_code == 1
    assert text() == CONFIG
    assert result.stdout.startswith("--- a/sft.yaml\n+++ b/sft.yaml\n@@ ")
    assert "\n-disable_gradient_checkpointing: true\n" in result.stdout


def test_a_patch_of_nothing_is_empty() -> None:
    result = run("sft.yaml", "--diff")
    assert (result.exit_code, result.stdout) == (0, "")


def test_what_is_left_is_reported_and_decides_the_exit_code() -> None:
    result = run("sft.yaml", "--budget", TIGHT, "--fix", "--unsafe-fixes", "--fixable", "MEM202")
    assert "fixed: " in result.stderr
    assert "peak" in result.stdout
    assert result.exit_code == run("sft.yaml", "--budget", TIGHT).exit_code


def test_fixing_can_fail_a_job() -> None:
    arguments = ("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes", "--exit-non-zero-on-fix")
    assert run(*arguments).exit_code == 1
    assert run(*arguments).exit_code == 0, "the second run has nothing to fix"


def test_permissions_stay() -> None:
    Path("sft.yaml").chmod(0o750)
    run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes")
    assert text() != CONFIG
    assert stat.S_IMODE(os.stat("sft.yaml").st_mode) == 0o750


def test_nothing_is_written_through_a_link() -> None:
    Path("real.yml").write_text(CONFIG)
    Path("sft.yaml").unlink()
    Path("sft.yaml").symlink_to("real.yml")
    result = run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes")
    assert Path("real.yml").read_text() == CONFIG
    assert "symbolic link" in result.stderr


def test_a_folder_is_fixed_file_by_file() -> None:
    Path("other.yaml").write_text(CONFIG.replace("2048", "1024"))
    result = run(".", "--budget", TIGHT, "--fix-only", "--unsafe-fixes")
    assert "in 2 files" in result.stderr
    assert run(".", "--budget", TIGHT, "--diff", "--unsafe-fixes").stdout == ""


def test_a_file_that_changes_meanwhile_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint.cli import output

    original = output.refuse_links

    def meanwhile(path: str) -> None:
        Path("sft.yaml").write_text(CONFIG + "# mine\n")
        original(path)

    monkeypatch.setattr(output, "refuse_links", meanwhile)
    result = run("sft.yaml", "--budget", TIGHT, "--fix-only", "--unsafe-fixes")
    assert result.exit_code == 2
    assert text() == CONFIG + "# mine\n"
    assert sorted(os.listdir(".")) == [".git", "sft.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("sft.yaml", "--unsafe-fixes"), id="a permission without a fix"),
        pytest.param(("-", "--fix"), id="standard input"),
        pytest.param(("sft.yaml", "--fix", "--fixable", "MEM999"), id="a rule that is not there"),
        pytest.param(("sft.yaml", "--fix", "--trace"), id="a trace"),
    ],
)
def test_what_goes_with_no_fix_is_an_error(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
    assert text() == CONFIG
