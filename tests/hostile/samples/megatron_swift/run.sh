NPROC_PER_NODE=2 megatron sft --model HuggingFaceTB/SmolLM2-135M --dataset ours --packing true --max_length 512 \
  --micro_batch_size 2 --global_batch_size 16 --tensor_model_parallel_size 1 --recompute_granularity selective \
  --attention_backend flash --cross_entropy_loss_fusion true --output_dir out
