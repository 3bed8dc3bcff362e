"""YOLO nets of ultralytics and yolov5 against the libraries' own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import models
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec

MIB = 1 << 20
WHOLE = (
    "amp: false\ndata: coco8.yaml\nepochs: 1\noptimizer: SGD\nworkers: 1\nmosaic: 1.0\nclose_mosaic: 1\ntask: detect\n"
)


def spec_of(tmp_path: Path, text: str, name: str = "args.yaml") -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    path = tmp_path / name
    path.write_text(text)
    [spec] = registry.specs(load(str(path)))
    return spec


# What ``sum(p.numel() for p in model.parameters())`` counts, of 80 classes, or of 1,000 that a net tells apart
# (ultralytics 8.4.190; yolov5 5081342; of yolov5u in the table of its documents, to the hundred thousands). What both
# print is the same.
COUNTS = {
    "yolov8": (3_157_200, 11_166_560, 25_902_640, 43_691_520, 68_229_648),
    "yolo11": (2_624_080, 9_458_752, 20_114_688, 25_372_160, 56_966_176),
    "yolov8-seg": (3_409_968, 11_821_056, 27_285_968, 45_997_728, 71_827_888),
    "yolo11-seg": (2_876_848, 10_113_248, 22_420_896, 27_678_368, 62_142_656),
    "yolov8-cls": (2_719_288, 6_361_736, 17_053_336, 37_480_744, 57_422_840),
    "yolo11-cls": (2_812_104, 6_724_008, 11_634_216, 14_115_624, 29_637_064),
    "yolov5": (1_872_157, 7_235_389, 21_190_557, 46_563_709, 86_749_405),
    "yolov5-seg": (1_991_549, 7_621_277, 21_990_397, 47_924_957, 88_819_517),
    "yolov5u": (2_654_816, 9_153_152, 25_111_456, 53_225_024, 97_276_448),
    "yolov5-cls": (2_493_000, 5_453_480, 12_957_640, 26_552_680, 48_097_160),
}
NETS = [(net, letter, count) for net, counts in COUNTS.items() for letter, count in zip("nsmlx", counts)]


@pytest.mark.parametrize(("net", "letter", "count"), NETS, ids=[f"{net}, {letter}" for net, letter, _ in NETS])
def test_a_net_has_the_parameters_that_the_library_counts(tmp_path: Path, net: str, letter: str, count: int) -> None:
    series, dash, task = net.partition("-")
    name = f"yolov5{letter}u.pt" if series == "yolov5u" else f"{series}{letter}{dash}{task}.pt"
    data = "imagenet" if task == "cls" else "coco8.yaml"
    if series == "yolov5":
        folder, key = {"seg": ("segment/", "weights"), "cls": ("classify/", "model")}.get(task, ("", "weights"))
        text = f"python {folder}train.py --img 64 --batch-size 1 --data {data} --{key} {name}\n"
        spec = spec_of(tmp_path, text, "run.sh")
    else:
        spec = spec_of(tmp_path, f"yolo train model={name} data={data} imgsz=64 batch=1\n", "run.sh")
    assert spec.unknown_reason == ""
    assert models.record(spec).parameters == count


def forward(spec: TrainingSpec) -> tuple[float, float]:
    """Most MiB that are alive in a forward pass beside what was there before it and its images, and at its end."""
    tape = models.record(spec).tape
    begin, back = (next(at for at, phase in tape.marks if phase == name) for name in ("forward", "backward"))
    alive, found = 0, []
    for event in tape.events[:back]:
        alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        found.append(alive)
    images = spec["micro_batch_size"] * 3 * spec["image_size"] ** 2 * 4
    if spec["hyperparameters.task"] != "classify":
        begin += 5  # bytes, two copies of them in fp32, and what is let go
    before = found[begin - 1] + (images if spec["hyperparameters.task"] == "classify" else 0)
    return (max(found[begin:]) - before) / MIB, (found[-1] - before) / MIB


# The libraries' own forward passes with their losses on the host (torch 2.13, fp32), storage by storage: most MiB that
# are alive beside weights and images, and MiB at its end. ``boxes`` objects in each image, which cover it once.
FORWARD = [
    pytest.param("yolov8n.pt", "8.4.190", 2, 160, 20, 24.825, 23.402, id="YOLOv8n"),
    pytest.param("yolov8s.pt", "8.4.190", 2, 160, 20, 44.911, 43.488, id="YOLOv8s"),
    pytest.param("yolov8l.pt", "8.4.190", 2, 96, 10, 43.986, 43.485, id="YOLOv8l"),
    pytest.param("yolo11n.pt", "8.4.190", 2, 160, 50, 28.603, 27.089, id="YOLO11n"),
    pytest.param("yolo11m.pt", "8.4.190", 2, 160, 20, 107.797, 106.370, id="YOLO11m"),
    pytest.param("yolo11x.pt", "8.4.190", 2, 96, 10, 74.262, 73.760, id="YOLO11x"),
    pytest.param("yolov8n-seg.pt", "8.4.190", 2, 160, 10, 32.401, 30.596, id="YOLOv8n, masks"),
    pytest.param("yolo11s-seg.pt", "8.4.190", 2, 160, 10, 62.858, 61.053, id="YOLO11s, masks"),
    pytest.param("yolo11n-cls.pt", "8.4.190", 4, 96, 1, 10.933, 10.772, id="YOLO11n, classes"),
    pytest.param("yolov8s-cls.pt", "8.4.190", 4, 96, 1, 19.152, 18.991, id="YOLOv8s, classes"),
    pytest.param("yolov8s.pt", "8.3.100", 2, 160, 20, 46.224, 43.542, id="YOLOv8s, matrices of all pairs"),
    pytest.param("yolo11n.pt", "8.3.100", 2, 160, 50, 30.029, 27.207, id="YOLO11n, matrices of all pairs"),
    pytest.param("yolov8n-seg.pt", "8.3.100", 2, 160, 10, 32.829, 30.768, id="YOLOv8n, masks, matrices of all pairs"),
]


@pytest.mark.parametrize(("net", "release", "batch", "side", "boxes", "most", "end"), FORWARD)
def test_a_forward_pass_takes_what_the_library_s_takes(
    tmp_path: Path, net: str, release: str, batch: int, side: int, boxes: int, most: float, end: float
) -> None:
    (tmp_path / "requirements.txt").write_text(f"ultralytics=={release}\n")
    text = f"{WHOLE}model: {net}\nbatch: {batch}\nimgsz: {side}\nnbs: {batch}\n"
    spec = spec_of(tmp_path, text.replace("coco8.yaml", "imagenet") if "-cls" in net else text)
    if "-cls" not in net:
        spec = spec.with_facts({"hyperparameters.boxes": boxes, "hyperparameters.objects": boxes})
    # How many anchors an object has is by chance, and masks are as many.
    assert forward(spec) == pytest.approx((most, end), rel=0.01 if "-seg" in net else 0.005)


# As above, with as many anchors matched as yolov5's own loss matched: 840, 420 and none.
OF_ANCHORS = [
    pytest.param("train.py --weights yolov5n.pt --data coco128.yaml", 2, 160, 35, 19.689, 19.540, id="boxes"),
    pytest.param(
        "segment/train.py --weights yolov5s-seg.pt --data coco128-seg.yaml", 2, 160, 18, 51.898, 51.516, id="masks"
    ),
    pytest.param("classify/train.py --model yolov5s-cls.pt --data imagenet", 4, 96, 1, 18.310, 18.165, id="classes"),
]


@pytest.mark.parametrize(("words", "batch", "side", "objects", "most", "end"), OF_ANCHORS)
def test_yolov5_takes_what_its_own_code_takes(
    tmp_path: Path, words: str, batch: int, side: int, objects: int, most: float, end: float
) -> None:
    spec = spec_of(tmp_path, f"python {words} --img {side} --batch-size {batch}\n", "run.sh")
    facts = {"compute_dtype": "float32", "gradient_accumulation_steps": 1}
    spec = spec.with_facts({**facts, **({} if "classify" in words else {"hyperparameters.objects": objects})})
    assert forward(spec) == pytest.approx((most, end), rel=0.013)


def test_layers_that_are_frozen_keep_nothing(tmp_path: Path) -> None:
    text = f"{WHOLE}model: yolo11n.pt\nbatch: 4\nimgsz: 160\n"
    held = [models.saved_bytes(spec_of(tmp_path, f"{text}freeze: {number}\n")) for number in (0, 2, 10, 22)]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    assert models.saved_bytes(spec_of(tmp_path, f"{text}freeze: [0, 1]\n")) == held[1]


def test_validation_has_twice_as_many_images_and_holds_less(tmp_path: Path) -> None:
    tape = models.record(spec_of(tmp_path, f"{WHOLE}model: yolo11n.pt\nbatch: 4\nimgsz: 160\n")).tape
    (begin,) = [at for at, phase in tape.marks if phase == "evaluation"]
    alive, found = 0, []
    for event in tape.events:
        alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        found.append(alive)
    assert max(found[begin:]) < max(found[:begin])
    largest = [
        max(tape.sizes[event] for event in part if event >= 0) for part in (tape.events[:begin], tape.events[begin:])
    ]
    assert largest[1] > 1.5 * largest[0]
