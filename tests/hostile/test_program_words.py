"""Texts of programs, and words of their commands, that would take a pattern or a number without end."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.documents.shell import counts
from tests.dialects.language_models import written
from tests.dialects.test_nanogpt_forks import CONFIG, FORK
from tests.differential.own_models import GPT

SEEING = "--model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --output_dir out --bf16 True "
SFT = "python src/train/train_sft.py --model_id Qwen/Qwen2.5-VL-3B-Instruct --freeze_llm False --freeze_merger False "


@pytest.mark.parametrize(
    ("path", "files"),
    [
        pytest.param(
            "run.sh",
            {"run.sh": "python run_it.py --do_predict True --lr 1e-3\n", "run_it.py": "if " * 300_000},
            id="a program of one line that asks without end",
        ),
        pytest.param(
            "config/a.py",
            {"train.py": FORK, "model.py": GPT, "config/a.py": CONFIG + "model" * 60_000 + " = 1\n"},
            id="a name that says model without end",
        ),
        pytest.param(
            "run.sh",
            {"run.sh": f"python qwenvl/train/train_qwen.py {SEEING}--tune_mm_llm True --max_pixels {'9' * 900}\n"},
            id="more pixels than a float holds",
        ),
        pytest.param(
            "run.sh",
            {"run.sh": f"python qwenvl/train/train_qwen.py {SEEING}--tune_mm_llm True --max_pixels \u00b2\n"},
            id="a digit that is no number",
        ),
        pytest.param(
            "run.sh",
            {"run.sh": f"{SFT}--lora_enable True --lora_namespan_exclude '{'[' * 900}' --num_lora_modules \u00b2\n"},
            id="a list that is deep, and a digit that is no number",
        ),
    ],
)
def test_a_file_ends_without_an_internal_error(tmp_path: Path, path: str, files: dict[str, str]) -> None:
    report = memlint.check(str(written(tmp_path, files) / path), isolated=True)
    assert not [finding.message for finding in report.findings if finding.code == "MEM001"]


def test_a_product_of_many_numbers_is_not_counted() -> None:
    text = "*".join(["9" * 9] * 5_000)
    assert counts.output("$(echo $N | bc)", lambda name: text) is None
    assert counts.output("$(echo $N | bc)", lambda name: "2*3+4") == "10"
