litgpt finetune_lora checkpoints/stabilityai/stablelm-base-alpha-3b \
    --precision bf16-true \
    --quantize bnb.nf4 \
    --devices 1 \
    --data Alpaca \
    --train.micro_batch_size 1 \
    --train.global_batch_size 128 \
    --train.max_seq_length 1034
