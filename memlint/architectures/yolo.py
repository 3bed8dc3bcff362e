"""YOLO nets of ultralytics and yolov5 by their names: how deep and wide each is, and what it does.

Source: ultralytics 8.4.190 (``cfg/models/v8``, ``cfg/models/11``), yolov5 5081342 (``models/yolov5*.yaml``).
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple

DETECT, SEGMENT, CLASSIFY = "detect", "segment", "classify"
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
