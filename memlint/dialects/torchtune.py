"""Family torchtune: recipes. Components' Python names say model, size, adapters, quantisation, loss and optimizer."""

from __future__ import annotations

import re
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.torchtune import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, Fact, Name, OnTop, TrainingSpec, UnknownModel

_VERSION = "torchtune 0.6"
_MODELS = "torchtune.models."

# Arguments of builders that a recipe may state.
_SIZES = (
    *("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim", "head_dim", "intermediate_dim"),
    *("max_seq_len", "tie_word_embeddings"),
)
_LORA_NAMES = {"output_proj": "o_proj"}
_PERCEPTRON = ("gate_proj", "up_proj", "down_proj")
_DISTRIBUTED_KEYS: tuple[Name, ...] = (
    "parallelism.cpu_offload",
    "parallelism.reshard_after_forward",
    "parallelism.tensor",
    "parallelism.context",
    "parallelism.shard",
    "parallelism.replicas",
    lm.HYPER + "custom_sharded_layers",
)


def recognise(document: Document, root: Node) -> bool:
    """Some component is torchtune's own: others use ``_component_`` as well."""
    if not isinstance(root.value, dict):
        return False
    for node in root.value.values():
        name = node.get("_component_") if node.is_mapping else None
        if name is not None and str(name.value).startswith("torchtune."):
            return True
    return False


# ---------------------------------------------------------------------------------------------- the recipe


def _recipe(spec: TrainingSpec) -> tuple[str, bool]:
    """(the recipe, whether it shards over several processes), by the command, the keys, then the file's name."""
    command = spec.launch
    words = [str(word.value) for word in command.arguments] if command is not None else []
    name = next((word for word in words if word != "run" and "=" not in word), "")
    name = name.rsplit("/", 1)[-1].removesuffix(".py")
    if name:
        return name, "distributed" in name
    for key in _DISTRIBUTED_KEYS:
        fact = spec.stated(key)
        if fact is not None and fact.node is not None:
            return "", True
    stem = spec.document.path.replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    words = stem.split("_")
    if _names_one_device(stem):
        return stem, False
    told = {found[1] == "distributed" for found in _TOLD.finditer(spec.document.text)}
    if len(told) == 1:
        return stem, told.pop()
    # The recipes that torchtune ships: 8B_full.yaml is distributed, and the other is 8B_full_single_device.yaml.
    sized = any(word == "mini" or (word[-1:] == "B" and word[:-1].replace(".", "").isdigit()) for word in words)
    ending = words[-1] in ("full", "lora", "qlora", "dora", "dpo", "distributed", "multinode")
    return stem, "distributed" in words or (sized and ending)


# Names of recipes (``full_finetune_distributed``): in the comment of the config that this one was made from, or what a
# logger is told that this is.
_TOLD = re.compile(r"\b(?:full|lora|qat|dev|knowledge)_\w{0,60}?(distributed|single_device)\b")


def _names_one_device(stem: str) -> bool:
    """Whether a file's name is one of a recipe for a single device."""
    return "single" in stem.split("_") or stem.endswith("low_memory")


_OTHER_DEGREES: tuple[Name, ...] = ("parallelism.tensor", "parallelism.context", "parallelism.replicas")


def _processes(spec: TrainingSpec) -> None:
    recipe, distributed = _recipe(spec)
    per_node, nodes = spec.fact(lm.HYPER + "nproc_per_node"), spec.fact(lm.HYPER + "nnodes")
    count: int | None = None
    if per_node is not None:
        several, machines = native.number(per_node.value), native.number(nodes.value) if nodes is not None else 1
        count = several * machines if several is not None and machines is not None else None
    elif spec.launch is not None and not distributed:
        count = 1
    if nodes is not None and native.number(nodes.value):
        lm.put(spec, "machines", native.number(nodes.value), nodes)
    for name in ("parallelism.shard", "parallelism.replicas"):
        if spec.get(name) is None:
            spec.facts.pop(name, None)
    if not distributed:
        alone = spec.launch is not None or _names_one_device(recipe)
        reason = f"{recipe} is a recipe for one device" if alone else "no key of a distributed recipe is there"
        native.divided(spec, "none", count, reason=reason)
        tried = spec.tried("device_count")
        if not alone and tried is not None and tried.value > 1:  # ``--gpu "NAME x8"``: it is for the distributed one
            lm.put(spec, "parallelism.strategy", "fsdp2", tried)
            lm.put(spec, "parallelism.reduce_dtype", spec.get("parameter_dtype"), tried)
        return
    if count is not None and "parallelism.shard" not in spec:
        others = [spec.get(name, 1) or 1 for name in _OTHER_DEGREES]
        shard = max(1, count // (others[0] * others[1] * others[2]))
        lm.put(spec, "parallelism.shard", shard, per_node, "the devices that are left")
    lm.put(spec, "parallelism.reduce_dtype", spec.get("parameter_dtype"), spec.fact("parameter_dtype"))
    native.divided(spec, "fsdp2", count, per_node, f"{_VERSION}: distributed recipes shard with FSDP2")


def _method(spec: TrainingSpec) -> str:
    """What is trained for, and why that is not known."""
    loss = spec.fact(lm.HYPER + "loss_class")
    name = str(loss.value) if loss is not None else ""
    if lm.HYPER + "policy_model" in spec or "PPO" in name:
        return "PPO: what generation and its four models hold between steps is not known"
    if lm.HYPER + "quantizer" in spec or "qat" in _recipe(spec)[0]:
        return OnTop("quantisation-aware training: what its fake quantisation keeps is not known")
    lm.put(spec, "method", "sft", reason="the loss is of single sequences")
    teacher = spec.fact(lm.HYPER + "teacher_model")
    if teacher is not None:
        try:
            _described(teacher.value, {})
        except UnknownModel as error:
            return f"{teacher.key}: {error}"
        return OnTop("knowledge distillation: what the loss keeps of the teacher's logits is not known")
    if name.rsplit(".", 1)[-1] in ("DPOLoss", "RSOLoss", "SimPOLoss", "IPOLoss"):
        lm.put(spec, "method", "dpo", loss)
        kind = "adapter_off" if "lora" in str(spec.get("model", "")) else "copy"
        lm.put(spec, "reference_model", "none" if "SimPO" in name else kind, loss)
    return ""


# ---------------------------------------------------------------------------------------------- the model


def _builder(component: str) -> tuple[str, str]:
    """(what is built, ``lora``, ``qlora`` or "" before it)."""
    name = component.rsplit(".", 1)[-1]
    for prefix in ("qlora", "lora"):
        if name.startswith(prefix + "_"):
            return name.removeprefix(prefix + "_"), prefix
    return name, ""


def _described(component: Any, given: dict[str, Any]) -> Decoder:
    """What a builder makes of what it is given. Raises UnknownModel."""
    text = str(component)
    if not text.startswith(_MODELS):
        raise UnknownModel(f"{text} is not one of torchtune's own models")
    name, _ = _builder(text)
    if "vision" in text:
        raise UnknownModel(f"{name}: the image encoder beside the decoder is not known")
    return decoder(name, given)


def _model(spec: TrainingSpec) -> str:
    fact = spec.fact("model")
    if fact is None:
        return lm.not_stated(spec, "model._component_", "_component_")
    spec.model_name = str(fact.value).rsplit(".", 1)[-1]
    try:
        made = _described(fact.value, {name: lm.setting(spec, name) for name in _SIZES})
    except UnknownModel as error:
        return f"{fact.key}: {error}"
    native.describe(spec, made, fact, f"{_VERSION}: {fact.value}")
    return ""


def _adapters(spec: TrainingSpec) -> str:
    """LoRA, DoRA and QLoRA, as the builders with these names make them."""
    fact = spec.fact("model")
    prefix = _builder(str(fact.value))[1] if fact is not None else ""
    if fact is None or not prefix:
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    lm.put(spec, "tuning", "lora", fact)
    if lm.switched(spec, "use_dora"):
        lm.put(spec, "tuning", "dora", spec.fact(lm.HYPER + "use_dora"))
    stated = spec.fact(lm.HYPER + "lora_attn_modules")
    if stated is None or not stated.value:
        return lm.not_stated(spec, "model.lora_attn_modules", "lora_attn_modules")
    targets = [_LORA_NAMES.get(name, name) for name in stated.value]
    if lm.switched(spec, "apply_lora_to_mlp"):
        targets += _PERCEPTRON
    if lm.switched(spec, "apply_lora_to_output"):
        targets.append("lm_head")
    lm.put(spec, "lora.targets", targets, stated)
    base = spec.fact(lm.HYPER + "quantize_base")
    origin = fact if prefix == "qlora" else base if base is not None and truth(base.value) else None
    if origin is not None:
        lm.put(spec, "quantization.bits", 4, origin)
        lm.put(spec, "quantization.kind", "nf4", origin)
        lm.put(spec, "quantization.double", True, origin, "torchao: NF4Tensor keeps its scales in 8 bits")
    return ""


# ---------------------------------------------------------------------------------------------- the rest


def _precision(spec: TrainingSpec) -> None:
    """dtype is that of everything: there is no autocast."""
    fact = spec.fact("parameter_dtype")
    if fact is None:
        return
    for name in ("compute_dtype", "frozen_dtype", "gradient_dtype"):
        lm.put(spec, name, fact.value, fact)
    if spec.get("tuning", "full") != "full":
        lm.put(spec, "lora.dtype", fact.value, fact)
    lm.put(spec, "autocast", False, reason=f"{_VERSION}: recipes train in dtype itself")


def _optimizer(spec: TrainingSpec) -> None:
    fused, foreach = spec.fact(lm.HYPER + "optimizer_fused"), spec.fact(lm.HYPER + "optimizer_foreach")
    native.optimizer_class(spec, spec.fact(lm.HYPER + "optimizer_class"))
    if spec.get("optimizer_library") != "torch":
        return
    if fused is not None and truth(fused.value):
        lm.put(spec, "optimizer_implementation", "fused", fused)
    elif foreach is not None and not truth(foreach.value):
        lm.put(spec, "optimizer_implementation", "loop", foreach)


def _loss(spec: TrainingSpec) -> None:
    """Chunked losses make float32 logits piece by piece."""
    stated = spec.fact(lm.HYPER + "loss_class")
    name = str(stated.value).rsplit(".", 1)[-1] if stated is not None else ""
    if name in ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss", "ForwardKLWithChunkedOutputLoss"):
        lm.put(spec, "loss", "chunked", stated)
        if name == "LinearCrossEntropyLoss":
            lm.put(spec, "head_in_loss", True, stated)
        chunks = spec.fact(lm.HYPER + "num_output_chunks")
        if chunks is not None and chunks.value:
            lm.put(spec, "loss_chunks", chunks.value, chunks)
    elif stated is not None:
        lm.put(spec, "loss", "full", stated)
        if spec["loss"] == "chunked":
            lm.put(spec, "loss_chunks", 8, spec.fact("loss"))
    if spec.get("loss") == "full" and spec.does("torchtune.names_logits"):
        lm.put(spec, "outputs_kept", "float32", reason="torchtune before 0.3: recipes name the logits")


def _checkpointing(spec: TrainingSpec) -> None:
    """``ac_mode`` counts where the older switch is off."""
    mode, option = spec.fact(lm.HYPER + "ac_mode"), spec.fact(lm.HYPER + "ac_option")
    lm.put(spec, "checkpointing_reentrant", False, reason=f"{_VERSION}: CheckpointImpl.NO_REENTRANT")
    if spec.get("checkpointing") == "full" or mode is None or mode.value is None:
        return
    every = native.number(option.value) if option is not None else None
    if mode.value == "full":
        lm.put(spec, "checkpointing", "full", mode)
    elif every is not None:
        lm.put(spec, "checkpointing", "full" if every == 1 else "every", option)
        lm.put(spec, "checkpointing_every", every, option)
    else:
        lm.put(spec, "checkpointing", "selective", mode)


def _attention(spec: TrainingSpec) -> None:
    if "gemma2" in str(spec.get("model", "")):
        lm.put(spec, "attention", "eager", reason=f"{_VERSION}: Gemma2Attention caps scores between products")


def _compiled(spec: TrainingSpec) -> None:
    if truth(spec.get("compile")) or isinstance(spec.get("compile"), dict):
        lm.put(spec, "compile", True, spec.fact("compile"))


def _on_cpu(spec: TrainingSpec) -> str:
    device = lm.setting(spec, "device")
    return f"device: {device} is no GPU" if isinstance(device, str) and not device.startswith("cuda") else ""


def _evaluation(spec: TrainingSpec) -> None:
    """Only where a data set to evaluate on is named, and how often."""
    every, data = spec.fact(lm.HYPER + "run_val_every_n_steps"), spec.fact(lm.HYPER + "dataset_val")
    if every is None or not every.value or data is None:
        spec.facts.pop("evaluation_batch_size", None)
        return
    if "evaluation_batch_size" not in spec and "micro_batch_size" in spec:
        batch = spec.fact("micro_batch_size")
        lm.put(
            spec, "evaluation_batch_size", spec["micro_batch_size"], batch, "torchtune: batch_size_val is batch_size"
        )
    length = spec.fact("sequence_length")
    if length is not None and length.value:
        lm.put(spec, "evaluation_sequence_length", length.value, length)
    reason = "torchtune: only the loss of an evaluation is kept"
    spec.facts["evaluation_accumulates"] = Fact("evaluation_accumulates", False, ASSUMED, reason=reason)


# Tokens at which data sets cut by themselves before 0.3 (torchtune/datasets).
_OWN_LENGTHS = {
    **dict.fromkeys(("alpaca_dataset", "alpaca_cleaned_dataset"), 512),
    **dict.fromkeys(("slimorca_dataset", "stack_exchanged_paired_dataset"), 1024),
}


def _cut(spec: TrainingSpec) -> None:
    """Tokenizers cut samples; before 0.3 the data sets did, of which some have a length of their own."""
    stated = spec.stated("sequence_length")
    if stated is not None and stated.value:
        return
    of_data, name = spec.fact(lm.HYPER + "dataset_max_seq_len"), spec.fact(lm.HYPER + "dataset")
    if of_data is not None:
        if of_data.value:
            lm.put(spec, "sequence_length", of_data.value, of_data)
        return
    own = None if name is None else _OWN_LENGTHS.get(str(name.value).rsplit(".", 1)[-1])
    if own is not None and spec.does("torchtune.data_cuts_samples"):
        lm.put(spec, "sequence_length", own, name, f"torchtune before 0.3: this data set cuts at {own:,} tokens")


def _quantised(spec: TrainingSpec) -> str:
    """Before 0.2 a weight is compared with all sixteen values of NF4 at once, on the card, when it is loaded."""
    if spec.get("quantization.kind") != "nf4" or not spec.does("torchtune.compares_whole_weights"):
        return ""
    return OnTop("what torchtune before 0.2 takes to quantise the weights that it loads is not known")


def _unbounded(spec: TrainingSpec) -> str:
    """Why the longest sample is not known: tokenizers cut nothing unless they are told to."""
    if spec.get("sequence_length") is not None or lm.gap(spec, "max_seq_len") is not None:
        return ""
    written = spec.fact("sequence_length")
    what = "is null" if written is not None and written.node is not None else "is not stated"
    return OnTop(f"tokenizer.max_seq_len {what}: the longest sample is the data's, which no file states")


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_on_cpu),
        Step(_model, native.MODEL_FACTS),
        Step(_method, ("method", "reference_model")),
        Step(lm.pairs, ("sequences_per_sample",)),
        Step(_adapters, (*lm.ADAPTER_FACTS, *lm.QUANTIZATION_FACTS)),
        Step(_precision, ("compute_dtype", "frozen_dtype", "gradient_dtype", "lora.dtype", "autocast")),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_loss, ("loss", "loss_chunks", "head_in_loss", "outputs_kept")),
        Step(_checkpointing, ("checkpointing", "checkpointing_every", "checkpointing_reentrant")),
        Step(_attention, ("attention",)),
        Step(_compiled, ("compile",)),
        Step(_evaluation, lm.EVALUATION_FACTS),
        Step(_processes, (*native.DEVICES, "machines"), ("parallelism.",)),
        Step(_cut, ("sequence_length",)),
        Step(_quantised),
        Step(_unbounded),
    ),
    told=("on_cpu", "method", "model", "adapters", "quantised", "unbounded"),
    keys={
        "micro_batch_size": "batch_size",
        "sequence_length": "tokenizer.max_seq_len",
        "compute_dtype": "dtype",
        "optimizer": "optimizer._component_",
    },
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Components are named by their classes; recipes take no float16 and no autocast."""
    if fact in ("compute_dtype", "parameter_dtype"):
        return lm.write(spec, "parameter_dtype", value) if fact == "compute_dtype" and value != "float16" else None
    if fact in ("autocast", "frozen_dtype", "gradient_dtype", "attention", "attention_tokens", "fused_kernels"):
        return []
    if fact == "optimizer":
        name = native.class_of(value)
        return lm.write(spec, lm.HYPER + "optimizer_class", name) if name else []
    if fact == "optimizer_implementation":
        if spec.get("optimizer_library") != "torch" or value not in ("fused", "foreach"):
            return []
        return lm.write(spec, lm.HYPER + "optimizer_fused", value == "fused")
    if fact == "loss":
        name = "torchtune.modules.loss.CEWithChunkedOutputLoss"
        return lm.write(spec, lm.HYPER + "loss_class", name) if value == "chunked" else []
    if fact == "gradient_accumulation_steps" and value != 1 and spec.get("optimizer_in_backward"):
        return []  # the recipes refuse both together
    if fact == "optimizer_in_backward" and value and spec.get("gradient_accumulation_steps", 1) != 1:
        return []
    if fact == "activation_offloading" and value and spec.get("checkpointing") != "full":
        return []
    if fact == "evaluation_batch_size" and fact not in spec:
        return []
    return None
