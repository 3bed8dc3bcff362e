"""The one function: isolation, selection, order, budgets, skipping, and the Python API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.check import NOT_A_CONFIG, check_paths, check_text
from memlint.discover import Pattern
from memlint.plugin import SAFE
from memlint.reports import full, github
from memlint.reports import json as json_report
from memlint.reports.report import Report
from memlint.settings import Resolver, Settings, SettingsError
from memlint.units import GiB, MiB
from tests import demo_family
from tests.demo_family import CONFIG, SMALL

HERE = Settings()


@pytest.fixture(autouse=True)
def _demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    demo_family.install(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def put(**files: str) -> None:
    """Write files; ``__`` in a name stands for a slash, ``_yaml`` at its end for the suffix."""
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        path = Path(stem.replace("__", "/") + "." + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(report: Report) -> list[str]:
    return [f"{finding.span.path}:{finding.span.line} {finding.code}" for finding in report.findings]


def check(*paths: str, **options: Any) -> Report:
    return check_paths(paths or (".",), Settings(**options))


# -- one file


def test_a_finding_stands_on_its_key_with_a_fix_that_was_re_estimated() -> None:
    put(a_yaml=CONFIG)
    report = check("a.yaml", budget="2GB")
    (run,) = report.runs
    assert (run.path, run.run, run.family, run.verdict) == ("a.yaml", "train", "demo", "OOM")
    assert run.estimate is not None
    assert run.estimate.device_bytes == 4 * GiB + 64 * MiB
    finding = next(finding for finding in run.findings if finding.code == "MEM990")
    assert (finding.span.line, finding.span.column) == (2, 3)
    (fix,) = finding.fixes
    assert fix.safety == SAFE
    assert (fix.device_bytes_after, fix.saved_bytes, fix.fits) == (GiB + 64 * MiB, 3 * GiB, True)
    assert [edit.text for edit in fix.edits] == ["1"]


def test_facts_of_the_run_carry_their_keys_and_lines() -> None:
    put(a_yaml=SMALL)
    (run,) = check("a.yaml").runs
    assert run.facts["micro_batch_size"] == ("demo.batch", 1, 2, "a.yaml")
    assert run.facts["hyperparameters.width"] == ("demo.width", 1024, 0, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.yaml", CONFIG, id="yaml"),
        pytest.param("a.json", '{"demo": {"batch": 4}}', id="json"),
        pytest.param("a.toml", "[demo]\nbatch = 4\n", id="toml"),
        pytest.param("a.py", "demo = dict(batch=4)\n", id="python"),
    ],
)
def test_every_format_is_read(name: str, text: str) -> None:
    assert [finding.code for finding in check_text(name, text, HERE).findings] == ["MEM990"]


def test_overrides_change_what_is_estimated() -> None:
    put(a_yaml=CONFIG)
    assert found(check("a.yaml", override=("demo.batch=1",))) == []
    (run,) = check("a.yaml", override=("demo.batch=8",)).runs
    assert run.estimate is not None
    assert run.estimate.component_bytes("activations") == 8 * GiB


def test_a_bad_override_is_an_error_of_the_call() -> None:
    put(a_yaml=CONFIG)
    with pytest.raises(SettingsError):
        check("a.yaml", override=("=5",))


def test_a_finding_on_a_value_that_only_an_override_states_stands_on_the_file() -> None:
    put(a_yaml=SMALL)
    report = check("a.yaml", override=("demo.width=2048",), preview=True)
    finding = next(finding for finding in report.findings if finding.code == "MEM992")
    assert (finding.span.path, finding.span.line) == ("a.yaml", 1)
    assert finding.notes == ("demo.width is set with -o",)
    assert report.runs[0].facts["hyperparameters.width"] == ("demo.width", 2048, 0, "")


# -- what goes wrong stays where it is


def test_a_rule_that_raises_is_a_finding_and_the_others_go_on() -> None:
    put(a_yaml="demo:\n  batch: 200\n  width: 13\n")
    report = check("a.yaml")
    assert found(report) == ["a.yaml:1 MEM001", "a.yaml:2 MEM990"]
    (crash, _) = report.findings
    assert crash.message.startswith("rule MEM991 raised KeyError")
    assert "demo_family.py" in crash.notes[0]
    assert report.crashed
    assert report.exit_code() == report.exit_code(exit_zero=True) == 2


def test_an_estimate_that_raises_is_a_finding_and_other_files_go_on() -> None:
    put(a_yaml="demo:\n  batch: 1\n  model: crash\n", b_yaml=CONFIG)
    report = check("a.yaml", "b.yaml")
    assert found(report) == ["a.yaml:1 MEM001", "a.yaml:3 MEM007", "b.yaml:2 MEM990"]
    assert report.runs[0].estimate is None
    assert report.exit_code() == 2


def test_reading_that_raises_is_a_finding_and_other_files_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint.dialects import registry

    real = registry.specs

    def specs(document: Any, overrides: Any = ()) -> Any:
        if document.path == "a.yaml":
            raise RecursionError("too deep")
        return real(document, overrides)

    monkeypatch.setattr(registry, "specs", specs)
    put(a_yaml=CONFIG, b_yaml=CONFIG)
    report = check()
    assert found(report) == ["a.yaml:1 MEM001", "b.yaml:2 MEM990"]
    assert report.exit_code() == 2


def test_an_unknown_model_has_no_estimate_and_says_so() -> None:
    put(a_yaml="demo:\n  batch: 4\n  model: my-net\n")
    report = check("a.yaml", budget="1GB")
    assert found(report) == ["a.yaml:3 MEM007"]
    assert report.runs[0].estimate is None
    assert report.runs[0].verdict == "UNKNOWN"
    assert "no model 'my-net'" in report.findings[0].message
    assert report.exit_code() == 0


def test_a_file_that_cannot_be_read_is_an_error_and_the_rest_goes_on() -> None:
    put(b_yaml=CONFIG)
    os.mkfifo("pipe.yaml")
    report = check("none.yaml", "pipe.yaml", "b.yaml")
    assert [path for path, _ in report.errors] == ["none.yaml", "pipe.yaml"]
    assert found(report) == ["b.yaml:2 MEM990"]
    assert report.exit_code() == 2


def test_a_named_file_that_does_not_parse_is_a_finding() -> None:
    put(a_yaml="demo: [1\n")
    report = check("a.yaml")
    assert [finding.code for finding in report.findings] == ["MEM003"]
    assert report.exit_code() == 1


def test_a_walked_file_that_does_not_parse_is_passed_over_with_its_reason() -> None:
    put(a_yaml="demo: [1\n", b_yaml=SMALL)
    report = check(".")
    assert report.findings == ()
    ((path, why),) = report.unparsed
    assert report.skipped == ()
    assert path == "a.yaml"
    assert why.startswith("line ")


def test_faults_of_a_training_config_count_in_a_walk_too() -> None:
    put(a_yaml="demo:\n  batch: 4\n  batch: 1\n")
    assert found(check(".")) == ["a.yaml:3 MEM006"]


def test_a_kind_of_file_that_is_not_read_is_skipped_when_named() -> None:
    Path("notes.rst").write_text("# notes\n")
    ((path, why),) = check("notes.rst").skipped
    assert path == "notes.rst"
    assert why.startswith("not a kind of file")


def test_a_file_name_that_is_no_unicode_is_no_obstacle() -> None:
    with open(b"caf\xe9.yaml", "w") as file:
        file.write(CONFIG)
    report = check(".")
    assert [finding.code for finding in report.findings] == ["MEM990"]
    json_report.render(report)
    github.render(report, {})
    full.render(report).encode("utf-8")


def test_a_file_of_no_family_is_skipped_when_named_and_silent_in_a_walk() -> None:
    put(a_yaml="x: 1\n")
    assert check("a.yaml").skipped == (("a.yaml", NOT_A_CONFIG),)
    report = check(".")
    assert (report.runs, report.skipped, report.exit_code()) == ((), (), 0)


# -- which rules


def test_preview_rules_are_off_unless_asked_for() -> None:
    put(a_yaml=SMALL)
    assert found(check("a.yaml")) == []
    assert found(check("a.yaml", preview=True)) == ["a.yaml:1 MEM992"]


SELECTIONS = [
    pytest.param({"select": ("MEM990",)}, {"MEM990"}, id="a code"),
    pytest.param({"select": ("demo-large",)}, {"MEM990"}, id="a name"),
    pytest.param({"select": ("mem990",)}, {"MEM990"}, id="lower case"),
    pytest.param({"select": ("MEM9",)}, {"MEM990"}, id="a prefix"),
    pytest.param({"select": ("ALL",)}, {"MEM990", "MEM006", "MEM190"}, id="everything"),
    pytest.param({"ignore": ("MEM990",)}, {"MEM006", "MEM190"}, id="all but a code"),
    pytest.param({"ignore": ("MEM",)}, set(), id="ignoring a prefix ignores all of it"),
    pytest.param({"select": ("MEM990",), "ignore": ("MEM9",)}, {"MEM990"}, id="the more exact selector wins"),
    pytest.param({"select": ("MEM9",), "ignore": ("MEM990",)}, set(), id="the more exact ignore wins"),
    pytest.param({"select": ("MEM990",), "ignore": ("MEM990",)}, set(), id="ignore wins a tie"),
    pytest.param({"select": ("MEM190",), "extend_select": ("MEM006",)}, {"MEM190", "MEM006"}, id="extend select"),
    pytest.param({"extend_select": ("MEM990",), "ignore": ("MEM9",)}, {"MEM990", "MEM006", "MEM190"}, id="back"),
    pytest.param({"extend_ignore": ("MEM006",)}, {"MEM990", "MEM190"}, id="extend ignore"),
]


@pytest.mark.parametrize(("options", "codes"), SELECTIONS)
def test_selection(options: dict[str, Any], codes: set[str]) -> None:
    put(a_yaml="demo:\n  batch: 4\n  width: 1\n  width: 1024\n")
    report = check("a.yaml", budget="1GB", **options)
    assert {finding.code for finding in report.findings} == codes


def test_unselected_rules_are_not_run() -> None:
    put(a_yaml="demo:\n  batch: 1\n  width: 13\n")
    assert not check("a.yaml", ignore=("MEM991",)).crashed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"select": ("MEM9999",)}, "unknown rule 'MEM9999'", id="no such code"),
        pytest.param({"ignore": ("demo-lrage",)}, "did you mean demo-large", id="a mistyped name"),
        pytest.param({"plugins": ("nobody",)}, "plugin 'nobody' is not installed", id="no such plugin"),
        pytest.param({"rules": {"MEM999": {}}}, "[rules.MEM999]: unknown rule 'MEM999'", id="options of nothing"),
    ],
)
def test_unknown_rules_and_plugins_are_errors_of_the_call(options: dict[str, Any], message: str) -> None:
    put(a_yaml=SMALL)
    with pytest.raises(SettingsError) as raised:
        check("a.yaml", **options)
    assert message in str(raised.value)


def test_options_and_severity_of_a_rule() -> None:
    put(a_yaml=CONFIG)
    assert found(check("a.yaml", rules={"demo-large": {"limit_mib": 8192}})) == []
    report = check("a.yaml", rules={"MEM990": {"severity": "info"}})
    assert [finding.severity for finding in report.findings] == ["info"]
    assert (report.exit_code(), report.exit_code("info")) == (0, 1)


def test_per_file_ignores() -> None:
    put(old__a_yaml=CONFIG, b_yaml=CONFIG)
    ignores = ((Pattern(os.getcwd(), "old/"), ("MEM9",)),)
    assert found(check(".", per_file_ignores=ignores)) == ["b.yaml:2 MEM990"]


# -- order and doubles


def test_findings_are_in_the_order_of_their_lines() -> None:
    put(a_yaml="demo:\n  batch: 4\n  width: 1\n  width: 1024\n", b_yaml=CONFIG)
    expected = ["a.yaml:1 MEM190", "a.yaml:2 MEM990", "a.yaml:4 MEM006", "b.yaml:1 MEM190", "b.yaml:2 MEM990"]
    assert found(check(".", budget="1GB")) == expected


def test_a_file_named_twice_is_checked_once() -> None:
    put(a_yaml=CONFIG)
    Path("link.yaml").symlink_to("a.yaml")
    assert len(check("a.yaml", "./a.yaml", ".", "link.yaml").runs) == 1


def test_each_file_has_its_own_settings() -> None:
    put(a__x_yaml=CONFIG, b__x_yaml=CONFIG, a__memlint_toml='budget = "1GB"', b__memlint_toml='budget = "64GB"')
    report = check_paths(["."], Resolver())
    assert [(run.path, run.verdict) for run in report.runs] == [("a/x.yaml", "OOM"), ("b/x.yaml", "FITS")]


def test_excluded_files() -> None:
    put(a_yaml=SMALL, old__b_yaml=SMALL)
    excluded = (Pattern(os.getcwd(), "old"),)
    assert [run.path for run in check(".", exclude=excluded).runs] == ["a.yaml"]
    assert [run.path for run in check("old/b.yaml", exclude=excluded).runs] == ["old/b.yaml"]
    assert check("old/b.yaml", exclude=excluded, force_exclude=True).runs == ()
    assert check("old", exclude=excluded, force_exclude=True).runs == ()


# -- Hydra

ROOT = "defaults:\n  - size: small\n  - _self_\ndemo:\n  batch: ${size.batch}\n  width: 1024\n"
PLAIN = {"x__root_yaml": ROOT, "x__size__small_yaml": "batch: 4\n", "x__size__tiny_yaml": "batch: 1\n"}


def test_a_composed_config_is_checked_with_its_groups() -> None:
    put(**PLAIN)
    report = check(".")
    assert [run.path for run in report.runs] == ["x/root.yaml"]
    assert [finding.code for finding in report.findings] == ["MEM990"]
    assert set(report.runs[0].sources) == {"x/root.yaml", "x/size/small.yaml"}
    assert found(check("x/root.yaml", override=("size=tiny",))) == []


def test_a_missing_group_is_a_finding_on_its_line() -> None:
    put(**PLAIN)
    report = check("x/root.yaml", override=("size=huge",))
    assert ("x/root.yaml", 2, "MEM003") in [(f.span.path, f.span.line, f.code) for f in report.findings]


GROUPED = {
    "x__root_yaml": "defaults:\n  - demo: small\n  - _self_\nother: 1\nother: 2\n",
    "x__demo__small_yaml": "batch: 4\nwidth: 1024\nwidth: 1024\n",
}


def test_findings_stand_on_the_group_file_that_set_the_value() -> None:
    put(**GROUPED)
    expected = ["x/demo/small.yaml:1 MEM990", "x/demo/small.yaml:3 MEM006", "x/root.yaml:5 MEM006"]
    assert found(check("x/root.yaml")) == expected
    assert found(check(".")) == expected
    assert found(check("x/demo/small.yaml", "x/root.yaml")) == expected


def test_a_named_group_file_stands_for_the_runs_that_compose_it() -> None:
    put(**GROUPED)
    report = check("x/demo/small.yaml")
    assert [run.path for run in report.runs] == ["x/root.yaml"]
    # The warning on the root's own line is not about this file.
    assert found(report) == ["x/demo/small.yaml:1 MEM990", "x/demo/small.yaml:3 MEM006"]
    assert report.skipped == ()


def test_errors_elsewhere_are_shown_for_a_named_group_file() -> None:
    put(**PLAIN)
    report = check("x/size/small.yaml", budget="1GB")
    assert [finding.code for finding in report.findings] == ["MEM190", "MEM990"]


def test_suppressions_in_a_group_file_count() -> None:
    put(**{**GROUPED, "x__demo__small_yaml": "batch: 4  # memlint: ignore[MEM990] measured\nwidth: 1024\n"})
    assert found(check("x/root.yaml")) == ["x/root.yaml:5 MEM006"]


# -- the API


def test_api_takes_options_by_name(tmp_path: Path) -> None:
    put(a_yaml=CONFIG)
    report = memlint.check("a.yaml", budget="2GB", select=["MEM1"])
    assert found(report) == ["a.yaml:1 MEM190"]
    assert found(memlint.check([Path("a.yaml")], ignore=("ALL",), isolated=True)) == []
    with pytest.raises(ValueError, match="'lots' is not a size"):
        memlint.check("a.yaml", budget="lots")
    with pytest.raises(ValueError, match="unknown option --budgit, did you mean 'budget'"):
        memlint.check("a.yaml", budgit="2GB")


def test_api_estimates() -> None:
    put(a_yaml=CONFIG, b_yaml="demo:\n  batch: 1\n  model: my-net\n", c_yaml="x: 1\n")
    assert memlint.estimate("a.yaml").component_bytes("activations") == 4 * GiB
    assert memlint.estimate("a.yaml", overrides=["demo.batch=2"]).component_bytes("activations") == 2 * GiB
    with pytest.raises(ValueError, match="no model 'my-net'"):
        memlint.estimate("b.yaml")
    with pytest.raises(ValueError, match="no known family"):
        memlint.estimate("c.yaml")
    with pytest.raises(ValueError, match="no such file"):
        memlint.estimate("d.yaml")


def test_api_works_before_and_after_the_module_of_the_same_name_is_imported() -> None:
    put(a_yaml="x: 1\n")
    code = (
        "import memlint; first = memlint.check('a.yaml', isolated=True);"
        "import memlint.check; second = memlint.check('a.yaml', isolated=True);"
        "assert first.skipped == second.skipped and first.skipped"
    )
    root = Path(memlint.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root)})


def test_a_file_that_a_run_reads_is_no_run_beside_it(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    (tmp_path / "train.yaml").write_text(
        "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nmax_length: 128\nlearning_rate: 0.1\n"
        "deepspeed: zero.json\noutput_dir: out\ndataset_name: d\n"
    )
    names = [Path(run.path).name for run in memlint.check(str(tmp_path), isolated=True).runs]
    assert names == ["train.yaml"]
    (alone,) = memlint.check(str(tmp_path / "zero.json"), isolated=True).runs
    assert alone.family == "deepspeed"
