"""What trainers descended from Megatron-LM share: decoders described by their sizes, padded vocabularies, degrees of
parallelism, and batches that are stated for all devices at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.spec import ASSUMED, DEFAULT, Fact, TrainingSpec
from memlint.named_tuple import NamedTuple


class Decoder(NamedTuple):
    """A decoder as its sizes and switches describe it.

    positions   "learned", "rope", "alibi" or "none"
    norm        "layer" or "rms"
    parallel    attention and perceptron read the same residual stream
    biased      linear layers have biases; ``qkv_biased`` where only queries, keys and values have them
    experts     per layer, of width ``expert_inner``; 0 for a plain perceptron
    plain       layers that have a plain perceptron all the same
    shared      width of the expert that every token visits
    latent      of attention through a narrow vector: rank of queries (0 for none), rank of keys and values, plain and
                rotated numbers of a head, numbers of a value
    """

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    length: int
    head_dim: int = 0
    positions: str = "learned"
    rotary_share: float = 1.0
    norm: str = "layer"
    gated: bool = False
    activation: str = "gelu"
    biased: bool = True
    qkv_biased: bool = False
    query_norm: bool = False
    parallel: bool = False
    tied: bool = True
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 2
    expert_inner: int = 0
    plain: tuple[int, ...] = ()
    shared: int = 0
    latent: tuple[int, int, int, int, int] | None = None


_NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}


def config_of(decoder: Decoder) -> tuple[dict[str, Any] | None, str]:
    """(the ``config.json`` of transformers' model of the same computation, "") or (None, why there is none).

    Where several would do, the one that is known by the name of the architecture.
    """
    own_dim = decoder.head_dim and decoder.head_dim * decoder.heads != decoder.width
    config: dict[str, Any] = {
        "vocab_size": decoder.vocabulary,
        "hidden_size": decoder.width,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.groups,
        "intermediate_size": decoder.inner,
        "hidden_act": decoder.activation,
        "max_position_embeddings": decoder.length,
        "tie_word_embeddings": decoder.tied,
        "attention_dropout": decoder.attention_dropout,
    }
    if own_dim:
        config["head_dim"] = decoder.head_dim
    if decoder.rotary_share != 1.0:
        config["partial_rotary_factor"] = decoder.rotary_share
    kind = _kind(decoder, bool(own_dim))
    if not kind:
        return None, "no model is known with " + _described(decoder)
    config["model_type"] = kind
    own = _SETTINGS.get(kind)
    return (own(decoder, config) if own is not None else config), ""


def _kind(decoder: Decoder, own_dim: bool) -> str:
    """The model type, or "" for none."""
    if decoder.latent is not None:
        usual = decoder.norm == "rms" and decoder.gated and not decoder.biased and decoder.positions == "rope"
        whole = not decoder.hidden_dropout and not decoder.parallel and decoder.experts and _leading(decoder)
        return "deepseek_v3" if usual and whole else ""
    if decoder.experts:
        if decoder.norm != "rms" or not decoder.gated or decoder.biased or decoder.positions != "rope":
            return ""
        if decoder.hidden_dropout or decoder.parallel:
            return ""
        if decoder.shared:
            return "glm4_moe" if _leading(decoder) else ""
        return "qwen3_moe" if decoder.query_norm or decoder.qkv_biased or decoder.plain else "mixtral"
    if decoder.norm == "rms" and decoder.gated and decoder.positions == "rope" and not decoder.parallel:
        if decoder.hidden_dropout:
            return "" if decoder.query_norm else "seed_oss"
        if decoder.query_norm:
            return "" if decoder.biased else "qwen3"
        return "qwen2" if decoder.qkv_biased and not decoder.biased else "llama"
    if decoder.norm != "layer" or decoder.query_norm or own_dim:
        return ""
    if decoder.gated:
        plain = decoder.positions == "rope" and not decoder.biased and not decoder.parallel
        return "stablelm" if plain else ""
    alone = decoder.groups == decoder.heads and decoder.biased
    if decoder.positions == "learned":
        return "gpt2" if alone and not decoder.parallel else ""
    if decoder.positions == "alibi":
        return "bloom" if alone and not decoder.parallel else ""
    if decoder.positions != "rope":
        return ""
    if alone:
        return "gpt_neox"
    return "" if decoder.parallel or decoder.qkv_biased else "starcoder2"


def _leading(decoder: Decoder) -> bool:
    """Whether plain layers are the first ones, and the shared expert is as wide as some of the others together."""
    inner = decoder.expert_inner or decoder.inner
    return decoder.plain == tuple(range(len(decoder.plain))) and decoder.shared % inner == 0


def _described(decoder: Decoder) -> str:
    parts = [_NORMS[decoder.norm], "a gated perceptron" if decoder.gated else "a plain perceptron"]
    parts.append(
        {"learned": "learned", "rope": "rotary", "alibi": "ALiBi", "none": "no"}[decoder.positions] + " positions"
    )
    if decoder.groups != decoder.heads:
        parts.append("grouped heads")
    parts.append("biases" if decoder.biased else "no biases")
    if decoder.experts:
        parts.append("experts beside a shared one" if decoder.shared else "experts")
    if decoder.plain:
        parts.append("plain layers between them")
    if decoder.latent is not None:
        parts.append("latent attention")
    if decoder.query_norm:
        parts.append("norms of queries and keys")
    if decoder.hidden_dropout:
        parts.append(f"a hidden_dropout of {decoder.hidden_dropout:g}")
    if decoder.parallel:
        parts.append("parallel residuals")
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _llama(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "attention_bias": decoder.biased, "mlp_bias": decoder.biased}


def _seed(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    config.update(attention_bias=decoder.biased or decoder.qkv_biased, attention_out_bias=decoder.biased)
    return {**config, "mlp_bias": decoder.biased, "residual_dropout": decoder.hidden_dropout}


def _qwen3(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "attention_bias": decoder.qkv_biased, "head_dim": config.get("head_dim", _head_dim(decoder))}


def _mixtral(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    inner = decoder.expert_inner or decoder.inner
    config.update(num_local_experts=decoder.experts, num_experts_per_tok=decoder.experts_per_token)
    return {**config, "intermediate_size": inner, "sliding_window": None}


def _qwen3_moe(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    inner = decoder.expert_inner or decoder.inner
    config.update(num_experts=decoder.experts, num_experts_per_tok=decoder.experts_per_token)
    config["mlp_only_layers"] = list(decoder.plain)
    return {**_qwen3(decoder, config), "moe_intermediate_size": inner, "norm_topk_prob": True}


def _glm4_moe(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    inner = decoder.expert_inner or decoder.inner
    config.update(n_routed_experts=decoder.experts, num_experts_per_tok=decoder.experts_per_token)
    config.update(n_shared_experts=decoder.shared // inner, first_k_dense_replace=len(decoder.plain))
    config.update(attention_bias=decoder.qkv_biased, use_qk_norm=decoder.query_norm, head_dim=_head_dim(decoder))
    return {**config, "moe_intermediate_size": inner, "partial_rotary_factor": decoder.rotary_share}


def _deepseek(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    assert decoder.latent is not None
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ranks = dict(zip(names, decoder.latent))
    config = _glm4_moe(decoder, {key: value for key, value in config.items() if key != "head_dim"})
    del config["head_dim"], config["partial_rotary_factor"]
    return {**config, **ranks}


def _gpt2(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": decoder.vocabulary,
        "n_embd": decoder.width,
        "n_layer": decoder.layers,
        "n_head": decoder.heads,
        "n_inner": decoder.inner,
        "n_positions": decoder.length,
        "activation_function": decoder.activation,
        "attn_pdrop": decoder.attention_dropout,
        "resid_pdrop": decoder.hidden_dropout,
        "embd_pdrop": decoder.hidden_dropout,
        "tie_word_embeddings": decoder.tied,
    }


def _neox(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    config.update(use_parallel_residual=decoder.parallel, rotary_pct=decoder.rotary_share)
    return {**config, "attention_bias": True, "hidden_dropout": decoder.hidden_dropout}


def _starcoder2(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    config.update(use_bias=decoder.biased, sliding_window=None)
    return {**config, "residual_dropout": decoder.hidden_dropout, "embedding_dropout": decoder.hidden_dropout}


def _stablelm(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    config.update(use_qkv_bias=decoder.qkv_biased, use_parallel_residual=False)
    return {**config, "partial_rotary_factor": decoder.rotary_share, "hidden_dropout": decoder.hidden_dropout}


def _bloom(decoder: Decoder, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "bloom",
        "vocab_size": decoder.vocabulary,
        "hidden_size": decoder.width,
        "n_layer": decoder.layers,
        "n_head": decoder.heads,
        "intermediate_size": decoder.inner,
        "hidden_dropout": decoder.hidden_dropout,
        "attention_dropout": decoder.attention_dropout,
        "tie_word_embeddings": decoder.tied,
    }


def _head_dim(decoder: Decoder) -> int:
    return decoder.head_dim or decoder.width // decoder.heads


_SETTINGS = {
    "llama": _llama,
    "seed_oss": _seed,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "bloom": _bloom,
}


# ---------------------------------------------------------------------------------------------- reading a spec


def number(spec: TrainingSpec, name: str) -> int:
    """A size that a key states; 0 where it is absent."""
    value = lm.setting(spec, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def follow_length(spec: TrainingSpec) -> None:
    """A table of positions that has as many rows as a sample has tokens changes with it."""
    config, length = spec.get(lm.CONFIG), spec.fact("sequence_length")
    rows = spec.fact(lm.HYPER + "max_position_embeddings")
    own = rows is not None and rows.node is not None and bool(rows.value)
    if own and rows is not None and rows.node is not None and length is not None and length.node is not None:
        own = rows.node.span != length.node.span
    if isinstance(config, dict) and config.get("model_type") == "gpt2" and not own:
        lm.follow(spec, lm.CONFIG, "sequence_length", lambda tokens: {**config, "n_positions": tokens})


def share(spec: TrainingSpec, name: str) -> float:
    """A number that a key states; 0 where it is absent."""
    value = lm.setting(spec, name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def unstated(spec: TrainingSpec, names: dict[str, str]) -> str:
    """Why a decoder is not known: the first of these keys (setting -> how the family spells it) without a value."""
    for name, key in names.items():
        if not number(spec, name):
            return lm.not_stated(spec, key, key.lstrip("-"), key.rsplit(".", 1)[-1])
    return ""


# Settings that decide nothing where they are written but not known.
_IDLE = ("deepspeed_config", "tokenizer_model", "vocab_file", "tokenizer_library", "loss_scale", "restore_from_path")


def undecided(spec: TrainingSpec) -> str:
    """The first key of the model or of its parallelism that is written, but not known: no default stands for it."""
    from memlint.dialects import registry

    if not spec.missing:
        return ""
    spellings = {
        name
        for key in registry.dialect(spec.family).keys
        for room, _, setting in (key.annotation.get("fact", "").partition("."),)
        if room in ("hyperparameters", "parallelism") and setting not in _IDLE
        for name in key.names
    }
    item = lm.gap(spec, *spellings)
    return "" if item is None else f"{item.key} is not known: {item.reason}"


def size_label(decoder: Decoder) -> str:
    """``24 layers of 1536``: what a report calls a model that has no name."""
    return f"{decoder.layers} layers of {decoder.width}"


# ---------------------------------------------------------------------------------------------- the vocabulary

# Kinds of tokenizer that come with a vocabulary of their own -> its rows.
_ROWS = {
    "GPT2BPETokenizer": (50257, "GPT-2's vocabulary"),
    "HFGPT2Tokenizer": (50257, "GPT-2's vocabulary"),
    "Llama2Tokenizer": (32000, "Llama 2's vocabulary"),
    "BertWordPieceLowerCase": (30522, "BERT's uncased vocabulary"),
    "BertWordPieceCase": (28996, "BERT's cased vocabulary"),
    "CharLevelTokenizer": (512, "its own size"),
}
# Vocabularies by the file that holds them, as they are published.
_FILES = {"20b_tokenizer.json": (50277, "GPT-NeoX-20B's vocabulary"), "gpt2-vocab.json": (50257, "GPT-2's vocabulary")}


def vocabulary(
    spec: TrainingSpec, kind: Fact | None, source: Fact | None, multiple: int, key: str = "vocab_size"
) -> tuple[Fact | None, str]:
    """(rows of the embedding, padded as Megatron does) or (None, why they are not known).

    kind      the kind of tokenizer
    source    its file, or its hub id
    multiple  of what the rows are padded to: the divisor times the tensor parallel degree
    """
    name = "" if source is None or not isinstance(source.value, str) else source.value
    rows: tuple[int, str] | None = _FILES.get(name.rsplit("/", 1)[-1].lower())
    if rows is None and kind is not None:
        rows = _ROWS.get(str(kind.value))
    if rows is None and name:
        beside = source.span.path if source is not None and source.span is not None else spec.document.path
        config, _ = lm.resolve(name, beside)
        size = lm.text_config(config).get("vocab_size") if config is not None else None
        if isinstance(size, int):
            rows = (size, f"{name}'s vocabulary")
    if rows is None:
        unstated = lm.not_stated(spec, key, key.lstrip("-"))
        if source is not None and name and source.node is not None:
            return None, f"{source.key} {name}: how many rows it has is in its file, and {unstated}"
        what = "no tokenizer is named" if kind is None else f"how many rows {kind.value} has is in its file"
        return None, f"{unstated}, and {what}"
    found, reason = rows
    origin = kind.origin if kind is not None and kind.origin == DEFAULT else ASSUMED
    return Fact("vocabulary_size", padded(found, multiple), origin, key, None, f"{reason}, padded"), ""


def padded(rows: int, multiple: int) -> int:
    """Rows rounded up to a multiple (Megatron-LM, tokenizer.py: _vocab_size_with_padding)."""
    return -(-rows // max(multiple, 1)) * max(multiple, 1)


# ---------------------------------------------------------------------------------------------- devices


_DEGREES = ("parallelism.tensor", "parallelism.pipeline", "parallelism.context")


def devices(spec: TrainingSpec, counts: Sequence[Fact]) -> str:
    """The data parallel degree, and with it the micro batches of a step. Why the degrees do not fit, or "".

    The product of ``counts`` is the number of all devices; it is not known where there are none.
    """
    model = 1
    for name in _DEGREES:
        model *= max(spec.get(name, 1) or 1, 1)
    if not counts:
        return ""
    count, total = counts[0], prod(fact.value for fact in counts)
    for name in ("device_count", "world_size"):
        lm.put(spec, name, total, count)
    if total % model:
        degrees = [fact for fact in map(spec.fact, _DEGREES) if fact is not None and fact.value not in (None, 1)]
        named = " x ".join(f"{fact.key} {fact.value:,}" for fact in degrees)
        return f"{_product(counts)}: no multiple of {model:,}, which share one copy of the model ({named})"
    data = total // model
    lm.put(spec, "parallelism.data", data, count)
    batch, micro = spec.fact("global_batch_size"), spec.fact("micro_batch_size")
    if batch is None or micro is None or not isinstance(batch.value, int) or not isinstance(micro.value, int):
        return ""
    if batch.value % (micro.value * data):
        return (
            f"{batch.key} {batch.value:,} is no multiple of {micro.key} {micro.value:,} on each of {data:,} data "
            f"parallel devices ({_product(counts)})"
        )
    stated = spec.fact("gradient_accumulation_steps")
    if stated is None or stated.node is None:
        lm.put(spec, "gradient_accumulation_steps", batch.value // (micro.value * data), batch)
    return ""


def _product(counts: Sequence[Fact]) -> str:
    """How the config states a number of devices."""
    return " x ".join(
        f"{fact.key} {fact.value:,}" if fact.node is not None else f"{fact.value:,} devices" for fact in counts
    )


def sharing(spec: TrainingSpec, stage: int, origin: Fact | None, reason: str = "") -> None:
    """What data parallel devices divide: nothing (0), or what the stage of ZeRO says."""
    data = spec.get("parallelism.data")
    if data == 1:
        lm.put(spec, "parallelism.strategy", "none", spec.fact("parallelism.data"), "one data parallel device")
        return
    if stage:
        lm.put(spec, "parallelism.strategy", "zero", origin, reason)
        lm.put(spec, "parallelism.zero_stage", stage, origin, reason)
        if isinstance(data, int):
            lm.put(spec, "parallelism.shard", data, spec.fact("parallelism.data"))
    elif data is not None:
        lm.put(spec, "parallelism.strategy", "ddp", spec.fact("parallelism.data"), "nothing is divided")


# ---------------------------------------------------------------------------------------------- recomputation


def recomputed(
    spec: TrainingSpec, granularity: Fact | None, method: Any, number_of_layers: str, modules: Sequence[str] = ()
) -> str:
    """Megatron's words for what is recomputed in backward. Call when ``attention`` and the schedule are known.
    Why what is recomputed is not known, or "".

    ``number_of_layers`` is the setting that says how many layers.
    """
    layers, stated = number(spec, number_of_layers), spec.fact(lm.HYPER + number_of_layers)
    value = None if granularity is None else granularity.value
    if granularity is None or value in (None, "none"):
        lm.put(spec, "checkpointing", "none", reason="nothing is recomputed unless an option says so")
        return ""
    key = granularity.key
    if value == "selective":
        parts = [name for name in modules or ("core_attn",) if not (name == "core_attn" and _is_flash(spec))]
        unknown = set(parts) - set(MODULES)
        if unknown:
            lm.put(spec, "checkpointing", "selective", granularity)
            return f"{key}: recomputing {', '.join(sorted(unknown))} is not known"
        if not parts:
            reason = "only attention's scores are recomputed, which a fused kernel does not keep"
            lm.put(spec, "checkpointing", "none", granularity, reason)
            return ""
        lm.put(spec, "checkpointing", "selective", granularity)
        lm.put(spec, "checkpointing_modules", parts, granularity)
        return ""
    if method == "block":
        pieces = spec.get("parallelism.virtual_stages") or 1
        lm.put(spec, "checkpointing", "blocks", granularity)
        origin = stated if layers else granularity
        lm.put(spec, "checkpointing_layers", max(layers, 1) * pieces, origin, "the first of each (virtual) stage")
        return ""
    lm.put(spec, "checkpointing", "full", granularity)
    if layers > 1:
        lm.put(spec, "checkpointing_chunk", layers, stated)
    return ""


# Parts of a layer that Megatron recomputes by name (megatron/core/transformer/transformer_config.py).
MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")


def _is_flash(spec: TrainingSpec) -> bool:
    return bool(spec.get("attention") == "flash")


# ---------------------------------------------------------------------------------------------- precision


def half(spec: TrainingSpec, stated: Fact | None, dtype: str, gradients: str) -> None:
    """Weights in ``dtype`` with float32 copies in the optimizer; in float32, nothing is copied."""
    copied = dtype in lm.HALF
    reason = "" if copied else "no option for 16 bits"
    for name, value in (("parameter_dtype", dtype), ("compute_dtype", dtype), ("autocast", False)):
        lm.put(spec, name, value, stated, reason)
    lm.put(spec, "master_weights", copied, stated, reason)
    if "gradient_dtype" not in spec:
        lm.put(spec, "gradient_dtype", gradients, stated, reason)
