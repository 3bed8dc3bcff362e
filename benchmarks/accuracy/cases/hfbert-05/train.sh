#!/bin/sh
# FP16 Training (combined): rows of exactly 512 tokens, attention as it was computed in 2022.
python run_classification.py --model_name_or_path bert-large-uncased --attn_implementation eager \
  --max_seq_length 512 --pad_to_max_length --do_train \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --gradient_checkpointing --fp16 --optim adamw_hf \
  --output_dir out
