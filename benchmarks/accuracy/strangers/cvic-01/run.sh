torchrun --nproc_per_node=1 finetune.py --data_path data_sample.jsonl --output_path lora-Vicuna --model_path decapoda-research/llama-7b-hf --test_size 1
