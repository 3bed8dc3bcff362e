NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft \
  --model HuggingFaceTB/SmolLM2-135M --dataset ours --tuner_type lora --torch_dtype bfloat16 \
  --lora_rank 8 --lora_alpha 32 --target_modules all-linear --max_length 1024 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --deepspeed zero2 --attn_impl flash_attn \
  --dataloader_num_workers 4 --output_dir out
