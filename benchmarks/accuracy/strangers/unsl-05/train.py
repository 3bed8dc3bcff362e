from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
from unsloth import FastModel

model, tokenizer = FastModel.from_pretrained(
    model_name="unsloth/gemma-3-270m-it",
    max_seq_length=2048,
    load_in_4bit=False,
)
model = FastModel.get_peft_model(
    model,
    r=128,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha=128,
    lora_dropout=0,
    bias="none",
    use_gradient_checkpointing="unsloth",
    use_rslora=False,
)
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=load_dataset("json", data_files="samples.json", split="train"),
    dataset_text_field="text",
    args=SFTConfig(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        optim="adamw_8bit",
        max_steps=60,
        learning_rate=2e-4,
        output_dir="outputs",
        report_to="none",
    ),
)
trainer.train()
