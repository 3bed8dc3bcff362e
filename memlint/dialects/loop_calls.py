"""What hand-written training loops call: optimizers, wrappers, losses and what is done to logits, as tables.

A call is known by the last part of its name, and for what several libraries have by the module that the program
imports it from.
"""

from __future__ import annotations

import re

from memlint.named_tuple import NamedTuple


class Optimizer(NamedTuple):
    """name, library: as the facts ``optimizer`` and ``optimizer_library`` have them.

    implementation  "" where the class takes ``foreach`` and ``fused``; else how it is written
    paged           its states may move to host memory
    """

    name: str
    library: str = "torch"
    implementation: str = ""
    paged: bool = False


# torch 2.13: torch/optim/*.py. foreach is the default of each of these where all parameters are on a GPU
# (_default_to_fused_or_foreach of torch/optim/optimizer.py).
TORCH = {
    "AdamW": Optimizer("adamw"),
    "Adam": Optimizer("adam"),
    "SGD": Optimizer("sgd"),
    "Adagrad": Optimizer("adagrad"),
    "RMSprop": Optimizer("rmsprop"),
}
# bitsandbytes 0.50: optim/*.py. A Paged class is of the same states, which may move to host memory.
_BITS = {
    **{f"{name}8bit": f"{word}_8bit" for name, word in (("AdamW", "adamw"), ("Adam", "adam"), ("Lion", "lion"))},
    **{f"{name}32bit": word for name, word in (("AdamW", "adamw"), ("Adam", "adam"), ("Lion", "lion"))},
    **{"AdamW": "adamw", "Adam": "adam", "Lion": "lion", "RMSprop8bit": "rmsprop_8bit", "Adagrad8bit": "adagrad_8bit"},
}
BITSANDBYTES = {
    **{name: Optimizer(word, "bitsandbytes", "fused") for name, word in _BITS.items()},
    **{f"Paged{name}": Optimizer(word, "bitsandbytes", "fused", True) for name, word in _BITS.items()},
}
OPTIMIZERS: dict[str, dict[str, Optimizer]] = {
    "torch": TORCH,
    "bitsandbytes": BITSANDBYTES,
    # transformers 4.57 and before: optimization.py, AdamW; 5.23: optimization.py, Adafactor
    "transformers": {
        "AdamW": Optimizer("adamw", "transformers", "loop"),
        "Adafactor": Optimizer("adafactor", "transformers", "loop"),
    },
    # deepspeed 0.19: ops/adam; apex: optimizers/fused_adam.py
    "deepspeed": {"FusedAdam": Optimizer("adamw", "deepspeed", "fused")},
    "apex": {"FusedAdam": Optimizer("adamw", "apex", "fused")},
}

# Methods of a model that give its parameters, and what takes some of those.
PARAMETERS = frozenset(("parameters", "named_parameters", "trainable_parameters", "filter"))
OF_DEEPSPEED = "DummyOptim"  # accelerate 1.15: utils/deepspeed.py: DeepSpeed's config says which one it stands for

# Methods that return what they are called on, and functions that return what they are given, wrapped.
ITSELF = frozenset(
    (
        *("to", "cuda", "train", "eval", "half", "float", "bfloat16", "requires_grad_", "compile", "type", "double"),
        *("share_memory", "apply"),
    )
)
WRAPS = {
    **dict.fromkeys(("get_peft_model", "prepare_model_for_kbit_training", "prepare_model_for_int8_training"), "model"),
    **dict.fromkeys(("DistributedDataParallel", "DDP", "DataParallel"), "module"),
    **dict.fromkeys(("compile", "unwrap_model", "watch"), "model"),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDP", "fully_shard"), "module"),
    "initialize": "model",  # deepspeed
}
# What hands on the items of what it is given.
PASSES = frozenset(
    ("enumerate", "tqdm", "trange", "iter", "cycle", "islice", "track", "zip", "reversed", "progress_bar")
)

# Attributes and methods whose result takes no memory of the card that counts.
ON_THE_HOST = frozenset(
    (
        *("item", "tolist", "numpy", "cpu", "size", "numel", "dim", "shape", "device", "dtype", "ndim", "data_ptr"),
        *("argmax", "isnan", "isinf", "isfinite", "is_cuda", "grad_fn", "requires_grad", "keys", "element_size"),
    )
)
# Functions that look at a value and keep nothing of it; methods that report it, or gather it for that.
LOOKS_AT = frozenset(
    ("print", "float", "int", "str", "len", "isinstance", "hasattr", "argmax", "isnan", "isfinite"),
)
REPORTS = frozenset(
    ("gather", "gather_for_metrics", "reduce", "print", "log", "update", "add_batch", "set_postfix"),
)
# Arguments of a model's call by which it takes, or returns, other things than tokens and logits.
OTHER_OUTPUTS = ("inputs_embeds", "past_key_values", "output_hidden_states", "output_attentions", "use_cache")
# Methods and functions of a loss, a number or one for each token.
OF_A_LOSS = frozenset(
    (
        *("mean", "sum", "float", "to", "squeeze", "clone", "div", "mul", "view", "reshape", "masked_select", "cuda"),
        *("half", "double", "bfloat16", "flatten", "unsqueeze", "div_", "mul_", "nanmean"),
    )
)
# Of logits, as the statements of the fact ``loop`` name them (memlint.models.language.loops).
OF_LOGITS = {
    "float": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "contiguous": "contiguous",
    "view": "rows",
    "reshape": "rows",
    "flatten": "rows",
    "clone": "clone",
}
# What is taken of each row: all but the last token, as text without blanks.
ALL_BUT_THE_LAST = re.compile(r"(\.\.\.,|:,):-1(,:)?(,\.\.\.)?")
PLAIN_CONTEXTS = frozenset(
    ("nullcontext", "accumulate", "no_sync", "profile", "record_function", "set_device", "device", "suppress")
)
# Words of contexts of a program's own that watch and time, and change nothing of how a model computes.
WATCHES = re.compile(r"trace|timer|timing|profil|progress|tqdm|memory|logg|stopwatch", re.IGNORECASE)
WITHOUT_GRADIENTS = frozenset(("no_grad", "inference_mode"))
# Keywords of cross entropy that leave its memory as it is (torch 2.13: nn/functional.py, cross_entropy).
PLAIN_LOSS = frozenset(("ignore_index", "reduction", "input", "target", "size_average", "reduce"))
# What makes numbers of tokens of its own: the place of its shape among the arguments.
MADE_UP = {"randint": ("size", (1, 2)), "ones": ("size", (0,)), "zeros": ("size", (0,)), "full": ("size", (0,))}
# What a data set of a program's own calls the length of its rows.
LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "max_length", "max_len", "seq_length", "seq_len")
# Arguments of LoraConfig that put another computation in LoRA's place, or adapt some modules otherwise (PEFT 0.21:
# tuners/lora/config.py); the values of ``bias`` that leave biases as they are.
NOT_PLAIN_LORA = (
    *("rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "exclude_modules", "loftq_config", "eva_config", "corda_config"),
)
# What makes other rows of a batch, or other lengths.
RESHAPES = frozenset(
    (
        *("cat", "concat", "concatenate", "stack", "vstack", "hstack", "repeat", "repeat_interleave", "expand", "tile"),
        *("pad", "chunk", "split", "narrow", "index_select", "masked_select", "gather", "unfold", "roll", "flip"),
    )
)
# Attributes of a model that change nothing of how it computes, and arguments of AutoConfig of which the same is true.
HARMLESS = frozenset(
    (
        *(
            "use_cache",
            "pad_token_id",
            "eos_token_id",
            "bos_token_id",
            "pretraining_tp",
            "is_parallelizable",
            "training",
        ),
        *("model_parallel", "padding_side", "pad_token", "name_or_path", "pretrained_model_name_or_path", "num_labels"),
        *("trust_remote_code", "cache_dir", "revision", "token", "finetuning_task", "use_auth_token", "return_dict"),
        *("id2label", "label2id", "problem_type", "gradient_checkpointing", "keys_to_ignore_at_inference"),
    )
)
