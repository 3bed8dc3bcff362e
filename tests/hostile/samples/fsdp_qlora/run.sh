python train.py --train_type lora --model_name HuggingFaceTB/SmolLM2-135M --world_size 2 --context_length 512 \
  --batch_size 4 --precision bf16 --use_gradient_checkpointing true --use_cpu_offload false --dataset alpaca
