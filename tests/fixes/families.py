"""A small config of each family that answers and that no example, case or older test of fixes is of: family -> the file
that is checked, all files, and the share of its peak that is the budget of a plan that fits."""

from __future__ import annotations

from typing import NamedTuple


class Small(NamedTuple):
    """``fits``: the share of the peak that some plan fits; 0.7, and more where the interval of an estimate is wide.
    ``batch``: the program has no other way out than a smaller effective batch."""

    start: str
    files: dict[str, str]
    fits: float = 0.7
    batch: bool = False


# Families whose fixes other tests apply: family -> a name of test_promises.WRITTEN, or of test_applied.PLAIN.
HELD = {
    "axolotl": "language_models/lora_axolotl.yml",
    "dit3d": "dit3d/config_before.py",
    "fsdm-jax": "lag_mode/train_lag_mode.sh",
    "gpt-neox": "gpt-neox, JSON with comments",
    "hf-trainer": "transformers, options in an array",
    "litgpt": "litgpt, one key that states two dtypes",
    "llamafactory": "language_models/full_llamafactory.yaml",
    "megatron": "megatron, options in a variable",
    "nanogpt": "nanogpt, as many positions as tokens",
    "torchtitan": "torchtitan, tables that are not there",
    "trl": "language_models/dpo_trl.yaml",
    "uni3d-dp": "uni3d_dp/uni3d+dp_upstream_default.yaml",
}
# Families whose settings are constants of a program, which no fix writes into: family -> its sample.
UNWRITTEN = {"build-nanogpt": "build_nanogpt"}
# Families whose example is small: it is taken as it is.
SHIPPED = {"stdiff": "stdiff/kitti_range_train_config.yaml", "video-llm": "video_llm/config_before.yaml"}


def _file(name: str, text: str, fits: float = 0.7, batch: bool = False) -> Small:
    return Small(name, {name: text}, fits, batch)


SMALL = {
    "autotrain": _file(
        "run.yml",
        "task: llm-sft\nbase_model: HuggingFaceTB/SmolLM2-135M  # small\nproject_name: sample\nbackend: local\n"
        "log: none\ndata: {path: x, train_split: train, valid_split: null, chat_template: tokenizer,\n"
        "  column_mapping: {text_column: text}}\nparams:\n  block_size: 512\n"
        "  model_max_length: 512\n  batch_size: 4\n",
    ),
    "cogvideo": _file(
        "run.sh",
        "accelerate launch train.py --model_path THUDM/CogVideoX-2b --model_type t2v --training_type lora \\\n"
        "  --data_root videos --train_resolution 49x480x720 --batch_size 8 --mixed_precision fp16 # clips\n",
    ),
    "detectron2": Small(
        "run.sh",
        {
            "run.sh": "python tools/train_net.py --config-file net.yaml --num-gpus 1  # one card\n",
            "net.yaml": "MODEL:\n  META_ARCHITECTURE: RetinaNet  # small\n"
            "  BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}\n"
            "  RESNETS: {DEPTH: 18, RES2_OUT_CHANNELS: 64, OUT_FEATURES: [res3, res4, res5]}\n"
            "  FPN: {IN_FEATURES: [res3, res4, res5], OUT_CHANNELS: 64}\n"
            "  ANCHOR_GENERATOR: {SIZES: [[32, 40], [64, 80], [128, 160], [256, 320], [512, 640]]}\n"
            "INPUT: {MIN_SIZE_TRAIN: [256], MAX_SIZE_TRAIN: 512}\nSOLVER:\n  IMS_PER_BATCH: 64\n",
        },
        1.4,
    ),
    "diffusers": _file(
        "run.sh",
        "#!/bin/sh\n# pairs of images and texts\naccelerate launch train_text_to_image_lora.py \\\n"
        "  --pretrained_model_name_or_path=stable-diffusion-v1-5/stable-diffusion-v1-5 --train_data_dir=$IMAGES \\\n"
        '  --resolution=512 --train_batch_size=2 --rank 4 --output_dir="out"\n',
    ),
    "simpletuner": _file(
        "config.json",
        '{\n  "model_family": "sd1x", "model_type": "lora",\n  "lora_rank": 8,\n  "resolution": 512,\n'
        '  "train_batch_size": 8,\n  "gradient_accumulation_steps": 1,\n  "gradient_checkpointing": false,\n'
        '  "mixed_precision": "bf16",\n  "optimizer": "adamw_bf16",\n  "data_backend_config": "data.json"\n}\n',
    ),
    "diffusion-policy": _file(
        "run.yaml",
        "_target_: diffusion_policy.workspace.TrainDiffusionUnetHybridWorkspace\npolicy:\n"
        "  _target_: diffusion_policy.policy.DiffusionUnetHybridImagePolicy\n  shape_meta:\n"
        "    obs: {camera: {shape: [3, 84, 84], type: rgb}}\n    action: {shape: [7]}\n  horizon: 16\n"
        "  n_obs_steps: 2\n  n_action_steps: 8\n  down_dims: [64, 128]\n  obs_encoder_group_norm: true\n"
        "dataloader: {batch_size: 256}  # many\noptimizer: {_target_: torch.optim.AdamW}\n"
        "training: {use_ema: true, gradient_accumulate_every: 1}\n",
    ),
    "finetrainers": _file(
        "run.sh",
        "accelerate launch training/cogvideox/cogvideox_text_to_video_lora.py \\\n"
        "  --pretrained_model_name_or_path THUDM/CogVideoX-2b --data_root videos --load_tensors \\\n"
        "  --frame_buckets 49 --rank 64 --train_batch_size 1 --optimizer adamw # clips\n",
    ),
    "kohya": _file(
        "run.sh",
        "accelerate launch train_network.py --network_module networks.lora --network_dim 8 --cache_latents \\\n"
        "  --pretrained_model_name_or_path model.safetensors --train_data_dir images --resolution 512 \\\n"
        "  --train_batch_size 2\n",
    ),
    "deepspeed-chat": _file(
        "run.sh",
        "deepspeed --num_gpus 2 main.py --data_split 2,4,4 --model_name_or_path HuggingFaceTB/SmolLM2-135M \\\n"
        "  --per_device_train_batch_size 16 --max_seq_len 512 --zero_stage 1 --output_dir out\n",
    ),
    "fsdp-qlora": _file(
        "run.sh",
        "python train.py --world_size 2 --train_type full --model_name HuggingFaceTB/SmolLM2-135M \\\n"
        "  --context_length 512 --batch_size 16 --use_gradient_checkpointing false --use_cpu_offload false\n",
    ),
    "llama-cookbook": _file(
        "run.sh",
        "torchrun --nproc_per_node 2 finetuning.py --enable_fsdp --model_name HuggingFaceTB/SmolLM2-135M \\\n"
        "  --context_length 512 --batch_size_training 16 --fsdp_config.fsdp_activation_checkpointing False\n",
    ),
    "llamafactory-v1": _file(
        "run.yaml",
        "model: HuggingFaceTB/SmolLM2-135M\ntrain_dataset: data/ours.yaml\noutput_dir: out\n"
        "micro_batch_size: 16  # many\nglobal_batch_size: 16\ncutoff_len: 512\n",
    ),
    "llm-c": _file("run.sh", "mpirun -np 4 ./train_gpt2cu -i data/ours.bin -b 16 -t 512 -d 131072 -r 0 -z 0 -e d12\n"),
    "llm-foundry": _file(
        "run.yaml",
        "max_seq_len: 512\nmodel:\n  name: mpt_causal_lm\n  d_model: 256\n  n_heads: 8\n  n_layers: 4\n"
        "  expansion_ratio: 4\n  max_seq_len: 512\n  vocab_size: 1024\n  attn_config:\n    attn_impl: torch\n"
        "tokenizer:\n  name: gpt2\ntrain_loader:\n  name: text\n  dataset:\n    max_seq_len: 512\noptimizer:\n"
        "  name: decoupled_adamw\n  lr: 6.0e-4\nmax_duration: 100ba\nglobal_train_batch_size: 128  # of all devices\n"
        "device_eval_batch_size: 4\ndevice_train_microbatch_size: 64\nprecision: fp32\n",
    ),
    "megatron-swift": _file(
        "run.sh",
        "NPROC_PER_NODE=2 megatron sft --model HuggingFaceTB/SmolLM2-135M --dataset ours --packing true \\\n"
        "  --max_length 512 --micro_batch_size 8 --global_batch_size 16 --output_dir out\n",
    ),
    "deit": _file(
        "run.sh",
        "python main.py --model deit_small_patch16_224 --data-path data --nb-classes 10 --batch-size 256 # images\n",
        batch=True,
    ),
    "dit": _file(
        "run.sh",
        "torchrun --nproc_per_node 1 train.py --model DiT-S/4 --data-path data --global-batch-size 32 # images\n",
        batch=True,
    ),
    "mae": _file(
        "run.sh",
        "python main_finetune.py --model vit_base_patch16 --nb_classes 10 --batch_size 64 \\\n"
        "  --accum_iter 1 --cls_token # images\n",
    ),
    "videomae": _file(
        "run.sh",
        "python run_class_finetuning.py --model vit_small_patch16_224 --nb_classes 10 --batch_size 2 \\\n"
        "  --num_frames 16 --data_set SSV2 # clips\n",
    ),
    "ms-swift": _file(
        "run.sh",
        "NPROC_PER_NODE=2 swift sft --model HuggingFaceTB/SmolLM2-135M --dataset ours --tuner_type full \\\n"
        "  --max_length 512 --per_device_train_batch_size 4 --gradient_checkpointing false --output_dir out\n",
    ),
    "nanotron": _file(
        "run.yaml",
        "model:\n  dtype: bfloat16\n  model_config: {is_llama_config: true, hidden_size: 256, num_hidden_layers: 4, "
        "intermediate_size: 768,\n    num_attention_heads: 8, num_key_value_heads: 4, vocab_size: 8192}\n"
        "optimizer:\n  accumulate_grad_in_fp32: true  # sums\n  zero_stage: 0\n  weight_decay: 0.01\n  clip_grad: 1.0\n"
        "  optimizer_factory: {name: adamW, torch_adam_is_fused: true, adam_eps: 1.0e-08}\n"
        "parallelism: {dp: 1, tp: 1, pp: 1, pp_engine: 1f1b}\n"
        "tokens: {micro_batch_size: 16, batch_accumulation_per_replica: 1, sequence_length: 512}\n",
    ),
    "nemo": _file(
        "run.yaml",
        "name: sample\ntrainer:\n  devices: 2\n  num_nodes: 1\n  precision: bf16\nexp_manager:\n  exp_dir: null\n"
        "model:\n"
        "  micro_batch_size: 16\n  global_batch_size: 64\n  tensor_model_parallel_size: 2\n  encoder_seq_length: 512\n"
        "  max_position_embeddings: 512\n  num_layers: 4\n  hidden_size: 512\n  ffn_hidden_size: 2048\n"
        "  num_attention_heads: 8\n  megatron_amp_O2: true\n  tokenizer:\n    library: megatron\n"
        "    type: GPT2BPETokenizer\n  optim:\n    name: fused_adam  # Apex's\n",
    ),
    "nemo-rl": _file(
        "run.yaml",
        "sft: {max_num_steps: 60}\npolicy:\n  model_name: HuggingFaceTB/SmolLM2-135M  # small\n"
        "  train_global_batch_size: 32\n  train_micro_batch_size: 8\n  max_total_sequence_length: 512\n"
        "  precision: bfloat16\n  dtensor_cfg:\n    _v2: true\n    enabled: true\n    activation_checkpointing: false\n"
        "  optimizer: {name: torch.optim.AdamW, kwargs: {foreach: false, fused: false}}\n"
        "cluster: {gpus_per_node: 2, num_nodes: 1}\n",
    ),
    "olmo": _file(
        "run.yaml",
        "run_name: ours\nmodel:\n  d_model: 256\n  n_heads: 8\n  n_layers: 4\n  mlp_hidden_size: 1024\n  rope: true\n"
        "  include_bias: false\n  max_sequence_length: 512\n  vocab_size: 1000\n  embedding_size: 1024\n"
        "  weight_tying: false\n  flash_attention: false  # not here\noptimizer: {name: adamw}\n"
        "distributed_strategy: single\nglobal_train_batch_size: 64  # of all devices\n"
        "device_train_microbatch_size: 64\nprecision: fp32\nactivation_checkpointing: null\n",
    ),
    "open-instruct": _file(
        "run.sh",
        "accelerate launch --mixed_precision bf16 --num_processes 1 open_instruct/finetune.py \\\n"
        "  --model_name_or_path HuggingFaceTB/SmolLM2-135M --dataset_mixer_list ours 1.0 --max_seq_length 512 \\\n"
        "  --per_device_train_batch_size 4 --with_tracking\n",
    ),
    "openmmlab": _file(
        "seg.py",
        'norm_cfg = dict(type="SyncBN", requires_grad=True)\nmodel = dict(\n    type="EncoderDecoder",\n'
        '    backbone=dict(type="ResNetV1c", depth=18, out_indices=(0, 1, 2, 3), norm_cfg=norm_cfg),  # small\n'
        '    decode_head=dict(type="FCNHead", in_channels=512, in_index=3, channels=64, num_classes=19),\n)\n'
        "crop_size = (128, 256)\n"
        'train_pipeline = [dict(type="LoadImageFromFile"), dict(type="RandomCrop", crop_size=crop_size)]\n'
        'data = dict(samples_per_gpu=64, train=dict(type="CityscapesDataset", pipeline=train_pipeline))\n'
        'optimizer = dict(type="SGD", lr=0.01, momentum=0.9)\n',
        1.4,
    ),
    "openrlhf": _file(
        "run.sh",
        "deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \\\n"
        "  --model.model_name_or_path HuggingFaceTB/SmolLM2-135M --data.dataset ours \\\n"
        "  --data.max_len 512 --train.batch_size 16 --train.micro_batch_size 8 \\\n"
        "  --ds.zero_stage 3 --ds.param_dtype bf16 --ckpt.output_dir out\n",
    ),
    "oumi": _file(
        "run.yaml",
        "model:\n  model_name: HuggingFaceTB/SmolLM2-135M\n  model_max_length: 512\ndata:\n  train:\n    datasets:\n"
        "      - dataset_name: ours\ntraining:\n  trainer_type: TRL_SFT\n  per_device_train_batch_size: 2  # many\n"
        "  optimizer: adamw_torch\n  output_dir: out\n",
    ),
    "peft": Small(
        "training_params.json",
        {
            "training_params.json": '{\n  "model_id": "HuggingFaceTB/SmolLM2-135M",\n  "dtype": "bfloat16",\n'
            '  "max_seq_length": 256,\n  "batch_size": 8,\n  "optimizer_type": "AdamW"\n}\n',
            "adapter_config.json": '{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "lora_dropout": 0.0,\n'
            ' "target_modules": ["q_proj", "v_proj"]}\n',
        },
        1.0,
    ),
    "nanochat": _file(
        "run.sh",
        "torchrun --standalone --nproc_per_node=2 -m scripts.base_train -- --depth=4 --max-seq-len=256 \\\n"
        "    --device-batch-size=64 --total-batch-size=32768 # rows\n",
    ),
    "rwkv": _file(
        "run.sh",
        "BSZ=64 # rows\npython train.py --my_testing x070 --ctx_len 512 --micro_bsz $BSZ --n_layer 4 --n_embd 256 \\\n"
        "    --vocab_size 1024 --precision bf16 --strategy deepspeed_stage_1 --devices 4 --grad_cp 0\n",
    ),
    "simpo": _file(
        "run.yaml",
        "model_name_or_path: HuggingFaceTB/SmolLM2-135M  # small\nattn_implementation: flash_attention_2\nbf16: true\n"
        "beta: 2.5\ngamma_beta_ratio: 0.55\nper_device_train_batch_size: 8\ngradient_checkpointing: false\n"
        "max_length: 512\nmax_prompt_length: 400\noptim: adamw_torch\n",
    ),
    "open-clip": _file(
        "run.sh",
        "torchrun --nproc_per_node 2 -m open_clip_train.main --train-data a.tar --train-num-samples 100 \\\n"
        "  --model ViT-B-32 --batch-size 256 --precision amp --local-loss # rows of its own\n",
    ),
    "timm": _file(
        "run.sh",
        "torchrun --nproc_per_node 2 train.py --data-dir images --model resnet18 --img-size 64 -b 512 --opt adamw \\\n"
        "  --model-ema --sched cosine # with an average\n",
        1.2,
    ),
    "nemo-automodel": _file(
        "run.yaml",
        "recipe: TrainFinetuneRecipeForNextTokenPrediction  # in full\n"
        "step_scheduler: {global_batch_size: 64, local_batch_size: 8}\nmodel:\n"
        "  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
        "  pretrained_model_name_or_path: HuggingFaceTB/SmolLM2-135M\ndistributed:\n  strategy: ddp\n"
        "  activation_checkpointing: false\n"
        "loss_fn:\n  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy\n"
        "dataset:\n  seq_length: 512\n  padding: true\noptimizer:\n  _target_: torch.optim.AdamW\n  lr: 1.0e-5\n",
    ),
    "image-loop": _file(
        "train.py",
        "import timm\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"
        "from torchvision import datasets, transforms\n\n"
        "augment = transforms.Compose([transforms.CenterCrop(64), transforms.ToTensor()])  # small\n"
        "loader = DataLoader(datasets.ImageFolder('train', transform=augment), batch_size=256)  # 256 images\n"
        "model = timm.create_model('resnet18', num_classes=10).to('cuda')\n"
        "criterion = nn.CrossEntropyLoss()\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        "for images, labels in loader:\n    optimizer.zero_grad()\n"
        "    loss = criterion(model(images.to('cuda')), labels.to('cuda'))\n    loss.backward()\n"
        "    optimizer.step()\n",
        2.0,  # a net this small has little beside what cuDNN may take
        batch=True,
    ),
    "training-loop": _file(
        "train.py",
        "from accelerate import Accelerator\nfrom torch.optim import AdamW\nfrom torch.utils.data import DataLoader\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator\n\n"
        "accelerator = Accelerator(mixed_precision='no', gradient_accumulation_steps=1)  # one by one\n"
        "tokenizer = AutoTokenizer.from_pretrained('HuggingFaceTB/SmolLM2-135M')\n"
        "model = AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')\n"
        "rows = data.map(lambda row: tokenizer(row['text'], max_length=512, truncation=True, padding='max_length'))\n"
        "loader = DataLoader(rows, batch_size=8, collate_fn=default_data_collator)  # eight rows\n"
        "optimizer = AdamW(model.parameters(), lr=1e-4)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "for batch in loader:\n    with accelerator.accumulate(model):\n        outputs = model(**batch)\n"
        "        accelerator.backward(outputs.loss)\n        optimizer.step()\n        optimizer.zero_grad()\n",
    ),
    "torchvision": _file(
        "run.sh",
        "torchrun --nproc_per_node 2 train.py --model resnet18 --train-crop-size 64 -b 512 --opt adamw \\\n"
        "  --model-ema --lr-warmup-epochs 5 # with an average\n",
        1.4,
    ),
    "torchvision-detection": _file(
        "run.sh",
        "torchrun --nproc_per_node 2 references/detection/train.py --dataset coco --model fasterrcnn_resnet50_fpn \\\n"
        "  -b 4 --weights-backbone ResNet50_Weights.IMAGENET1K_V1 --trainable-backbone-layers 3 # without amp\n",
        1.4,
    ),
    "torchtune": _file(
        "run.yaml",
        "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  path: model/tokenizer.model\n"
        "  max_seq_len: 512\ndataset:\n  _component_: torchtune.datasets.alpaca_dataset\n  packed: true\nmodel:\n"
        "  _component_: torchtune.models.llama3_2.llama3_2_1b\nbatch_size: 4\ngradient_accumulation_steps: 1\n"
        "optimizer:\n  _component_: torch.optim.AdamW  # torch's own\n  lr: 3e-4\nloss:\n"
        "  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\ndevice: cuda\ndtype: bf16\n"
        "enable_activation_checkpointing: false\ncompile: false\n",
    ),
    "ultralytics": _file(
        "args.yaml",
        "task: detect\nmode: train\nmodel: yolov8n.pt  # small\ndata: coco8.yaml\nepochs: 3\nbatch: 64\nimgsz: 320\n"
        "optimizer: AdamW\nclose_mosaic: 10\namp: false\nnbs: 64\n",
        1.4,
    ),
    "verl": _file(
        "run.sh",
        "torchrun --standalone --nnodes=1 --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer \\\n"
        "  data.train_batch_size=16 data.micro_batch_size_per_gpu=8 data.max_length=512 \\\n"
        "  model.partial_pretrain=HuggingFaceTB/SmolLM2-135M trainer.total_epochs=1\n",
    ),
    "xtuner": _file(
        "run.py",
        "from mmengine.optim import AmpOptimWrapper\nfrom peft import LoraConfig\nfrom torch.optim import AdamW\n"
        "from transformers import AutoModelForCausalLM\nfrom xtuner.model import SupervisedFinetune\n\n"
        "max_length = 512\n"
        "model = dict(\n    type=SupervisedFinetune,\n    use_activation_checkpointing=False,\n    llm=dict(\n"
        "        type=AutoModelForCausalLM.from_pretrained,\n"
        '        pretrained_model_name_or_path="HuggingFaceTB/SmolLM2-135M",  # small\n    ),\n'
        "    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1),\n)\n"
        "train_dataloader = dict(batch_size=2, dataset=dict(max_length=max_length, pack_to_max_length=True))\n"
        "pack_to_max_length = True\n"
        "optim_wrapper = dict(type=AmpOptimWrapper, optimizer=dict(type=AdamW), accumulative_counts=2,\n"
        '    dtype="float16")\n',
    ),
    "yolov5": _file(
        "run.sh",
        "python train.py --img 320 --batch-size 64 --epochs 3 --data coco128.yaml \\\n"
        "  --weights yolov5n.pt --optimizer AdamW --hyp hyp.yaml # small\n",
        1.4,
    ),
}
