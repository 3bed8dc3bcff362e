"""How many parameters the model of a description has, whichever library computes it."""

from __future__ import annotations

from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.decoder import Decoder
from memlint.facts.spec import Fact, TrainingSpec
from memlint.models import Recording, record


def recorded(made: Decoder, implementation: str, **facts: Any) -> Recording:
    """One step over two rows of 16 tokens, in bfloat16."""
    stated: dict[str, Any] = {
        "decoder": made,
        "implementation": implementation,
        "micro_batch_size": 2,
        "sequence_length": 16,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
        **facts,
    }
    named = {name: Fact(name, value) for name, value in stated.items()}
    return record(TrainingSpec("test", None, None, named, "language_model"))  # type: ignore[arg-type]


def parameters(made: Decoder, implementation: str, **facts: Any) -> int:
    return recorded(made, implementation, **facts).parameters


def llama_of(implementation: str, config: dict[str, Any]) -> Decoder:
    """The LLaMA of a ``config.json`` as the reader of a library's own terms describes it: they rotate unlike each
    other."""
    made = huggingface.decoder(config)
    rotary = {"torchtune": "interleaved_wide", "torchtitan": "complex", "torchtitan registry": "complex"}
    return made._replace(rotary=rotary.get(implementation, made.rotary))
