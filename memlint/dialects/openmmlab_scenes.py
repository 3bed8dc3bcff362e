"""What an mmdet3d config says of its scenes: how many points, voxels and objects each has, as far as it says.

Points are the config's where a transform takes so many (``PointSample``). Else they are the sensor's, and so is how
many voxels they fall into, of which the config bounds how many there may be: the run's peak is taken at the fullest
batch, which is full to that bound, and the interval goes down to scenes of half as many. Where a paper counted
voxels, its figures are in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memlint.documents.node import Node
from memlint.facts.spec import ASSUMED, HYPER, WRITTEN, Fact, Name, TrainingSpec
from memlint.named_tuple import NamedTuple

POINTS, FEATURES = HYPER + "scene_points", HYPER + "point_features"
VOXELS, VOXELS_BETWEEN = HYPER + "voxels", HYPER + "voxels_between"
ALONE, ALONE_BETWEEN = HYPER + "voxels_alone", HYPER + "voxels_alone_between"
BOXES, BOXES_BETWEEN = HYPER + "boxes", HYPER + "boxes_between"
# Detectors over voxels, and models over points that a transform counts.
OF_VOXELS = frozenset(
    ("CenterPoint", "DynamicMVXFasterRCNN", "DynamicVoxelNet", "MVXFasterRCNN", "PointVoxelRCNN", "VoxelNet")
)
OF_POINTS = frozenset(("EncoderDecoder3D", "GroupFree3DNet", "H3DNet", "PointRCNN", "SSD3DNet", "VoteNet"))
MODELS = OF_VOXELS | OF_POINTS
MASKED = frozenset(("PointRCNN",))  # models over points that have a mask of them for each object
# Transforms that leave so many points of a scene.
_SAMPLED = ("PointSample", "IndoorPointSample", "IndoorPatchPointSample")
# Numbers of a point that sweeps before this one come with, where their loader states none.
_OF_SWEEPS = [0, 1, 2, 4]
_PLACE = 3  # numbers of where a point is in its room, which ``use_normalized_coord`` adds
# How far voxels are alone, not parts of surfaces (memlint/models/openmmlab/sparse.py: held).
SPARSE, HALF = ("SparseEncoder",), 0.5
SHARE = 0.5  # of the most voxels: what the lowest end of an interval is taken at


class Sensor(NamedTuple):
    """Of a dataset: points of a sweep; objects of a scene on average and in the fullest; of pillars of so large a cell
    the fewest and the most that hold points in a typical scene.

    Points: P. Sun et al., "Scalability in Perception for Autonomous Driving: Waymo Open Dataset" (CVPR 2020), table 1;
    of KITTI a quarter, which its camera sees (``create_reduced_point_cloud``); of Lyft its own "216,000 points".
    Objects: as many boxes by as many frames as their papers and sites count. nuScenes' fullest are those of scene-0061
    of v1.0-mini (4,622 in 39 keyframes, in its tutorial), 3.4 times the average, which is taken of the others as well;
    KITTI's scenes get up to 15 objects of others (``ObjectSample``).
    Pillars: A. H. Lang et al., "PointPillars" (CVPR 2019): 6k-9k of 0.16 m by 0.16 m.
    """

    points: int
    boxes: int
    fullest: int
    cell: float = 0.0
    pillars: tuple[int, int] = (0, 0)


SENSORS = {
    "KittiDataset": Sensor(30_000, 5, 30, 0.16, (6_000, 9_000)),
    "LyftDataset": Sensor(216_000, 28, 95),
    "NuScenesDataset": Sensor(34_000, 35, 118),
    "WaymoDataset": Sensor(177_000, 52, 177),
}


def complete(spec: TrainingSpec, kind: str, transforms: Sequence[Node], dataset: str) -> None:
    """Facts of what a scene has. ``kind``: of the model; ``dataset``: of the innermost one."""
    sensor = SENSORS.get(dataset)
    _features(spec, transforms)
    _points(spec, transforms, sensor if kind in OF_VOXELS else None, dataset)
    if kind in OF_VOXELS:
        _voxels(spec, sensor)
        if POINTS not in spec and VOXELS in spec:
            _assume(spec, POINTS, spec[VOXELS], f"points of a scene of {dataset}: no fewer than voxels", "")
        encoder = spec.root.get("model.pts_middle_encoder.type") or spec.root.get("model.middle_encoder.type")
        if encoder is not None and str(encoder.value) in SPARSE and ALONE not in spec:
            what = "how far voxels are alone (1) and not parts of surfaces (0)"
            _assume(spec, ALONE, HALF, what, encoder.shown_path)
            _assume(spec, ALONE_BETWEEN, (0.0, 1.0), "of other scenes", "")
    if kind in OF_VOXELS | MASKED and BOXES not in spec:
        count = sensor.fullest if sensor is not None else max(one.fullest for one in SENSORS.values())
        _assume(spec, BOXES, count, "objects of the fullest scene", "model.bbox_head")
        few = min(one.boxes for one in SENSORS.values()) if sensor is None else sensor.boxes
        _assume(spec, BOXES_BETWEEN, (few, 2 * count), "of other scenes", "")


def unknown(spec: TrainingSpec, kind: str) -> str:
    """Why nothing is known of a scene; "" where all is that decides."""
    if FEATURES not in spec:
        return "train_pipeline states no use_dim of the points that it loads"
    if kind in OF_VOXELS and VOXELS not in spec:
        return "model.data_preprocessor.voxel_layer states no voxel_size, point_cloud_range and max_voxels of a scene"
    if POINTS not in spec:
        return "train_pipeline has no transform that takes so many points of a scene (PointSample)"
    return ""


def _assume(spec: TrainingSpec, name: Name, value: Any, reason: str, key: str) -> None:
    spec.facts[name] = Fact(name, value, ASSUMED, key, reason=reason)


def _plain(node: Node | None) -> Any:
    return None if node is None else node.plain()


def _features(spec: TrainingSpec, transforms: Sequence[Node]) -> None:
    """Numbers of a point: those that the last loader takes, its height above the floor (``shift_height``), and its
    place in a room."""
    found: tuple[Node, int] | None = None
    for one in transforms:
        kind = _plain(one.get("type"))
        if kind in ("LoadPointsFromFile", "LoadPointsFromMultiSweeps"):
            taken = _plain(one.get("use_dim"))
            if taken is None and kind == "LoadPointsFromMultiSweeps":
                taken = _OF_SWEEPS
            count = len(taken) if isinstance(taken, (list, tuple)) else taken
            if isinstance(count, int) and count > 0:
                found = one, count + bool(_plain(one.get("shift_height")))
        if found is not None and kind == "IndoorPatchPointSample" and _plain(one.get("use_normalized_coord")):
            found = one, found[1] + _PLACE
    if found is not None:
        spec.facts[FEATURES] = Fact(FEATURES, found[1], WRITTEN, found[0].shown_path, found[0])


def _points(spec: TrainingSpec, transforms: Sequence[Node], sensor: Sensor | None, dataset: str) -> None:
    for one in reversed(transforms):
        count = _plain(one.get("num_points"))
        if _plain(one.get("type")) in _SAMPLED and isinstance(count, int) and count > 0:
            spec.facts[POINTS] = Fact(POINTS, count, WRITTEN, one.shown_path, one)
            return
    if sensor is None or spec.fact(POINTS) is not None:
        return
    sweeps = next(
        (_plain(one.get("sweeps_num")) for one in transforms if _plain(one.get("type")) == "LoadPointsFromMultiSweeps"),
        0,
    )
    reason = f"points of a scene of {dataset}, of a sweep {sensor.points:,}"
    _assume(spec, POINTS, sensor.points * (1 + sweeps if isinstance(sweeps, int) else 1), reason, "")


def _layer(spec: TrainingSpec) -> Node | None:
    keys = ("model.data_preprocessor.voxel_layer", "model.voxel_layer", "model.pts_voxel_layer")
    return next((node for key in keys if (node := spec.root.get(key)) is not None), None)


def _voxels(spec: TrainingSpec, sensor: Sensor | None) -> None:
    """As many as the config, the grid and the points allow; of KITTI's pillars as many as were counted."""
    layer = _layer(spec)
    if layer is None:
        return
    stated = _plain(layer.get("max_voxels"))
    bound = stated[0] if isinstance(stated, (list, tuple)) and stated else stated
    sides, reach = _plain(layer.get("voxel_size")), _plain(layer.get("point_cloud_range"))
    if not _numbers(sides, 3) or not _numbers(reach, 6) or min(sides) <= 0:
        return
    grid = [max(round((reach[at + 3] - reach[at]) / side), 1) for at, side in enumerate(sides)]
    bounds = [prod(grid)]
    if isinstance(bound, int) and not isinstance(bound, bool) and bound > 0:
        bounds.append(bound)
    if POINTS in spec:
        bounds.append(spec[POINTS])
    if len(bounds) == 1:
        return
    most = min(bounds)
    low, usual = int(SHARE * most), most
    what = "voxels of a scene: a full batch is as full as may be"
    counted = sensor is not None and grid[2] == 1 and sensor.pillars[1] and sides[0] == sides[1] == sensor.cell
    if counted and sensor is not None:
        low, usual = (min(one, most) for one in sensor.pillars)
        what = "voxels of a scene, of which its paper counted 6k-9k"
    if VOXELS not in spec:
        _assume(spec, VOXELS, usual, what, layer.shown_path)
        _assume(spec, VOXELS_BETWEEN, (low, most), "of other scenes", "")


FARTHEST = 10**6  # of a grid's ends: beyond, some number is no real one


def _numbers(value: Any, count: int) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        return False
    return all(isinstance(one, (int, float)) and -FARTHEST <= one <= FARTHEST for one in value)
