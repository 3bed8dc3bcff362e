"""Families ultralytics and yolov5: what a run is said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import models
from memlint.check import check_paths, check_text
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings
from tests.models.test_yolo import spec_of

DETECTS = "yolo detect train model=yolo11n.pt data=coco8.yaml"
YOLOV5 = "python train.py --data coco128.yaml --weights yolov5s.pt"


def of(tmp_path: Path, command: str) -> TrainingSpec:
    return spec_of(tmp_path, f"{command}\n", "run.sh")


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            DETECTS,
            {"micro_batch_size": 16, "image_size": 640, "gradient_accumulation_steps": 4, "compute_dtype": "float16"},
            id="the library's defaults",
        ),
        pytest.param(
            f"{DETECTS} batch=24 device=0,1",
            {
                "micro_batch_size": 12,
                "device_count": 2,
                "parallelism.strategy": "ddp",
                "gradient_accumulation_steps": 3,
            },
            id="a batch of two cards",
        ),
        pytest.param(f"{DETECTS} device=3", {"device_count": 1, "parallelism.strategy": "none"}, id="the fourth card"),
        pytest.param(f"{DETECTS} device=[0,2,3] batch=6", {"device_count": 3, "micro_batch_size": 2}, id="three cards"),
        pytest.param(f"{DETECTS} imgsz=600", {"image_size": 608}, id="a multiple of the coarsest stride"),
        pytest.param(f"{DETECTS} imgsz=640 multi_scale=True", {"image_size": 960}, id="half as large again"),
        pytest.param(f"{DETECTS} imgsz=640 multi_scale=0.25", {"image_size": 800}, id="a quarter larger"),
        pytest.param(f"{DETECTS} amp=False", {"compute_dtype": "float32"}, id="full precision"),
        pytest.param(f"{DETECTS} single_cls=True", {"hyperparameters.classes": 1}, id="all classes as one"),
        pytest.param(f"{DETECTS} freeze=3", {"hyperparameters.frozen_layers": [0, 1, 2]}, id="frozen layers"),
        pytest.param(f"{DETECTS} nbs=16", {"gradient_accumulation_steps": 1}, id="a step for each batch"),
        pytest.param(
            "yolo classify train model=yolov8n-cls.pt data=imagenet",
            {"image_size": 224, "hyperparameters.task": "classify", "hyperparameters.classes": 1000},
            id="a classifier has a size of its own",
        ),
        pytest.param(
            "yolo train model=yolo11m-seg.yaml data=coco8-seg.yaml",
            {"hyperparameters.task": "segment", "hyperparameters.scale": "m", "hyperparameters.net": "11"},
            id="masks",
        ),
        pytest.param("yolo train model=yolov8.yaml data=coco8.yaml", {"hyperparameters.scale": "n"}, id="no letter"),
        pytest.param(
            f"{YOLOV5} --img 512 --batch 8",
            {"image_size": 512, "micro_batch_size": 8, "gradient_accumulation_steps": 8, "optimizer": "sgd"},
            id="yolov5, shortened options",
        ),
        pytest.param(
            "python classify/train.py --model yolov5m-cls.pt --data imagenet --img 224",
            {"micro_batch_size": 64, "optimizer": "adam", "hyperparameters.scale": "m"},
            id="yolov5's classifiers have defaults of their own",
        ),
        pytest.param(
            f"torchrun --nproc_per_node 4 {YOLOV5.removeprefix('python ')} --img 640 --batch 64 --device 0,1,2,3",
            {"micro_batch_size": 16, "device_count": 4, "parallelism.strategy": "ddp"},
            id="yolov5, four cards",
        ),
        pytest.param(f"{YOLOV5} --img 640 --freeze 10", {"hyperparameters.frozen_layers": list(range(10))}, id="first"),
        pytest.param(f"{YOLOV5} --img 640 --freeze 0 2", {"hyperparameters.frozen_layers": [0, 2]}, id="some"),
        pytest.param(
            f"{YOLOV5} --img 640 --cfg yolov5l.yaml",
            {"hyperparameters.scale": "l"},
            id="the file of the net goes first",
        ),
    ],
)
def test_a_run_is_what_its_words_say(tmp_path: Path, command: str, facts: dict[str, Any]) -> None:
    spec = of(tmp_path, command)
    assert spec.unknown_reason == ""
    assert spec.architecture == "yolo"
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param("yolo detect train model=yolo12s.pt data=coco8.yaml", "model yolo12s.pt", id="another net"),
        pytest.param("yolo pose train model=yolo11n-pose.pt data=coco8-pose.yaml", "yolo11n-pose.pt", id="poses"),
        pytest.param("yolo train model=rtdetr-l.pt data=coco8.yaml", "model rtdetr-l.pt", id="RT-DETR"),
        pytest.param("yolo train model=yolov8n-p2.yaml data=coco8.yaml", "model yolov8n-p2.yaml", id="more levels"),
        pytest.param("yolo train model=runs/best.pt data=coco8.yaml", "model runs/best.pt", id="weights of somebody's"),
        pytest.param(f"{DETECTS} batch=-1", "AutoBatch takes as many images as fill 60 % of the card", id="AutoBatch"),
        pytest.param(f"{DETECTS} batch=0.7", "AutoBatch takes as many images as fill 70 % of the card", id="a share"),
        pytest.param(f"{DETECTS} batch=9 device=0,1", "batch 9 is no multiple of 2 devices", id="no multiple"),
        pytest.param(f"{DETECTS} device=cpu", "device cpu: no CUDA device", id="no card"),
        pytest.param(f"{DETECTS} compile=True", "a compiled net is not known", id="a compiled net"),
        pytest.param(f"{DETECTS} distill_model=yolo11x.pt", "a teacher is not known", id="a teacher"),
        pytest.param(f"{DETECTS} cfg=mine.yaml", "cfg mine.yaml", id="other settings"),
        pytest.param(f"{DETECTS} optimizer=NAdam", "optimizer nadam is not known", id="an optimizer"),
        pytest.param(f"{DETECTS} freeze=23.cv2", "freeze 23.cv2", id="a layer by its name"),
        pytest.param(f"{DETECTS} imgsz=0", "imgsz is 0", id="no size"),
        pytest.param(f"{DETECTS} imgsz=1000000000000000000", "imgsz is 1,000,000,000,000,000,000", id="no such size"),
        pytest.param(f"{DETECTS} nbs=1000000000000000000", "nbs is 1,000", id="no such batch"),
        pytest.param(
            "python train.py --img 640 --batch 16 --weights mine.pt --data a.yaml", "weights mine.pt", id="v5"
        ),
        pytest.param(f"{YOLOV5} --img 640 --batch -1", "AutoBatch", id="v5, AutoBatch"),
        pytest.param(f"{YOLOV5} --img 640 --evolve 300", "--evolve", id="v5, a search"),
        pytest.param(f"{YOLOV5} --img 640 --device 0,1", "DataParallel", id="v5, one process for two cards"),
        pytest.param(f"{YOLOV5} --img 640 --quad", "--quad", id="v5, four images as one"),
    ],
)
def test_what_is_not_known_is_told_by_its_key(tmp_path: Path, command: str, said: str) -> None:
    spec = of(tmp_path, command)
    assert spec.architecture is None
    assert said in spec.unknown_reason


@pytest.mark.parametrize("command", [f"{DETECTS} device=cpu", f"{YOLOV5} --img 640 --device cpu"])
def test_a_processor_is_no_card_however_many_there_might_be(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text(command + "\n", encoding="utf-8")
    (run,) = check_paths([str(tmp_path / "run.sh")], Settings()).runs
    assert run.estimate is None
    assert run.partial is None


def test_a_net_that_a_variable_names_is_not_known(tmp_path: Path) -> None:
    spec = of(tmp_path, "python train.py --img 640 --batch 16 --cfg $NET.yaml --weights '' --data a.yaml")
    assert spec.unknown_reason == "cfg is not known: NET is not set in the script"
    spec = of(tmp_path, "yolo detect train model=$NET data=coco8.yaml")
    assert spec.unknown_reason == "model is not known: NET is not set in the script"


def test_a_file_of_the_repository_may_be_any_net(tmp_path: Path) -> None:
    (tmp_path / "yolo11n.yaml").write_text("nc: 80\n")
    spec = of(tmp_path, "yolo train model=yolo11n.yaml data=coco8.yaml")
    assert spec.unknown_reason == "model yolo11n.yaml: yolo11n.yaml has no backbone"


def test_data_that_are_there_say_how_many_classes_there_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train: images\nval: images\nnames: {0: cat, 1: dog, 2: hen}\n")
    (tmp_path / "ours.yaml").write_text("train: images\nval: images\nnc: 7\n")
    found = [of(tmp_path, f"yolo train model=yolo11n.pt data={name}") for name in ("mine.yaml", "ours.yaml", "no.yaml")]
    assert [spec["hyperparameters.classes"] for spec in found] == [3, 7, 80]
    assert [spec.facts["hyperparameters.classes"].origin for spec in found] == ["default", "default", "assumed"]


@pytest.mark.parametrize(
    ("release", "data", "epochs", "taken"),
    [
        pytest.param("8.4.190", "coco8.yaml", 100, "adamw", id="a short run"),
        pytest.param("8.4.190", "coco.yaml", 100, "musgd", id="a long run"),
        pytest.param("8.3.100", "coco.yaml", 100, "sgd", id="a long run before MuSGD"),
        pytest.param("8.4.190", "coco.yaml", 5, "adamw", id="a few epochs"),
        pytest.param("8.4.190", "mine.yaml", 100, "adamw", id="data that nobody counts"),
    ],
)
def test_an_optimizer_is_taken_by_the_length_of_the_run(
    tmp_path: Path, release: str, data: str, epochs: int, taken: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"ultralytics=={release}\n")
    spec = of(tmp_path, f"yolo detect train model=yolo11n.pt data={data} epochs={epochs}")
    assert spec["optimizer"] == taken
    (run,) = check_paths([str(tmp_path / "run.sh")], Settings()).runs
    assert run.estimate is not None


def test_the_interval_is_of_few_and_of_many_objects(tmp_path: Path) -> None:
    """What an assigner lays out is of the fullest image's objects, which no file states."""
    (tmp_path / "requirements.txt").write_text("ultralytics==8.3.100\ntorch==2.6.0\n")
    path = tmp_path / "run.sh"
    of(tmp_path, f"{DETECTS} batch=32")
    (run,) = check_paths([str(path)], Settings(gpu="a100-40gb")).runs
    assert run.estimate is not None
    assert {"hyperparameters.boxes", "hyperparameters.objects"} <= {name for name, _, _ in run.estimate.assumptions}
    [spec] = registry.specs(load(str(path)))
    peaks = []
    for boxes in (10, 100, 300):
        tape = models.record(spec.with_facts({"hyperparameters.boxes": boxes})).tape
        alive, most = 0, 0
        for event in tape.events:
            alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
            most = max(most, alive)
        peaks.append(most)
    assert peaks == sorted(peaks)
    low, high = run.estimate.allocated_interval
    assert low <= peaks[0] * 1.001, "blocks are rounded up"
    assert high >= peaks[2]


PROGRAM = """\
from ultralytics import YOLO

model = YOLO("yolov8s.pt")
model.train(data="coco8.yaml", epochs=3, imgsz=320, batch=8, freeze=2)
"""


def test_a_program_s_arguments_are_the_keys() -> None:
    (run,) = check_text("train.py", PROGRAM, Settings(gpu="t4")).runs
    assert run.family == "ultralytics"
    assert run.estimate is not None
    assert run.estimate.parameters == 11_166_560
    assert run.estimate.trainable_parameters < 11_166_560


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(PROGRAM.replace("batch=8", "batch=-1"), "AutoBatch", id="AutoBatch"),
        pytest.param(PROGRAM.replace("yolov8s.pt", "mine.pt"), "model mine.pt", id="weights of its own"),
        pytest.param(PROGRAM + PROGRAM.partition("\n\n")[2], "calls train 2 times", id="two runs"),
    ],
)
def test_a_program_s_run_that_is_not_known_is_told(text: str, said: str) -> None:
    (run,) = check_text("train.py", text, Settings(gpu="t4")).runs
    assert run.estimate is None
    assert said in " ".join(finding.message for finding in run.findings)


def test_a_program_that_a_command_starts_is_followed_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nfrom ultralytics import YOLO\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--size', type=int, default=640)\nargs = parser.parse_args()\n"
        "YOLO('yolo11n.yaml').load('yolo11n.pt').train(data='coco8.yaml', imgsz=args.size, batch=4)\n"
    )
    spec = of(tmp_path, "python train.py --size 320")
    assert (spec.family, spec["image_size"], spec["micro_batch_size"]) == ("ultralytics", 320, 4)


def test_another_library_s_class_of_that_name_is_none_of_this() -> None:
    report = check_text("train.py", PROGRAM.replace("from ultralytics", "from mine"), Settings(gpu="t4"))
    assert all(run.family != "ultralytics" for run in report.runs)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        pytest.param("model:\ndata:\n", 0, id="neither net nor data, as the library's own file of defaults"),
        pytest.param("model: yolo11n.pt\ndata:\n", 1, id="a net, and the data that go with its task"),
    ],
)
def test_settings_without_a_net_and_without_data_are_no_run(tmp_path: Path, text: str, runs: int) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"task: detect\nmode: train\nepochs: 100\nbatch: 16\nimgsz: 640\n{text}", encoding="utf-8")
    assert len(check_paths([str(path)]).runs) == runs
