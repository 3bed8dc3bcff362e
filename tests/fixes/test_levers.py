"""The levers: what is proposed together, and what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import memlint
from memlint.fixes.edits import apply_edits
from memlint.plugin import Finding
from memlint.units import GiB

EXAMPLES = Path(__file__).parents[2] / "examples"


def finding(path: Path | str, code: str, budget: str = "", *overrides: str) -> Finding:
    options = {"budget": budget} if budget else {}
    report = memlint.check(str(EXAMPLES / path), isolated=True, select=[code], override=list(overrides), **options)
    [found] = report.findings
    return found


def test_an_evaluation_batch_that_holds_the_peak_up_goes_down_with_the_micro_batch() -> None:
    [plan] = finding("uni3d_dp/uni3d+dp_upstream_default.yaml", "MEM101", "16GB").fixes
    assert plan.fits
    assert "dataloader.batch_size 128 -> " in plan.title
    assert "val_dataloader.batch_size 128 -> " in plan.title


def test_an_evaluation_batch_that_is_no_larger_stays() -> None:
    config = "uni3d_dp/uni3d+dp_upstream_default.yaml"
    first = finding(config, "MEM201", "", "val_dataloader.batch_size=16").fixes[0]
    assert first.title == "batch_size 128 -> 64, gradient_accumulate_every 1 -> 2"


def test_where_no_batch_fits_the_largest_with_the_lowest_peak_is_proposed() -> None:
    fix = finding("video_llm/config.yaml", "MEM201", "16GB").fixes[0]
    assert fix.fits is False
    assert fix.title == "batch_size 4 -> 1, gradient_accumulation_steps 8 -> 32"


def test_a_plan_does_not_give_torchs_switch_to_another_optimizer() -> None:
    [plan] = finding("uni3d_dp/uni3d+dp_upstream_default.yaml", "MEM101", "12GB").fixes
    assert "AdamW8bit" in plan.title
    assert "fused" not in plan.title


def test_another_optimizer_is_not_proposed_beside_a_switch_that_only_torch_has(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "uni3d_dp", tmp_path / "uni3d_dp")
    path = tmp_path / "uni3d_dp" / "uni3d+dp_after.yaml"
    assert len(finding(path, "MEM304", "6GB").fixes) == 1
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("torch.optim.AdamW\n", "torch.optim.AdamW\n  foreach: true\n"), encoding="utf-8")
    assert finding(path, "MEM304", "6GB").fixes == ()


def test_a_plan_that_does_not_exist_is_not_blamed_on_keys_outside_of_it() -> None:
    found = finding("video_llm/config.yaml", "MEM101", "16GB")
    assert found.fixes == ()
    [note] = found.notes
    assert note.startswith("no batch, checkpointing, precision or optimizer that this config can state surely fits")


def test_a_share_of_the_batch_is_named_with_what_it_is_a_share_of(tmp_path: Path) -> None:
    script = (EXAMPLES / "lag_mode" / "train_lag_mode.sh").read_text(encoding="utf-8")
    path = tmp_path / "train.sh"
    path.write_text(script.replace("\npython ", "\nCUDA_VISIBLE_DEVICES=0,1,2,3 python "), encoding="utf-8")
    message = finding(path, "MEM201").message
    assert message.startswith("--batch_size 8 (32 sets on 4 devices) x --sample_size 6 = 48 images of ")


def test_mixed_precision_of_a_video_model_is_tried_as_autocast() -> None:
    found = finding("video_llm/config_before.yaml", "MEM301")
    assert found.size_bytes > 100 * GiB
    [fix] = found.fixes
    assert fix.title == "use_mixed_precision false -> true"


def share_of_peak(config: str, share: float) -> str:
    return f"{int(memlint.estimate(EXAMPLES / config, isolated=True).device_bytes * share) >> 20}MiB"


def test_what_saves_next_to_nothing_is_no_fix() -> None:
    found = finding("language_models/sft_trl.yaml", "MEM102", share_of_peak("language_models/sft_trl.yaml", 1.0))
    assert found.fixes
    assert "optim" not in [fix.title.split(" ")[0] for fix in found.fixes], "one kernel saves 24 MiB of 60 GiB"


def test_a_plan_is_without_what_it_does_not_need() -> None:
    budget = share_of_peak("language_models/sft_trl.yaml", 0.6)
    [plan] = finding("language_models/sft_trl.yaml", "MEM101", budget).fixes
    assert plan.fits
    assert plan.title.startswith("gradient_checkpointing false -> true, per_device_train_batch_size 4 -> 2, ")
    assert "optim" not in plan.title


@pytest.mark.parametrize(
    ("config", "gpu", "title"),
    [
        pytest.param("uni3d_dp/uni3d+dp.yaml", "rtx4090", 'mixed_precision no -> "bf16"', id="a card with bfloat16"),
        pytest.param("uni3d_dp/uni3d+dp.yaml", "t4", 'mixed_precision no -> "fp16"', id="a card without it"),
    ],
)
def test_the_16_bits_that_the_card_has_are_proposed(config: str, gpu: str, title: str) -> None:
    report = memlint.check(str(EXAMPLES / config), isolated=True, select=["MEM301"], gpu=gpu)
    assert [fix.title for found in report.findings for fix in found.fixes] == [title]


def test_float16_is_not_proposed_for_weights_that_were_trained_in_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "model_name_or_path: meta-llama/Llama-3.2-1B\ndtype: float32\nblock_size: 1024\noutput_dir: out\n"
        "per_device_train_batch_size: 2\n",
        encoding="utf-8",
    )
    with_it = memlint.check(str(path), isolated=True, select=["MEM301"], gpu="l4")
    assert [fix.title for found in with_it.findings for fix in found.fixes] == ["add bf16: true"]
    assert memlint.check(str(path), isolated=True, select=["MEM301"], gpu="t4").findings == ()


def test_a_larger_batch_is_proposed_where_all_of_the_interval_fits(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "language_models", tmp_path / "configs")
    path = tmp_path / "configs" / "torchtitan_llama3_8b.toml"
    path.write_text(path.read_text(encoding="utf-8") + "\n[compile]\nenable = true\n", encoding="utf-8")
    options = {"isolated": True, "preview": True, "select": ["MEM104"], "gpu": "b200 x64"}
    [run] = memlint.check(str(path), **options).runs
    [found] = run.findings
    [fix] = found.fixes
    path.write_text(apply_edits(path.read_text(encoding="utf-8"), fix.edits), encoding="utf-8")
    [after] = memlint.check(str(path), **options).runs
    assert after.verdict == "FITS"
    assert after.estimate is not None
    assert after.estimate.device_bytes == fix.device_bytes_after
