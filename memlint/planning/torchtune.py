"""torchtune's starter: its recipes name a model by the function that builds it, and each file of its weights.

Source: torchtune 0.6.1, ``recipes/configs/{llama3_1,llama3_2,qwen2_5}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from memlint.named_tuple import NamedTuple

Lines = dict[str, object]


class Built(NamedTuple):
    """How torchtune builds a model: package and builder, the tokenizer's function and file, files of weights, and the
    name of its way to read them."""

    package: str
    builder: str
    tokenizer: str
    vocabulary: str
    shards: int
    checkpoint: str


_TRAINING = "torchtune.training"
_LLAMA = ("llama3.llama3_tokenizer", "original/tokenizer.model")
_QWEN = ("qwen2_5.qwen2_5_tokenizer", "vocab.json")

# What a hub id ends with -> how it is built.
MODELS: Mapping[str, Built] = {
    r"(meta-)?llama-3\.1-8b(-instruct)?": Built("llama3_1", "llama3_1_8b", *_LLAMA, 4, "LLAMA3"),
    r"llama-3\.2-1b(-instruct)?": Built("llama3_2", "llama3_2_1b", *_LLAMA, 1, "LLAMA3_2"),
    r"llama-3\.2-3b(-instruct)?": Built("llama3_2", "llama3_2_3b", *_LLAMA, 2, "LLAMA3_2"),
    r"qwen2\.5-0\.5b(-instruct)?": Built("qwen2_5", "qwen2_5_0_5b", *_QWEN, 1, "QWEN2"),
    r"qwen2\.5-1\.5b-instruct": Built("qwen2_5", "qwen2_5_1_5b_instruct", *_QWEN, 1, "QWEN2"),
    r"qwen2\.5-3b(-instruct)?": Built("qwen2_5", "qwen2_5_3b", *_QWEN, 2, "QWEN2"),
    r"qwen2\.5-7b-instruct": Built("qwen2_5", "qwen2_5_7b_instruct", *_QWEN, 4, "QWEN2"),
}


def built(model: str) -> Built | None:
    """How torchtune builds the model of a hub id; None where it is not known to."""
    name = model.rpartition("/")[2].lower()
    return next((found for pattern, found in MODELS.items() if re.fullmatch(pattern, name)), None)


def recipe(adapted: bool, devices: int) -> str:
    return f"{'lora' if adapted else 'full'}_finetune_{'distributed' if devices > 1 else 'single_device'}"


def lines(model: str, by: Built, adapter: str, length: int, micro_batch: int) -> Lines:
    """A recipe's config. ``adapter``: ``lora``, ``qlora``, or "" for the whole model."""
    folder = f"/tmp/{model.rpartition('/')[2]}"
    builder = f"{adapter}_{by.builder}" if adapter else by.builder
    options: Lines = {
        "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "lora_rank": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
    }
    count = f"{by.shards:05d}"
    shards = [f"model-{number:05d}-of-{count}.safetensors" for number in range(1, by.shards + 1)]
    schedule: Lines = {
        "lr_scheduler": {
            "_component_": f"{_TRAINING}.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 100,
        },
        "save_adapter_weights_only": False,
    }
    return {
        "output_dir": f"/tmp/torchtune/{builder}",
        "model": {"_component_": f"torchtune.models.{by.package}.{builder}", **(options if adapter else {})},
        "tokenizer": {
            "_component_": f"torchtune.models.{by.tokenizer}",
            "path": f"{folder}/{by.vocabulary}",
            **({"merges_file": f"{folder}/merges.txt"} if by.vocabulary == "vocab.json" else {}),
            "max_seq_len": length,
        },
        "checkpointer": {
            "_component_": f"{_TRAINING}.FullModelHFCheckpointer",
            "checkpoint_dir": folder,
            "checkpoint_files": shards if by.shards > 1 else ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": "${output_dir}",
            "model_type": by.checkpoint,
        },
        "resume_from_checkpoint": False,
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": False},
        "seed": None,
        "shuffle": True,
        "batch_size": micro_batch,
        "gradient_accumulation_steps": 1,
        "epochs": 1,
        "max_steps_per_epoch": None,
        "clip_grad_norm": None,
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 0.0003 if adapter else 0.00002},
        **(schedule if adapter else {"optimizer_in_bwd": False}),
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "metric_logger": {"_component_": f"{_TRAINING}.metric_logging.DiskLogger", "log_dir": "${output_dir}/logs"},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
        "device": "cuda",
        "dtype": "bf16",
        "enable_activation_checkpointing": True,
        "enable_activation_offloading": False,
        "compile": False,
    }
