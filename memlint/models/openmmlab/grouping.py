"""mmcv's operators on points (mmcv 2.2, ``ops/group_points.py``, ``gather_points.py``, ``three_interpolate.py``,
``points_sampler.py``): what each makes, what it keeps for backward and what its gradient is.

Shapes: xyz (B, N, 3) without gradients, features (B, C, N); M places around which K points are grouped.
"""

from __future__ import annotations

from typing import Any

from memlint.meta import functional as F
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.tensor import Tensor, empty, int32
from memlint.models import UnknownModel


def gather_points(features: Tensor, index: Tensor) -> Tensor:
    """(B, C, N) and (B, M) -> (B, C, M). Keeps the index."""
    out = empty((*features.shape[:2], index.shape[1]), features.dtype)
    if tracked(features):
        shape, dtype = features.shape, features.dtype
        record(out, (features,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


def grouping_operation(features: Tensor, index: Tensor) -> Tensor:
    """(B, C, N) and (B, M, K) -> (B, C, M, K). Keeps the index; its backward packs the gradient that comes."""
    features = F.contiguous(features)
    out = empty((*features.shape[:2], *index.shape[1:]), features.dtype)
    if tracked(features):
        shape, dtype = features.shape, features.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            result = Tensor(shape, dtype)
            packed = F.contiguous(g)
            del packed
            return (result,)

        record(out, (features,), (index,), backward)
    return out


def grouping_rows(features: Tensor, index: Tensor) -> Tensor:
    """The same of scenes that lie in one list: (N, C) and (M, K) -> (M, C, K)."""
    points, width = features.shape
    out = empty((index.shape[0], width, index.shape[1]), features.dtype)
    if tracked(features):
        dtype = features.dtype

        def backward(g: Tensor) -> tuple[Tensor]:
            result = Tensor((points, width), dtype)
            packed = F.contiguous(g)
            del packed
            return (result,)

        record(out, (features,), (index,), backward)
    return out


def group(
    xyz: Tensor, centers: Tensor, features: Tensor | None, samples: int, use_xyz: bool, nearest: bool = False
) -> tuple[Tensor, Tensor]:
    """``QueryAndGroup``: where the grouped points are, from the place that they are grouped around, with their
    features. Returns that (B, 3 + C, M, K), and the index (B, M, K)."""
    index = empty((centers.shape[0], centers.shape[1], samples), int32)
    if nearest:  # ``knn`` notes distances as well, and puts the index the other way round
        distances, turned = empty(index.shape), empty(index.shape, int32)
        del distances, turned
    turned_xyz = F.contiguous(F.transpose(xyz, 1, 2))
    places = grouping_operation(turned_xyz, index)
    away = F.sub(places, F.unsqueeze(F.transpose(centers, 1, 2), -1))
    if features is None:
        return away, index
    own = grouping_operation(features, index)
    made = F.cat([away, own], 1) if use_xyz else own
    del turned_xyz, places, away
    return made, index


def three_interpolate(target: Tensor, source: Tensor, features: Tensor) -> Tensor:
    """``three_nn``, then ``three_interpolate``: (B, C, M) at the places of a source -> (B, C, N) at those of a target.
    Keeps which three are nearest, and a weight of each."""
    shape = (*target.shape[:2], 3)
    squares, index = empty(shape), empty(shape, int32)
    distances = empty(shape)
    del squares
    near = empty(shape)
    added = empty(shape)
    del added
    total = empty((*shape[:2], 1))
    weight = empty(shape)
    out = empty((*features.shape[:2], target.shape[1]), features.dtype)
    if tracked(features):
        before, dtype = features.shape, features.dtype
        record(out, (features,), (index, weight), lambda g: (Tensor(before, dtype),))
    del distances, near, total
    return out


class PointsSampler:
    """``PointsSampler``: how many points are taken, by distance in space ("D-FPS"), by that of features ("F-FPS"), or
    by both ("FS"), each out of a range of its own."""

    def __init__(self, counts: Any, modes: Any, ranges: Any, place: str) -> None:
        self.counts, self.modes, self.ranges = (
            list(one) if isinstance(one, (list, tuple)) else [one] for one in (counts, modes, ranges)
        )
        for mode in self.modes:
            if mode not in _TIMES:
                raise UnknownModel(f"{place}.fps_mod {mode} takes points in a way that memlint does not know")

    @property
    def taken(self) -> int:
        return sum(count * _TIMES[mode] for count, mode in zip(self.counts, self.modes))

    def __call__(self, xyz: Tensor, features: Tensor | None) -> Tensor:
        """(B, M) of the points that are taken."""
        found, last = [], 0
        for count, mode, end in zip(self.counts, self.modes, self.ranges):
            points = (xyz.shape[1] if end == -1 else end) - last
            last = end
            with no_grad():
                found.append(self._of_a_range(xyz, features, points, count, mode))
        return F.cat(found, 1)

    def _of_a_range(self, xyz: Tensor, features: Tensor | None, points: int, count: int, mode: str) -> Tensor:
        batch = xyz.shape[0]
        if mode != "D-FPS" and features is not None:
            rows = empty((batch, points, xyz.shape[2] + features.shape[1]))
            distances = empty((batch, points, points))
            squares = empty((batch, points, points))
            del rows, distances, squares
        index, least = empty((batch, count * _TIMES[mode]), int32), empty((batch, points))
        del least
        return index


# How many points a way to take them takes, for each that is asked for.
_TIMES = {"D-FPS": 1, "F-FPS": 1, "FS": 2}


def split(points: Tensor) -> tuple[Tensor, Tensor | None]:
    """``_split_point_feats``: (B, N, 3 + C) -> places (B, N, 3), and features (B, C, N) where there are any."""
    batch, count, width = points.shape
    xyz = F.contiguous(F.narrow(points, 2, 3))
    return xyz, empty((batch, width - 3, count)) if width > 3 else None
