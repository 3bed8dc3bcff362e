"""A training loop of its own that still names the model's outputs while backward runs: logits, and the cache of keys
and values that transformers makes unless it is told not to. (transformers' Trainer lets go of them before.)

Source: ``transformers`` 5.23 ``modeling_outputs.py``, ``cache_utils.py`` (``DynamicLayer.update``); ``accelerate``
1.15 ``utils/operations.py`` (``ConvertOutputsToFp32``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import OWN_LAYERS
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, component, empty, float32, state
from memlint.models.language.decoder import LanguageModel


class Outputs:
    """What one forward pass returns beside the loss. It lives until the next one has returned."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.named: list[Any] | None = None  # None before the first step


class CachedScores(Module):
    """Keys and values (B, kv, S, d) are copied into the cache, which has the keys' dtype, and attention reads the
    copies."""

    def __init__(self, base: Module, outputs: Outputs) -> None:
        self.base, self.outputs = base, outputs

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        key = F.cat((key,), -2)
        value = F.cat((value,), -2) if value.dtype is key.dtype else to(value, key.dtype)
        if state.grad_enabled:
            self.outputs.made.append((key, value))
        return self.base(query, key, value, mask)


def keep(model: LanguageModel, widened: bool = False) -> None:
    """Have the loop name them. Recomputed layers take no cache (``use_cache`` is turned off); of the older models with
    an attention of their own, the logits alone are counted.

    widened  accelerate's mixed precision: logits leave the model in fp32
    """
    outputs = Outputs()
    if has_cache(model):
        for layer in model.layers:
            plain: Any = layer
            plain.self_attn.scores = CachedScores(plain.self_attn.scores, outputs)
    forward, logits = model.forward, model.logits

    def named(x: Tensor) -> Tensor:
        made = logits(x)
        if state.grad_enabled:
            outputs.made.append(made)
        return made

    def whole(given: Tensor, labels: Tensor) -> Tensor:
        if outputs.named is None and not model.padded:  # the longest of padded batches follows a shorter one
            outputs.named = of_last_step(model, given, widened)
        loss = forward(given, labels)
        made, outputs.made = outputs.made, []
        if widened and state.autocast is not None:
            with no_grad(), component("logits"):
                made = [to(entry, float32) if isinstance(entry, Tensor) else entry for entry in made]
        outputs.named = made
        return loss

    replaced: Any = model
    replaced.forward, replaced.logits = whole, named


def has_cache(model: LanguageModel) -> bool:
    return not model.checkpointed and model.config.code not in OWN_LAYERS


def of_last_step(model: LanguageModel, given: Tensor, widened: bool) -> list[Tensor]:
    """Those of a batch as long as this one."""
    config = model.config
    own = model.embed_tokens.weight.dtype
    dtype = state.autocast or own
    rows, length = given.shape[:2]
    if model.prompt is not None:
        length = length + model.prompt.tokens  # type: ignore[attr-defined]
    with component("logits"):
        found = [empty((rows, length, config.vocabulary), float32 if widened and state.autocast else dtype)]
    if not has_cache(model):
        return found
    prefix = getattr(model, "prefix", None)
    length = length if prefix is None else length + prefix.tokens
    heads = config.heads if config.latent is not None else config.key_value_heads
    width = config.head_dim if config.latent is None else config.latent.value_dim
    kept = dtype if config.rotary == "none" else own  # tables in the hidden states' dtype promote what they turn
    for _ in model.layers:
        found += [empty((rows, heads, length, config.head_dim), kept), empty((rows, heads, length, width), kept)]
    return found
