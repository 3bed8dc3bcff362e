"""Equal findings of a folder are one with its places, and all of them where everything is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.reports import full
from memlint.reports.equal import Equal
from memlint.reports.report import Report
from tests.reports.conftest import make_finding, make_run

UNKNOWN = "model_name_or_path: nobody/knows\nper_device_train_batch_size: 1\nmax_length: 64\noutput_dir: out\n"
REASON = "MEM007"


def shown(folder: Path, **style: bool) -> str:
    return full.render(memlint.check(str(folder), isolated=True), full.Style(**style))


def test_what_is_said_of_three_files_of_a_folder_is_said_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.yaml").write_text(UNKNOWN, encoding="utf-8")
    text = shown(tmp_path)
    assert text.count(REASON) == 1
    assert "also in b.yaml:1, c.yaml:1" in text
    assert shown(tmp_path, verbose=True).count(REASON) == 3


def test_the_places_of_a_finding_are_named_as_far_as_a_reader_follows(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / f"{name}.yaml").write_text(UNKNOWN, encoding="utf-8")
    report = memlint.check(str(tmp_path), isolated=True)
    said = Equal(report).others(report.findings[0])
    assert said == "also in b.yaml:1, c.yaml:1, d.yaml:1, e.yaml:1 and 1 more place"


def test_another_folder_and_another_message_are_findings_of_their_own(tmp_path: Path) -> None:
    for name, model in (("a/a", "nobody/knows"), ("b/a", "nobody/knows"), ("b/b", "nobody/either")):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(UNKNOWN.replace("nobody/knows", model), encoding="utf-8")
    assert shown(tmp_path).count(REASON) == 3
    assert "also in" not in shown(tmp_path)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        pytest.param("", "", id="no other"),
        pytest.param("b", "also in b.yaml:3", id="one"),
        pytest.param("bcde", "also in b.yaml:3, c.yaml:3, d.yaml:3, e.yaml:3", id="as many as are named"),
        pytest.param(
            "bcdef", "also in b.yaml:3, c.yaml:3, d.yaml:3, e.yaml:3 and 1 more place", id="one more is counted"
        ),
        pytest.param(
            "bcdefg", "also in b.yaml:3, c.yaml:3, d.yaml:3, e.yaml:3 and 2 more places", id="so are two more"
        ),
    ],
)
def test_the_places_of_others(others: str, said: str) -> None:
    findings = [make_finding(path=f"configs/{name}.yaml") for name in ("a", *others)]
    elsewhere = make_finding(path="a.yaml")  # of another folder
    equal = Equal(Report(tuple(make_run(finding) for finding in (*findings, elsewhere)), 0.1))
    assert equal.others(findings[0]) == said
    assert [equal.is_first(finding) for finding in (*findings, elsewhere)] == [True, *(False for _ in others), True]
