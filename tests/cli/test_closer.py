"""A folder at a glance: fixes are made for the runs that they are shown of, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.cli.plain import run
from memlint.plugin import Fix, Run
from memlint.reports import full, overview
from memlint.reports.report import Report
from memlint.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = (EXAMPLES / "language_models" / "sft_trl.yaml").read_text(encoding="utf-8")
# Of the card that these are held against the first fits, and each other one is a row of its own that does not.
BATCHES = (1, 6, 8, 10, 12, 14)
CARD = Settings(gpu="a100-40gb")

pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for batch in BATCHES:
        text = RUN.replace("per_device_train_batch_size: 4", f"per_device_train_batch_size: {batch}")
        (tmp_path / f"batch_{batch:02}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that a fix was made for, and held against their text."""
    paths: list[str] = []
    held = Run.held

    def counted(run: Run, fix: Fix) -> Fix | None:
        paths.append(run.spec.document.path)
        return held(run, fix)

    monkeypatch.setattr(Run, "held", counted)
    return paths


def told(report: Report) -> str:
    return full.render(report._replace(seconds=0.0, rule_seconds={}))


def test_what_is_shown_is_as_if_all_fixes_were_made(folder: Path, made: list[str]) -> None:
    everything = check_paths(["."], CARD)
    assert len(set(made)) > overview.MAX_ACTIONS
    made.clear()
    shown = check_paths(["."], CARD, details=False, closer=overview.looked_at)
    assert len(set(made)) == overview.MAX_ACTIONS
    assert told(shown) == told(everything)
    assert told(shown).count("to fit: ") == overview.MAX_ACTIONS
    for one, other in zip(everything.runs, shown.runs):
        assert (one.path, one.verdict, one.estimate) == (other.path, other.verdict, other.estimate)
        assert [finding.message for finding in one.findings] == [finding.message for finding in other.findings]


def test_of_a_few_runs_all_fixes_are_shown(folder: Path) -> None:
    for path in sorted(folder.iterdir())[overview.DETAILED :]:
        path.unlink()
    everything = check_paths(["."], CARD)
    assert any(finding.fixes for finding in everything.findings)
    assert told(check_paths(["."], CARD, details=False, closer=overview.looked_at)) == told(everything)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param([], overview.MAX_ACTIONS, id="a folder at a glance"),
        pytest.param(["--output-format", "json"], len(BATCHES), id="a program reads every fix"),
        pytest.param(["--verbose"], len(BATCHES), id="every finding is told"),
        pytest.param(["--output-format", "concise"], 0, id="a line for each finding"),
    ],
)
def test_the_command_makes_what_it_shows(
    folder: Path, made: list[str], capsys: pytest.CaptureFixture[str], options: list[str], shown: int
) -> None:
    run(["check", ".", "--isolated", "--gpu", "a100-40gb", *options])
    assert len(set(made)) == shown
