#!/bin/sh
# SFT of a 70B model with adapters on every linear layer.
accelerate launch --config_file accelerate.yaml train.py \
  --model_name_or_path meta-llama/Llama-2-70b-hf --dataset_name ultrachat --dataset_text_field content --chat_template_format chatml \
  --max_seq_len 2048 --packing True --bf16 True \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 2 \
  --gradient_checkpointing True --use_reentrant True --use_flash_attn True \
  --use_peft_lora True --lora_r 8 --lora_alpha 16 --lora_dropout 0.1 --lora_target_modules all-linear \
  --use_4bit_quantization True --use_nested_quant True --bnb_4bit_compute_dtype bfloat16 \
  --bnb_4bit_quant_storage_dtype bfloat16 \
  --output_dir out
