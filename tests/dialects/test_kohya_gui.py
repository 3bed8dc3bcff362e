"""kohya_ss' presets: the options that the GUI starts a script with, and configs that no command starts.

What is expected is what ``train_model`` of kohya_ss 45088f04 writes into its TOML for these fields: its own code was
called with 63 presets and test configs of the three tabs that it has, and ``options`` gave the same for each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.dialects import kohya_gui, registry, spelling
from memlint.documents.load import load
from memlint.facts.spec import HYPER, TrainingSpec

LORA = {
    "LoRA_type": "Standard", "max_resolution": "512,512", "network_dim": 8, "mixed_precision": "bf16",
    "xformers": "xformers", "optimizer": "AdamW", "enable_bucket": False, "cache_latents": True, "train_batch_size": 2,
    "text_encoder_lr": 0, "unet_lr": 0.0001, "max_bucket_reso": 2048,
}  # fmt: skip
DREAMBOOTH = {
    "max_resolution": "512,512", "mixed_precision": "fp16", "optimizer": "AdamW8bit", "xformers": "none",
    "cache_latents": False, "enable_bucket": False, "train_batch_size": 1, "max_data_loader_n_workers": 0,
    "stop_text_encoder_training": 0, "max_bucket_reso": 2048,
}  # fmt: skip


def read(fields: dict[str, Any]) -> TrainingSpec:
    (spec,) = registry.specs(load("preset.json", json.dumps(fields, indent=2)))
    assert spec.family == "kohya"
    return spec


def made(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(the script, its options)."""
    root = load("preset.json", json.dumps(fields)).root
    options = kohya_gui.options(root).plain()
    assert isinstance(options, dict)
    return kohya_gui.script(root), options


@pytest.mark.parametrize(
    ("fields", "script", "wanted"),
    [
        (LORA, "train_network",
         {"network_module": "networks.lora", "network_train_unet_only": True, "xformers": True, "sdpa": None,
          "resolution": "512,512", "optimizer_type": "AdamW", "cache_latents": True, "network_args": ""}),
        ({**LORA, "sdxl": True, "sdxl_no_half_vae": True, "sdxl_cache_text_encoder_outputs": True, "xformers": "sdpa"},
         "sdxl_train_network",
         {"no_half_vae": True, "cache_text_encoder_outputs": True, "xformers": None, "sdpa": True}),
        ({**LORA, "sdxl_no_half_vae": True}, "train_network", {"no_half_vae": None}),
        ({**LORA, "unet_lr": 0, "text_encoder_lr": "5e-5"}, "train_network",
         {"network_train_unet_only": None, "network_train_text_encoder_only": True}),
        ({**LORA, "unet_lr": ""}, "train_network",
         {"network_train_unet_only": None, "network_train_text_encoder_only": None}),
        ({**LORA, "LoRA_type": "Kohya LoCon", "conv_dim": 4, "conv_alpha": 2, "rank_dropout": 0.1}, "train_network",
         {"network_module": "networks.lora", "network_args": "conv_dim=4 conv_alpha=2 rank_dropout=0.1"}),
        ({**LORA, "LoRA_type": "LyCORIS/LoHa"}, "train_network", {"network_module": "lycoris.kohya"}),
        ({**LORA, "LoRA_type": "Flux1", "flux1_checkbox": True}, "flux_train_network",
         {"network_module": "networks.lora_flux"}),
        ({"LoRA_type": "Standard", "network_dim": 8, "use_8bit_adam": True}, "train_network",
         {"optimizer_type": "AdamW8bit", "mixed_precision": "fp16", "xformers": True, "resolution": "512,512",
          "enable_bucket": True, "max_bucket_reso": 2048, "network_train_unet_only": None}),
        (DREAMBOOTH, "train_db", {"xformers": None, "sdpa": None, "cache_latents": None, "network_module": None}),
        ({**DREAMBOOTH, "sdxl": True, "learning_rate_te1": 1e-5, "learning_rate_te2": 0}, "sdxl_train",
         {"train_text_encoder": True, "learning_rate_te1": 1e-5, "learning_rate_te2": 0, "learning_rate": None}),
        ({**DREAMBOOTH, "learning_rate": 0}, "train_db", {"learning_rate": 0}),
        ({**LORA, "learning_rate": 0}, "train_network", {"learning_rate": None}),
        ({**DREAMBOOTH, "sdxl": True, "learning_rate_te1": 0, "learning_rate_te2": 0}, "sdxl_train",
         {"train_text_encoder": None}),
        ({**DREAMBOOTH, "image_folder": "a", "train_text_encoder": True}, "fine_tune",
         {"train_text_encoder": True, "enable_bucket": True}),
        ({**DREAMBOOTH, "num_vectors_per_token": 2, "sdxl": True}, "sdxl_train_textual_inversion", {}),
        ({**LORA, "additional_parameters": '--max_grad_norm=0 --optimizer_args "betas=0.9,0.99" eps=1 --network_dim 2'},
         "train_network", {"optimizer_args": "betas=0.9,0.99 eps=1", "network_dim": 2}),
    ],
    ids=["adapters", "SDXL, with SDPA", "what is SDXL's alone", "text encoders alone", "a rate that is no number",
         "LoCon", "LyCORIS", "Flux", "what the GUI opens with", "DreamBooth", "DreamBooth of SDXL", "no UNet",
         "no rate", "DreamBooth of SDXL's UNet", "fine-tuning", "textual inversion", "options that are added"],
)  # fmt: skip
def test_a_preset_s_fields_are_options_of_the_script_that_its_tab_starts(
    fields: dict[str, Any], script: str, wanted: dict[str, Any]
) -> None:
    name, options = made(fields)
    assert name == script
    assert {key: options.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        (LORA, "train_network.py --network_module networks.lora --network_dim 8 --xformers --network_train_unet_only "
         "--mixed_precision bf16 --cache_latents --train_batch_size 2 --resolution 512,512 --optimizer_type AdamW"),
        ({**DREAMBOOTH, "gradient_checkpointing": True},
         "train_db.py --mixed_precision fp16 --optimizer_type AdamW8bit --resolution 512,512 --gradient_checkpointing"),
    ],
    ids=["adapters", "DreamBooth"],
)  # fmt: skip
def test_a_preset_is_the_run_of_the_command_that_it_starts(fields: dict[str, Any], command: str) -> None:
    (started,) = registry.specs(load("train.sh", f"accelerate launch {command} --pretrained_model_name_or_path a\n"))
    own = read(fields)
    assert (own.architecture, started.architecture) == ("sd_scripts", "sd_scripts")
    asked = ("script", "kind", "full_16_bit", "train_text", "train_unet", "cache_latents", "vae_batch_size")
    names = [HYPER + name for name in asked]
    names += ["micro_batch_size", "image_size", "sequence_length", "tuning", "lora.r", "lora.dropout", "checkpointing"]
    names += ["compute_dtype", "parameter_dtype", "optimizer", "optimizer_library", "attention"]
    assert {name: own.get(name) for name in names} == {name: started.get(name) for name in names}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**LORA, "LoRA_type": "LyCORIS/LoKr"}, "the adapters of lycoris.kohya are not known"),
        ({**LORA, "mem_eff_attn": True}, "--mem_eff_attn"),
        ({**LORA, "fp8_base": True}, "--fp8_base"),
        ({**LORA, "down_lr_weight": "1,0"}, "network_args down_lr_weight"),
        ({**LORA, "train_inpainting": True}, "--train_inpainting: a UNet of nine channels is not known"),
        ({**DREAMBOOTH, "sdxl": True, "block_lr": "1e-5,0"}, "--block_lr"),
        ({**DREAMBOOTH, "sdxl": True, "learning_rate": "0.0"}, "--learning_rate 0"),
        ({**LORA, "LoRA_type": "Flux1", "flux1_checkbox": True}, "is made by the code of kohya sd-scripts"),
        ({**LORA, "additional_parameters": "--torch_compile"}, "--torch_compile"),
    ],
    ids=["other adapters", "attention", "8 bits", "rates of blocks", "inpainting", "blocks", "no UNet",
         "Flux", "an option that is added"],
)  # fmt: skip
def test_what_a_preset_asks_for_and_is_not_known_is_said(fields: dict[str, Any], reason: str) -> None:
    spec = read(fields)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_preset_s_fixes_are_written_in_its_own_words() -> None:
    spec = read({**LORA, "xformers": "none", "gradient_checkpointing": False, "additional_parameters": "--vae a"})
    assert not spec.unknown_reason
    texts = {
        fact: [edit.text for edit in spelling.spell(spec, fact, value)]  # type: ignore[arg-type]
        for fact, value in (("attention", "sdpa"), ("optimizer", "adamw_8bit"), ("checkpointing", "full"))
    }
    assert texts == {"attention": ['"sdpa"'], "optimizer": ['"AdamW8bit"'], "checkpointing": ["true"]}
    spec = read({**LORA, "additional_parameters": "--train_batch_size 6"})
    assert spec["micro_batch_size"] == 6
    assert spelling.spell(spec, "micro_batch_size", 1) == []


def test_a_toml_that_no_command_starts_is_read_whatever_its_sections_are_called() -> None:
    text = """[model]
pretrained_model_name_or_path = "{model}"
[adapters]
network_module = "{module}"
network_dim = 16
[optimizer]
optimizer_type = "AdamW8bit"
[training]
resolution = "768,512"
mixed_precision = "bf16"
{more}
"""

    def alone(model: str, module: str = "networks.lora", more: str = "") -> TrainingSpec:
        (spec,) = registry.specs(load("lora.toml", text.format(model=model, module=module, more=more)))
        return spec

    scripts = {
        "stabilityai/stable-diffusion-xl-base-1.0": "sdxl_train_network",
        "/models/sd_xl_base_1.0.safetensors": "sdxl_train_network",
        "C:\\\\models\\\\v1-5-pruned-emaonly.ckpt": "train_network",
    }
    for model, script in scripts.items():
        spec = alone(model)
        assert (spec.unknown_reason, spec[HYPER + "script"]) == ("", script)
        assert (spec["optimizer"], spec.missing) == ("adamw_8bit", ())
        assert (spec["lora.r"], spec["image_size"], spec["compute_dtype"]) == (16, [768, 512], "bfloat16")
    assert alone("a.safetensors", more='model_train_type = "sdxl-lora"')[HYPER + "script"] == "sdxl_train_network"
    assert alone("a.safetensors", more="v2 = true")[HYPER + "kind"] == "sd2"
    assert "train_network.py or sdxl_train_network.py" in alone("a.safetensors").unknown_reason
    assert "sd-scripts" in alone("a.safetensors", "networks.lora_flux").unknown_reason


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", '[run]\nnote = "network_module"\n'), ("a.json", '{"run": {"network_module": "networks.lora"}}')],
    ids=["a word of a value", "another format's section"],
)
def test_a_file_that_only_mentions_adapters_is_not_claimed(name: str, text: str) -> None:
    assert registry.specs(load(name, text)) == []


@pytest.mark.parametrize(
    "number", ["\u00b2", "9" * 5000], ids=["no digit of a number", "more digits than Python reads"]
)
def test_numbers_that_nobody_means_are_no_failure(number: str) -> None:
    for key in ("max_resolution", "max_data_loader_n_workers", "conv_dim", "vae_batch_size", "network_dim"):
        read({**LORA, "LoRA_type": "Kohya LoCon", key: number})
    read({**LORA, "additional_parameters": f"--train_batch_size {number}"})


def test_a_preset_of_lycoris_in_full_has_no_findings_against_it(tmp_path: Path) -> None:
    """LyCORIS takes a rank beyond a layer's sizes for the whole of it (``lokr.py``: full_matrix), and 100000 is what
    its documents say for that."""
    preset = {**LORA, "LoRA_type": "LyCORIS/LoKr", "network_dim": 100000}
    (tmp_path / "preset.json").write_text(json.dumps(preset), encoding="utf-8")
    (found,) = check_paths([str(tmp_path / "preset.json")]).runs
    assert found.unknown == "no estimate: the adapters of lycoris.kohya are not known"
    assert {finding.code for finding in found.findings} & {"MEM008", "MEM805"} == set()
