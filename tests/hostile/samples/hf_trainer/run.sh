#!/bin/sh
GPUS=2
torchrun --nproc_per_node $GPUS run_clm.py \
    --model_name_or_path HuggingFaceTB/SmolLM2-135M \
    --dataset_name ours --do_train \
    --block_size 512 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 2 \
    --dataloader_num_workers 4 \
    --warmup_steps 100 \
    --bf16 true --output_dir out
