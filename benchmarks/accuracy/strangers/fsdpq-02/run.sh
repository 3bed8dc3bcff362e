python train.py --model_name meta-llama/Llama-2-7b-hf \
  --batch_size 1 --context_length 512 \
  --train_type lora \
  --use_gradient_checkpointing True --reentrant_checkpointing True \
  --use_cpu_offload False \
  --log_to wandb \
  --dataset dummy --dataset_samples 1024
