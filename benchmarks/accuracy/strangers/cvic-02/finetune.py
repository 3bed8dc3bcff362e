"""LoRA on Llama in 8 bits, as the program that the source names does it."""

import argparse
import os

import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_int8_training
from transformers import LlamaForCausalLM, LlamaTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--data_path", type=str, default="merge.json")
parser.add_argument("--output_path", type=str, default="lora-Vicuna")
parser.add_argument("--model_path", type=str, default="decapoda-research/llama-7b-hf")
parser.add_argument("--test_size", type=int, default=200)
args = parser.parse_args()

MICRO_BATCH_SIZE = 4
BATCH_SIZE = 128
GRADIENT_ACCUMULATION_STEPS = BATCH_SIZE // MICRO_BATCH_SIZE
CUTOFF_LEN = 256

device_map = {"": int(os.environ.get("LOCAL_RANK") or 0)}
model = LlamaForCausalLM.from_pretrained(args.model_path, load_in_8bit=True, device_map=device_map)
tokenizer = LlamaTokenizer.from_pretrained(args.model_path, add_eos_token=True)
model = prepare_model_for_int8_training(model)
config = LoraConfig(
    r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, bias="none", task_type="CAUSAL_LM"
)
model = get_peft_model(model, config)
tokenizer.pad_token_id = 0


def tokenize(row):
    tokens = tokenizer(
        row["instruction"] + row["output"], truncation=True, max_length=CUTOFF_LEN + 1, padding="max_length"
    )["input_ids"][:-1]
    return {"input_ids": tokens, "labels": tokens, "attention_mask": [1] * len(tokens)}


data = load_dataset("json", data_files=args.data_path)
parts = data["train"].train_test_split(test_size=args.test_size, shuffle=True, seed=42)
train_data = parts["train"].shuffle().map(tokenize)

trainer = transformers.Trainer(
    model=model,
    train_dataset=train_data,
    args=transformers.TrainingArguments(
        per_device_train_batch_size=MICRO_BATCH_SIZE,
        gradient_accumulation_steps=GRADIENT_ACCUMULATION_STEPS,
        warmup_steps=100,
        num_train_epochs=3,
        learning_rate=3e-4,
        fp16=True,
        logging_steps=20,
        output_dir=args.output_path,
    ),
    data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
model.config.use_cache = False
trainer.train()
