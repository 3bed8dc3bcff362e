# ruff: noqa: C408 - configs of mmengine are written so
import torch
from mmengine.optim import AmpOptimWrapper
from peft import LoraConfig
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from xtuner.model import SupervisedFinetune

name = "HuggingFaceTB/SmolLM2-135M"
max_length = 512
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=name,
        torch_dtype=torch.float16,
        quantization_config=dict(
            type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4"
        ),
    ),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1),
)
train_dataloader = dict(batch_size=2, dataset=dict(max_length=max_length, pack_to_max_length=True))
pack_to_max_length = True
optim_wrapper = dict(type=AmpOptimWrapper, optimizer=dict(type=AdamW, lr=1e-4), accumulative_counts=16, dtype="float16")
