"""mmdet3d's classes over meta tensors against the library's own modules under fake tensors (``points.json``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import UnknownModel
from memlint.meta import functional as F
from memlint.meta.nn import Module, count
from memlint.meta.tensor import Tensor, empty, int32, recording
from memlint.models.openmmlab.bricks import NaiveSyncBatchNorm
from memlint.models.openmmlab.registry import build
from memlint.models.openmmlab.scenes import Scenes, Voxelization, Voxels
from memlint.models.openmmlab.sparse import SparseEncoder, held
from memlint.models.step import record_step
from memlint.models.system import System
from tests.differential.training import walk
from tests.models.openmmlab.points import BATCH, CASES, POINTS_OF_VOXEL, VOXELS, Config, configs, counted, read

TRACES = read()
CLOSE = 1e-3  # losses of no dimension, and counters of batches
PEAK = 1e-2  # with what lives for a moment beside the most
OWN = """\
model = dict(type='Own')
train_dataloader = dict(batch_size=1)
optim_wrapper = dict(optimizer=dict(type='SGD', momentum=0.9))
"""


class Whole(Module):
    """Parts, put together by a function of them and what they are given."""

    def __init__(self, parts: dict[str, Any], work: Callable[[dict[str, Any], Any], Tensor]) -> None:
        self.parts, self.work = list(parts.values()), work
        self.names = list(parts)

    def forward(self, given: Any) -> Tensor:
        return self.work(dict(zip(self.names, self.parts)), given)


def added(made: list[Tensor]) -> Tensor:
    return reduce(F.add, [F.sum(x) for x in made])


def pillars(config: Config) -> tuple[Whole, Callable[[], Any]]:
    parts = {name: build(config[name], name) for name in ("encoder", "scatter", "backbone", "neck")}

    def work(model: dict[str, Any], voxels: Voxels) -> Tensor:
        x = model["scatter"](model["encoder"](voxels), voxels)
        return F.sum(model["neck"](model["backbone"](x))[0])

    def batch() -> Voxels:
        every = BATCH * VOXELS
        scenes = Scenes(points=0, features=4, voxels=VOXELS, boxes=0)
        features = empty((every, POINTS_OF_VOXEL, 4))
        return Voxels(features, empty((every,), int32), empty((every, 4), int32), BATCH, scenes)

    return Whole(parts, work), batch


def centers(config: Config) -> tuple[Whole, Callable[[], Any]]:
    settings = {"max_objs": 500, "dense_reg": 1}
    parts = {"head": build(config["head"], "model.bbox_head", train_cfg=settings)}

    def work(model: dict[str, Any], x: Tensor) -> Tensor:
        tasks = model["head"](x)
        return added([one for task in tasks for one in task.values()])

    return Whole(parts, work), lambda: empty((BATCH, config["head"]["in_channels"], *config["size"]))


def segmentor(config: Config) -> tuple[Whole, Callable[[], Any]]:
    model = build(config["model"], "model")
    points, width = config["points"], config["model"]["backbone"]["in_channels"]
    scenes = Scenes(points=points, features=width, voxels=0, boxes=0)

    def batch() -> Any:
        return model.prepared([empty((points, width)) for _ in range(BATCH)], scenes)

    return Whole({"model": model}, lambda parts, given: parts["model"](given, scenes)), batch


def group_free(config: Config) -> tuple[Whole, Callable[[], Any]]:
    head = {key: value for key, value in config["head"].items() if key != "train_cfg"}
    parts = {
        "backbone": build(config["backbone"], "model.backbone"),
        "head": build(head, "model.bbox_head", train_cfg=config["head"]["train_cfg"]),
    }

    def work(model: dict[str, Any], given: Any) -> Tensor:
        levels = model["backbone"](F.stack(given))
        found, scores = model["head"].predicted(levels)
        return added([scores, *(x for made in found for x in made)])

    return Whole(parts, work), lambda: [empty((config["points"], 3)) for _ in range(BATCH)]


MAKERS = {"pillars": pillars, "centers": centers, "segmentor": segmentor, "group free": group_free}


def system(config: Config) -> System:
    model, batch = MAKERS[config["kind"]](config)
    for one in model.modules():
        if isinstance(one, NaiveSyncBatchNorm):
            one.devices = config["devices"]
    options = {"implementation": "foreach", "momentum": True, "weight_decay": True}
    return System(model=model, batch=batch, loss=model, optimizer="sgd", optimizer_options=options)


@pytest.mark.parametrize("name", CASES)
def test_a_model_takes_the_memory_that_the_library_s_own_takes(name: str) -> None:
    (spec,) = registry.specs(load("config.py", OWN))
    made = record_step(lambda _: system(CASES[name]), spec)
    phases, alive = walk(made.tape)
    truth = TRACES[name]
    assert made.parameters == truth.parameters
    assert alive == pytest.approx(truth.held, rel=CLOSE)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(
        truth.peak, rel=PEAK
    )


# Models of published runs that memlint does not know, each with the key that says so.
UNKNOWN = {
    "mm3d-30": "model.img_backbone",
    "mm3d-33": "model.type PartA2",
    "mm3d-34": "model.type PartA2",
}


@pytest.mark.parametrize("name", counted())
def test_a_published_model_has_the_parameters_that_the_library_s_own_has(name: str) -> None:
    stated = load(str(configs()[name])).root.get("model")
    assert stated is not None
    with recording():
        if name in UNKNOWN:
            with pytest.raises(UnknownModel, match=UNKNOWN[name]):
                build(stated.plain(), "model")
        else:
            assert count(build(stated.plain(), "model").parameters()) == counted()[name]


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        pytest.param({"type": "RegNet", "arch": "regnetx_800mf"}, 6_586_656, id="800 MF"),
        pytest.param({"type": "RegNet", "arch": "regnetx_12gf"}, 43_865_056, id="12 GF"),
        pytest.param(
            {
                **{"type": "NoStemRegNet", "base_channels": 64, "stem_channels": 64, "strides": (1, 2, 2, 2)},
                "arch": {"w0": 24, "wa": 24.48, "wm": 2.54, "group_w": 16, "depth": 22, "bot_mul": 1.0},
            },
            4_773_632,
            id="400 MF of a map that is there already",
        ),
    ],
)
def test_a_regnet_has_the_parameters_of_the_library_s_own_module(config: Config, parameters: int) -> None:
    with recording():
        assert count(build(config, "model.backbone").parameters()) == parameters


@pytest.mark.parametrize(
    ("level", "alone", "share"),
    [
        pytest.param(1, 1.0, 27 / 8, id="places that are alone reach 1.5 along each axis"),
        pytest.param(2, 1.0, 1.75**3, id="and 1.75 behind two"),
        pytest.param(1, 0.0, 1.5 / 4, id="a surface has a quarter, thicker than it was"),
        pytest.param(1, 0.5, 1.125, id="between both"),
    ],
)
def test_sites_behind_strided_convolutions(level: int, alone: float, share: float) -> None:
    assert held(level, alone) == pytest.approx(share)


def test_a_sparse_encoder_has_a_map_of_all_places_and_finds_pairs_by_a_grid_of_them() -> None:
    """SECOND's on KITTI: 1600 x 1408 places of 41 layers, of which 200 x 176 of two are left, 128 channels each.
    Weights by hand: layers of 27 offsets, and one of three."""
    voxels = 1000
    with recording() as tape:
        encoder = SparseEncoder(in_channels=4, sparse_shape=[41, 1600, 1408])
        given = empty((BATCH * voxels, 4))
        scenes = Scenes(points=0, features=4, voxels=voxels, boxes=0)
        made = encoder(given, Voxels(given, None, empty((BATCH * voxels, 4), int32), BATCH, scenes))
        trained = count(encoder.parameters())
    assert made.shape == (BATCH, 256, 200, 176)
    widths = [(4, 16), (16, 16), (16, 32), (32, 32), (32, 32), (32, 64), *[(64, 64)] * 5]
    weights = sum(27 * one * other for one, other in widths) + 3 * 64 * 128
    norms = 2 * (sum(other for _, other in widths) + 128)
    assert trained == weights + norms
    assert max(tape.sizes) == 4 * BATCH * 41 * 1600 * 1408  # the grid of the first, of whole numbers


@pytest.mark.parametrize(
    ("layer", "dynamic"),
    [
        pytest.param({"max_num_points": 32, "max_voxels": [100, 200]}, False, id="filled up"),
        pytest.param({"max_num_points": -1, "max_voxels": [-1, -1]}, True, id="as many points as there are"),
    ],
)
def test_voxels_of_a_batch(layer: dict[str, Any], dynamic: bool) -> None:
    with recording():
        made = Voxelization({"voxel": True, "voxel_layer": layer}, None, "model.data_preprocessor")
        found = made([empty((500, 4)) for _ in range(3)], Scenes(points=500, features=4, voxels=60, boxes=0))
    assert found.features.shape == ((1500, 4) if dynamic else (180, 32, 4))
    assert found.places.shape == ((1500, 4) if dynamic else (180, 4))


def test_every_trace_is_of_a_case() -> None:
    assert list(TRACES) == list(CASES)
