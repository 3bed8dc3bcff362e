"""What trainers with model code of their own share: models by their own names for sizes, optimizers by their classes,
and a number of devices that they divide themselves.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.dialects import language_model as lm
from memlint.dialects import launchers
from memlint.facts.spec import DEFAULT, Fact, Name, TrainingSpec

# Names that optimizer classes have in other libraries, in lower case -> the fact's.
_KINDS = {"adamwfp8": "adamw_fp8", "adamfp8": "adam_fp8", "adamwscheduler": "adamw", "adamwschedulefree": "adamw"}


MODEL_FACTS: tuple[Name, ...] = (lm.DECODER, "vocabulary_size")  # what :func:`describe` gives


def describe(spec: TrainingSpec, made: Decoder, origin: Fact | None, source: str) -> None:
    """The model that a trainer builds by itself; ``source`` says whose sizes they are."""
    lm.put(spec, lm.DECODER, made, origin, source)
    lm.put(spec, "vocabulary_size", made.vocabulary, origin, source)


def optimizer_class(spec: TrainingSpec, stated: Fact | None, implementation: str = "foreach") -> None:
    """The facts of an optimizer that is named by its class: ``bitsandbytes.optim.PagedAdamW8bit``.

    ``implementation`` is torch's, where the class is torch's.
    """
    if stated is None or not isinstance(stated.value, str) or not stated.value:
        return
    room, _, name = stated.value.rpartition(".")
    library = {"bitsandbytes": "bitsandbytes", "bnb": "bitsandbytes", "torchao": "torchao", "apex": "apex"}.get(
        room.partition(".")[0], "torch"
    )
    kind = name.lower()
    if kind.startswith("paged"):
        kind = kind.removeprefix("paged")
        lm.put(spec, "optimizer_paged", True, stated)
    if kind.endswith("32bit"):
        kind = kind.removesuffix("32bit")
    for bits in ("8bit", "4bit"):
        if kind.endswith(bits):
            kind = f"{kind.removesuffix(bits)}_{bits}"
    lm.put(spec, "optimizer", _KINDS.get(kind, kind), stated)
    lm.put(spec, "optimizer_library", library, stated)
    if library == "torch":
        lm.put(spec, "optimizer_implementation", implementation, reason="torch 2.13: its default on a GPU")


def class_of(optimizer: str, library: str = "torch") -> str:
    """The class that a fix writes for an optimizer's fact; "" where there is none."""
    kind, _, bits = optimizer.partition("_")
    name = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "lion": "Lion", "adafactor": "Adafactor"}.get(kind, "")
    if not name or bits not in ("", "8bit"):
        return ""
    if bits or kind == "lion":
        return f"bitsandbytes.optim.{name}{bits}"
    return f"torch.optim.{name}"


def divided(spec: TrainingSpec, strategy: str, count: int | None, origin: Fact | None = None, reason: str = "") -> None:
    """How the processes of a run share its states, and how many there are; None where it is not known.

    One process shares nothing, whatever it is launched with.
    """
    if count is not None:
        for name in ("device_count", "world_size"):
            spec.facts[name] = Fact(name, count, DEFAULT, reason=reason)
            if origin is not None:
                spec.facts[name] = origin._replace(name=name, value=count, reason=reason or origin.reason)
    if count == 1:
        strategy = "none"
    lm.put(spec, "parallelism.strategy", strategy, origin, reason)
    lm.drop_what_no_strategy_reads(spec)


def replicated(spec: TrainingSpec, alone: str = "no torchrun") -> int | None:
    """DDP where a launcher starts processes, and one process where none does; how many, None where it is not known.

    alone  why it is one, where nothing starts several
    """
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count = found.total.value if found.total is not None else None if found.distributed else 1
    divided(spec, "ddp" if found.distributed else "none", count, found.total, "" if found.total else alone)
    return count


# What :func:`divided` gives, beside facts of the strategy.
DEVICES: tuple[Name, ...] = ("device_count", "world_size")


def number(value: Any) -> int | None:
    """A positive whole number, written as one or as text."""
    if isinstance(value, bool):
        return None
    try:
        found = int(str(value))
    except ValueError:
        return None
    return found if found > 0 else None
