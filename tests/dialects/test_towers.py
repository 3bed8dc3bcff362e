"""Copies of LLaVA's training script under names of their own: the decoder is a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.reports.report import RunReport
from memlint.reports.verdict import why_unknown

COPY = """\
import transformers
from ours.model import *
from ours.ours_trainer import OursTrainer
def train():
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    model = OursForCausalLM.from_pretrained(model_args.model_path)
    if model_args.freeze_backbone:
        model.model.requires_grad_(False)
    model.get_model().initialize_vision_modules(model_args=model_args)
    if model_args.tune_mm_mlp_adapter:
        model.requires_grad_(False)
    OursTrainer(model=model, args=training_args).train()
"""
OPTIONS = (
    "--model_path Qwen/Qwen2-7B-Instruct --vision_tower google/siglip-so400m-patch14-384 --output_dir out "
    "--per_device_train_batch_size 1 --bf16 True --gradient_checkpointing True"
)


def run(root: Path, options: str = "", program: str = COPY) -> RunReport:
    (root / ".git").mkdir(exist_ok=True)
    (root / "ours").mkdir(exist_ok=True)
    (root / "ours/train.py").write_text(program)
    (root / "run.sh").write_text(f"torchrun --nproc_per_node 1 ours/train.py {OPTIONS} {options}\n")
    (found,) = memlint.check(str(root / "run.sh"), isolated=True).runs
    return found


def test_the_decoder_is_a_bound(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.partial is not None
    assert found.partial.at_least
    (row,) = found.partial.rows
    parameters = 7_615_616_512  # of Qwen2-7B
    assert row.device_bytes > 8 * parameters  # weights, gradients and two states in bfloat16
    assert why_unknown(found).endswith("a vision tower joined to a language model by the script's own code")


def test_adapters_beside_a_frozen_decoder(tmp_path: Path) -> None:
    found = run(tmp_path, "--lora_enable True --lora_r 8")
    assert found.partial is not None
    (row,) = found.partial.rows
    assert 2 * 7_615_616_512 < row.device_bytes < 3 * 7_615_616_512


@pytest.mark.parametrize(
    ("options", "program"),
    [
        pytest.param("--tune_mm_mlp_adapter True", COPY, id="what joins them alone"),
        pytest.param("--freeze_backbone True", COPY, id="a frozen decoder"),
        pytest.param("--tune_language_layers 4", COPY, id="an option that nobody describes"),
        pytest.param("", COPY.replace("initialize_vision_modules", "see"), id="no copy"),
    ],
)
def test_where_it_may_not_train_there_is_no_bound(tmp_path: Path, options: str, program: str) -> None:
    assert run(tmp_path, options, program).partial is None
    assert run(tmp_path, options + " --freeze_vision_tower False", program).partial is None


@pytest.mark.parametrize("option", ["--image_tower", "--video_tower", "--mm_audio_encoder"])
def test_a_copy_s_own_option_names_a_tower_as_well(option: str, tmp_path: Path) -> None:
    """Video-LLaVA's: its projector alone trains, and the run was told to be out of memory."""
    found = run(tmp_path, f"--vision_tower '' {option} LanguageBind/LanguageBind_Image --tune_mm_mlp_adapter True")
    assert found.estimate is None
    assert found.partial is None
    assert why_unknown(found).startswith(f"{option} LanguageBind/LanguageBind_Image: a tower joined to")
    assert run(tmp_path, f"--vision_tower '' {option} a/b").partial is not None
