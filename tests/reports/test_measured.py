"""A run that was measured, beside what was predicted, as text and as JSON; and what else a run's report may say."""

from __future__ import annotations

import json

import pytest

from memlint.documents.node import Span
from memlint.partial import Partial, Row
from memlint.reports import full
from memlint.reports import json as json_report
from memlint.reports.full import Style, breakdown, headline, side_by_side
from memlint.reports.report import Measured, Report
from memlint.reports.verdict import verdict_line
from memlint.tape.estimate import MEASURED, Component, Estimate, Interval, Part
from memlint.units import GiB, MiB
from tests.reports.conftest import make_estimate, make_finding, make_run


def estimate(basis: str, device: int, **components: int) -> Estimate:
    rows = tuple(Component(name, size) for name, size in components.items())
    return make_estimate()._replace(basis=basis, device_bytes=device, components=rows)


STATIC = estimate("static", 10 * GiB, parameters=4 * GiB, activations=2 * GiB)
TRACED = estimate("trace", 11 * GiB, parameters=4 * GiB, logits=GiB)
PROBED = estimate("probe+measured", 12 * GiB, parameters=4 * GiB, activations=3 * GiB, context=GiB)


def rows(measured: Measured, static: Estimate | None, traced: Estimate | None = None) -> list[list[str]]:
    return [line.split() for line in side_by_side(measured, static, Style(), traced)]


def test_a_measured_run_stands_beside_the_prediction() -> None:
    found = rows(
        Measured(estimate("probe", 12 * GiB, parameters=4 * GiB, activations=3 * GiB), "OOM", "model.py"), STATIC
    )
    assert found[0] == ["measured", "peak", "12.0", "GiB", "in", "backward", "(model.py):", "OOM"]
    assert found[1] == ["measured", "static", "difference"]
    assert found[2] == ["parameters", "4.00", "GiB", "4.00", "GiB", "="]
    assert found[3] == ["activations", "3.00", "GiB", "2.00", "GiB", "+50.00%"]
    assert [row[0] for row in found[4:]] == ["allocated", "reserved", "device"]
    assert found[6] == ["device", "12.0", "GiB", "10.0", "GiB", "+20.00%"]


def test_a_trace_stands_between_the_two() -> None:
    found = rows(Measured(PROBED, "UNKNOWN", "model.py"), STATIC, TRACED)
    assert "OOM" not in found[0]
    assert found[1] == ["probe+measured", "traced", "difference", "static", "difference"]
    assert found[2] == ["parameters", "4.00", "GiB", "4.00", "GiB", "=", "4.00", "GiB", "="]
    assert found[3] == ["activations", "3.00", "GiB", "0", "B", "+3.00", "GiB", "2.00", "GiB", "+50.00%"]
    assert found[4] == ["context", "1.00", "GiB", "0", "B", "+1.00", "GiB", "0", "B", "+1.00", "GiB"]
    assert found[5] == ["logits", "0", "B", "1.00", "GiB", "-100.00%", "0", "B", "="]
    assert found[-1][0] == "device"


def test_a_measured_run_without_a_prediction_stands_alone() -> None:
    found = rows(Measured(TRACED, "FITS", "model.py", notes=("a\x1bnote",)), None)
    assert found[0][:2] == ["traced", "peak"]
    assert found[1] == ["parameters", "4.00", "GiB"]
    assert found[-1] == ["note:", "a\\x1bnote"]


def test_what_is_equally_large_comes_as_predicted_first() -> None:
    found = rows(Measured(estimate("trace", GiB, b=1, a=1), "FITS", "x"), estimate("static", GiB, a=1, b=1))
    assert [row[0] for row in found[2:4]] == ["a", "b"]


def test_assumptions_of_a_measured_run_are_said_where_all_is() -> None:
    measured = Measured(TRACED, "FITS", "model.py")
    assert not any("torch 2.13" in line for line in side_by_side(measured, None, Style()))
    [line] = [line for line in side_by_side(measured, None, Style(verbose=True)) if "torch 2.13" in line]
    assert line == "  traced: framework_version = torch 2.13 (not stated in the config)"


def test_json_has_the_measured_run_and_its_difference() -> None:
    run = make_run()._replace(estimate=STATIC, measured=Measured(PROBED, "OOM", "model.py", ("slow",)))
    found = json.loads(json_report.render(Report((run,), 0.1)))["files"][0]["measured"]
    assert (found["basis"], found["verdict"], found["device_bytes"]) == ("probe+measured", "OOM", 12 * GiB)
    assert (found["source"], found["notes"]) == ("model.py", ["slow"])
    assert found["difference"] == {"parameters": 0, "activations": GiB, "context": GiB}
    alone = json_report.as_dict(Report((run._replace(estimate=None),), 0.1))["files"][0]["measured"]
    assert alone["difference"] is None
    assert json_report.as_dict(Report((make_run(),), 0.1))["files"][0]["measured"] is None


def test_json_says_nothing_of_what_is_not_there() -> None:
    [run] = json_report.as_dict(Report((make_run()._replace(budget=None, model_name=""),), 0.1))["files"]
    assert run["budget"] is None
    assert run["model"]["name"] is None
    assert run["model"]["parts"] == []
    assert run["estimate"]["phases"]["evaluation"] == 0
    assert "also_lines" not in run


@pytest.mark.parametrize(
    ("budget", "verdicts"),
    [
        pytest.param(True, ["FITS", None], id="with a budget, where it decides"),
        pytest.param(False, [None, None], id="and never without one"),
    ],
)
def test_json_has_a_verdict_for_each_size_of_what_is_open(budget: bool, verdicts: list[str | None]) -> None:
    rows = tuple(Row((size,), GiB, Interval(GiB, 2 * GiB), word) for size, word in ((512, "FITS"), (1024, "UNKNOWN")))
    run = make_run()._replace(estimate=None, partial=Partial(("sequence_length",), ("max_length",), rows, 512))
    [found] = json_report.as_dict(Report((run if budget else run._replace(budget=None),), 0.1))["files"]
    assert found["partial"] == {
        "open": [{"fact": "sequence_length", "key": "max_length"}],
        "rows": [
            {"sequence_length": size, "device_bytes": GiB, "low_bytes": GiB, "high_bytes": 2 * GiB, "verdict": word}
            for size, word in zip((512, 1024), verdicts)
        ],
        "fits_up_to": 512,
        "at_least": False,
    }


def test_json_says_who_starts_a_run() -> None:
    run = make_run()._replace(launch=Span("run.sh", 7, 1, 7, 9), also_lines=(9, 11))
    runs = (run, run._replace(launched_with="ds.json", also_lines=()), make_run())
    found = json_report.as_dict(Report(runs, 0.1))["files"]
    assert [(each.get("launch"), each.get("also_lines")) for each in found] == [
        ({"path": "run.sh", "line": 7}, [9, 11]),
        ({"path": "run.sh", "line": 7, "with": "ds.json"}, None),
        (None, None),
    ]


def test_json_is_indented_and_pure_ascii() -> None:
    text = json_report.render(Report((make_run(make_finding(message="\u00e9\x7f")),), 0.1))
    assert text.startswith('{\n  "version"')
    assert text.endswith("}\n")
    assert "\\u00e9\\u007f" in text


def test_values_of_any_kind_are_plain_in_json() -> None:
    value = {1: (True, None, float("inf"), {"a": [1.5, b"x"]}), "s": Interval(1, 2)}
    assert json_report.plain(value) == {
        "1": [True, None, "inf", {"a": [1.5, "b'x'"]}],
        "s": str(Interval(1, 2)),
    }


# -- words of a run


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param((), "", id="once"),
        pytest.param((7,), ", the same run 2 times: also on line 7", id="twice"),
        pytest.param((7, 9), ", the same run 3 times: also on lines 7, 9", id="three times"),
        pytest.param((1, 2, 3, 4), ", the same run 5 times: also on lines 1, 2, 3, 4", id="five times"),
        pytest.param((1, 2, 3, 4, 5), ", the same run 6 times: also on lines 1, 2, 3, 4 and 1 more", id="six times"),
        pytest.param(
            tuple(range(1, 3000)), ", the same run 3,000 times: also on lines 1, 2, 3, 4 and 2,995 more", id="often"
        ),
    ],
)
def test_a_run_that_a_script_starts_again(lines: tuple[int, ...], said: str) -> None:
    assert headline(make_run()._replace(also_lines=lines), Style()).endswith(f", peak in backward{said}")


def test_a_headline_says_what_a_measurement_did() -> None:
    run = make_run()
    assert run.estimate is not None
    narrowed = run._replace(estimate=run.estimate._replace(basis="static" + MEASURED))
    assert ", narrowed by a measurement" in headline(narrowed, Style())
    assert "measurement" not in headline(run, Style())
    exact = run.estimate._replace(device_interval=Interval(run.estimate.device_bytes, run.estimate.device_bytes))
    assert " to " not in verdict_line(run._replace(estimate=exact))


def test_attention_is_told_below_the_activations_alone() -> None:
    kept = make_estimate()._replace(probabilities_kept_bytes=GiB)
    lines = list(breakdown(kept, Style()))
    [at] = [number for number, line in enumerate(lines) if "attention probabilities" in line]
    above = [line.split()[0] for line in lines[:at] if not line.startswith("    ")]
    assert above[-1] == "activations"
    assert "1.00 GiB  of all this is attention probabilities" in lines[at]
    fused = make_estimate()._replace(probabilities_avoided_bytes=GiB)
    assert sum("plain attention would keep 1.00 GiB" in line for line in breakdown(fused, Style())) == 1
    assert not any("attention" in line for line in breakdown(make_estimate(), Style()))


def test_a_breakdown_is_in_columns() -> None:
    lines = [line for line in breakdown(make_estimate(), Style(unicode=False)) if not line.startswith("    ")]
    assert len({line.index("GiB") if "GiB" in line else line.index("MiB") for line in lines}) == 1
    assert [line.split()[0] for line in lines] == ["activations", "parameters", "context"]


def test_parts_beyond_the_largest_are_added_up() -> None:
    parts = tuple(Part(f"part{number}", number * GiB) for number in range(1, 6))
    whole = make_estimate()._replace(components=(Component("activations", 15 * GiB, parts),), device_bytes=15 * GiB)
    lines = [line.split() for line in breakdown(whole, Style(), parts=3)]
    assert lines[1:] == [
        ["5.00", "GiB", "part5"],
        ["4.00", "GiB", "part4"],
        ["3.00", "GiB", "part3"],
        ["3.00", "GiB", "2", "more", "modules"],
    ]
    assert [line.split() for line in breakdown(whole, Style(), parts=4)][-1] == ["1.00", "GiB", "1", "more", "module"]
    small = whole._replace(components=(Component("activations", 15 * MiB, parts),), device_bytes=GiB)
    assert len(list(breakdown(small, Style()))) == 1, "less than a twentieth is not taken apart"


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        pytest.param([], "no findings in 1 file (100 ms)", id="none"),
        pytest.param(["error"], "1 error in 1 file (100 ms)", id="one"),
        pytest.param(["error", "error", "info"], "2 errors, 1 note in 1 file (100 ms)", id="some"),
    ],
)
def test_the_closing_line(findings: list[str], said: str) -> None:
    run = make_run(*(make_finding(severity=severity) for severity in findings))
    assert full.closing(Report((run,), 0.1), Style()) == said


def test_the_closing_line_counts_files_once() -> None:
    runs = (make_run(run="a"), make_run(run="b"), make_run(path="other.yaml"))
    assert full.closing(Report(runs, 0.1), Style()) == "3 OOM; no findings in 2 files, 3 runs (100 ms)"


def test_json_leaves_out_what_it_has_no_name_for() -> None:
    run = make_run()
    assert run.estimate is not None
    symbols = (("B", "micro_batch_size"), ("X", "no_such_fact"))
    part = Part("head", 4, "B*X", symbols)
    phases = {"forward": 1, "setup": 2, "of a plugin": 3}
    changed = run.estimate._replace(components=(Component("logits", 4, (part,)),), phases=phases)
    [found] = json_report.as_dict(Report((run._replace(estimate=changed),), 0.123456))["files"]
    assert found["family"] == "demo"
    assert found["estimate"]["phases"] == {
        "forward": 1,
        "backward": 0,
        "optimizer_step": 0,
        "evaluation": 0,
        "setup": 2,
    }
    [stated] = found["estimate"]["components"][0]["parts"][0]["facts"]
    assert stated["key"] == "dataloader.batch_size"
    assert json_report.as_dict(Report((run,), 0.123456))["summary"]["seconds"] == 0.1235


def test_a_budget_that_is_met_exactly_is_met() -> None:
    run = make_run()
    assert run.estimate is not None
    assert run.budget is not None
    exactly = run._replace(budget=run.budget._replace(size_bytes=run.estimate.device_bytes))
    assert verdict_line(exactly).endswith(": 0 B free")
