"""Files of pins that strangers wrote: one pass, and no release that is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlint import releases, work
from memlint.dialects import software

FILES = (*software.LOCKS, *software.REQUIREMENTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return tmp_path


def pins(project: Path, name: str, text: str) -> dict[str, str]:
    (project / name).write_text(text, newline="")
    return {package: pin.release for package, pin in software.pins(str(project)).items()}


LONG = {
    "blanks": ("requirements.txt", "torch" + " " * 500_000),
    "lines": ("requirements.txt", "\n" * 500_000),
    "lines of blanks": ("environment.yml", (" " * 3000 + "\n") * 200),
    "brackets that stay open": ("requirements.txt", "torch[" * 100_000),
    "a release without end": ("requirements.txt", "torch==1" + ".1" * 300_000),
    "the same pin again and again": ("requirements.txt", "transformers==4.50.0\n" * 30_000),
    "pins that disagree again and again": ("requirements.txt", "torch==2.1.0\ntorch==2.2.0\n" * 20_000),
    "signs of equality": ("environment.yml", "- torch" + "=" * 500_000),
    "a package and lines": ("uv.lock", ('name = "torch"' + "\n" * 1000) * 500),
    "a package and blanks": ("poetry.lock", 'name = "torch"' + " " * 500_000),
    "entries that stay open": ("Pipfile.lock", '"torch": {\n' * 40_000),
    "an entry of versions": ("Pipfile.lock", '"torch": {' + '"version": ' * 50_000),
    "tables that are none": ("pyproject.toml", ("[" + " " * 2000 + "x\n") * 300 + "torch==2.1\n"),
    "a project of brackets": ("pyproject.toml", "[project]\n" + ("torch" + "[" * 100) * 5_000),
    "a project of blanks": ("pyproject.toml", "[project]\n" + "torch" + " " * 200_000 + "x\n"),
}


@pytest.mark.parametrize(("name", "text"), LONG.values(), ids=LONG)
def test_a_long_file_says_nothing_and_takes_no_more_than_its_length(project: Path, name: str, text: str) -> None:
    with work.limited(work.FILE_STEPS) as meter:
        assert pins(project, name, text) == {}
    parsed = 2 * len(text) if name == "pyproject.toml" else 0  # TOML has its own price
    assert meter.used < 10_000 + len(text) // 50 + parsed


RELEASES = {
    "2.1.0": "2.1.0",
    "2.1.0+cu118": "2.1.0+cu118",
    "2.7.0a0+79aa17489c.nv25.04": "2.7.0a0+79aa17489c.nv25.04",
    "2.1\u00b2": None,
    "\u0662.\u0661": None,
    "2": None,
    "2.1" + "0" * 100: None,
    "9" * 5000 + ".1": None,
    "2.1.0\x1b[31m": "2.1.0",
    "2.1.0\u202e": "2.1.0",
}


@pytest.mark.parametrize(("written", "release"), RELEASES.items(), ids=[ascii(key)[:30] for key in RELEASES])
def test_a_release_is_digits_and_dots_of_a_length_that_can_be_shown(
    project: Path, written: str, release: str | None
) -> None:
    wanted = {} if release is None else {"torch": release}
    assert pins(project, "requirements.txt", f"torch=={written}\n") == wanted
    assert pins(project, "uv.lock", f'name = "torch"\nversion = "{written}"\n') == wanted
    assert pins(project, "environment.yml", f"- pytorch={written}\n") == (
        {} if release is None else {"torch": release, "pytorch": release}
    ), "and the lock beside it stays"


@pytest.mark.parametrize("version", ["2.1\u00b2", "9" * 5000 + ".1", "torch " + "9" * 20 + ".1", ".", "2.", "²"])
def test_what_is_no_release_is_older_than_nothing(version: str) -> None:
    assert releases.does("transformers.grouped_heads_in_sdpa", version), "as the newest"


# What the readers of these files were before they were linear: the same on texts of ordinary shape.
OLD = (
    r"^\s*(?P<name>torch|pytorch|jax|transformers|torchtune)\s*(?:\[[^\]\n]*\])?\s*===?\s*"
    r"(?P<release>\d+(?:\.\d+)+[\w.+!-]*)"
)
NAMES = ("torch", "torchtune", "transformers", "jax", "torchvision", "[extra]")
MARKS = (
    "==",
    "===",
    "=",
    ">=",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "#",
    ";",
    "-",
    "'",
    '"',
    ",",
    "2.1.0",
    "4.50.0+cpu",
    "2",
)
WORDS = st.sampled_from(NAMES + MARKS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=12))
def test_requirements_are_read_as_one_expression_would(project: Path, words: list[str]) -> None:
    text = "".join(words)
    wanted: dict[str, set[str]] = {}
    for line in re.split(r"\r?\n", text):
        match = re.match(OLD, line)
        if match and not line[match.end() :][:1].isalnum():
            wanted.setdefault(match["name"], set()).add(match["release"])
    found = pins(project, "requirements.txt", text)
    software._read_before.clear()
    for package, several in wanted.items():
        series = {tuple(release.split("+")[0].split(".")[:2]) for release in several}
        assert (package in found) == (len(series) == 1)
    assert set(found) <= set(wanted)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), text=st.lists(WORDS | st.text(max_size=3), max_size=20).map("".join))
def test_no_text_of_any_of_the_files_raises(project: Path, name: str, text: str) -> None:
    (project / name).write_text(text, encoding="utf-8", errors="replace", newline="")
    for package, pin in software.pins(str(project)).items():
        assert package in software.PACKAGES
        line = re.split("\r\n|\r|\n", text)[pin.span.line - 1]
        if name != "pyproject.toml":
            assert line[pin.span.column - 1 : pin.span.end_column - 1] == pin.release
    (project / name).unlink()
    software._read_before.clear()
