import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import reasoning_accuracy_reward, think_format_reward

quantization_config = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_compute_dtype=torch.float16,
    bnb_4bit_use_double_quant=True,
    bnb_4bit_quant_type="nf4",
)
peft_config = LoraConfig(
    r=32,
    lora_alpha=32,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)
training_args = GRPOConfig(
    model_init_kwargs={"attn_implementation": "sdpa", "dtype": "float32"},
    learning_rate=2e-5,
    max_steps=500,
    per_device_train_batch_size=8,
    max_completion_length=256,
    num_generations=8,
    optim="paged_adamw_8bit",
    use_liger_kernel=True,
    output_dir="out",
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2-7B-Instruct",
    reward_funcs=[think_format_reward, reasoning_accuracy_reward],
    args=training_args,
    train_dataset=load_dataset("AI-MO/NuminaMath-TIR", split="train[:5%]"),
    quantization_config=quantization_config,
    peft_config=peft_config,
)
trainer.train()
