torchrun --nnodes 1 --nproc_per_node 2 finetuning.py --enable_fsdp --use_fast_kernels \
  --model_name HuggingFaceTB/SmolLM2-135M --context_length 512 --batch_size_training 4 --dataset ours --output_dir out
