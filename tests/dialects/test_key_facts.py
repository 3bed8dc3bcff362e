"""The families whose models no config states: recognised, their key facts with their places, and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memlint.check import check_paths, check_text
from memlint.dialects import objections, registry
from memlint.dialects import schema as schemas
from memlint.dialects.spelling import spell
from memlint.documents.hydra import composition as hydra
from memlint.documents.load import load
from memlint.facts.spec import WRITTEN, TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.settings import Settings
from tests.material import corpus_folder


class Sample(NamedTuple):
    """A config of a family, written for this test. ``facts``: what it says -> the line that says it (0: none)."""

    family: str
    name: str
    text: str
    facts: dict[str, tuple[Any, int]]


SAMPLES = (
    Sample(
        "guided-diffusion",
        "train.sh",
        """mpiexec -n 4 python scripts/image_train.py --data_dir data --image_size 128 \\
  --num_channels 64 --num_res_blocks 1 --use_checkpoint True \\
  --use_fp16 True --ema_rate 0.99,0.999 --batch_size 6
""",
        {
            "micro_batch_size": (6, 3),
            "image_size": (128, 1),
            "checkpointing": ("full", 2),
            "compute_dtype": ("float16", 3),
            "device_count": (4, 1),
            "ema": (True, 0),
        },
    ),
    Sample(
        "latent-diffusion",
        "ours.yaml",
        """model:
  base_learning_rate: 1.0e-5
  target: ldm.models.diffusion.ddpm.LatentDiffusion
  params:
    use_ema: false
    unet_config:
      target: ldm.modules.diffusionmodules.openaimodel.UNetModel
      params: {model_channels: 64, use_checkpoint: true}
data:
  target: main.DataModuleFromConfig
  params:
    batch_size: 5
    num_workers: 2
lightning:
  trainer: {accumulate_grad_batches: 3}
""",
        {
            "micro_batch_size": (5, 12),
            "workers": (2, 13),
            "ema": (False, 5),
            "checkpointing": ("full", 8),
            "gradient_accumulation_steps": (3, 15),
        },
    ),
    Sample(
        "diffusers",
        "train.sh",
        """accelerate launch --num_processes 4 --mixed_precision fp16 train_text_to_image.py \\
  --pretrained_model_name_or_path org/picture-model \\
  --resolution 768 --train_batch_size 2 \\
  --gradient_accumulation_steps 4 --gradient_checkpointing \\
  --mixed_precision bf16 --use_8bit_adam --use_ema \\
  --enable_xformers_memory_efficient_attention --dataloader_num_workers 3
""",
        {
            "micro_batch_size": (2, 3),
            "image_size": (768, 3),
            "gradient_accumulation_steps": (4, 4),
            "checkpointing": ("full", 4),
            "compute_dtype": ("bfloat16", 5),
            "optimizer": ("adamw_8bit", 5),
            "ema": (True, 5),
            "attention": ("xformers", 6),
            "workers": (3, 6),
            "device_count": (4, 1),
            "sample_bytes": (3 * 4 * 768 * 768, 0),
        },
    ),
    Sample(
        "diffsynth",
        "train.sh",
        """accelerate launch train.py --dataset_base_path data --trainable_models dit --height 480 --width 640 \\
  --num_frames 33 --use_gradient_checkpointing_offload --lora_rank 16 \\
  --model_id_with_origin_paths "org/film-1b:weights.safetensors,org/film-1b:vae.pth"
""",
        {
            "micro_batch_size": (1, 0),
            "image_size": ([480, 640], 1),
            "frames": (33, 2),
            "activation_offloading": (True, 2),
            "lora.r": (16, 2),
            "sample_bytes": (3 * 4 * 33 * 480 * 640, 0),
        },
    ),
    Sample(
        "finetrainers",
        "run.sh",
        """args=(
  --parallel_backend ptd --training_type lora
  --dp_shards 2 --tp_degree 2
  --batch_size 3
)
torchrun --nproc_per_node 4 train.py "${args[@]}" --rank 32 --gradient_checkpointing
""",
        {
            "micro_batch_size": (3, 4),
            "tuning": ("lora", 2),
            "parallelism.shard": (2, 3),
            "parallelism.tensor": (2, 3),
            "lora.r": (32, 6),
            "checkpointing": ("full", 6),
            "device_count": (4, 6),
            "parameter_dtype": ("bfloat16", 0),
        },
    ),
    Sample(
        "kohya",
        "preset.json",
        """{
  "LoRA_type": "Flux1", "flux1_checkbox": true,
  "network_dim": 16,
  "max_resolution": "768,512",
  "max_data_loader_n_workers": "2",
  "mixed_precision": "fp16",
  "optimizer": "AdamW8bit",
  "gradient_checkpointing": true,
  "train_batch_size": 5
}
""",
        {
            "lora.r": (16, 3),
            "image_size": ([768, 512], 4),
            "workers": (2, 5),
            "compute_dtype": ("float16", 6),
            "optimizer": ("adamw_8bit", 7),
            "checkpointing": ("full", 8),
            "micro_batch_size": (5, 9),
        },
    ),
    Sample(
        "kohya",
        "train.sh",
        """accelerate launch flux_train_network.py --network_module=networks.lora --network_dim 8 \\
  --train_batch_size=2 --optimizer_type PagedAdamW8bit --sdpa --max_data_loader_n_workers 1
""",
        {"micro_batch_size": (2, 2), "optimizer": ("adamw_8bit", 2), "optimizer_paged": (True, 2), "workers": (1, 2)},
    ),
    Sample(
        "diffusion-pipe",
        "main.toml",
        """micro_batch_size_per_gpu = 2
pipeline_stages = 2
activation_checkpointing = "unsloth"
[model]
type = "film"
dtype = "bfloat16"
[adapter]
type = "lora"
rank = 24
[optimizer]
type = "AdamW8bitKahan"
""",
        {
            "micro_batch_size": (2, 1),
            "parallelism.pipeline": (2, 2),
            "checkpointing": ("full", 3),
            "parameter_dtype": ("bfloat16", 6),
            "tuning": ("lora", 8),
            "lora.r": (24, 9),
            "optimizer": ("adamw8bitkahan", 11),
        },
    ),
    Sample(
        "ai-toolkit",
        "job.yaml",
        """job: extension
config:
  process:
    - type: sd_trainer
      network: {type: lora, linear: 8}
      train:
        batch_size: 2
        gradient_checkpointing: true
        optimizer: adamw8bit
        dtype: bf16
        ema_config: {use_ema: true}
      model: {name_or_path: org/picture, quantize: true}
""",
        {
            "lora.r": (8, 5),
            "micro_batch_size": (2, 7),
            "checkpointing": ("full", 8),
            "optimizer": ("adamw_8bit", 9),
            "compute_dtype": ("bfloat16", 10),
            "ema": (True, 11),
            "model": ("org/picture", 12),
        },
    ),
    Sample(
        "latte",
        "film.yaml",
        """model: Latte-B/2
num_frames: 8
image_size: 128
local_batch_size: 3
num_workers: 2
mixed_precision: True
gradient_checkpointing: True
""",
        {
            "frames": (8, 2),
            "image_size": (128, 3),
            "micro_batch_size": (3, 4),
            "workers": (2, 5),
            "compute_dtype": ("float16", 6),
            "checkpointing": ("full", 7),
            "ema": (True, 0),
            "sample_bytes": (3 * 4 * 8 * 128 * 128, 0),
        },
    ),
    Sample(
        "animatediff",
        "motion.yaml",
        """train_batch_size: 2
train_data:
  sample_size: 192
  sample_n_frames: 12
trainable_modules: [motion]
mixed_precision_training: true
""",
        {
            "micro_batch_size": (2, 1),
            "image_size": (192, 3),
            "frames": (12, 4),
            "compute_dtype": ("float16", 6),
        },
    ),
    Sample(
        "open-sora",
        "stage.py",
        """bucket_config = {"256px": {1: (1.0, 8), 33: (1.0, 2)}}
grad_checkpoint = True
dtype = "bf16"
num_workers = 4
prefetch_factor = 2
model = dict(depth=10, hidden_size=512)
""",
        {
            "checkpointing": ("full", 2),
            "parameter_dtype": ("bfloat16", 3),
            "workers": (4, 4),
            "prefetch_factor": (2, 5),
            "hyperparameters.hidden_size": (512, 6),
        },
    ),
    Sample(
        "openmmlab",
        "net_8xb16.py",
        """train_dataloader = dict(batch_size=16, num_workers=5, dataset=dict(type='Shapes'))
val_dataloader = dict(batch_size=1)
optim_wrapper = dict(
    type='AmpOptimWrapper', dtype='bfloat16', accumulative_counts=2,
    optimizer=dict(type='AdamW', lr=1e-4))
model = dict(type='Net', backbone=dict(type='ResNet', with_cp=True))
""",
        {
            "micro_batch_size": (16, 1),
            "workers": (5, 1),
            "evaluation_batch_size": (1, 2),
            "compute_dtype": ("bfloat16", 4),
            "autocast": (True, 4),
            "gradient_accumulation_steps": (2, 4),
            "optimizer": ("adamw", 5),
            "checkpointing": ("full", 6),
        },
    ),
    Sample(
        "openmmlab",
        "old.py",
        """data = dict(samples_per_gpu=4, workers_per_gpu=3)
optimizer = dict(type='SGD', lr=0.1)
fp16 = dict(loss_scale='dynamic')
model = dict(type='Net')
""",
        {"micro_batch_size": (4, 1), "workers": (3, 1), "optimizer": ("sgd", 2), "compute_dtype": ("float16", 3)},
    ),
    Sample(
        "ultralytics",
        "args.yaml",
        """task: detect
model: some-net.pt
imgsz: 512
batch: 24
workers: 3
amp: false
""",
        {"image_size": (512, 3), "global_batch_size": (24, 4), "workers": (3, 5), "compute_dtype": ("float32", 6)},
    ),
    Sample(
        "ultralytics",
        "run.sh",
        "yolo detect train model=some-net.pt data=shapes.yaml imgsz=320 batch=8\n",
        {"image_size": (320, 1), "global_batch_size": (8, 1)},
    ),
    Sample(
        "torchvision",
        "run.sh",
        """torchrun --nproc_per_node 2 train.py --data-path data --model some_net -b 64 --opt adamw \\
  --amp --model-ema -j 6 --train-crop-size 176 --lr-warmup-epochs 5 --mixup-alpha 0.2
""",
        {
            "micro_batch_size": (64, 1),
            "optimizer": ("adamw", 1),
            "compute_dtype": ("float16", 2),
            "ema": (True, 2),
            "workers": (6, 2),
            "image_size": (176, 2),
            "device_count": (2, 1),
        },
    ),
    Sample(
        "timm",
        "run.sh",
        """torchrun --nproc_per_node 2 train.py data --model vit_base -b 32 --opt adamw \\
  --amp --amp-dtype bfloat16 --grad-checkpointing --model-ema -j 6 --img-size 224 --grad-accum-steps 2
""",
        {
            "micro_batch_size": (32, 1),
            "optimizer": ("adamw", 1),
            "compute_dtype": ("bfloat16", 2),
            "checkpointing": ("full", 2),
            "ema": (True, 2),
            "workers": (6, 2),
            "image_size": (224, 2),
            "gradient_accumulation_steps": (2, 2),
            "device_count": (2, 1),
        },
    ),
    Sample(
        "open-clip",
        "run.sh",
        """python -m open_clip_train.main --train-data "shards/{00..09}.tar" --train-num-samples 1000 \\
  --model EVA02-B-16 --batch-size 96 --precision pure_bf16 --accum-freq 2 --workers 5 --local-loss
""",
        {
            "micro_batch_size": (96, 2),
            "parameter_dtype": ("bfloat16", 2),
            "compute_dtype": ("bfloat16", 2),
            "autocast": (False, 2),
            "gradient_accumulation_steps": (2, 2),
            "workers": (5, 2),
            "optimizer": ("adamw", 0),
        },
    ),
    Sample(
        "swin",
        "swin.yaml",
        """MODEL:
  TYPE: swin
  NAME: swin_small
  SWIN: {EMBED_DIM: 96, WINDOW_SIZE: 7}
DATA: {IMG_SIZE: 192, BATCH_SIZE: 64, NUM_WORKERS: 4}
TRAIN: {USE_CHECKPOINT: True, ACCUMULATION_STEPS: 0}
""",
        {
            "image_size": (192, 5),
            "micro_batch_size": (64, 5),
            "workers": (4, 5),
            "checkpointing": ("full", 6),
            "gradient_accumulation_steps": (1, 6),
            "compute_dtype": ("float16", 0),
            "optimizer": ("adamw", 0),
        },
    ),
    Sample(
        "dinov2",
        "ssl.yaml",
        """student: {arch: vit_small, patch_size: 14}
train:
  batch_size_per_gpu: 24
  num_workers: 7
crops: {local_crops_number: 6, global_crops_size: 224}
""",
        {
            "patch_size": (14, 1),
            "micro_batch_size": (24, 3),
            "workers": (7, 4),
            "image_size": (224, 5),
            "ema": (True, 0),
        },
    ),
    Sample(
        "vjepa",
        "clips.yaml",
        """app: vjepa
nodes: 2
tasks_per_node: 4
data:
  batch_size: 5
  crop_size: 224
  dataset_fpcs: [16, 32]
  num_workers: 3
meta: {dtype: bfloat16, use_sdpa: true}
model: {model_name: vit_large, use_activation_checkpointing: true}
optimization: {ema: [0.99, 1.0]}
""",
        {
            "device_count": (8, 3),
            "micro_batch_size": (5, 5),
            "image_size": (224, 6),
            "workers": (3, 8),
            "compute_dtype": ("bfloat16", 9),
            "attention": ("sdpa", 9),
            "checkpointing": ("full", 10),
        },
    ),
    Sample(
        "lavis",
        "retrieval.yaml",
        """model: {arch: blip_retrieval, vit_precision: fp16}
datasets: {shapes: {}}
run:
  task: retrieval
  batch_size_train: 12
  batch_size_eval: 24
  accum_grad_iters: 3
  amp: True
  num_workers: 2
""",
        {
            "frozen_dtype": ("float16", 1),
            "micro_batch_size": (12, 5),
            "evaluation_batch_size": (24, 6),
            "gradient_accumulation_steps": (3, 7),
            "compute_dtype": ("float16", 8),
            "workers": (2, 9),
        },
    ),
    Sample(
        "openpcdet",
        "boxes.yaml",
        """CLASS_NAMES: [Car]
DATA_CONFIG: {POINT_CLOUD_RANGE: [0, 0, 0, 1, 1, 1]}
MODEL: {NAME: PillarNet}
OPTIMIZATION:
  BATCH_SIZE_PER_GPU: 6
  OPTIMIZER: adam_onecycle
""",
        {"model": ("PillarNet", 3), "micro_batch_size": (6, 5), "optimizer": ("adam", 6)},
    ),
    Sample(
        "pointcept",
        "scene.py",
        """batch_size = 12
num_worker = 16
mix_prob = 0.8
enable_amp = True
optimizer = dict(type="AdamW")
model = dict(type="Segmentor", backbone=dict(enable_flash=True))
data = dict(num_classes=20)
""",
        {
            "global_batch_size": (12, 1),
            "compute_dtype": ("float16", 4),
            "optimizer": ("adamw", 5),
            "attention": ("flash", 6),
        },
    ),
    Sample(
        "uni3d",
        "points.sh",
        """torchrun --nproc-per-node=2 main.py --npoints 4096 --num-group 256 --group-size 32 \\
  --batch-size=20 --optimizer adamw --zero-stage=1
""",
        {
            "points": (4096, 1),
            "groups": (256, 1),
            "group_size": (32, 1),
            "micro_batch_size": (20, 2),
            "optimizer": ("adamw", 2),
            "parallelism.zero_stage": (1, 2),
            "parallelism.strategy": ("zero", 2),
            "device_count": (2, 1),
        },
    ),
    Sample(
        "lerobot",
        "run.sh",
        "lerobot-train --policy.type=act --dataset.repo_id=me/arm --batch_size=24 --num_workers=6 --policy.use_amp=1\n",
        {"micro_batch_size": (24, 1), "workers": (6, 1), "compute_dtype": ("float16", 1), "model": ("act", 1)},
    ),
    Sample(
        "lerobot",
        "train_config.json",
        """{
  "policy": {"type": "diffusion", "n_obs_steps": 2},
  "dataset": {"repo_id": "me/arm"},
  "steps": 100
}
""",
        {"model": ("diffusion", 2), "observation_steps": (2, 2), "micro_batch_size": (8, 0), "workers": (4, 0)},
    ),
    Sample(
        "rdt",
        "finetune.sh",
        """accelerate launch main.py --pretrained_vision_encoder_name_or_path tower --train_batch_size=6 \\
  --sample_batch_size=12 --mixed_precision=bf16 --dataloader_num_workers=4 --use_8bit_adam
""",
        {
            "micro_batch_size": (6, 1),
            "evaluation_batch_size": (12, 2),
            "compute_dtype": ("bfloat16", 2),
            "workers": (4, 2),
            "optimizer": ("adamw_8bit", 2),
        },
    ),
    Sample(
        "robomimic",
        "bc.json",
        """{
  "algo_name": "bc",
  "experiment": {"name": "x"}, "observation": {},
  "train": {"batch_size": 50, "num_data_workers": 1, "frame_stack": 3}
}
""",
        {"micro_batch_size": (50, 4), "workers": (1, 4), "observation_steps": (3, 4), "model": ("bc", 2)},
    ),
    Sample(
        "octo",
        "octo_config.py",
        """from ml_collections import ConfigDict

def get_config():
    return ConfigDict(
        dict(
            batch_size=64,
            window_size=2,
            dataset_kwargs=dict(name="arm"),
            optimizer=dict(weight_decay=0.1),
        )
    )
""",
        {"global_batch_size": (64, 6), "observation_steps": (2, 7)},
    ),
    Sample(
        "maxtext",
        "run.yml",
        """base_config: base.yml
per_device_batch_size: 4
max_target_length: 4096
remat_policy: minimal
ici_tensor_parallelism: 2
""",
        {
            "micro_batch_size": (4, 2),
            "sequence_length": (4096, 3),
            "checkpointing": ("selective", 4),
            "parallelism.tensor": (2, 5),
            "compute_dtype": ("bfloat16", 0),
            "parameter_dtype": ("float32", 0),
            "sample_bytes": (3 * 8 * 4096, 0),
        },
    ),
    Sample(
        "levanter",
        "lm.yaml",
        """model: {type: llama, seq_len: 512, gradient_checkpointing: false}
trainer:
  mp: p=f32,c=bfloat16
  train_batch_size: 48
  per_device_parallelism: 6
  num_train_steps: 10
""",
        {
            "sequence_length": (512, 1),
            "checkpointing": ("none", 1),
            "parameter_dtype": ("float32", 3),
            "compute_dtype": ("bfloat16", 3),
            "global_batch_size": (48, 4),
            "micro_batch_size": (6, 5),
        },
    ),
    Sample(
        "big-vision",
        "vit.py",
        """import ml_collections as mlc

def get_config():
  config = mlc.ConfigDict()
  config.input = dict()
  config.input.batch_size = 512
  config.optax_name = 'big_vision.scale_by_adafactor'
  config.model_name = 'vit'
  return config
""",
        {"global_batch_size": (512, 6), "model": ("vit", 8)},
    ),
    Sample(
        "lingua",
        "small.yaml",
        """steps: 100
grad_acc_steps: 2
optim: {lr: 1e-3}
distributed: {fsdp_type: full_shard, model_dtype: bf16, selective_activation_checkpointing: true, tp_size: 2}
model: {dim: 256, n_layers: 4}
data: {batch_size: 3, seq_len: 512}
""",
        {
            "gradient_accumulation_steps": (2, 2),
            "compute_dtype": ("bfloat16", 4),
            "checkpointing": ("selective", 4),
            "parallelism.tensor": (2, 4),
            "micro_batch_size": (3, 6),
            "sequence_length": (512, 6),
        },
    ),
    Sample(
        "fairseq",
        "pretrain.yaml",
        """common: {fp16: true}
task: {_name: masked_lm, tokens_per_sample: 256}
dataset: {batch_size: 6, num_workers: 3}
distributed_training: {distributed_world_size: 4}
optimization: {update_freq: [2]}
optimizer: {_name: adam}
model: {_name: roberta, checkpoint_activations: true}
""",
        {
            "compute_dtype": ("float16", 1),
            "sequence_length": (256, 2),
            "micro_batch_size": (6, 3),
            "workers": (3, 3),
            "device_count": (4, 4),
            "gradient_accumulation_steps": (2, 5),
            "optimizer": ("adam", 6),
            "checkpointing": ("full", 7),
        },
    ),
    Sample(
        "fairseq",
        "train.sh",
        "fairseq-train data-bin --arch transformer --max-sentences 12 --update-freq 3 --fp16\n",
        {"micro_batch_size": (12, 1), "gradient_accumulation_steps": (3, 1), "compute_dtype": ("float16", 1)},
    ),
    Sample(
        "speechbrain",
        "train.yaml",
        """number_of_epochs: 10
batch_size: 7
precision: fp16
num_workers: 2
grad_accumulation_factor: 3
epoch_counter: !new:speechbrain.utils.epoch_loop.EpochCounter
  limit: !ref <number_of_epochs>
checkpointer: !new:speechbrain.utils.checkpoints.Checkpointer
  checkpoints_dir: out
""",
        {
            "micro_batch_size": (7, 2),
            "compute_dtype": ("float16", 3),
            "workers": (2, 4),
            "gradient_accumulation_steps": (3, 5),
        },
    ),
    Sample(
        "wenet",
        "asr.yaml",
        """encoder: conformer
encoder_conf: {output_size: 128, num_blocks: 4}
dataset_conf:
  batch_conf: {batch_type: static, batch_size: 9}
accum_grad: 2
optim: adam
""",
        {
            "model": ("conformer", 1),
            "micro_batch_size": (9, 4),
            "gradient_accumulation_steps": (2, 5),
            "optimizer": ("adam", 6),
        },
    ),
    Sample(
        "opennmt",
        "nmt.yaml",
        """save_model: out
src_vocab: words
train_steps: 1000
batch_size: 16
accum_count: [4]
model_dtype: fp16
world_size: 2
src_seq_length: 128
""",
        {
            "micro_batch_size": (16, 4),
            "gradient_accumulation_steps": (4, 5),
            "compute_dtype": ("float16", 6),
            "device_count": (2, 7),
            "sequence_length": (128, 8),
            "optimizer": ("sgd", 0),
        },
    ),
    Sample(
        "vits",
        "voice.json",
        """{
  "train": {"batch_size": 10, "segment_size": 4096, "fp16_run": true},
  "data": {"sampling_rate": 16000},
  "model": {"hidden_channels": 64}
}
""",
        {"micro_batch_size": (10, 2), "compute_dtype": ("float16", 2), "optimizer": ("adamw", 0)},
    ),
    Sample(
        "stable-audio",
        "codec.json",
        """{
  "model_type": "autoencoder",
  "sample_size": 32768,
  "sample_rate": 44100,
  "audio_channels": 2,
  "training": {"use_ema": true}
}
""",
        {"model": ("autoencoder", 2), "channels": (2, 5), "ema": (True, 6)},
    ),
    Sample(
        "icefall",
        "run.sh",
        "./zipformer/train.py --world-size 2 --num-epochs 3 --exp-dir out --max-duration 400 --use-fp16 1\n",
        {"device_count": (2, 1), "compute_dtype": ("float16", 1)},
    ),
    Sample(
        "lightning-cli",
        "fit.yaml",
        """trainer:
  precision: bf16-true
  accumulate_grad_batches: 2
  devices: 2
  num_nodes: 2
model: {class_path: my.Net}
data:
  class_path: my.Data
  init_args: {batch_size: 11, num_workers: 3}
optimizer: {class_path: torch.optim.AdamW}
""",
        {
            "compute_dtype": ("bfloat16", 2),
            "parameter_dtype": ("bfloat16", 2),
            "gradient_accumulation_steps": (2, 3),
            "device_count": (4, 4),
            "machines": (2, 5),
            "model": ("my.Net", 6),
            "micro_batch_size": (11, 9),
            "workers": (3, 9),
            "optimizer": ("adamw", 10),
        },
    ),
    Sample(
        "lightning-hydra",
        "train.yaml",
        """train: true
trainer: {_target_: lightning.Trainer, precision: 16-mixed}
model: {_target_: my.Net, optimizer: {_target_: torch.optim.SGD}}
data: {_target_: my.Data, batch_size: 13, pin_memory: true}
""",
        {
            "compute_dtype": ("float16", 2),
            "parameter_dtype": ("float32", 2),
            "autocast": (True, 2),
            "optimizer": ("sgd", 3),
            "micro_batch_size": (13, 4),
            "pin_memory": (True, 4),
        },
    ),
    Sample(
        "safari",
        "lm.yaml",
        """train: {ema: 0.0, state: {mode: null}, global_batch_size: 32}
trainer: {devices: 4, precision: 16}
loader: {batch_size: 4, num_workers: 2}
dataset: {max_length: 512}
model: {_name_: lm, d_model: 128, n_layer: 4}
""",
        {
            "ema": (False, 1),
            "global_batch_size": (32, 1),
            "device_count": (4, 2),
            "compute_dtype": ("float16", 2),
            "autocast": (True, 2),
            "micro_batch_size": (4, 3),
            "sequence_length": (512, 4),
        },
    ),
    Sample(
        "audiocraft",
        "music.yaml",
        """solver: musicgen
dora: {dir: out}
dataset: {batch_size: 32, num_workers: 3, segment_duration: 10}
optim: {optimizer: adamw, ema: {use: true}}
autocast: true
autocast_dtype: bfloat16
fsdp: {use: true}
""",
        {
            "global_batch_size": (32, 3),
            "workers": (3, 3),
            "optimizer": ("adamw", 4),
            "ema": (True, 4),
            "compute_dtype": ("bfloat16", 5),
            "parallelism.strategy": ("fsdp1", 7),
        },
    ),
    Sample(
        "sam2",
        "masks.yaml",
        """scratch: {resolution: 512, train_batch_size: 2, num_frames: 4, num_train_workers: 3}
trainer:
  optim: {amp: {enabled: true, amp_dtype: bfloat16}}
launcher: {num_nodes: 2, gpus_per_node: 4}
""",
        {
            "image_size": (512, 1),
            "micro_batch_size": (2, 1),
            "frames": (4, 1),
            "workers": (3, 1),
            "compute_dtype": ("bfloat16", 3),
            "device_count": (8, 4),
        },
    ),
    Sample(
        "determined",
        "trial.yaml",
        """entrypoint: python3 train.py
searcher: {name: single}
resources: {slots_per_trial: 3}
hyperparameters:
  global_batch_size: 32
""",
        {"device_count": (3, 3), "global_batch_size": (32, 5)},
    ),
    Sample(
        "kubernetes",
        "job.yaml",
        """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 8}}}]}}
""",
        {"hyperparameters.pods": (2, 6), "hyperparameters.per_node": (8, 7)},
    ),
)
IDS = [f"{sample.family}, {sample.name}" for sample in SAMPLES]
# Of these the key facts are read, whether or not a model is known as well.
MODULES = (
    *("key_facts", "diffusers", "kohya", "latent_diffusion", "open_clip", "openmmlab", "timm", "torchvision"),
    "ultralytics",
)
MINE = [name for name in schemas.families() if schemas.header(name).get("module") in MODULES]


def specs(name: str, text: str) -> list[TrainingSpec]:
    return registry.specs(load(name, text))


def read(sample: Sample) -> TrainingSpec:
    (found,) = specs(sample.name, sample.text)
    return found


def test_every_family_has_a_sample() -> None:
    assert {sample.family for sample in SAMPLES} == set(MINE)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_config_is_recognised_and_its_facts_stand_on_their_lines(sample: Sample) -> None:
    spec = read(sample)
    assert spec.family == sample.family
    said = {}
    for name in sample.facts:
        fact = spec.fact(name)
        assert fact is not None, name
        said[name] = (fact.value, fact.span.line if fact.span is not None else 0)
    assert said == sample.facts
    assert not spec.missing


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_the_verdict_is_unknown_with_the_way_out(sample: Sample) -> None:
    spec = read(sample)
    assert spec.architecture is None
    assert registry.dialect(spec.family).header["title"] in spec.unknown_reason
    assert "memlint record" in spec.unknown_reason
    if spec.model_name:
        assert spec.model_name in spec.unknown_reason


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_the_schema_accepts_a_right_config(sample: Sample) -> None:
    assert objections.violations(read(sample)) == []


# -------------------------------------------------------------------------------- every key

# A value of each type.
OTHER_VALUES = {"integer": 3, "number": 0.5, "boolean": True, "string": "some", "array": [3, 3], "object": {"a": 1}}


def candidates(key: schemas.Key, schema: dict[str, Any]) -> Iterator[Any]:
    yield from (value for value in key.schema.get("enum", ()) if value is not None)
    kinds = schemas.types(key.schema, schema)
    for kind, value in OTHER_VALUES.items():
        if kind in kinds or not kinds:
            yield value


def written(key: schemas.Key, value: Any) -> Any:
    """A tree with nothing but this key."""
    tree: Any = value
    for part in reversed(key.path):
        tree = [tree] if part == "0" else {part: tree}
    return tree


KEYS = [(name, key) for name in MINE for key in registry.dialect(name).keys if key.annotation.get("fact")]


@pytest.mark.parametrize(("family", "key"), KEYS, ids=[f"{name}: {key.dotted}" for name, key in KEYS])
def test_each_key_sets_its_fact_where_it_is_written(family: str, key: schemas.Key) -> None:
    import json

    dialect = registry.dialect(family)
    value = next(candidates(key, dialect.schema))
    root = load("one.json", json.dumps(written(key, value))).root
    facts, missing = dialect.facts_of(root)
    assert missing == []
    fact = facts[key.annotation["fact"]]
    assert fact.origin == WRITTEN
    assert fact.node is not None
    assert fact.node.plain() == value
    assert fact.key == key.dotted


@pytest.mark.parametrize("family", MINE)
def test_every_fact_says_what_it_means_for_memory(family: str) -> None:
    for key in registry.dialect(family).keys:
        assert key.schema.get("description"), key.dotted
        assert not key.annotation.get("fact") or key.annotation.get("memory"), key.dotted


# -------------------------------------------------------------------------------- fixes

CHANGES = {
    "micro_batch_size": 1,
    "global_batch_size": 80,
    "gradient_accumulation_steps": 5,
    "workers": 9,
    "checkpointing": "full",
    "evaluation_batch_size": 7,
}
# What a file states otherwise than as this value: a list of one number, a number as text, another kind of saving.
UNWRITABLE = {
    ("fairseq", "gradient_accumulation_steps"),
    ("opennmt", "gradient_accumulation_steps"),
    ("swin", "gradient_accumulation_steps"),
    ("kohya", "workers"),
    ("lingua", "checkpointing"),
}


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_fix_is_written_in_the_family_s_spelling_and_read_back(sample: Sample) -> None:
    spec = read(sample)
    for name, value in CHANGES.items():
        fact = spec.fact(name)
        if fact is None or fact.node is None or fact.value == value or fact.name != name:
            continue
        edits = spell(spec, name, value)
        if (sample.family, name) in UNWRITABLE and fact.node.plain() != fact.value:
            assert not edits
            continue
        assert edits, name
        (again,) = specs(sample.name, apply_edits(sample.text, edits))
        assert again[name] == value


# -------------------------------------------------------------------------------- rules without a model


def codes(name: str, text: str, **settings: Any) -> dict[str, int]:
    report = check_text(name, text, Settings(**settings))
    return {finding.code: finding.span.line for run in report.runs for finding in run.findings}


@pytest.mark.parametrize(
    ("name", "text", "code", "line"),
    [
        pytest.param(
            "a.yaml",
            "MODEL: {META_ARCHITECTURE: X}\nSOLVER:\n  IMS_PER_BATCH: many\n",
            "MEM008",
            3,
            id="a number is text",
        ),
        pytest.param(
            "a.yaml", "trainer: {precision: bf16-mxed}\nmodel: {class_path: a.B}\n", "MEM008", 1, id="no such precision"
        ),
        pytest.param(
            "a.sh",
            "lerobot-train --policy.type=act --dataset.repo_id=x --batch_siz=4\n",
            "MEM009",
            1,
            id="a misspelt option",
        ),
        pytest.param(
            "a.py",
            "model = dict(type='Own')\ntrain_dataloader = dict(batch_szie=4)\noptim_wrapper = dict()\n",
            "MEM009",
            2,
            id="a misspelt key in Python",
        ),
        pytest.param(
            "a.yaml",
            "searcher: {}\nentrypoint: x\nresources: {slots_per_trial: 3}\nhyperparameters:\n  global_batch_size: 32\n",
            "MEM404",
            5,
            id="devices that cannot share the batch",
        ),
        pytest.param(
            "a.json",
            '{\n "algo_name": "bc", "experiment": {},\n "train": {"batch_size": 1, "batch_size": 2}}\n',
            "MEM006",
            3,
            id="a key twice",
        ),
        pytest.param(
            "a.sh",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True\nswift sft --model a --dataset b\n",
            "MEM602",
            1,
            id="an allocator option that is none",
        ),
    ],
)
def test_rules_that_need_no_model_speak(name: str, text: str, code: str, line: int) -> None:
    assert codes(name, text).get(code) == line


def test_host_memory_needs_no_model() -> None:
    text = "local_batch_size: 8\nnum_frames: 16\nimage_size: 256\nnum_workers: 32\n"
    assert codes("film.yaml", text, host_budget="1GB").get("MEM501") == 4
    assert "MEM501" not in codes("film.yaml", text, host_budget="400GB")


# -------------------------------------------------------------------------------- what is not a number of samples


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        pytest.param("Latte-B/2", "Latte-B/2", id="a size of patches is no name"),
        pytest.param("maxin-cn/Latte-1", "Latte-1", id="of an organisation's the name"),
    ],
)
def test_a_model_is_told_by_its_name(stated: str, name: str) -> None:
    text = f"model: {stated}\nnum_frames: 8\nimage_size: 128\nlocal_batch_size: 3\nmixed_precision: True\n"
    (spec,) = registry.specs(load("film.yaml", text))
    assert spec.model_name == name


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        pytest.param(
            "a.yaml",
            "save_model: out\ntrain_steps: 1\nbatch_type: tokens\nbatch_size: 4096\n",
            "batch_size lets in",
            id="OpenNMT counts tokens",
        ),
        pytest.param(
            "a.yaml",
            "encoder_conf: {}\naccum_grad: 1\ndataset_conf:\n"
            "  batch_conf: {batch_type: dynamic, batch_size: 4, max_frames_in_batch: 9000}\n",
            "max_frames_in_batch lets in",
            id="WeNet counts frames",
        ),
        pytest.param(
            "a.yaml",
            "number_of_epochs: 1\ndynamic_batching: true\nbatch_size: 4\nmax_batch_length_train: 60\n",
            "max_batch_length_train lets in",
            id="SpeechBrain counts seconds",
        ),
        pytest.param(
            "a.sh",
            "fairseq-train data --arch transformer --max-tokens 4096\n",
            "max_tokens lets in",
            id="fairseq counts tokens",
        ),
        pytest.param(
            "a.yaml",
            "model: {class_path: a.B}\ndata: {class_path: a.C}\n",
            "the batch size is not stated",
            id="a data module with a default of its own",
        ),
        pytest.param(
            "a.sh",
            "accelerate launch train_text_to_image.py --pretrained_model_name_or_path a --resolution 512"
            ' --train_batch_size "$BATCH"\n',
            "--train_batch_size is not known (BATCH is not set",
            id="a variable that the script does not set",
        ),
    ],
)
def test_unknown_says_what_a_batch_is(name: str, text: str, reason: str) -> None:
    (spec,) = specs(name, text)
    assert "micro_batch_size" not in spec
    assert reason in spec.unknown_reason


def test_a_micro_batch_follows_from_a_global_one() -> None:
    text = "searcher: {}\nentrypoint: x\nresources: {slots_per_trial: 4}\nhyperparameters: {global_batch_size: 32}\n"
    (spec,) = specs("a.yaml", text)
    assert spec["micro_batch_size"] == 8
    (spec,) = specs("a.yaml", text.replace("32", "30"))
    assert "micro_batch_size" not in spec


# -------------------------------------------------------------------------------- files that build on files


def folder(tmp_path: Path, **files: str) -> Path:
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return tmp_path


def test_what_a_file_builds_on_counts(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        base__yaml="MODEL: {META_ARCHITECTURE: Net}\nSOLVER: {IMS_PER_BATCH: 32}\nDATALOADER: {NUM_WORKERS: 1}\n",
        own__yaml="_BASE_: base.yaml\nSOLVER:\n  IMS_PER_BATCH: 12\n",
    )
    (spec,) = registry.specs(load(str(root / "own.yaml")))
    batch, workers = spec.fact("global_batch_size"), spec.fact("workers")
    assert batch is not None
    assert workers is not None
    assert batch.span is not None
    assert workers.span is not None
    assert (batch.value, Path(batch.span.path).name, batch.span.line) == (12, "own.yaml", 3)
    assert (workers.value, Path(workers.span.path).name, workers.span.line) == (1, "base.yaml", 3)
    assert spec.model_name == "Net"
    assert set(spec.document.sources) == {str(root / "own.yaml"), str(root / "base.yaml")}


def test_fairseq_calls_parts_by_their_names_on_a_command(tmp_path: Path) -> None:
    """They are mappings in its files, and it was said of 232 documented commands that a name is none."""
    path = tmp_path / "train.sh"
    path.write_text("fairseq-train data --task translation --arch transformer --optimizer adam --max-tokens 4096\n")
    assert [found.code for found in check_paths([str(path)]).findings] == ["MEM007"]


def test_without_the_file_below_no_default_is_taken(tmp_path: Path) -> None:
    root = folder(tmp_path, own__yaml="_BASE_: ../base.yaml\nSOLVER: {BASE_LR: 0.1}\n")
    (spec,) = registry.specs(load(str(root / "own.yaml")))
    assert [gap.key for gap in spec.missing] == ["_BASE_"]
    assert "global_batch_size" not in spec
    assert "workers" not in spec


def test_files_that_build_on_each_other_come_to_an_end(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        a__yaml="_BASE_: b.yaml\nSOLVER: {IMS_PER_BATCH: 4}\n",
        b__yaml="_BASE_: a.yaml\nDATALOADER: {NUM_WORKERS: 2}\n",
    )
    (spec,) = registry.specs(load(str(root / "a.yaml")))
    assert (spec["global_batch_size"], spec["workers"]) == (4, 2)


def test_a_command_and_the_file_that_it_names_are_one_run(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        swin__yaml="MODEL: {SWIN: {EMBED_DIM: 96}}\nDATA: {BATCH_SIZE: 64, IMG_SIZE: 192}\n",
        run__sh="torchrun --nproc_per_node 2 main.py --cfg swin.yaml --batch-size 16 --use-checkpoint\n",
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.family, spec["micro_batch_size"], spec["image_size"]) == ("swin", 16, 192)
    assert (spec["checkpointing"], spec["device_count"]) == ("full", 2)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param(
            "swinv2", "the model is made by the code of Swin Transformer, which memlint does not", id="its own"
        ),
        pytest.param(
            "intern_vit_6b",
            "MODEL.TYPE intern_vit_6b is made by code of the program's own, which has the options of Swin Transformer",
            id="a program that took its options over",
        ),
    ],
)
def test_whose_code_makes_a_model_of_options_that_were_taken_over(kind: str, reason: str) -> None:
    text = f"MODEL: {{TYPE: {kind}, DROP_PATH_RATE: 0.0}}\nDATA: {{IMG_SIZE: 448, BATCH_SIZE: 16}}\n"
    (spec,) = registry.specs(load("probe.yaml", text))
    assert spec.family == "swin"
    assert spec.unknown_reason.startswith(reason)


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        pytest.param("--num-gpus 4 SOLVER.IMS_PER_BATCH 24", "global_batch_size", 24, id="a pair at the end"),
        pytest.param("SOLVER.AMP.ENABLED True --num-gpus 4", "compute_dtype", "float16", id="a pair before an option"),
        pytest.param("--num-gpus 4 MODEL.WEIGHTS x DATALOADER.NUM_WORKERS 7", "workers", 7, id="the second of two"),
    ],
)
def test_keys_and_values_in_turn_change_the_file(tmp_path: Path, command: str, name: str, value: Any) -> None:
    root = folder(
        tmp_path,
        net__yaml="MODEL: {META_ARCHITECTURE: Net}\nSOLVER: {IMS_PER_BATCH: 32}\n",
        run__sh=f"python tools/train_net.py --config-file net.yaml {command}\n",
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    fact = spec.fact(name)
    assert fact is not None
    assert fact.span is not None
    assert (fact.value, Path(fact.span.path).name, spec["device_count"]) == (value, "run.sh", 4)
    if name == "workers":
        edits = spell(spec, name, 2)
        assert "NUM_WORKERS 2\n" in apply_edits((root / "run.sh").read_text(encoding="utf-8"), edits)


def test_keys_and_values_after_an_option(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        swin__yaml="MODEL: {SWIN: {EMBED_DIM: 96}}\n",
        run__sh="python main.py --cfg swin.yaml --opts DATA.IMG_SIZE 256 TRAIN.USE_CHECKPOINT True\n",
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec["image_size"], spec["checkpointing"]) == (256, "full")


def test_a_config_of_nothing_but_its_base(tmp_path: Path) -> None:
    root = folder(tmp_path, swin__yaml="MODEL: {SWIN: {EMBED_DIM: 96}}\n", net__yaml="BASE: ['swin.yaml']\n")
    assert [spec.family for spec in registry.specs(load(str(root / "net.yaml")))] == ["swin"]


def test_a_batch_that_the_devices_cannot_share_is_found_through_both(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        net__yaml="MODEL: {META_ARCHITECTURE: Net}\nSOLVER:\n  IMS_PER_BATCH: 32\n",
        run__sh="python tools/train_net.py --config-file net.yaml --num-gpus 3\n",
    )
    report = check_paths([str(root / "run.sh")], Settings())
    found = [f for run in report.runs for f in run.findings if f.code == "MEM404"]
    assert [(Path(f.span.path).name, f.span.line) for f in found] == [("net.yaml", 3)]


def test_a_python_config_of_nothing_but_its_bases(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        base__py="model = dict(type='Net')\ntrain_dataloader = dict(batch_size=4, num_workers=2)\n"
        "optim_wrapper = dict(type='OptimWrapper')\n",
        net__py="_base_ = ['base.py']\n",
        lost__py="_base_ = ['nowhere.py']\n",
    )
    (spec,) = registry.specs(load(str(root / "net.py")))
    assert (spec.family, spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == ("openmmlab", 4, 1)
    (spec,) = registry.specs(load(str(root / "lost.py")))
    assert spec.family == "openmmlab"
    assert "gradient_accumulation_steps" not in spec  # the file that is not there may state it


# -------------------------------------------------------------------------------- what is none of them


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.yaml", "batch_size: 4\nlr: 0.1\n", id="a batch size and a learning rate"),
        pytest.param("a.yaml", "model: {dim: 4}\ntrainer: {x: 1}\n", id="common words"),
        pytest.param("a.yaml", "kind: Deployment\nspec: {replicas: 2}\n", id="a deployment"),
        pytest.param("a.json", '{"model_type": "bert", "hidden_size": 8}', id="a model's config.json"),
        pytest.param("a.py", "batch_size = 4\nmodel = dict(type='Net')\n", id="a batch size in Python"),
        pytest.param("a.sh", "python train.py --lr 0.1 --batch_size 4\n", id="any train.py"),
        pytest.param("a.sh", "python main.py --model x --port 80\n", id="any main.py"),
        pytest.param("a.toml", "[model]\ntype = 'x'\n", id="a model in TOML"),
        pytest.param("a.sh", "swift build -c release\n", id="another swift"),
        pytest.param("a.sh", "swift infer --model x --max_length 10\n", id="inference with ms-swift"),
        pytest.param("a.sh", "yolo predict model=x.pt source=y\n", id="inference with yolo"),
    ],
)
def test_what_describes_no_such_run_is_not_claimed(name: str, text: str) -> None:
    assert [spec.family for spec in specs(name, text) if spec.family in MINE] == []


# Folders of real configs -> the share that is recognised by one of these families.
FOLDERS = {
    "ai_toolkit": ("ai-toolkit",),
    "fairseq": ("fairseq",),
    "finetrainers": ("finetrainers",),
    "kohya": ("kohya",),
    "launcher_yaml": ("determined",),
    "lightning_cli": ("lightning-cli",),
    "ms_swift": ("ms-swift",),
    "openmmlab": ("openmmlab",),
    "opensora": ("open-sora", "latte"),
    "pretrain_yaml": ("lingua", "nanotron", "olmo"),
    "rlhf": ("openrlhf", "open-instruct"),
    "robotics": ("rdt", "deepspeed"),
}
# A launcher of a file that is not there.
LAUNCHERS = ("ffs.slurm", "ffs_train.sh")


@pytest.mark.parametrize("name", FOLDERS)
def test_real_configs_are_recognised(name: str) -> None:
    files = [path for path in sorted((corpus_folder() / name).iterdir()) if not path.name.endswith(LAUNCHERS)]
    unknown = [
        path.name for path in files if not any(s.family in FOLDERS[name] for s in registry.specs(load(str(path))))
    ]
    assert unknown == []


def test_real_configs_of_other_kinds_are_not_claimed() -> None:
    root = corpus_folder()
    folders: tuple[str, ...] = (
        "accelerate",
        "deepspeed",
        "axolotl",
        "torchtune",
        "torchtitan",
        "litgpt",
        "gpt_neox",
        "llama_factory",
    )
    folders += ("trl", "hf_training_args", "megatron", "llm_foundry", "synthetic_nasty", "nemo", "llava_family")
    claimed = []
    for name in folders:
        for path in sorted((root / name).glob("*")) if (root / name).is_dir() else ():
            document = load(str(path))
            defaults = document.root.get("defaults")
            if document.format == "yaml" and defaults is not None and defaults.is_list:
                document = hydra.compose(document)
            claimed += [(path.name, spec.family) for spec in registry.specs(document) if spec.family in MINE]
    assert claimed == []


def test_no_family_compiles_an_expression_to_know_a_program() -> None:
    """Thirty expressions would cost more than everything else that a script takes."""
    for name in MINE:
        signature = schemas.header(name)["signature"]
        for key in ("program", "programs"):
            assert isinstance(signature.get(key, []), list), name
            assert not any(re.search(r"[\\^$|(]", one) for one in signature.get(key, []))


@pytest.mark.parametrize(
    ("rate", "families"),
    [pytest.param("optim", ["lightning-hydra"], id="a rate"), pytest.param("other", [], id="nothing that trains")],
)
def test_a_tree_of_lightnings_trainer_whose_program_makes_the_model(rate: str, families: list[str]) -> None:
    text = f"trainer: {{_target_: lightning.Trainer, accelerator: cuda, max_steps: 10}}\n{rate}: {{lr: 0.1}}\n"
    assert [spec.family for spec in registry.specs(load("config.yaml", text))] == families
