"""``import memlint``: what the commands do, as functions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

import memlint
from memlint import api, baseline
from memlint.fixes.search import Plan
from memlint.setting_values import KEYS
from tests.test_rules import EXAMPLES

pytestmark = pytest.mark.usefixtures("answers_kept")

CONFIG = """model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: 8
max_length: 1024
gradient_checkpointing: false
output_dir: x
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG)
    return path


def test_a_printed_report_is_what_the_command_prints(config: Path) -> None:
    said = str(memlint.check(config, isolated=True, budget="8GB"))
    assert said.startswith(f"OOM {config}: peak ")
    assert "\x1b" not in said
    assert said.count("\n") > 10
    assert str(memlint.check(config.parent / "none.yaml")) == "no training configs found"


def test_every_option_is_a_setting() -> None:
    names = set(api.Options.__annotations__) - {"config", "isolated"}
    assert {name.replace("_", "-") for name in names} <= set(KEYS)
    told = {"output-file", "output-format", "report", "color", "quiet", "verbose", "statistics", "show-files"}
    ends = {"fail-on", "strict", "exit-zero", "write-baseline", "add-ignore", "changed-since"}
    of_a_file = {"extend", "budgets", "probe", "families", "policies", "waivers"}
    assert set(KEYS) - {name.replace("_", "-") for name in names} == told | ends | of_a_file


def test_the_functions_are_documented() -> None:
    for name in ("check", "estimate", "fit"):
        function = getattr(api, name)
        assert inspect.getdoc(function)
        assert "options" in inspect.signature(function).parameters
    assert get_type_hints(api.Options) is not None


def test_a_plan_is_what_the_command_finds(config: Path) -> None:
    before = config.read_text()
    plan = memlint.fit(config, isolated=True, budget="8GB")
    assert isinstance(plan, Plan)
    assert plan.fits
    assert plan.steps
    assert plan.estimate.device_interval.high_bytes <= 8 << 30
    assert config.read_text() == before
    assert memlint.fit(config, isolated=True, budget="80GB").steps == ()
    assert not memlint.fit(config, isolated=True, budget="1GB").fits


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        pytest.param(CONFIG, {}, "there is no budget", id="no budget"),
        pytest.param("a: 1\n", {"budget": "8GB"}, "no known family", id="no config"),
        pytest.param(
            CONFIG.replace("Qwen/Qwen2.5-0.5B", "nobody/nothing"),
            {"budget": "8GB"},
            "not in the catalogue",
            id="no estimate",
        ),
        pytest.param(CONFIG, {"budget": "8GB", "run": "other"}, "no run named 'other'", id="no such run"),
    ],
)
def test_what_cannot_be_planned_is_an_error(text: str, options: dict[str, str], said: str, config: Path) -> None:
    config.write_text(text)
    with pytest.raises(ValueError, match=said):
        memlint.fit(config, isolated=True, **options)  # type: ignore[arg-type]


def test_known_findings_are_left_out(config: Path) -> None:
    report = memlint.check(config, isolated=True, budget="8GB")
    assert report.findings
    known = config.parent / "known.json"
    known.write_text(baseline.render(report, str(known)))
    assert memlint.check(config, isolated=True, budget="8GB", baseline=str(known)).findings == ()
    (config.parent / "memlint.toml").write_text('baseline = "known.json"\n')
    assert memlint.check(config, budget="8GB").findings == ()
    known.write_text("{}")
    with pytest.raises(ValueError, match="baseline"):
        memlint.check(config, budget="8GB")


def test_the_examples_are_reached_by_strings_too() -> None:
    path = str(EXAMPLES / "uni3d_dp" / "uni3d+dp.yaml")
    assert memlint.estimate(path, isolated=True) == memlint.estimate(Path(path), isolated=True)


def test_overrides_reach_a_program_that_makes_its_trainer(tmp_path: Path) -> None:
    """Its keys stand in no tree of the file."""
    program = tmp_path / "train.py"
    program.write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "Trainer(model=model, args=TrainingArguments('out', per_device_train_batch_size=1)).train()\n",
        encoding="utf-8",
    )
    length = "max_seq_length=256"
    less, more = (
        memlint.estimate(program, (length, f"per_device_train_batch_size={batch}")).allocated_bytes for batch in (1, 64)
    )
    assert more > 2 * less
