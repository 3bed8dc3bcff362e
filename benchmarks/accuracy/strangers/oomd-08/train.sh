python finetune/lora.py \
    --checkpoint_dir checkpoints/mistralai/Mistral-7B-Instruct-v0.1/ \
    --data_dir data/alpaca \
    --out_dir results/lit \
    --precision bf16-true
