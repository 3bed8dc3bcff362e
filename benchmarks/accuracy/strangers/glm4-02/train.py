import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

tokenizer = AutoTokenizer.from_pretrained("THUDM/glm-4-9b-chat", trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(
    "THUDM/glm-4-9b-chat", trust_remote_code=True, use_cache=False, torch_dtype=torch.bfloat16
)


def tokenize(sample):
    ids = tokenizer(sample["content"] + sample["summary"], truncation=True, max_length=1024)["input_ids"]
    return {"input_ids": ids, "labels": ids}


dataset = load_dataset("json", data_files="train.json", split="train").map(tokenize)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
args = Seq2SeqTrainingArguments(
    output_dir="output",
    max_steps=3000,
    learning_rate=5e-5,
    per_device_train_batch_size=1,
    save_steps=500,
    logging_steps=10,
    deepspeed="ds_zero_3.json",
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=dataset,
    data_collator=DataCollatorForSeq2Seq(tokenizer, padding="longest"),
)
trainer.train()
