import torch
import torch.optim as optim
from llama_cookbook.configs import train_config as TRAIN_CONFIG
from llama_cookbook.configs.datasets import samsum_dataset
from llama_cookbook.utils.dataset_utils import get_dataloader
from llama_cookbook.utils.train_utils import train
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.optim.lr_scheduler import StepLR
from transformers import AutoTokenizer, BitsAndBytesConfig, LlamaForCausalLM

train_config = TRAIN_CONFIG()
train_config.model_name = "meta-llama/Meta-Llama-3.1-8B"
train_config.num_epochs = 1
train_config.run_validation = False
train_config.gradient_accumulation_steps = 4
train_config.batch_size_training = 1
train_config.lr = 3e-4
train_config.use_fast_kernels = True
train_config.use_fp16 = True
train_config.context_length = 2048
train_config.batching_strategy = "packing"
train_config.use_peft = True

model = LlamaForCausalLM.from_pretrained(
    train_config.model_name,
    device_map="auto",
    quantization_config=BitsAndBytesConfig(load_in_8bit=True),
    use_cache=False,
    attn_implementation="sdpa",
    torch_dtype=torch.float16,
)
tokenizer = AutoTokenizer.from_pretrained(train_config.model_name)
tokenizer.pad_token = tokenizer.eos_token
batches = get_dataloader(tokenizer, samsum_dataset, train_config)

# The rank and the factor are written, the rest are the defaults of the project's own class.
model = prepare_model_for_kbit_training(model)
model = get_peft_model(
    model,
    LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], bias="none", task_type="CAUSAL_LM"
    ),
)
model.train()
optimizer = optim.AdamW(model.parameters(), lr=train_config.lr, weight_decay=train_config.weight_decay)
scheduler = StepLR(optimizer, step_size=1, gamma=train_config.gamma)
train(model, batches, None, tokenizer, optimizer, scheduler, train_config.gradient_accumulation_steps, train_config)
