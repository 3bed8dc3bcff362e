"""Which of the decoders that a library computes in a way of its own are known, and in which releases it does so how.

Sources: torchtune 0.4, 0.6 and 0.7 (:mod:`memlint.models.language.torchtune`), torchtitan 0.2 and 0.3
(:mod:`memlint.models.language.torchtitan`), litgpt 0.5 (:mod:`memlint.models.language.litgpt`).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.library_norms import release_of_norm
from memlint.models.language.litgpt import LitgptModel
from memlint.models.language.torchtitan import TorchtitanModel, TorchtitanRegistryModel
from memlint.models.language.torchtune import TorchtuneModel
from memlint.named_tuple import NamedTuple

MODELS: dict[str, type[TorchtuneModel]] = {
    "torchtune": TorchtuneModel,
    "torchtitan": TorchtitanModel,
    "torchtitan registry": TorchtitanRegistryModel,
    "litgpt": LitgptModel,
}


class Known(NamedTuple):
    """Switches of a decoder that a library's own code computes, and that are known here."""

    norm: tuple[str, ...]
    residual: tuple[str, ...]
    rotary: tuple[str, ...]
    query_norm: tuple[str, ...] = ("none", "head")
    plain: bool = False
    capped: bool = False


_TITAN = Known(("rms",), ("pre",), ("complex", "half"))
KNOWN = {
    "torchtune": Known(
        *(("rms", "gemma"), ("pre", "sandwich"), ("interleaved_wide", "half"), ("none", "head_after")), capped=True
    ),
    "torchtitan": _TITAN,
    "torchtitan registry": _TITAN,
    "litgpt": Known(
        ("rms", "gemma", "layer", "plain"),
        ("pre", "post", "sandwich", "parallel", "parallel_two"),
        ("half", "partial", "interleaved", "none"),
        ("none", "head", "whole"),
        plain=True,
        capped=True,
    ),
}

# What computes a norm of theirs.
_NORMS = {
    ("torchtune", "rms"): "cast",
    ("torchtitan", "rms"): "torch",
    ("torchtitan registry", "rms"): "torch",
    ("litgpt", "rms"): "scaled",
    ("litgpt", "gemma"): "offset",
    ("litgpt", "plain"): "bare",
}


def applies(implementation: str, config: Decoder) -> bool:
    """Whether this decoder is one that the library computes in a way of its own which is known here."""
    known = KNOWN.get(implementation)
    if known is None:
        return False
    whole = config.rotary_dim == config.head_dim or implementation == "litgpt"
    return (
        config.code == "common"
        and config.projection == "separate"
        and config.norm in known.norm
        and config.residual in known.residual
        and config.rotary in known.rotary
        and config.query_norm in known.query_norm
        and whole
        and (known.plain or config.perceptron == "gated")
        and not config.perceptron.startswith("gated_")
        and (config.experts is None or implementation == "litgpt")
        and (known.capped or not (config.score_cap or config.logit_cap or config.scaled))
        and not (config.scaled_residual or config.scaled_logits or config.scaled_query or config.sinks)
        and not (config.unrotated or config.clipped or config.alibi or config.hybrid or config.positions)
        and config.residual_dropout == config.embedding_dropout == 0
    )


def model(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel | None:
    """The decoder of a library; None where its code is like transformers'."""
    implementation: str = spec["implementation"]
    if not applies(implementation, config):
        return None
    packed = implementation in ("torchtune", "litgpt") and bool(spec.get("packing", False))
    positions = max(config.context if implementation == "torchtune" else 0, spec["sequence_length"])
    if implementation == "torchtitan" and spec.get("implementation_version") == "0.3":
        implementation = "torchtitan registry"
    if implementation == "torchtune" and options["loss"] == "full" and not _takes_compiled_loss(spec):
        options["compile_loss"] = False
    if implementation == "torchtune" and packed:
        if config.score_cap:
            raise UnknownModel("torchtune refuses packed rows where scores are capped (Gemma 2)")
        kind = "flex"
    norm = _norm(implementation, spec, config)
    made = MODELS[implementation](config._replace(norm=norm), kind, positions, packed, **options)
    made.head_in_loss = options["loss"] == "chunked" and bool(spec.get("head_in_loss", False))
    return made


def _norm(implementation: str, spec: TrainingSpec, config: Decoder) -> str:
    """Its name, with the release of torch whose function it is."""
    norm = _NORMS.get((implementation, config.norm), config.norm)
    if norm == "cast" and not spec.does("torchtune.norm_is_torchs"):
        return "rounded"
    return f"{norm} {release_of_norm(spec)}" if norm in ("cast", "torch") else norm


def _takes_compiled_loss(spec: TrainingSpec) -> bool:
    """torchtune's recipes throw away what ``compile_loss`` gives them, and so compile the loss of chunks only, which it
    changes in place. Those for adapters on one device take it."""
    alone: bool = spec.get("parallelism.strategy", "none") == "none"
    return alone and bool(spec.get("tuning", "full") != "full")
