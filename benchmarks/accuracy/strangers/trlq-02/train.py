from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


training_args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    max_prompt_length=2048,
    max_completion_length=1024,
    num_generations=4,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen3-1.7B",
    reward_funcs=reward,
    args=training_args,
    train_dataset=load_dataset("json", data_files="prompts.json", split="train"),
)
trainer.train()
