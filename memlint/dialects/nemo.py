"""Family nemo: configs of NeMo 1.x. Language models are Megatron's; others give their key facts."""

from __future__ import annotations

from typing import Any

from memlint.architectures.megatron import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import native, pretraining
from memlint.dialects.megatron import perceptron_width
from memlint.documents.node import Edit, Unresolved
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Fact, Name, TrainingSpec

_VERSION = "NeMo 1.23"
_KEYS = {
    "micro_batch_size": "model.micro_batch_size",
    "sequence_length": "model.encoder_seq_length",
    "optimizer": "model.optim.name",
    "compute_dtype": "trainer.precision",
}
_SIZES = {name: "model." + name for name in ("num_layers", "hidden_size", "num_attention_heads")}
_GATED = {
    "swiglu": "silu",
    "fast-swiglu": "silu",
    "geglu": "gelu",
    "fast-geglu": "gelu",
    "reglu": "relu",
    "fast-reglu": "relu",
}
_PLAIN = {"gelu": "gelu", "approx-gelu": "gelu", "openai-gelu": "gelu_new", "relu": "relu"}
# nemo/core/optim: name -> optimizer, implementation, library, whether its states are divided
_OPTIMIZERS = {
    "adamw": ("adamw", "foreach", "torch", False),
    "adam": ("adam", "foreach", "torch", False),
    "sgd": ("sgd", "foreach", "torch", False),
    "adafactor": ("adafactor", "loop", "transformers", False),
    "fused_adam": ("adamw", "fused", "apex", False),
    "megatron_fused_adam": ("adamw", "fused", "apex", False),
    "distributed_fused_adam": ("adamw", "fused", "apex", True),
    "mcore_distributed_optim": ("adamw", "fused", "megatron", True),
}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From NeMo's keys to the facts of a language model, or of another model what is stated."""
    if spec.launch is not None and spec.document.format == "shell":
        return _launched(spec)
    return FAMILY.complete(spec)


def _is_decoder(spec: TrainingSpec) -> bool:
    return lm.DECODER in spec


def _launched(spec: TrainingSpec) -> TrainingSpec:
    """A command of a script that composes its config as it starts."""
    assert spec.launch is not None
    value = spec.launch.program.value
    name = (value.text if isinstance(value, Unresolved) else str(value)).rsplit("/", 1)[-1]
    what = f"{name} composes its config as it starts; check the YAML that --config-path and --config-name say"
    if "nemo/collections" in str(value):
        what = f"{name} takes its config from a recipe in Python (--factory), which is not run"
    spec.architecture, spec.unknown_reason, spec.model_name = None, what, name
    spec.facts = {key: fact for key, fact in spec.facts.items() if key.startswith("framework")}
    return spec


def _sharing(spec: TrainingSpec) -> str:
    """How many devices there are, and what they divide of a language model."""
    why = pretraining.devices(spec, _counts(spec))
    if not _is_decoder(spec):
        _other_batch(spec)
        return why
    _states(spec)
    if spec.get("parallelism.pipeline", 1) > 1:
        several = (spec.get("parallelism.virtual_stages") or 1) > 1
        schedule = "interleaved" if several else "1f1b"
        lm.put(spec, "parallelism.schedule", schedule, reason="Megatron-LM: schedules.py")
    return why


def _counts(spec: TrainingSpec) -> list[Fact]:
    """What is multiplied to all devices, where keys say how many."""
    stated, nodes = spec.fact(lm.HYPER + "devices"), spec.fact("machines")
    if stated is None:
        return []
    per = stated.value
    if isinstance(per, str) and per.lstrip("-").isdigit():
        per = int(per)
    if isinstance(per, list):
        per = len(per)
    if not isinstance(per, int) or isinstance(per, bool) or per < 1:
        return []  # -1 and auto: all that there are
    counts = [stated._replace(value=per)]
    return [*counts, nodes] if nodes is not None and isinstance(nodes.value, int) else counts


# ---------------------------------------------------------------------------------------------- the model


def _model(spec: TrainingSpec) -> str:
    """The decoder, or why it is none."""
    root = spec.root
    if root.get("model.train_ds") is not None and root.get("model.hidden_size") is None:
        target = root.get("model._target_") or root.get("target")
        name = str(target.value).rsplit(".", 1)[-1] if target is not None else lm.setting(spec, "restore_from_path")
        said = root.get("name")
        label = name or (said.value if said is not None and isinstance(said.value, str) else "its model")
        spec.model_name = str(label)
        return f"{label} is no language model that is known"
    if root.get("model.encoder") is not None or root.get("model.decoder") is not None:
        return "an encoder-decoder of NeMo is not known"
    why = pretraining.unstated(spec, _SIZES)
    if why:
        return why
    if pretraining.number(spec, "num_moe_experts"):
        return "model.num_moe_experts: NeMo's experts are not known"
    activation = str(lm.setting(spec, "activation"))
    gated = activation in _GATED
    if not gated and activation not in _PLAIN:
        return f"model.activation {activation} is not known"
    kind = str(lm.setting(spec, "position_embedding_type"))
    positions = {"learned_absolute": "learned", "rope": "rope", "alibi": "alibi", "none": "none"}.get(kind)
    if positions is None:
        return f"model.position_embedding_type {kind} is not known"
    rows, why = _vocabulary(spec)
    if rows is None:
        return why
    length = spec.fact("sequence_length")
    if length is None:
        data = spec.fact(lm.HYPER + "data_seq_length")
        if data is not None and data.value is not None:
            lm.put(spec, "sequence_length", data.value, data)
    width, heads = pretraining.number(spec, "hidden_size"), pretraining.number(spec, "num_attention_heads")
    made = decoder(
        layers=pretraining.number(spec, "num_layers"),
        width=width,
        heads=heads,
        groups=pretraining.number(spec, "num_query_groups") or heads,
        inner=pretraining.number(spec, "ffn_hidden_size") or perceptron_width(width, False),
        vocabulary=rows.value,
        length=pretraining.number(spec, "max_position_embeddings") or spec.get("sequence_length") or 0,
        head_dim=pretraining.number(spec, "kv_channels"),
        positions=positions,
        rotary_share=pretraining.share(spec, "rotary_percentage"),
        norm="rms" if str(lm.setting(spec, "normalization")).lower() == "rmsnorm" else "layer",
        gated=gated,
        activation=_GATED[activation] if gated else _PLAIN[activation],
        biased=lm.switched(spec, "bias"),
        tied=lm.switched(spec, "share_embeddings"),
        attention_dropout=pretraining.share(spec, "attention_dropout"),
        hidden_dropout=pretraining.share(spec, "hidden_dropout"),
    )
    spec.facts["vocabulary_size"] = rows
    lm.put(spec, "packing", True, reason=f"{_VERSION}: GPTDataset fills every row")
    pretraining.describe(spec, made, "the config's own sizes")
    return ""


def _vocabulary(spec: TrainingSpec) -> tuple[Fact | None, str]:
    whole = spec.fact(lm.HYPER + "padded_vocab_size")
    if whole is not None and whole.value:
        return whole._replace(name="vocabulary_size"), ""
    tensor = spec.stated("parallelism.tensor")
    multiple = pretraining.number(spec, "make_vocab_size_divisible_by") * (1 if tensor is None else tensor.value)
    kind, source = spec.fact(lm.HYPER + "tokenizer_type"), spec.fact(lm.HYPER + "tokenizer_model")
    library = lm.setting(spec, "tokenizer_library")
    if library == "huggingface" and kind is not None:
        source = kind
    return pretraining.vocabulary(spec, kind, source, multiple, "model.override_vocab_size")


def _other_batch(spec: TrainingSpec) -> None:
    """The batch of a model that is none of Megatron's, of which nothing else is known."""
    for name in [name for name in spec.facts if name.startswith("parallelism.") or name == "implementation"]:
        if spec.facts[name].node is None:
            del spec.facts[name]
    batch = spec.fact(lm.HYPER + "train_batch_size") or spec.fact(lm.HYPER + "loader_batch_size")
    if batch is None or batch.value is None:
        return
    lm.put(spec, "micro_batch_size", batch.value, batch)
    steps = spec.fact(lm.HYPER + "accumulate_grad_batches")
    if steps is not None and isinstance(steps.value, int):
        lm.put(spec, "gradient_accumulation_steps", steps.value, steps)


# ---------------------------------------------------------------------------------------------- precision, states


def _precision(spec: TrainingSpec) -> str:
    """16 bits under autocast; or, with megatron_amp_O2, of the weights themselves."""
    stated = spec.fact(lm.HYPER + "precision")
    if lm.switched(spec, "fp8"):
        engine = lm.switched(spec, "transformer_engine") or lm.switched(spec, "mcore_gpt")
        if not engine:
            return "model.fp8: without Transformer Engine there are no products in float8"
        lm.put(spec, "float8", True, spec.fact(lm.HYPER + "fp8"))
    if stated is None:
        item = lm.gap(spec, "precision")
        return "" if item is None else f"{item.key} is not known: {item.reason}"
    text = str(stated.value).lower().removesuffix("-mixed").removesuffix("-true")
    dtype = {"16": "float16", "bf16": "bfloat16", "32": "float32"}.get(text)
    if dtype is None:
        return f"trainer.precision {stated.value} is not known"
    whole = spec.fact(lm.HYPER + "megatron_amp_O2")
    if whole is not None and whole.value and dtype in lm.HALF:
        pretraining.half(spec, stated, dtype, "float32" if dtype == "bfloat16" else dtype)
    else:
        lm.put(
            spec, "parameter_dtype", "float32", reason=f"{_VERSION}: weights stay in float32 without megatron_amp_O2"
        )
        lm.put(spec, "compute_dtype", dtype, stated)
        lm.put(spec, "autocast", dtype in lm.HALF, stated)
    if dtype == "float16":
        lm.put(spec, "loss_scaling", "dynamic", stated)
    return ""


def _optimizer(spec: TrainingSpec) -> None:
    name = spec.fact(lm.HYPER + "optimizer_name")
    if name is None:
        return
    kind, implementation, library, _ = _OPTIMIZERS.get(str(name.value), (str(name.value), "", "torch", False))
    lm.put(spec, "optimizer", kind, name)
    lm.put(spec, "optimizer_library", library, name)
    if implementation:
        lm.put(spec, "optimizer_implementation", implementation, name)


def _states(spec: TrainingSpec) -> None:
    switch, name = spec.fact(lm.HYPER + "fsdp"), spec.fact(lm.HYPER + "optimizer_name")
    if switch is not None and switch.value:
        lm.put(spec, "parallelism.strategy", "fsdp1", switch)
        kind = spec.fact(lm.HYPER + "fsdp_sharding_strategy")
        if kind is not None and kind.value == "grad":
            lm.put(spec, "parallelism.reshard_after_forward", False, kind)
        return
    divides = name is not None and _OPTIMIZERS.get(str(name.value), ("", "", "", False))[3]
    # apex's distributed optimizer divides gradients as well: ZeRO's second stage
    stage = 0 if not divides else 2 if name is not None and name.value == "distributed_fused_adam" else 1
    pretraining.sharing(spec, stage, name)


def _recomputed(spec: TrainingSpec) -> str:
    if not _is_decoder(spec):
        return ""
    granularity, method = spec.fact(lm.HYPER + "recompute_granularity"), lm.setting(spec, "recompute_method")
    return pretraining.recomputed(spec, granularity, method, "recompute_num_layers")


def _adapter(spec: TrainingSpec) -> str:
    scheme = lm.setting(spec, "peft_scheme")
    return f"model.peft.peft_scheme {scheme} is not known" if scheme not in (None, "null", "none") else ""


def _attention(spec: TrainingSpec) -> None:
    if not _is_decoder(spec):
        return
    flash, engine = spec.fact(lm.HYPER + "use_flash_attention"), spec.fact(lm.HYPER + "transformer_engine")
    if flash is not None and flash.value:
        lm.put(spec, "attention", "flash", flash)
    elif (engine is not None and engine.value) or lm.switched(spec, "mcore_gpt"):
        engine = engine if engine is not None and engine.value else spec.fact(lm.HYPER + "mcore_gpt")
        in_half = spec.get("compute_dtype") in lm.HALF
        lm.put(spec, "attention", "flash" if in_half else "eager", engine, "Transformer Engine's")
    else:
        lm.put(spec, "attention", "eager", flash, f"{_VERSION}: use_flash_attention")


FAMILY = lm.Family(
    beside=None,
    follows=Graph(
        Step(_model, (lm.DECODER, "vocabulary_size", "sequence_length", "packing")),
        Step(
            _sharing,
            (*native.DEVICES, "micro_batch_size", "gradient_accumulation_steps", "implementation"),
            ("parallelism.",),
        ),
        Step(_precision, (*pretraining.HALF_FACTS, "loss_scaling", "float8")),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_attention, ("attention",)),
        Step(_recomputed, pretraining.RECOMPUTED),
        Step(_adapter),
        Step(pretraining.undecided),
    ),
    told=("model", "sharing", "precision", "adapter", "recomputed", "undecided"),
    keys=_KEYS,
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that NeMo states in words of its own; None for the generic spelling."""
    if spec.architecture is None and not spec.architecture_on_devices:
        return None if fact in ("workers",) else []
    if fact == "checkpointing":
        if value != "full":
            return []
        edits = lm.write(spec, lm.HYPER + "recompute_granularity", "full")
        edits += lm.write(spec, lm.HYPER + "recompute_method", "uniform")
        return edits + lm.write(spec, lm.HYPER + "recompute_num_layers", 1)
    if fact == "attention":
        whole = value == "flash" and spec.get("compute_dtype") in lm.HALF
        return lm.write(spec, lm.HYPER + "use_flash_attention", True) if whole else []
    if fact == "compute_dtype" and value in lm.HALF and spec.get("compute_dtype") == "float32":
        return lm.write(spec, lm.HYPER + "precision", "bf16" if value == "bfloat16" else 16)
    if fact == "sequence_length":
        rows = pretraining.number(spec, "max_position_embeddings")
        return [] if rows and isinstance(value, int) and value > rows else None
    if fact in ("compute_dtype", "parameter_dtype", "frozen_dtype", "optimizer", "optimizer_implementation", "loss"):
        return []
    if fact == "gradient_accumulation_steps":
        return []  # it follows from the batch of all devices
    return None
