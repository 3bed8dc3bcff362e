"""Other estimators, put the same questions in the same run, offline.

A peer is asked about a case by what the case's config states (the facts that `check` reads), in the flags that the peer
has. It answers with bytes, or with why it cannot be asked. Programs run as processes of their own; formulas that are
not packages are written here from their published text. Models are known to the peers by ``config.json`` files in a
hub cache that is made for the run, so that nothing is downloaded.

What a peer's total contains decides what it is held against: a total of the whole process answers for the device, and
without the parts that the peer itself calls overhead or margin for the counters of PyTorch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

GIB = 2**30
MIB = 2**20
TIMEOUT_SECONDS = 120

# Names of torch dtypes -> bytes, for those that training stores.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Question(NamedTuple):
    """A case as a peer may be told it.

    model       hub id of the model in the catalogue; "" where the config's model is none of them
    config      its config.json
    facts       what the case's config states, by fact name
    parameters, trainable_parameters   as counted by memlint (0 where it has no estimate)
    counter     allocated, reserved or device: what was measured
    card_bytes  memory of the card; None where the source names none
    """

    model: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    parameters: int
    trainable_parameters: int
    counter: str
    card_bytes: int | None

    @property
    def devices(self) -> int:
        count = self.facts.get("device_count")
        return count if isinstance(count, int) and count > 0 else 1

    @property
    def strategy(self) -> str:
        return str(self.facts.get("parallelism.strategy", "none"))

    @property
    def tuning(self) -> str:
        return str(self.facts.get("tuning", "full"))

    @property
    def checkpointed(self) -> bool:
        return bool(self.facts.get("checkpointing", "none") != "none")


class Answer(NamedTuple):
    """``size_bytes`` is None where the peer cannot be asked, and ``reason`` says why."""

    size_bytes: int | None
    reason: str = ""


class Peer(NamedTuple):
    name: str
    about: str
    ask: Callable[[Question, Tools], Answer]


class Tools:
    """Where the peers' programs are, and a hub cache for them.

    folder   ``bin`` of an environment in which peers are installed; "" for that of this interpreter and the path
    scratch  an empty folder to write to
    """

    def __init__(self, folder: str, scratch: Path) -> None:
        self.folder = folder
        self.home = scratch / "hub"
        self.answers: dict[tuple[str, ...], tuple[int, str]] = {}

    def program(self, name: str) -> str | None:
        places = [self.folder] if self.folder else [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        for place in places:
            found = shutil.which(name, path=place)
            if found is not None:
                return found
        return None

    def cached(self, question: Question) -> None:
        """Put the model's config.json where huggingface_hub looks for it."""
        repository = self.home / "hub" / ("models--" + question.model.replace("/", "--"))
        snapshot = repository / "snapshots" / "0"
        if snapshot.is_dir():
            return
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0", encoding="utf-8")
        (snapshot / "config.json").write_text(json.dumps(dict(question.config)), encoding="utf-8")

    def run(self, command: list[str]) -> tuple[int, str]:
        """(exit code, standard output), or the last line of what it complained about."""
        key = tuple(command)
        if key not in self.answers:
            environment = {**os.environ, "HF_HOME": str(self.home), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env=environment,
                    timeout=TIMEOUT_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                self.answers[key] = (-1, f"no answer within {TIMEOUT_SECONDS} s")
            else:
                complaint = [line for line in done.stderr.splitlines() if line.strip()]
                text = done.stdout if done.stdout.strip().startswith("{") else (complaint or [""])[-1]
                self.answers[key] = (done.returncode, text)
        return self.answers[key]


def _plain_decoder(question: Question) -> str:
    """Why the case is not one device training a dense decoder; "" if it is."""
    if not question.model:
        return "the model has no hub id"
    if question.devices > 1:
        return "several devices"
    if question.facts.get("model_class", "causal_lm") != "causal_lm" or not question.config.get("vocab_size"):
        return "not a causal language model"
    return ""


def _lora_targets(question: Question) -> list[str]:
    targets = question.facts.get("lora.targets")
    if isinstance(targets, str):
        return ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return [str(target) for target in targets or ()]


# ------------------------------------------------------------------------------------------------- programs

_FITCHECK_OPTIMIZERS = {
    "adamw": "adamw",
    "adam": "adamw",
    "adamw_8bit": "adam8bit",
    "adam_8bit": "adam8bit",
    "sgd": "sgd",
}


def fitcheck(question: Question, tools: Tools) -> Answer:
    program = tools.program("fitcheck")
    if program is None:
        return Answer(None, "not installed")
    why = _plain_decoder(question)
    if why:
        return Answer(None, why)
    facts = question.facts
    optimizer = _FITCHECK_OPTIMIZERS.get(str(facts.get("optimizer", "adamw")))
    if optimizer is None:
        return Answer(None, f"optimizer {facts.get('optimizer')}")
    if question.tuning not in ("full", "lora"):
        return Answer(None, f"method {question.tuning}")
    precision = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[str(facts.get("compute_dtype", "bfloat16"))]
    card = question.card_bytes or 80 * GIB
    command = [program, question.model, "--json", "--precision", precision, "--optimizer", optimizer]
    command += ["--batch-size", str(facts["micro_batch_size"]), "--seq-len", str(facts["sequence_length"])]
    command += ["--vram-mib", str(card // MIB)]
    if facts.get("parameter_dtype") == "bfloat16" and question.tuning == "full" and optimizer == "adamw":
        command += ["--optimizer-dtype", "bf16"]
    if question.tuning == "lora":
        targets = ",".join(target.removesuffix("_proj") for target in _lora_targets(question))
        command += ["--lora-r", str(facts["lora.r"]), "--lora-targets", targets]
    else:
        command.append("--no-lora")
    if facts.get("quantization.bits") == 4:
        command += ["--quant", "nf4"] + (["--double-quant"] if facts.get("quantization.double") else [])
    elif facts.get("quantization.bits") == 8:
        command += ["--quant", "int8"]
    if question.checkpointed:
        command.append("--grad-checkpoint")
    if facts.get("attention") in ("sdpa", "flash"):
        command.append("--flash-attn")
    tools.cached(question)
    code, text = tools.run(command)
    if code == 2 or not text.startswith("{"):
        return Answer(None, text.strip()[:200] or "no answer")
    memory = json.loads(text)["memory_mib"]
    total = memory["total"] if question.counter == "device" else memory["total"] - memory["overhead"]
    return Answer(round(total * MIB))


_CANIFINETUNE_OPTIMIZERS = {
    ("adamw", "fused"): "adamw_torch_fused",
    ("adamw", "foreach"): "adamw_torch",
    ("adamw", "loop"): "adamw_torch",
    ("adamw_8bit", ""): "adamw_8bit",
    ("adafactor", ""): "adafactor",
    ("sgd", ""): "sgd",
}


def canifinetune(question: Question, tools: Tools) -> Answer:
    program = tools.program("canifinetune")
    if program is None:
        return Answer(None, "not installed")
    why = _plain_decoder(question)
    if why:
        return Answer(None, why)
    facts = question.facts
    if question.card_bytes is None:
        return Answer(None, "its answer depends on the card, which is not known")
    kind = str(facts.get("optimizer", "adamw"))
    way = str(facts.get("optimizer_implementation", "")) if kind == "adamw" else ""
    optimizer = _CANIFINETUNE_OPTIMIZERS.get((kind, way))
    if optimizer is None:
        return Answer(None, f"optimizer {kind}")
    if question.tuning not in ("full", "lora"):
        return Answer(None, f"method {question.tuning}")
    quantised = facts.get("quantization.bits") == 4
    method = "qlora" if quantised else question.tuning
    dtype = str(facts.get("frozen_dtype") or facts.get("parameter_dtype") or "bfloat16")
    command = [program, "estimate", "--model", question.model, "--offline", "--json", "--method", method]
    command += ["--gpu-vram-gb", f"{question.card_bytes / GIB:.2f}", "--optimizer", optimizer]
    command += ["--seq-len", str(facts["sequence_length"]), "--micro-batch-size", str(facts["micro_batch_size"])]
    command += ["--base-dtype", {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]]
    command += ["--quantization", "nf4_double_quant" if quantised else "none"]
    command.append("--gradient-checkpointing" if question.checkpointed else "--no-gradient-checkpointing")
    command += ["--attn", {"flash": "flash_attention_2"}.get(str(facts.get("attention")), str(facts.get("attention")))]
    if method != "full":
        whole = any(target.endswith(("gate_proj", "up_proj", "down_proj")) for target in _lora_targets(question))
        command += ["--lora-rank", str(facts["lora.r"]), "--target-scope", "all_linear" if whole else "attention"]
    tools.cached(question)
    code, text = tools.run(command)
    if not text.startswith("{"):
        return Answer(None, text.strip()[:200] or f"exit code {code}")
    memory = json.loads(text)["memory"]
    return Answer(round((memory["total_estimated_gb"] - memory["safety_margin_gb"]) * GIB))


# What `accelerate estimate-memory` does after it has asked the hub for the model's config.
_ACCELERATE = """
import json, sys
import torch, transformers
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
with init_empty_weights():
    model = transformers.AutoModel.from_config(config, dtype=torch.float32)
size, _ = calculate_maximum_sizes(model)
print(json.dumps({"bytes": max(estimate_training_usage(size, sys.argv[2]).values())}))
"""


def accelerate(question: Question, tools: Tools) -> Answer:
    if not question.model:
        return Answer(None, "the model has no hub id")
    if question.devices > 1:
        return Answer(None, "several devices")
    if question.tuning != "full":
        return Answer(None, f"method {question.tuning}")
    tools.cached(question)
    dtype = "float32" if question.facts.get("compute_dtype", "float32") == "float32" else "float16"
    text = ""
    for python in dict.fromkeys((tools.program("python") or sys.executable, sys.executable)):
        _, text = tools.run([python, "-c", _ACCELERATE, question.model, dtype])
        if text.startswith("{"):
            return Answer(int(json.loads(text)["bytes"]))
    return Answer(None, "not installed" if "No module named" in text else text.strip()[:200] or "no answer")


# ------------------------------------------------------------------------------------------------- formulas


def cookbook(question: Question, tools: Tools) -> Answer:
    """EleutherAI's transformer memory calculator, with what its path for Hugging Face models reads from a config.

    Formulas of https://github.com/EleutherAI/cookbook/blob/main/calc/calc_transformer_mem.py: two linear layers in an
    MLP, no grouped queries; Adam with fp32 copies; activations of table 2 of arXiv 1910.02054; ZeRO divides by devices.
    """
    config = question.config
    if question.tuning != "full":
        return Answer(None, f"method {question.tuning}")
    if not all(name in config for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")):
        return Answer(None, "its config has other names")
    if question.facts.get("optimizer") not in ("adam", "adamw"):
        return Answer(None, f"optimizer {question.facts.get('optimizer')}")
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    length, batch = question.facts["sequence_length"], question.facts["micro_batch_size"]
    tensor = int(question.facts.get("parallelism.tensor") or 1)
    pipeline = int(question.facts.get("parallelism.pipeline") or 1)
    expansion = config.get("intermediate_size", 4 * hidden) / hidden
    parameters = (
        2 * config["vocab_size"] * hidden
        + hidden * length
        + 8 * hidden * layers
        + 2 * hidden
        + 4 * layers * hidden * hidden
        + 2 * layers * hidden * hidden * expansion
    )
    stage = {"zero": int(question.facts.get("parallelism.zero_stage") or 0), "fsdp1": 3, "fsdp2": 3}.get(
        question.strategy, 0
    )
    devices = question.devices
    low = 2 if question.facts.get("compute_dtype") in ("bfloat16", "float16") else 4
    weights = parameters * low / (tensor * pipeline) / (devices if stage == 3 else 1)
    gradients = parameters * 4 / (devices if stage >= 2 else 1)
    states = parameters * 12 / (devices if stage >= 1 else 1)
    if low == 4:
        states = parameters * 8 / (devices if stage >= 1 else 1)  # fp32 weights need no fp32 copy
    buffers = 5e8 * low if stage >= 1 and devices > 1 else 0
    buffers += 1e9 * low if stage == 3 and devices > 1 else 0
    row = length * batch * hidden * layers
    activations = row * (16 * low + 2)
    if not question.checkpointed:
        activations += row * (2 * low + 1) * heads * length / hidden
    return Answer(round(weights + gradients + states + buffers + activations))


def deepspeed(question: Question, tools: Tools) -> Answer:
    """DeepSpeed's estimators of ZeRO's states, as its ``estimate_zero2_model_states_mem_needs`` and
    ``estimate_zero3_model_states_mem_needs`` compute them (deepspeed/runtime/zero). FSDP shards as stage 3 does.
    """
    stage = {"zero": int(question.facts.get("parallelism.zero_stage") or 0), "fsdp1": 3, "fsdp2": 3}.get(
        question.strategy, 0
    )
    if stage < 2:
        return Answer(None, "no ZeRO stage 2 or 3, nor FSDP")
    if not question.parameters:
        return Answer(None, "the number of parameters is not known")
    if question.tuning != "full":
        return Answer(None, f"method {question.tuning}")
    parameters, devices = question.parameters, question.devices
    if stage == 2:
        if question.facts.get("parallelism.offload_optimizer"):
            return Answer(2 * parameters)
        return Answer(round(2 * parameters + 18 * parameters / devices))
    config = question.config
    largest = 4 * int(config.get("vocab_size", 0)) * int(config.get("hidden_size", config.get("dim", 0)))
    if question.facts.get("parallelism.cpu_offload") or question.facts.get("parallelism.offload_parameters"):
        return Answer(largest)
    if question.facts.get("parallelism.offload_optimizer"):
        return Answer(round(largest + 2 * parameters / devices))
    return Answer(round(largest + 18 * parameters / devices))


def sixteen(question: Question, tools: Tools) -> Answer:
    """16 bytes per trained parameter, the stored bytes of the others, over the devices that share them."""
    if not question.parameters:
        return Answer(None, "the number of parameters is not known")
    frozen = question.parameters - question.trainable_parameters
    bits = question.facts.get("quantization.bits")
    width = bits / 8 if isinstance(bits, int) else BYTES.get(str(question.facts.get("frozen_dtype")), 2)
    shared = 1
    if question.strategy in ("fsdp1", "fsdp2") or question.facts.get("parallelism.zero_stage") == 3:
        shared = question.devices
    return Answer(round((16 * question.trainable_parameters + frozen * width) / shared))


PEERS = (
    Peer("fitcheck-llm", "https://pypi.org/project/fitcheck-llm/ as a program", fitcheck),
    Peer("canifinetune", "https://pypi.org/project/canifinetune/ as a program", canifinetune),
    Peer("accelerate", "the functions of `accelerate estimate-memory`, training with Adam, as a program", accelerate),
    Peer("EleutherAI cookbook", "the formulas of its calc_transformer_mem.py", cookbook),
    Peer("DeepSpeed", "the formulas of its ZeRO-2 and ZeRO-3 estimators", deepspeed),
    Peer("16 B per parameter", "16 bytes per trained parameter, stored bytes of the others", sixteen),
)
