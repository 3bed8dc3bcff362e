"""Family litgpt: its finetuning and pretraining commands, and the files that hold their arguments."""

from __future__ import annotations

from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.decoder import Decoder
from memlint.architectures.litgpt import decoder, published
from memlint.dialects import language_model as lm
from memlint.dialects import native
from memlint.dialects.accelerate import truth
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, Fact, Name, OnTop, TrainingSpec, UnknownModel

_VERSION = "litgpt 0.5"
_CHUNK = 128  # tokens: finetune/*.py, lm_head_chunk_size
_PRECISIONS = {  # -> (dtype of weights, dtype of products)
    "bf16-true": ("bfloat16", "bfloat16"),
    "16-true": ("float16", "float16"),
    "32-true": ("float32", "float32"),
    "64-true": ("float64", "float64"),
    "bf16-mixed": ("float32", "bfloat16"),
    "16-mixed": ("float32", "float16"),
}
_QUANTIZATIONS = {  # -> (bits, kind, whether scales are quantised too)
    "bnb.nf4": (4, "nf4", False),
    "bnb.nf4-dq": (4, "nf4", True),
    "bnb.fp4": (4, "fp4", False),
    "bnb.fp4-dq": (4, "fp4", True),
    "bnb.int8": (8, "int8", False),
    "bnb.int8-training": (8, "int8", False),
}
_TARGETS = {
    "lora_query": ("q_proj",),
    "lora_key": ("k_proj",),
    "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",),
    "lora_head": ("lm_head",),
}
_GATED = ("gate_proj", "up_proj", "down_proj")
# Names of litgpt's own -> the same sizes on the hub.
_NAMES = {
    "micro-llama-300M": "keeeeenw/MicroLlama",
    "tiny-llama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "tiny-llama-1.1b-chat": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
}


def _command(spec: TrainingSpec) -> str:
    """finetune_lora, finetune_full, finetune_adapter, finetune_adapter_v2 or pretrain: as called, else by the keys."""
    if spec.launch is not None:
        words = [str(word.value) for word in spec.launch.arguments[:2]]
        if words and words[0].startswith(("finetune_", "pretrain")):
            return words[0]
        if words and words[0] == "finetune":  # finetune lora, of earlier releases; finetune alone is with LoRA
            return f"finetune_{words[1]}" if words[1:] and words[1] in ("full", "lora", "adapter") else "finetune_lora"
    of_pretraining = (spec.stated(lm.HYPER + name) for name in ("model_name", "model_config", "initial_checkpoint_dir"))
    if any(fact is not None and fact.node is not None for fact in of_pretraining):
        return "pretrain"
    root = spec.root.value if isinstance(spec.root.value, dict) else {}
    if any(name.startswith("lora_") for name in root):
        return "finetune_lora"
    return "finetune_full"


def _pretraining_defaults(spec: TrainingSpec) -> None:
    name: Name
    if _command(spec) != "pretrain":
        return
    for name, value in (("micro_batch_size", 4), ("global_batch_size", 512), (lm.HYPER + "devices", "auto")):
        fact = spec.fact(name)
        if fact is not None and fact.node is None:
            spec.facts[name] = fact._replace(value=value, reason=f"{_VERSION}: pretrain")


# ---------------------------------------------------------------------------------------------- the model


def _pretrained(spec: TrainingSpec) -> None:
    command = _command(spec)
    known = command != "pretrain" or lm.HYPER + "initial_checkpoint_dir" in spec
    lm.put(spec, "pretrained", known, reason=f"litgpt {command}")


def _model(spec: TrainingSpec) -> str:
    """The model by its folder or hub id, by litgpt's own name, by a folder's own file, or by its sizes."""
    pretrain = _command(spec) == "pretrain"
    config = spec.fact(lm.HYPER + "model_config")
    if config is not None and isinstance(config.value, dict) and config.value:
        return _described(spec, config.value, config)
    named = spec.fact("model")
    if pretrain:
        named = spec.fact(lm.HYPER + "model_name") or spec.fact(lm.HYPER + "initial_checkpoint_dir")
    if (named is None or named.node is None) and spec.launch is not None:
        named = _argument(spec, pretrain) or named
    if named is None or not isinstance(named.value, str) or not named.value:
        return lm.not_stated(spec, "model_name" if pretrain else "checkpoint_dir")
    lm.put(spec, "model", named.value, named)
    parts = [part for part in named.value.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    spec.model_name = parts[-1] if parts else named.value
    given = lm.stated_config()
    own = _own_file(spec, named) if given is None else None
    if own is not None:
        return own
    for name in dict.fromkeys(("/".join(parts[-2:]), _NAMES.get(parts[-1], ""), _by_name(parts[-1])) if parts else ()):
        found, source = lm.resolve(name, spec.document.path) if name else (None, "")
        if given is not None:
            found, source = given.config, given.source
        if found is not None:
            try:
                _describe(spec, published(huggingface.decoder(found)), named, source)
            except UnknownModel as error:
                return f"{source}: {error}"
            lm.put(spec, lm.CONFIG, found, named, source)  # what the publishers say besides: the checkpoint's dtype
            return ""
    return f"{named.key or 'model'} {named.value}: neither in the catalogue (`memlint models`) nor a folder of litgpt's"


def _argument(spec: TrainingSpec, pretrain: bool) -> Fact | None:
    """The model as a word of its own: ``litgpt finetune_lora microsoft/phi-2``."""
    assert spec.launch is not None
    words = [word for word in spec.launch.arguments[1:] if isinstance(word.value, str) and "=" not in word.value]
    words = [word for word in words if word.value not in ("lora", "full", "adapter", "adapter_v2")]
    key = "model_name" if pretrain else "checkpoint_dir"
    return Fact("model", words[0].value, "written", key, words[0]) if words else None


def _by_name(name: str) -> str:
    """A hub id of the catalogue with this name, whoever published it."""
    from memlint.data import models

    return next((known for known in models.names() if known.rsplit("/", 1)[-1].lower() == name.lower()), "")


def _own_file(spec: TrainingSpec, named: Fact) -> str | None:
    """What litgpt itself reads beside the weights; None where it is not there."""
    from memlint.dialects import companions

    path = named.span.path if named.span is not None else spec.document.path
    document, _ = companions.read(f"{named.value}/model_config.yaml", path)
    if document is None or not document.root.is_mapping:
        return None
    sources = spec.document.sources or {spec.document.path: spec.document.text}
    spec.document = spec.document._replace(sources={**sources, document.path: document.text})
    return _described(spec, document.root.plain(), named)


def _described(spec: TrainingSpec, given: dict[str, Any], origin: Fact) -> str:
    """litgpt's own names of sizes."""
    hub = given.get("hf_config") if isinstance(given.get("hf_config"), dict) else {}
    spec.model_name = str(given.get("name") or (hub or {}).get("name") or spec.model_name or "a model of its own")
    try:
        made = decoder({**given, "name": spec.model_name})
    except UnknownModel as error:
        return str(error)
    _describe(spec, made, origin, f"{_VERSION}: Config")
    return ""


def _describe(spec: TrainingSpec, made: Decoder, origin: Fact, source: str) -> None:
    """The head is a product of its own, whatever the model's publishers tie, unless it is told otherwise."""
    tied = _command(spec) == "pretrain" and lm.switched(spec, "tie_embeddings")  # finetuning refuses the switch
    native.describe(spec, made._replace(tied=tied), origin, source)
    if made.score_cap:
        lm.put(spec, "attention", "eager", origin, f"{_VERSION}: capped scores are computed one by one")


# ---------------------------------------------------------------------------------------------- the rest


def _adapters(spec: TrainingSpec) -> str:
    command = _command(spec)
    kind = command.removeprefix("finetune_") if command.startswith("finetune_") else "full"
    if kind.startswith("adapter"):
        lm.put(spec, "tuning", "adapter", reason=f"litgpt {command}")
        return f"litgpt {command}: what LLaMA-Adapter's prompts and gates keep is not known"
    if not kind.startswith("lora"):
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        spec.facts.pop(lm.HYPER + "quantize", None)
        return ""
    lm.put(spec, "tuning", "lora", spec.fact("lora.r"), f"litgpt {command}")
    targets = [name for key, names in _TARGETS.items() if lm.switched(spec, key) for name in names]
    if lm.switched(spec, "lora_mlp"):
        made = spec.get(lm.DECODER)
        targets += made.perceptron.split() if made is not None and " " in made.perceptron else _GATED
    first = next((spec.fact(lm.HYPER + key) for key in _TARGETS if lm.switched(spec, key)), spec.fact("lora.r"))
    lm.put(spec, "lora.targets", targets, first)
    spec.fact(lm.DECODER)  # whose step names the model
    if spec.model_name:
        spec.model_name += ", LoRA"
    stated = spec.fact(lm.HYPER + "quantize")
    if stated is None or stated.value is None:
        return ""
    bits, name, double = _QUANTIZATIONS[stated.value]
    if stated.value == "bnb.int8-training":
        # bitsandbytes.nn.Linear8bitLt, has_fp16_weights (lightning/fabric/plugins/precision/bitsandbytes.py)
        return f"{stated.key} {stated.value}: the weights stay in 16 bits, and what it keeps beside them is not known"
    lm.put(spec, "quantization.bits", bits, stated)
    lm.put(spec, "quantization.kind", name, stated)
    if bits == 4:
        lm.put(spec, "quantization.double", double, stated)
    return ""


def _precision(spec: TrainingSpec) -> str:
    """``-true`` is the dtype of everything; ``-mixed`` is autocast over float32 weights."""
    stated = spec.fact(lm.HYPER + "precision")
    if stated is None:
        return lm.not_stated(spec, "precision")
    value = str(stated.value)
    if value not in _PRECISIONS:
        return f"precision {value} is not known"
    if "quantization.bits" in spec and value.endswith("mixed"):
        return f"precision {value} with quantised weights: litgpt refuses it"
    weights, products = _PRECISIONS[value]
    tried = spec.tried("parameter_dtype")
    if tried is not None:  # spelled ``-true``
        weights = products = tried.value
    name: Name
    for name in ("parameter_dtype", "frozen_dtype"):
        lm.put(spec, name, weights, stated)
    lm.put(spec, "compute_dtype", products, stated)
    products = spec["compute_dtype"]
    lm.put(spec, "autocast", weights != products, stated)
    if spec.get("tuning") == "lora":
        lm.put(spec, "lora.dtype", weights, stated)
    if products == "float16" and weights != products:
        lm.put(spec, "loss_scaling", "dynamic", stated)
    return ""


def _optimizer(spec: TrainingSpec) -> str:
    """A name of torch.optim, a class, or a mapping with ``class_path``; a quantised model gets a paged AdamW in place
    of any AdamW, and no other (utils.py, instantiate_bnb_optimizer). Why there is none, or ""."""
    pretrain, stated = _command(spec) == "pretrain", spec.fact(lm.HYPER + "optimizer_entry")
    if stated is None:
        return ""
    path = stated.value.get("class_path") if isinstance(stated.value, dict) else stated.value
    if not isinstance(path, str):
        return ""
    node = stated.node.get("class_path") if stated.node is not None and stated.node.is_mapping else stated.node
    named = stated._replace(value=path if "." in path else f"torch.optim.{path}", node=node)
    if "quantization.bits" in spec and "AdamW" not in path:
        return f"{stated.key} {path} with quantised weights: litgpt refuses it"
    if "quantization.bits" in spec:
        origin = spec.fact("quantization.bits")
        lm.put(spec, "optimizer", "adamw", origin, f"{_VERSION}: instantiate_bnb_optimizer")
        lm.put(spec, "optimizer_library", "bitsandbytes", origin)
        lm.put(spec, "optimizer_paged", True, origin)
        return ""
    native.optimizer_class(spec, named, "fused" if pretrain else "foreach")
    fused, foreach = spec.fact(lm.HYPER + "optimizer_fused"), spec.fact(lm.HYPER + "optimizer_foreach")
    if spec.get("optimizer_library") != "torch":
        return ""
    if pretrain:
        reason = f"{_VERSION}: pretrain passes fused=True on a GPU"
        lm.put(spec, "optimizer_implementation", "fused", reason=reason)
    elif fused is not None and truth(fused.value):
        lm.put(spec, "optimizer_implementation", "fused", fused)
    elif foreach is not None and not truth(foreach.value):
        lm.put(spec, "optimizer_implementation", "loop", foreach)
    return ""


def _quantised_on_several(spec: TrainingSpec) -> str:
    """Why not (finetune/lora.py, setup)."""
    origin, count = spec.fact("quantization.bits"), spec.get("device_count", 1)
    if origin is None or count < 2:
        return ""
    return f"{origin.key} {origin.written} on {count} devices: litgpt refuses it"


def _devices(spec: TrainingSpec) -> None:
    """Fabric's strategy: none on one device; FSDP on several, with each layer recomputed unless it pretrains."""
    command = _command(spec)
    stated, machines = spec.fact(lm.HYPER + "devices"), spec.fact(lm.HYPER + "num_nodes")
    per_machine = native.number(stated.value) if stated is not None else None
    nodes = native.number(machines.value) if machines is not None else None
    count = per_machine * nodes if per_machine is not None and nodes is not None else None
    if count is not None and count < 2:
        native.divided(spec, "none", count, stated, "one device")
        return
    if machines is not None and nodes is not None and nodes > 1:
        lm.put(spec, "machines", nodes, machines)
    lora = command == "finetune_lora" and spec.does("litgpt.lora_on_fsdp2")
    native.divided(spec, "fsdp2" if lora else "fsdp1", count, stated, f"{_VERSION}: {command} on several devices")
    # lightning/fabric/strategies: fsdp.py, _FSDPBackwardSyncControl; model_parallel.py, _ParallelBackwardSyncControl
    lm.put(spec, "parallelism.reduces_last_only", True, reason=f"{_VERSION}: fabric.no_backward_sync")
    products = spec.fact("compute_dtype")
    if products is not None:  # lightning.fabric.plugins.precision.fsdp: bf16-mixed reduces in bfloat16
        dtype = spec["parameter_dtype"] if lora else products.value
        lm.put(spec, "parallelism.reduce_dtype", dtype, products, "lightning 2.5: precision of the strategy")
    if command == "finetune_lora" and not lora:
        if spec.does("litgpt.lora_wraps_blocks"):
            lm.put(spec, "parallelism.mixed_units", True, stated, "litgpt before 0.5.8: auto_wrap_policy")
        else:
            lm.put(spec, "parallelism.wrap", ["Linear"], stated, "litgpt before 0.5.11: auto_wrap_policy")
    if command == "pretrain":
        if nodes is not None and per_machine is not None:
            lm.put(spec, "parallelism.replicas", nodes, machines, f"{_VERSION}: HYBRID_SHARD")
            lm.put(spec, "parallelism.shard", per_machine, stated, f"{_VERSION}: HYBRID_SHARD")
        return
    lm.put(spec, "checkpointing", "full", reason=f"{_VERSION}: {command} recomputes each Block on several devices")


def _batch(spec: TrainingSpec) -> None:
    """Accumulation is never written: it is what the global batch leaves (``TrainArgs.gradient_accumulation_iters``)."""
    whole, micro = spec.fact("global_batch_size"), spec.get("micro_batch_size")
    if whole is None or not isinstance(whole.value, int) or not isinstance(micro, int):
        return
    steps = whole.value // spec.get("device_count", 1) // micro
    lm.put(spec, "gradient_accumulation_steps", max(1, steps), whole)


def _length(spec: TrainingSpec) -> None:
    """Pretraining fills rows of all the positions that the model has; finetuning makes logits in chunks."""
    command, stated = _command(spec), spec.fact("sequence_length")
    if command == "pretrain":
        limit = lm.position_limit(spec)
        if (stated is None or stated.value is None) and limit is not None:
            lm.put(spec, "sequence_length", limit, reason=f"{_VERSION}: pretrain fills the model's block_size")
        lm.put(spec, "packing", True, reason=f"{_VERSION}: pretrain reads full rows")
        lm.put(spec, "loss", "full", reason=f"{_VERSION}: pretrain")
        reason = f"{_VERSION}: pretrain compiles the model, not the loss"
        lm.put(spec, "compile", True, reason=reason)
        lm.put(spec, "compile_loss", False, reason=reason)
        return
    lm.put(spec, "packing", False, reason=f"{_VERSION}: {command} pads to the longest sample of a batch")
    if command == "finetune_full":
        lm.put(spec, "loss", "full", reason=f"{_VERSION}: finetune_full")
    elif stated is not None and isinstance(stated.value, int):
        lm.put(spec, "loss", "chunked", reason=f"{_VERSION}: lm_head_chunk_size={_CHUNK}")
        lm.put(spec, "loss_chunks", -(-stated.value // _CHUNK), stated, f"{_VERSION}: lm_head_chunk_size={_CHUNK}")
    if command.startswith("finetune") and stated is not None and stated.value is not None:
        spec.facts["evaluation_batch_size"] = Fact(
            "evaluation_batch_size",
            spec.get("micro_batch_size"),
            ASSUMED,
            reason=f"{_VERSION}: the data modules' validation loader has the micro batch",
        )
        spec.facts["evaluation_accumulates"] = Fact(
            "evaluation_accumulates", False, ASSUMED, reason=f"{_VERSION}: only losses are kept"
        )
        lm.put(spec, "evaluation_sequence_length", stated.value, stated)


def _unbounded(spec: TrainingSpec) -> str:
    """Why the longest sample is not known."""
    if spec.get("sequence_length") is not None or lm.gap(spec, "max_seq_length") is not None:
        return ""
    return OnTop("train.max_seq_length is not stated: the longest sample is the data's, which no file states")


_PRECISION_FACTS: tuple[Name, ...] = (
    *("parameter_dtype", "frozen_dtype", "compute_dtype", "autocast", "lora.dtype", "loss_scaling"),
)
FAMILY = lm.Family(
    stated=Graph(Step(_pretraining_defaults, ("micro_batch_size", "global_batch_size", lm.HYPER + "devices"))),
    beside=None,
    follows=Graph(
        Step(_pretrained, ("pretrained",)),
        Step(_model, (*native.MODEL_FACTS, "model", lm.CONFIG, "attention")),
        Step(_adapters, (*lm.ADAPTER_FACTS, *lm.QUANTIZATION_FACTS, lm.HYPER + "quantize")),
        Step(_precision, _PRECISION_FACTS),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_devices, (*native.DEVICES, "machines", "checkpointing"), ("parallelism.",)),
        Step(_quantised_on_several),
        Step(_batch, ("gradient_accumulation_steps",)),
        Step(
            _length,
            ("sequence_length", "packing", "loss", "loss_chunks", "compile", "compile_loss", *lm.EVALUATION_FACTS),
        ),
        Step(_unbounded),
    ),
    told=("model", "adapters", "precision", "optimizer", "quantised_on_several", "unbounded"),
    keys={
        "micro_batch_size": "train.micro_batch_size",
        "sequence_length": "train.max_seq_length",
        "compute_dtype": "precision",
        "optimizer": "optimizer",
    },
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """``precision`` is weights and products in one; accumulation follows from the global batch."""
    names = {"bfloat16": "bf16", "float16": "16", "float32": "32"}
    if fact == "compute_dtype":
        if value not in names or "quantization.bits" in spec:
            return []
        half = spec.get("parameter_dtype") == "float32" and value != "float32"
        return lm.write(spec, lm.HYPER + "precision", f"{names[value]}-{'mixed' if half else 'true'}")
    if fact == "parameter_dtype":
        return lm.write(spec, lm.HYPER + "precision", f"{names[value]}-true") if value in names else []
    if fact == "optimizer":
        return _spell_optimizer(spec, native.class_of(value))
    if fact == "optimizer_implementation":
        switch = spec.fact(lm.HYPER + "optimizer_fused")
        return lm.write(spec, switch.name, value == "fused") if switch is not None and switch.node is not None else []
    if fact in ("gradient_accumulation_steps", "checkpointing", "autocast", "frozen_dtype", "attention", "loss"):
        return []
    if fact in ("evaluation_batch_size", "attention_tokens", "packing", "lora.targets", "fused_kernels"):
        return []
    return None


def _spell_optimizer(spec: TrainingSpec, name: str) -> list[Edit]:
    from memlint.dialects.rendering import rendered, text_of

    stated = spec.fact(lm.HYPER + "optimizer_entry")
    if not name or "quantization.bits" in spec or stated is None:
        return []
    node = stated.node
    if node is None:
        return lm.write(spec, stated.name, name)
    if node.is_mapping:
        node = node.get("class_path")
    if node is None:
        return []
    text = text_of(spec, node.span.path)
    new = rendered(text, node.span, text.at(node.span), name) if text is not None else None
    return [Edit(node.span, new)] if new is not None else []
