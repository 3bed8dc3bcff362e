deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \
  --model.model_name_or_path HuggingFaceTB/SmolLM2-135M --data.dataset ours --data.max_len 512 \
  --train.batch_size 16 --train.micro_batch_size 2 --ds.zero_stage 2 --ds.param_dtype bf16 \
  --model.gradient_checkpointing_enable --ds.packing_samples --ckpt.output_dir out
