python finetuning.py \
    --model_name meta-llama/Llama-Guard-3-1B \
    --dataset llamaguard_toxicchat_dataset \
    --batch_size_training 1 \
    --batching_strategy padding \
    --output_dir out
