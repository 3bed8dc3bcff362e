"""Family detectron2: what a run is said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths, check_text
from memlint.dialects import registry, spelling
from memlint.documents.load import load
from memlint.settings import Settings
from tests.models.test_detectron2 import C4, FPN, RETINA, spec_of, yaml_of


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        pytest.param(FPN, [800, 1344], id="the library's own sizes, filled up to the coarsest stride"),
        pytest.param(C4, [800, 1333], id="a backbone without a pyramid asks for no multiples"),
        pytest.param(
            FPN | {"INPUT.MIN_SIZE_TRAIN": [640, 672], "INPUT.MAX_SIZE_TRAIN": 1000}, [672, 1024], id="the largest"
        ),
        pytest.param(FPN | {"INPUT.MIN_SIZE_TRAIN": 512}, [512, 1344], id="one short side"),
        pytest.param(FPN | {"INPUT.MIN_SIZE_TRAIN": "(480, 512)"}, [512, 1344], id="Python's words, which yacs reads"),
        pytest.param(FPN | {"INPUT.MIN_SIZE_TRAIN": "(512,)"}, [512, 1344], id="a tuple of one"),
        pytest.param(
            FPN | {"DATALOADER.ASPECT_RATIO_GROUPING": False}, [1344, 1344], id="a batch of images of any aspect"
        ),
    ],
)
def test_the_largest_batch_is_as_large_as_its_images_may_be(
    tmp_path: Path, keys: dict[str, Any], size: list[int]
) -> None:
    assert spec_of(tmp_path, keys)["image_size"] == size


def test_images_of_other_data_may_be_square_and_have_fewer_objects_or_more(tmp_path: Path) -> None:
    """Only of the data sets that the library registers it is known how wide images are, and how full."""

    def interval_of(name: str) -> tuple[int, int]:
        config = yaml_of(FPN | {"SOLVER.IMS_PER_BATCH": 2, "DATASETS.TRAIN": f'("{name}",)'})
        (tmp_path / "config.yaml").write_text(config)
        (tmp_path / "run.sh").write_text("python tools/train_net.py --config-file config.yaml --num-gpus 1\n")
        (run,) = check_paths([str(tmp_path / "run.sh")], Settings(gpu="t4")).runs
        assert run.estimate is not None
        return run.estimate.allocated_interval.low_bytes, run.estimate.allocated_interval.high_bytes

    (tmp_path / ".git").mkdir()
    known, other = interval_of("coco_2017_train"), interval_of("mine_train")
    assert other[0] < 0.8 * known[0], "a square image has 0.6 of the pixels"
    assert other[1] > known[1]


@pytest.mark.parametrize("own", ["", "VERSION: 2\n"], ids=["its base alone", "with a key that tells nothing"])
def test_a_config_of_nothing_but_its_base_is_that_base_s_run(own: str, tmp_path: Path) -> None:
    """Detic's BoxSup_OVCOCO_CLIP_R50_1x.yaml states its base and nothing else, and was of no known family."""
    (tmp_path / "base.yaml").write_text(yaml_of(FPN | {"SOLVER.IMS_PER_BATCH": 2}), encoding="utf-8")
    (tmp_path / "between.yaml").write_text("_BASE_: base.yaml\n", encoding="utf-8")
    (tmp_path / "net.yaml").write_text(f'_BASE_: "between.yaml"\n{own}', encoding="utf-8")
    (tmp_path / "lost.yaml").write_text("_BASE_: nowhere.yaml\n", encoding="utf-8")
    [spec] = registry.specs(load(str(tmp_path / "net.yaml")))
    assert (spec.family, spec.get("global_batch_size")) == ("detectron2", 2)
    assert registry.specs(load(str(tmp_path / "lost.yaml"))) == []


@pytest.mark.parametrize(
    ("names", "registered"),
    [
        pytest.param('("coco_2014_train", "coco_2014_valminusminival")', True, id="COCO"),
        pytest.param('("keypoints_coco_2017_train",)', True, id="COCO's persons"),
        pytest.param('("lvis_v0.5_train",)', True, id="LVIS"),
        pytest.param('("cityscapes_fine_instance_seg_train",)', True, id="Cityscapes"),
        pytest.param('("voc_2007_trainval", "voc_2012_trainval")', True, id="VOC"),
        pytest.param('("my_coco_train",)', False, id="one's own"),
        pytest.param("coco_dataset", False, id="one's own in COCO's format"),
    ],
)
def test_data_sets_that_the_library_registers_are_known_by_their_names(
    tmp_path: Path, names: str, registered: bool
) -> None:
    spec = spec_of(tmp_path, FPN | {"DATASETS.TRAIN": names})
    assert ("hyperparameters.boxes_between" not in spec) == registered


def test_images_are_shared_by_all_devices(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FPN, devices=8)
    assert spec["micro_batch_size"] == 2, "SOLVER.IMS_PER_BATCH is 16 unless a config says otherwise"
    assert spec["parallelism.strategy"] == "ddp"
    spec = spec_of(tmp_path, FPN | {"SOLVER.IMS_PER_BATCH": 10}, devices=8)
    assert spec.architecture is None
    assert spec.unknown_reason == "SOLVER.IMS_PER_BATCH is no multiple of 8 devices"


def test_a_config_alone_does_not_say_how_many_devices_there_are(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml_of(FPN))
    (run,) = check_paths([str(path)], Settings()).runs
    assert run.estimate is None
    assert run.partial is not None
    assert [row.values for row in run.partial.rows] == [(1,), (2,), (4,), (8,)]
    (run,) = check_paths([str(path)], Settings(gpu="v100-16gb x8")).runs
    assert run.estimate is not None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param({"MODEL.META_ARCHITECTURE": "CenterNet"}, "MODEL.META_ARCHITECTURE CenterNet", id="a model"),
        pytest.param({"MODEL.BACKBONE.NAME": "build_swin"}, "MODEL.BACKBONE.NAME build_swin", id="a backbone"),
        pytest.param({"MODEL.CENTERNET.NUM_CLASSES": 8}, "MODEL.CENTERNET.NUM_CLASSES is of no key", id="its own key"),
        pytest.param(
            {"MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, True, True, True]}, "deformable", id="deformable convolutions"
        ),
        pytest.param({"MODEL.ROI_HEADS.NUM_CLASSES": "many"}, "it has to be a whole number", id="no number"),
        pytest.param({"MODEL.MASK_ON": 2}, "MODEL.MASK_ON is 2", id="no switch"),
        pytest.param({"INPUT.CUSTOM_AUG": "Ours"}, "INPUT.CUSTOM_AUG is of no key", id="images of its own making"),
        pytest.param(
            {"MODEL.MASK_ON": True, "INPUT.MASK_FORMAT": "rle"}, "INPUT.MASK_FORMAT rle", id="masks of another kind"
        ),
        pytest.param({"SOLVER.OPTIMIZER": "ADAMW"}, "SOLVER.OPTIMIZER ADAMW", id="a program's own optimizer"),
        pytest.param({"MODEL.RESNETS.DEPTH": 18}, "MODEL.RESNETS.RES2_OUT_CHANNELS has to be 64", id="thin blocks"),
    ],
)
def test_what_is_not_known_is_told_by_its_key(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    spec = spec_of(tmp_path, FPN | keys)
    assert spec.architecture is None
    assert said in spec.unknown_reason


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"MODEL.WEIGHTS": "model.pkl", "MODEL.PIXEL_STD": [1.0, 1.0, 1.0]}, id="what is loaded"),
        pytest.param({"MODEL.ROI_HEADS.SCORE_THRESH_TEST": 0.05, "MODEL.RPN.NMS_THRESH": 0.7}, id="thresholds"),
        pytest.param({"MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 0.5, "MODEL.RPN.LOSS_WEIGHT": 2.0}, id="factors"),
        pytest.param({"MODEL.ROI_MASK_HEAD.NAME": "Ours"}, id="a head that the model does not have"),
        pytest.param({"MODEL.RETINANET.NUM_CLASSES": 3}, id="another model's"),
        pytest.param({"INPUT.MASK_FORMAT": "bitmask", "INPUT.MIN_SIZE_TEST": 800}, id="masks that nobody asks for"),
        pytest.param({"INPUT.CROP.ENABLED": True, "INPUT.RANDOM_FLIP": "none"}, id="what is done before resizing"),
    ],
)
def test_keys_that_decide_nothing_change_nothing(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert spec_of(tmp_path, FPN | keys).architecture == "detectron2"


def test_a_base_and_options_behind_the_command_are_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "base.yaml").write_text(yaml_of(FPN))
    (tmp_path / "mask.yaml").write_text("_BASE_: base.yaml\nMODEL:\n  MASK_ON: true\n  RESNETS:\n    DEPTH: 101\n")
    options = "SOLVER.IMS_PER_BATCH 4 MODEL.ROI_HEADS.NUM_CLASSES 3"
    (tmp_path / "run.sh").write_text(f"./train_net.py --config-file mask.yaml --num-gpus 2 {options}\n")
    [spec] = registry.specs(load(str(tmp_path / "run.sh")))
    settings = spec["hyperparameters.detectron2"]
    assert (settings["MODEL.MASK_ON"], settings["MODEL.RESNETS.DEPTH"]) == (True, 101)
    assert settings["MODEL.ROI_HEADS.NUM_CLASSES"] == 3
    assert spec["micro_batch_size"] == 2


def test_the_anchors_of_the_library_s_own_retinanet_are_an_expression(tmp_path: Path) -> None:
    text = yaml_of({key: value for key, value in RETINA.items() if not key.startswith("MODEL.ANCHOR")})
    text += (
        '  ANCHOR_GENERATOR:\n    SIZES: !!python/object/apply:eval ["[[x, x, x] for x in [32, 64, 128, 256, 512]]"]\n'
    )
    report = check_text("config.yaml", text, Settings(gpu="v100-16gb x8"))
    (run,) = report.runs
    assert run.estimate is not None
    assert run.estimate.parameters == 37_915_572
    assert any("Base-RetinaNet.yaml" in why for _, _, why in run.estimate.assumptions)


def test_lvis_has_fuller_images(tmp_path: Path) -> None:
    plain, full = (spec_of(tmp_path, FPN | keys) for keys in ({}, {"DATASETS.TRAIN": ["lvis_v1_train"]}))
    assert plain["hyperparameters.boxes"] < full["hyperparameters.boxes"]
    assert full.facts["hyperparameters.boxes"].origin == "assumed"


LAZY = """\
from detectron2.config import LazyCall as L
dataloader = dict(train=dict(total_batch_size=64, num_workers=6))
model = L(Net)(depth=50)
train = dict(amp=dict(enabled=True), init_checkpoint="")
lr_multiplier = L(Steps)()
optimizer = L(AdamW)(lr=1e-4)
"""


def test_a_lazy_config_s_model_is_a_program(tmp_path: Path) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(LAZY)
    [spec] = registry.specs(load(str(path)))
    assert (spec["global_batch_size"], spec["workers"], spec["compute_dtype"]) == (64, 6, "float16")
    assert spec.architecture is None
    assert "detectron2" in spec.unknown_reason


def test_half_precision_is_a_switch(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FPN | {"SOLVER.AMP.ENABLED": True, "DATALOADER.NUM_WORKERS": 2})
    assert (spec["compute_dtype"], spec["workers"], spec["optimizer"]) == ("float16", 2, "sgd")


def test_half_precision_is_written_by_the_key_of_the_config_s_kind(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FPN)
    [edit] = spelling.spell(spec, "compute_dtype", "float16")
    assert edit.span.path == str(tmp_path / "config.yaml")
    assert edit.text.split() == ["SOLVER:", "AMP:", "ENABLED:", "true"]
    assert spelling.spell(spec, "compute_dtype", "bfloat16") == []


def test_a_base_that_leaves_the_model_open_is_no_run_of_a_walk(tmp_path: Path) -> None:
    base = tmp_path / "Base-Mine.yaml"
    base.write_text("MODEL:\n  META_ARCHITECTURE: Mine\nSOLVER:\n  IMS_PER_BATCH: 16\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("_BASE_: Base-Mine.yaml\nMODEL:\n  DEVICE: cuda\n", encoding="utf-8")
    assert [Path(one.path).name for one in check_paths([str(tmp_path)], Settings()).runs] == ["mine.yaml"]
    assert len(check_paths([str(base)], Settings()).runs) == 1
    (tmp_path / "mine.yaml").unlink()
    assert len(check_paths([str(tmp_path)], Settings()).runs) == 1  # nothing is built on it
