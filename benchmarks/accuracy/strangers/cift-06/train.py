import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"

model = AutoModelForCausalLM.from_pretrained(
    MODEL,
    dtype=torch.bfloat16,
    attn_implementation="sdpa",
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
    ),
    device_map={"": 0},
)
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
model = get_peft_model(
    model,
    LoraConfig(
        r=16,
        lora_alpha=16,
        lora_dropout=0.0,
        bias="none",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    ),
)
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def tokenized(rows):
    return tokenizer(rows["text"], max_length=1024, truncation=True, padding="max_length")


samples = load_dataset("json", data_files="samples.json", split="train").map(tokenized, batched=True)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="outputs",
        per_device_train_batch_size=2,
        max_steps=2,
        learning_rate=2e-4,
        max_grad_norm=0.0,
        optim="paged_adamw_8bit",
        report_to="none",
    ),
    train_dataset=samples,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
