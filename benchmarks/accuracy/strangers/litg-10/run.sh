litgpt finetune_lora checkpoints/meta-llama/Llama-2-7b-hf \
    --precision bf16-true \
    --devices 1 \
    --data Alpaca \
    --train.micro_batch_size 1 \
    --train.global_batch_size 128 \
    --train.max_seq_length 1304
