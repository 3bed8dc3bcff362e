deepspeed --num_gpus 2 main.py --data_path ours --data_split 2,4,4 --model_name_or_path HuggingFaceTB/SmolLM2-135M \
  --per_device_train_batch_size 4 --max_seq_len 512 --zero_stage 2 --deepspeed --output_dir out
