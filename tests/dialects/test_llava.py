"""LLaVA's training script: what its command says, what it does beside that, and what is not known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, TrainingSpec
from memlint.models import record
from tests.dialects.language_models import run, written

PROJECTOR = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
HEAD = 32000 * 4096
ADAPTERS = 32 * 64 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
OPTIONS = {
    "model_name_or_path": "lmsys/vicuna-7b-v1.5",
    "version": "v1",
    "data_path": "a.json",
    "vision_tower": "openai/clip-vit-large-patch14-336",
    "mm_projector_type": "mlp2x_gelu",
    "mm_vision_select_layer": "-2",
    "mm_use_im_patch_token": "False",
    "bf16": "True",
    "output_dir": "o",
    "per_device_train_batch_size": "2",
    "model_max_length": "1024",
    "gradient_checkpointing": "True",
}
ZERO = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}'


def command(program: str = "llava/train/train_mem.py", **changes: str | None) -> str:
    """``None`` takes an option out."""
    options = {name: value for name, value in {**OPTIONS, **changes}.items() if value is not None}
    return f"torchrun --nproc_per_node=1 {program} " + " ".join(f"--{n} {v}" for n, v in options.items()) + "\n"


def spec(program: str = "llava/train/train_mem.py", **changes: str | None) -> TrainingSpec:
    return run(command(program, **changes), "train.sh")


@pytest.mark.parametrize(
    ("program", "changes", "facts"),
    [
        pytest.param(
            "llava/train/train_mem.py",
            {},
            {
                "model_class": "vision_language",
                "frozen_parts": ["vision_tower"],
                "attention": "flash",
                "checkpointing_reentrant": True,
                "images_per_sample": 1,
                "sequence_length": 1024,
                "parameter_dtype": "bfloat16",
                "tower_dtype": "bfloat16",
                "projector_dtype": "float32",
                "optimizer": "adamw",
                "optimizer_implementation": "foreach",
                "transformers_version": "4.37.2",
                "vocabulary_size": 32000,
                "sample_bytes": 3 * 8 * 1024 + 4 * 3 * 336 * 336,
            },
            id="language model and projector train, the tower looks on",
        ),
        pytest.param("llava/train/train.py", {}, {"attention": "sdpa"}, id="train.py takes what transformers takes"),
        pytest.param(
            "llava/train/train_xformers.py",
            {},
            {"attention": "sdpa"},
            id="xformers' patch is of a class that transformers 4.37 no longer takes",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"model_name_or_path": "liuhaotian/llava-v1.5-7b"},
            {"model": "lmsys/vicuna-7b-v1.5", "projector_dtype": None},
            id="a checkpoint of its own has a projector already, in the weights' dtype",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"tune_mm_mlp_adapter": "True"},
            {"frozen_parts": ["vision_tower", "language_model"]},
            id="stage 1: the projector alone",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"tune_mm_mlp_adapter": "True", "mm_use_im_start_end": "True"},
            {"frozen_parts": ["vision_tower", "layers", "head"], "vocabulary_size": 32002},
            id="stage 1 with tokens around an image: the embeddings as well",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"freeze_backbone": "True"},
            {"frozen_parts": ["vision_tower", "embeddings", "layers"]},
            id="freeze_backbone leaves the head",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"version": None, "mm_use_im_patch_token": None, "model_max_length": None},
            {"vocabulary_size": 32002, "sequence_length": 512},
            id="defaults: tokens for padding and for patches, 512 tokens",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"bf16": None, "fp16": "True"},
            {"parameter_dtype": "float32", "tower_dtype": "float16", "compute_dtype": "float16", "autocast": True},
            id="fp16: weights in float32, the tower in float16",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"lora_enable": "True"},
            {
                "lora.r": 64,
                "lora.alpha": 16,
                "lora.dropout": 0.05,
                "lora.unfrozen": ["multi_modal_projector"],
                "frozen_dtype": "bfloat16",
            },
            id="LoRA by the script's own numbers",
        ),
        pytest.param(
            "llava/train/train_mem.py",
            {"lora_enable": "True", "lora_r": "128", "bits": "4"},
            {
                "lora.r": 128,
                "quantization.bits": 4,
                "quantization.kind": "nf4",
                "quantization.double": True,
                "float32_parts": ["norms"],
                "lora.dtype": "bfloat16",
                "projector_dtype": "bfloat16",
            },
            id="QLoRA: norms in float32, all else in bfloat16",
        ),
    ],
)
def test_what_the_script_does(program: str, changes: dict[str, str | None], facts: dict[str, Any]) -> None:
    made = spec(program, **changes)
    assert not made.unknown_reason
    assert {name: made.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        pytest.param({}, 6_738_415_616 + PROJECTOR, id="language model and projector"),
        pytest.param({"mm_projector_type": None}, 6_738_415_616 + 1024 * 4096 + 4096, id="a linear projector"),
        pytest.param({"tune_mm_mlp_adapter": "True"}, PROJECTOR, id="the projector alone"),
        pytest.param({"freeze_backbone": "True"}, PROJECTOR + HEAD, id="projector and head"),
        pytest.param({"freeze_mm_mlp_adapter": "True"}, 6_738_415_616, id="the language model alone"),
        pytest.param({"lora_enable": "True"}, PROJECTOR + ADAPTERS, id="adapters and projector"),
        pytest.param({"lora_enable": "True", "bits": "4"}, PROJECTOR + ADAPTERS, id="adapters over 4 bits, projector"),
    ],
)
def test_what_trains(changes: dict[str, str | None], trained: int) -> None:
    assert record(spec(**changes)).trainable_parameters == trained


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"image_aspect_ratio": "anyres"}, "--image_aspect_ratio anyres: how many tiles", id="images in tiles"
        ),
        pytest.param({"mm_projector_type": "resampler"}, "--mm_projector_type resampler is not known", id="projector"),
        pytest.param({"mm_projector_type": "mlpx_gelu"}, "--mm_projector_type mlpx_gelu is not known", id="no depth"),
        pytest.param({"vision_tower": "nobody/clip"}, "--vision_tower nobody/clip: not in the catalogue", id="tower"),
        pytest.param(
            {"vision_tower": "google/siglip-so400m-patch14-384"},
            "--vision_tower google/siglip-so400m-patch14-384: of towers clip are known",
            id="a tower that LLaVA does not have",
        ),
        pytest.param(
            {"vision_tower": "google/vit-base-patch16-224", "mm_tunable_parts": "mm_mlp_adapter"},
            "--vision_tower google/vit-base-patch16-224: of towers clip and siglip are known",
            id="a tower that LLaVA-NeXT does not have",
        ),
        pytest.param({"vision_tower": "$TOWER"}, "--vision_tower is not known: TOWER", id="a tower that nothing sets"),
        pytest.param(
            {"model_name_or_path": "./checkpoints/$VERSION"},
            "--model_name_or_path is not known: VERSION is not set",
            id="a model that nothing sets",
        ),
        pytest.param(
            {"model_name_or_path": "Qwen/Qwen2-7B-Instruct"},
            "--model_name_or_path: of LLaVA 1.2 language models of type llama are known, not qwen2",
            id="a language model of another kind",
        ),
        pytest.param(
            {"mm_tunable_parts": "mm_mlp_adapter,mm_ears"},
            "--mm_tunable_parts mm_mlp_adapter,mm_ears is not known",
            id="a part that LLaVA-NeXT does not have",
        ),
        pytest.param(
            {"mm_tunable_parts": "mm_mlp_adapter", "mm_resampler_type": "qformer"},
            "--mm_resampler_type: what LLaVA-NeXT puts between tower and projector is not known",
            id="LLaVA-NeXT's resamplers",
        ),
        pytest.param(
            {"mm_tunable_parts": "mm_mlp_adapter", "lora_enable": "True"},
            "--mm_tunable_parts beside --lora_enable is not known",
            id="LLaVA-NeXT's parts beside adapters",
        ),
        pytest.param({"mm_projector_type": "$KIND"}, "--mm_projector_type is not known: KIND", id="no value for a key"),
        pytest.param(
            {"tune_mm_mlp_adapter": "True", "bits": "4"},
            "--tune_mm_mlp_adapter over quantised weights",
            id="the projector alone before quantised weights",
        ),
        pytest.param({"mm_vision_select_feature": "slicefour_patch"}, "--mm_vision_select_feature", id="feature"),
    ],
)
def test_what_is_not_known_is_named(changes: dict[str, str | None], reason: str) -> None:
    made = spec(**changes)
    assert made.architecture is None
    assert made.unknown_reason.startswith(reason)


NEXT = {"mm_tunable_parts": "mm_vision_tower,mm_mlp_adapter,mm_language_model"}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        pytest.param(
            {**NEXT, "model_max_length": None, "gradient_checkpointing": None},
            {
                "frozen_parts": [],
                "sequence_length": 4096,
                "checkpointing": "full",
                "attention": "flash",
                "transformers_version": "4.40",
            },
            id="everything trains, by its own defaults",
        ),
        pytest.param(
            {"mm_tunable_parts": "mm_mlp_adapter", "model_name_or_path": "Qwen/Qwen2-7B-Instruct"},
            {"frozen_parts": ["vision_tower", "language_model"], "model": "Qwen/Qwen2-7B-Instruct"},
            id="the projector alone, before Qwen2",
        ),
        pytest.param(
            {**NEXT, "attn_implementation": "sdpa"}, {"attention": "sdpa"}, id="attention as the command has it"
        ),
        pytest.param({"unfreeze_mm_vision_tower": "True"}, {"frozen_parts": []}, id="its older switch for the tower"),
        pytest.param(
            {"mm_vision_tower_lr": "2e-6", "tune_mm_mlp_adapter": "True"},
            {"frozen_parts": ["vision_tower", "language_model"]},
            id="its older switches, the tower frozen",
        ),
    ],
)
def test_what_llava_next_does(changes: dict[str, str | None], facts: dict[str, Any]) -> None:
    made = spec(**changes)
    assert not made.unknown_reason
    assert {name: made.get(name) for name in facts} == facts
    assert made.facts["images_per_sample"].origin == ASSUMED


def test_every_part_of_llava_next_may_train() -> None:
    every = record(spec(**NEXT))
    assert every.trainable_parameters == every.parameters == record(spec()).parameters


@pytest.mark.parametrize(
    ("changes", "length", "origin"),
    [
        pytest.param({}, 576 + 77, ASSUMED, id="an image, and a caption as long as CLIP reads"),
        pytest.param({"vision_tower": "openai/clip-vit-large-patch14"}, 256 + 77, ASSUMED, id="a smaller image"),
        pytest.param({"mm_vision_select_feature": "cls_patch"}, 577 + 77, ASSUMED, id="the token of its class as well"),
        pytest.param({"model_max_length": "600"}, 600, WRITTEN, id="cut to the limit"),
        pytest.param(
            {"vision_tower": "google/siglip-so400m-patch14-384", "mm_tunable_parts": "mm_mlp_adapter"},
            729 + 64,
            ASSUMED,
            id="SigLIP's image, and its own captions",
        ),
        pytest.param({"version": "v1"}, 1024, WRITTEN, id="conversations may be as long as the limit"),
    ],
)
def test_how_long_a_sample_of_plain_captions_is(changes: dict[str, str | None], length: int, origin: str) -> None:
    fact = spec(**{"version": "plain", **changes}).facts["sequence_length"]
    assert (fact.value, fact.origin) == (length, origin)
    assert "no file states how long captions are" in fact.reason or origin == WRITTEN


def test_another_program_of_these_options_is_not_llava() -> None:
    made = spec("other/train/train_mem.py")
    assert "vision tower joined to a language model by the script's own code" in made.unknown_reason


def test_a_run_as_a_module_is_the_same_run() -> None:
    made = run(command().replace("llava/train/train_mem.py", "-m llava.train.train_mem"), "train.sh")
    assert (made.get("attention"), made.unknown_reason) == ("flash", "")


def test_fsdp_does_not_shard_the_tower() -> None:
    """The script hides it in a list; the first FSDP is the only one that transformers 4.37 has."""
    sharded = {"fsdp": '"full_shard auto_wrap"', "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
    made = run(command(**sharded).replace("nproc_per_node=1", "nproc_per_node=8"), "train.sh")
    estimate = estimate_spec(made)
    tower = record(spec()).parameters - record(spec(tune_mm_mlp_adapter="True")).trainable_parameters - 6_738_415_616
    assert made["parallelism.strategy"] == "fsdp1"
    # half of each parameter's 4 bytes; the allocator rounds small ones up to 512
    assert estimate.component_bytes("helper_models") == pytest.approx(2 * tower, rel=1e-3)
    assert record(made).parameters == record(spec()).parameters


def test_deepspeed_casts_all_of_it(tmp_path: Path) -> None:
    root = written(tmp_path, {"zero2.json": ZERO, "train.sh": command(deepspeed="./zero2.json", lora_enable="True")})
    path = root / "train.sh"
    from memlint.dialects import registry

    (made,) = registry.specs(load(str(path), path.read_text()))
    assert made.get("parallelism.zero_stage") == 2
    assert (made["lora.dtype"], made["frozen_dtype"], made.get("projector_dtype")) == ("bfloat16", "bfloat16", None)


def test_a_longer_row_has_more_words_and_the_same_image() -> None:
    """Between one length and the next grow the tokens alone, as every batch has one image a row."""
    short, middle, long = (estimate_spec(spec(model_max_length=str(n))).allocated_bytes for n in (1024, 2048, 3072))
    assert long - middle == pytest.approx(middle - short, rel=0.05)
    assert middle > short


def test_where_the_fact_of_an_image_comes_from() -> None:
    fact = spec().fact("images_per_sample")
    assert fact is not None
    assert (fact.origin, "zeros where a sample has none" in fact.reason) == (DEFAULT, True)
