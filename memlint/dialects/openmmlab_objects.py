"""How many objects the fullest image of a data set has, which no config of OpenMMLab's says: a detector's targets are
made of as many (mmdet 3.3, ``structures/bbox/bbox_overlaps.py``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memlint.documents.node import Node
from memlint.named_tuple import NamedTuple

_WRAPPED = ("dataset", "datasets")
_MOST_NESTED = 8
# Keys of a dataset that name the files with its annotations.
_FILES = ("ann_file", "data_prefix", "img_prefix", "data_root")


class Fullest(NamedTuple):
    """``objects`` of the fullest image, and where the number is from. ``between``: the fewest and the most that may be
    meant, where nobody published a count; () for a count. ``files``: what the names of its annotation files have in
    them, as data of one's own in the same format have other names."""

    objects: int
    source: str
    files: str
    between: tuple[int, int] | tuple[()] = ()


# Data that nobody published a count of: as full as COCO's, or anything between the few objects of most photographs and
# what LVIS lets a detector find in one (lvis-api 0.5, ``lvis/eval.py``: max_dets).
COCO, FEWEST, MOST = 93, 10, 300
OTHER = Fullest(COCO, "as many as COCO's, for want of a count", "", (FEWEST, MOST))

# By the class of a dataset; of several the first whose files are named. Counted are the objects that train: of VOC
# those that are not difficult, line by line in a list of both trainval sets (newwhitecheng/tensorflow-yolov3 on GitHub:
# voc_train.txt). It has 12,608 objects in 5,011 images of 2007 and 27,450 in 11,540 of 2012, as VOC's pages say.
_COCO = Fullest(
    COCO,
    "as many as COCO's has (instances_train2017.json)",
    r"(?:instances|person_keypoints|panoptic)_(?:train|val)\d{4}",
)
# LVIS names objects of 1,203 kinds, and its evaluation stops at 300 of an image: some have more, nobody says how many,
# and a thousand is no count but a wide guess.
_LVIS = Fullest(
    MOST,
    "as many as LVIS lets a detector find in one (lvis-api, max_dets), for want of a count",
    "lvis",
    (COCO, 1_000),
)
DATASETS: dict[str, tuple[Fullest, ...]] = {
    "CocoDataset": (_COCO,),
    "LVISDataset": (_LVIS,),
    "LVISV05Dataset": (_LVIS,),
    "LVISV1Dataset": (_LVIS,),
    "VOCDataset": (
        Fullest(39, "as many as VOC 2012's has (trainval, without difficult ones)", "VOC2012"),
        Fullest(30, "as many as VOC 2007's has (trainval, without difficult ones)", "VOC2007"),
    ),
}


def fullest(dataset: Node | None) -> Fullest:
    """Of all data that a run trains on, which may be wrapped and put together."""
    found = [_of(one) for one in _innermost(dataset)] or [OTHER]
    most = max(found, key=lambda one: one.objects)
    if not any(one.between for one in found):
        return most
    ends = [one.between or (one.objects, one.objects) for one in found]
    between = max(low for low, _ in ends), max(high for _, high in ends)
    return most._replace(between=between)


def _innermost(node: Node | None, depth: int = 0) -> Iterator[Node]:
    if node is None or depth > _MOST_NESTED:
        return
    if isinstance(node.value, list):
        for one in node.value:
            yield from _innermost(one, depth + 1)
        return
    below = next((found for key in _WRAPPED if (found := node.get(key)) is not None), None)
    if below is not None:
        yield from _innermost(below, depth + 1)
    elif node.is_mapping and node.get("type") is not None:
        yield node


def _of(dataset: Node) -> Fullest:
    kind = dataset.get("type")
    known = DATASETS.get(str(kind.value).rpartition(".")[2] if kind is not None else "", ())
    names = list(_names(dataset))
    if known and not names:
        return known[0]
    return next((one for one in known if any(re.search(one.files, name) for name in names)), OTHER)


def _names(dataset: Node) -> Iterator[str]:
    """What a dataset calls its files."""
    for key in _FILES:
        found = dataset.get(key)
        if found is not None:
            yield from (one.value for one in found.walk() if isinstance(one.value, str))
