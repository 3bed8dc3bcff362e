"""Sampling completions with the model that trains, before the steps that learn from them (GRPO, RLOO).

    prompts (R, P) -> keys and values of every layer (R, key heads, P + C, d), token by token -> completions (R, C)

R is what one device generates at once. Each token's keys are joined to those before it, layer by layer, so one layer's
are there twice for a moment; where heads share keys, and prompts are padded, each layer repeats them for its product.
Source: TRL 1.16 ``trainer/grpo_trainer.py`` (``_generate_single_turn``); transformers 5.23 ``cache_utils.py``
(``DynamicLayer.update``), ``integrations/sdpa_attention.py``, ``generation/utils.py`` (``_sample``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.tensor import DType, Tensor, component, empty, float32, int64, uint8
from memlint.models.depth import as_deep
from memlint.models.language.decoder import LanguageModel


def generation(spec: TrainingSpec, model: LanguageModel, config: Decoder, dtype: DType) -> Callable[[], None]:
    """Facts: ``generated_rows``, ``completion_length``, ``sequence_length`` (of prompt and completion)."""
    rows, length = spec["generated_rows"], spec["sequence_length"]
    prompt = max(length - spec["completion_length"], 1)
    gathered = spec.get("parallelism.zero_stage") == 3  # ds3_gather_for_generation

    def generate() -> None:
        whole = _gathered(model, dtype) if gathered else None
        with no_grad():
            tokens, mask = empty((rows, length), int64), empty((rows, length), int64)
            cache = _cache(model, config, rows, prompt, dtype)
            x = model.hidden(empty((rows, prompt), int64))
            last = x[:, -1:]
            del x
            _pick(model, last)
            cache.clear()
            cache = _cache(model, config, rows, length - 1, dtype)
            with component("activations"):
                _next(config, rows, length, dtype)
            _pick(model, last)
            del tokens, mask, cache, last
        del whole

    return generate


def _sizes(config: Decoder) -> tuple[int, int, int]:
    """Heads of the cache, and the widths of their keys and values."""
    if config.latent is not None:
        return config.heads, config.latent.plain_dim + config.latent.rotary_dim, config.latent.value_dim
    return config.key_value_heads, config.head_dim, config.head_dim


def _cache(model: LanguageModel, config: Decoder, rows: int, length: int, dtype: DType) -> list[Tensor]:
    heads, keys, values = _sizes(config)
    kept = []
    with component("activations"):
        for number in range(len(model.layers)):
            window = config.windows[number] if config.windows else 0
            held = min(length, window) if window else length
            kept += [empty((rows, heads, held, keys), dtype), empty((rows, heads, held, values), dtype)]
    return kept


def _next(config: Decoder, rows: int, length: int, dtype: DType) -> None:
    """One more token in one layer."""
    heads, keys, values = _sizes(config)
    joined = empty((rows, heads, length, keys), dtype)
    if heads == config.heads:
        return
    repeated = empty((rows, config.heads, length, keys), dtype), empty((rows, config.heads, length, values), dtype)
    del joined, repeated


def _pick(model: LanguageModel, last: Tensor) -> None:
    """From the last hidden states to one token for each row: logits, a copy in fp32, and its probabilities."""
    with component("logits"):
        logits = model.logits(last)
        wide = empty(logits.shape, float32)
        probabilities = empty(logits.shape, float32)
        del logits, wide, probabilities


def hand_over(spec: TrainingSpec, model: Any) -> Callable[[], None]:
    """All weights at once on each device beside its shards, to send them to an engine with cards of its own.
    (open-instruct ``vllm_utils.py: broadcast_weights_to_vllm``; DeepSpeed 0.19 ``partition_parameters.py:
    _allgather_params_coalesced``)"""
    parameters = as_deep(spec, model, model.parameters())

    def gather() -> None:
        size = sum(parameter.numel * parameter.dtype.itemsize for parameter in parameters)
        with component("communication"):
            whole = empty((size,), uint8)
        del whole

    return gather


def _gathered(model: Any, dtype: DType) -> Tensor:
    """All weights at once on each device, as DeepSpeed's ``GatheredParameters`` has them."""
    with component("communication"):
        return empty((sum(parameter.numel for parameter in model.parameters()),), dtype)
