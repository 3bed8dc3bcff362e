from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTQConfig, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen-72B-Chat-Int4",
    device_map="auto",
    trust_remote_code=True,
    quantization_config=GPTQConfig(bits=4, disable_exllama=True),
)
model.config.use_cache = False
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
tokenizer = AutoTokenizer.from_pretrained(
    "Qwen/Qwen-72B-Chat-Int4", model_max_length=2048, padding_side="right", trust_remote_code=True
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
    return tokenizer(sample["text"], max_length=2048, padding="max_length", truncation=True)


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
    fp16=True,
    deepspeed="ds_config_zero2.json",
)
trainer = Trainer(model=model, args=args, train_dataset=dataset, tokenizer=tokenizer)
trainer.train()
