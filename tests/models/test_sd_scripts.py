"""kohya's sd-scripts: as many parameters as are published, adapters where the scripts put them, and a step that holds
what the script holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.tensor import float32, recording
from memlint.models import program, sd_scripts
from memlint.profiles import shipped
from memlint.settings import Settings

PUBLISHED = {
    "sd1-unet": 859_520_964,
    "sd2-unet": 865_910_724,
    "sdxl-unet-fp32": 2_567_463_684,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_program_has_the_parameters_of_its_model(name: str) -> None:
    made = shipped.program(f"sd-scripts/{name}")
    with recording():
        model = program.build(program.Run(made, made.sizes, float32))
        assert sum(parameter.numel for parameter in model.parameters()) == PUBLISHED[name]


def estimate(tmp_path: Path, command: str) -> tuple[int, int]:
    """(peak bytes, parameters that train)."""
    path = tmp_path / "train.sh"
    path.write_text(f"accelerate launch {command}\n", encoding="utf-8")
    (run,) = check_paths([str(path)], Settings()).runs
    assert run.estimate is not None, run.findings
    return run.estimate.allocated_bytes, run.estimate.trainable_parameters


LORA = (
    "train_network.py --pretrained_model_name_or_path a.safetensors --network_module networks.lora --resolution 256 "
    "--train_batch_size 1 --mixed_precision bf16 --sdpa --cache_latents"
)
UNET = f"{LORA} --network_train_unet_only"


def test_adapters_have_the_parameters_that_sd_scripts_prints_modules_of(tmp_path: Path) -> None:
    """192 modules in the UNet and 72 in the text encoder (``create LoRA for U-Net: 192 modules.``); of rank r, each has
    r times the sum of its inputs and outputs: networks/lora.py over the same models counts the same."""
    assert estimate(tmp_path, f"{UNET} --network_dim 8")[1] == 3_391_488
    assert estimate(tmp_path, f"{LORA} --network_dim 8")[1] == 3_391_488 + 8 * 12 * (4 * 2 * 768 + 2 * (768 + 3072))


def test_convolutions_have_adapters_of_a_rank_of_their_own(tmp_path: Path) -> None:
    assert estimate(tmp_path, f"{UNET} --network_dim 8 --network_args conv_dim=4")[1] == 6_230_528


def test_each_switch_does_what_it_is_for(tmp_path: Path) -> None:
    plain, _ = estimate(tmp_path, UNET)
    assert estimate(tmp_path, f"{UNET} --gradient_checkpointing")[0] < plain
    assert estimate(tmp_path, UNET.replace(" --sdpa", ""))[0] > plain
    assert (
        estimate(tmp_path, f"{UNET} --network_dim 64 --full_bf16")[0]
        < estimate(tmp_path, f"{UNET} --network_dim 64")[0]
    )
    assert estimate(tmp_path, f"{LORA} --max_token_length 225")[0] > estimate(tmp_path, LORA)[0] > plain


def test_cached_outputs_leave_the_text_encoders_in_host_memory(tmp_path: Path) -> None:
    xl = UNET.replace("train_network.py", "sdxl_train_network.py") + " --gradient_checkpointing"
    both = 2 * (123_060_480 + 694_659_840)
    assert estimate(tmp_path, xl)[0] - estimate(tmp_path, f"{xl} --cache_text_encoder_outputs")[0] == pytest.approx(
        both, rel=0.01
    )


def test_a_text_encoder_whose_learning_rate_is_0_does_not_train(tmp_path: Path) -> None:
    """sdxl_train.py: CLIP ViT-L without its last layer and the norm after it, which the result is taken before."""
    command = "sdxl_train.py --pretrained_model_name_or_path a --resolution 256 --mixed_precision bf16 --sdpa "
    command += "--cache_latents --gradient_checkpointing"
    unet, large, huge = 2_567_463_684, 123_060_480 - 12 * 768 * 768 - 13 * 768 - 2 * 768, 694_659_840
    trained = {
        "": unet,
        "--learning_rate_te1 0 --learning_rate_te2 0.0": unet,
        "--train_text_encoder --learning_rate_te1 0 --learning_rate_te2 0.0": unet,
        "--train_text_encoder --learning_rate_te2 0": unet + large,
        "--train_text_encoder --learning_rate_te1 0.0": unet + huge,
        "--train_text_encoder --highvram": unet + large + huge,
    }
    for option, counts in trained.items():
        (spec,) = registry.specs(load("train.sh", f"accelerate launch {command} {option}\n"))
        with recording():
            weights = sd_scripts.Step(spec).model.parameters()
            assert sum(weight.numel for weight in weights if weight.requires_grad) == counts
    command += " --train_text_encoder"
    assert estimate(tmp_path, f"{command} --learning_rate_te2 0")[0] < estimate(tmp_path, command)[0]
