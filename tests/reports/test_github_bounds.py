"""Annotations and the job summary at their bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memlint.documents.node import Span
from memlint.plugin import INFO
from memlint.reports import github, markdown
from memlint.reports.github import SUMMARY_BYTES, command, render, summary, write_summary
from memlint.reports.report import Report
from memlint.reports.text import repository_path
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
        pytest.param((0, 0, 0, 0), {"line": "1", "endLine": "1", "col": "1"}, id="nowhere is the first character"),
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
    lines = render(Report((make_run(*more[:10]),), 0.1), {}).splitlines()
    assert lines[-1] == "::notice title=memlint::1 more finding"
    said = summary(Report((make_run(*more[:10]),), 0.1)).splitlines()[-1]
    assert said == "1 of these findings has no annotation: a step shows ten of a kind."


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
    assert summary(found) == "".join(rows[:-1]) + "\n1 more row is left out.\n"
    monkeypatch.setattr(github, "SUMMARY_BYTES", len("".join(rows[:-2]).encode()))
    assert summary(found) == "".join(rows[:-2]) + "\n2 more rows are left out.\n"


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        pytest.param("{}/sub/../a.yaml", "a.yaml", id="in the workspace"),
        pytest.param("/elsewhere/sub/../a.yaml", "/elsewhere/a.yaml", id="outside of it"),
        pytest.param("{}/../a\0.yaml", "{}/../a\0.yaml", id="a path that cannot be"),
    ],
)
def test_a_path_is_shown_from_the_workspace_where_it_is_in_it(path: str, seen: str, tmp_path: Path) -> None:
    found = repository_path(path.format(tmp_path), {"GITHUB_WORKSPACE": str(tmp_path)})
    assert found == os.path.normpath(seen.format(tmp_path))


def test_a_character_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(github, "summary", lambda report: "a\udcffb\n")
    write_summary(Report((make_run(),), 0.1), {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")})
    assert (tmp_path / "summary.md").read_bytes() == b"a?b\n"


def test_a_run_has_its_name_beside_its_file_unless_it_is_the_only_one() -> None:
    run = make_run()
    unknown = run._replace(estimate=None, verdict="UNKNOWN")
    rows = summary(Report((run, run._replace(run="eval"), unknown), 0.1)).splitlines()
    names = [row.split("|")[1:3] for row in rows[4:7]]
    shown = [("OOM", f"{run.path} eval"), ("OOM", run.path), ("UNKNOWN", run.path)]
    assert sorted((one.strip(), other.strip()) for one, other in names) == sorted(
        (verdict, markdown.cell(name)) for verdict, name in shown
    )


def test_text_of_a_cell_is_no_link_and_on_one_line() -> None:
    assert markdown.cell("a  b\nc\twww.x  WWW.y wwwz") == "a b c www&#46;x WWW&#46;y wwwz"
    assert markdown.cell("a|b<c>@d") == "a&#124;b&#60;c&#62;&#64;d"


def test_what_weighs_most_comes_first_and_no_finding_is_no_line() -> None:
    light, heavy = make_finding(1, size_bytes=1), make_finding(2, size_bytes=2)
    lines = render(Report((make_run(light, heavy),), 0.1), {}).splitlines()
    assert ["line=2" in line for line in lines] == [True, False]
    assert render(Report((make_run(),), 0.1), {}) == ""
