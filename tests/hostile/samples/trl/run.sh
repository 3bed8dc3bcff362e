trl dpo --model_name_or_path HuggingFaceTB/SmolLM2-135M --dataset_name some/pairs --beta 0.1 --max_length 512 \
    --max_prompt_length 128 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 true \
    --use_peft true --lora_r 8 --lora_alpha 16 --lora_dropout 0.05 --num_train_epochs 1 --output_dir out
