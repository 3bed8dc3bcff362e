"""Family torchtune: recipes. Components' Python names say model, size, adapters, quantisation, loss and optimizer."""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.accelerate import truth
from memlint.dialects.spec import ASSUMED, Fact, Name, TrainingSpec
from memlint.documents.node import Document, Edit, Node

_VERSION = "torchtune 0.6"
_MODELS = "torchtune.models."

# torchtune 0.6, models/*/_model_builders.py: builders whose sizes are those of a published model.
_PUBLISHED = {
    "llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama2_13b": "meta-llama/Llama-2-13b-hf",
    "llama2_70b": "meta-llama/Llama-2-70b-hf",
    "code_llama2_7b": "codellama/CodeLlama-7b-hf",
    "code_llama2_13b": "codellama/CodeLlama-13b-hf",
    "code_llama2_70b": "codellama/CodeLlama-70b-hf",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "llama3_1_8b": "meta-llama/Llama-3.1-8B",
    "llama3_1_70b": "meta-llama/Llama-3.1-70B",
    "llama3_1_405b": "meta-llama/Llama-3.1-405B",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B",
    "llama3_2_3b": "meta-llama/Llama-3.2-3B",
    "llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "gemma_2b": "google/gemma-2b",
    "gemma_7b": "google/gemma-7b",
    "gemma2_2b": "google/gemma-2-2b",
    "gemma2_9b": "google/gemma-2-9b",
    "gemma2_27b": "google/gemma-2-27b",
    "mistral_7b": "mistralai/Mistral-7B-v0.1",
    "phi3_mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi4_14b": "microsoft/phi-4",
    "qwen2_0_5b": "Qwen/Qwen2-0.5B",
    "qwen2_1_5b": "Qwen/Qwen2-1.5B",
    "qwen2_7b": "Qwen/Qwen2-7B",
    "qwen2_5_0_5b": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_1_5b": "Qwen/Qwen2.5-1.5B",
    "qwen2_5_3b": "Qwen/Qwen2.5-3B",
    "qwen2_5_7b": "Qwen/Qwen2.5-7B",
    "qwen2_5_14b": "Qwen/Qwen2.5-14B",
    "qwen2_5_32b": "Qwen/Qwen2.5-32B",
    "qwen2_5_72b": "Qwen/Qwen2.5-72B",
}
# Builders that take the sizes themselves, and what they build.
_TYPES = {
    **dict.fromkeys(("llama2", "llama3", "llama3_1", "llama3_2", "phi3"), "llama"),
    "mistral": "mistral",
    "qwen2": "qwen2",
    "gemma": "gemma",
    "gemma2": "gemma2",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "embed_dim": "hidden_size",
    "head_dim": "head_dim",
    "intermediate_dim": "intermediate_size",
    "max_seq_len": "max_position_embeddings",
    "tie_word_embeddings": "tie_word_embeddings",
}
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


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From the components' names to the facts of a language model."""
    recipe, distributed = _recipe(spec)
    found = _model(spec, "model")
    method = _method(spec, recipe)
    adapted = _adapters(spec)
    _precision(spec)
    _optimizer(spec)
    _loss(spec)
    _checkpointing(spec)
    if "gemma2" in str(spec.get("model", "")):
        lm.put(spec, "attention", "eager", reason=f"{_VERSION}: Gemma2Attention caps scores between products")
    if truth(spec.get("compile")) or isinstance(spec.get("compile"), dict):
        lm.put(spec, "compile", True, spec.fact("compile"))
    _evaluation(spec)
    _processes(spec, recipe, distributed)
    device = lm.setting(spec, "device")
    on_cpu = f"device: {device} is no GPU" if isinstance(device, str) and not device.startswith("cuda") else ""
    keys = {
        "micro_batch_size": "batch_size",
        "sequence_length": "tokenizer.max_seq_len",
        "compute_dtype": "dtype",
        "optimizer": "optimizer._component_",
    }
    return lm.finish(spec, (on_cpu, method, found, adapted, _unbounded(spec)), keys)


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
        fact = spec.fact(key)
        if fact is not None and fact.node is not None:
            return "", True
    stem = spec.document.path.replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    words = stem.split("_")
    if _names_one_device(stem):
        return stem, False
    # The recipes that torchtune ships: 8B_full.yaml is distributed, and the other is 8B_full_single_device.yaml.
    sized = any(word == "mini" or (word[-1:] == "B" and word[:-1].replace(".", "").isdigit()) for word in words)
    ending = words[-1] in ("full", "lora", "qlora", "dora", "dpo", "distributed", "multinode")
    return stem, "distributed" in words or (sized and ending)


def _names_one_device(stem: str) -> bool:
    """Whether a file's name is one of a recipe for a single device."""
    return "single" in stem.split("_") or stem.endswith("low_memory")


_OTHER_DEGREES: tuple[Name, ...] = ("parallelism.tensor", "parallelism.context", "parallelism.replicas")


def _processes(spec: TrainingSpec, recipe: str, distributed: bool) -> None:
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


def _method(spec: TrainingSpec, recipe: str) -> str:
    """What is trained for, and why that is not known."""
    loss = spec.fact(lm.HYPER + "loss_class")
    name = str(loss.value) if loss is not None else ""
    if lm.HYPER + "policy_model" in spec or "PPO" in name:
        return "PPO: what generation and its four models hold between steps is not known"
    if lm.HYPER + "quantizer" in spec or "qat" in recipe:
        return "quantisation-aware training: what its fake quantisation keeps is not known"
    lm.put(spec, "method", "sft", reason="the loss is of single sequences")
    teacher = spec.fact(lm.HYPER + "teacher_model")
    if teacher is not None:
        config, why = _config(teacher.value, {})
        if config is None:
            return f"{teacher.key}: {why}"
        dtype = spec.get("parameter_dtype", "bfloat16")
        lm.put(spec, "helper_models", [{"model": teacher.value, "config": config, "dtype": dtype}], teacher)
        return "knowledge distillation: what the loss keeps of the teacher's logits is not known"
    if name.rsplit(".", 1)[-1] in ("DPOLoss", "RSOLoss", "SimPOLoss", "IPOLoss"):
        lm.put(spec, "method", "dpo", loss)
        lm.put(spec, "sequences_per_sample", 2, loss, "a chosen and a rejected answer per sample")
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


def _config(component: Any, sizes: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """(the config of the model that a builder makes, "") or (None, why it is not known)."""
    text = str(component)
    if not text.startswith(_MODELS):
        return None, f"{text} is not one of torchtune's own models"
    name, _ = _builder(text)
    if "vision" in text:
        return None, f"{name}: the image encoder beside the decoder is not known"
    published = name.removesuffix("_instruct").removesuffix("_base")
    if published in _PUBLISHED:
        # torchtune writes Phi as it writes LLaMA, with separate projections; none of its models but Gemma has a window.
        changes: dict[str, Any] = {"model_type": "llama"} if published.startswith("phi") else {}
        if not published.startswith("gemma"):
            changes["sliding_window"] = None
        if published.startswith("qwen2") and not name.endswith("_base"):
            changes["max_position_embeddings"] = 32768  # rows of its rotary table, where the hub says 131072
        config = native.catalogued(_PUBLISHED[published], **changes)
        return (config, "") if config is not None else (None, f"{_PUBLISHED[published]} is not in the catalogue")
    if name in _TYPES and all(sizes.get(size) for size in ("vocab_size", "num_layers", "num_heads", "embed_dim")):
        return _own(name, sizes), ""
    return None, f"{text} states no sizes"


def _own(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes that a config hands to the builder itself."""
    config = {_SIZES[size]: value for size, value in sizes.items() if value is not None}
    if "intermediate_size" not in config:  # torchtune.modules.common_utils.scale_hidden_dim_for_mlp
        inner = int(2 * 4 * config["hidden_size"] / 3)
        config["intermediate_size"] = -(-inner // 256) * 256
    return {"model_type": _TYPES[name], "sliding_window": None, **config}


def _model(spec: TrainingSpec, key: str) -> str:
    fact = spec.fact("model")
    if fact is None:
        return lm.not_stated(spec, f"{key}._component_", "_component_")
    sizes = {name: lm.setting(spec, name) for name in _SIZES}
    config, why = _config(fact.value, sizes)
    spec.model_name = str(fact.value).rsplit(".", 1)[-1]
    if config is None:
        return f"{fact.key}: {why}"
    native.described(spec, config, fact, f"{_VERSION}: {fact.value}")
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


def _unbounded(spec: TrainingSpec) -> str:
    """Why the longest sample is not known: tokenizers cut nothing unless they are told to."""
    if spec.get("sequence_length") is not None or lm.gap(spec, "max_seq_len") is not None:
        return ""
    written = spec.fact("sequence_length")
    what = "is null" if written is not None and written.node is not None else "is not stated"
    return f"tokenizer.max_seq_len {what}: the longest sample is the data's, which no file states"


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
