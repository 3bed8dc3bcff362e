"""What a run of OpenMMLab's libraries takes at least, where its model is known in part: what is built on a backbone of
the repository's own, or the backbone under heads that nobody describes here.

A backbone that is not known hands on maps of the widths that its neck, or its heads, say, as large as their strides say
and no larger than at a stride of 32 where nothing says it. It has no weights, and nothing of it is kept. Heads that are
not known keep nothing either, and their loss is one number of the maps that they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, recording
from memlint.models import UnknownModel
from memlint.models.openmmlab import dictionary, system
from memlint.models.openmmlab.detection import Boxes, Maps
from memlint.models.openmmlab.detectors import Detector
from memlint.models.openmmlab.losses import of_one
from memlint.models.openmmlab.registry import build as built
from memlint.models.openmmlab.registry import fitting, register
from memlint.models.system import System

COARSEST = 32  # of the maps of a backbone whose strides nothing states
MOST_MAPS = 32  # of a backbone
LIBRARY = True
_HEADS = ("decode_head", "auxiliary_head")


def build(spec: TrainingSpec) -> System:
    """The System of what is known. Raises UnknownModel where that is neither the backbone nor all the rest."""
    return system(spec, _known)


def _known(spec: TrainingSpec) -> Module:
    stated = dictionary(spec)
    make = _under_heads if _is_known(stated.get("backbone"), "model.backbone") else _on_a_backbone
    model: Module = fitting(lambda: make(stated))
    return model


def _is_known(stated: Any, place: str) -> bool:
    try:
        with recording():
            built(stated, place)
    except UnknownModel:
        return False
    return True


# ---------------------------------------------------------------------------------------------- an unknown backbone


@register("memlint.Given")
class Given(Module):
    """Maps of so many channels at so many pixels of the image each."""

    def __init__(self, widths: Sequence[int], strides: Sequence[int]) -> None:
        self.widths, self.strides = widths, strides

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        batch, _, *sides = images.shape
        sizes = [tuple(-(-side // stride) for side in sides) for stride in self.strides]
        return tuple(empty((batch, width, *size)) for width, size in zip(self.widths, sizes))


def _on_a_backbone(stated: Mapping[str, Any]) -> Module:
    widths = _widths(stated)
    given = {"type": "memlint.Given", "widths": widths, "strides": _strides(stated, len(widths))}
    model: Module = built({**stated, "backbone": given}, "model")
    return model


def _widths(stated: Mapping[str, Any]) -> list[int]:
    """Of the maps, as what takes them says. Raises UnknownModel."""
    neck = next(iter(of_one(stated["neck"])), None) if stated.get("neck") is not None else None
    heads = [stated.get("rpn_head") or stated.get("bbox_head")] if neck is None else [neck]
    if neck is None and stated.get("decode_head") is not None:
        heads = [head for name in _HEADS if stated.get(name) is not None for head in of_one(stated[name])]
    taken: dict[int, int] = {}
    for head in heads:
        channels = head.get("in_channels") if isinstance(head, Mapping) else None
        channels = channels if isinstance(channels, (list, tuple)) else [channels]
        at = head.get("in_index", -1) if neck is None and head is not None else list(range(len(channels)))
        places = at if isinstance(at, (list, tuple)) else [at]
        if len(places) != len(channels) or not all(isinstance(width, int) for width in channels):
            raise UnknownModel("how many channels the maps of model.backbone have is not stated")
        if not all(isinstance(at, int) and -MOST_MAPS <= at < MOST_MAPS for at in places):
            raise UnknownModel("which maps of model.backbone are taken is not stated")
        taken.update(zip(places, channels))
    last = max(taken, default=-1)
    if last < 0:  # the only one that is taken is the last one, wherever that is
        return list(taken.values())[-1:]
    return [taken.get(at, 1) for at in range(last + 1)]


def _strides(stated: Mapping[str, Any], count: int) -> list[int]:
    """Of the maps, as heads say of those that the neck makes of them."""
    neck = stated.get("neck")
    first = _first(neck)
    told: Any = None
    for name in ("rpn_head", "bbox_head", "decode_head"):
        head = stated.get(name)
        if isinstance(head, Mapping) and told is None:
            anchors = head.get("anchor_generator") or head.get("prior_generator")
            told = anchors.get("strides") if isinstance(anchors, Mapping) else None
            told = told or head.get("strides") or head.get("feature_strides")
    known = [one for one in told if isinstance(one, int) and one > 0] if isinstance(told, (list, tuple)) else []
    padded = [COARSEST] * first + known
    return [*padded[:count], *[COARSEST] * (count - len(padded))]


# ------------------------------------------------------------------------------------------------- unknown heads


def _first(neck: Any) -> int:
    """The first map that a neck takes."""
    at = neck.get("start_level", 0) if isinstance(neck, Mapping) else 0
    return at if isinstance(at, int) and 0 <= at < MOST_MAPS else 0


class UnderHeads(Detector):
    """A backbone, with its neck where that is known, and one number for each map that is taken."""

    def __init__(self, stated: Mapping[str, Any]) -> None:
        neck = stated.get("neck")
        is_known = neck is not None and all(_is_known(one, "model.neck") for one in of_one(neck))
        super().__init__(stated["backbone"], neck if is_known else None)
        heads = [head for name in _HEADS if stated.get(name) is not None for head in of_one(stated[name])]
        self.taken: set[int] | None = None
        if heads and neck is None:
            told = [head.get("in_index", -1) if isinstance(head, Mapping) else -1 for head in heads]
            each = [at for one in told for at in (one if isinstance(one, (list, tuple)) else [one])]
            self.taken = {at for at in each if isinstance(at, int)}
        self.first = 0 if is_known else _first(neck)

    def losses(self, images: Tensor, boxes: Boxes) -> list[Tensor]:
        maps: Maps = self.maps(images)[self.first :]
        chosen = maps if self.taken is None else [maps[at] for at in self.taken if -len(maps) <= at < len(maps)]
        return [F.sum(one) for one in chosen]


def _under_heads(stated: Mapping[str, Any]) -> Module:
    return UnderHeads(stated)
