"""Pipelines of diffusers: as many parameters as are published, and a step that holds what the script holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.meta.tensor import float32, recording
from memlint.models import program
from memlint.profiles import shipped
from memlint.settings import Settings

# Of safetensors files on the hub, or of the papers in millions: aMUSEd (arXiv 2401.01808) 603 M and 608 M, its VQ-GAN
# 146 M; the classes of diffusers 0.42 and transformers 5.23 count the same.
PUBLISHED = {
    "sd1-unet": 859_520_964,
    "sd1-controlnet": 361_279_120,
    "kl-f8": 83_653_863,
    "clip-l": 123_060_480,
    "clip-l-projection": 123_650_304,
    "amused-256": 603_537_664,
    "amused-512": 608_257_792,
    "vq-f16": 146_244_675,
    "sd3-medium": 2_028_328_000,
    "sd3.5-medium": 2_243_171_520,
    "sd3.5-large": 8_056_627_520,
    "kl-f8-16": 83_819_683,
    "cogvideox-2b": 1_693_783_872,
    "cogvideox-5b": 5_570_283_072,
    "sdxl-unet": 2_567_463_684,
    "sd1-unet-edit": 859_532_484,
    "sdxl-unet-edit": 2_567_475_204,
    "sdxl-controlnet": 1_251_014_160,
    "sdxl-unet-controlled": 2_567_463_684,
    "ddpm-unet": 113_673_219,
    "cogvideox1.5-5b": 5_570_676_352,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_program_has_the_parameters_of_its_model(name: str) -> None:
    made = shipped.program(f"diffusers/{name}")
    with recording():
        model = program.build(program.Run(made, made.sizes, float32))
        assert sum(parameter.numel for parameter in model.parameters()) == PUBLISHED[name]


def peak(tmp_path: Path, command: str) -> int:
    path = tmp_path / "train.sh"
    path.write_text(f"accelerate launch {command}\n", encoding="utf-8")
    (run,) = check_paths([str(path)], Settings()).runs
    assert run.estimate is not None, run.findings
    return run.estimate.allocated_bytes


SD = "--pretrained_model_name_or_path runwayml/stable-diffusion-v1-5 --resolution 512 --train_batch_size 1"


def test_each_switch_does_what_it_is_for(tmp_path: Path) -> None:
    plain = peak(tmp_path, f"train_text_to_image.py {SD}")
    assert peak(tmp_path, f"train_text_to_image.py {SD} --use_ema") - plain == pytest.approx(4 * 859_520_964, rel=0.01)
    assert peak(tmp_path, f"train_text_to_image.py {SD} --use_ema --offload_ema") == plain
    assert peak(tmp_path, f"train_text_to_image.py {SD} --use_8bit_adam") < plain - 6 * 859_520_964
    assert peak(tmp_path, f"train_text_to_image.py {SD} --train_batch_size 8 --gradient_checkpointing") < peak(
        tmp_path, f"train_text_to_image.py {SD} --train_batch_size 8"
    )


def test_class_images_double_the_batch(tmp_path: Path) -> None:
    named = f"train_dreambooth_lora.py {SD} --instance_data_dir a"
    both = peak(tmp_path, f"{named} --with_prior_preservation --class_data_dir b")
    assert both == peak(tmp_path, f"{named} --train_batch_size 2")


def test_flux_s_autoencoder_stays_where_it_encodes_in_each_step(tmp_path: Path) -> None:
    """It is Stable Diffusion 3's: the vae/config.json of both differ in scaling_factor and shift_factor alone."""
    named = "train_dreambooth_lora_flux.py --pretrained_model_name_or_path black-forest-labs/FLUX.1-dev "
    named += "--instance_data_dir a --mixed_precision bf16 --resolution 1024 --train_batch_size 4 "
    named += "--gradient_checkpointing"
    one, other = (peak(tmp_path, f"{named}{option}") for option in ("", " --cache_latents"))
    assert one - other == pytest.approx(2 * PUBLISHED["kl-f8-16"], rel=0.001)


def test_flux_s_text_encoders_stay_where_a_list_of_them_does(tmp_path: Path) -> None:
    """train_dreambooth_lora_flux.py deletes their names alone; train_dreambooth_flux.py deletes the list as well."""
    named = "--pretrained_model_name_or_path black-forest-labs/FLUX.1-dev --instance_data_dir a --mixed_precision bf16"
    beside = {}
    for script in ("train_dreambooth_lora_flux.py", "train_dreambooth_flux.py"):
        (tmp_path / "train.sh").write_text(f"accelerate launch {script} {named}\n", encoding="utf-8")
        (run,) = check_paths([str(tmp_path / "train.sh")], Settings()).runs
        assert run.estimate is not None, run.findings
        beside[script] = {part.name: part.size_bytes for part in run.estimate.components}.get("helper_models", 0)
    autoencoder = 2 * PUBLISHED["kl-f8-16"]
    encoders = 2 * (4_762_310_656 + PUBLISHED["clip-l"])  # T5 v1.1 XXL's and CLIP ViT-L's, in 16 bits
    assert beside["train_dreambooth_flux.py"] == pytest.approx(autoencoder, rel=0.001)
    assert beside["train_dreambooth_lora_flux.py"] == pytest.approx(autoencoder + encoders, rel=0.001)


def test_attention_before_torch_2_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n", encoding="utf-8")
    path = tmp_path / "train.sh"
    for option, known in (("", False), (" --enable_xformers_memory_efficient_attention", True)):
        path.write_text(f"accelerate launch train_text_to_image_lora.py {SD}{option}\n", encoding="utf-8")
        (run,) = check_paths([str(path)], Settings()).runs
        assert (run.estimate is not None) == known
        said = [finding.message for finding in run.findings if finding.code == "MEM007"]
        assert known or "torch 2's, is not known (torch 1.13.1)" in said[0]


def test_a_model_of_the_script_s_own_has_no_config(tmp_path: Path) -> None:
    command = "train_unconditional.py --dataset_name flowers --resolution 64 --train_batch_size 16"
    plain = peak(tmp_path, command)
    assert peak(tmp_path, f"{command} --use_ema") - plain == pytest.approx(4 * 113_673_219, rel=0.01)
    assert peak(tmp_path, command.replace("64", "128")) > 2 * plain
    path = tmp_path / "other.sh"
    path.write_text(f"accelerate launch {command} --model_config_name_or_path ours\n", encoding="utf-8")
    (run,) = check_paths([str(path)], Settings()).runs
    assert run.estimate is None


def test_a_controlnet_of_sdxl_trains_beside_the_whole_unet(tmp_path: Path) -> None:
    xl = "--pretrained_model_name_or_path stabilityai/stable-diffusion-xl-base-1.0 --train_batch_size 1"
    (tmp_path / "train.sh").write_text(f"accelerate launch train_controlnet_sdxl.py {xl} --mixed_precision fp16\n")
    (run,) = check_paths([str(tmp_path / "train.sh")], Settings()).runs
    assert run.estimate is not None
    assert run.estimate.trainable_parameters == PUBLISHED["sdxl-controlnet"]
    frozen = {part.name: part.size_bytes for part in run.estimate.components}["helper_models"]
    # UNet and two text encoders in 16 bits, the autoencoder in fp32
    assert frozen >= 2 * (PUBLISHED["sdxl-unet"] + 123_060_480 + 694_659_840) + 4 * PUBLISHED["kl-f8"]
