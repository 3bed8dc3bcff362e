"""YOLO nets of ultralytics and yolov5 by their names: how deep and wide each is, and what it does.

Source: ultralytics 8.4.190 (``cfg/models/v8``, ``cfg/models/11``), yolov5 5081342 (``models/yolov5*.yaml``).
"""

from __future__ import annotations

from typing import Any

from memlint.named_tuple import NamedTuple

DETECT, SEGMENT, CLASSIFY = "detect", "segment", "classify"
DESCRIBED = "described"  # a net that a YAML describes, in the place of a series
# Objects of an image on average: COCO's have seven, and half of what four images show is in their mosaic.
OBJECTS, OBJECTS_OF_MOSAIC = 7, 14


class Scale(NamedTuple):
    """How deep and wide a net of a letter is: factors of repeats and channels, and the most channels before that."""

    depth: float
    width: float
    most: int = 1 << 20


SCALES: dict[str, dict[str, Scale]] = {
    "v5": {
        **{"n": Scale(0.33, 0.25), "s": Scale(0.33, 0.5), "m": Scale(0.67, 0.75)},
        **{"l": Scale(1, 1), "x": Scale(1.33, 1.25)},
    },
    "v8": {
        **{"n": Scale(0.33, 0.25, 1024), "s": Scale(0.33, 0.5, 1024), "m": Scale(0.67, 0.75, 768)},
        **{"l": Scale(1, 1, 512), "x": Scale(1, 1.25, 512)},
    },
    "11": {
        **{"n": Scale(0.5, 0.25, 1024), "s": Scale(0.5, 0.5, 1024), "m": Scale(0.5, 1, 512)},
        **{"l": Scale(1, 1, 512), "x": Scale(1, 1.5, 512)},
    },
}


class Layer(NamedTuple):
    """One row of a YAML: which layers it reads, how often it is repeated before the net's depth, the module's name and
    its arguments."""

    sources: tuple[int, ...]
    repeats: int
    module: str
    arguments: tuple[Any, ...]


class Described(NamedTuple):
    """A net that a YAML describes. ``path``: the file, as it is told."""

    path: str
    layers: tuple[Layer, ...]


# The last layers that are known, and what a net does that ends with one.
TASKS = {"Detect": DETECT, "v10Detect": DETECT, "Segment": SEGMENT, "Classify": CLASSIFY}
# Heads that are ``Detect`` and say something besides (nn/modules/head.py), whose loss is one of boxes and of that.
BESIDE = {"Pose": "points of a body", "OBB": "how boxes are turned"}
MOST_LAYERS = 500


def described(path: str, content: Any) -> tuple[Described | None, str]:
    """The net of a YAML's content, as far as it is known, and why it is not, or ""."""
    rows: list[Any] = []
    for part in ("backbone", "head"):
        listed = content.get(part) if isinstance(content, dict) else None
        if not isinstance(listed, list):
            return None, f"{path} has no {part}"
        rows += listed
    if content.get("activation") not in (None, "nn.SiLU()"):
        return None, f"{path}: activation {content['activation']!r:.40} is not known"
    if len(rows) > MOST_LAYERS:
        return None, f"{path} has more than {MOST_LAYERS} layers"
    layers = []
    for at, row in enumerate(rows):
        layer = _layer(row)
        if layer is None:
            return None, f"{path}: layer {at} is no list of sources, repeats, a module and its arguments"
        layers.append(layer)
    last = layers[-1].module if layers else "nothing"
    if last in BESIDE:
        layers[-1] = layers[-1]._replace(module="Detect")
        return Described(path, tuple(layers)), f"{path} ends with {last}: {beside(last)}"
    if last not in TASKS:
        return None, f"{path} ends with {last}: what that says, and its loss, are not known"
    return Described(path, tuple(layers)), ""


def beside(head: str) -> str:
    """Why a net that ends with such a head takes more than one that detects."""
    return f"what it takes to learn {BESIDE[head]} is not known"


def _layer(row: Any) -> Layer | None:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[2], str) or not isinstance(row[3], list):
        return None
    sources = row[0] if isinstance(row[0], list) else [row[0]]
    numbers = [*sources, row[1]]
    if not all(isinstance(one, int) and not isinstance(one, bool) and abs(one) <= MOST_LAYERS for one in numbers):
        return None
    words = {"True": True, "False": False, "None": None}
    plain = [words.get(one, one) if isinstance(one, str) else one for one in row[3]]
    if not sources or row[1] < 1 or any(isinstance(one, (dict, list)) for one in plain):
        return None
    return Layer(tuple(sources), row[1], row[2], tuple(plain))


def scale_of(content: dict[str, Any], letter: str) -> tuple[Scale | None, str]:
    """How deep and wide a YAML makes a net of a letter, and the letter: without one the first of its scales."""
    scales = content.get("scales")
    if isinstance(scales, dict) and scales:
        letter = letter if letter in scales else next(iter(scales))
        found = scales[letter]
        if not (isinstance(found, list) and len(found) == 3 and all(_is_factor(one) for one in found)):
            return None, letter
        return Scale(found[0], found[1], int(found[2])), letter
    both = [content.get(name, 1.0) for name in ("depth_multiple", "width_multiple")]
    return (Scale(*both) if all(map(_is_factor, both)) else None), letter


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1 << 16


# YOLOv10's sizes, and which of its layers are of inverted blocks: of those of n and s some have large kernels
# (ultralytics 8.3.100: cfg/models/v10).
TEN = {
    **{"n": Scale(0.33, 0.25, 1024), "s": Scale(0.33, 0.5, 1024), "m": Scale(0.67, 0.75, 768)},
    **{"b": Scale(0.67, 1, 512), "l": Scale(1, 1, 512), "x": Scale(1, 1.25, 512)},
}
_INVERTED = {
    **{"n": (22,), "s": (8, 22), "m": (8, 19, 22), "b": (8, 13, 19, 22), "l": (8, 13, 19, 22)},
    **{"x": (6, 8, 13, 19, 22)},
}


def ten(letter: str) -> Described:
    """YOLOv10 of a letter: YOLOv8's way down and up, with halvings whose width comes first, attention at the bottom,
    and two heads."""
    layers: list[Layer] = []

    def add(module: str, *arguments: Any, repeats: int = 1, sources: tuple[int, ...] = (-1,)) -> None:
        layers.append(Layer(sources, repeats, module, arguments))

    def block(width: int, repeats: int, *adds: bool) -> None:
        if len(layers) in _INVERTED[letter]:
            add("C2fCIB", width, True, letter in "ns", repeats=repeats)
        else:
            add("C2f", width, *adds, repeats=repeats)

    add("Conv", 64, 3, 2)
    for width, repeats in ((128, 3), (256, 6), (512, 6), (1024, 3)):
        add("Conv" if width < 512 else "SCDown", width, 3, 2)
        block(width, repeats, True)
    add("SPPF", 1024, 5)
    add("PSA", 1024)
    for width, beside_it in ((512, 6), (256, 4)):
        add("nn.Upsample", None, 2, "nearest")
        add("Concat", 1, sources=(-1, beside_it))
        block(width, 3)
    for width, beside_it in ((256, 13), (512, 10)):
        add("Conv" if width == 256 else "SCDown", width, 3, 2)
        add("Concat", 1, sources=(-1, beside_it))
        block(2 * width, 3)
    add("v10Detect", "nc", sources=(16, 19, 22))
    return Described(f"YOLOv10{letter}", tuple(layers))
