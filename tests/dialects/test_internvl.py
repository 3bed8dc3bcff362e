"""InternVL's training scripts: what a command says, what the script does beside that, and what is not known of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.data import internvl as published
from memlint.data import models
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import ASSUMED, OnTop, TrainingSpec
from memlint.models import record
from tests.dialects.language_models import run, written

PROGRAM = "internvl/train/internvl_chat_finetune.py"
OPTIONS = {
    "model_name_or_path": "OpenGVLab/InternVL2_5-1B",
    "conv_style": "internvl2_5",
    "output_dir": "o",
    "meta_path": "m.json",
    "force_image_size": "448",
    "max_dynamic_patch": "6",
    "down_sample_ratio": "0.5",
    "drop_path_rate": "0.1",
    "freeze_llm": "False",
    "freeze_mlp": "False",
    "freeze_backbone": "True",
    "vision_select_layer": "-1",
    "bf16": "True",
    "per_device_train_batch_size": "1",
    "max_seq_length": "4096",
    "do_train": "True",
    "grad_checkpoint": "True",
    "group_by_length": "True",
    "dynamic_image_size": "True",
    "use_thumbnail": "True",
}
LORA = {"use_llm_lora": "16", "freeze_llm": "True", "freeze_mlp": "True"}
PARTS = {
    "model_name_or_path": None,
    "vision_path": "./pretrained/InternViT-300M-448px-V2_5",
    "llm_path": "./pretrained/Qwen2.5-0.5B-Instruct",
}


def command(program: str = PROGRAM, devices: int = 1, **changes: str | None) -> str:
    """``None`` takes an option out."""
    options = {name: value for name, value in {**OPTIONS, **changes}.items() if value is not None}
    return f"torchrun --nproc_per_node={devices} {program} " + " ".join(f"--{n} {v}" for n, v in options.items()) + "\n"


def spec(program: str = PROGRAM, **changes: str | None) -> TrainingSpec:
    return run(command(program, **changes), "train.sh")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        pytest.param(
            {},
            {
                "model_class": "vision_language",
                "frozen_parts": ["vision_tower"],
                "attention": "flash",
                "checkpointing": "full",
                "checkpointing_reentrant": True,
                "transformers_version": "4.37.2",
                "optimizer": "adamw",
                "vocabulary_size": 151674,
                "sequence_length": 4096,
                "sequence_bound": True,
                "images_per_sample": 7,
                "fewest_images": 1,
                "most_images": 15,
                "parameter_dtype": "bfloat16",
                "autocast": True,
                "projector_dtype": None,
                "sample_bytes": 3 * 8 * 4096 + 7 * 4 * 3 * 448 * 448,
            },
            id="decoder and projector train, the tower looks on at six tiles and a thumbnail",
        ),
        pytest.param({"use_thumbnail": "False"}, {"images_per_sample": 6}, id="no thumbnail"),
        pytest.param({"max_dynamic_patch": "1"}, {"images_per_sample": 1}, id="a single tile needs no thumbnail"),
        pytest.param({"dynamic_image_size": "False"}, {"images_per_sample": 1}, id="an image is one tile"),
        pytest.param({"max_dynamic_patch": None}, {"images_per_sample": 13}, id="twelve tiles by default"),
        pytest.param(
            {"max_dynamic_patch": "40"},
            {"images_per_sample": 15, "most_images": None},
            id="no more tiles than the length has room for",
        ),
        pytest.param(
            {"max_seq_length": None}, {"sequence_length": 8192, "most_images": 31}, id="8,192 tokens by default"
        ),
        pytest.param(
            {"force_image_size": "224"},
            {"images_per_sample": 7, "most_images": 63},
            id="smaller tiles are fewer tokens",
        ),
        pytest.param(
            {"group_by_length": None},
            {"sequence_bound": None, "packing": True},
            id="rows that are not grouped by length are padded to the limit",
        ),
        pytest.param({"grad_checkpoint": "False"}, {"checkpointing": "none"}, id="the decoder keeps its activations"),
        pytest.param({"grad_checkpoint": None}, {"checkpointing": "full"}, id="the decoder is recomputed by default"),
        pytest.param(
            {"grad_checkpoint": "False", "gradient_checkpointing": "True"},
            {"checkpointing": "full", "checkpointing_reentrant": True},
            id="TrainingArguments' own switch recomputes it, too",
        ),
        pytest.param(
            {"freeze_llm": "True"}, {"frozen_parts": ["vision_tower", "language_model"]}, id="stage 1: the projector"
        ),
        pytest.param({"freeze_backbone": "False"}, {"frozen_parts": []}, id="all trains"),
        pytest.param(
            {"unfreeze_lm_head": "True"}, {"frozen_parts": ["vision_tower"]}, id="a switch that no weight heeds"
        ),
        pytest.param(
            LORA,
            {
                "tuning": "lora",
                "lora.r": 16,
                "lora.alpha": 32,
                "lora.dropout": 0.05,
                "lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"],
                "lora.unfrozen": None,
            },
            id="LoRA alone",
        ),
        pytest.param(
            {**LORA, "freeze_mlp": "False", "freeze_backbone": "False"},
            {"lora.unfrozen": ["multi_modal_projector", "vision_tower"]},
            id="LoRA, and in full what is not frozen beside it",
        ),
        pytest.param(
            {**LORA, "model_name_or_path": "./pretrained/InternVL2-8B"},
            {
                "lora.targets": ["wqkv", "wo", "gate_proj", "down_proj", "up_proj"],
                "vocabulary_size": 92553,
                "same_model_as": "InternVL2-8B",
            },
            id="LoRA of InternLM2, by a folder that has a model's name",
        ),
        pytest.param(
            {**LORA, "model_name_or_path": "OpenGVLab/InternVL2-4B"},
            {"lora.targets": ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"], "vocabulary_size": 32020},
            id="LoRA of Phi-3",
        ),
        pytest.param(
            {"model_name_or_path": "OpenGVLab/InternVL2_5-8B-MPO"}, {"vocabulary_size": 92553}, id="a model's heir"
        ),
        pytest.param(
            {
                "use_packed_ds": "True",
                "strict_mode": "False",
                "max_packed_tokens": "16384",
                "num_images_expected": "48",
            },
            {"sequence_length": 16384, "sequence_bound": True, "images_per_sample": 48, "fewest_images": 1},
            id="packed rows, at most as long and with as many tiles as is said",
        ),
        pytest.param(
            {"use_packed_ds": "True", "strict_mode": "False", "max_packed_tokens": "4096", "num_images_expected": "48"},
            {"sequence_length": 4096, "images_per_sample": 16},
            id="packed rows too short for as many tiles",
        ),
        pytest.param(
            {"use_packed_ds": "True"},
            {
                "sequence_length": 8192,
                "packing": True,
                "sequence_bound": None,
                "images_per_sample": 40,
                "fewest_images": None,
            },
            id="packed rows in strict mode are all filled, with tiles as well",
        ),
        pytest.param(
            PARTS,
            {"vocabulary_size": 151674, "projector_dtype": "float32", "frozen_parts": ["vision_tower"]},
            id="tower and decoder by themselves: nine tokens more, and a projector made anew",
        ),
    ],
)
def test_what_the_script_makes_of_a_command(changes: dict[str, str | None], facts: dict[str, Any]) -> None:
    made = spec(**changes)
    assert not made.unknown_reason
    assert {name: made.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"model_name_or_path": "OpenGVLab/InternVL9-1B"},
            "--model_name_or_path OpenGVLab/InternVL9-1B: not in the catalogue",
            id="a model that nobody knows",
        ),
        pytest.param(
            {"model_name_or_path": "OpenGVLab/InternVL3-8B-hf"},
            "--model_name_or_path OpenGVLab/InternVL3-8B-hf: catalogue is of type internvl, which",
            id="transformers' own model of InternVL",
        ),
        pytest.param({"model_name_or_path": "$MODEL"}, "--model_name_or_path is not known: MODEL", id="no value"),
        pytest.param({"model_name_or_path": None}, "model_name_or_path is not stated", id="no model"),
        pytest.param({**PARTS, "vision_path": None}, "vision_path is not stated", id="no tower"),
        pytest.param(
            {**PARTS, "llm_path": "nobody/words"}, "--llm_path nobody/words: not in the catalogue", id="decoder"
        ),
        pytest.param(
            {**PARTS, "vision_path": "openai/clip-vit-large-patch14"},
            "--vision_path openai/clip-vit-large-patch14: of towers InternViT is known, not",
            id="another tower",
        ),
        pytest.param(
            {**PARTS, "llm_path": "google/gemma-2b"},
            "of InternVL's language models those of type internlm2, llama, phi3, qwen2 are known, not gemma",
            id="another decoder",
        ),
        pytest.param(
            {**PARTS, "llm_path": "$WORDS"}, "--llm_path is not known: WORDS", id="a decoder that nothing sets"
        ),
        pytest.param(
            {"use_backbone_lora": "8"}, "--use_backbone_lora: adapters in the tower get no gradient", id="tower"
        ),
        pytest.param({"unfreeze_vit_layers": "-4"}, "--unfreeze_vit_layers: blocks that train", id="some blocks"),
        pytest.param({"vision_select_layer": "-4"}, "--vision_select_layer -4: of another layer", id="another layer"),
        pytest.param({"ps_version": "v3"}, "--ps_version v3 is not known", id="pixel shuffle"),
        pytest.param({"down_sample_ratio": "0.4"}, "--down_sample_ratio 0.4 is no whole number's part", id="ratio"),
        pytest.param(
            {"down_sample_ratio": "0.2"},
            "--force_image_size 448: a tile has 32 patches in a row",
            id="a ratio that does not divide",
        ),
        pytest.param({"down_sample_ratio": "0"}, "--down_sample_ratio 0 is not a number from", id="no ratio"),
        pytest.param(
            {"force_image_size": "9"}, "--force_image_size 9: a tile has 0 patches in a row", id="a tile below a patch"
        ),
        pytest.param({"force_image_size": "large"}, "--force_image_size large is not a whole number", id="a word"),
        pytest.param({"drop_path_rate": "2"}, "--drop_path_rate 2 is not a number from 0 to 1", id="a share above one"),
        pytest.param({"drop_path_rate": "nan"}, "--drop_path_rate nan is not a number", id="not a number"),
        pytest.param({"freeze_llm": "perhaps"}, "--freeze_llm perhaps is neither true nor false", id="a switch"),
        pytest.param({"freeze_llm": "$FREEZE"}, "--freeze_llm is not known: FREEZE", id="a switch that nothing sets"),
        pytest.param({"use_llm_lora": "-1"}, "--use_llm_lora -1 is not a whole number from 0", id="a rank below zero"),
        pytest.param({"max_dynamic_patch": "0"}, "--max_dynamic_patch 0 is not a whole number from 1", id="no tile"),
        pytest.param(
            {"min_dynamic_patch": "9"}, "--min_dynamic_patch 9 is above --max_dynamic_patch 6", id="least tiles"
        ),
        pytest.param(
            {"max_seq_length": "256"}, "--max_seq_length 256: no sample has room for the 256 tokens", id="short"
        ),
        pytest.param(
            {**LORA, "use_llm_lora": "0"}, "--freeze_llm, --freeze_mlp and --freeze_backbone without", id="frozen"
        ),
        pytest.param({"bf16": None}, "neither --bf16 nor --fp16: weights are in bfloat16", id="no half"),
        pytest.param(
            {"unfreeze_lm_head": "True", "model_name_or_path": "OpenGVLab/InternVL2-8B"},
            "--unfreeze_lm_head: InternLM2 has no lm_head",
            id="a head of another name",
        ),
        pytest.param(
            {"use_custom_flash_attn": "True"}, "--use_custom_flash_attn: the code of InternVL 3.5", id="newer"
        ),
        pytest.param(
            {"use_packed_ds": "True", "per_device_train_batch_size": "2"},
            "--per_device_train_batch_size 2: with --use_packed_ds attention takes one row at a time",
            id="two packed rows",
        ),
        pytest.param({"use_liger": "True"}, "--use_liger: Liger's kernels", id="Liger"),
    ],
)
def test_what_is_not_known_is_named(changes: dict[str, str | None], reason: str) -> None:
    made = spec(**changes)
    assert made.architecture is None
    assert made.unknown_reason.startswith(reason)


def test_what_comes_on_top_of_weights_and_states_leaves_a_bound() -> None:
    made = spec(use_liger="True")
    assert isinstance(made.unknown_reason, OnTop)
    assert made.architecture_at_least


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param("internvl/train/internvl_chat_pretrain.py", "", id="the pretraining of the same model"),
        pytest.param(
            "internvl/train/internvl_chat_mpo.py",
            "internvl_chat_mpo: of InternVL's own code internvl_chat_finetune and internvl_chat_pretrain are known",
            id="preference optimisation",
        ),
    ],
)
def test_of_which_programs_it_is(program: str, reason: str) -> None:
    assert spec(program).unknown_reason.startswith(reason)
    assert bool(spec(program).unknown_reason) == bool(reason)


def test_a_run_as_a_module_is_the_same_run() -> None:
    made = run(command().replace(PROGRAM, "-m internvl.train.internvl_chat_finetune"), "train.sh")
    assert (made.get("images_per_sample"), made.unknown_reason) == (7, "")


def test_how_many_tiles_there_are_is_said_to_be_assumed() -> None:
    fact = spec().facts["images_per_sample"]
    assert fact.origin == ASSUMED
    assert (
        "an image in each sample, in as many tiles of 256 tokens as --max_dynamic_patch leaves room for" in fact.reason
    )
    assert "those of several have at most 15" in fact.reason


def test_a_config_json_that_holds_both_parts_is_read(tmp_path: Path) -> None:
    chat = published.chat("InternVL2_5-1B")
    assert chat is not None
    config = {"model_type": "internvl_chat", "llm_config": chat.words, "vision_config": chat.tower}
    files = {"ours/config.json": json.dumps(config), "train.sh": command(model_name_or_path="./ours")}
    root = written(tmp_path, files)
    path = root / "train.sh"
    (made,) = registry.specs(load(str(path), path.read_text()))
    assert record(made).parameters == record(spec()).parameters


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param({"model_type": "internvl_chat"}, "is of type internvl_chat, which", id="no parts"),
        pytest.param(
            {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2"}, "vision_config": {}},
            "states no vocab_size of its llm_config",
            id="no vocabulary",
        ),
        pytest.param(
            {"model_type": "internvl_chat", "llm_config": {"vocab_size": 8}, "vision_config": {}, "use_llm_lora": 16},
            "has adapters already",
            id="adapters that were trained before",
        ),
        pytest.param(
            {
                "model_type": "internvl_chat",
                "llm_config": {"vocab_size": 8, "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 1,
                               "num_attention_heads": 2, "intermediate_size": 64},
                "vision_config": {"norm_type": "none"},
            },
            "norm_type none of InternViT is not known",
            id="another norm",
        ),
    ],
)  # fmt: skip
def test_a_config_json_that_is_no_such_model_is_named(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    files = {"ours/config.json": json.dumps(config), "train.sh": command(model_name_or_path="./ours")}
    path = written(tmp_path, files) / "train.sh"
    (made,) = registry.specs(load(str(path), path.read_text()))
    assert made.architecture is None
    assert reason in made.unknown_reason


# Sizes that pages of the hub state ("Model size", in billions), or those of copies of them; the
# documents of InternVL 1.5 and 2.0; the collection OpenGVLab/internvl3; OpenExplorer/InternVL2-1B (938.2M).
SIZES = {
    "InternVL-Chat-V1-5": 25.5, "Mini-InternVL-Chat-2B-V1-5": 2.21, "Mini-InternVL-Chat-4B-V1-5": 4.15,
    "InternVL2-1B": 0.938, "InternVL2-2B": 2.21, "InternVL2-8B": 8.08, "InternVL2-26B": 25.5, "InternVL2-40B": 40.1,
    "InternVL2-Llama3-76B": 76.3, "InternVL2_5-8B": 8.08, "InternVL3-14B": 15, "InternVL3-38B": 38, "InternVL3-78B": 78,
}  # fmt: skip
# The same models as transformers computes them, counted by its class (tests/data/test_models.py).
COUNTED = {
    "InternVL3-1B": "OpenGVLab/InternVL3-1B-hf",
    "InternVL3-2B": "OpenGVLab/InternVL3-2B-hf",
    "InternVL3-8B": "OpenGVLab/InternVL3-8B-hf",
    "InternVL2_5-1B": "OpenGVLab/InternVL3-1B-hf",
}


@pytest.mark.parametrize(("name", "billions"), SIZES.items(), ids=SIZES)
def test_a_model_is_as_large_as_it_was_published(name: str, billions: float) -> None:
    digits = len(str(billions).partition(".")[2])
    made = record(spec(model_name_or_path=f"OpenGVLab/{name}")).parameters
    assert round(made / 1e9, digits) == billions


@pytest.mark.parametrize(("name", "like"), COUNTED.items(), ids=COUNTED)
def test_a_model_has_as_many_parameters_as_transformers_copy_of_it(name: str, like: str) -> None:
    known = models.find(like)
    assert known is not None
    assert record(spec(model_name_or_path=f"OpenGVLab/{name}")).parameters == known.parameters


@pytest.mark.parametrize("name", published.names())
def test_every_published_model_has_an_estimate(name: str) -> None:
    assert not spec(model_name_or_path=f"OpenGVLab/{name}").unknown_reason


# zero_stage1_config.json and zero_stage3_config.json of the repository, as far as they decide memory.
ZERO = {
    1: {"stage": 1, "allgather_bucket_size": 1e9, "overlap_comm": True, "reduce_bucket_size": 1e9},
    3: {
        "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
        "reduce_bucket_size": 1e9, "stage3_prefetch_bucket_size": 1e9, "stage3_param_persistence_threshold": 1e7,
        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
    },
}  # fmt: skip


def sharded(root: Path, stage: int, devices: int, **changes: str | None) -> TrainingSpec:
    halves = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
    config = {"zero_optimization": ZERO[stage], **halves, "optimizer": {"type": "AdamW", "params": {}}}
    files = {"zero.json": json.dumps(config), "train.sh": command(devices=devices, deepspeed="zero.json", **changes)}
    path = written(root, files) / "train.sh"
    (made,) = registry.specs(load(str(path), path.read_text()))
    return made


FULL = {"drop_path_rate": "0.4"}
ALONE = {**LORA, "drop_path_rate": "0.0"}


@pytest.mark.parametrize(
    ("model", "stage", "devices", "rows", "options", "published_gb", "card_gb"),
    [
        pytest.param("InternVL2-4B", 1, 8, 4, FULL, 40, 80, id="4B in full"),
        pytest.param("InternVL2-26B", 3, 8, 2, FULL, 77, 80, id="26B in full over eight cards"),
        pytest.param("InternVL2-26B", 3, 2, 2, ALONE, 79, 80, id="26B by LoRA over two"),
        pytest.param("InternVL2-26B", 3, 8, 2, ALONE, 60, 80, id="26B by LoRA over eight"),
        pytest.param("InternVL2-40B", 3, 16, 2, FULL, 77, 80, id="40B in full over sixteen"),
        pytest.param("InternVL2-40B", 3, 2, 2, ALONE, 74, 80, id="40B by LoRA over two"),
        pytest.param("InternVL2-Llama3-76B", 3, 32, 1, FULL, 77, 80, id="76B in full over thirty-two"),
        pytest.param("InternVL2-Llama3-76B", 3, 8, 1, ALONE, 74, 80, id="76B by LoRA over eight"),
    ],
)
def test_what_the_documents_run_fits_and_takes_no_more_than_they_say(
    tmp_path: Path,
    model: str,
    stage: int,
    devices: int,
    rows: int,
    options: dict[str, str],
    published_gb: int,
    card_gb: int,
) -> None:
    """InternVL's documents say what each run costs a card: a reading of a run whose rows are rarely as long as they may
    be, with what the allocator keeps, so the estimate of the longest rows lies between weights and the card."""
    changes = {"model_name_or_path": f"OpenGVLab/{model}", "per_device_train_batch_size": str(rows), **options}
    made = sharded(tmp_path, stage, devices, **changes)
    assert not made.unknown_reason
    found = estimate_spec(made)
    held = sum(found.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
    assert held < published_gb * 1e9
    assert found.device_bytes < card_gb * 1e9
