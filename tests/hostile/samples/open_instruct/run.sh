accelerate launch --mixed_precision bf16 --num_processes 1 open_instruct/finetune.py \
  --model_name_or_path HuggingFaceTB/SmolLM2-135M --dataset_mixer_list ours 1.0 --max_seq_length 512 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --gradient_checkpointing --with_tracking
