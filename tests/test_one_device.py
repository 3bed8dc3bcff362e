"""A config that names no devices: what is said of one, and on how many it would fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memlint.check import check_text
from memlint.plugin import Finding
from memlint.reports.report import RunReport
from memlint.reports.style import Style
from memlint.reports.verdict import headline
from memlint.settings import Settings

CONFIG = """\
model_name_or_path: Qwen/Qwen2.5-7B
dataset_name: trl-lib/Capybara
max_length: 1024
per_device_train_batch_size: 4
gradient_checkpointing: true
bf16: true
learning_rate: 2.0e-5
output_dir: out
"""


def launched(tmp_path: Path, count: int, gpu: str) -> RunReport:
    (tmp_path / "sft.yaml").write_text(CONFIG)
    command = f"accelerate launch --use_deepspeed --zero_stage 3 --num_processes {count} sft.py --config sft.yaml\n"
    (run,) = check_text(str(tmp_path / "run.sh"), command, Settings(gpu=gpu)).runs
    return run


def states(text: str, gpu: str) -> Finding:
    (run,) = check_text("sft.yaml", text, Settings(gpu=gpu)).runs
    (found,) = (finding for finding in run.findings if finding.code == "MEM101")
    return found


@pytest.mark.parametrize(
    ("gpu", "count"),
    [
        pytest.param("a100-80gb", 2, id="two cards of 80 GB"),
        pytest.param("a100-40gb", 8, id="eight of 40 GB"),
    ],
)
def test_as_many_devices_fit_as_are_said_and_half_of_them_do_not(tmp_path: Path, gpu: str, count: int) -> None:
    notes = states(CONFIG, gpu).notes
    assert notes[-2].startswith("one device, as nothing here says")
    said = re.fullmatch(r"fits from (\d+) devices on, with all states shared \(ZeRO 3\): peak (.*) on each", notes[-1])
    assert said is not None
    assert int(said[1]) == count
    run = launched(tmp_path, count, gpu)
    assert run.estimate is not None
    assert run.verdict == "FITS"
    from memlint.units import format_bytes

    assert said[2] == format_bytes(run.estimate.device_bytes)
    assert launched(tmp_path, count // 2, gpu).verdict != "FITS"


def test_a_card_that_is_too_small_for_any_number_is_told() -> None:
    assert "does not fit 16 devices either" in states(CONFIG, "gtx1060-6gb").notes[-1]


def test_where_devices_are_stated_nothing_is_assumed(tmp_path: Path) -> None:
    run = launched(tmp_path, 1, "a100-40gb")
    (found,) = (finding for finding in run.findings if finding.code == "MEM101")
    assert not any("one device" in note for note in found.notes)
    assert run.estimate is not None
    assert not any(fact == "devices" for fact, _, _ in run.estimate.assumptions)


def test_the_first_screen_says_that_one_device_is_assumed() -> None:
    (run,) = check_text("sft.yaml", CONFIG, Settings(gpu="h200-141gb")).runs
    assert "on one device, as nothing here says that more share the run" in headline(run, Style(columns=300))


def test_a_number_of_one_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "z.json").write_text('{"zero_optimization": {"stage": 3}}\n')
    text = CONFIG + "deepspeed: z.json\n"
    verdicts = {}
    for gpu in ("h200-141gb", "h200-141gb x1"):
        (run,) = check_text(str(tmp_path / "sft.yaml"), text, Settings(gpu=gpu)).runs
        verdicts[gpu] = run.verdict
    assert verdicts == {"h200-141gb": "UNKNOWN", "h200-141gb x1": "FITS"}
