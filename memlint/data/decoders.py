"""The models of the catalogue that are decoders of the LLaMA kind: hub id -> hyper-parameters."""

from __future__ import annotations

from typing import Any

from memlint.data import models

MODEL_TYPES = ("gemma", "llama", "qwen2")


def names() -> list[str]:
    """Every hub id that is known, aliases included."""
    return [name for name in models.names() if find(name) is not None]


def find(name: str) -> dict[str, Any] | None:
    """The hyper-parameters of a decoder by its hub id, in any case; None where it is not known."""
    found = models.find(name)
    return found.config if found is not None and found.config["model_type"] in MODEL_TYPES else None
