"""One meter for all work: counted steps, the same on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import work
from memlint.check import check_paths
from memlint.settings import Settings


def test_steps_are_taken_until_there_are_none_and_then_nothing_carries_on() -> None:
    with work.limited(10):
        work.spend(10, "reading")
        for _ in range(2):
            with pytest.raises(work.OutOfWork, match=r"stopped after 10 steps of work, expanding"):
                work.spend(1, "expanding")


def test_a_part_takes_no_more_than_its_own_steps_and_the_whole_pays_for_them() -> None:
    with work.limited(100) as whole:
        with work.limited(30), pytest.raises(work.OutOfWork):
            work.spend(40, "a part")
        assert whole.left == 70
        with work.limited(1000) as part:
            assert part.limit == 70
            part.spend(5, "another")
        assert whole.left == 65


def test_without_a_meter_work_is_not_counted() -> None:
    work.spend(1 << 50, "anything")
    work.meter().spend(1 << 50, "anything")


def test_a_file_that_runs_out_of_work_ends_and_every_other_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memlint.documents import load

    (tmp_path / "a.yaml").write_text("a: 1\n")
    (tmp_path / "b.yaml").write_text("b: [1\n")
    real = load.load

    def hungry(path: str, text: str | None = None) -> object:
        if path.endswith("a.yaml"):
            work.spend(work.FILE_STEPS + 1, "reading what never ends")
        return real(path, text)

    monkeypatch.setattr(load, "load", hungry)
    report = check_paths([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], Settings(ignore=("MEM011",)))
    codes = [[finding.code for finding in run.findings] for run in report.runs]
    assert codes == [["MEM011"], ["MEM003"]]
    assert "reading what never ends: the rest of this file is not checked" in report.runs[0].findings[0].message
    assert report.exit_code("error", False) == 1


def test_documents_come_after_the_configs_that_their_commands_start(tmp_path: Path) -> None:
    """Their runs are estimated by then: of dozens none is left out for what the others took."""
    examples = Path(__file__).parents[1] / "examples" / "language_models"
    config = (examples / "full_llamafactory.yaml").read_text(encoding="utf-8")
    (tmp_path / "a_guide.md").write_text("```sh\nllamafactory-cli train train.yaml\n```\n", encoding="utf-8")
    (tmp_path / "train.yaml").write_text(config, encoding="utf-8")
    left: list[int] = []
    report = check_paths([str(tmp_path)], look=lambda _: left.append(work.meter().left))
    assert [Path(run.path).name for run in report.runs] == ["train.yaml", "a_guide.md"]
    estimated, quoted = (work.FILE_STEPS - steps for steps in left)
    assert quoted < estimated / 4
