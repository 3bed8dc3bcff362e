"""What a program that trains an image classifier of timm's or torchvision's in a loop of its own says, in the keys of
the family ``image-loop``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memlint.data import programs
from memlint.documents.node import Node
from memlint.documents.programs.call_nodes import argument, name_of, target_of, values_of
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents.programs.program import Program

FAMILY = "image-loop"
# Attributes by which libraries call a classifier's last layer: what a program sets there is a head of its own classes.
HEADS = ("fc", "classifier", "head", "heads", "last_linear", "head_fc")


class Made(NamedTuple):
    """library: timm or torchvision; name: the model's."""

    library: str
    name: str


def made(call: Node | None) -> Made | None:
    """Which model of images a call makes: ``timm.create_model("resnet50")``, ``models.resnet50()``; None for others."""
    name, before = name_of(call), target_of(call).rpartition(".")[0] if call is not None else ""
    if name == "create_model" and before in ("", "timm", "timm.models"):
        given = argument(call, "model_name", 0)
        known = given is not None and isinstance(given.value, str)
        return Made("timm", str(given.value)) if known and given is not None else None
    if before.rpartition(".")[2] in ("", "models", "resnet", "vgg", "densenet") and _is_torchvisions(name):
        return Made("torchvision", name)
    return None


def _is_torchvisions(name: str) -> bool:
    try:
        programs.value(f"torchvision/{name}")
    except KeyError:
        return False
    return True


def is_the_librarys(found: Made, call: Node, program: Program) -> bool:
    """Whether the name that is called is imported from the library, and none of the program's own."""
    first = target_of(call).partition(".")[0]
    return program.imported.get(first, "").partition(".")[0] == found.library


# ------------------------------------------------------------------------------------------ the size of an image

# Transforms that leave images of one size: the place of the size among their arguments (torchvision 0.28:
# transforms/transforms.py; albumentations 2.0: height and width).
_SIZES = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "RandomSizedCrop", "FiveCrop")
_RESIZES = "Resize"


def side(call: Node) -> Node | None:
    """The size that a transform leaves; None for one that leaves no fixed size."""
    name = name_of(call)
    if name not in _SIZES and name != _RESIZES:
        return None
    height, width = values_of(call).get("height"), values_of(call).get("width")
    if height is not None and width is not None:
        return _pair(height, width, call)
    given = argument(call, "size", 0)
    second = argument(call, "", 1)
    if given is None:
        return None
    if name == _RESIZES and second is not None and type(given.value) is int and type(second.value) is int:
        return _pair(given, second, call)  # albumentations' two
    if name == _RESIZES and type(given.value) is int:
        return None  # its shorter side alone
    known = isinstance(given.value, list) and all(type(one.value) is int for one in given.value)
    return given if type(given.value) is int or known else None


def _pair(height: Node, width: Node, call: Node) -> Node | None:
    if type(height.value) is not int or type(width.value) is not int:
        return None
    return Node([height, width], call.span)


def sides(calls: Iterator[Node]) -> list[Node]:
    """What each chain of transforms may leave: of crops all, and of resizes to height and width where none crops."""
    every = [(name_of(call), found) for call in calls if (found := side(call)) is not None]
    crops = [found for name, found in every if name != _RESIZES]
    return crops or [found for _, found in every]


def pixels(node: Node) -> int:
    values = [int(str(one.value)) for one in node.value] if isinstance(node.value, list) else [int(str(node.value))]
    return values[0] * values[-1]
