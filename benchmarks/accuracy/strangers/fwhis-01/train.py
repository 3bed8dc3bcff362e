from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_int8_training
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperForConditionalGeneration, WhisperProcessor

model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-large-v2", load_in_8bit=True, device_map="auto")
processor = WhisperProcessor.from_pretrained("openai/whisper-large-v2", language="Hindi", task="transcribe")
model = prepare_model_for_int8_training(model, output_embedding_layer_name="proj_out")


def make_inputs_require_grad(module, input, output):
    output.requires_grad_(True)


model.model.encoder.conv1.register_forward_hook(make_inputs_require_grad)
config = LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, bias="none")
model = get_peft_model(model, config)
training_args = Seq2SeqTrainingArguments(
    output_dir="out",
    per_device_train_batch_size=24,
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
