"""Every family that answers has a proof: a config of it whose model has as many parameters as the model's own
publication or library counts, or a test that holds it against a published figure or the library's own code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import schema as schemas
from memlint.settings import Settings

ROOT = Path(__file__).parents[1]
SAMPLES, EXAMPLES = "tests/hostile/samples", "examples/language_models"

# Of checkpoints, adapters aside: transformers on the meta device, which the hub's safetensors state as well.
SMOLLM2, QWEN, LLAMA_1B, LLAMA_8B = 134_515_008, 494_032_768, 1_235_814_400, 8_030_261_248

# family -> a config, and the parameters of its model without adapters
COUNTED: dict[str, tuple[str, int]] = {
    "autotrain": (f"{SAMPLES}/autotrain/run.yml", SMOLLM2),
    "axolotl": (f"{EXAMPLES}/lora_axolotl.yml", LLAMA_8B),
    "cogvideo": (f"{SAMPLES}/cogvideo/run.sh", 1_693_783_872),  # CogVideoX 2B's transformer
    "deepspeed-chat": (f"{SAMPLES}/deepspeed_chat/run.sh", SMOLLM2),
    "diffusers": (f"{SAMPLES}/diffusers/run.sh", 859_520_964 + 83_653_863 + 123_060_480),  # UNet, VAE, text encoder
    "finetrainers": (f"{SAMPLES}/finetrainers/run.sh", 1_693_783_872),  # CogVideoX 2B's transformer
    "hf-trainer": (f"{EXAMPLES}/run_clm.sh", LLAMA_1B),
    "kohya": (f"{SAMPLES}/kohya/run.sh", 859_520_964 + 123_060_480),  # UNet and text encoder
    "fsdp-qlora": (f"{SAMPLES}/fsdp_qlora/run.sh", SMOLLM2),
    "llama-cookbook": (f"{SAMPLES}/llama_cookbook/run.sh", SMOLLM2),
    "litgpt": (f"{SAMPLES}/litgpt/lora.yaml", 162_322_944),  # Pythia 160M
    "llamafactory": (f"{EXAMPLES}/full_llamafactory.yaml", QWEN),
    "llamafactory-v1": (f"{SAMPLES}/llamafactory_v1/run.yaml", SMOLLM2),
    "llm-c": (f"{SAMPLES}/llm_c/run.sh", 124_439_808),  # GPT-2
    "megatron-swift": (f"{SAMPLES}/megatron_swift/run.sh", SMOLLM2),
    "ms-swift": (f"{SAMPLES}/ms_swift/file.yaml", SMOLLM2),
    "open-instruct": (f"{SAMPLES}/open_instruct/run.sh", SMOLLM2),
    "openrlhf": (f"{SAMPLES}/openrlhf/run.sh", SMOLLM2),
    "open-clip": (f"{SAMPLES}/open_clip/run.sh", 151_277_313),  # ViT-B/32
    "nanotron": (f"{SAMPLES}/nanotron/run.yaml", SMOLLM2),
    "nemo-automodel": (f"{SAMPLES}/nemo_automodel/run.yaml", SMOLLM2),
    "nemo-rl": (f"{SAMPLES}/nemo_rl/run.yaml", SMOLLM2),
    "oumi": (f"{SAMPLES}/oumi/run.yaml", SMOLLM2),
    "peft": (f"{SAMPLES}/peft/training_params.json", QWEN),
    "simpo": (f"{SAMPLES}/simpo/run.yaml", SMOLLM2),
    "image-loop": (f"{SAMPLES}/image_loop/train.py", 25_557_032),  # ResNet-50
    "simpletuner": (f"{SAMPLES}/simpletuner/config.json", 859_520_964),  # Stable Diffusion 1's UNet
    "timm": (f"{SAMPLES}/timm/run.sh", 25_557_032),  # ResNet-50
    "torchvision": (f"{SAMPLES}/torchvision/run.sh", 25_557_032),  # ResNet-50
    "torchtitan": (f"{EXAMPLES}/torchtitan_llama3_8b.toml", LLAMA_8B),
    "torchtune": (f"{EXAMPLES}/torchtune_llama3_1b.yaml", LLAMA_1B),
    "training-loop": (f"{SAMPLES}/training_loop/train.py", SMOLLM2),
    "trl": (f"{EXAMPLES}/grpo_trl.yaml", 1_543_714_304),  # Qwen2.5 1.5B
    "verl": (f"{SAMPLES}/verl/grpo.sh", SMOLLM2),
    "xtuner": (f"{SAMPLES}/xtuner/run.py", SMOLLM2),
}
# family -> a test that holds its models against a published figure, or against the library's own code
HELD: dict[str, tuple[str, str]] = {
    "diffusion-policy": (
        "tests/differential/test_diffusion_policy.py",
        "test_a_step_takes_what_the_same_step_takes_in_torch",
    ),
    "deit": ("tests/differential/test_deit.py", "test_a_step_takes_the_memory_that_torch_takes"),
    "dit": ("tests/differential/test_dit.py", "test_a_step_takes_the_memory_that_torch_takes"),
    "mae": ("tests/differential/test_mae.py", "test_a_step_takes_the_memory_that_torch_takes"),
    "videomae": ("tests/models/test_videomae.py", "test_a_step_takes_what_the_repository_s_own_takes"),
    "torchvision-detection": (
        "tests/models/test_torchvision_detection.py",
        "test_a_detector_has_the_parameters_of_the_published_weights",
    ),
    "detectron2": (
        "tests/models/test_detectron2.py",
        "test_a_detector_has_the_parameters_that_the_library_counts",
    ),
    "dit3d": ("tests/models/test_dit3d.py", "test_native_form_has_the_published_number_of_parameters"),
    "fsdm-jax": ("tests/models/test_lag_mode.py", "test_published_residuals"),
    "gpt-neox": ("tests/dialects/test_gpt_neox.py", "test_pythia_s_weights"),
    "llm-foundry": (
        "tests/differential/test_llm_foundry.py",
        "test_mpt_takes_the_memory_that_its_own_code_takes",
    ),
    "olmo": ("tests/dialects/test_olmo.py", "test_published_sizes_have_the_parameters_of_the_published_weights"),
    "megatron": ("tests/dialects/test_megatron.py", "test_the_options_of_a_published_model_describe_its_weights"),
    "build-nanogpt": (
        "tests/dialects/test_build_nanogpt.py",
        "test_the_published_size_has_the_parameters_of_the_published_weights",
    ),
    "nanochat": ("tests/dialects/test_nanochat.py", "test_a_depth_has_the_parameters_that_are_published"),
    "nanogpt": (
        "tests/architectures/test_gpt2.py",
        "test_the_published_sizes_have_the_parameters_of_the_published_weights",
    ),
    "nemo": (
        "tests/dialects/test_nemo.py",
        "test_the_sizes_of_a_published_model_have_the_parameters_of_its_weights",
    ),
    "openmmlab": (
        "tests/models/openmmlab/test_openmmlab.py",
        "test_a_model_takes_the_memory_that_the_library_s_own_takes",
    ),
    "rwkv": ("tests/dialects/test_llm_c_and_rwkv.py", "test_parameters_of_rwkv"),
    "stdiff": ("tests/differential/test_stdiff.py", "test_real_sizes_agree_with_torch_within_a_thousandth"),
    "ultralytics": ("tests/models/test_yolo.py", "test_a_net_has_the_parameters_that_the_library_counts"),
    "uni3d-dp": ("tests/differential/test_uni3d_dp.py", "test_real_sizes_agree_with_torch_within_a_thousandth"),
    "video-llm": ("tests/differential/test_video_llm.py", "test_real_sizes_agree_with_torch_within_a_thousandth"),
    "yolov5": ("tests/models/test_yolo.py", "test_a_net_has_the_parameters_that_the_library_counts"),
}
# Files of launchers, which are followed from the run that names them and state no model.
FOLLOWED = {"accelerate", "deepspeed"}


def test_every_family_that_answers_has_a_proof() -> None:
    answering = {name for name in schemas.families() if "models" in schemas.header(name)}
    assert answering - FOLLOWED == {*COUNTED, *HELD}


@pytest.mark.parametrize("family", COUNTED)
def test_a_config_s_model_has_the_parameters_that_are_published(family: str) -> None:
    path, count = COUNTED[family]
    (run,) = check_paths([str(ROOT / path)], Settings(gpu="a100-80gb x2")).runs
    assert run.family == family
    assert run.estimate is not None
    adapters = run.estimate.trainable_parameters
    trained = 0 if adapters == run.estimate.parameters else adapters
    assert run.estimate.parameters - trained == count


@pytest.mark.parametrize("family", HELD)
def test_the_test_that_holds_it_is_there(family: str) -> None:
    path, name = HELD[family]
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", text, re.MULTILINE)
