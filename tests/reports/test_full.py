"""The report for people."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents.node import Span
from memlint.plugin import ERROR
from memlint.reports import concise, full
from memlint.reports.full import Style, bar
from memlint.reports.report import Report
from memlint.reports.text import clean, harmless_in_actions, source_lines, width

from .conftest import make_finding, make_run


def alone(report: Report) -> Report:
    """The first run of a report, as if nothing else had been checked."""
    return report._replace(runs=report.runs[:1])


def test_a_run_opens_with_verdict_peak_interval_budget_and_what_to_do(report: Report) -> None:
    lines = full.render(alone(report)).splitlines()
    assert lines[:3] == [
        "OOM configs/demo.yaml: peak 22.5 GiB (22.4 GiB to 23.5 GiB), "
        "budget 16.0 GiB (--budget 16GB): over by 6.49 GiB",
        "  to fit: batch_size 128 -> 32 (changes the optimisation), peak 8.00 GiB after",
        "  demo, Demo ViT-B, 261,609,114 parameters, 6,384,448 trainable, peak in backward",
    ]


def test_a_run_of_more_than_a_screen_ends_with_its_verdict_and_what_to_do(report: Report) -> None:
    lines = full.render(alone(report)).splitlines()
    assert len(lines) > full.SCREEN_LINES
    assert lines[-3:-1] == [
        "OOM: peak 22.5 GiB (22.4 GiB to 23.5 GiB), budget 16.0 GiB (--budget 16GB): over by 6.49 GiB",
        "to fit: batch_size 128 -> 32 (changes the optimisation), peak 8.00 GiB after",
    ]
    assert lines[-1] == "1 error, 1 warning in 1 file (82 ms), 2 with a fix"
    run = report.runs[0]
    short = run._replace(findings=run.findings[:1])
    lines = full.render(report._replace(runs=(short,))).splitlines()
    assert len(lines) <= full.SCREEN_LINES
    assert not any(line.startswith("OOM: ") for line in lines), "it is still to be seen above"


def test_breakdown_is_ordered_by_size_with_bars_in_proportion(report: Report) -> None:
    lines = full.render(report, Style(unicode=False)).splitlines()
    rows = [line for line in lines if "%" in line]
    assert [row.split()[0] for row in rows] == ["activations", "parameters", "context"]
    assert [row.count("#") for row in rows] == [28, 3, 1]
    assert [row.split()[-1] for row in rows] == ["88.9%", "8.9%", "2.2%"]
    assert "      18.0 GiB  encoder.blocks" in lines


def test_finding_shows_its_source_underlined_with_notes_and_fixes(report: Report) -> None:
    text = full.render(report)
    assert (
        "error MEM201 token-explosion: 128 samples x 64 groups dominate\n"
        "  --> configs/demo.yaml:3:3\n"
        " 3 |   batch_size: 128  # large\n"
        "   |   ^^^^^^^^^^\n"
        "   = line 4: shuffle: True\n"
        "   = note: grows linearly\n"
        "   = fix (changes the optimisation): batch_size 128 -> 32: peak 8.00 GiB after, 14.0 GiB less, fits\n"
    ) in text
    assert "   = fix (safe: the run learns the same): fewer\n" in text


def test_a_run_without_an_estimate_says_so(report: Report) -> None:
    unknown = report._replace(runs=report.runs[1:])
    assert full.render(unknown).startswith("UNKNOWN configs/other.yaml: peak unknown, no memory estimate\n  demo\n")


def test_closing_line_counts(report: Report) -> None:
    last = full.render(report).splitlines()[-1]
    assert last == "1 OOM, 1 UNKNOWN; 1 error, 1 warning, 1 note in 2 files (82 ms), 2 with a fix"


def test_verbose_prints_assumptions_and_what_is_unresolved(report: Report) -> None:
    text = full.render(report, Style(verbose=True))
    assert "  assumed: framework_version = torch 2.13 (not stated in the config)\n" in text
    assert "  unresolved: data.path in configs/demo.yaml:4: environment variable\n" in text


def test_quiet_prints_verdicts_and_findings_only(report: Report) -> None:
    text = full.render(alone(report), Style(quiet=True))
    assert text.startswith("OOM configs/demo.yaml: peak 22.5 GiB")
    assert "error MEM201" in text
    assert "activations" not in text
    assert "(82 ms)" not in text


def test_clean_runs_that_are_alike_are_one_row_of_a_table() -> None:
    runs = Report((make_run(path="a.yaml"), make_run(path="b.yaml")), 0.01)
    lines = [line for line in full.render(runs).splitlines() if line]
    assert lines == [
        "verdict      peak    budget  run                worst finding",
        "OOM      22.5 GiB  16.0 GiB  a.yaml and 1 more",
        "2 OOM; no findings in 2 files (10 ms)",
    ]


def test_colour_changes_nothing_but_escapes(report: Report) -> None:
    coloured = full.render(report, Style(color=True))
    assert "\x1b[1;31mOOM\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == full.render(report)


def test_concise_is_one_line_per_run_and_per_finding(report: Report) -> None:
    assert concise.render(report) == (
        "configs/demo.yaml: OOM: peak 22.5 GiB (22.4 GiB to 23.5 GiB), budget 16.0 GiB (--budget 16GB): "
        "over by 6.49 GiB\n"
        "configs/demo.yaml:3:3: MEM201 128 samples x 64 groups dominate\n"
        "configs/demo.yaml:4:3: MEM501 workers hold 3 copies\n"
        "configs/other.yaml: UNKNOWN: peak unknown, no memory estimate\n"
        "configs/demo.yaml:1:3: MEM007 no memory estimate\n"
    )


EXCERPTS = [
    pytest.param("a: 1\n", Span("x.yaml", 1, 1, 1, 2), [" 1 | a: 1", "   | ^"], id="one word"),
    pytest.param("a: 1\n", Span("x.yaml", 1, 1, 1, 1), [" 1 | a: 1", "   | ^"], id="an empty span gets one caret"),
    pytest.param("\ta: 1\n", Span("x.yaml", 1, 2, 1, 3), [" 1 |  a: 1", "   |  ^"], id="a tab is one column"),
    pytest.param(
        "名前: 1\n", Span("x.yaml", 1, 1, 1, 3), [" 1 | 名前: 1", "   | ^^^^"], id="wide characters take two columns"
    ),
    pytest.param("\U0001f40d: 1\n", Span("x.yaml", 1, 4, 1, 5), [" 1 | \U0001f40d: 1", "   |     ^"], id="emoji"),
    pytest.param(
        "a:\n  b: 1\n  c: 2\n",
        Span("x.yaml", 1, 1, 3, 7),
        [" 1 | a:", "   | ^^", " 2 |   b: 1", "   |   ^^^^", " 3 |   c: 2", "   |   ^^^^"],
        id="several lines are underlined each from its indentation",
    ),
    pytest.param(
        "a:\n  b: 1\nc: 2\n", Span("x.yaml", 1, 1, 3, 1), [" 1 | a:", "   | ^^", " 2 |   b: 1", "   |   ^^^^"], id="end"
    ),
    pytest.param("a: \x1b[2J\n", Span("x.yaml", 1, 1, 1, 2), [" 1 | a: \\x1b[2J", "   | ^"], id="escapes are shown"),
    pytest.param("a: 1\n", Span("x.yaml", 9, 1, 9, 2), [], id="a line that is not there"),
    pytest.param("a: 1\n", Span("x.yaml", 0, 1, 0, 2), [], id="nowhere"),
    pytest.param("a: 1", Span("x.yaml", 1, 1, 1, 2), [" 1 | a: 1", "   | ^"], id="the only line"),
    pytest.param("a: 1\nb: 2", Span("x.yaml", 2, 4, 2, 5), [" 2 | b: 2", "   |    ^"], id="the last line"),
    pytest.param("a: 1\n", Span("x.yaml", 1, 0, 1, 2), [" 1 | a: 1", "   | ^"], id="before the first column"),
    pytest.param("a: 1\n", Span("x.yaml", 1, 4, 1, 2), [" 1 | a: 1", "   |    ^"], id="an end before its start"),
    pytest.param("a: 1\nb: 2\n", Span("x.yaml", 2, 1, 1, 3), [" 2 | b: 2", "   | ^^^^"], id="an end on a line above"),
    pytest.param("a: 1\n", Span("x.yaml", 1, 4, 1, 40), [" 1 | a: 1", "   |    ^"], id="an end beyond the line"),
    pytest.param("a: 1\n", Span("x.yaml", 1, 9, 1, 9), [" 1 | a: 1", "   |     ^"], id="a start beyond the line"),
    pytest.param(
        "a:\n  b: 1",
        Span("x.yaml", 1, 1, 9, 9),
        [" 1 | a:", "   | ^^", " 2 |   b: 1", "   |   ^^^^"],
        id="an end beyond the file",
    ),
    pytest.param(
        "a:\n  b: [1, \n  2, 3]  # c\n",
        Span("x.yaml", 2, 6, 3, 8),
        [" 2 |   b: [1,", "   |      ^^^", " 3 |   2, 3]  # c", "   |   ^^^^^"],
        id="from within a line to within another",
    ),
    pytest.param("a: 1\nb: 2\n", Span("x.yaml", 1, 1, 1, 1), [" 1 | a: 1", "   | ^"], id="the beginning of a line"),
    pytest.param("\n" * 9 + "a: 1\n", Span("x.yaml", 10, 1, 10, 2), [" 10 | a: 1", "    | ^"], id="two digits"),
    pytest.param("\n" * 99 + "a: 1\n", Span("x.yaml", 100, 1, 100, 2), [" 100 | a: 1", "     | ^"], id="three digits"),
    pytest.param(
        "a\n" * 8,
        Span("x.yaml", 1, 1, 6, 2),
        [line for number in range(1, 7) for line in (f" {number} | a", "   | ^")],
        id="six lines are shown",
    ),
    pytest.param(
        "a\n" * 8,
        Span("x.yaml", 1, 1, 7, 2),
        [*(line for number in range(1, 6) for line in (f" {number} | a", "   | ^")), "   | ... to line 7"],
        id="of seven the first five",
    ),
    pytest.param(
        "x" * 80 + "a: 1", Span("x.yaml", 1, 81, 1, 82), [f" 1 | {'x' * 80}a: 1", f"   | {' ' * 80}^"], id="half before"
    ),
    pytest.param(
        "x" * 81 + "a: 1",
        Span("x.yaml", 1, 82, 1, 83),
        [f" 1 | ...{'x' * 77}a: 1", f"   | {' ' * 80}^"],
        id="more before is cut",
    ),
    pytest.param(
        "x" * 999 + "a: 1",
        Span("x.yaml", 1, 1000, 1, 1001),
        [f" 1 | ...{'x' * 77}a: 1", f"   | {' ' * 80}^"],
        id="much more is cut to the same",
    ),
    pytest.param(
        "a: " + "x" * 157, Span("x.yaml", 1, 1, 1, 2), [f" 1 | a: {'x' * 157}", "   | ^"], id="a line of 160 columns"
    ),
    pytest.param(
        "a: " + "x" * 158, Span("x.yaml", 1, 1, 1, 2), [f" 1 | a: {'x' * 154}...", "   | ^"], id="one of more is cut"
    ),
    pytest.param(
        "a: " + "x" * 157,
        Span("x.yaml", 1, 1, 1, 161),
        [f" 1 | a: {'x' * 157}", f"   | {'^' * 160}"],
        id="a span of 160 columns",
    ),
    pytest.param(
        "a: " + "x" * 158,
        Span("x.yaml", 1, 1, 1, 162),
        [f" 1 | a: {'x' * 154}...", f"   | {'^' * 160}"],
        id="one of more is cut, too",
    ),
    pytest.param(
        "a: " + "x" * 200,
        Span("x.yaml", 1, 4, 1, 200),
        [f" 1 | a: {'x' * 154}...", f"   |    {'^' * 157}"],
        id="behind its key it is cut",
    ),
    pytest.param(
        "\u4f60" * 40 + "a: " + "\u597d" * 60,
        Span("x.yaml", 1, 41, 1, 42),
        [" 1 | " + "\u4f60" * 40 + "a: " + "\u597d" * 37 + "...", f"   | {' ' * 80}^"],
        id="wide characters take two of the columns",
    ),
    pytest.param(
        "\u4f60" * 41 + "a: 1",
        Span("x.yaml", 1, 42, 1, 43),
        [" 1 | ..." + "\u4f60" * 38 + "a: 1", f"   | {' ' * 79}^"],
        id="wide characters before are cut to half of the columns",
    ),
    pytest.param("a: 1\r\nb: 2\r\n", Span("x.yaml", 2, 1, 2, 2), [" 2 | b: 2", "   | ^"], id="carriage returns"),
]


@pytest.mark.parametrize(("text", "span", "expected"), EXCERPTS)
def test_excerpt(text: str, span: Span, expected: list[str]) -> None:
    finding = make_finding(path="x.yaml", span=span)
    rendered = full.render(Report((make_run(finding, path="x.yaml", text=text),), 0.0), Style(quiet=True))
    *_, place = [number for number, line in enumerate(rendered.splitlines()) if "-->" in line]
    assert rendered.splitlines()[place + 1 :] == expected


def test_long_spans_and_long_lines_are_cut() -> None:
    text = "k: [\n" + "  1,\n" * 500 + "]\n" + "x" * 100_000 + "\n"
    spans = [Span("x.yaml", 1, 1, 502, 2), Span("x.yaml", 503, 50_000, 503, 90_000)]
    findings = [make_finding(path="x.yaml", span=span) for span in spans]
    rendered = full.render(Report((make_run(*findings, path="x.yaml", text=text),), 0.0))
    assert "... to line 502" in rendered
    assert max(map(len, rendered.splitlines())) <= 170


SHARES = st.floats(min_value=0, max_value=1)


@given(SHARES, SHARES)
def test_bars_grow_with_their_share(one: float, other: float) -> None:
    for style in (Style(), Style(unicode=False)):
        drawn = bar(one, style)
        assert len(drawn) <= full.BAR_COLUMNS
        assert bool(drawn) == (one > 0)
        if one <= other:
            assert len(drawn) <= len(bar(other, style))


@given(st.text())
def test_cleaned_text_cannot_steer_a_terminal(text: str) -> None:
    shown = clean(text)
    assert all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert width(shown) >= 0


@given(st.text(alphabet="ab\n\r\x85\u2028 "))
def test_source_lines_join_to_the_text(text: str) -> None:
    for name in ("x.yaml", "x.py"):
        lines = source_lines(text, name)
        breaks = "\n\r\x85\u2028" if name == "x.yaml" else "\n\r"
        assert "".join(lines) == "".join(char for char in text if char not in breaks)
        assert len(lines) == 1 + sum(text.count(char) for char in breaks) - text.count("\r\n")


HOSTILE = [
    pytest.param("::error file=x::pwned", id="a command at the start"),
    pytest.param("   ::error::pwned", id="a command after blanks"),
    pytest.param("a ##[error]pwned", id="an old command anywhere"),
    pytest.param("\n::error::pwned", id="a command after a newline"),
    pytest.param("\r::error::pwned", id="a command after a carriage return"),
]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("render", [full.render, concise.render])
def test_no_foreign_text_becomes_a_workflow_command(hostile: str, render: object) -> None:
    finding = make_finding(path=hostile, message=hostile, notes=(hostile,), severity=ERROR)
    run = make_run(finding, path=hostile, text=f"{hostile}\n{hostile}\n{hostile}\n")
    run = run._replace(model_name=hostile, family=hostile, run=hostile)
    text = render(Report((run,), 0.0), Style(actions=True, verbose=True))  # type: ignore[operator]
    for line in re.split("[\n\r]", text):
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


@given(st.text(alphabet=":# [\t\u2003abc"))
def test_harmless_lines_are_harmless(line: str) -> None:
    shown = harmless_in_actions(line)
    assert not shown.lstrip().startswith("::")
    assert "##[" not in shown
