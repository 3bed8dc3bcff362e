from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen-14B-Chat", trust_remote_code=True, low_cpu_mem_usage=True)
model.config.use_cache = False
tokenizer = AutoTokenizer.from_pretrained(
    "Qwen/Qwen-14B-Chat", model_max_length=512, padding_side="right", trust_remote_code=True
)
peft_config = LoraConfig(
    r=64,
    lora_alpha=16,
    lora_dropout=0.05,
    bias="none",
    target_modules=["c_attn", "c_proj", "w1", "w2"],
    task_type="CAUSAL_LM",
)
model = get_peft_model(model, peft_config)
model.enable_input_require_grads()


def tokenize(sample):
    return tokenizer(sample["text"], max_length=512, padding="max_length", truncation=True)


dataset = load_dataset("json", data_files="data.json", split="train").map(tokenize)
args = TrainingArguments(
    output_dir="output_qwen",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    optim="adamw_torch",
    learning_rate=3e-4,
    adam_beta2=0.95,
    weight_decay=0.1,
    bf16=True,
)
trainer = Trainer(model=model, args=args, train_dataset=dataset, tokenizer=tokenizer)
trainer.train()
