"""Family kohya: which script and model a command names, the files that it names, and why there is no estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.architectures.sd_scripts import MODELS, SCRIPTS, largest_bucket
from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import HYPER, TrainingSpec

LORA = "--pretrained_model_name_or_path a.safetensors --network_module networks.lora --resolution 512"


def read(command: str, folder: Path | None = None) -> TrainingSpec:
    path = "train.sh" if folder is None else str(folder / "train.sh")
    (spec,) = registry.specs(load(path, f"accelerate launch {command}\n"))
    assert spec.family == "kohya"
    return spec


def test_a_script_states_what_its_command_does_not() -> None:
    spec = read(f"train_network.py {LORA}")
    assert (spec.architecture, spec.unknown_reason) == ("sd_scripts", "")
    wanted = {
        "micro_batch_size": 1, "image_size": [512, 512], "lora.r": 4, "optimizer": "adamw", "compute_dtype": "float32",
        "attention": "eager", "sequence_length": 75, "hyperparameters.kind": "sd1", "hyperparameters.train_text": True,
    }  # fmt: skip
    assert {name: spec[name] for name in wanted} == wanted  # type: ignore[index]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (f"train_network.py {LORA} --v2", "sd2"),
        (f"train_network.py {LORA}", "sd1"),
        (f"sdxl_train_network.py {LORA}", "sdxl"),
        ("fine_tune.py --pretrained_model_name_or_path stabilityai/stable-diffusion-2-1 --resolution 512", "sd2"),
    ],
    ids=["--v2", "without it", "SDXL's script", "by the hub's id"],
)
def test_script_and_switch_say_the_model_whatever_its_file_is_called(command: str, kind: str) -> None:
    assert read(command)[HYPER + "kind"] == kind


@pytest.mark.parametrize(
    ("command", "trains"),
    [
        (f"train_network.py {LORA} --network_train_unet_only", False),
        ("train_db.py --pretrained_model_name_or_path a --resolution 512", True),
        ("train_db.py --pretrained_model_name_or_path a --resolution 512 --stop_text_encoder_training -1", False),
        ("fine_tune.py --pretrained_model_name_or_path a --resolution 512", False),
        ("sdxl_train.py --pretrained_model_name_or_path a --resolution 512 --train_text_encoder", True),
    ],
    ids=["adapters of the UNet", "DreamBooth", "DreamBooth without", "fine-tuning", "fine-tuning with"],
)
def test_whether_text_encoders_train(command: str, trains: bool) -> None:
    assert read(command)[HYPER + "train_text"] is trains


@pytest.mark.parametrize(
    ("option", "optimizer", "library", "paged"),
    [
        ("--optimizer_type AdamW8bit", "adamw_8bit", "bitsandbytes", False),
        ("--use_8bit_adam", "adamw_8bit", "bitsandbytes", False),
        ("--optimizer_type PagedAdamW", "adamw", "bitsandbytes", True),
        ("--optimizer_type Adafactor --optimizer_args relative_step=False", "adafactor", "transformers", False),
        ("--optimizer_type prodigy --optimizer_args decouple=True d_coef=2", "prodigy", "prodigyopt", False),
        ("--use_lion_optimizer", "lion", "lion_pytorch", False),
    ],
    ids=["8 bits", "by its old switch", "paged", "Adafactor", "Prodigy", "Lion"],
)
def test_optimizers_by_their_names(option: str, optimizer: str, library: str, paged: bool) -> None:
    spec = read(f"train_network.py {LORA} {option}")
    assert not spec.unknown_reason
    assert (spec["optimizer"], spec["optimizer_library"], spec["optimizer_paged"]) == (optimizer, library, paged)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"train_network.py {LORA} --fp8_base", "--fp8_base: frozen weights in 8 bits is not known"),
        (f"train_network.py {LORA} --mem_eff_attn", "--mem_eff_attn"),
        ("train_network.py --pretrained_model_name_or_path a --network_module lycoris.kohya --resolution 512",
         "the adapters of lycoris.kohya are not known"),
        (f"train_network.py {LORA} --network_args block_dims=4", "network_args block_dims"),
        (f"train_network.py {LORA} --optimizer_args amsgrad=True", "optimizer_args amsgrad"),
        (f"train_network.py {LORA} --optimizer_type CAME", "the optimizer 'came' is not known"),
        ("train_network.py --pretrained_model_name_or_path stabilityai/stable-diffusion-xl-base-1.0 "
         "--network_module networks.lora --resolution 512", "train_network.py is not for Stable Diffusion XL"),
        (LORA.replace("--resolution 512", "").join(("train_network.py ", "")), "resolution is not stated"),
        (f"train_network.py {LORA} --dataset_config none.toml", "dataset_config: no file none.toml"),
        (f"train_network.py {LORA} --config_file none.toml", "config_file: no file none.toml"),
        (f"sdxl_train_network.py {LORA} --cache_text_encoder_outputs", "refuses it while text encoders train"),
        (f"flux_train_network.py {LORA}", "is made by the code of kohya sd-scripts"),
    ],
    ids=["8 bits", "attention of its own", "other adapters", "ranks by block", "a state more", "an optimizer",
         "a model that the script is not for", "no resolution", "no data", "no config", "what the script refuses",
         "a script that is not known"],
)  # fmt: skip
def test_what_is_not_known_is_said(command: str, reason: str) -> None:
    spec = read(command)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_config_file_s_sections_are_one_and_the_command_goes_before_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        """pretrained_model_name_or_path = "model.safetensors"
[network]
network_module = "networks.lora"
network_dim = 16
network_args = ["conv_dim=8", "conv_alpha=1"]
[training]
resolution = "768,512"
train_batch_size = 4
mixed_precision = "bf16"
xformers = true
cache_latents = true
""",
        encoding="utf-8",
    )
    spec = read("train_network.py --config_file config.toml --train_batch_size 2", tmp_path)
    assert not spec.unknown_reason
    assert (spec["micro_batch_size"], spec["lora.r"], spec[HYPER + "conv_rank"]) == (2, 16, 8)
    assert (spec["image_size"], spec["compute_dtype"], spec["attention"]) == ([768, 512], "bfloat16", "xformers")
    assert spec[HYPER + "cache_latents"] is True
    assert str(spec.facts["lora.r"].span.path).endswith("config.toml")  # type: ignore[union-attr]


def test_the_largest_of_several_data_sets_decides(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(
        """[general]
enable_bucket = true
batch_size = 2
[[datasets]]
resolution = 512
[[datasets]]
resolution = [640, 768]
batch_size = 3
max_bucket_reso = 768
[[datasets]]
resolution = 256
batch_size = 8
""",
        encoding="utf-8",
    )
    spec = read(f"train_network.py {LORA} --dataset_config data.toml", tmp_path)
    assert (spec["micro_batch_size"], spec["image_size"]) == (3, [640, 768])


def test_what_lists_data_sets_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(
        """[general]
resolution = 512
[[datasets]]
batch_size = 2
[[datasets.subsets]]
image_dir = "images"
""",
        encoding="utf-8",
    )
    assert check_paths([str(tmp_path)]).runs == ()


def test_a_bucket_has_at_most_as_many_pixels_as_the_resolution() -> None:
    assert largest_bucket((512, 512), 256, 1024, 64) == (512, 512)
    width, height = largest_bucket((768, 512), 256, 1024, 64)
    assert width * height == 768 * 512
    assert largest_bucket((600, 600), 576, 640, 64) == (576, 576)


def test_every_script_is_for_known_models() -> None:
    assert all(kind in MODELS for script in SCRIPTS.values() for kind in script.kinds)
