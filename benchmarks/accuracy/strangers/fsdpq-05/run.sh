python train.py --model_name meta-llama/Llama-2-7b-hf \
  --batch_size 10 --context_length 2048 \
  --train_type qlora \
  --use_gradient_checkpointing True --reentrant_checkpointing True \
  --use_cpu_offload False \
  --log_to wandb \
  --dataset dummy --dataset_samples 1024
