#!/bin/sh
# Lightning Fabric of the source put as the Trainer: DeepSpeed with the sizes that Lightning gives it; attention as
# DistilBERT had it in 2023.
deepspeed --num_gpus 4 run_classification.py --model_name_or_path distilbert-base-uncased \
  --max_seq_length 512 --pad_to_max_length --do_train --per_device_train_batch_size 12 \
  --attn_implementation eager --fp16 --optim adamw_torch --deepspeed zero2.json --output_dir out
