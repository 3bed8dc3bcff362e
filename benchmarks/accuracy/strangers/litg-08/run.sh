litgpt finetune_lora checkpoints/microsoft/phi-1_5 \
    --precision bf16-true \
    --devices 1 \
    --data Alpaca \
    --train.micro_batch_size 4 \
    --train.global_batch_size 128 \
    --train.max_seq_length 1044
