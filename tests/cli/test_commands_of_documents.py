"""What a walk says of commands in documents: estimates and tables are listed, the rest is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memlint.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def test_commands_of_documents_without_an_estimate_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "torchrun --nproc_per_node {} run_clm.py --model_name_or_path {} --per_device_train_batch_size 1\n"
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text(f"```bash\n{command.format(1, '/path/to/model')}```\n", encoding="utf-8")
    (tmp_path / "docs.md").write_text(
        f"```bash\n{command.format('$GPUS', 'gpt2 --fsdp full_shard')}```\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert "  hf-trainer, gpt2\n  peak unknown without --gpu" in result.stdout  # an answer, if not one number
    assert "README.md" not in result.stdout
    assert result.stderr == "memlint: 1 command in documents without an estimate, not listed (-v lists them)\n"
    assert "memlint: README.md:2: not listed, no estimate: --model_name_or_path /path/to/model" in run(".", "-v").stderr
    assert "README.md" in run("README.md").stdout  # named, it is listed
