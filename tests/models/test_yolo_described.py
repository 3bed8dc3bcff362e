"""Nets of Ultralytics that a YAML describes: as many parameters as the library counts, and the same run as by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from memlint import models
from memlint.check import check_paths
from memlint.facts.spec import TrainingSpec
from tests.models.test_yolo import spec_of

V8 = {"n": [0.33, 0.25, 1024], "s": [0.33, 0.5, 1024], "m": [0.67, 0.75, 768], "l": [1, 1, 512], "x": [1, 1.25, 512]}
V11 = {"n": [0.5, 0.25, 1024], "s": [0.5, 0.5, 1024], "m": [0.5, 1, 512]}
UP = [-1, 1, "nn.Upsample", ["None", 2, "nearest"]]


def conv(width: int, module: str = "Conv") -> list[Any]:
    return [-1, 1, module, [width, 3, 2]]


def together(layer: int) -> list[Any]:
    return [[-1, layer], 1, "Concat", [1]]


def eight(down: str = "Conv", block: str = "C2f", neck: str = "Conv", head: str = "Detect") -> list[Any]:
    """YOLOv8's layers, with other modules in the places of its own."""
    backbone = [conv(64)]
    for width, repeats in ((128, 3), (256, 6), (512, 6), (1024, 3)):
        backbone += [conv(width, down), [-1, repeats, block, [width, True]]]
    backbone.append([-1, 1, "SPPF", [1024, 5]])
    above = [UP, together(6), [-1, 3, block, [512]], UP, together(4), [-1, 3, block, [256]]]
    below = [conv(256, neck), together(12), [-1, 3, block, [512]]]
    below += [conv(512, neck), together(9), [-1, 3, block, [1024]]]
    return [*backbone, *above, *below, [[15, 18, 21], 1, head, ["nc"]]]


def eleven() -> list[Any]:
    backbone: list[Any] = [conv(64)]
    for width, outputs, *early in (
        (128, 256, False, 0.25),
        (256, 512, False, 0.25),
        (512, 512, True),
        (1024, 1024, True),
    ):
        backbone += [conv(width), [-1, 2, "C3k2", [outputs, *early]]]
    backbone += [[-1, 1, "SPPF", [1024, 5]], [-1, 2, "C2PSA", [1024]]]
    above = [UP, together(6), [-1, 2, "C3k2", [512, False]], UP, together(4), [-1, 2, "C3k2", [256, False]]]
    below = [conv(256), together(13), [-1, 2, "C3k2", [512, False]], conv(512), together(10)]
    return [*backbone, *above, *below, [-1, 2, "C3k2", [1024, True]], [[16, 19, 22], 1, "Detect", ["nc"]]]


def run(tmp_path: Path, rows: list[Any], name: str, scales: Any = None, words: str = "") -> TrainingSpec:
    text = yaml.safe_dump({"nc": 80, "scales": scales or V8, "backbone": rows[:10], "head": rows[10:]}, sort_keys=False)
    file = tmp_path / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    words = words or f"model={name}.yaml"
    return spec_of(tmp_path, f"yolo train {words} data=coco8.yaml imgsz=64 batch=2\n", "run.sh")


COUNTS = [  # of the summaries that stand beside the scales (ultralytics, cfg/models/v8/yolov8-ghost.yaml)
    *zip("nsmlx", (1_865_316, 5_960_072, 10_336_312, 14_277_872, 22_229_308)),
]


@pytest.mark.parametrize(("letter", "count"), [pytest.param(*one, id=f"ghosts, {one[0]}") for one in COUNTS])
def test_a_net_has_the_parameters_that_the_library_counts(tmp_path: Path, letter: str, count: int) -> None:
    (tmp_path / f"yolov8{letter}-ghosts.yaml").unlink(missing_ok=True)
    run(tmp_path, eight("GhostConv", "C3Ghost", "GhostConv"), "yolov8-ghosts")
    words = f"yolo train model=yolov8{letter}-ghosts.yaml data=coco8.yaml imgsz=64 batch=2\n"
    spec = spec_of(tmp_path, words, "run.sh")
    assert spec.unknown_reason == ""
    assert models.record(spec).parameters == count


@pytest.mark.parametrize(
    ("letter", "count"),
    [  # of YOLOv10's authors' code, as it trains: with both heads
        *(("n", 2_775_520), ("s", 8_128_272), ("m", 16_576_768)),
        *(("b", 20_574_384), ("l", 25_888_688), ("x", 31_808_960)),
    ],
)
def test_yolov10_has_two_heads_and_both_learn(tmp_path: Path, letter: str, count: int) -> None:
    spec = spec_of(tmp_path, f"yolo train model=yolov10{letter}.pt data=coco8.yaml imgsz=64 batch=2\n", "run.sh")
    assert spec.unknown_reason == ""
    made = models.record(spec)
    assert made.parameters == count
    assert made.trainable_parameters == count - 16  # bins that are no weights, of one head


@pytest.mark.parametrize(
    ("rows", "scales", "name"),
    [
        *(pytest.param(eight(), V8, f"yolov8{letter}", id=f"YOLOv8{letter}") for letter in "nm"),
        *(pytest.param(eleven(), V11, f"yolo11{letter}", id=f"YOLO11{letter}") for letter in "nm"),
    ],
)
def test_a_description_of_a_net_is_the_run_of_its_name(tmp_path: Path, rows: list[Any], scales: Any, name: str) -> None:
    by_name = models.record(
        spec_of(tmp_path, f"yolo train model={name}.pt data=coco8.yaml imgsz=64 batch=2\n", "run.sh")
    )
    described = run(tmp_path, rows, name, scales)
    assert described["hyperparameters.net"] == "described"
    made = models.record(described)
    assert made.parameters == by_name.parameters
    assert made.tape.saved_bytes == by_name.tape.saved_bytes
    assert sorted(made.tape.sizes) == sorted(by_name.tape.sizes)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param([-1, 3, "C2fOurs", [512, True]], "layer 4: C2fOurs is a module that", id="a module of one's own"),
        pytest.param([-1, 3, "C2f", [0]], "layer 4: 0 channels", id="no channels"),
        pytest.param(
            [9, 3, "C2f", [512]], "layer 4 reads a layer that comes behind it", id="a layer that is not there"
        ),
        pytest.param([-1, 499, "C2f", [1 << 20]], "layer 4: 1048576 channels", id="more channels than any net has"),
        pytest.param([-1, "n", "C2f", [512]], "layer 4 is no list of sources", id="repeats that are a word"),
        pytest.param([[-1, 2], 3, "C2f", [512]], "layer 4: C2f reads one layer", id="two layers for a module of one"),
        pytest.param([-1, 1, "Conv", [256, 3, 0]], "layers that do not fit together", id="a stride of nothing"),
    ],
)
def test_what_is_not_known_of_a_description_is_told_by_its_layer(tmp_path: Path, changed: Any, said: str) -> None:
    rows = eight()
    rows[4] = changed
    spec = run(tmp_path, rows, "yolov8n")
    if spec.unknown_reason:
        assert said in spec.unknown_reason
        return
    with pytest.raises(models.UnknownModel) as raised:
        models.record(spec)
    assert said in str(raised.value)


def test_a_head_that_is_not_known_is_told(tmp_path: Path) -> None:
    assert "ends with OurDetect: what that says" in run(tmp_path, eight(head="OurDetect"), "yolov8n").unknown_reason


@pytest.mark.parametrize(
    ("model", "head"),
    [
        pytest.param("yolov8s-pose.pt", "points of a body", id="poses, by name"),
        pytest.param("yolo11s-obb.yaml", "how boxes are turned", id="turned boxes, by name"),
        pytest.param("yolov8s-ours.yaml", "points of a body", id="poses, by a description"),
    ],
)
def test_a_head_that_says_more_than_boxes_takes_at_least_what_detecting_takes(
    model: str, head: str, tmp_path: Path
) -> None:
    run(tmp_path, eight(head="Pose"), "yolov8s-ours")
    command = f"yolo train model={model} data=coco8-pose.yaml imgsz=320 batch=8\n"
    (tmp_path / "run.sh").write_text(command, encoding="utf-8")
    (found,) = check_paths([str(tmp_path / "run.sh")]).runs
    plain = "yolo11s.pt" if "11" in model else "yolov8s.pt"
    (tmp_path / "run.sh").write_text(command.replace(model, plain), encoding="utf-8")
    (detects,) = check_paths([str(tmp_path / "run.sh")]).runs
    assert f"what it takes to learn {head} is not known" in found.unknown
    assert found.partial is not None
    assert found.partial.least_bytes is not None
    assert detects.estimate is not None
    assert 0.6 * detects.estimate.allocated_bytes < found.partial.least_bytes <= detects.estimate.allocated_bytes


@pytest.mark.parametrize("name", ["yolov9q.pt", "yolov9q.yaml"])
def test_a_name_of_the_library_s_is_described_where_its_code_is_in_the_repository(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ultralytics" / "cfg" / "models" / "v9"
    folder.mkdir(parents=True)
    spec = run(tmp_path, eight(), "ultralytics/cfg/models/v9/yolov9q", words=f"model={name}")
    assert (spec.unknown_reason, spec["hyperparameters.scale"]) == ("", "n")
    assert models.record(spec).parameters == 3_157_200
