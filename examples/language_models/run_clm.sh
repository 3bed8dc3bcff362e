#!/bin/sh
# Continued pretraining of a small Llama on four cards, states sharded by DeepSpeed.
torchrun --nproc_per_node 4 run_clm.py \
    --model_name_or_path meta-llama/Llama-3.2-1B \
    --dataset_name wikitext \
    --dataset_config_name wikitext-103-raw-v1 \
    --do_train \
    --block_size 2048 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 4 \
    --gradient_checkpointing true \
    --bf16 true \
    --optim adamw_torch \
    --deepspeed ds_zero2.json \
    --output_dir out/llama3.2-1b
