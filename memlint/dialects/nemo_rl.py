"""Family nemo-rl: SFT, DPO and GRPO on NeMo RL's DTensor workers, which are FSDP2 around transformers' own models."""

from __future__ import annotations

from math import prod

from memlint.architectures import huggingface
from memlint.architectures.sizes import Sizes
from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import HYPER, Fact, Name, TrainingSpec, UnknownModel

_VERSION = "NeMo RL at 7ea279a"
_DEGREES: tuple[Name, ...] = ("parallelism.tensor", "parallelism.context", "parallelism.replicas")
_METHODS = ("sft", "dpo", "grpo")
_SPLIT = ("llama", "qwen2", "qwen3")  # whose plans of tensor parallelism leave each rank its part of the vocabulary
# Parts of a layer that are recomputed, each by itself, where NeMo RL shards the model itself (models/dtensor/
# parallelize.py)
_RECOMPUTED = ("mlp", "self_attn", "input_layernorm", "post_attention_layernorm")
# What NeMo Automodel computes by code, or shards in a way, of its own (its _transformers/registry.py, parallelizer.py)
_AUTOMODELS = ("baichuan", "gemma4", "gemma4_text", "qwen3_5", "qwen3_5_text", "qwen3_next")


def _elsewhere(spec: TrainingSpec) -> str:
    sections = [name for name in ("ppo", "rm", "distillation", *_METHODS) if spec.root.get(name) is not None]
    name = sections[0] if sections else families.program(spec).removeprefix("run_").partition("_")[0]
    if name not in _METHODS:
        return f"{name}: what is trained, and beside what, is not known"
    lm.put(spec, "method", name, reason=f"{_VERSION}: run_{name}.py")
    lm.pairs(spec)
    teacher = spec.root.get("on_policy_distillation")
    if teacher is not None and teacher.value is not None:
        return "on_policy_distillation: a loss of several models is not known"
    return families.otherwise(spec)


def _model(spec: TrainingSpec) -> str:
    """Of transformers, but for what NeMo Automodel has better code of."""
    why = lm.model(spec, "policy.model_name")
    others, config = spec.fact(HYPER + "config_overrides"), spec.get(lm.CONFIG)
    if why or config is None:
        return why
    if others is not None and others.value:
        config = {**config, **others.value}
        lm.put(spec, lm.CONFIG, config, spec.fact("model"), f"with {others.key}")
    if "vision_config" in config or "audio_config" in config:
        return f"{spec['model']}: a model that sees or hears, whose tower trains too"
    if not lm.switched(spec, "automodel") or lm.switched(spec, "force_hf"):
        return ""
    try:
        own = huggingface.decoder(Sizes(config, "")).experts is not None
    except UnknownModel:
        own = False  # which is said where the model is made
    return f"{spec['model']}: NeMo Automodel's own code is not known" if own or _type(spec) in _AUTOMODELS else ""


def _type(spec: TrainingSpec) -> str:
    return str((spec.get(lm.CONFIG) or {}).get("model_type"))


def _devices(spec: TrainingSpec) -> str:
    """All cards, but for those that generate alone; each sequence is on as many as share it or its layers."""
    if not lm.switched(spec, "dtensor"):
        return "policy.dtensor_cfg.enabled is false: no worker but those on DTensor is known"
    each, nodes = spec[HYPER + "per_node"], spec.get("machines", 1)
    if spec.get("method") == "grpo" and lm.setting(spec, "colocated") is False:
        alone = "engine_cards" if nodes == 1 else "engine_nodes"
        if not isinstance(lm.setting(spec, alone), int):
            return lm.not_stated(spec, "policy.generation.colocated.resources", "gpus_per_node", "num_nodes")
        each, nodes = (each - lm.setting(spec, alone), 1) if nodes == 1 else (each, nodes - lm.setting(spec, alone))
    count, origin = each * nodes, spec.fact(HYPER + "per_node")
    degrees = [spec.fact(name) for name in _DEGREES]
    if count < 1 or count % prod(fact.value or 1 for fact in degrees if fact is not None):
        facts = (*degrees, origin, spec.fact("machines"))
        stated = ", ".join(f"{fact.key} {fact.value}" for fact in facts if fact is not None and fact.value)
        return f"{stated}: {count:,} devices are not divided by the degrees"
    lm.put(spec, "device_count", count, origin, "those that train")
    lm.put(spec, "world_size", count, origin)
    automodel = lm.switched(spec, "automodel")
    if not automodel and (spec.get("parallelism.replicas") or 1) > 1:  # lm_policy.py
        return f"{spec.spelled('parallelism.replicas')}: it is refused without policy.dtensor_cfg._v2"
    if automodel and count == 1:  # FSDP2Manager.parallelize leaves a model alone that is
        spec.facts.pop("parallelism.replicas", None)
        lm.put(spec, "parallelism.strategy", "none", reason="NeMo Automodel: FSDP2Manager")
        return (
            "policy.dtensor_cfg.cpu_offload on one device: it is refused" if spec.get("parallelism.cpu_offload") else ""
        )
    lm.put(spec, "parallelism.strategy", "fsdp2", reason=f"{_VERSION}: fully_shard")
    lm.put(spec, "parallelism.reduce_dtype", "float32", reason=f"{_VERSION}: MixedPrecisionPolicy")
    lm.put(spec, "parallelism.output_dtype", "float32", reason=f"{_VERSION}: MixedPrecisionPolicy")
    lm.put(spec, "parallelism.last_stays", automodel, reason="NeMo Automodel: apply_fsdp2_sharding_recursively")
    if spec["parallelism.context"] > 1:
        return f"{spec.spelled('parallelism.context')}: DTensors of tokens in the loss are not known"
    if spec["parallelism.tensor"] > 1 and _type(spec) not in _SPLIT:
        return f"{spec.spelled('parallelism.tensor')}: how it divides this model is not known"
    groups = lm.text_config(spec.get(lm.CONFIG) or {}).get("num_key_value_heads", 0)
    if isinstance(groups, int) and groups % spec["parallelism.tensor"]:  # validate_tp_mesh
        return f"{spec.spelled('parallelism.tensor')}: it does not divide num_key_value_heads {groups:,}"
    shared = spec["parallelism.tensor"] > 1 and lm.switched(spec, "sequence_parallel")
    lm.put(spec, "parallelism.sequence", shared, spec.fact(HYPER + "sequence_parallel"))
    return ""


def _states(spec: TrainingSpec) -> str:
    stated, name = spec.fact(HYPER + "dtype"), spec.fact(HYPER + "optim")
    if stated is None:
        return lm.not_stated(spec, "policy.precision", "precision")
    for each in ("parameter_dtype", "frozen_dtype"):
        lm.put(spec, each, "float32", reason=f"{_VERSION}: setup.py, weights are loaded in float32")
    lm.put(spec, "compute_dtype", stated.value, stated)
    lm.put(spec, "autocast", stated.value != "float32", stated)
    word = "" if name is None else str(name.value)
    if word not in ("torch.optim.AdamW", "torch.optim.Adam", "torch.optim.SGD"):
        return f"policy.optimizer.name {word}: how many states it has is not known"
    lm.put(spec, "optimizer", word.rpartition(".")[2].lower(), name)
    # torch.optim: a word about neither is foreach; one that says no to either leaves a loop
    fused, foreach = lm.setting(spec, "fused"), lm.setting(spec, "foreach")
    kind = "fused" if fused else "foreach" if foreach or (fused is None and foreach is None) else "loop"
    lm.put(spec, "optimizer_implementation", kind, spec.fact(HYPER + "foreach"), "torch.optim")
    return ""


def _computes(spec: TrainingSpec) -> str:
    if spec["checkpointing"] == "full" and not lm.switched(spec, "automodel"):
        lm.put(spec, "checkpointing_modules", list(_RECOMPUTED), reason=f"{_VERSION}: _parallelize_model")
    elif spec["checkpointing"] == "full":
        kept = spec.get("parallelism.strategy") == "fsdp2" or spec.does("transformers.checkpoints_reentrantly")
        lm.put(spec, "checkpointing_reentrant", kept, reason="NeMo Automodel: DefaultParallelizationStrategy")
    kind = spec.fact(HYPER + "attn_implementation")
    word = "flash_attention_2" if lm.switched(spec, "packed") else "sdpa"
    word = str(kind.value) if kind is not None and kind.value else word
    lm.put(spec, "attention", "flash" if "flash" in word else word, kind, f"{_VERSION}: setup.py")
    way = "shared" if spec["parallelism.tensor"] > 1 else "whole"
    lm.put(spec, "log_probabilities", way, reason=f"{_VERSION}: get_next_token_logprobs_from_logits")
    lm.put(spec, "reference_model", "none", reason="the reference is in host memory")
    lm.put(spec, "evaluation_loss", "as_trained", reason=f"{_VERSION}: train(eval_mode)")
    return ""


def _passes(spec: TrainingSpec) -> None:
    """Rows and tokens of a pass, and how many an update has. Rows that are packed are filled up with padding."""
    length, rows = spec.fact("sequence_length"), spec.fact("micro_batch_size")
    whole = spec.get(HYPER + "train_batch")
    if length is None or rows is None or whole is None or "device_count" not in spec:
        return
    ranks = spec["device_count"] // (spec["parallelism.tensor"] * spec["parallelism.context"])
    samples, packed = max(1, whole // ranks), lm.switched(spec, "packed")
    count, origin = rows.value, rows
    for kind in ("dynamic", "packed"):
        tokens = spec.fact(HYPER + f"{kind}_tokens")
        if lm.switched(spec, kind) and tokens is not None and tokens.value:
            count, origin = max(1, tokens.value // length.value), tokens
    lm.put(spec, "gradient_accumulation_steps", max(1, samples // count), spec.fact(HYPER + "train_batch"))
    _asked(spec, count)
    if packed:
        lm.put(spec, "padding_free", True, spec.fact(HYPER + "packed"))
        lm.put(spec, "sequence_length", count * length.value, origin, "one row of so many tokens")
        count = 1
    else:
        lm.put(spec, "sequence_bound", True, length, "samples are rarely as long")
    lm.put(spec, "micro_batch_size", count, origin)


def _asked(spec: TrainingSpec, learned: int) -> None:
    """A validation, or a pass that asks for log-probabilities first, of more samples than are learned from at once."""
    rows: Fact | None = spec.fact(HYPER + ("asked_rows" if spec.get("method") == "grpo" else "val_rows"))
    if rows is not None and rows.value and rows.value > learned:
        lm.put(spec, "evaluation_batch_size", rows.value, rows)
        lm.put(spec, "evaluation_sequence_length", spec["sequence_length"], rows)


def _engine(spec: TrainingSpec) -> None:
    share = spec.fact(HYPER + "engine_share")
    if spec.get("method") == "grpo" and lm.setting(spec, "colocated") and share is not None:
        lm.put(spec, "engine_share", share.value, share)
        lm.put(spec, "engine_beside", [], share, f"{_VERSION}: offload_after_refit")


FAMILY = lm.Family(
    follows=Graph(
        Step(_elsewhere, ("method", "sequences_per_sample")),
        Step(_model, lm.MODEL_FACTS),
        Step(
            _devices,
            (
                *("device_count", "world_size", "parallelism.strategy", "parallelism.reduce_dtype"),
                *("parallelism.output_dtype", "parallelism.last_stays", "parallelism.sequence", "parallelism.replicas"),
            ),
        ),
        Step(
            _states,
            ("parameter_dtype", "frozen_dtype", "compute_dtype", "autocast", "optimizer", "optimizer_implementation"),
        ),
        Step(
            _computes,
            (
                *("checkpointing_reentrant", "checkpointing_modules", "attention"),
                *("log_probabilities", "reference_model", "evaluation_loss"),
            ),
        ),
        Step(
            _passes,
            (
                *("micro_batch_size", "sequence_length", "sequence_bound", "padding_free"),
                *("gradient_accumulation_steps", "evaluation_batch_size", "evaluation_sequence_length"),
            ),
        ),
        Step(_engine, ("engine_share", "engine_beside")),
    ),
    told=("elsewhere", "model", "devices", "states"),
)
