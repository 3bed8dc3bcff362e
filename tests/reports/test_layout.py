"""The report for people, line by line: what stands where, at the borders of a screen, a bar, a line and an excerpt."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.documents.node import Span
from memlint.partial import LENGTH, MODEL, Partial, Row
from memlint.plugin import ERROR, INFO, SAFE, WARNING, Fix
from memlint.reports import full
from memlint.reports.full import Style, bar, breakdown, describe_fix, side_by_side
from memlint.reports.report import Measured, Report, RunReport, UnresolvedValue
from memlint.reports.text import width
from memlint.tape.estimate import FITS, OOM, TIGHT, UNKNOWN, Component, Estimate, Interval, Part
from memlint.units import GiB, MiB
from tests.reports.conftest import make_estimate, make_finding, make_run

TIMED = 12.345  # seconds
LETTERS = " ".join("x" * 70)  # words of one letter and a blank fill a line up to its last column or the one before


def reported(*runs: RunReport) -> Report:
    return Report(runs, TIMED)


def lines_of(*runs: RunReport, **style: Any) -> list[str]:
    return full.render(reported(*runs), Style(**style)).split("\n")


# -- the whole


def test_a_run_its_breakdown_and_its_findings_stand_apart_by_one_blank_line() -> None:
    first, second = make_finding(notes=("a note",)), make_finding(4, "MEM501", WARNING, "workers hold 3 copies")
    lines = lines_of(make_run(second, first), unicode=False)
    assert [number for number, line in enumerate(lines) if not line] == [2, 8, 14, 19, 21]
    assert lines[9].startswith("error MEM201")
    assert lines[15].startswith("warning MEM501")
    assert lines[-2] == "1 error, 1 warning in 1 file (12345 ms)"


def test_quiet_leaves_verdicts_and_findings_without_blank_lines() -> None:
    lines = lines_of(make_run(make_finding(), make_finding(4, message="more")), quiet=True, verbose=True)
    assert [line.partition(":")[0] for line in lines] == [
        "OOM configs/demo.yaml",
        "  demo, Demo ViT-B, 261,609,114 parameters, 6,384,448 trainable, peak in backward",
        "error MEM201 token-explosion",
        "  --> configs/demo.yaml",
        " 3 |   batch_size",
        "   |   ^^^^^^^^^^",
        "error MEM201 token-explosion",
        "  --> configs/demo.yaml",
        " 4 |   shuffle",
        "   |   ^^^^^^^^^^",
        "",
    ]


@pytest.mark.parametrize(
    ("style", "text"),
    [
        pytest.param(Style(), "no findings in 0 files (12345 ms)\n", id="nothing was checked"),
        pytest.param(Style(quiet=True), "", id="and nothing is said of it"),
    ],
)
def test_a_report_of_nothing(style: Style, text: str) -> None:
    assert full.render(reported(), style) == text


def test_what_is_harmless_is_the_same_in_a_workflow() -> None:
    run = make_run(make_finding())
    assert lines_of(run, actions=True) == lines_of(run)


@pytest.mark.parametrize("verbose", [True, False])
def test_as_many_lines_as_a_terminal_opens_with_are_followed_by_the_verdict(verbose: bool) -> None:
    again = set()
    for notes in range(14):
        lines = lines_of(make_run(make_finding(notes=("a note",) * notes)), verbose=verbose)
        above = next(number for number, line in enumerate(lines) if line.startswith(("OOM: ", "1 error")))
        assert lines[above].startswith("OOM: ") == (above >= 24)
        again.add(above >= 24)
    assert again == {True, False}


def test_the_verdict_at_the_end_is_folded_as_that_at_the_beginning() -> None:
    budget = make_run().budget
    assert budget is not None
    run = make_run(make_finding(notes=("a note",) * 20))._replace(budget=budget._replace(source=LETTERS))
    lines = lines_of(run, columns=60)
    at = next(number for number, line in enumerate(lines) if line.startswith("OOM: "))
    assert lines[at + 1].startswith("  (x x"), "what goes on is indented"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({}, False, id="nothing is said of it: the table has it"),
        pytest.param({"findings": (make_finding(path="b.yaml"),)}, True, id="something was found"),
        pytest.param({"measured": Measured(make_estimate(), FITS, "model.py")}, True, id="it was measured"),
        pytest.param(
            {"estimate": None, "partial": Partial((LENGTH,), ("n",), (Row((512,), GiB, Interval(GiB, GiB), FITS),))},
            True,
            id="its peak is a function",
        ),
    ],
)
def test_a_run_of_several_is_told_where(changed: dict[str, Any], told: bool) -> None:
    other = make_run(path="b.yaml")._replace(**changed)
    runs = (make_run(make_finding()), other)
    assert any(line.startswith("OOM b.yaml: ") for line in lines_of(*runs)) is told
    assert any(line.startswith("OOM b.yaml: ") for line in lines_of(*runs, verbose=True))
    assert any(line.startswith("OOM b.yaml: ") for line in lines_of(other)), "alone it is the report"


def test_a_breakdown_stands_below_a_run_alone_and_below_one_with_findings() -> None:
    clean, found = make_run(path="b.yaml"), make_run(make_finding())
    measured = clean._replace(measured=Measured(make_estimate(), FITS, "model.py"))

    def breakdowns(*runs: RunReport) -> int:
        return sum("88.9%" in line for line in lines_of(*runs))

    assert [breakdowns(clean), breakdowns(found), breakdowns(found, clean), breakdowns(found, measured)] == [1, 1, 1, 1]
    unknown = found._replace(estimate=None, verdict=UNKNOWN)
    assert [breakdowns(unknown), breakdowns(unknown, clean)] == [0, 0]
    assert sum("GiB  head" in line for line in lines_of(found)) == 1, "the largest alone is taken apart"
    assert sum("GiB  head" in line for line in lines_of(found, verbose=True)) == 2


@pytest.mark.parametrize(("count", "told"), [(1, True), (2, True), (3, True), (4, False)])
def test_findings_of_three_runs_are_told_and_those_of_four_are_counted(count: int, told: bool) -> None:
    fix = Fix("smaller", SAFE, ())
    runs = [make_run(make_finding(message=f"{number}", fixes=(fix,))) for number in range(count)]
    lines = lines_of(*runs)
    assert sum("-->" in line for line in lines) == (count if told else 0)
    assert lines[0].startswith("verdict ") == (count > 1)
    assert any(line.startswith("error MEM201 token-explosion x 4: ") for line in lines) is not told
    fixable = f", {count} with a fix"
    assert lines[-2].endswith(f" ms){fixable if told else ''}")
    unfolded = lines_of(*runs, verbose=True)
    assert sum("-->" in line for line in unfolded) == count
    assert unfolded[-2].endswith(fixable)


def test_blank_lines_part_the_table_the_findings_and_the_end() -> None:
    few = [make_run(make_finding(message=f"{number}")) for number in range(2)]
    assert "\n\n\n" not in full.render(reported(*few, make_run(path="clean.yaml")))
    rules = lines_of(*(make_run(make_finding(message=f"{number}")) for number in range(4)))
    assert [number for number, line in enumerate(rules) if not line] == [2, 5, 7]


# -- the closing line


@pytest.mark.parametrize(
    ("severities", "color"),
    [
        pytest.param([WARNING, ERROR], "31m1 error, 1 warning", id="red with an error"),
        pytest.param([INFO], "33m1 note", id="yellow with anything else"),
        pytest.param([], "32mno findings", id="green with nothing"),
    ],
)
def test_the_closing_line_is_coloured_by_the_worst(severities: list[str], color: str) -> None:
    run = make_run(*(make_finding(severity=severity) for severity in severities))
    line = full.closing(reported(run, run), Style(color=True))
    doubled = color.replace("1 error", "2 errors").replace("1 warning", "2 warnings").replace("1 note", "2 notes")
    assert line == f"2 \x1b[1;31mOOM\x1b[0m; \x1b[1;{doubled}\x1b[0m in 1 file, 2 runs (12345 ms)"


def test_statistics_have_the_most_findings_first_then_the_slowest_rule() -> None:
    findings = [make_finding(code=code) for code in ("MEM300", "MEM350", "MEM201", "MEM201")]
    seconds = {"MEM100": 0.5, "MEM350": 0.25, "MEM400": 1.25, "MEM201": 0.0625, "MEM200": 0.5}
    assert full.statistics(Report((make_run(*findings),), 0.1, rule_seconds=seconds)).split("\n") == [
        "     2      62.5 ms  MEM201 token-explosion",
        "     1     250.0 ms  MEM350 token-explosion",
        "     1       0.0 ms  MEM300 token-explosion",
        "     0    1250.0 ms  MEM400",
        "     0     500.0 ms  MEM100",
        "     0     500.0 ms  MEM200",
        "",
    ]


# -- bars and the breakdown


@pytest.mark.parametrize(
    ("share", "blocks", "marks"),
    [
        pytest.param(0.0, "", 0, id="nothing has none"),
        pytest.param(1e-9, "\u258f", 1, id="the least has the least"),
        pytest.param(1.49 / 256, "\u258f", 1, id="less than half an eighth more is none"),
        pytest.param(1.5 / 256, "\u258e", 1, id="half an eighth more is one"),
        pytest.param(1 / 64, "\u258c", 1, id="half a column"),
        pytest.param(9 / 256, "\u2588\u258f", 1, id="an eighth beyond a column"),
        pytest.param(3 / 64, "\u2588\u258c", 2, id="half a column more is one of ASCII"),
        pytest.param(0.5, "\u2588" * 16, 16, id="half of the columns"),
        pytest.param(1.0, "\u2588" * 32, 32, id="all of them"),
    ],
)
def test_a_bar(share: float, blocks: str, marks: int) -> None:
    assert bar(share, Style()) == blocks
    assert bar(share, Style(unicode=False)) == "#" * marks


def estimate_of(device: int, *components: Component) -> Estimate:
    return make_estimate()._replace(device_bytes=device, components=components)


def told(estimate: Estimate, **options: Any) -> list[str]:
    return [line.rstrip() for line in breakdown(estimate, Style(unicode=False), **options)]


def parts_of(*sizes: int) -> tuple[Part, ...]:
    return tuple(Part(f"part{size // MiB}", size) for size in sizes)


def test_a_component_of_several_parts_is_taken_apart() -> None:
    halves = parts_of(300 * MiB, 724 * MiB)
    assert told(estimate_of(GiB, Component("saved_for_backward", GiB, halves), Component("other", 0))) == [
        f"  saved for backward    1.00 GiB  {'#' * 32} 100.0%",
        "       724 MiB  part724",
        "       300 MiB  part300",
        f"  other                      0 B  {' ' * 32}  0.0%",
    ]
    assert len(told(estimate_of(GiB, Component("one", GiB, halves[:1])))) == 1


@pytest.mark.parametrize(
    ("component", "options", "count"),
    [
        pytest.param(Component("a", 50 * MiB, parts_of(30 * MiB, 20 * MiB)), {}, 2, id="a twentieth is"),
        pytest.param(Component("a", 49 * MiB, parts_of(30 * MiB, 19 * MiB)), {}, 0, id="less is not"),
        pytest.param(Component("a", 500 * MiB, parts_of(*[MiB] * 3)), {}, 3, id="in three parts"),
        pytest.param(Component("a", 500 * MiB, parts_of(*[MiB] * 4)), {}, 4, id="and one line for the rest"),
        pytest.param(Component("a", 500 * MiB, parts_of(*[MiB] * 9)), {}, 4, id="however many these are"),
        pytest.param(
            Component("a", 999 * MiB, parts_of(MiB, MiB)), {"folds": True}, 2, id="folded, if it is the largest"
        ),
        pytest.param(Component("a", 400 * MiB, parts_of(MiB, MiB)), {"folds": True}, 0, id="folded, if it is not"),
    ],
)
def test_what_is_taken_apart(component: Component, options: dict[str, Any], count: int) -> None:
    beside = Component("b", 600 * MiB), Component("c", MiB)
    lines = told(estimate_of(1000 * MiB, beside[0], component, beside[1]), **options)
    at = next(number for number, line in enumerate(lines) if line.startswith("  a "))
    assert len(lines) == 3 + count
    assert all(line.startswith("    ") for line in lines[at + 1 : at + 1 + count])


def test_a_part_has_its_name_and_its_title() -> None:
    parts = (Part("", 3 * MiB), Part("x" * 70, 2 * MiB, title="LLaVA\x07"), Part("y" * 60, MiB))
    assert [line.split("  ")[-1] for line in told(estimate_of(6 * MiB, Component("a", 6 * MiB, parts)))[1:]] == [
        "(top)",
        "x" * 57 + "... (LLaVA\\x07)",
        "y" * 60,
    ]


@pytest.mark.parametrize(
    ("device", "size", "share"), [(0, 0, "0.0%"), (1, 1, "100.0%"), (2, 1, "50.0%")], ids=["nothing", "a byte", "two"]
)
def test_shares_of_next_to_nothing(device: int, size: int, share: str) -> None:
    (line,) = told(estimate_of(device, Component("a", size)))
    assert line.split()[-1] == share


def test_nothing_has_no_breakdown() -> None:
    assert told(estimate_of(0)) == []


def test_names_of_any_length_are_one_column() -> None:
    lines = told(estimate_of(GiB, Component("n" * 90, GiB), Component("a\x1b", 0), Component("\u4f60", 0)))
    assert {width(line.partition("B  ")[0]) for line in lines} == {73}


@pytest.mark.parametrize(
    ("kept", "avoided", "said"),
    [
        pytest.param(GiB, 9, "1.00 GiB  of all this is attention probabilities", id="all of the activations"),
        pytest.param(GiB + 1, 9, "", id="gone by the peak"),
        pytest.param(
            0,
            2 * GiB,
            "0 B  attention probabilities: the kernel is fused (plain attention would keep 2.00 GiB)",
            id="left to a kernel",
        ),
        pytest.param(0, 0, "", id="there are none"),
    ],
)
def test_attention_probabilities(kept: int, avoided: int, said: str) -> None:
    estimate = estimate_of(GiB, Component("activations", GiB), Component("logits", 0))
    lines = told(estimate._replace(probabilities_kept_bytes=kept, probabilities_avoided_bytes=avoided))
    assert [line.strip() for line in lines[1:-1]] == ([said] if said else [])
    assert lines[-1].startswith("  logits")


# -- a peak that is a function


def row(value: object, size: int, verdict: str = UNKNOWN, beyond: int = 0) -> Row:
    return Row((value,), size * GiB, Interval(size * GiB, (size + beyond) * GiB), verdict)


BY_LENGTH = Partial((LENGTH,), ("max_length",), (row(512, 8, FITS), row(2048, 16, TIGHT, 1), row(8192, 32, OOM)), 2304)
BY_MODEL = Partial((MODEL,), ("model_name",), (row("org/small", 8), row("org/much-larger", 32)))


@pytest.mark.parametrize(
    ("partial", "budget", "lines"),
    [
        pytest.param(
            BY_LENGTH,
            True,
            [
                "  peak unknown without max_length:",
                "      512 tokens  8.00 GiB  FITS",
                "    2,048 tokens  16.0 GiB (16.0 GiB to 17.0 GiB)  TIGHT",
                "    8,192 tokens  32.0 GiB  OOM",
                "  fits 16.0 GiB up to 2,304 tokens",
            ],
            id="of a length, with the longest that fits",
        ),
        pytest.param(
            BY_LENGTH._replace(most=0, rows=BY_LENGTH.rows[2:]),
            True,
            [
                "  peak unknown without max_length:",
                "    8,192 tokens  32.0 GiB  OOM",
                "  does not fit 16.0 GiB at any length",
            ],
            id="of a length, where none fits",
        ),
        pytest.param(
            BY_LENGTH._replace(most=None, rows=BY_LENGTH.rows[:1]),
            True,
            ["  peak unknown without max_length:", "    512 tokens  8.00 GiB  FITS"],
            id="of a length, where all fit",
        ),
        pytest.param(
            BY_LENGTH._replace(keys=("max_length", "k" * 90), rows=BY_LENGTH.rows[:1]),
            False,
            [f"  peak unknown without max_length and {'k' * 77}...:", "    512 tokens  8.00 GiB"],
            id="without a budget",
        ),
        pytest.param(
            BY_MODEL,
            False,
            [
                "  peak unknown without model_name:",
                "    as org/small        8.00 GiB",
                "    as org/much-larger  32.0 GiB",
            ],
            id="of a model, whose names begin in one column",
        ),
    ],
)
def test_a_peak_as_a_function_is_a_table(partial: Partial, budget: bool, lines: list[str]) -> None:
    run = make_run()._replace(estimate=None, verdict=UNKNOWN, partial=partial)
    run = run if budget else run._replace(budget=None)
    assert list(full.table(partial, run.budget, Style())) == lines
    assert set(lines) <= set(lines_of(run))
    assert not set(lines) & set(lines_of(run, quiet=True))
    assert not set(lines) & set(lines_of(run._replace(partial=partial._replace(at_least=True)))), "a bound is none"


# -- the fine print


def test_what_was_assumed_has_a_reason_where_there_is_one() -> None:
    run = make_run()
    assert run.estimate is not None
    assumptions = (("precision", "bf16\x07", "the card has it"), ("seed", "1", ""))
    run = run._replace(
        estimate=run.estimate._replace(assumptions=assumptions),
        unresolved=(UnresolvedValue("data\x07", 4, "a call", "b.yaml"),),
    )
    printed = [line for line in lines_of(run, verbose=True) if "assumed" in line or "unresolved" in line]
    assert printed == [
        "  assumed: precision = bf16\\x07 (the card has it)",
        "  assumed: seed = 1",
        "  unresolved: data\\x07 in b.yaml:4: a call",
    ]
    assert not set(printed) & set(lines_of(run))


# -- what was measured beside what was predicted


def measured_of(basis: str, device: int, **components: int) -> Estimate:
    rows = tuple(Component(name, size) for name, size in components.items())
    return make_estimate()._replace(
        basis=basis, device_bytes=device, allocated_bytes=GiB, reserved_bytes=GiB, components=rows
    )


STATIC = measured_of("static", 10 * GiB, a=4 * GiB, b=0, c=0)
TRACED = measured_of("trace+measured", 9 * GiB, d=0, c=0)
PROBED = measured_of("probe", 12 * GiB, e=0, a=3 * GiB, long_name=8 * GiB)


def test_a_measurement_is_a_column_of_its_own() -> None:
    found = list(side_by_side(Measured(PROBED, OOM, "s" * 110), STATIC, Style(), TRACED))
    assert found == [
        f"  measured peak 12.0 GiB in backward ({'s' * 97}...): OOM",
        "                    measured     traced   difference     static   difference",
        "  long name         8.00 GiB        0 B    +8.00 GiB        0 B    +8.00 GiB",
        "  a                 3.00 GiB        0 B    +3.00 GiB   4.00 GiB      -25.00%",
        # Of no size in what was measured: as the prediction has them, then the trace, then what only it has.
        "  b                      0 B        0 B            =        0 B            =",
        "  c                      0 B        0 B            =        0 B            =",
        "  d                      0 B        0 B            =        0 B            =",
        "  e                      0 B        0 B            =        0 B            =",
        "  allocated         1.00 GiB   1.00 GiB            =   1.00 GiB            =",
        "  reserved          1.00 GiB   1.00 GiB            =   1.00 GiB            =",
        "  device            12.0 GiB   9.00 GiB      +33.33%   10.0 GiB      +20.00%",
    ]


def test_a_measurement_by_itself_has_no_difference() -> None:
    found = list(side_by_side(Measured(PROBED, UNKNOWN, "s" * 100, notes=("a note",)), None, Style()))
    assert found[0] == f"  measured peak 12.0 GiB in backward ({'s' * 100})"
    assert found[1] == "  long name         8.00 GiB"
    assert found[-1] == "  note: a note"
    assert not any("difference" in line for line in found)


# -- findings


def test_a_message_of_several_lines_goes_on_below_its_place() -> None:
    elsewhere = ((Span("configs/demo.yaml", 1, 1, 1, 2), "here"), (Span("b\x07.yaml", 7, 1, 7, 2), "there"))
    finding = make_finding(message="first\nsecond", related=elsewhere, notes=("one\ntwo",))
    lines = lines_of(make_run(finding), quiet=True)
    assert lines[2] == "error MEM201 token-explosion: first"
    assert lines[6:-1] == [
        "   = second",
        "   = line 1: here",
        "   = b\\x07.yaml:7: there",
        "   = note: one",
        "   = note: two",
    ]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        pytest.param(3, "  --> configs/demo.yaml:3:3", id="of one digit"),
        pytest.param(12, "   --> configs/demo.yaml:12:3", id="of two digits"),
        pytest.param(99, "  --> configs/demo.yaml:99:3", id="that is not there"),
    ],
)
def test_a_place_begins_where_the_numbers_of_its_lines_end(line: int, place: str) -> None:
    assert place in lines_of(make_run(make_finding(line), text="a: 1\n" * 20))


def test_where_others_say_the_same_is_told_once_and_not_where_all_are() -> None:
    runs = [make_run(make_finding(path=path), path=path) for path in ("a.yaml", "b.yaml")]
    lines = lines_of(*runs)
    assert lines.count("   = also in b.yaml:3") == 1
    assert sum("-->" in line for line in lines) == 1
    assert not any("also in" in line for line in lines_of(*runs, verbose=True))


@pytest.mark.parametrize("columns", [60, 61])
def test_what_a_finding_says_fills_the_terminal_but_for_its_last_column(columns: int) -> None:
    finding = make_finding(10, message=LETTERS, notes=(LETTERS,))
    lines = lines_of(make_run(finding, text="\n" * 20), quiet=True, columns=columns)
    at = next(number for number, line in enumerate(lines) if line.startswith("error MEM201 token-explosion: x x"))
    assert lines[at + 1].startswith("    x x")
    note = next(number for number, line in enumerate(lines) if "= note: x x" in line)
    assert lines[note].startswith("    = note: x x")
    assert lines[note + 1].startswith("          x x")
    # With the blanks between the letters each of these lines has an odd length.
    assert {len(lines[number]) for number in (at, at + 1, note, note + 1)} == {59}


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        pytest.param(Fix("a\x07", SAFE, ()), "a\\x07", id="its effect is not known"),
        pytest.param(Fix("a", SAFE, (), GiB, 0, None), "a: peak 1.00 GiB after", id="it saves nothing"),
        pytest.param(Fix("a", SAFE, (), GiB, 1, True), "a: peak 1.00 GiB after, 1 B less, fits", id="it is enough"),
        pytest.param(
            Fix("a", SAFE, (), GiB, -1, False),
            "a: peak 1.00 GiB after, 1 B more, does not surely fit yet",
            id="it takes more",
        ),
    ],
)
def test_what_a_fix_does(fix: Fix, said: str) -> None:
    assert describe_fix(fix) == said
