"""Annotations and the job summary at their bounds."""

from __future__ import annotations

import pytest

from memlint.documents.node import Span
from memlint.plugin import INFO
from memlint.reports import github
from memlint.reports.github import SUMMARY_BYTES, command, render, summary, write_summary
from memlint.reports.report import Report
from tests.reports.conftest import make_finding, make_run


def properties(span: Span) -> dict[str, str]:
    line = command(make_finding()._replace(span=span), {})
    named = line.removeprefix("::error ").partition("::")[0].split(",")
    return dict(part.split("=", 1) for part in named)


@pytest.mark.parametrize(
    ("span", "found"),
    [
        pytest.param((3, 5, 3, 9), {"line": "3", "endLine": "3", "col": "5", "endColumn": "9"}, id="within a line"),
        pytest.param((3, 5, 3, 5), {"line": "3", "endLine": "3", "col": "5"}, id="a place without a width"),
        pytest.param((3, 5, 7, 9), {"line": "3", "endLine": "7"}, id="several lines have no columns"),
        pytest.param((3, 5, 2, 9), {"line": "3", "endLine": "3"}, id="no end in front of its begin"),
    ],
)
def test_where_an_annotation_is_put(span: tuple[int, int, int, int], found: dict[str, str]) -> None:
    said = properties(Span("a.yaml", *span))
    assert {name: said[name] for name in said if name not in ("file", "title")} == found


def test_nine_of_a_level_are_shown_and_the_others_counted() -> None:
    nine = tuple(make_finding(line) for line in range(1, 10))
    assert len(render(Report((make_run(*nine),), 0.1), {}).splitlines()) == 9
    more = (*nine, make_finding(10), make_finding(11), make_finding(severity=INFO))
    lines = render(Report((make_run(*more),), 0.1), {}).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error"] * 9 + ["::notice"] * 2
    assert lines[-1] == "::notice title=memlint::2 more findings"


def test_outside_of_a_test_the_environment_is_the_real_one(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    many = Report((make_run(*(make_finding(line) for line in range(1, 12))),), 0.1)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{tmp_path}/summary.md")
    assert render(many).endswith("2 more findings, see the job summary\n")
    write_summary(many)
    write_summary(many)
    with open(f"{tmp_path}/summary.md", encoding="utf-8") as file:
        assert file.read().count("### memlint") == 2
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert render(many).endswith("2 more findings\n")
    write_summary(many)


def test_a_summary_is_as_long_as_it_may_be_and_not_a_byte_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SUMMARY_BYTES == 900 * 1024
    found = Report((make_run(*(make_finding(line, message="\u00e9") for line in range(1, 6))),), 0.1)
    whole = summary(found)
    monkeypatch.setattr(github, "SUMMARY_BYTES", len(whole.encode()))
    assert summary(found) == whole
    monkeypatch.setattr(github, "SUMMARY_BYTES", len(whole.encode()) - 1)
    rows = whole.splitlines(keepends=True)
    assert summary(found) == "".join(rows[:-1]) + "\n1 more rows are left out.\n"
    monkeypatch.setattr(github, "SUMMARY_BYTES", len("".join(rows[:-2]).encode()))
    assert summary(found) == "".join(rows[:-2]) + "\n2 more rows are left out.\n"
