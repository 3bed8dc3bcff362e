"""A first config for each trainer that `plan` knows: text in the trainer's own keys.

What a starter sets beside the model, the method and the sizes is what its trainer's documentation has in its examples
for a run on little memory: bf16, checkpointing, a fused optimizer and a loss that keeps no whole logits. A trainer that
is to be planned for is one more entry of :data:`TRAINERS`; a way in which its devices share a run, one more of its
``shardings``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from memlint.named_tuple import NamedTuple
from memlint.planning import torchtune

FULL, LORA, QLORA = "full", "lora", "qlora"

Lines = dict[str, object]


class Method(NamedTuple):
    """What is trained for (``sft``, ``dpo``), and what of the model trains."""

    stage: str
    tuning: str


METHODS = {
    "full": Method("sft", FULL),
    "lora": Method("sft", LORA),
    "qlora": Method("sft", QLORA),
    "dpo": Method("dpo", FULL),
    "dpo-lora": Method("dpo", LORA),
    "dpo-qlora": Method("dpo", QLORA),
}

ONE = "none"  # of one device, which has nobody to share with
FSDP, DDP, ZERO2, ZERO3 = "fsdp", "ddp", "zero2", "zero3"
# How several devices share a run. The first two are planned for where nobody says.
SHARDINGS = {
    FSDP: "weights, gradients and optimizer states are shared (PyTorch's FSDP2)",
    DDP: "every device holds all of it",
    ZERO2: "gradients and optimizer states are shared (DeepSpeed)",
    ZERO3: "weights, gradients and optimizer states are shared (DeepSpeed)",
}
SHOWN_SHARDINGS = (FSDP, DDP)
WEIGHTS_SHARED = (FSDP, ZERO3)  # where quantised weights are kept in the type of all others


class Wanted(NamedTuple):
    """A run: a hub id, a key of :data:`METHODS`, tokens of the longest sample, samples per device, devices, and a key
    of :data:`SHARDINGS` (:data:`ONE` for one device).

    half  the type of 16 bits that the card computes in: ``bf16``, or ``fp16`` where it has no other
    """

    model: str
    method: str
    length: int
    micro_batch: int
    devices: int
    sharding: str
    half: str = "bf16"


class Unplanned(ValueError):
    """A trainer has no such run; the message says why."""


class Trainer(NamedTuple):
    """A trainer.

    start      the command that starts a file on one device and on several
    make       its keys
    shardings  of each that it has, the keys that say it; :data:`BESIDE` stands for the name of DeepSpeed's config
    refused    what its own code refuses of them, by sharding and method, and what is said of it
    """

    title: str
    suffix: str
    start: Callable[[Wanted, str], str]
    make: Callable[[Wanted], Lines]
    shardings: Mapping[str, Lines]
    refused: Mapping[tuple[str, str], str] = {}


NOTES = {
    "datasets": "your data",
    "dataset_name": "your data",
    "dataset": "your data",
    "template": "the chat template of your model",
}


BESIDE = "a file of DEEPSPEED"
_AUTO = dict.fromkeys(
    ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"), "auto"
)
_HALVES = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
# DeepSpeed's configs: what is "auto" the trainer fills in, of stage 3 also the sizes, by the model's width. Buckets of
# stage 2 are those that transformers tests with (tests/deepspeed/ds_config_zero2.json).
DEEPSPEED: Mapping[str, Lines] = {
    ZERO2: {
        **_HALVES,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "allgather_bucket_size": 200_000_000,
            "reduce_bucket_size": 200_000_000,
        },
        **_AUTO,
    },
    ZERO3: {
        **_HALVES,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        **_AUTO,
    },
}


def starter(trainer: str, wanted: Wanted, name: str) -> dict[str, str]:
    """The files of a config that is to be called ``name``: their names and texts, the config first. Its first line is
    the command that starts it. Raises Unplanned."""
    chosen = TRAINERS[trainer]
    keys = {**chosen.make(wanted), **_sharded(chosen, wanted)}
    files: dict[str, str] = {}
    if BESIDE in keys.values():
        beside = f"{name.rpartition('.')[0]}.{wanted.sharding}.json"
        keys = {key: beside if value == BESIDE else value for key, value in keys.items()}
        files[beside] = json.dumps(DEEPSPEED[wanted.sharding], indent=2) + "\n"
    lines = [f"# {chosen.start(wanted, name)}"]
    for key, value in keys.items():
        lines += _written(key, value, "")
    return {name: "\n".join(lines) + "\n", **files}


def _sharded(trainer: Trainer, wanted: Wanted) -> Lines:
    """The keys of a run's sharding. Raises Unplanned."""
    method, sharding = METHODS[wanted.method], wanted.sharding
    if wanted.half != "bf16" and method.tuning == FULL:
        raise Unplanned("without bf16 whole models are trained with weights in fp32, which no starter does")
    if sharding == ONE:
        return {}
    if sharding not in trainer.shardings:
        known = " or ".join(trainer.shardings)
        raise Unplanned(f"{trainer.title} is planned for {known} on several devices, not for {sharding}")
    if (sharding, wanted.method) in trainer.refused:
        raise Unplanned(trainer.refused[sharding, wanted.method])
    return trainer.shardings[sharding]


def _written(key: str, value: object, indent: str) -> list[str]:
    note = f"  # {NOTES[key]}" if key in NOTES else ""
    if isinstance(value, dict):
        inner = [line for name, entry in value.items() for line in _written(name, entry, indent + "  ")]
        return [f"{indent}{key}:{note}", *inner]
    if isinstance(value, list):
        items = []
        for entry in value:
            inner = _written_item(entry)
            items += [f"{indent}  {'-' if not at else ' '} {line}" for at, line in enumerate(inner)]
        return [f"{indent}{key}:{note}", *items]
    return [f"{indent}{key}: {_scalar(value)}{note}"]


def _written_item(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return [line for name, value in entry.items() for line in _written(name, value, "")]
    return [_scalar(entry)]


def _scalar(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    # YAML 1.1 takes 5e-06 for text: a number has a dot.
    text = f"{value:.1e}" if isinstance(value, float) and 0 < value < 0.001 else str(value)
    if isinstance(value, (int, float)) or re.fullmatch(r"[A-Za-z][\w./ -]*", text):
        return text
    return json.dumps(text)


# -- TRL, 1.x: https://huggingface.co/docs/trl (SFTConfig, DPOConfig, ModelConfig)


def _trl_start(wanted: Wanted, name: str) -> str:
    stage = METHODS[wanted.method].stage
    return f"accelerate launch --num_processes {wanted.devices} -m trl.scripts.{stage} --config {name}"


def _trl(wanted: Wanted) -> Lines:
    method = METHODS[wanted.method]
    dpo = method.stage == "dpo"
    lines: Lines = {
        "model_name_or_path": wanted.model,
        "dtype": "bfloat16" if wanted.half == "bf16" else "float16",
        "dataset_name": "trl-lib/ultrafeedback_binarized" if dpo else "trl-lib/Capybara",
        "output_dir": f"out/{wanted.method}",
        "max_length": wanted.length,
        "per_device_train_batch_size": wanted.micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": True,
        wanted.half: True,
        "optim": "adamw_torch_fused",
        "learning_rate": _rate(method),
    }
    if method.tuning != FULL:
        lines |= {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
        lines["lora_target_modules"] = "all-linear"
    if method.tuning == QLORA:
        lines["load_in_4bit"] = True
    if method.tuning == QLORA and wanted.sharding in WEIGHTS_SHARED:
        lines["bnb_4bit_quant_storage"] = lines["dtype"]
    return lines


# transformers' own keys, which LLaMA-Factory has as well
_OF_THE_TRAINER: Mapping[str, Lines] = {
    DDP: {},
    FSDP: {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}},
    ZERO2: {"deepspeed": BESIDE},
    ZERO3: {"deepspeed": BESIDE},
}


# -- Axolotl: https://docs.axolotl.ai/docs/config-reference.html


def _axolotl_start(wanted: Wanted, name: str) -> str:
    if wanted.devices == 1:
        return f"axolotl train {name}"
    return f"accelerate launch --num_processes {wanted.devices} -m axolotl.cli.train {name}"


def _axolotl(wanted: Wanted) -> Lines:
    method = METHODS[wanted.method]
    dpo = method.stage == "dpo"
    data = {"path": "argilla/ultrafeedback-binarized-preferences-cleaned", "type": "chat_template.argilla_chat"}
    lines: Lines = {
        "base_model": wanted.model,
        **({"rl": "dpo"} if dpo else {}),
        "datasets": [data if dpo else {"path": "tatsu-lab/alpaca", "type": "alpaca"}],
        "output_dir": f"out/{wanted.method}",
        "sequence_len": wanted.length,
        "micro_batch_size": wanted.micro_batch,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "optimizer": "adamw_torch_fused",
        "learning_rate": _rate(method),
        wanted.half: True,
        "gradient_checkpointing": True,
        "sdp_attention": True,
    }
    if not dpo:
        lines["plugins"] = ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]
    if method.tuning != FULL:
        lines |= {"adapter": method.tuning, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
        lines["lora_target_linear"] = True
    if method.tuning == QLORA:
        lines["load_in_4bit"] = True
    return lines


_OF_AXOLOTL: Mapping[str, Lines] = {
    DDP: {},
    FSDP: {
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "reshard_after_forward": True,
        },
    },
    ZERO2: {"deepspeed": BESIDE},
    ZERO3: {"deepspeed": BESIDE},
}
# utils/schemas/validation.py: check_fsdp2_base_model_quant_rl
_NOT_AXOLOTL = {(FSDP, "dpo-qlora"): "Axolotl refuses DPO over four bits with FSDP2, and takes it with DeepSpeed"}


# -- LLaMA-Factory: https://github.com/hiyouga/LLaMA-Factory/tree/main/examples


def _llamafactory_start(wanted: Wanted, name: str) -> str:
    several = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={wanted.devices} " if wanted.devices > 1 else ""
    return f"{several}llamafactory-cli train {name}"


def _llamafactory(wanted: Wanted) -> Lines:
    method = METHODS[wanted.method]
    dpo = method.stage == "dpo"
    lines: Lines = {
        "model_name_or_path": wanted.model,
        "stage": method.stage,
        "do_train": True,
        "finetuning_type": "full" if method.tuning == FULL else "lora",
        **(
            {}
            if method.tuning == FULL
            else {"lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.0, "lora_target": "all"}
        ),
        **({"quantization_bit": 4} if method.tuning == QLORA else {}),
        **({"pref_beta": 0.1, "pref_loss": "sigmoid"} if dpo else {}),
        "dataset": "dpo_en_demo" if dpo else "alpaca_en_demo",
        "template": "default",
        "cutoff_len": wanted.length,
        "output_dir": f"out/{wanted.method}",
        "per_device_train_batch_size": wanted.micro_batch,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": 1.0,
        "learning_rate": _rate(method),
        wanted.half: True,
        "optim": "adamw_torch_fused",
        **({} if dpo else {"enable_liger_kernel": True}),
    }
    return lines


# -- ms-swift 4: https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html


def _ms_swift_start(wanted: Wanted, name: str) -> str:
    several = f"NPROC_PER_NODE={wanted.devices} " if wanted.devices > 1 else ""
    return f"{several}swift {'rlhf' if METHODS[wanted.method].stage == 'dpo' else 'sft'} {name}"


def _ms_swift(wanted: Wanted) -> Lines:
    method = METHODS[wanted.method]
    dpo = method.stage == "dpo"
    dtype = "bfloat16" if wanted.half == "bf16" else "float16"
    lines: Lines = {
        **({"rlhf_type": "dpo"} if dpo else {}),
        "model": wanted.model,
        "use_hf": True,
        "dataset": ["shareAI/DPO-zh-en-emoji" if dpo else "vicgalle/alpaca-gpt4"],
        "tuner_type": "full" if method.tuning == FULL else "lora",
        **({} if method.tuning == FULL else {"lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.0}),
        **({} if method.tuning == FULL else {"target_modules": ["all-linear"]}),
    }
    if method.tuning == QLORA:
        lines |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_compute_dtype": dtype}
    if method.tuning == QLORA and wanted.sharding in WEIGHTS_SHARED:
        lines["bnb_4bit_quant_storage"] = dtype
    lines |= {
        "torch_dtype": dtype,
        "max_length": wanted.length,
        "output_dir": f"out/{wanted.method}",
        "num_train_epochs": 1,
        "per_device_train_batch_size": wanted.micro_batch,
        "gradient_accumulation_steps": 1,
        "learning_rate": _rate(method),
        "optim": "adamw_torch_fused",
        "gradient_checkpointing": wanted.sharding != FSDP,
        **({} if dpo else {"use_liger_kernel": True}),
    }
    return lines


# Names of configs that swift brings (swift/config); that of FSDP recomputes, so gradient_checkpointing is off with it.
_OF_MS_SWIFT: Mapping[str, Lines] = {
    DDP: {},
    FSDP: {"fsdp": "fsdp2"},
    ZERO2: {"deepspeed": "zero2"},
    ZERO3: {"deepspeed": "zero3"},
}


# -- torchtune 0.6: memlint/planning/torchtune.py


def _torchtune_start(wanted: Wanted, name: str) -> str:
    several = f"--nproc_per_node {wanted.devices} " if wanted.devices > 1 else ""
    recipe = torchtune.recipe(METHODS[wanted.method].tuning != FULL, wanted.devices)
    return f"tune run {several}{recipe} --config {name}"


def _torchtune(wanted: Wanted) -> Lines:
    method, by = METHODS[wanted.method], torchtune.built(wanted.model)
    if method.stage != "sft":
        raise Unplanned(f"torchtune is planned for full, lora and qlora, not for {wanted.method}")
    if by is None:
        raise Unplanned(f"it is not known how torchtune builds {wanted.model}")
    if wanted.half != "bf16":
        raise Unplanned("torchtune's recipes train in bf16, which this card does not have")
    adapter = "" if method.tuning == FULL else method.tuning
    return torchtune.lines(wanted.model, by, adapter, wanted.length, wanted.micro_batch)


def _rate(method: Method) -> float:
    """What the trainers' own examples begin with."""
    if method.stage == "dpo":
        return 0.000005
    return 0.00001 if method.tuning == FULL else 0.0002


# Its recipes for several devices wrap in FSDP2, whatever a config says.
_OF_TORCHTUNE: Mapping[str, Lines] = {FSDP: {}}

TRAINERS = {
    "trl": Trainer("TRL", ".yaml", _trl_start, _trl, _OF_THE_TRAINER),
    "axolotl": Trainer("Axolotl", ".yml", _axolotl_start, _axolotl, _OF_AXOLOTL, _NOT_AXOLOTL),
    "llamafactory": Trainer("LLaMA-Factory", ".yaml", _llamafactory_start, _llamafactory, _OF_THE_TRAINER),
    "ms-swift": Trainer("ms-swift", ".yaml", _ms_swift_start, _ms_swift, _OF_MS_SWIFT),
    "torchtune": Trainer("torchtune", ".yaml", _torchtune_start, _torchtune, _OF_TORCHTUNE),
}
