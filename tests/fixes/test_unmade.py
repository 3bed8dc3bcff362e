"""Fixes and notes are made for who reads them: what a rule says without them is the same, and takes less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import models
from memlint.check import check_paths
from memlint.cli.plain import run
from memlint.plugin import Finding
from memlint.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = [
    "language_models/sft_trl.yaml",
    "language_models/full_llamafactory.yaml",
    "lag_mode/train_lag_mode.sh",
    "uni3d_dp/uni3d+dp_upstream_default.yaml",
    "video_llm/config_before.yaml",
]


def bare(finding: Finding) -> Finding:
    return finding._replace(fixes=(), notes=())


@pytest.mark.parametrize("name", CONFIGS)
def test_findings_without_details_are_the_others_without_fixes_and_notes(name: str) -> None:
    settings = Settings(budget="16GB")
    full = check_paths([str(EXAMPLES / name)], settings)
    short = check_paths([str(EXAMPLES / name)], settings, details=False)
    assert any(finding.fixes for finding in full.findings)
    assert list(short.findings) == [bare(finding) for finding in full.findings]
    assert short.exit_code() == full.exit_code()


def test_a_format_without_fixes_records_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = 0
    record = models.record

    def counted(*args: Any, **options: Any) -> models.Recording:
        nonlocal made
        made += 1
        return record(*args, **options)

    monkeypatch.setattr(models, "record", counted)
    counts = {}
    for arguments in (
        ["--output-format", "concise"],
        ["--output-format", "concise", "--report", f"concise={tmp_path / 'a.txt'}"],
        ["--output-format", "concise", "--report", f"full={tmp_path / 'b.txt'}"],
        ["--output-format", "full"],
    ):
        made = 0
        run(["check", str(EXAMPLES / "language_models/sft_trl.yaml"), "--budget", "16GB", "--isolated", *arguments])
        counts[" ".join(word.partition("=")[0] for word in arguments[1:])] = made
    capsys.readouterr()
    assert counts["concise"] == counts["concise --report concise"] < counts["full"]
    assert counts["concise --report full"] == counts["full"]
    assert "= fix" in (tmp_path / "b.txt").read_text()
