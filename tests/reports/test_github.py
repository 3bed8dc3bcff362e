"""Annotations and job summary of GitHub Actions, read back with the toolkit's own rules."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents.node import Span
from memlint.plugin import ERROR, INFO, WARNING
from memlint.reports import github
from memlint.reports.report import Report
from memlint.reports.text import clean, harmless_in_actions, repository_path

from .conftest import make_finding, make_run


def parse(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it: level, properties, message."""
    match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    assert match is not None, line
    properties = dict(entry.split("=", 1) for entry in match[2].split(","))

    def unescape(text: str) -> str:
        for escaped, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(escaped, plain)
        return text

    return match[1], {name: unescape(value) for name, value in properties.items()}, unescape(match[3])


def annotate(*findings: object, **environment: str) -> list[str]:
    run = make_run(*findings)  # type: ignore[arg-type]
    return github.render(Report((run,), 0.0), environment).removesuffix("\n").split("\n")


def test_one_annotation_with_all_its_properties(report: Report) -> None:
    level, properties, message = parse(github.render(report, {}).splitlines()[0])
    assert level == "error"
    assert properties == {
        "file": "configs/demo.yaml",
        "line": "3",
        "endLine": "3",
        "col": "3",
        "endColumn": "13",
        "title": "MEM201 token-explosion",
    }
    assert message == (
        "128 samples x 64 groups dominate\nfix: batch_size 128 -> 32: peak 8.00 GiB after, 14.0 GiB less, fits"
    )


def test_levels_are_those_of_github(report: Report) -> None:
    assert [parse(line)[0] for line in github.render(report, {}).splitlines()] == ["error", "warning", "notice"]


def test_columns_are_left_out_of_spans_of_several_lines() -> None:
    (line,) = annotate(make_finding(span=Span("a.yaml", 3, 1, 5, 4)))
    assert set(parse(line)[1]) == {"file", "line", "endLine", "title"}


@given(st.text(), st.text(min_size=1).filter(lambda name: "\0" not in name and name.strip("./")))
def test_any_message_and_path_come_back_as_they_are_shown(message: str, path: str) -> None:
    lines = annotate(make_finding(message=message, span=Span(path, 1, 1, 1, 2)))
    assert len([line for line in re.split("[\r\n]", "\n".join(lines)) if line]) == 1
    _, properties, said = parse(lines[0])
    assert said == "\n".join(harmless_in_actions(clean(line)) for line in message.split("\n"))
    assert properties["line"] == "1"


def test_paths_are_relative_to_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    workspace = {"GITHUB_WORKSPACE": str(tmp_path)}
    assert repository_path("./a.yaml", workspace) == "sub/a.yaml"
    assert repository_path(str(tmp_path / "b.yaml"), workspace) == "b.yaml"
    assert repository_path("a.yaml", {}) == "a.yaml"


def test_at_most_nine_per_level_gravest_first_and_a_notice_for_the_rest() -> None:
    findings = [make_finding(line, severity=ERROR, size_bytes=line) for line in range(1, 21)]
    findings += [make_finding(line, severity=WARNING) for line in range(1, 4)]
    findings += [make_finding(line, severity=INFO) for line in range(1, 12)]
    lines = annotate(*findings, GITHUB_STEP_SUMMARY="x")
    levels = [parse(line)[0] for line in lines[:-1]]
    assert levels == ["error"] * 9 + ["warning"] * 3 + ["notice"] * 9
    assert [parse(line)[1]["line"] for line in lines[:9]] == [str(line) for line in range(20, 11, -1)]
    assert lines[-1] == "::notice title=memlint::13 more findings, see the job summary"
    assert annotate(*findings)[-1] == "::notice title=memlint::13 more findings"


def test_summary_lists_runs_and_findings(report: Report) -> None:
    text = github.summary(report)
    assert (
        "| OOM | configs/demo.yaml | 22.5 GiB | 22.4 GiB to 23.5 GiB | 16.0 GiB | to fit&#58; batch&#95;size 128"
        in text
    )
    assert "| error | MEM201 |" in text
    assert "128 samples x 64 groups dominate" in text


def test_summary_says_how_many_findings_have_no_annotation() -> None:
    findings = [make_finding(line) for line in range(1, 21)]
    text = github.summary(Report((make_run(*findings),), 0.0))
    assert text.endswith("\n11 of these findings have no annotation: a step shows ten of a kind.\n")
    assert "no annotation" not in github.summary(Report((make_run(*findings[:9]),), 0.0))


def test_what_exceeds_the_budget_is_annotated_first_whatever_its_line() -> None:
    lines = annotate(make_finding(3, size_bytes=99), make_finding(9, "MEM101"), make_finding(1, severity=WARNING))
    assert [parse(line)[1]["title"].partition(" ")[0] for line in lines] == ["MEM101", "MEM201", "MEM201"]


def test_summary_is_cut_before_github_drops_it() -> None:
    findings = [make_finding(message="x" * 10_000) for _ in range(200)]
    text = github.summary(Report((make_run(*findings),), 0.0))
    assert 800 * 1024 < len(text.encode()) < 1000 * 1024
    assert re.search(r"\n\d+ more rows are left out\.\n$", text)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("a | b", id="a new cell"),
        pytest.param("x\n| y | z |", id="a new row"),
        pytest.param("<img src=x onerror=alert(1)>", id="html"),
        pytest.param("[click](javascript:x) ![i](http://x)", id="links and images"),
        pytest.param("`code` **bold** # head", id="markup"),
    ],
)
def test_foreign_text_stays_text_in_the_summary(hostile: str) -> None:
    text = github.summary(Report((make_run(make_finding(message=hostile)),), 0.0))
    row = text.splitlines()[-1]
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == 6
    assert not set(cells[4]) & set("<>[]`*|!")


def test_summary_is_appended_only_inside_actions(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    github.write_summary(report, {})
    assert path.read_text() == "before\n"
    github.write_summary(report, {"GITHUB_STEP_SUMMARY": os.fspath(path)})
    assert path.read_text().startswith("before\n### memlint\n")
