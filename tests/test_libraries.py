"""The command that runs the libraries' own code: what it says of a library that ran, failed, or cannot run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import releases
from tests.libraries import __main__ as libraries
from tests.libraries import sources
from tests.libraries.defaults import stated


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Which of the commands goes wrong (pip, -c, pytest), and what it says; no environment is made."""
    wrong: dict[str, str] = {}

    def tried(command: list[Any], **environment: str) -> tuple[bool, str]:
        step = next(word for word in command if word in ("pip", "-c", "pytest"))
        return step not in wrong, wrong.get(step, "3 passed\n")

    def create(home: Path, **options: bool) -> None:
        home.mkdir(exist_ok=True)

    monkeypatch.setattr(libraries, "tried", tried)
    monkeypatch.setattr(libraries.venv, "create", create)
    return wrong


@pytest.mark.parametrize(
    ("step", "said", "status", "code"),
    [
        pytest.param("", "", "ran", 0, id="it ran"),
        pytest.param("pytest", "E  1 == 2\n1 failed\n", "failed", 1, id="a test failed"),
        pytest.param("pip", "ERROR: No matching distribution found", "cannot run", 0, id="it is not installed"),
        pytest.param("-c", "ModuleNotFoundError: No module named 'triton'", "cannot run", 0, id="it is not imported"),
    ],
)
def test_each_outcome_is_told_with_its_reason(
    step: str, said: str, status: str, code: int, steps: dict[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if step:
        steps[step] = said
    monkeypatch.setattr("sys.argv", ["libraries", "--only", "trl", "--keep", str(tmp_path)])
    assert libraries.main() == code
    out = capsys.readouterr().out
    assert out.split()[:2] == ["trl", status.split()[0]]
    assert (said.splitlines() or ["3 passed"])[-1].strip() in out


def test_an_environment_is_made_anew_when_a_pin_changes(
    steps: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    create = libraries.venv.create
    monkeypatch.setattr(libraries.venv, "create", lambda home, **options: (made.append(home), create(home))[1])
    libraries.run("trl", tmp_path)
    libraries.run("trl", tmp_path)
    assert len(made) == 1
    monkeypatch.setitem(libraries.LIBRARIES, "trl", libraries.Library(("trl==99",), "import trl"))
    libraries.run("trl", tmp_path)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("family", "whose"),
    [("trl", "TRL 1.16"), ("litgpt", "litgpt 0.5"), ("deepspeed", "DeepSpeed 0.19"), ("axolotl", "Axolotl 0.19")],
)
def test_pins_are_of_the_releases_that_the_schemas_speak_of(family: str, whose: str) -> None:
    name, release = whose.lower().split()
    assert any(pin.startswith(f"{name}=={release}.") for pin in libraries.LIBRARIES[family].pins)
    assert stated(family, whose)


@pytest.mark.parametrize("name", [name for name, row in releases.BEHAVIOURS.items() if row.library != "torch"])
def test_a_row_names_a_place_that_the_lane_looks_up(name: str) -> None:
    assert sources.places(name)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param("def selective_log_softmax(): ...", [], id="it is there"),
        pytest.param("", ["trl.log_probabilities_row_by_row: trl/trainer/utils.py"], id="the file is gone"),
        pytest.param(
            "def other(): ...",
            ["trl.log_probabilities_row_by_row: trl/trainer/utils.py: selective_log_softmax"],
            id="the name is gone",
        ),
    ],
)
def test_what_an_installed_library_lacks_is_told(
    text: str, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trl" / "trainer").mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").touch()
    if text:
        (tmp_path / "trl" / "trainer" / "utils.py").write_text(text)
    row = "trl.log_probabilities_row_by_row"
    monkeypatch.setattr(releases, "BEHAVIOURS", {row: releases.BEHAVIOURS[row]})
    assert sources.missing("trl") == wrong
