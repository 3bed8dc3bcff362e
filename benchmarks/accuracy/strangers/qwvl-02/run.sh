export CUDA_VISIBLE_DEVICES=0

python finetune.py \
    --model_name_or_path Qwen/Qwen-VL-Chat \
    --data_path data.json \
    --bf16 True \
    --fix_vit True \
    --output_dir output_qwen \
    --num_train_epochs 5 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --evaluation_strategy "no" \
    --learning_rate 1e-5 \
    --weight_decay 0.1 \
    --adam_beta2 0.95 \
    --model_max_length 384 \
    --lazy_preprocess True \
    --gradient_checkpointing \
    --use_lora
