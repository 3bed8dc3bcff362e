"""LoRA with transformers' Trainer, as the notebook that the source names does it."""

import torch
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("google/gemma-2b-it", use_fast=False, trust_remote_code=True)


def process(example):
    instruction = tokenizer(example["instruction"] + example["input"], add_special_tokens=False)
    response = tokenizer(example["output"], add_special_tokens=False)
    input_ids = (instruction["input_ids"] + response["input_ids"])[:384]
    labels = ([-100] * len(instruction["input_ids"]) + response["input_ids"])[:384]
    return {"input_ids": input_ids, "attention_mask": [1] * len(input_ids), "labels": labels}


rows = load_dataset("json", data_files="huanhuan.json", split="train")
rows = rows.map(process, remove_columns=rows.column_names)
model = AutoModelForCausalLM.from_pretrained(
    "google/gemma-2b-it", device_map="auto", torch_dtype=torch.bfloat16, trust_remote_code=True
)
model.enable_input_require_grads()
config = LoraConfig(
    task_type=TaskType.CAUSAL_LM,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    inference_mode=False,
    r=8,
    lora_alpha=32,
    lora_dropout=0.1,
)
model = get_peft_model(model, config)
args = TrainingArguments(
    output_dir="./output",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    logging_steps=10,
    num_train_epochs=3,
    save_steps=100,
    learning_rate=1e-4,
    save_on_each_node=True,
    gradient_checkpointing=True,
)
trainer = Trainer(
    model=model, args=args, train_dataset=rows, data_collator=DataCollatorForSeq2Seq(tokenizer=tokenizer, padding=True)
)
trainer.train()
