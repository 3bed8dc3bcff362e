"""Language models by the contents of their ``config.json``, as Hugging Face transformers trains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.dialects.spec import TrainingSpec
from memlint.meta.amp import to
from memlint.meta.nn import Module
from memlint.meta.optim import OPTIMIZERS
from memlint.meta.tensor import DTYPES, DType, Tensor, default_dtype, float32
from memlint.models import UnknownModel
from memlint.models.language import adapters, losses, quantisation
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.hyperparameters import Hyperparameters, hyperparameters
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

# The release of transformers in which SDPA was first given grouped heads as they are (pull request 39412).
GROUPED_SINCE = (4, 54)


class Batch(NamedTuple):
    """What the data collator makes: (B, S) int64 each."""

    tokens: Tensor
    attention_mask: Tensor
    labels: Tensor


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "language_model"``. Facts: ``docs/facts.md``.

    Raises UnknownModel where the model, a size, or a way of computing is not known.
    """
    _refuse_unknown(spec)
    config = _config(spec)
    rows = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1)
    length = _sequence_length(spec)
    compute, weights = spec.get("compute_dtype", "float32"), _stored_dtype(spec)
    autocast = compute in ("bfloat16", "float16") and (spec.get("autocast", False) or weights == "float32")
    optimizer = spec.get("optimizer", "adamw")
    if optimizer not in OPTIMIZERS:
        raise UnknownModel(f"the optimizer {optimizer!r} is not known")
    model = language_model(spec, config, DTYPES[weights], autocast)
    _quantise(model, spec, DTYPES[compute])
    adapters.adapt(model, spec, config)

    def batch() -> Batch:
        return _batch(rows, length)

    def loss(given: Batch) -> Tensor:
        out: Tensor = model(given.tokens, given.labels)
        return out

    return System(
        model=model,
        batch=batch,
        loss=loss,
        optimizer=optimizer,
        optimizer_options=_optimizer_options(spec),
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if autocast else None,
        ema=(model,) if spec.get("ema", False) else (),
        evaluate=_evaluation(spec, model, DTYPES[compute] if autocast else None),
    )


def _refuse_unknown(spec: TrainingSpec) -> None:
    """What would change most of the estimate, and is not known here, is better said than passed over."""
    kind = spec.get("model_class", "causal_lm")
    if kind != "causal_lm":
        raise UnknownModel(f"models of class {kind!r} are not known")


def _stored_dtype(spec: TrainingSpec) -> str:
    """Of the weights as they were loaded; those that an adapter trains have a dtype of their own."""
    weights: str = spec.get("parameter_dtype", "float32")
    if spec.get("tuning", "full") == "full" and spec.get("quantization.bits") is None:
        return weights
    return spec.get("frozen_dtype", weights)  # type: ignore[no-any-return]


def _quantise(model: LanguageModel, spec: TrainingSpec, compute: DType) -> None:
    """Every linear layer but the head, as transformers has it (``get_keys_to_not_convert``)."""
    if spec.get("quantization.bits") is None:
        return
    if spec.get("tuning", "full") == "full":
        raise UnknownModel("quantised weights cannot be trained without an adapter")
    made = quantisation.layer(spec, compute)
    replace_linears(model, lambda name, base: None if name == "lm_head" else made(base))
    if spec.get("quantization.prepared", False):
        quantisation.widen(model)


def language_model(spec: TrainingSpec, config: Hyperparameters, dtype: DType, autocast: bool) -> LanguageModel:
    """The modules alone."""
    kind = spec.get("attention", "sdpa")
    if kind not in ("eager", "sdpa", "flash", "xformers"):
        raise UnknownModel(f"the attention implementation {kind!r} is not known")
    if kind == "flash" and dtype.itemsize != 2 and not autocast:
        raise UnknownModel(f"FlashAttention takes bfloat16 and float16, not {dtype.name}")
    if kind == "sdpa" and (config.score_cap or config.sinks):
        kind = "eager"  # SDPA has no place for a cap or a sink: transformers refuses it
    if kind == "sdpa" and _older(spec.get("transformers_version"), GROUPED_SINCE):
        kind = "sdpa_repeated"
    loss = spec.get("loss", "full")
    if loss not in ("full", "chunked", "fused"):
        raise UnknownModel(f"the loss {loss!r} is not known")
    with default_dtype(dtype):
        return LanguageModel(
            config,
            kind,
            _checkpointed(spec),
            spec.get("checkpointing_reentrant", False),
            spec.get("padding", False),
            loss,
            spec.get("loss_chunks") or losses.CHUNKS,
        )


def _older(version: Any, than: tuple[int, int]) -> bool:
    """Whether a release, where it is stated ("4.50.0"), comes before another."""
    numbers = tuple(int(part) for part in str(version or "").split(".")[:2] if part.isdigit())
    return len(numbers) == 2 and numbers < than


def _config(spec: TrainingSpec) -> Hyperparameters:
    config = spec.get("hyperparameters.config")
    if not isinstance(config, Mapping):
        name = spec.get("model")
        what = "the model" if name is None else f"the model {name!r}"
        raise UnknownModel(spec.unknown_reason or f"{what} is known neither by its config.json nor by the catalogue")
    found = hyperparameters(config)
    rows = spec.get("vocabulary_size")
    return found if rows is None else found._replace(vocabulary=rows)


def _sequence_length(spec: TrainingSpec) -> int:
    length = spec.get("sequence_length")
    if length is None:
        raise UnknownModel("nothing bounds the length of a sample")
    return length  # type: ignore[no-any-return]


def _checkpointed(spec: TrainingSpec) -> int:
    """Every how many layers one is recomputed; 0 for none."""
    kind = spec.get("checkpointing", "none")
    if kind == "none":
        return 0
    if kind == "full":
        return 1
    if kind == "every":
        return max(int(spec.get("checkpointing_every", 1)), 1)
    raise UnknownModel(f"checkpointing {kind!r} is not known for language models")


def _batch(rows: int, length: int) -> Batch:
    return Batch(*(losses.token_numbers(rows, length) for _ in range(3)))


def _evaluation(spec: TrainingSpec, model: LanguageModel, autocast: DType | None) -> Any:
    """One evaluation batch, as the Trainer runs it: in whole logits, of which accelerate makes fp32 under autocast."""
    rows = spec.get("evaluation_batch_size")
    if rows is None:
        return None
    length = spec.get("evaluation_sequence_length") or _sequence_length(spec)

    def evaluate() -> Tensor | None:
        _set_training(model, False)
        given = _batch(rows, length)
        _, logits = model.evaluate(given.tokens, given.labels)
        if autocast is not None:
            logits = to(logits, float32)
        return logits

    return evaluate


def _set_training(model: Module, training: bool) -> None:
    for module in model.modules():
        module.training = training


def _optimizer_options(spec: TrainingSpec) -> dict[str, Any]:
    options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation", "foreach")}
    if spec.get("optimizer") == "sgd":
        options["momentum"] = bool(spec.get("hyperparameters.momentum", 0))
        options["weight_decay"] = bool(spec.get("hyperparameters.weight_decay", 0))
    return options
