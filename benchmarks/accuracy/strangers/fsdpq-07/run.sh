python train.py --model_name 01-ai/Yi-34B \
  --batch_size 2 --context_length 2048 \
  --train_type qlora \
  --use_gradient_checkpointing True --reentrant_checkpointing True \
  --use_cpu_offload False \
  --log_to wandb \
  --dataset dummy --dataset_samples 1024
