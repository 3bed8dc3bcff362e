from datasets import load_dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperForConditionalGeneration, WhisperProcessor

model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-large-v2")
processor = WhisperProcessor.from_pretrained("openai/whisper-large-v2", language="Hindi", task="transcribe")
training_args = Seq2SeqTrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    learning_rate=1e-3,
    warmup_steps=50,
    num_train_epochs=1,
    evaluation_strategy="steps",
    fp16=True,
    per_device_eval_batch_size=8,
    generation_max_length=128,
    remove_unused_columns=False,
    label_names=["labels"],
)
trainer = Seq2SeqTrainer(
    model=model,
    args=training_args,
    train_dataset=load_dataset("mozilla-foundation/common_voice_13_0", "hi", split="train+validation"),
    tokenizer=processor.feature_extractor,
)
model.config.use_cache = False
trainer.train()
