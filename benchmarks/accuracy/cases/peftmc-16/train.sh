#!/bin/sh
# Weights in bfloat16 without autocast; rows of at most 768 tokens; torch.optim.AdamW as it comes.
python finetune.py --model_name_or_path meta-llama/Llama-3.2-3B --dtype bfloat16 \
  --per_device_train_batch_size 4 --max_seq_length 768 --gradient_checkpointing False \
  --optim adamw_torch --max_grad_norm 1.0 --torch_empty_cache_steps 10 \
  --lora_r 32 --lora_alpha 64 --lora_dropout 0.0 --lora_target_modules q_proj,v_proj \
  --output_dir out
