nproc_per_node=2

CUDA_VISIBLE_DEVICES=0,1 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model Qwen/Qwen2.5-VL-7B-Instruct \
    --model_type qwen2_5_vl \
    --train_type lora \
    --max_pixel 602112 \
    --dataset train_mecg.jsonl \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    # --target_modules all-linear \
    --gradient_accumulation_steps 16 \
    --eval_steps 100 \
    --max_length 20480 \
    --output_dir output \
    --warmup_ratio 0.05 \
    --deepspeed zero3
