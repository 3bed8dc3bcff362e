"""Configs of mmdet3d: what is known of scenes, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings

HYPER = "hyperparameters."
PILLARS = """
voxel_size = [{side}, {side}, 4]
reach = [0, -39.68, -3, 69.12, 39.68, 1]
model = dict(
    type='VoxelNet',
    data_preprocessor=dict(type='Det3DDataPreprocessor', voxel=True, voxel_layer=dict(
        max_num_points=32, point_cloud_range=reach, voxel_size=voxel_size, max_voxels={most})),
    voxel_encoder=dict(type='PillarFeatureNet', in_channels=4, feat_channels=[64], with_distance=False,
                       voxel_size=voxel_size, point_cloud_range=reach),
    middle_encoder=dict(type='PointPillarsScatter', in_channels=64, output_shape=[496, 432]),
    backbone=dict(type='SECOND', in_channels=64, layer_nums=[3, 5, 5], layer_strides=[2, 2, 2],
                  out_channels=[64, 128, 256]),
    neck=dict(type='SECONDFPN', in_channels=[64, 128, 256], upsample_strides=[1, 2, 4], out_channels=[128, 128, 128]),
    bbox_head=dict(type='Anchor3DHead', num_classes=3, in_channels=384, feat_channels=384, assign_per_class=True,
                   anchor_generator=dict(type='AlignedAnchor3DRangeGenerator', ranges=[reach] * 3,
                                         sizes=[[0.8, 0.6, 1.73], [1.76, 0.6, 1.73], [3.9, 1.6, 1.56]],
                                         rotations=[0, 1.57], reshape_out=False),
                   bbox_coder=dict(type='DeltaXYZWLHRBBoxCoder'),
                   loss_cls=dict(type='mmdet.FocalLoss', use_sigmoid=True)),
    train_cfg=dict(assigner=[dict(type='Max3DIoUAssigner')] * 3))
train_dataloader = dict(batch_size=6, dataset=dict(type='RepeatDataset', dataset=dict(type='{dataset}', pipeline=[
    dict(type='LoadPointsFromFile', load_dim=4, use_dim=4), {more}])))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=0.001))
"""
USUAL: dict[str, Any] = {"side": 0.16, "most": "(16000, 40000)", "dataset": "KittiDataset", "more": ""}


def run(**changes: Any) -> TrainingSpec:
    (spec,) = registry.specs(load("config.py", PILLARS.format(**{**USUAL, **changes})))
    return spec


@pytest.mark.parametrize(
    ("changes", "voxels", "between"),
    [
        pytest.param({}, 9_000, (6_000, 16_000), id="KITTI's pillars as its paper counted them"),
        pytest.param({"side": 0.32}, 16_000, (8_000, 16_000), id="cells that nobody counted: as many as may be"),
        pytest.param({"most": "5000"}, 5_000, (5_000, 5_000), id="no more than the config has"),
        pytest.param({"dataset": "MyDataset"}, 16_000, (8_000, 16_000), id="scenes that nobody knows"),
        pytest.param({"dataset": "WaymoDataset"}, 16_000, (8_000, 16_000), id="scenes that nobody counted"),
        pytest.param({"side": 2.0}, 35 * 40, (700, 35 * 40), id="no more than the grid has"),
    ],
)
def test_voxels_are_what_config_grid_and_points_allow(
    changes: dict[str, Any], voxels: int, between: tuple[int, int]
) -> None:
    spec = run(**changes)
    assert spec[HYPER + "voxels"] == voxels
    assert spec[HYPER + "voxels_between"] == between
    assert spec.facts[HYPER + "voxels"].origin == "assumed"


@pytest.mark.parametrize(
    ("changes", "points", "origin"),
    [
        pytest.param({}, 30_000, "assumed", id="a sensor's"),
        pytest.param({"more": "dict(type='PointSample', num_points=16384)"}, 16_384, "written", id="so many are taken"),
        pytest.param(
            {"dataset": "NuScenesDataset", "more": "dict(type='LoadPointsFromMultiSweeps', sweeps_num=9)"},
            340_000,
            "assumed",
            id="of a sweep and nine before it",
        ),
    ],
)
def test_points_of_a_scene(changes: dict[str, Any], points: int, origin: str) -> None:
    spec = run(**changes)
    assert (spec[HYPER + "scene_points"], spec.facts[HYPER + "scene_points"].origin) == (points, origin)
    assert spec[HYPER + "point_features"] == 4


def test_an_estimate_says_what_it_assumes_and_holds_other_scenes(tmp_path: Path) -> None:
    path = tmp_path / "pillars.py"
    path.write_text(PILLARS.format(**USUAL), encoding="utf-8")
    (found,) = check_paths([str(path)], Settings(gpu="v100-32gb x8")).runs
    assert found.estimate is not None
    assert found.estimate.parameters == 4_834_888  # with 3 classes, of the library's own module
    notes = " ".join(" ".join(note) for note in found.estimate.assumptions)
    assert "voxels of a scene, of which its paper counted 6k-9k" in notes
    assert "objects of the fullest scene" in notes
    low, high = found.estimate.allocated_interval
    assert low < found.estimate.allocated_bytes < high


def reason(spec: TrainingSpec) -> str:
    return spec.unknown_reason or ""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        pytest.param("PillarFeatureNet", "MyNet", "model.voxel_encoder.type MyNet is a class", id="an encoder"),
        pytest.param("with_distance=False", "fusion=1", "model.voxel_encoder.fusion is an argument", id="an argument"),
        pytest.param("voxel=True", "voxel_type='minkunet'", "model.data_preprocessor.voxel_type minkunet", id="voxels"),
        pytest.param("voxel=True", "batch_augments=[1]", "model.data_preprocessor.batch_augments", id="augments"),
        pytest.param("AlignedAnchor3DRange", "PerClass", "anchor_generator.type PerClassGenerator", id="anchors"),
        pytest.param("mmdet.FocalLoss", "mmdet.GHMC", "model.bbox_head.loss_cls.type", id="a loss"),
    ],
)
def test_what_nobody_models_is_named(old: str, new: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "pillars.py"
    text = PILLARS.format(**USUAL)
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    (found,) = check_paths([str(path)], Settings()).runs
    assert found.estimate is None
    assert any(why in finding.message for finding in found.findings if finding.code == "MEM007")


def test_scenes_that_nobody_knows_are_unknown() -> None:
    own = run(dataset="MyDataset")
    assert (own.unknown_reason, own[HYPER + "voxels"], own[HYPER + "scene_points"]) == ("", 16_000, 16_000)
    assert "states no voxel_size" in reason(run(dataset="MyDataset", most="(-1, -1)"))
    text = PILLARS.format(**USUAL).replace("VoxelNet", "EncoderDecoder3D")
    (spec,) = registry.specs(load("config.py", text))
    assert "no transform that takes so many points" in reason(spec)
