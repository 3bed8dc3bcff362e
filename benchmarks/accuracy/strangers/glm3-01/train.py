import torch
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

tokenizer = AutoTokenizer.from_pretrained("THUDM/chatglm3-6b", trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(
    "THUDM/chatglm3-6b", trust_remote_code=True, use_cache=False, empty_init=False
)
model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=32, lora_dropout=0.1))


def tokenize(sample):
    ids = tokenizer(sample["content"] + sample["summary"], truncation=True, max_length=769)["input_ids"]
    return {"input_ids": ids, "labels": ids}


dataset = load_dataset("json", data_files="train.json", split="train").map(tokenize)
for param in model.parameters():
    if param.requires_grad:
        param.data = param.data.to(torch.float32)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
args = Seq2SeqTrainingArguments(
    output_dir="output",
    max_steps=3000,
    learning_rate=5e-5,
    per_device_train_batch_size=4,
    save_steps=500,
    logging_steps=10,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=dataset,
    data_collator=DataCollatorForSeq2Seq(tokenizer, padding="longest"),
)
trainer.train()
