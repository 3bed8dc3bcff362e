"""How text is painted, and what is done where nobody asks for anything."""

from __future__ import annotations

import pytest

from memlint.reports import full
from memlint.reports.report import Report
from memlint.reports.style import BLUE, BOLD, CYAN, DIM, GREEN, RED, YELLOW, Style
from tests.reports.conftest import make_finding, make_run


def test_a_style_of_its_own_is_plain_and_draws_blocks() -> None:
    style = Style()
    assert (style.color, style.unicode, style.actions, style.verbose, style.quiet) == (False, True, False, False, False)
    assert style.columns == 0, "there is no terminal"


@pytest.mark.parametrize(
    ("style", "codes", "text"),
    [
        pytest.param(Style(color=True), (BOLD, RED), "\x1b[1;31mx\x1b[0m", id="two codes"),
        pytest.param(Style(color=True), (DIM,), "\x1b[2mx\x1b[0m", id="one code"),
        pytest.param(Style(color=True), (), "x", id="no code"),
        pytest.param(Style(), (BOLD,), "x", id="no colours"),
    ],
)
def test_text_is_painted(style: Style, codes: tuple[int, ...], text: str) -> None:
    assert style.paint("x", *codes) == text


def test_colours_are_those_of_a_terminal() -> None:
    assert (RED, GREEN, YELLOW, BLUE, CYAN) == (31, 32, 33, 34, 36)


@pytest.mark.parametrize(
    "painted",
    [
        pytest.param("\x1b[1;31merror\x1b[0m \x1b[1mMEM201 token-explosion\x1b[0m:", id="a severity"),
        pytest.param("\x1b[34m-->\x1b[0m configs/demo.yaml:3:3", id="a place"),
        pytest.param("\x1b[34m|\x1b[0m   \x1b[31m^^^^^^^^^^\x1b[0m", id="what is underlined"),
        pytest.param("\x1b[34m=\x1b[0m note: a note", id="a note, which is not painted itself"),
        pytest.param("\x1b[2m      18.0 GiB  encoder.blocks\x1b[0m", id="a part of a component"),
    ],
)
def test_of_a_finding_is_painted(painted: str) -> None:
    report = Report((make_run(make_finding(notes=("a note",))),), 0.1)
    assert painted in full.render(report, Style(color=True))
