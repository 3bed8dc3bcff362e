"""Behaviour by release: on either side of each border a pin changes what a run is, as the row says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memlint import plausible, releases
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import EqualRuns
from memlint.facts.spec import ASSUMED, TrainingSpec
from memlint.releases.behaviour import LESS, MORE
from memlint.releases.days import DAYS
from memlint.tape.estimate import Estimate

ROOT = Path(__file__).parent.parent
BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "dataset_name": "x",
    "max_length": 512,
    "per_device_train_batch_size": 2,
    "bf16": "true",
}
QUANTISED = {"load_in_4bit": "true", "use_peft": "true"}


def recipe(keys: dict[str, Any]) -> str:
    """The base of a recipe with other keys; ``max_seq_length`` is what the length was called."""
    stated = {**BASE, **keys}
    if "max_seq_length" in keys:
        del stated["max_length"]
    return "".join(f"{key}: {value}\n" for key, value in stated.items())


def pinned(tmp_path: Path, method: str, release: str, **keys: Any) -> TrainingSpec:
    """A run of one of TRL's trainers, whose project pins a release; "" for none."""
    config = tmp_path / method / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    (tmp_path / ".git").mkdir(exist_ok=True)
    config.write_text(recipe(keys))
    if release:
        (tmp_path / "requirements.txt").write_text(f"trl=={release}\n")
    [spec] = registry.specs(load(str(config)))
    return spec


BORDERS = [
    # behaviour, trainer, its keys, the release before and the first with (or without) it, a fact and its two values
    ("sft_loss_in_chunks", "sft", {}, "1.6.0", "1.7.0", "loss", "full", "chunked"),
    ("sft_loss_in_tiles", "sft", {"loss_type": "nll"}, "1.14.0", "1.15.0", "loss", "full", "chunked"),
    ("dpo_loss_in_tiles", "dpo", {}, "1.13.0", "1.14.0", "loss_tile", None, (4096, 32768)),
    ("rloo_loss_in_tiles", "rloo", {}, "1.14.0", "1.15.0", "loss_tile", None, (4096, 32768)),
    ("log_probabilities_in_a_kernel", "orpo", {}, "1.13.0", "1.14.0", "log_probabilities", "rows", "kernel"),
    ("dpo_copies_logits", "dpo", {}, "1.5.1", "1.6.0", "log_probabilities", "copied", "rows"),
    ("log_probabilities_row_by_row", "dpo", {}, "0.14.0", "0.15.0", "log_probabilities", "returned", "as_returned"),
    ("dpo_rolls_labels", "dpo", {}, "0.28.0", "0.29.0", "log_probabilities", "as_returned", "copied"),
    ("divides_logits", "grpo", {}, "0.15.2", "0.16.0", "log_probabilities", "rows", "divided"),
    ("divides_logits_in_place", "grpo", {}, "0.29.1", "1.0.0", "log_probabilities", "divided", "divided_in_place"),
    ("sft_prepares_quantised_models", "sft", QUANTISED, "0.25.1", "0.26.0", "float32_parts", ["norms"], None),
    ("dpo_prepares_quantised_models", "dpo", QUANTISED, "0.28.0", "0.29.0", "float32_parts", ["norms"], None),
    (
        *("adapters_of_quantised_models_in_bfloat16_early", "sft", QUANTISED, "0.8.6", "0.9.4"),
        *("lora.dtype", "bfloat16", "float32"),
    ),
    ("checkpoints_by_default", "sft", {}, "0.19.1", "0.20.0", "checkpointing", "none", "full"),
    ("grpo_asks_a_reference", "grpo", {}, "0.18.2", "0.19.0", "reference_model", "copy", "none"),
    ("engine_shares_the_card", "grpo", {"use_vllm": "true"}, "0.29.1", "1.0.0", "engine_share", None, 0.3),
]


@pytest.mark.parametrize(
    ("asked", "release"),
    [
        pytest.param("", "0.28", id="a key that was taken away"),
        pytest.param("trl>=0.28.0\n", "0.28", id="which the project's oldest release still takes"),
        pytest.param("trl>=1.0\n", releases.LIBRARIES["trl"].newest, id="which it does not take any more"),
    ],
)
def test_a_key_tells_no_release_that_the_project_does_not_ask_for(tmp_path: Path, asked: str, release: str) -> None:
    (tmp_path / "requirements.txt").write_text(asked)
    assert pinned(tmp_path, "dpo", "", max_prompt_length="256")["release.trl"] == release


@pytest.mark.parametrize(
    ("behaviour", "method", "keys", "before", "after", "fact", "old", "new"), BORDERS, ids=[row[0] for row in BORDERS]
)
def test_a_pin_on_either_side_says_what_the_run_is(
    tmp_path: Path,
    behaviour: str,
    method: str,
    keys: dict[str, Any],
    before: str,
    after: str,
    fact: str,
    old: Any,
    new: Any,
) -> None:
    assert f"trl.{behaviour}" in releases.BEHAVIOURS
    assert pinned(tmp_path, method, before, **keys).get(fact) == old
    assert pinned(tmp_path, method, after, **keys).get(fact) == new


TRAINER = """\
model_name_or_path: {model}
output_dir: out
block_size: 512
per_device_train_batch_size: 2
bf16: true
"""
QLORA = """\
checkpoint_dir: checkpoints/EleutherAI/pythia-160m
quantize: bnb.nf4
precision: bf16-true
devices: 1
lora_r: 8
lora_query: true
lora_value: true
train: {micro_batch_size: 1, global_batch_size: 4, max_seq_length: 512}
"""
FOUNDRY = """\
max_seq_len: 512
model:
  name: mpt_causal_lm
  d_model: 512
  n_heads: 8
  n_layers: 4
  max_seq_len: 512
  vocab_size: 50368
  norm_type: rmsnorm
  attn_config: {qk_ln: true}
tokenizer: {name: EleutherAI/gpt-neox-20b}
train_loader: {name: text, dataset: {max_seq_len: 512}}
optimizer: {name: decoupled_adamw, lr: 6.0e-4}
max_duration: 100ba
global_train_batch_size: 8
device_train_microbatch_size: 8
precision: amp_bf16
"""
TORCHTUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 1024}
optimizer: {_component_: torch.optim.AdamW}
loss: {_component_: torch.nn.CrossEntropyLoss}
batch_size: 2
dtype: bf16
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 4
seq_len = 1024
[parallelism]
data_parallel_shard_degree = 2
[activation_checkpoint]
mode = "none"
"""
LLAVA = """\
torchrun --nproc_per_node=1 llava/train/{program}.py --model_name_or_path lmsys/vicuna-7b-v1.5 --version v1 \\
  --data_path a.json --vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu \\
  --mm_vision_select_layer -2 --mm_use_im_patch_token False --bf16 True --output_dir o {keys} \\
  --per_device_train_batch_size 2 --model_max_length 1024
"""
QWEN = TRAINER.format(model="Qwen/Qwen2.5-0.5B")
SEEING = """\
model_name_or_path: Qwen/Qwen2-VL-2B-Instruct
image_max_pixels: 200704
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
template: qwen2_vl
cutoff_len: 512
per_device_train_batch_size: 2
bf16: true
"""
GPT2 = TRAINER.format(model="gpt2")
STEP = TRAINER.format(model="gpt2").replace("512", "16")
FSDP = """\
torchrun --nproc_per_node 4 run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --output_dir o \\
  --block_size 512 --bf16 true --fsdp full_shard {more}
"""
COOKBOOK = """\
torchrun --nproc_per_node 4 -m llama_recipes.finetuning --enable_fsdp --use_peft --peft_method lora \\
  --model_name TinyLlama/TinyLlama-1.1B-Chat-v1.0 --context_length 256
"""
GLUE = """\
python run_glue.py --model_name_or_path google-bert/bert-base-uncased --task_name mnli --output_dir o \\
  --per_device_train_batch_size 16 --max_seq_length 512 --attn_implementation eager
"""
T5 = "python run_summarization.py --model_name_or_path google-t5/t5-small --dataset_name x --output_dir o\n"
LIGER = """\
python run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --output_dir o --block_size 512 --bf16 true \\
  --per_device_train_batch_size 2 --per_device_eval_batch_size 64 --eval_strategy steps --use_liger_kernel true
"""
LORA, CHECKPOINTED = "--lora_enable True", "--gradient_checkpointing True"
EAGER = "attn_implementation: eager\n"


# FSDP2, as transformers since 5.10 has it where no version is stated
CLASSIFIER = """\
python run_glue.py --model_name_or_path {model} --task_name mnli --output_dir o --max_seq_length {length} --bf16 true
"""
SHARDED = """\
torchrun --nproc_per_node 4 trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --output_dir o \\
  --max_length 512 --bf16 true --dtype bfloat16 --fsdp full_shard {more}
"""
LORA_ON_FOUR = QLORA.replace("devices: 1", "devices: 4").replace("quantize: bnb.nf4\n", "")
RECOMPUTED = {
    "use_peft": "true",
    "dtype": "bfloat16",
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": "true",
}
VERL_SFT = """\
torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-0.5B
"""
VERL = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 {more}
"""
UNPADDED = "actor_rollout_ref.model.use_remove_padding=True"
REWARDED = " reward_model.enable=True reward_model.rollout.gpu_memory_utilization=0.9"
QUANTISED_SFT = recipe({**QUANTISED, "gradient_checkpointing": "false"})
MIXTURE = recipe({**QUANTISED, "lora_target_modules": "q_proj"}).replace(
    "Qwen/Qwen2.5-0.5B", "allenai/OLMoE-1B-7B-0924"
)
GPT_OSS = """\
base_model: openai/gpt-oss-20b
adapter: lora
lora_r: 8
lora_target_linear: true
datasets: [{path: x, type: chat_template}]
sequence_len: 64
micro_batch_size: 1
bf16: true
gradient_checkpointing: true
"""


YOLO = "yolo detect train model=yolov8l.pt data={data} imgsz={size} batch={batch}\n"


SEGMENTOR = """
model = dict(type='EncoderDecoder', backbone=dict(type='ResNet', depth=50), decode_head=dict(
    type='UPerHead', in_channels=[256, 512, 1024, 2048], in_index=[0, 1, 2, 3], channels=512, num_classes=19,
    norm_cfg=dict(type='BN')))
train_dataloader = dict(batch_size=2, dataset=dict(type='Mine', pipeline=[
    dict(type='RandomCrop', crop_size=(512, 512))]))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
"""


class Border(NamedTuple):
    """A run that is another one on either side of a border.

    pins   what else the project pins, on both sides and without a pin of this library
    alone  whether nothing but a pin is plausible: the run's program states its release by itself, or no release has
           crossed the border yet
    gpu    the cards, where a share of them is what changes
    """

    name: str
    text: str
    before: str
    after: str
    pins: str = ""
    alone: bool = False
    gpu: str = ""


UNEQUAL = """\
base_model: google/gemma-4-E2B
datasets: [{path: ours}]
sequence_len: 2048
micro_batch_size: 1
adapter: lora
lora_r: 8
lora_target_modules: 'model.language_model.layers.[0-9]+.mlp.(up|down|gate)_proj'
bf16: true
gradient_checkpointing: true
attn_implementation: sdpa
"""
FROZEN = """\
model: {model_name: Qwen/Qwen2-VL-2B-Instruct, model_max_length: 64, torch_dtype_str: bfloat16, freeze_layers: [visual]}
data: {train: {datasets: [{dataset_name: ours}]}}
training: {trainer_type: TRL_SFT, per_device_train_batch_size: 1}
"""
DIT = "torchrun --nproc_per_node 1 train.py --model DiT-B/2 --data-path data --global-batch-size 32\n"
UNSLOTH = (
    "python unsloth-cli.py --model_name unsloth/Llama-3.2-1B --max_seq_length 2048 --load_in_4bit "
    "--per_device_train_batch_size {rows} --use_gradient_checkpointing unsloth\n"
)


def trl_border(behaviour: str, method: str, keys: dict[str, Any], before: str, after: str) -> Border:
    return Border(f"{method}.yaml", recipe(keys), before, after)


RUNS = {
    "torchvision.detectors_start_from_a_trained_backbone": Border(
        "run.sh",
        "python references/detection/train.py --model fasterrcnn_resnet50_fpn --aspect-ratio-group-factor 3\n",
        "0.12.0",
        "0.13.0",
    ),
    "timm.fuses_attention": Border("run.sh", DIT, "0.6.13", "0.9.0"),
    "torch.has_fused_attention": Border("run.sh", DIT, "1.13.1", "2.0.0"),
    "trl.engine_has_a_device": Border(
        *("grpo.yaml", recipe({"use_vllm": "true", "vllm_device": "cuda:0"}), "0.15.2", "0.16.0"),
        alone=True,
        gpu="a100-80gb",
    ),
    "accelerate.fsdp1_trains_in_float32": Border(
        "run.sh", FSDP.format(more="--torch_dtype bfloat16"), "0.29.3", "0.30.0", "transformers==4.36.0\n"
    ),
    "accelerate.fsdp2_widens_frozen_weights": Border(
        "sft.sh", SHARDED.format(more="--use_peft"), "1.12.0", "1.13.0", "transformers==5.23.0\n"
    ),
    "accelerate.fsdp2_reduces_the_last_micro_batch": Border(
        "sft.sh", SHARDED.format(more="--gradient_accumulation_steps 4"), "1.10.1", "1.11.0"
    ),
    "accelerate.fsdp2_leaves_what_trains": Border("sft.sh", SHARDED.format(more=""), "1.13.0", "1.14.0"),
    "peft.adapters_in_float32": Border(
        "sft.yaml", recipe({"dtype": "bfloat16", "use_peft": "true", "lora_r": 256}), "0.11.1", "0.12.0"
    ),
    "litgpt.lora_wraps_blocks": Border("config.yaml", LORA_ON_FOUR, "0.5.7", "0.5.8"),
    "litgpt.lora_on_fsdp2": Border("config.yaml", LORA_ON_FOUR, "0.5.10", "0.5.11"),
    "bitsandbytes.keeps_inputs_of_4_bit_products": Border("sft.yaml", QUANTISED_SFT, "0.43.1", "0.43.2"),
    "bitsandbytes.unpacks_in_the_stored_dtype": Border("sft.yaml", QUANTISED_SFT, "0.49.2", "0.50.0"),
    "unsloth.cuts_cross_entropy": Border("run.sh", UNSLOTH.format(rows=2), "2024.11.8", "2024.11.9"),
    "unsloth.makes_gradients_of_the_loss_in_forward": Border("run.sh", UNSLOTH.format(rows=2), "2025.8.4", "2025.8.5"),
    "unsloth.bounds_pieces_of_the_loss": Border("run.sh", UNSLOTH.format(rows=16), "2026.6.9", "2026.7.1"),
    "unsloth.counts_what_the_loss_makes": Border("run.sh", UNSLOTH.format(rows=16), "2026.9.2", "2026.9.3"),
    "ultralytics.auto_takes_musgd": Border("run.sh", YOLO.format(data="coco.yaml", size=64, batch=1), "8.4.7", "8.4.8"),
    "ultralytics.looks_at_each_side": Border(
        "run.sh", YOLO.format(data="coco8.yaml", size=320, batch=32), "8.4.104", "8.4.105"
    ),
    "ultralytics.clears_before_validation": Border(
        "run.sh", YOLO.format(data="coco8.yaml", size=640, batch=16), "8.3.151", "8.3.152", gpu="gtx1650"
    ),
    "ultralytics.keeps_channels_last": Border(
        "run.sh", YOLO.format(data="coco8.yaml", size=320, batch=32), "8.4.104", "8.4.105"
    ),
    "ultralytics.lists_candidates": Border(
        "run.sh", YOLO.format(data="coco8.yaml", size=320, batch=32), "8.4.133", "8.4.134"
    ),
    "ultralytics.fuses_adam": Border("run.sh", YOLO.format(data="coco8.yaml", size=32, batch=1), "8.4.153", "8.4.154"),
    "verl.sft_shards_by_fsdp2": Border("run.sh", VERL_SFT, "0.3.0", "0.4.0"),
    "verl.sft_checkpoints": Border("run.sh", VERL_SFT, "0.4.0", "0.4.1"),
    "verl.entropy_where_it_counts": Border("run.sh", VERL.format(more=UNPADDED), "0.3.0", "0.4.0"),
    "verl.expands_segments": Border("run.sh", VERL.format(more=UNPADDED), "0.5.0", "0.6.0"),
    "verl.removes_padding": Border("run.sh", VERL.format(more=""), "0.6.1", "0.7.0"),
    "verl.copies_answers_alone": Border(
        "run.sh", VERL.format(more="actor_rollout_ref.model.use_remove_padding=False"), "0.7.1", "0.8.0"
    ),
    "verl.rewards_by_an_engine": Border(
        "run.sh", VERL.format(more=UNPADDED + REWARDED), "0.6.1", "0.7.0", gpu="a100-40gb x8"
    ),
    "torch.group_norm_by_batch_norm": Border(
        "config.py", SEGMENTOR.replace("dict(type='BN')", "dict(type='GN', num_groups=32)"), "1.5.1", "1.6.0"
    ),
    "torch.adds_gradients_in_place": Border("config.py", SEGMENTOR, "1.13.1", "2.0.0"),
    "torch.softmax_keeps_its_input": Border("run.yaml", GPT2 + EAGER, "1.10.2", "1.11.0"),
    "torch.loads_every_kernel_at_start": Border("run.yaml", GPT2, "1.12.1", "1.13.0"),
    "torch.keeps_gradients_as_zeros": Border("run.yaml", GPT2, "1.13.1", "2.0.0"),
    "torch.foreach_is_a_default": Border("run.yaml", STEP, "1.13.1", "2.0.0", "transformers==4.32.0\n"),
    "torch.foreach_adam_keeps_roots": Border("run.yaml", STEP, "2.0.1", "2.1.0", "transformers==4.32.0\n"),
    "torch.fsdp_keeps_frozen_units": Border("run.sh", COOKBOOK, "2.0.1", "2.1.0"),
    "torch.rms_norm_2.5": Border("run.toml", TORCHTITAN, "2.4.1", "2.5.0"),
    "torch.rms_norm_2.7": Border("run.toml", TORCHTITAN, "2.6.0", "2.7.0"),
    "torch.rms_norm_2.9": Border("run.toml", TORCHTITAN, "2.8.0", "2.9.0"),
    "torch.rms_norm_2.12": Border("train.yaml", FOUNDRY, "2.11.0", "2.12.0"),
    "torch.fused_adamw_is_a_default": Border("run.yaml", STEP, "2.7.1", "2.8.0"),
    "torchtune.names_logits": Border("run.yaml", TORCHTUNE, "0.2.1", "0.3.0"),
    "torchtune.norm_is_torchs": Border("run.yaml", TORCHTUNE, "0.4.0", "0.5.0"),
    "transformers.releases_gradients": Border("run.yaml", GPT2, "4.27.4", "4.28.0", "torch==1.13.1\n"),
    "transformers.optimizer_is_torchs": Border("run.yaml", STEP, "4.31.0", "4.32.0"),
    **{
        f"transformers.sdpa_{after[:-2]}": Border(
            "run.sh", CLASSIFIER.format(model=model, length=length), before, after, "torch==2.1.2\n"
        )
        for model, length, before, after in (
            ("meta-llama/Llama-2-7b-hf", 512, "4.35.2", "4.36.0"),
            ("mistralai/Mistral-7B-v0.1", 2048, "4.36.2", "4.37.0"),
            ("microsoft/phi-2", 512, "4.38.2", "4.39.0"),
            ("google-bert/bert-base-uncased", 512, "4.40.2", "4.41.0"),
            ("openai-community/gpt2", 512, "4.41.2", "4.42.0"),
            ("FacebookAI/roberta-base", 512, "4.44.2", "4.45.0"),
            ("distilbert/distilbert-base-uncased", 512, "4.45.2", "4.46.0"),
            ("google/electra-base-discriminator", 512, "4.57.6", "5.0.0"),
        )
    },
    "torch.sdpa_is_taken": Border("run.yaml", GPT2, "2.1.0", "2.1.1"),
    "transformers.clip_has_sdpa": Border(
        "train.sh", LLAVA.format(program="train_mem", keys=""), "4.42.4", "4.43.0", alone=True
    ),
    "transformers.optimizer_is_fused": Border("run.yaml", STEP, "4.53.3", "4.54.0"),
    "transformers.grouped_heads_in_sdpa": Border("run.yaml", QWEN, "4.53.3", "4.54.0"),
    "transformers.repeats_wide_heads_for_sdpa": Border("config.yml", UNEQUAL, "5.12.1", "5.13.0"),
    "transformers.parts_are_the_classes_own": Border("train.yaml", FROZEN, "4.57.6", "5.0.0"),
    "transformers.keeps_the_checkpoints_dtype": Border("run.yaml", QWEN, "4.57.6", "5.0.0"),
    "transformers.experts_are_one_tensor": Border("sft.yaml", MIXTURE, "4.57.6", "5.0.0"),
    # A step of few tokens takes less than half of the weights in 16 bits.
    "transformers.warms_half_of_a_quantised_model": Border(
        "sft.yaml",
        recipe({**QUANTISED, "model_name_or_path": "Qwen/Qwen2.5-7B", "max_length": 64}),
        "4.57.6",
        "5.0.0",
        "trl==0.26.0\n",
    ),
    "transformers.unpacks_mxfp4_by_64_bit_indices": Border("run.yaml", GPT_OSS, "5.0.0", "5.1.0"),
    "transformers.fsdp_is_version_2": Border("run.sh", FSDP.format(more=""), "5.9.0", "5.10.1"),
    "transformers.checkpoints_reentrantly": Border(
        "train.sh", LLAVA.format(program="train_mem", keys=CHECKPOINTED), "4.57.6", "5.0.0", alone=True
    ),
    "transformers.masks_encoders": Border("run.sh", GLUE, "4.57.6", "5.0.0"),
    "transformers.towers_inputs_get_gradients": Border("run.yaml", SEEING, "4.57.6", "5.0.0"),
    "transformers.t5_has_sdpa": Border("run.sh", T5, "5.14.1", "5.15.0"),
    "transformers.evaluates_by_ligers_loss": Border(
        "run.sh", LIGER, "5.14.1", "5.15.0", "torch==2.12.0\naccelerate==1.15.0\npeft==0.21.0\n"
    ),
    "trl.checkpoints_without_reentry": Border(
        "sft.yaml", recipe(RECOMPUTED), "0.27.0", "0.28.0", "transformers==4.57.6\n"
    ),
    "litgpt.stable_embedding": Border("config.yaml", QLORA, "0.4.13", "0.5.0"),
    **{f"trl.{row[0]}": trl_border(*row[:5]) for row in BORDERS},
    # Releases from 0.29 to 1.5 copy logits, too.
    "trl.dpo_prepares_quantised_models": trl_border("", "dpo", QUANTISED, "0.28.0", "1.6.0"),
    # Until 1.14 the loss is another one, too.
    "trl.engine_shares_the_card": trl_border("", "grpo", {"use_vllm": "true"}, "0.29.1", "1.14.0")._replace(
        gpu="a100-80gb"
    ),
}


# On one of the sides there is no single estimate: tests/dialects/test_torchtune.py has both.
ONE_SIDED = {"torchtune.data_cuts_samples", "torchtune.compares_whole_weights"}


def estimate(tmp_path: Path, name: str, pins: str) -> Estimate:
    """Of the run of a ``Border``, in a project that pins so much."""
    row = RUNS[name]
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / row.name).write_text(row.text)
    (tmp_path / "requirements.txt").write_text(row.pins + pins)
    [spec] = registry.specs(load(str(tmp_path / row.name)))
    return EqualRuns().estimates(spec, row.gpu, ()).own()


@pytest.mark.parametrize("name", RUNS)
def test_a_pin_on_either_side_changes_the_estimate(tmp_path: Path, name: str) -> None:
    row, library = RUNS[name], name.partition(".")[0]
    before, after = (estimate(tmp_path, name, f"{library}=={pin}\n") for pin in (row.before, row.after))
    # What is held in forward alone is no part of every peak.
    sizes = [one.device_bytes + one.phases["forward"] for one in (before, after)]
    assert sizes[0] != sizes[1]
    behaviour = releases.BEHAVIOURS[name]
    with_it, without = sizes if releases.does(name, row.before) else reversed(sizes)
    if behaviour.takes in (MORE, LESS):
        assert (with_it > without) is (behaviour.takes == MORE)


def is_plausible(name: str) -> bool:
    """Whether a run whose libraries are not pinned may be on the older side of a border, by its age alone."""
    row = releases.BEHAVIOURS[name]
    days = [DAYS[row.library].get(border, "") for border in releases.borders(name)]
    newest = max(day for known in DAYS.values() for day in known.values())
    return min(days) > f"{int(newest[:4]) - plausible.UNPINNED_YEARS}{newest[4:]}" and not RUNS[name].alone


@pytest.mark.parametrize("name", [name for name in RUNS if is_plausible(name)])
def test_without_a_pin_the_interval_holds_both(tmp_path: Path, name: str) -> None:
    row, library = RUNS[name], name.partition(".")[0]
    low, high = estimate(tmp_path, name, "").device_interval
    for pin in (row.before, row.after):
        assert low <= estimate(tmp_path, name, f"{library}=={pin}\n").device_bytes <= high


@pytest.mark.parametrize(
    ("model", "pins", "attention"),
    [
        pytest.param("Qwen/Qwen2.5-0.5B", "torch==2.0.1\ntransformers==4.40.0\n", "eager", id="torch had none"),
        pytest.param("Qwen/Qwen2.5-0.5B", "torch==2.2.0\ntransformers==4.40.0\n", "sdpa", id="always had it"),
        pytest.param("FacebookAI/roberta-base", "transformers==4.40.0\n", "eager", id="the model had none"),
    ],
)
def test_attention_is_what_the_release_has_for_the_model(tmp_path: Path, model: str, pins: str, attention: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.yaml").write_text(TRAINER.format(model=model))
    (tmp_path / "requirements.txt").write_text(pins)
    [spec] = registry.specs(load(str(tmp_path / "run.yaml")))
    assert spec["attention"] == attention


FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\ndataset: ours\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(STEP, id="the Trainer's own"),
        pytest.param(recipe({}), id="TRL's"),
        pytest.param(FACTORY + "output_dir: out\n", id="LLaMA-Factory's"),
    ],
)
def test_the_default_optimizer_is_the_release_s_whoever_calls_the_trainer(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.yaml").write_text(text)
    ways = []
    for pins in ("transformers==4.48.1\ntorch==2.4.1\n", "transformers==4.54.0\ntorch==2.8.0\n"):
        (tmp_path / "requirements.txt").write_text(pins)
        [spec] = registry.specs(load(str(tmp_path / "run.yaml")))
        ways.append(spec.get("optimizer_implementation", "foreach"))
    assert ways == ["foreach", "fused"]


def test_every_row_has_a_run_on_either_side_of_its_border() -> None:
    without = {name for name, row in releases.BEHAVIOURS.items() if row.brief}  # loading alone, which has tests below
    assert set(RUNS) == set(releases.BEHAVIOURS) - without - ONE_SIDED


@pytest.mark.parametrize(
    ("keys", "release", "loss"),
    [
        pytest.param({}, "1.16", "chunked", id="nothing says: the newest"),
        pytest.param({"max_seq_length": 512}, "0.19", "full", id="a key that was taken away"),
    ],
)
def test_without_a_pin_the_release_is_assumed_and_said(
    tmp_path: Path, keys: dict[str, Any], release: str, loss: str
) -> None:
    spec = pinned(tmp_path, "sft", "", **keys)
    stated = spec.facts["release.trl"]
    assert (stated.value, stated.origin, spec["loss"]) == (release, ASSUMED, loss)
    assert stated.reason


@pytest.mark.parametrize(
    ("release", "kind", "loss"),
    [
        ("1.6.0", "chunked_nll", "chunked"),
        ("1.6.0", "nll", "full"),
        ("1.12.0", "nll", "full"),
        ("1.12.0", "dft", "full"),
        ("1.16.0", "nll", "chunked"),
    ],
)
def test_a_loss_that_is_named_goes_before_the_releases_default(
    tmp_path: Path, release: str, kind: str, loss: str
) -> None:
    assert pinned(tmp_path, "sft", release, loss_type=kind)["loss"] == loss


def test_a_quantised_model_whose_weights_devices_share_is_left_as_it_is(tmp_path: Path) -> None:
    shared = {**QUANTISED, "fsdp": "full_shard"}
    spec = pinned(tmp_path, "sft", "0.22.0", **shared)
    assert (spec.get("float32_parts"), spec["lora.dtype"]) == (None, "bfloat16")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        pytest.param("1.7.0", (1, 7, 0), id="a release"),
        pytest.param("torch 2.6", (2, 6), id="with its framework's name"),
        pytest.param("2.1.0+cu118", (2, 1, 0), id="a local build"),
        pytest.param("1.8.0.dev0", (1, 8, 0), id="a development version"),
        pytest.param("main", None, id="no numbers"),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_series_of_a_release(release: str | None, expected: tuple[int, ...] | None) -> None:
    assert releases.series(release) == expected


def test_no_release_is_the_newest() -> None:
    for name, row in releases.BEHAVIOURS.items():
        assert releases.does(name, None) is releases.does(name, releases.LIBRARIES[row.library].newest)


def test_the_page_of_releases_is_made_of_the_table() -> None:
    done = subprocess.run([sys.executable, "docs/releases.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run python docs/releases.py"


@pytest.mark.parametrize(
    ("model", "pins", "reads"),
    [
        pytest.param("Qwen/Qwen2.5-0.5B", "transformers==5.3.0\n", True, id="a release that does"),
        pytest.param("Qwen/Qwen2.5-0.5B", "transformers==5.4.0\n", False, id="the first that does not"),
        pytest.param("Qwen/Qwen2.5-0.5B", "transformers==4.57.6\n", False, id="the last that did not yet"),
        pytest.param("Qwen/Qwen2.5-0.5B", "", False, id="nothing says, and it was there for weeks of years"),
        pytest.param("Qwen/Qwen3.5-2B", "", True, id="nothing says, and the model is no older"),
        pytest.param(
            "Qwen/Qwen3.5-2B", "trl==1.16.0\n", False, id="the model is no older, but what is pinned is younger"
        ),
    ],
)
def test_the_high_end_holds_a_model_that_was_read_ahead_of_its_quantisation(
    tmp_path: Path, model: str, pins: str, reads: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.yaml").write_text(
        recipe({**QUANTISED, "model_name_or_path": model, "lora_target_modules": "q_proj", "max_length": 16})
    )
    (tmp_path / "requirements.txt").write_text(pins)
    [spec] = registry.specs(load(str(tmp_path / "run.yaml")))
    found = EqualRuns().estimates(spec, "", ()).own()
    whole = 2 * (found.parameters - found.trainable_parameters)
    assert found.allocated_interval.high_bytes >= whole or not reads
    assert any(name == "loading" for name, _, _ in found.assumptions) is reads
