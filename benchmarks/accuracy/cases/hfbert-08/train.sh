#!/bin/sh
# 8-bit Adam (first): rows of exactly 512 tokens, attention as it was computed in 2022.
python run_classification.py --model_name_or_path bert-large-uncased --attn_implementation eager \
  --max_seq_length 512 --pad_to_max_length --do_train \
  --per_device_train_batch_size 4 --optim adamw_bnb_8bit \
  --output_dir out
