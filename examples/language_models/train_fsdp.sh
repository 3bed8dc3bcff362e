#!/bin/sh
# Continued pretraining of a Llama on four cards under FSDP.
accelerate launch --config_file fsdp_accelerate.yaml run_clm.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --dataset_name wikitext \
    --do_train \
    --block_size 2048 \
    --per_device_train_batch_size 1 \
    --gradient_checkpointing true \
    --bf16 true \
    --optim adamw_torch_fused \
    --output_dir out/llama3.1-8b
