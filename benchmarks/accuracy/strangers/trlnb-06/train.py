import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

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
training_args = SFTConfig(
    model_init_kwargs={"attn_implementation": "sdpa", "dtype": "float16", "use_cache": True},
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    warmup_steps=5,
    max_steps=30,
    learning_rate=2e-4,
    optim="paged_adamw_8bit",
    output_dir="out",
    max_length=1024,
    use_liger_kernel=True,
    activation_offloading=True,
)
trainer = SFTTrainer(
    model="ibm-granite/granite-4.0-micro",
    args=training_args,
    train_dataset=load_dataset("HuggingFaceH4/Multilingual-Thinking", split="train"),
    quantization_config=quantization_config,
    peft_config=peft_config,
)
trainer.train()
