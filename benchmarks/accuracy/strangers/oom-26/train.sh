CUDA_VISIBLE_DEVICES=0,1,2,3,4,5 \
NPROC_PER_NODE=6 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-3B-Instruct \
    --reward_funcs external_countdown format \
    --use_vllm true \
    --vllm_mode server \
    --vllm_server_base_url http://0.0.0.0:8000 \
    --train_type full \
    --torch_dtype bfloat16 \
    --dataset zouxuhong/Countdown-Tasks-3to4#50000 \
    --split_dataset_ratio 0 \
    --max_length 2048 \
    --max_completion_length 2048 \
    --num_train_epochs 3 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --logging_steps 1 \
    --num_generations 4 \
    --temperature 1.0 \
    --deepspeed zero3 \
    --log_completions true
