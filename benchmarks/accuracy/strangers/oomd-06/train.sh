torchrun --nnodes 1 --nproc_per_node 8 llama_finetuning.py --use_peft --peft_method lora --model_name meta-llama/Llama-2-13b-hf --pure_bf16 --batch_size_training 1 --micro_batch_size 1 --enable_fsdp
