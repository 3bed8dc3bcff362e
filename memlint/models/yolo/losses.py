"""Losses of YOLO nets, and which anchors have which object. B images, A anchors, N boxes."""

from __future__ import annotations

from collections.abc import Callable

from memlint.meta import functional as F
from memlint.meta.amp import to, upper
from memlint.meta.autograd import no_grad, tracked
from memlint.meta.autograd import record as differentiable
from memlint.meta.tensor import DType, Tensor, bool_, empty, float32, int8, int64
from memlint.models.yolo.nets import BINS, MASKS, Points
from memlint.named_tuple import NamedTuple

KEPT = 10  # anchors that a box is given at the most (tal_topk)
# How many anchors have the same object is the data's as well: here most of the ten that it may be given, as small ones
# have fewer places within them; in yolov5 four of nine anchors, which are no more than four times as large or small, in
# three cells each (utils/loss.py: build_targets).
ANCHORS_OF_AN_OBJECT, ANCHORS_OF_AN_OBJECT_V5 = 7, 12


class Habits(NamedTuple):
    """What differs with the release.

    by_coordinate  whether an anchor lies in a box is asked for one side after the other
    lists          candidates are a list of pairs, and marks are bytes
    """

    by_coordinate: bool = True
    lists: bool = True


class Data(NamedTuple):
    """What is known of images: boxes of the fullest, objects of one on average, classes."""

    boxes: int
    objects: int
    classes: int


def of_classes(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, empty((logits.shape[0],), int64))


def bce_with_logits(x: Tensor, target: Tensor) -> Tensor:
    """A loss for each number, in fp32 under autocast: of a logarithm and what remains of one (native/Loss.cpp). Keeps
    both; backward works in a sigmoid's place."""
    x, target = upper(x), upper(target)
    logarithm = empty(x.shape, x.dtype)
    out = empty(x.shape, x.dtype)
    del logarithm
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        differentiable(out, (x,), (x, target), lambda g: (Tensor(shape, dtype),))
    return out


def of_points(points: Points, data: Data, habits: Habits) -> Tensor:
    """``v8DetectionLoss``, and ``v8SegmentationLoss`` where there are masks."""
    weights = None if points.weights is None else F.contiguous(F.permute(points.weights, 0, 2, 1))
    losses, positive = _of_boxes(points, data, habits)
    if weights is not None and points.prototypes is not None:
        losses.append(_of_masks(points.prototypes, weights, positive, habits))
    return _sum(losses)


def _sum(losses: list[Tensor]) -> Tensor:
    total = losses.pop()
    while losses:
        total = total + losses.pop()
    return total


def _of_boxes(points: Points, data: Data, habits: Habits) -> tuple[list[Tensor], int]:
    """Losses, and how many anchors of an image have an object."""
    sides = F.contiguous(F.permute(points.sides, 0, 2, 1))
    scores = F.contiguous(F.permute(points.scores, 0, 2, 1))
    images, anchors, classes = scores.shape
    places, steps = empty((anchors, 2), scores.dtype), empty((anchors, 1), scores.dtype)
    positive = min(data.objects * ANCHORS_OF_AN_OBJECT, anchors)
    boxes = _decoded(sides, places)
    with no_grad():
        target_boxes, target_scores, marks = assigned(images, anchors, data.boxes, classes, scores.dtype, habits)
    wanted = to(target_scores, scores.dtype)
    losses = [F.sum(bce_with_logits(scores, wanted))]
    del wanted
    with no_grad():
        nearer = empty(target_boxes.shape)
        rows = empty((images * positive,), int64), empty((images * positive,), int64)
    share = empty((images * positive, 1))
    found = F.index(boxes, *rows)
    losses.append(F.sum(F.mul(F.rsub(of_overlap(found, empty((images * positive, 4))), 1), share)))
    with no_grad():
        corners = empty((images, anchors, 2)), empty((images, anchors, 2))
        distances = empty((images, anchors, 4))
        del corners
        far = empty((images * positive, 4))
    chances = F.log_softmax(F.view(F.index(sides, *rows), images * positive * 4, BINS), -1)
    place = empty((images * positive * 4, 1), int64)
    both = F.gather(chances, 1, place) + F.gather(chances, 1, place)
    losses.append(F.sum(F.mul(both, empty((images * positive * 4, 1)))))
    del distances, nearer, far, marks, steps
    return losses, positive


def _decoded(sides: Tensor, places: Tensor) -> Tensor:
    """Corners of boxes (B, A, 4): the mean of each side's distribution, from where the anchor is."""
    images, anchors, _ = sides.shape
    chances = F.softmax(F.view(sides, images, anchors, 4, BINS), 3)
    distance = F.view(F.matmul(chances, empty((BINS, 1), sides.dtype)), images, anchors, 4)
    del chances
    before, behind = F.chunk(distance, 2, -1)
    return F.cat((F.sub(places, before), F.add(places, behind)), -1)


def of_overlap(one: Tensor, other: Tensor) -> Tensor:
    """``bbox_iou`` with what is complete of it, in as many kernels of a number for each pair as it has."""
    sides = F.chunk(one, 4, -1)
    wanted = F.chunk(other, 4, -1)
    width, height = sides[2] - sides[0], sides[3] - sides[1]
    common = F.minimum(sides[2], wanted[2]) * F.minimum(sides[3], wanted[3])
    union = F.sub(width * height, common)
    overlap = F.div(common, union)
    around = F.pow(F.minimum(sides[2], wanted[2]), 2) + F.pow(F.minimum(sides[3], wanted[3]), 2)
    apart = F.pow(sides[0] + sides[2], 2) + F.pow(sides[1] + sides[3], 2)
    form = F.pow(F.div(width, height), 2)
    return F.sub(overlap, F.div(apart, around) + form)


# Numbers that are there for each pair at the end of ``bbox_iou``: both boxes, their sides, and what is made of them.
PAIR_NUMBERS = 24


def assigned(
    images: int, anchors: int, boxes: int, classes: int, dtype: DType, habits: Habits
) -> tuple[Tensor, Tensor, Tensor]:
    """``TaskAlignedAssigner``: which anchors are of which object, by matrices of all boxes and all anchors. Returns the
    boxes, scores and marks of all anchors. Pairs of a box and an anchor within it: as many as there are anchors, as if
    each lay in one box."""
    given = empty((images, anchors, classes), dtype), empty((images, anchors, 4))
    pairs = images * anchors

    def matrix(kind: DType = float32) -> Tensor:
        return empty((images, boxes, anchors), kind)

    inside = _inside(images, anchors, boxes, habits.by_coordinate)
    masked = matrix()
    chosen = matrix(bool_)
    del masked
    if habits.lists:
        listed = [empty((pairs,), int64) for _ in range(3)]
        worked = empty((pairs, PAIR_NUMBERS))
        overlaps, metric = matrix(), matrix()
        del listed, worked
    else:
        overlaps, metric = _dense(matrix, pairs, dtype)
    del chosen
    best = empty((images, boxes, KEPT)), empty((images, boxes, KEPT), int64)
    counts = matrix(int8)
    twice = matrix(bool_)
    del best, twice
    if habits.lists:
        position = counts
    else:
        top = matrix()
        del counts
        within = matrix()
        position = matrix()
        del top, within
    del inside
    kind = int8 if habits.lists else float32
    number = empty((images, anchors), int64)
    highest = matrix(kind)
    kept = matrix(kind)
    del highest
    position = kept
    del kept
    label, target_boxes = empty((images, anchors), int64), empty((images, anchors, 4))
    named = _named(images, anchors, classes, habits.by_coordinate)
    if not habits.lists:
        scaled = matrix()
        del scaled
        scaled = matrix()
        normed = matrix()
        del scaled, normed
    target_scores = empty((images, anchors, classes))
    del named, overlaps, metric, position, label, number, given
    return target_boxes, target_scores, empty((images, anchors), bool_)


def _named(images: int, anchors: int, classes: int, by_coordinate: bool) -> Tensor:
    """Each anchor's class, as a one among zeros."""
    if by_coordinate:
        marks = empty((images, anchors, classes), int8)
        named = empty((images, anchors, classes), int8)
        del marks
        return named
    every = empty((images, anchors, classes), int64)
    repeated = empty((images, anchors, classes))
    where = empty((images, anchors, classes), bool_)
    named = empty((images, anchors, classes), int64)
    del every, repeated, where
    return named


def _inside(images: int, anchors: int, boxes: int, by_coordinate: bool) -> Tensor:
    """``select_candidates_in_gts``: which anchors lie within which box."""
    shape = (images, boxes, anchors)
    if by_coordinate:
        distance = empty(shape)
        inside = empty(shape, bool_)
        del distance
        for _ in range(3):
            distance = empty(shape)
            further = empty(shape, bool_)
            del distance, further
        return inside
    corners = empty((images * boxes, anchors, 2)), empty((images * boxes, anchors, 2))
    distances = empty((images * boxes, anchors, 4))
    del corners
    inside = empty(shape)
    del distances
    return inside


def _dense(matrix: Callable[..., Tensor], pairs: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """``get_box_metrics`` before 8.4.134: scores and overlaps of all pairs, and powers of them, which autocast has in
    fp32."""
    overlaps, found = matrix(), matrix(dtype)
    every = matrix(dtype)
    listed = empty((pairs, 3), int64)
    del every, listed
    worked = empty((pairs, PAIR_NUMBERS))
    del worked
    wide = matrix() if dtype is not float32 else None
    power = matrix()
    del wide
    other = matrix()
    metric = matrix()
    del power, other, found
    return overlaps, metric


def _of_masks(prototypes: Tensor, weights: Tensor, positive: int, habits: Habits) -> Tensor:
    """``calculate_segmentation_loss``, image by image: of each anchor that has an object a mask, a loss for each of its
    pixels, and what lies outside of the box set to zero."""
    images, _, height, width = prototypes.shape
    whole = empty((images, height, width))
    losses = []
    for one, own in zip(F.unbind(prototypes), F.unbind(weights)):
        losses.append(_of_an_image(one, own, positive, habits.lists))
    del one, own
    del whole
    return _sum(losses)


def _of_an_image(prototypes: Tensor, weights: Tensor, positive: int, in_place: bool) -> Tensor:
    _, height, width = prototypes.shape
    marks = empty((positive, height, width), bool_)
    target = to(marks, float32)
    del marks
    chosen = F.index(weights, empty((positive,), int64))
    mask = F.view(F.matmul(chosen, F.reshape(prototypes, MASKS, height * width)), positive, height, width)
    loss = bce_with_logits(mask, target)
    if in_place:
        loss = F.div_(loss, 1.0)  # two products with rows and columns, in place
    else:
        grid = empty((positive, height, width), bool_)
        cropped = loss * grid
        del grid
        return F.sum(F.mean(cropped, (1, 2)))
    return F.sum(F.mean(loss, (1, 2)))


def of_anchors(found: tuple[list[Tensor], Tensor | None], data: Data) -> Tensor:
    """yolov5's ``ComputeLoss``: three layers of maps, each with what is matched with it."""
    maps, prototypes = found
    losses: list[Tensor] = []
    images = maps[0].shape[0]
    positive = max(images * data.objects * ANCHORS_OF_AN_OBJECT_V5 // len(maps), 1)
    for x in maps:
        objects = empty(x.shape[:4], x.dtype)
        rows = [empty((positive,), int64) for _ in range(4)]
        own = F.index(x, *rows)
        sizes = (2, 2, 1, data.classes) + ((MASKS,) if prototypes is not None else ())
        middle, side, _, classes, *weights = F.split(own, sizes, 1)
        corners = F.cat((F.sigmoid(middle) * 2, F.pow(F.sigmoid(side) * 2, 2)), 1)
        losses.append(F.mean(F.rsub(of_overlap(corners, empty((positive, 4))), 1)))
        if data.classes > 1:
            losses.append(F.mean(bce_with_logits(classes, empty(classes.shape, classes.dtype))))
        if prototypes is not None:
            losses += _of_layer(prototypes, weights[0], positive // images)
        losses.append(F.mean(bce_with_logits(F.select(x, 4), objects)))
    return _sum(losses)


def _of_layer(prototypes: Tensor, weights: Tensor, positive: int) -> list[Tensor]:
    """yolov5's masks: image by image, as many as have an object in this layer."""
    return [_of_an_image(F.select(prototypes, 0), weights, max(positive, 1), False) for _ in range(prototypes.shape[0])]
