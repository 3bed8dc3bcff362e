python finetune/lora.py --data_dir data/alpaca --pretrained_path checkpoints/lit-llama/7B/lit-llama.pth --tokenizer_path checkpoints/lit-llama/tokenizer.model
