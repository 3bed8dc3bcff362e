NNODES=1 NPROC_PER_NODE=8 \
swift sft \
    --model Qwen/Qwen2-VL-7B-Instruct \
    --train_type full \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --gradient_checkpointing_kwargs '{"use_reentrant": false}' \
    --dataset /data/train_qwen2vl_sft_swift.jsonl \
    --output_dir /data/qwen2_sft \
    --num_train_epochs 1 \
    --save_strategy 'no' \
    --eval_strategy 'no' \
    --logging_steps 1 \
    --warmup_ratio 0.05 \
    --gradient_checkpointing true \
    --freeze_vit true \
    --deepspeed zero2
