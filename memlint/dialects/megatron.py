"""Family megatron: options of Megatron-LM's scripts, and of Megatron-DeepSpeed's."""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Experts, Latent
from memlint.architectures.megatron import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, pretraining
from memlint.dialects.deepspeed import AUTO, deepspeed_facts
from memlint.documents.node import Edit, Unresolved
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, Fact, Name, TrainingSpec

_VERSION = "Megatron-LM core 0.16"
_GPT = ("pretrain_gpt", "pretrain_mamba", "pretrain_hybrid")
# What scripts other than pretrain_gpt train: models that are not a decoder of text alone.
_OTHERS = {
    "pretrain_bert": "BERT",
    "pretrain_t5": "T5",
    "pretrain_ict": "a pair of encoders",
    "pretrain_retro": "a decoder with retrieval",
    "pretrain_vlm": "a vision encoder joined to a decoder",
    "pretrain_vision": "a vision model",
    "pretrain_mamba": "a state space model",
    "pretrain_hybrid": "a state space model with attention",
}
_KEYS = {
    "micro_batch_size": "--micro-batch-size",
    "sequence_length": "--seq-length",
    "optimizer": "--optimizer",
    "compute_dtype": "--bf16",
}
_MOST_LAYERS = 10_000  # what is more is a slip of the keyboard
_SIZES = {"num_layers": "--num-layers", "hidden_size": "--hidden-size", "num_attention_heads": "--num-attention-heads"}


def _name(spec: TrainingSpec) -> str:
    """The script that trains, also where its folder is not known: ``$(pwd)/pretrain_gpt.py``."""
    if spec.launch is None:
        return ""
    value = spec.launch.program.value
    text = value.text if isinstance(value, Unresolved) else str(value)
    return text.rsplit("/", 1)[-1].removesuffix(".py")


def _program(spec: TrainingSpec) -> str:
    name = _name(spec)
    for start, what in _OTHERS.items():
        if name.startswith(start):
            return f"{name}.py trains {what}, which is not known"
    if name == "main" and (task := spec.root.get("task")) is not None:
        return f"main.py --task {task.plain()} finetunes an encoder or a pair of them, which is not known"
    layers = lm.setting(spec, "mtp_num_layers")
    return "--mtp-num-layers: layers that predict further tokens are not known" if layers else ""


def _plain_layers(spec: TrainingSpec) -> tuple[tuple[int, ...], str]:
    """(layers without experts, why that is not known): ``--moe-layer-freq`` is a number, or a list with a 1 for each
    layer that has them, written as Python writes it: ``([0]*3+[1]*58)``."""
    stated = str(lm.setting(spec, "moe_layer_freq")).strip()
    total = pretraining.number(spec, "num_layers")
    if not pretraining.number(spec, "num_experts") or total > _MOST_LAYERS:
        return (), ""
    if stated.isdigit():
        every = max(int(stated), 1)
        return tuple(number for number in range(total) if number % every), ""
    pattern: list[str] = []
    for term in stated.replace(" ", "").strip("()\"'").split("+"):
        items, times, count = term.strip("()").partition("*")
        digits = items.strip("[]").split(",")
        if not items.startswith("[") or not set(digits) <= {"0", "1"} or (times and not count.isdigit()):
            return (), f"--moe-layer-freq {stated} is not known"
        pattern += digits * (min(int(count), total) if times else 1)
    if len(pattern) != total:
        return (), f"--moe-layer-freq is about {len(pattern)} layers, and there are {total}"
    return tuple(number for number, item in enumerate(pattern) if item == "0"), ""


def _devices(spec: TrainingSpec) -> str:
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count, launch = found.total, spec.launch
    if count is None and not found.distributed and not found.missing and launch is not None and not launch.launchers:
        count = Fact("device_count", 1, DEFAULT, reason="no launcher: one process")
    return pretraining.devices(spec, [count] if count is not None else [])


# ---------------------------------------------------------------------------------------------- the model


def _decoder(spec: TrainingSpec) -> str:
    why = pretraining.unstated(spec, _SIZES)
    if why:
        return why
    plain, why = _plain_layers(spec)
    if why:
        return why
    rows, why = _vocabulary(spec)
    if rows is None:
        return why
    kind = str(lm.setting(spec, "position_embedding_type"))
    if lm.switched(spec, "use_rotary_position_embeddings"):
        kind = "rope"
    positions = {"learned_absolute": "learned", "absolute": "learned", "rotary": "rope", "yarn": "rope"}.get(kind, kind)
    if positions not in ("learned", "rope", "alibi", "none"):
        return f"--position-embedding-type {kind} is not known"
    width, heads = pretraining.number(spec, "hidden_size"), pretraining.number(spec, "num_attention_heads")
    grouped = lm.switched(spec, "group_query_attention")
    gated = lm.switched(spec, "swiglu")
    inner = pretraining.number(spec, "ffn_hidden_size") or perceptron_width(width, gated)
    made = decoder(
        layers=pretraining.number(spec, "num_layers"),
        width=width,
        heads=heads,
        groups=pretraining.number(spec, "num_query_groups") if grouped else heads,
        inner=inner,
        vocabulary=rows.value,
        length=pretraining.number(spec, "max_position_embeddings") or spec.get("sequence_length") or 0,
        head_dim=pretraining.number(spec, "kv_channels"),
        positions=positions,
        rotary_share=pretraining.share(spec, "rotary_percent"),
        norm="rms" if lm.setting(spec, "normalization") == "RMSNorm" else "layer",
        gated=gated,
        activation="squared_relu" if lm.switched(spec, "squared_relu") else "silu" if gated else "gelu",
        biased=not lm.switched(spec, "disable_bias_linear"),
        qkv_biased=lm.switched(spec, "add_qkv_bias"),
        query_norm=lm.switched(spec, "qk_layernorm"),
        embedding_norm=lm.switched(spec, "embed_layernorm"),
        tied=not lm.switched(spec, "untie"),
        attention_dropout=pretraining.share(spec, "attention_dropout"),
        hidden_dropout=pretraining.share(spec, "hidden_dropout"),
        experts=_experts(spec, inner, plain),
        latent=_latent(spec) if lm.switched(spec, "multi_latent_attention") else None,
    )
    if made.experts is not None:
        each, tensor = spec.fact(lm.HYPER + "expert_tensor_parallel_size"), spec.fact("parallelism.tensor")
        value = tensor.value if each is None and tensor is not None else 1 if each is None else each.value
        lm.put(spec, "parallelism.expert_tensor", value, each or tensor)
    spec.facts["vocabulary_size"] = rows
    idle = ("vocab-file", "tokenizer-model", "tokenizer-name-or-path")  # their rows are known without them
    spec.missing = tuple(item for item in spec.missing if item.key.lstrip("-") not in idle)
    pretraining.describe(spec, made, "the options' own sizes")
    return ""


def _experts(spec: TrainingSpec, inner: int, plain: tuple[int, ...]) -> Experts | None:
    """``plain``: layers without experts; ``inner``: the perceptron's width, where no other is stated."""
    number = pretraining.number(spec, "num_experts")
    if not number:
        return None
    return Experts(
        number,
        pretraining.number(spec, "moe_router_topk"),
        pretraining.number(spec, "moe_ffn_hidden_size") or inner,
        shared=pretraining.number(spec, "moe_shared_expert_intermediate_size"),
        dense=plain,
    )


def _latent(spec: TrainingSpec) -> Latent:
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    queries, keys, plain, rotary, value = (pretraining.number(spec, name) for name in names)
    return Latent(queries, keys, plain, rotary, value, complex=False)


def perceptron_width(width: int, gated: bool) -> int:
    """Four times the model's width; with a gate two thirds of that, rounded down to a multiple of 64
    (megatron/training/arguments.py, validate_args)."""
    return 4 * width if not gated else int(4 * width * 2 / 3) // 64 * 64


def _vocabulary(spec: TrainingSpec) -> tuple[Fact | None, str]:
    whole = spec.fact(lm.HYPER + "padded_vocab_size")
    if whole is not None:
        return whole._replace(name="vocabulary_size"), ""
    multiple = pretraining.number(spec, "make_vocab_size_divisible_by") * spec.get("parallelism.tensor", 1)
    stated = spec.fact(lm.HYPER + "vocab_size")
    if stated is not None:
        reason = f"padded to a multiple of {multiple}"
        null = lm.setting(spec, "tokenizer_type") == "NullTokenizer"  # it has one row more: the end of a document
        rows = pretraining.padded(stated.value + null, multiple)
        return stated._replace(name="vocabulary_size", value=rows, reason=reason), ""
    kind = spec.fact(lm.HYPER + "tokenizer_type")
    source = spec.fact(lm.HYPER + "tokenizer_model") or spec.fact(lm.HYPER + "vocab_file")
    return pretraining.vocabulary(spec, kind, source, multiple, "--vocab-size")


# ---------------------------------------------------------------------------------------------- precision, states


def _on(spec: TrainingSpec, name: str) -> Fact | None:
    """A switch that is written and not off."""
    stated = spec.fact(lm.HYPER + name)
    return stated if stated is not None and stated.value else None


def _is_deep(spec: TrainingSpec) -> bool:
    return lm.switched(spec, "deepspeed")


def _precision(spec: TrainingSpec) -> None:
    bf16, fp16 = _on(spec, "bf16"), _on(spec, "fp16")
    if bf16 is not None:
        # validate_args: accumulate_allreduce_grads_in_fp32 follows from bf16
        reduced = lm.switched(spec, "grad_reduce_in_bf16")
        pretraining.half(spec, bf16, "bfloat16", "bfloat16" if reduced else "float32")
    elif fp16 is not None:
        wide = lm.switched(spec, "gradients_in_fp32")
        pretraining.half(spec, fp16, "float16", "float32" if wide else "float16")
        scale = spec.fact(lm.HYPER + "loss_scale")
        lm.put(spec, "loss_scaling", "dynamic" if scale is None or _is_deep(spec) else scale.value, scale or fp16)
    else:
        pretraining.half(spec, None, "float32", "float32")


def _states(spec: TrainingSpec) -> str:
    """Weights and optimizer, in what dtypes, and what data parallel devices divide."""
    _precision(spec)
    kind, deep = spec.fact("optimizer"), _is_deep(spec)
    library = "deepspeed" if deep else "megatron"
    lm.put(spec, "optimizer_library", library, reason="apex's or Transformer Engine's fused kernel")
    lm.put(spec, "optimizer_implementation", "fused", reason="apex's or Transformer Engine's fused kernel")
    narrow = _on(spec, "fp8_format")
    if narrow is not None:
        if lm.setting(spec, "transformer_impl") == "local" or lm.switched(spec, "use_legacy_models"):
            return f"{narrow.key}: without Transformer Engine there are no products in float8"
        lm.put(spec, "float8", True, narrow)
        gathered = _on(spec, "fp8_param_gather")
        if gathered is not None:
            lm.put(spec, "float8_weights", True, gathered)
    if kind is not None and kind.value not in ("adamw", "sgd", "muon"):
        return f"--optimizer {kind.written} is not known"
    why = _precision_aware(spec)
    if why:
        return why
    offload = _on(spec, "optimizer_cpu_offload")
    if offload is not None:
        if pretraining.share(spec, "optimizer_offload_fraction") != 1.0:
            return "--optimizer-offload-fraction: states that are in part on the card are not known"
        lm.put(spec, "parallelism.offload_optimizer", True, offload)
    if deep:
        return _zero(spec)
    strategy = spec.fact(lm.HYPER + "use_torch_fsdp2")
    if strategy is not None:
        lm.put(spec, "parallelism.strategy", "fsdp2", strategy)
        return ""
    sharded = _on(spec, "use_megatron_fsdp")
    if sharded is not None:
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        named = spec.fact(lm.HYPER + "data_parallel_sharding_strategy")
        pretraining.sharing(spec, stages[str(named.value)] if named is not None else 0, sharded)
        return ""
    divided = _on(spec, "use_distributed_optimizer")
    # states in host memory are on no card, however many devices divide them
    pretraining.sharing(spec, 1 if divided or offload else 0, divided or offload, alone=offload is None)
    return ""


_NARROW = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _precision_aware(spec: TrainingSpec) -> str:
    """States and gradients in the dtypes that options name."""
    switch = spec.fact(lm.HYPER + "precision_aware")
    if switch is None or not switch.value:
        return ""
    names = ("main_grads", "exp_avg", "exp_avg_sq")
    stated = {name: str(lm.setting(spec, name + "_dtype")) for name in names}
    for name, dtype in stated.items():
        if dtype not in _NARROW or (name == "exp_avg_sq" and dtype != stated["exp_avg"]):
            return f"--{name.replace('_', '-')}-dtype {dtype}: such states are not known"
    lm.put(spec, "optimizer_precision_aware", True, switch)
    lm.put(spec, "optimizer_state_dtype", _NARROW[stated["exp_avg"]], spec.fact(lm.HYPER + "exp_avg_dtype"))
    grads = spec.fact(lm.HYPER + "main_grads_dtype")
    if grads is not None and grads.value == "bf16" and spec.get("parameter_dtype") == "bfloat16":
        lm.put(spec, "gradient_dtype", "bfloat16", grads)
    return ""


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    """DeepSpeed's own file goes before the options where both state something; a script may write it as it runs."""
    from memlint.dialects import companions

    named = spec.fact(lm.HYPER + "deepspeed_config")
    if not _is_deep(spec) or named is None or not isinstance(named.value, str):
        return "", {}
    path = named.span.path if named.span is not None else spec.document.path
    document, _ = companions.read(named.value, path)
    if document is None:
        return "", {}  # --zero-stage says what matters
    found = deepspeed_facts(document.root)
    facts = {name: fact for name, fact in found.facts.items() if fact.value != AUTO and fact.node is not None}
    kept = {name: fact for name, fact in facts.items() if name.startswith("parallelism.") or name == "gradient_dtype"}
    lm.add(spec, found._replace(facts=kept, sources={document.path: document.text, **document.sources}))
    return "", {}


def _zero(spec: TrainingSpec) -> str:
    stage = spec.fact("parallelism.zero_stage") or spec.fact(lm.HYPER + "zero_stage")
    if stage is None:
        return lm.not_stated(spec, "--zero-stage", "zero-stage")
    level, reason = stage.value, ""
    if not level and spec.get("parameter_dtype") == "bfloat16":
        level, reason = 1, "DeepSpeed 0.19: BF16_Optimizer divides the optimizer's states by itself"
    pretraining.sharing(spec, level, stage, reason)
    return ""


# ---------------------------------------------------------------------------------------------- activations


def _recompute(spec: TrainingSpec) -> str:
    whole = spec.fact(lm.HYPER + "checkpoint_activations")
    if whole is not None:
        return pretraining.recomputed(spec, whole._replace(value="full"), "uniform", "checkpoint_num_layers")
    older = spec.fact(lm.HYPER + "activations_checkpoint_method")
    if older is not None:  # before --recompute-granularity there was nothing but whole layers
        layers = "activations_checkpoint_num_layers"
        return pretraining.recomputed(spec, older._replace(value="full"), older.value, layers)
    stated, short = spec.fact(lm.HYPER + "recompute_granularity"), spec.fact(lm.HYPER + "recompute_activations")
    if stated is None and short is not None:
        stated = short._replace(value="selective")
    item = lm.gap(spec, "recompute-granularity", "recompute-method", "recompute-num-layers")
    if item is not None:
        return f"{item.key} is not known: {item.reason}"
    modules = lm.setting(spec, "recompute_modules") or ()
    return pretraining.recomputed(spec, stated, lm.setting(spec, "recompute_method"), "recompute_num_layers", modules)


# Options that Megatron-LM had before its modules were those of Megatron core (core 0.4 and before, 2023).
_OLD = ("data-impl", "DDP-impl", "activations-checkpoint-method", "mmap-warmup", "distribute-checkpointed-activations")


def _before_core(spec: TrainingSpec) -> bool:
    """Whether a script is of a release whose layers are its own: attention is written out unless an option says so."""
    named = spec.root.value if isinstance(spec.root.value, dict) else {}
    newer = lm.switched(spec, "use_mcore_models") or any(name.startswith("moe-") for name in named)
    stated = spec.fact(lm.HYPER + "transformer_impl")
    newer = newer or (stated is not None and stated.node is not None and stated.value == "transformer_engine")
    return not newer and any(name in named for name in _OLD)


def _kernels(spec: TrainingSpec) -> None:
    """Which attention, and which operations are one kernel."""
    old = _is_deep(spec) or lm.switched(spec, "use_legacy_models") or _before_core(spec)
    flash, backend = spec.fact(lm.HYPER + "use_flash_attn"), spec.fact(lm.HYPER + "attention_backend")
    engine = not old and lm.setting(spec, "transformer_impl") != "local"
    if flash is not None:
        lm.put(spec, "attention", "flash", flash)
    elif backend is not None and backend.node is not None and backend.value != "auto":
        lm.put(spec, "attention", "flash" if backend.value in ("flash", "fused") else "eager", backend)
    elif engine and spec.get("compute_dtype") in lm.HALF:
        lm.put(spec, "attention", "flash", reason="Transformer Engine takes a fused kernel in 16 bits")
    else:
        lm.put(spec, "attention", "eager", reason="attention of Megatron's own code" if not engine else "fp32")
    fused = []
    if not old:
        fused = ["rms_norm"]  # whichever norm the model has: apex's or Transformer Engine's
        gate = "no_gate_fusion" if lm.switched(spec, "swiglu") else "no_gelu_fusion"
        fused += [] if lm.switched(spec, gate) else ["swiglu"]
        fused += [] if lm.switched(spec, "no_rope_fusion") else ["rotary"]
        loss = _on(spec, "cross_entropy_fusion")
        fused += [] if loss is None else ["cross_entropy"]
        if loss is not None and lm.setting(spec, "cross_entropy_impl") == "te":
            fused.append("cross_entropy_in_place")
    lm.put(spec, "fused_kernels", fused, reason=f"{_VERSION}: fusions that are on unless an option turns them off")
    offloaded = spec.fact(lm.HYPER + "cpu_offloading_num_layers")
    if offloaded is not None and offloaded.value:
        lm.put(spec, "activation_offloading", True, offloaded)


def _buffers(spec: TrainingSpec) -> None:
    """With DeepSpeed the model is a pipeline, be it of one stage (``megatron/model/gpt_model.py``: GPTModelPipe), which
    hands out logits in fp32; the engine of pipelines refuses ZeRO 2 and 3."""
    if _is_deep(spec) and not lm.switched(spec, "no_pipeline_parallel") and spec.get("parallelism.zero_stage", 0) < 2:
        lm.put(spec, "parallelism.buffered_outputs", "float32", reason="Megatron-DeepSpeed: GPTModelPipe")


def _schedule(spec: TrainingSpec) -> None:
    stages = spec.get("parallelism.pipeline", 1)
    if stages <= 1:
        return
    layers = spec.fact(lm.HYPER + "virtual_layers")
    total = pretraining.number(spec, "num_layers")
    if layers is not None and layers.value and total:
        lm.put(spec, "parallelism.virtual_stages", max(total // stages // layers.value, 1), layers)
    uneven = _uneven(spec, stages, total)
    if uneven is not None:
        pieces = spec.get("parallelism.virtual_stages", 1)
        each = [count // pieces for count in uneven.value]
        lm.put(spec, "parallelism.stage_layers", each * pieces, uneven)
    interleaved = spec.get("parallelism.virtual_stages", 1) > 1
    lm.put(spec, "parallelism.schedule", "interleaved" if interleaved else "1f1b", reason=f"{_VERSION}: schedules.py")


def _uneven(spec: TrainingSpec, stages: int, total: int) -> Fact | None:
    """Layers of each rank, where options give the ends of the pipeline fewer: by their numbers, or as if embedding and
    loss were layers (``transformer_block.py``, get_num_layers_to_build)."""
    first, last = spec.fact(lm.HYPER + "first_layers"), spec.fact(lm.HYPER + "last_layers")
    embedding, loss = _on(spec, "account_embedding"), _on(spec, "account_loss")
    counted = (embedding is not None) + (loss is not None)
    if counted and stages and (total + counted) % stages == 0:
        each = (total + counted) // stages
        ends = each - (embedding is not None), each - (loss is not None)
        return (embedding or loss)._replace(value=[ends[0], *[each] * (stages - 2), ends[1]])  # type: ignore[union-attr]
    stated = first or last
    if stated is None or stages < 2:
        return None
    ends = (0 if first is None else first.value), (0 if last is None else last.value)
    between = stages - (first is not None) - (last is not None)
    rest = total - sum(ends)
    if between < 0 or rest < 0 or (between and rest % between):
        return None
    inner = [rest // between] * between if between else []
    whole = [ends[0]] * (first is not None) + inner + [ends[1]] * (last is not None)
    return stated._replace(value=whole)


# What a decoder's options do not decide: states, kernels, the schedule and what is recomputed.
STEPS = (
    Step(
        _states,
        (
            *pretraining.HALF_FACTS,
            "loss_scaling",
            *lm.OPTIMIZER_FACTS,
            "optimizer_precision_aware",
            "optimizer_state_dtype",
            "float8",
            "float8_weights",
            "parallelism.offload_optimizer",
            *pretraining.SHARED,
        ),
    ),
    Step(_kernels, ("attention", "fused_kernels", "activation_offloading")),
    Step(_buffers, ("parallelism.buffered_outputs",)),
    Step(_schedule, ("parallelism.virtual_stages", "parallelism.stage_layers", "parallelism.schedule")),
    Step(_recompute, pretraining.RECOMPUTED),
)

FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(_program),
        Step(_devices, pretraining.DEVICES),
        Step(_decoder, (lm.DECODER, "vocabulary_size", "parallelism.expert_tensor")),
        *STEPS,
        Step(pretraining.undecided),
    ),
    told=("program", "sharing", "devices", "states", "decoder", "recompute", "undecided"),
    keys=_KEYS,
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that Megatron states in several options; None for the generic spelling."""
    if fact == "checkpointing":
        return _spell_recompute(spec, value)
    if fact == "attention" and value == "flash":
        backend = spec.fact(lm.HYPER + "attention_backend")
        if backend is not None and backend.node is not None:
            return lm.write(spec, lm.HYPER + "attention_backend", "flash")
        return lm.write(spec, lm.HYPER + "use_flash_attn", True) if spec.get("compute_dtype") in lm.HALF else []
    if fact == "compute_dtype" and value in lm.HALF and spec.get("compute_dtype") == "float32":
        return lm.write(spec, lm.HYPER + {"bfloat16": "bf16", "float16": "fp16"}[value], True)
    if fact == "parallelism.zero_stage" and value == 1 and not lm.switched(spec, "deepspeed"):
        return lm.write(spec, lm.HYPER + "use_distributed_optimizer", True)
    if fact.endswith("_bucket_elements") and lm.switched(spec, "deepspeed"):
        return []  # DeepSpeed's config states them, not an option
    if fact in ("attention", "compute_dtype", "parameter_dtype", "frozen_dtype", "optimizer_implementation", "loss"):
        return []
    if fact == "sequence_length" and "vocabulary_size" in spec and spec.fact(fact) is not None:
        return _spell_length(spec, value)
    return None


def _spell_recompute(spec: TrainingSpec, value: Any) -> list[Edit]:
    if value != "full" or lm.switched(spec, "recompute_activations"):
        return []
    if lm.switched(spec, "deepspeed"):
        return lm.write(spec, lm.HYPER + "checkpoint_activations", True)
    edits = lm.write(spec, lm.HYPER + "recompute_granularity", "full")
    edits += lm.write(spec, lm.HYPER + "recompute_method", "uniform")
    return edits + lm.write(spec, lm.HYPER + "recompute_num_layers", 1)


def _spell_length(spec: TrainingSpec, value: Any) -> list[Edit] | None:
    """A longer sample than the table of positions has rows needs more of them."""
    rows = pretraining.number(spec, "max_position_embeddings")
    return [] if rows and isinstance(value, int) and value > rows else None
