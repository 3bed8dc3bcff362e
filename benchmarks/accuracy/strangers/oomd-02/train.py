import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B-Instruct",
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16),
    attn_implementation="flash_attention_2",
)
trainer = SFTTrainer(
    model=model,
    train_dataset=load_dataset("yahma/alpaca-cleaned", split="train"),
    args=SFTConfig(per_device_train_batch_size=1, max_length=2972, gradient_checkpointing=True, output_dir="out"),
    peft_config=LoraConfig(
        r=32,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    ),
)
trainer.train()
