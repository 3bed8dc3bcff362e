"""Configs of OpenMMLab's libraries: what inherits, how large a sample is, how many devices there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.estimates import allocated_bytes
from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.fixes.edits import apply_edits
from memlint.meta.tape import Tape
from memlint.models import record
from memlint.settings import Settings

MODEL = """
norm_cfg = dict(type='SyncBN', requires_grad=True)
model = dict(
    type='EncoderDecoder',
    backbone=dict(type='ResNetV1c', depth=50, norm_cfg=norm_cfg, strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)),
    decode_head=dict(type='PSPHead', in_channels=2048, in_index=3, channels=512, num_classes=19, norm_cfg=norm_cfg),
    auxiliary_head=dict(
        type='FCNHead', in_channels=1024, in_index=2, channels=256, num_convs=1, concat_input=False,
        num_classes=19, norm_cfg=norm_cfg))
"""
NEW = """
_base_ = ['model.py']
crop_size = (512, 1024)
train_pipeline = [dict(type='LoadImageFromFile'), dict(type='RandomCrop', crop_size=crop_size)]
train_dataloader = dict(batch_size=2, dataset=dict(type='CityscapesDataset', pipeline=train_pipeline))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0005))
"""
OLD = """
_base_ = ['model.py']
train_pipeline = [
    dict(type='Resize', img_scale=(2048, 1024)), dict(type='RandomCrop', crop_size=(512, 1024)),
    dict(type='Pad', size=(512, 1024), pad_val=0)]
data = dict(samples_per_gpu=2, train=dict(type='RepeatDataset', dataset=dict(type='Mine', pipeline=train_pipeline)))
optimizer = dict(type='SGD', lr=0.01, momentum=0.9)
runner = dict(type='IterBasedRunner', max_iters=40000)
"""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def run(path: Path) -> TrainingSpec:
    (spec,) = registry.specs(load(str(path)))
    return spec


@pytest.mark.parametrize("text", [pytest.param(NEW, id="mmengine's dialect"), pytest.param(OLD, id="mmcv's dialect")])
def test_a_config_and_what_it_inherits_make_an_estimate(text: str, tmp_path: Path) -> None:
    (found,) = check_paths([str(written(tmp_path, "net.py", text))], Settings(gpu="v100-32gb x4")).runs
    assert (found.family, found.model_name) == ("openmmlab", "EncoderDecoder")
    assert found.estimate is not None
    assert found.estimate.parameters == 48_975_494  # of mmseg's own module
    assert found.facts["image_size"].value == [512, 1024]
    assert found.facts["parallelism.strategy"].value == "ddp"


def test_pspnet_on_cityscapes_takes_what_was_published(tmp_path: Path) -> None:
    """6.1 GB of torch's allocator on each of four V100s under torch before 1.11 (mmseg, ``configs/pspnet``)."""
    (tmp_path / "requirements.txt").write_text("torch==1.5.1\n", encoding="utf-8")
    (found,) = check_paths([str(written(tmp_path, "net.py", OLD))], Settings(gpu="v100-32gb x4")).runs
    assert found.estimate is not None
    assert found.estimate.allocated_bytes / 2**30 == pytest.approx(6.1, rel=0.01)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param("psp_4xb2-40k_mine.py", 4, id="as many as the name says"),
        pytest.param("psp_8xb4-40k_mine.py", None, id="not where the name says another batch"),
        pytest.param("psp.py", None, id="not where the name says nothing"),
    ],
)
def test_the_name_of_a_file_says_how_many_devices_there_are(name: str, devices: int | None, tmp_path: Path) -> None:
    spec = run(written(tmp_path, name, NEW))
    assert spec.get("device_count") == devices
    assert spec.get("parallelism.strategy") == ("ddp" if devices else None)


def test_a_run_without_a_size_says_so_on_its_line(tmp_path: Path) -> None:
    text = NEW.replace("dict(type='RandomCrop', crop_size=crop_size)", "dict(type='Resize', scale=(1333, 800))")
    (found,) = check_paths([str(written(tmp_path, "net.py", text))], Settings()).runs
    assert found.estimate is None
    (finding,) = [finding for finding in found.findings if finding.code == "MEM007"]
    assert "train_pipeline states no crop_size" in finding.message
    assert finding.span.line == 4


def test_a_head_that_is_not_known_is_named_on_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "net.py", NEW + "model = dict(decode_head=dict(type='MyHead'))\n")
    (found,) = check_paths([str(path)], Settings()).runs
    (finding,) = [finding for finding in found.findings if finding.code == "MEM007"]
    assert "model.decode_head.type MyHead is a class that memlint does not know" in finding.message
    assert (Path(finding.span.path).name, finding.span.line) == ("net.py", 7)


def test_each_parameter_is_a_group_where_some_have_settings_of_their_own(tmp_path: Path) -> None:
    text = NEW.replace("optim_wrapper = dict(", "optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0), ")
    assert run(written(tmp_path, "net.py", text))["optimizer_implementation"] == "loop"


DETECTOR = """
model = dict(
    type='FasterRCNN',
    backbone=dict(
        type='ResNet', depth=50, frozen_stages=1, norm_cfg=dict(type='BN', requires_grad=True), norm_eval=True),
    neck=dict(type='FPN', in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5),
    rpn_head=dict(
        type='RPNHead', in_channels=256, feat_channels=256,
        anchor_generator=dict(type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64])),
    roi_head=dict(
        type='StandardRoIHead',
        bbox_roi_extractor=dict(
            type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size=7), out_channels=256,
            featmap_strides=[4, 8, 16, 32]),
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=256, roi_feat_size=7, num_classes=80)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=2000, max_per_img=1000),
        rcnn=dict(sampler=dict(type='RandomSampler', num=512, pos_fraction=0.25))))
data = dict(samples_per_gpu=2, train=dict(type='CocoDataset', pipeline=[dict(type='LoadImageFromFile'), {transform}]))
optimizer = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001)
"""
FIT = "dict(type='Resize', img_scale=(1333, 800), keep_ratio=True)"
SEVERAL = "dict(type='Resize', img_scale=[(1333, 640), (1333, 800)], multiscale_mode='range', keep_ratio=True)"
CUT = f"""dict(type='AutoAugment', policies=[[{SEVERAL}], [
    dict(type='RandomCrop', crop_type='absolute_range', crop_size=(384, 600)), {SEVERAL}]])"""


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        pytest.param(FIT, [800, 1344], id="one scale, filled up to multiples of 32"),
        pytest.param(SEVERAL, [800, 1344], id="the largest of several"),
        pytest.param(CUT, [1280, 1280], id="pieces that may be high beside pieces that may be wide"),
    ],
)
def test_images_that_are_fitted_are_as_large_as_the_largest_may_be(
    transform: str, size: list[int], tmp_path: Path
) -> None:
    spec = run(written(tmp_path, "det.py", DETECTOR.replace("{transform}", transform)))
    if transform is CUT:
        size = [1280, 1280]
    assert spec["image_size"] == size
    assert spec.facts["hyperparameters.boxes"].origin == "assumed"


def test_a_detector_takes_what_was_published(tmp_path: Path) -> None:
    """4.0 GB of torch's allocator on each of eight V100s (mmdet 2, ``configs/faster_rcnn``), 41.53 M parameters that
    train."""
    (tmp_path / "requirements.txt").write_text("torch==1.4.0\n", encoding="utf-8")
    path = written(tmp_path, "det.py", DETECTOR.replace("{transform}", FIT))
    (found,) = check_paths([str(path)], Settings(gpu="v100-32gb x8")).runs
    assert found.estimate is not None
    assert found.estimate.trainable_parameters / 1e6 == pytest.approx(41.53, abs=0.005)
    assert found.estimate.allocated_bytes / 2**30 == pytest.approx(4.0, rel=0.03)


def _between(text: str, start: str, end: str) -> str:
    """Without what stands from a word up to another one."""
    return text[: text.index(start)] + text[text.index(end) :]


def test_a_proposal_network_takes_what_was_published(tmp_path: Path) -> None:
    """3.8 GB of torch's allocator on each of eight V100s (mmdet 2, ``configs/rpn``)."""
    (tmp_path / "requirements.txt").write_text("torch==1.4.0\n", encoding="utf-8")
    text = _between(DETECTOR.replace("{transform}", FIT).replace("FasterRCNN", "RPN"), "roi_head=", "train_cfg=")
    (found,) = check_paths([str(written(tmp_path, "rpn.py", text))], Settings(gpu="v100-32gb x8")).runs
    assert found.estimate is not None
    assert found.estimate.allocated_bytes / 2**30 == pytest.approx(3.8, rel=0.05)


def test_the_halves_of_a_detector_have_its_parameters(tmp_path: Path) -> None:
    whole = record(detector(tmp_path))
    text = DETECTOR.replace("{transform}", FIT)
    first = _between(text.replace("FasterRCNN", "RPN"), "roi_head=", "train_cfg=")
    second = _between(text.replace("FasterRCNN", "FastRCNN"), "rpn_head=", "roi_head=")
    halves = [record(run(written(tmp_path, "half.py", half))) for half in (first, second)]
    body = 23_508_032 + 3_344_384  # torchvision's ResNet-50 without its last layer, and the pyramid of 256
    assert sum(half.parameters for half in halves) - whole.parameters == body
    assert all(half.tape.saved_bytes < whole.tape.saved_bytes for half in halves)


RESNET = "type='ResNet', depth=50, frozen_stages=1, norm_cfg=dict(type='BN', requires_grad=True), norm_eval=True"
THEIRS = "type='SwinTransformer', embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], ape=False"
OF_SWIN = (RESNET, THEIRS), ("in_channels=[256, 512, 1024, 2048]", "in_channels=[96, 192, 384, 768]")


@pytest.mark.parametrize("stated", ["", ", use_checkpoint=False"], ids=["absent", "off"])
def test_swin_of_its_authors_is_recomputed_by_its_own_argument(stated: str, tmp_path: Path) -> None:
    spec = detector(tmp_path, *OF_SWIN, ("ape=False", f"ape=False{stated}"))
    assert (spec["checkpointing"], spec.unknown_reason) == ("none", "")
    less = allocated_bytes(spec.with_facts({"checkpointing": "full"}))
    text = apply_edits((tmp_path / "det.py").read_text(encoding="utf-8"), spell(spec, "checkpointing", "full"))
    again = run(written(tmp_path, "det.py", text))
    assert "with_cp" not in text
    assert (again["checkpointing"], allocated_bytes(again)) == ("full", less)
    assert less < 0.8 * allocated_bytes(spec)


HOOK = "optimizer_config = dict(type='DistOptimizerHook', update_interval=2, use_fp16={})\noptimizer = "


def test_the_hook_of_swin_s_authors_accumulates_and_may_use_apex(tmp_path: Path) -> None:
    plain = detector(tmp_path, ("optimizer = ", HOOK.format(False)))
    assert (plain["gradient_accumulation_steps"], plain.unknown_reason) == (2, "")
    half = detector(tmp_path, ("optimizer = ", HOOK.format(True)))
    assert (half["compute_dtype"], half["gradient_accumulation_steps"], half.unknown_reason) == ("float16", 2, "")
    open_ = detector(tmp_path, ("optimizer = ", HOOK.format("TRAINS_IN_HALF")))
    assert "use_fp16 is not known" in open_.unknown_reason


@pytest.mark.parametrize(
    ("torch", "gradients"),
    [
        pytest.param("1.9.0", 1, id="zeros, which are put aside for the backward pass"),
        pytest.param("2.1.0", 0, id="nothing is left of the last step's"),
    ],
)
def test_apex_keeps_casts_and_gradients_for_the_backward_pass(torch: str, gradients: int, tmp_path: Path) -> None:
    """Beside autocast's: 16-bit weights until the end of the pass, and the last step's gradients beside the new ones
    (``apex/amp/_process_optimizer.py``: prepare_backward_no_master_weights; ``amp/handle.py``: _clear_cache)."""
    (tmp_path / "requirements.txt").write_text(f"torch=={torch}\n", encoding="utf-8")
    spec = detector(tmp_path, ("optimizer = ", HOOK.format(True).replace("update_interval=2", "update_interval=1")))
    autocast = spec.with_facts({"hyperparameters.apex": False, "compute_dtype": "float16"})
    made, plain = record(spec), record(autocast)
    trained = made.trainable_parameters
    more = alive_as_the_last_gradient_is_made(made.tape) - alive_as_the_last_gradient_is_made(plain.tape)
    assert 4 * gradients * trained + 1.9 * trained < more < 4 * gradients * trained + 2.2 * trained


def alive_as_the_last_gradient_is_made(tape: Tape) -> int:
    (end,) = [at for at, phase in tape.marks if phase == "optimizer_step"]
    last = max(at for at in range(end) if tape.events[at] >= 0)
    return sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events[: last + 1])


def test_arguments_of_the_model_s_classes_are_read(tmp_path: Path) -> None:
    """``frozen_stages`` is an argument of the backbone's class, and was said to be a key that nobody reads."""
    text = DETECTOR.replace("{transform}", FIT) + "freeze_backbone = True\n"
    (found,) = check_paths([str(written(tmp_path, "det.py", text))], Settings()).runs
    assert found.estimate is not None
    [told] = [finding.message for finding in found.findings if finding.code == "MEM805"]
    assert told.startswith("freeze_backbone True: not read")  # a name of the file's own


def detector(folder: Path, *changes: tuple[str, str]) -> TrainingSpec:
    """The run of DETECTOR with words changed."""
    text = DETECTOR.replace("{transform}", FIT)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return run(written(folder, "det.py", text))


def test_further_maps_are_made_of_what_an_older_argument_says(tmp_path: Path) -> None:
    """``extra_convs_on_inputs=False`` is ``add_extra_convs="on_output"`` (mmdet 2.11, ``necks/fpn.py``)."""
    whole = "num_outs=5)"
    ways = "add_extra_convs=True, extra_convs_on_inputs=False", "add_extra_convs='on_output'", "add_extra_convs=True"
    counts = [record(detector(tmp_path, (whole, f"{way}, {whole}"))).parameters for way in ways]
    assert counts[0] == counts[1]
    assert counts[2] - counts[0] == 9 * 256 * (2048 - 256)


def test_what_takes_regions_out_of_a_map_keeps_what_its_operator_keeps(tmp_path: Path) -> None:
    """Of each number of a region: nothing of an average, the index of a maximum as int32, or both of its coordinates
    (mmcv 2.1, ``ops/roi_pool.py`` and ``ops/roi_align.py``)."""
    kept = {}
    for name, layer in (("mean", ""), ("index", "RoIPool"), ("place", "RoIAlign', pool_mode='max")):
        spec = detector(tmp_path, ("type='RoIAlign", f"type='{layer or 'RoIAlign'}"))
        kept[name] = record(spec).tape.saved_bytes
    numbers = 2 * 512 * 256 * 7 * 7
    assert kept["index"] - kept["mean"] == 4 * numbers
    assert kept["place"] - kept["mean"] == 8 * numbers


@pytest.mark.parametrize("kind", ["DeformRoIPoolPack", "ModulatedDeformRoIPoolPack"])
def test_an_operator_with_layers_of_its_own_is_not_known(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=f"^model.roi_head.bbox_roi_extractor.roi_layer.type {kind} is an operator"):
        record(detector(tmp_path, ("type='RoIAlign'", f"type='{kind}'")))


def test_the_batch_of_mmdet_s_first_releases(tmp_path: Path) -> None:
    """``imgs_per_gpu`` goes before ``samples_per_gpu`` (mmdet 2.28, ``apis/train.py``)."""
    old = detector(tmp_path, ("samples_per_gpu=2", "imgs_per_gpu=3"))
    assert (old.family, old["micro_batch_size"], old.unknown_reason) == ("openmmlab", 3, "")
    assert detector(tmp_path, ("samples_per_gpu=2", "samples_per_gpu=2, imgs_per_gpu=4"))["micro_batch_size"] == 4


COCO_FILES = "ann_file='data/coco/annotations/instances_train2017.json'"
VOC = ["'data/VOCdevkit/VOC2007/ImageSets/Main/trainval.txt'", "'data/VOCdevkit/VOC2012/ImageSets/Main/trainval.txt'"]


@pytest.mark.parametrize(
    ("dataset", "objects", "between"),
    [
        pytest.param(f"type='CocoDataset', {COCO_FILES}", 93, None, id="COCO"),
        pytest.param("type='CocoDataset'", 93, None, id="COCO by its class alone"),
        pytest.param("type='CocoDataset', ann_file='data/mine/train.json'", 93, (10, 300), id="data of one's own"),
        pytest.param("type='Mine'", 93, (10, 300), id="a class of one's own"),
        pytest.param(f"type='VOCDataset', ann_file=[{VOC[0]}, {VOC[1]}]", 39, None, id="VOC of both years"),
        pytest.param(f"type='VOCDataset', ann_file={VOC[0]}", 30, None, id="VOC of one year"),
        pytest.param(
            f"type='RepeatDataset', dataset=dict(type='VOCDataset', ann_file=[{VOC[0]}])", 30, None, id="wrapped"
        ),
        pytest.param(
            "type='ConcatDataset', datasets=["
            f"dict(type='VOCDataset', ann_file={VOC[0]}), dict(type='VOCDataset', ann_file={VOC[1]})]",
            39,
            None,
            id="put together",
        ),
        pytest.param(
            "type='ClassBalancedDataset', dataset=dict(type='LVISV1Dataset', ann_file='lvis_v1_train.json')",
            300,
            (93, 1000),
            id="LVIS",
        ),
        pytest.param(
            f"type='ConcatDataset', datasets=[dict(type='Mine'), dict(type='CocoDataset', {COCO_FILES})]",
            93,
            (93, 300),
            id="COCO and other data",
        ),
    ],
)
def test_the_fullest_image_is_of_the_data_that_train(
    dataset: str, objects: int, between: tuple[int, int] | None, tmp_path: Path
) -> None:
    """Of LVIS's models mmdet publishes nearly twice the memory of COCO's, and of VOC's less."""
    spec = detector(tmp_path, ("train=dict(type='CocoDataset',", f"train=dict({dataset},"))
    fact = spec.facts["hyperparameters.boxes"]
    assert (fact.value, fact.origin, spec.get("hyperparameters.boxes_between")) == (objects, "assumed", between)


def test_of_lvis_the_published_memory_lies_in_the_interval(tmp_path: Path) -> None:
    """9.1 GB of torch's allocator (mmdet 2, ``configs/lvis``: Mask R-CNN, v1), of which nobody counted the objects."""
    mask = """mask_roi_extractor=dict(
            type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size=14), out_channels=256,
            featmap_strides=[4, 8, 16, 32]),
        mask_head=dict(type='FCNMaskHead', num_convs=4, in_channels=256, conv_out_channels=256, num_classes=1203),
        bbox_head=dict("""
    text = DETECTOR.replace("{transform}", FIT).replace("bbox_head=dict(", mask).replace("FasterRCNN", "MaskRCNN")
    text = text.replace("num_classes=80", "num_classes=1203").replace("type='CocoDataset'", "type='LVISV1Dataset'")
    (tmp_path / "requirements.txt").write_text("torch==1.5.1\n", encoding="utf-8")
    (found,) = check_paths([str(written(tmp_path, "det.py", text))], Settings(gpu="v100-32gb x8")).runs
    assert found.estimate is not None
    ends = found.estimate.allocated_interval
    assert ends.low_bytes / 2**30 < 9.1 < ends.high_bytes / 2**30


def test_a_detector_s_boxes_take_a_matrix_over_all_anchors(tmp_path: Path) -> None:
    """Which the forward pass has beside it: a corner pair and two sides for each box and anchor."""
    spec = run(written(tmp_path, "det.py", DETECTOR.replace("{transform}", FIT)))
    few, many = (allocated_bytes(spec.with_facts({"hyperparameters.boxes": count})) for count in (1, 1000))
    anchors = 3 * sum((800 // side) * -(-1344 // side) for side in (4, 8, 16, 32)) + 3 * 13 * 21
    assert many - few > 0.9 * 1000 * anchors * 4 * 4 * 2 - few


DATA = "data = dict(samples_per_gpu=2, train=dict(type='Mine'))\n"


def test_parts_that_others_inherit_are_no_runs(tmp_path: Path) -> None:
    below = tmp_path / "_base_" / "datasets"
    below.mkdir(parents=True)
    (below / "mine.py").write_text(DATA, encoding="utf-8")
    (below / "other.py").write_text("_base_ = 'mine.py'\n" + DATA, encoding="utf-8")
    written(tmp_path, "net.py", OLD.replace("'model.py'", "'model.py', '_base_/datasets/other.py'"))
    assert [Path(one.path).name for one in check_paths([str(tmp_path)], Settings()).runs] == ["net.py"]
    report = check_paths([str(below / "other.py")], Settings())
    assert not report.runs
    assert [why for _, why in report.skipped] == ["a part that other configs build on: it has no model"]


@pytest.mark.parametrize(
    ("place", "base", "kept", "is_run"),
    [
        pytest.param("_base_/models/other.py", "net.py", "", False, id="below the folder of bases"),
        pytest.param("parts/other.py", "net.py", "", False, id="a model alone, elsewhere"),
        pytest.param("parts/other.py", "net.py", DATA, True, id="with data"),
        pytest.param("parts/other.py", "net.py", "optimizer = dict(type='SGD')\n", True, id="with an optimizer"),
        pytest.param("parts/other.py", "net.py", "train_cfg = dict(max_epochs=12)\n", True, id="with a length"),
        pytest.param("parts/other.py", "net.py", "train_cfg = dict(rpn=dict())\n", False, id="what a model once had"),
        pytest.param("parts/other.py", "gone.py", "", True, id="on a base that is not there"),
        pytest.param("_base_/models/other.py", "gone.py", "", False, id="both"),
    ],
)
def test_a_model_that_nothing_trains_is_a_part(place: str, base: str, kept: str, is_run: bool, tmp_path: Path) -> None:
    """BEVFormer's ``_base_/models``, of which no config of the repository makes a run, were told as runs."""
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    (path.parent / "net.py").write_text(MODEL, encoding="utf-8")
    path.write_text(f"_base_ = './{base}'\nmodel = dict(pretrained=None)\n{kept}", encoding="utf-8")
    assert bool(registry.specs(load(str(path)))) is is_run


def test_a_model_that_is_a_name_is_another_program_s(tmp_path: Path) -> None:
    """PixArt-alpha reads mmcv's configs with a program of its own, and was told that its model is no mapping."""
    (tmp_path / "base.py").write_text("optimizer = dict(type='AdamW', lr=1e-4)\n", encoding="utf-8")
    text = "_base_ = ['base.py']\ndata = dict(type='SAM')\nmodel = 'PixArt_XL_2'\ntrain_batch_size = 176\n"
    (tmp_path / "own.py").write_text(text + "ema_decay = 0.95\n", encoding="utf-8")
    assert registry.specs(load(str(tmp_path / "own.py"))) == []


@pytest.mark.parametrize(
    ("command", "devices", "dtype", "batch"),
    [
        pytest.param("python tools/train.py net.py", 1, "float32", 2, id="the library's script"),
        pytest.param("torchrun --nproc_per_node=4 tools/train.py net.py", 4, "float32", 2, id="four"),
        pytest.param("python tools/train.py net.py --work-dir out --amp", 1, "float16", 2, id="autocast"),
        pytest.param(
            "python tools/train.py net.py --cfg-options train_dataloader.batch_size=3 crop_size='(256,256)'",
            1,
            "float32",
            3,
            id="overrides",
        ),
        pytest.param("mim train mmsegmentation net.py --launcher pytorch --gpus 2", 2, "float32", 2, id="mim"),
    ],
)
def test_a_command_that_names_a_config_is_its_run(
    command: str, devices: int, dtype: str, batch: int, tmp_path: Path
) -> None:
    written(tmp_path, "net.py", NEW)
    script = tmp_path / "run.sh"
    script.write_text(f"{command}\n", encoding="utf-8")
    (found,) = registry.specs(load(str(script)))
    assert (found.family, found.get("device_count", 1), found["compute_dtype"]) == ("openmmlab", devices, dtype)
    assert found["micro_batch_size"] == batch
    assert found.architecture == "openmmlab", found.unknown_reason


@pytest.mark.parametrize(
    "command",
    [
        pytest.param('python $(dirname "$0")/train.py $1 --launcher pytorch ${@:3}', id="by position"),
        pytest.param("srun python -u train.py ${CONFIG} --work-dir=$2", id="through a variable"),
        pytest.param("python train.py --config-name=$1.yaml training.seed=$2", id="as an option"),
        pytest.param("python train.py --config $1", id="as an option's next word"),
    ],
)
def test_a_launcher_that_is_told_its_config_is_no_run(command: str, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(f"CONFIG=$1\n{command}\n", encoding="utf-8")
    assert registry.specs(load(str(script))) == []
    script.write_text(f"{command} --lr 1e-4\n".replace("$1", "net.py").replace("${CONFIG}", "net.py"), encoding="utf-8")
    (found,) = registry.specs(load(str(script)))
    assert found.family == "program"


def test_a_launcher_that_is_told_its_data_is_a_run(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text("DATA=$1\npython train.py --train-data=${DATA}/train --batch-size=128 $2\n", encoding="utf-8")
    (found,) = registry.specs(load(str(script)))
    assert found.family == "program"


def test_a_launcher_of_the_library_hands_its_config_on(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    launcher = "CONFIG=$1\nGPUS=$2\npython -m torch.distributed.launch --nproc_per_node=$GPUS \\\n"
    launcher += '    $(dirname "$0")/train.py $CONFIG --launcher pytorch ${@:3}\n'
    (tools / "dist_train.sh").write_text(launcher, encoding="utf-8")
    written(tmp_path, "net.py", NEW)
    readme = tmp_path / "README.md"
    readme.write_text("```sh\n./tools/dist_train.sh net.py 4\n```\n", encoding="utf-8")
    (found,) = registry.specs(load(str(readme)))
    assert (found.family, found["device_count"]) == ("openmmlab", 4)
    assert found.architecture == "openmmlab"


LAID_OVER = """
_base_ = ["../_base_/models/ours.py", "../_base_/datasets/{data}", "../_base_/schedules/{schedule}",
          "../_base_/default_runtime.py"]
{more}
"""


def laid_over(folder: Path, data: str, schedule: str, more: str, model: str) -> TrainingSpec:
    """A project that is laid over a library's checkout: it has the part of its model alone."""
    for name in ("configs/_base_/models", "configs/ours"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "configs/_base_/models/ours.py").write_text(model, encoding="utf-8")
    path = folder / "configs/ours/net.py"
    path.write_text(LAID_OVER.format(data=data, schedule=schedule, more=more), encoding="utf-8")
    return run(str(path))


def test_parts_of_the_library_that_are_not_there_say_what_they_say_in_it(tmp_path: Path) -> None:
    text = DETECTOR.replace("{transform}", FIT)
    model = text[text.index("model = ") : text.index("data = ")]
    spec = laid_over(tmp_path, "coco_instance.py", "schedule_1x.py", "", model)
    assert (spec["image_size"], spec["micro_batch_size"], spec["optimizer"]) == ([800, 1344], 2, "sgd")
    assert spec.unknown_reason == ""
    assert not spec.document.faults
    changes = "data = dict(samples_per_gpu=4)\noptimizer = dict(_delete_=True, type='AdamW', lr=1e-4)"
    spec = laid_over(tmp_path, "coco_instance.py", "schedule_1x.py", changes, model)
    assert (spec["image_size"], spec["micro_batch_size"], spec["optimizer"]) == ([800, 1344], 4, "adamw")
    newer = "optim_wrapper = dict(type='AmpOptimWrapper')"
    spec = laid_over(tmp_path, "coco_detection.py", "schedule_2x.py", newer, model)
    assert (spec["image_size"], spec["micro_batch_size"], spec["compute_dtype"]) == ([800, 1344], 2, "float16")


@pytest.mark.parametrize(
    ("data", "size", "batch"),
    [("ade20k.py", [512, 512], 4), ("ade20k_640x640.py", [640, 640], 4), ("cityscapes.py", [512, 1024], 2)],
)
def test_images_of_a_library_s_part_are_cut_as_it_says(data: str, size: list[int], batch: int, tmp_path: Path) -> None:
    spec = laid_over(tmp_path, data, "schedule_160k.py", "", MODEL)
    assert (spec["image_size"], spec["micro_batch_size"]) == (size, batch)


def test_a_part_that_is_none_of_the_library_s_is_a_fault(tmp_path: Path) -> None:
    spec = laid_over(tmp_path, "our_data.py", "schedule_1x.py", "", "model = dict(type='MaskRCNN')\n")
    assert [fault.code for fault in spec.document.faults] == ["MEM003"]
