"""Models beside the one that is recorded, whose states stay on the card meanwhile: a critic of PPO, a reference in a
process of its own.

Each is (contents of a ``config.json``, bytes for each parameter, and words): ``"words"`` where it ends in one number
for each word of its vocabulary, ``"whole"`` where no device shares it.
"""

from __future__ import annotations

from memlint.architectures import huggingface
from memlint.architectures.sizes import Sizes
from memlint.facts.spec import TrainingSpec
from memlint.meta.nn import Module, buffer
from memlint.meta.tensor import recording, uint8
from memlint.models.language.decoder import LanguageModel
from memlint.models.parallel.plan import plan_of


class States(Module):
    """Bytes that nothing of this step reads."""

    def __init__(self, size: int) -> None:
        self.states = buffer(size, dtype=uint8)


def states(spec: TrainingSpec) -> States:
    """What the devices that share the trained model's states share of others', as one buffer. Raises UnknownModel."""
    plan = plan_of(spec)
    shard = 1 if plan is None else plan.shard
    return States(
        sum(
            -(-values(config, "words" in how) // (1 if "whole" in how else shard)) * each
            for config, each, *how in spec["resident_models"]
        )
    )


def values(config: dict[str, object], words: bool = False) -> int:
    """Parameters of a decoder, which ends in one number for each token, or in one for each word of its vocabulary."""
    described = huggingface.decoder(Sizes(config, "config.json"))
    with recording():
        if words:
            return sum(parameter.numel for parameter in LanguageModel(described).parameters())
        return (
            sum(parameter.numel for parameter in LanguageModel(described._replace(tied=True)).parameters())
            + described.width
        )
