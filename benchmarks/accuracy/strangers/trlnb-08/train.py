import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", attn_implementation="eager", dtype=torch.bfloat16
)
peft_config = LoraConfig(
    r=8,
    lora_alpha=16,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)
training_args = SFTConfig(
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    num_train_epochs=1,
    learning_rate=2e-4,
    optim="paged_adamw_8bit",
    output_dir="out",
    max_length=128,
    gradient_checkpointing=False,
)
trainer = SFTTrainer(
    model=model,
    args=training_args,
    train_dataset=load_dataset("HuggingFaceH4/Multilingual-Thinking", split="train"),
    peft_config=peft_config,
)
trainer.train()
