"""Configs whose model only a profile knows: estimates, rules, fixes, staleness, all without PyTorch."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.plugin import Finding
from memlint.reports.report import Report
from tests.effort import counted_lines
from tests.profiles.sample import sample

CONFIG = "model:\n  depth: 2\ndata:\n  batch_size: 4  # samples\n  length: 256\nseed: 1\n"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def save(config: Path, **changes: Any) -> Path:
    path = config.with_name(config.name + ".memlint.json")
    path.write_text(json.dumps({**sample(), **changes}), encoding="utf-8")
    return path


def check(config: Path, **options: Any) -> Report:
    return memlint.check(str(config), isolated=True, **options)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def only(report: Report, code: str) -> Finding:
    [finding] = [finding for finding in report.findings if finding.code == code]
    return finding


def test_without_a_profile_the_config_is_none_of_ours(config: Path) -> None:
    report = check(config)
    assert not report.runs
    assert report.skipped


def test_with_a_profile_it_has_an_estimate(config: Path) -> None:
    save(config)
    [run] = check(config).runs
    assert run.estimate is not None
    assert (run.estimate.basis, run.family, run.model_name) == ("recorded", "recorded", "Tiny")
    assert run.estimate.allocated_bytes == 2 * 512 + 2 * 4 * 4 * 256 + 512
    assert run.estimate.saved_bytes == 8 * 4 * 256
    assert run.estimate.parameters == 256
    assert "MEM007" not in codes(check(config))


def test_overrides_reach_the_formulas(config: Path) -> None:
    save(config)
    [run] = check(config, override=["data.batch_size=8", "data.length=512"]).runs
    assert run.estimate is not None
    assert run.estimate.saved_bytes == 8 * 8 * 512


def test_a_walk_finds_recorded_configs_of_every_format(tmp_path: Path) -> None:
    texts = {
        "a.yaml": CONFIG,
        "b.json": json.dumps({"model": {"depth": 2}, "data": {"batch_size": 4, "length": 256}}),
        "c.toml": "[model]\ndepth = 2\n[data]\nbatch_size = 4\nlength = 256\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        save(tmp_path / name)
    report = check(tmp_path)
    assert [Path(run.path).name for run in report.runs] == list(texts)
    assert all(run.estimate is not None for run in report.runs)


def test_a_run_that_is_too_large_gets_a_fix_on_the_recorded_size(config: Path) -> None:
    save(config)
    plain = check(config, override=["data.batch_size=1024", "data.length=1048576"]).runs[0].estimate
    assert plain is not None
    config.write_text(CONFIG.replace("size: 4 ", "size: 1024 ").replace("256", "1048576"), encoding="utf-8")
    budget = f"{(plain.device_interval.low_bytes - 2**20) // 2**20}MiB"
    finding = only(check(config, budget=budget), "MEM101")
    assert (finding.span.line, finding.key) == (4, "data.batch_size")
    [fix] = finding.fixes
    assert fix.fits
    assert [(edit.span.line, edit.text) for edit in fix.edits] == [(4, "512")]
    halved = check(config, override=["data.batch_size=512"]).runs[0].estimate
    assert halved is not None
    assert fix.device_bytes_after == halved.device_bytes


def test_a_size_beyond_the_guards_is_unknown_and_the_guard_is_named(config: Path) -> None:
    save(config)
    report = check(config, override=["data.length=100"])
    assert report.runs[0].estimate is None
    assert "S%16 == 0" in only(report, "MEM007").message


def test_a_size_that_is_no_number_is_unknown(config: Path) -> None:
    save(config)
    report = check(config, override=["data.length=long"])
    assert report.runs[0].estimate is None
    assert "data.length is 'long'" in only(report, "MEM007").message


def test_another_setting_that_the_code_reads_makes_it_unknown(config: Path) -> None:
    save(config)
    report = check(config, override=["model.depth=3"])
    assert report.runs[0].estimate is None
    assert "model.depth was 2, and is 3" in only(report, "MEM007").message


def test_a_setting_that_the_code_does_not_read_may_change(config: Path) -> None:
    save(config)
    assert check(config, override=["seed=2"]).runs[0].estimate is not None


def test_a_setting_that_is_gone_makes_it_unknown(config: Path) -> None:
    save(config, settings={"model.width": 8})
    assert "model.width was 8, and is None" in only(check(config), "MEM007").message


def test_changed_code_is_a_finding_and_the_estimate_stands(config: Path) -> None:
    source = config.with_name("model.py")
    source.write_bytes(b"depth = 2\n")
    save(config, sources={"model.py": hashlib.sha256(b"depth = 2\n").hexdigest()})
    assert "MEM010" not in codes(check(config))
    source.write_bytes(b"depth = 2\r\n")
    assert "MEM010" not in codes(check(config)), "line ends are no change"
    source.write_bytes(b"depth = 3\n")
    report = check(config)
    assert report.runs[0].estimate is not None
    assert "model.py has changed" in only(report, "MEM010").message
    source.unlink()
    assert "model.py cannot be read" in only(check(config), "MEM010").message


def test_a_source_that_never_ends_is_not_read(config: Path) -> None:
    save(config, sources={"../" * 20 + "dev/zero": "0" * 64})
    assert "cannot be read" in only(check(config), "MEM010").message


def test_a_malformed_profile_is_unknown_with_its_line(config: Path) -> None:
    path = save(config)
    path.write_text('{\n"version": 1,\n!', encoding="utf-8")
    report = check(config)
    assert not report.crashed
    assert "train.yaml.memlint.json:3: not JSON" in only(report, "MEM007").message


def test_rules_that_ask_for_what_was_not_recorded_say_nothing(config: Path) -> None:
    save(config)
    report = check(config, preview=True, budget="100MB")
    assert not report.crashed
    assert "MEM001" not in codes(report)


NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sympy", "numpy", "jax"):
            raise ImportError(f"{name} is not for this process")

sys.meta_path.insert(0, Refuse())
import memlint
memlint.check(sys.argv[1], isolated=True)
[run] = memlint.check(sys.argv[1], isolated=True).runs
print(run.estimate.basis, run.estimate.allocated_bytes)
"""


def test_no_torch_is_imported(config: Path) -> None:
    save(config)
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, str(config)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["recorded", str(2 * 512 + 2 * 4 * 4 * 256 + 512)]


def test_a_profile_of_a_large_model_is_evaluated_in_a_few_lines_an_event(tmp_path: Path) -> None:
    from memlint.profiles.evaluate import evaluate
    from memlint.profiles.profile import loads

    layer = " ".join(f"+{kind}" for kind in range(100))
    back = " ".join(f"-{kind}" for kind in range(100))
    tree = sample()
    tree["labels"] = [["activations", f"layers.*.{n}", "mm"] for n in range(100)]
    tree["kinds"] = [[n, f"{n}*B*(S//16)**2+max(1, S-{n})"] for n in range(100)]
    tape = [{"phase": "forward", "events": [f"96x( {layer} )"]}, {"phase": "backward", "events": [f"96x( {back} )"]}]
    tree["regimes"][0]["tape"] = tape
    profile = loads(json.dumps(tree))
    evaluate(profile, {"B": 4, "S": 256, "A": 1})  # events are written out once, whatever the sizes
    with counted_lines() as lines:
        found = evaluate(profile, {"B": 8, "S": 512, "A": 1})
    assert len(found.events) == 2 * 96 * 100
    assert lines.ran < 4 * len(found.events)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that reads its configs, and has no model for them."""
    from memlint.dialects import registry
    from memlint.dialects import schema as schemas
    from memlint.dialects.base import Dialect

    schema: dict[str, Any] = {
        "x-memlint": {"family": "strange", "formats": ["yaml"], "signature": {"all": ["data.batch_size", "optimizer"]}},
        "type": "object",
        "properties": {
            "optimizer": {"type": "string", "x-memlint": {"fact": "optimizer"}},
            "precision": {"type": "string", "x-memlint": {"fact": "compute_dtype"}},
            "data": {
                "type": "object",
                "properties": {"batch_size": {"type": "integer", "x-memlint": {"fact": "micro_batch_size"}}},
            },
        },
    }
    monkeypatch.setitem(registry._dialects, "strange", Dialect(schema))
    monkeypatch.setitem(schemas._schemas, "strange", schema)


@pytest.mark.usefixtures("family")
def test_a_known_family_with_an_unknown_model_gets_the_recordings_estimate(config: Path) -> None:
    config.write_text(CONFIG + "optimizer: adamw\nprecision: float32\n", encoding="utf-8")
    assert "MEM007" in codes(check(config))
    save(config, training={"optimizer": "adamw", "compute_dtype": "float32"})
    [run] = check(config).runs
    assert run.estimate is not None
    assert (run.family, run.estimate.basis) == ("strange", "recorded")
    assert "MEM007" not in codes(check(config))
    changed = check(config, override=["precision=bfloat16"])
    assert changed.runs[0].estimate is None
    assert "recorded with compute_dtype = float32, not bfloat16" in only(changed, "MEM007").message


@pytest.mark.usefixtures("family")
def test_no_fix_changes_what_was_not_recorded(config: Path) -> None:
    config.write_text(CONFIG + "optimizer: adamw\nprecision: float32\n", encoding="utf-8")
    save(config, training={"optimizer": "adamw", "compute_dtype": "float32"})
    report = check(config, budget="100MB", preview=True)
    assert "MEM001" not in codes(report), [finding.message for finding in report.findings]
    edits = [edit for finding in report.findings for fix in finding.fixes for edit in fix.edits]
    assert all(edit.span.line == 4 for edit in edits)
