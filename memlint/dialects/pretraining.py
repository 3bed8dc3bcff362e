"""What trainers descended from Megatron-LM share: decoders described by their sizes, padded vocabularies, degrees of
parallelism, and batches that are stated for all devices at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.dialects import language_model as lm
from memlint.facts.spec import ASSUMED, DEFAULT, Fact, Name, TrainingSpec

# ---------------------------------------------------------------------------------------------- reading a spec


def number(spec: TrainingSpec, name: str) -> int:
    """A size that a key states; 0 where it is absent."""
    value = lm.setting(spec, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def describe(spec: TrainingSpec, made: Decoder, reason: str) -> None:
    """The decoder that a trainer's options describe; ``reason`` says whose sizes they are.

    A table of learned positions that has as many rows as a sample has tokens changes with it.
    """
    spec.model_name = size_label(made)
    length = spec.fact("sequence_length")
    rows = spec.fact(lm.HYPER + "max_position_embeddings")
    own = rows is not None and rows.node is not None and bool(rows.value)
    if own and rows is not None and rows.node is not None and length is not None and length.node is not None:
        own = rows.node.span != length.node.span
    if made.positions and not own and length is not None and spec.tried("sequence_length") is not None:
        made = made._replace(positions=length.value)
    lm.put(spec, lm.DECODER, made, spec.fact(lm.HYPER + "num_layers"), reason)


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

    spec.fact(lm.DECODER)  # whose step knows which gaps say nothing of the model
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


def size_label(made: Decoder) -> str:
    """``24 layers of 1536``: what a report calls a model that has no name."""
    return f"{made.layers} layers of {made.width}"


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


# Rows of published vocabularies, from the smallest to the largest in wide use, and of those that SentencePiece has.
_PUBLISHED = (32_000, 50_257, 128_256, 256_000)  # Llama 2, GPT-2, Llama 3, Gemma
_PUBLISHED_PIECES = (32_000, 64_000, 256_000)  # Llama 2, Yi, Gemma
_PIECES = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "SPMTokenizer", "sentencepiece")


def plausible_rows(spec: TrainingSpec) -> tuple[int, ...]:
    """Padded rows that a tokenizer's vocabulary may have, the fewest first, where only its file says how many: those of
    published ones. () where none is named, or its rows are stated or told by its kind."""
    named = [spec.fact(lm.HYPER + name) for name in ("tokenizer_type", "tokenizer_library")]
    kinds = {str(fact.value) for fact in named if fact is not None and fact.value is not None}
    multiple = number(spec, "make_vocab_size_divisible_by") * (spec.get("parallelism.tensor", 1) or 1)
    if not kinds or not multiple or kinds & _ROWS.keys() or number(spec, "padded_vocab_size"):
        return ()
    sizes = _PUBLISHED_PIECES if kinds & set(_PIECES) else _PUBLISHED
    return tuple(dict.fromkeys(padded(rows, multiple) for rows in sizes))


def padded(rows: int, multiple: int) -> int:
    """Rows rounded up to a multiple (Megatron-LM, tokenizer.py: _vocab_size_with_padding)."""
    return -(-rows // max(multiple, 1)) * max(multiple, 1)


# ---------------------------------------------------------------------------------------------- devices


_DEGREES: tuple[Name, ...] = ("parallelism.tensor", "parallelism.pipeline", "parallelism.context")


def devices(spec: TrainingSpec, counts: Sequence[Fact]) -> str:
    """The data parallel degree, and with it the micro batches of a step. Why the degrees do not fit, or "".

    The product of ``counts`` is the number of all devices; it is not known where there are none.
    """
    model = 1
    name: Name
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


# What :func:`devices` gives.
DEVICES: tuple[Name, ...] = ("device_count", "world_size", "parallelism.data", "gradient_accumulation_steps")


def _product(counts: Sequence[Fact]) -> str:
    """How the config states a number of devices."""
    return " x ".join(
        f"{fact.key} {fact.value:,}" if fact.node is not None else f"{fact.value:,} devices" for fact in counts
    )


def sharing(spec: TrainingSpec, stage: int, origin: Fact | None, reason: str = "", alone: bool = True) -> None:
    """What data parallel devices divide: nothing (0), or what the stage of ZeRO says. Of one such device ``alone`` says
    whether it is as if there were no stages."""
    data = spec.get("parallelism.data")
    if data == 1 and alone:
        lm.put(spec, "parallelism.strategy", "none", spec.fact("parallelism.data"), "one data parallel device")
        return
    if stage:
        lm.put(spec, "parallelism.strategy", "zero", origin, reason)
        lm.put(spec, "parallelism.zero_stage", stage, origin, reason)
        if isinstance(data, int):
            lm.put(spec, "parallelism.shard", data, spec.fact("parallelism.data"))
    elif data is not None:
        lm.put(spec, "parallelism.strategy", "ddp", spec.fact("parallelism.data"), "nothing is divided")


# What :func:`sharing` gives, and what stands for it.
SHARED: tuple[Name, ...] = (
    *("parallelism.strategy", "parallelism.zero_stage", "parallelism.shard", "parallelism.reshard_after_forward"),
)


# ---------------------------------------------------------------------------------------------- recomputation

RECOMPUTED: tuple[Name, ...] = (
    *("checkpointing", "checkpointing_modules", "checkpointing_layers", "checkpointing_chunk"),
)


def recomputed(
    spec: TrainingSpec, granularity: Fact | None, method: Any, number_of_layers: str, modules: Sequence[str] = ()
) -> str:
    """Megatron's words for what is recomputed in backward. Why what is recomputed is not known, or "".

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


HALF_FACTS: tuple[Name, ...] = ("parameter_dtype", "compute_dtype", "autocast", "master_weights", "gradient_dtype")


def half(spec: TrainingSpec, stated: Fact | None, dtype: str, gradients: str) -> None:
    """Weights in ``dtype`` with float32 copies in the optimizer; in float32, nothing is copied."""
    copied = dtype in lm.HALF
    reason = "" if copied else "no option for 16 bits"
    name: Name
    for name, value in (("parameter_dtype", dtype), ("compute_dtype", dtype), ("autocast", False)):
        lm.put(spec, name, value, stated, reason)
    lm.put(spec, "master_weights", copied, stated, reason)
    if "gradient_dtype" not in spec:
        lm.put(spec, "gradient_dtype", gradients, stated, reason)
