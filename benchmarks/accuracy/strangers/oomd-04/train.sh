python3 finetuning.py --model_name meta-llama/Llama-2-7b-hf --output_dir ./finetuned_model/
