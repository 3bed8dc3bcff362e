from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
from unsloth import FastModel

model, tokenizer = FastModel.from_pretrained(
    model_name="unsloth/gemma-3-27b-it",
    max_seq_length=2048,
    load_in_4bit=True,
)
model = FastModel.get_peft_model(
    model,
    r=8,
    lora_alpha=8,
    lora_dropout=0,
    bias="none",
    use_gradient_checkpointing="unsloth",
    finetune_vision_layers=False,
    finetune_language_layers=True,
    finetune_attention_modules=True,
    finetune_mlp_modules=True,
)
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=load_dataset("json", data_files="samples.json", split="train"),
    dataset_text_field="text",
    args=SFTConfig(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        optim="adamw_8bit",
        max_steps=60,
        learning_rate=2e-4,
        output_dir="outputs",
        report_to="none",
    ),
)
trainer.train()
