"""A short run of each target, and whatever longer runs have found before."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, ModuleType

import pytest

from tests.fuzz.__main__ import REGRESSIONS, store, stored, with_atheris
from tests.fuzz.engine import Lines, broken_by, fuzz, minimised
from tests.fuzz.targets import TARGETS

RUNS = {"check": 40, "fixes": 15, "hydra": 80, "pins": 100, "scripts": 40}
STORED = sorted(REGRESSIONS.glob("*.json"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_breaks_no_promise(name: str) -> None:
    target = TARGETS[name]
    outcome = fuzz(target.run, target.files, seed=0, runs=RUNS.get(name, 250))
    assert [(finding.where, target.make(finding.data)) for finding in outcome.findings] == []
    assert outcome.share > 0.2, "the inputs do not get anywhere"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(path: Path) -> None:
    target, case = stored(path)
    target.hold(case)


# -- the engine itself


def test_whoever_follows_the_lines_besides_goes_on_afterwards() -> None:
    def other(frame: FrameType, event: str, argument: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        with Lines([__file__]):
            pass
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)


def picky(data: bytes) -> None:
    """Breaks on the third of three bytes that have to be met one after the other."""
    if data[:1] == b"m":
        if data[1:2] == b"e":
            if data[2:3] == b"m":
                raise KeyError("found")
        else:
            return


def test_coverage_guides_the_search() -> None:
    """Three bytes in a row are one in 16 million for chance alone."""
    outcome = fuzz(picky, [__file__], seed=1, runs=30_000)
    [finding] = outcome.findings
    assert finding.data[:3] == b"mem"
    assert outcome.kept > 2


def test_a_finding_is_shortened_to_what_breaks() -> None:
    found = broken_by(picky, b"mem and much more that has nothing to do with it")
    assert found is not None
    assert minimised(picky, found).data == b"mem"


def test_the_same_seed_finds_the_same() -> None:
    target = TARGETS["json"]
    one, other = (fuzz(target.run, target.files, seed=5, runs=60) for _ in range(2))
    assert (one.kept, one.reached) == (other.kept, other.reached)


def test_atheris_is_given_the_functions_of_modules_that_nothing_has_imported_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    atheris = ModuleType("atheris")
    atheris.instrument_func = lambda function: given.append(function.__name__)  # type: ignore[attr-defined]
    atheris.Setup = lambda arguments, run: given.append(arguments[1])  # type: ignore[attr-defined]
    atheris.Fuzz = lambda: given.append("done")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "atheris", atheris)
    monkeypatch.delitem(sys.modules, "memlint.documents.toml", raising=False)
    with_atheris(TARGETS["toml"], 0.5, 3)
    assert "read" in given
    assert given[-2:] == ["-max_total_time=30", "done"]


def test_a_finding_is_stored_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = broken_by(picky, b"mem")
    assert found is not None
    monkeypatch.setattr("tests.fuzz.__main__.REGRESSIONS", tmp_path)
    path = store(TARGETS["yaml"], found)
    assert stored(path) == (TARGETS["yaml"], TARGETS["yaml"].make(b"mem"))
    assert path.name.startswith("yaml-")
