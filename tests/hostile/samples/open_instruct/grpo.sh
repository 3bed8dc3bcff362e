python open_instruct/grpo_fast.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --dataset_mixer_list ours 1.0 \
  --max_prompt_token_length 128 --response_length 384 --pack_length 1024 --per_device_train_batch_size 2 \
  --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 8 --num_mini_batches 2 --deepspeed_stage 2 \
  --num_learners_per_node 2 2 --vllm_num_engines 4 --record_entropy --with_tracking
