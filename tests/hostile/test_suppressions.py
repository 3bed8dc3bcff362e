"""Suppression comments made to cost: finding them is linear, and there are only so many of them."""

from __future__ import annotations

import difflib

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memlint import suppress, work
from memlint.check import check_text
from memlint.reports import json as json_report
from memlint.reports.text import source_lines
from memlint.rules_registry import built_in
from memlint.settings import Settings
from memlint.suppress import MAX_CODES, MAX_HINTS, MAX_SAID


def scanned(text: str, path: str = "x.yaml") -> suppress.Suppressions:
    return suppress.scan(path, text, built_in())


def steps_of(text: str, path: str = "x.yaml") -> int:
    with work.limited(1 << 60) as meter:
        scanned(text, path)
    return meter.used


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("x.yaml", "k{0}: 1 # a comment # and more\n"),
        ("x.yaml", "k{0}: '#' # a comment\n"),
        ("x.yaml", "# memlint: ignore[MEM201]\nk{0}: 1\n"),
        ("x.toml", "k{0} = '#' # a comment\n"),
        ("x.py", "k{0} = '#' # a comment\n"),
        ("x.sh", "k{0}='#' # a comment\n"),
    ],
)
def test_twice_the_lines_take_twice_the_work(path: str, line: str) -> None:
    def text(count: int) -> str:
        return "# memlint: ignore[MEM201]\n" + "".join(line.format(number) for number in range(count))

    once = steps_of(text(300), path)
    assert once > 300
    assert steps_of(text(600), path) < 2.5 * once


def test_no_scan_goes_on_when_its_work_is_used_up() -> None:
    for path, text in (("x.yaml", "a: 1\n"), ("x.toml", "a = 1\n"), ("x.py", "a = 1\n"), ("x.sh", "a=1\n")):
        enough = steps_of("# memlint: x\n" + text * 50, path)
        with work.limited(enough - 1), pytest.raises(work.OutOfWork):
            scanned("# memlint: x\n" + text * 50, path)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["a: ", "- ", "#", " # ", "'", '"', "|\n", ">-\n", "\n", "  ", "x", "[", "]", "{", "}", ", ", "&a "]
        ),
        max_size=25,
    ).map("".join)
)
@example("a: |\n  # text\n# comment\nb: '# text' # comment\n")
def test_a_yaml_comment_is_what_lies_in_no_token(text: str) -> None:
    try:
        tokens = list(yaml.scan(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError:
        return
    covered = [
        (
            (token.start_mark.line + 1, 0)
            if getattr(token, "style", None) in ("|", ">")
            else (token.start_mark.line, token.start_mark.column),
            (token.end_mark.line, token.end_mark.column),
        )
        for token in tokens
    ]
    expected = []
    for number, line in enumerate(source_lines(text, "x.yaml")):
        for at, character in enumerate(line):
            inside = any(first <= (number, at) < last for first, last in covered)
            if character == "#" and not inside and (at == 0 or line[at - 1] in " \t\ufeff"):
                expected.append((number, at))
                break
    assert list(suppress._yaml_comments(text)) == expected


def test_the_first_unknown_codes_get_a_proposal_and_each_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda word, *rest: asked.append(word) or original(word, *rest))
    lines = [f"k{i}: 1  # memlint: ignore[token-explosio{i}]\n" for i in range(100)]
    bad = scanned("".join(lines * 2)).bad
    assert len(bad) == 200
    assert len(asked) == MAX_HINTS
    assert "did you mean token-explosion" in bad[0].message
    assert "did you mean" not in bad[-1].message


def test_a_file_has_so_many_suppressions_and_the_next_is_told() -> None:
    for path, text in (
        ("x.yaml", "a: 1 # memlint: ignore[MEM201]\n" * (MAX_SAID + 20)),
        ("x.json", '{"//": [' + ", ".join(['"memlint: file-ignore[MEM201]"'] * (MAX_SAID + 20)) + "]}"),
    ):
        found = scanned(text, path)
        assert len(found.directives) == MAX_SAID
        assert [finding.message for finding in found.bad] == [
            "more than 1,000 suppressions in one file: none from here on hides anything"
        ]


def test_a_directive_names_so_many_codes_and_none_twice() -> None:
    (directive,) = scanned(f"a: 1 # memlint: ignore[{'MEM201, MEM202, ' * 500}]\n").directives
    assert directive.codes == ("MEM201", "MEM202")
    spelled = {text for info in built_in() for text in (info.code, info.code.lower(), info.name)}
    found = scanned(f"a: 1 # memlint: ignore[{','.join(sorted(spelled))}]\n")
    assert len(spelled) > MAX_CODES
    assert not found.directives
    as_many = ",".join(sorted(spelled)[:MAX_CODES])
    assert len(scanned(f"a: 1 # memlint: ignore[{as_many}]\n").directives[0].codes) == MAX_CODES
    assert "a prefix stands for all that begin with it" in found.bad[0].message
    (long,) = scanned(f"a: 1 # memlint: ignore[{'x' * 5_000}]\n").bad
    assert len(long.message) < 400


def test_a_report_of_wrong_suppressions_is_bounded() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 1\nmax_length: 64\noutput_dir: x\n"
    text += "# memlint: ignore[MEMXYZ]\n" * 900
    report = check_text("x.yaml", text, Settings())
    bad = [finding for run in report.runs for finding in run.findings if finding.code == suppress.BAD[0]]
    assert len(bad) == 200
    assert "700 more findings of MEM005 in this file are left out" in bad[-1].notes
    assert len(json_report.render(report)) < 300_000
