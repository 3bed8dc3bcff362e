"""Programs that join a tower to a language model by code of their own, on transformers' Trainer: which module describes
each of them, and at which steps of the family ``hf-trainer``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.dialects import internvl, llava, qwen_series, qwen_vl
from memlint.dialects import language_model as lm
from memlint.facts.spec import Name, TrainingSpec
from memlint.named_tuple import NamedTuple

Step = Callable[[TrainingSpec], None]


def _nothing(spec: TrainingSpec) -> None:
    """The Trainer's own scripts have nothing to add."""


def _without_tower(spec: TrainingSpec) -> str:
    lm.assume_images(spec, tiles=True)
    return ""


class Code(NamedTuple):
    """What a program's own code does beside, or in place of, what transformers' scripts do.

    is_run     whether a run is of it
    prepare    what it states of itself
    named      what a model's name says, beside that of the language model
    release    which transformers it asks for
    attention  which kernel it takes
    targets    which layers adapters are for, before these are looked at
    adapters   what else of a model with adapters is the program's
    dtypes     what is in another dtype; why a run fails, "" where it does not
    model      what the command names, in place of a model of the Trainer's; "" or why it is not known
    length     of a sample, in place of the Trainer's
    join       what sees beside the decoder, and what it is given to see; why that is not known
    is_dated   the release says in which dtype weights are loaded where the program does not
    """

    is_run: Callable[[TrainingSpec], bool]
    prepare: Step = _nothing
    named: Step = _nothing
    release: Step = _nothing
    attention: Step = _nothing
    targets: Step = _nothing
    adapters: Step = _nothing
    dtypes: Callable[[TrainingSpec], str] = lambda spec: ""
    model: Callable[[TrainingSpec], str] | None = None
    length: Step | None = None
    join: Callable[[TrainingSpec], str] = _without_tower
    is_dated: bool = True


_NONE = Code(lambda spec: True)
CODES = (
    Code(
        llava.is_llava,
        prepare=llava.prepare,
        named=llava.backbone,
        release=llava.release,
        attention=llava.attention,
        adapters=llava.adapters,
        dtypes=llava.dtypes,
        join=llava.join,
    ),
    Code(
        internvl.is_internvl,
        prepare=internvl.prepare,
        release=internvl.release,
        attention=internvl.attention,
        targets=internvl.targets,
        adapters=internvl.adapters,
        dtypes=internvl.dtypes,
        model=internvl.model,
        length=internvl.length,
        join=internvl.join,
        is_dated=False,
    ),
    Code(
        qwen_vl.is_qwen_vl,
        prepare=qwen_vl.prepare,
        attention=qwen_vl.attention,
        join=qwen_vl.join,
        is_dated=False,
    ),
    Code(
        qwen_series.is_of_series,
        prepare=qwen_series.prepare,
        attention=qwen_series.attention,
        adapters=qwen_series.adapters,
        join=qwen_series.join,
        is_dated=False,
    ),
    _NONE,
)
_MODULES = (llava, internvl, qwen_vl, qwen_series)
FACTS: tuple[Name, ...] = tuple(dict.fromkeys(name for one in _MODULES for name in one.FACTS))  # ``prepare`` states
JOINED: tuple[Name, ...] = tuple(dict.fromkeys(name for one in _MODULES for name in one.JOINED))  # ``join`` does
# Classes of models that such programs make.
CLASSES = ("InternVLChatModel",)


def describes(called: str) -> bool:
    """Whether a program's own options are read here, whether or not it is in the repository."""
    return llava.is_program(called) or internvl.is_own(called) or qwen_vl.is_program(called)


def code(spec: TrainingSpec) -> Code:
    """The one that a run is of; of any other program one that adds nothing."""
    return next(one for one in CODES if one.is_run(spec))


def is_joined(spec: TrainingSpec) -> bool:
    return code(spec) is not _NONE
