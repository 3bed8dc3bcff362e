python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=256 \
  data.max_response_length=256 actor_rollout_ref.model.path=HuggingFaceTB/SmolLM2-135M \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.actor.entropy_coeff=0.001 actor_rollout_ref.actor.fsdp_config.fsdp_size=2 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  trainer.n_gpus_per_node=4 trainer.nnodes=1
