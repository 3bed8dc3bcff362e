"""benchmarks/accuracy/strangers.py: runs that nobody had looked at keep what was said of them at first sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import strangers
from benchmarks.accuracy.strangers import Seen, Sight, Stranger
from memlint.data.catalogue import parse_gpu

ROWS = strangers.load()


def test_every_run_has_its_first_sight_and_no_other_has_one() -> None:
    assert {row.id for row in ROWS} == set(strangers.first_sight())
    assert len({row.id for row in ROWS}) == len(ROWS)
    named = {row.config.split("/")[0] for row in ROWS}
    assert named == {path.name for path in strangers.FOLDER.iterdir() if path.is_dir()}
    assert {row.draw for row in ROWS} == set(strangers.DRAWS), "each draw has a heading"
    for row in ROWS:
        assert row.where, row.id
        if row.gpu:
            parse_gpu(row.gpu)


def test_what_was_said_at_first_sight_is_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "first_sight.csv"
    strangers.keep([Sight("a-1", 5, 4, 6, "FITS", ""), Sight("a-2", None, None, None, "UNKNOWN", "no model")], path)
    strangers.keep([Sight("a-1", 9, 9, 9, "OOM", ""), Sight("a-3", 1, 1, 2, "FITS", "")], path)
    kept = strangers.first_sight(path)
    assert list(kept) == ["a-1", "a-2", "a-3"]
    assert kept["a-1"] == Sight("a-1", 5, 4, 6, "FITS", "")
    assert kept["a-2"].unknown == "no model"


def test_a_bound_is_held_against_the_upper_end_alone_and_a_report_against_the_verdict() -> None:
    def seen(reads: str, measured: int, sight: Sight) -> Seen:
        return Seen(Stranger("a-1", "1", "a", reads, "c", "", "device", measured, "", ""), sight)

    found = [
        seen("figure", 100, Sight("a-1", 110, 90, 120, "FITS", "")),
        seen("bound", 100, Sight("a-1", 300, 200, 400, "FITS", "")),
        seen("bound", 100, Sight("a-1", 80, 70, 90, "FITS", "")),
        seen("bound", 100, Sight("a-1", None, None, None, "UNKNOWN", "why")),
        seen("oom", 0, Sight("a-1", 80, 70, 90, "FITS", "")),
        seen("fits", 0, Sight("a-1", 80, 70, 90, "OOM", "")),
    ]
    summary = strangers.summarise("a", found)
    assert (summary.figures, summary.bounds, summary.unknown, summary.beyond) == (1, 3, 1, 1)
    assert summary.median == pytest.approx(0.1)
    assert summary.inside == 1.0
    assert strangers.verdicts(found) == {"FITS": 1, "TIGHT": 0, "OOM": 0, "UNKNOWN": 0}
    assert strangers.verdicts(found, "fits") == {"FITS": 0, "TIGHT": 0, "OOM": 1, "UNKNOWN": 0}


def test_the_page_keeps_the_sums_of_draws_apart() -> None:
    def seen(id: str, draw: str, reads: str, measured: int, sight: Sight) -> Seen:
        return Seen(Stranger(id, draw, "a", reads, "c", "t4", "device", measured, "somewhere", ""), sight)

    found = [
        seen("a-1", "1", "figure", 100, Sight("a-1", 110, 90, 120, "FITS", "")),
        seen("a-2", "2", "figure", 100, Sight("a-2", None, None, None, "UNKNOWN", "why")),
        seen("a-3", "2", "fits", 0, Sight("a-3", 80, 70, 90, "OOM", "")),
    ]
    text = strangers.section(found, found)
    first, second = text.split("### Of the second draw")
    assert "| all | 1 | 0, 0 | 10.0 %, 10.0 % |" in first
    assert "| all | 1 | 1, 1 | -, - |" in second
    assert "of reports of a run that fits its card" not in first
    assert "of reports of a run that fits its card" in second
