"""Family image-loop: programs that train a classifier of timm's or torchvision's in a loop of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings

HEAD = """\
import timm
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms
augment = transforms.Compose([transforms.RandomResizedCrop(160), transforms.ToTensor()])
loader = DataLoader(datasets.ImageFolder("train", transform=augment), batch_size=32, shuffle=True)
criterion = nn.CrossEntropyLoss()
"""
TIMM = 'model = timm.create_model("resnet50", pretrained=True, num_classes=10).to("cuda")\n'
TORCHVISION = 'model = models.resnet50()\nmodel.fc = nn.Linear(2048, 10)\nmodel.to("cuda")\n'
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)\n"
LOOP = """\
for images, labels in loader:
    images, labels = images.to("cuda"), labels.to("cuda")
    optimizer.zero_grad()
    outputs = model(images)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
"""
LATE = """\
for images, labels in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images.to("cuda")), labels.to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ZEROS = LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")
MADE_UP = "for _ in range(10):\n" + LOOP.partition("\n")[2].partition("\n")[2].replace("(images)", "(batch)")


def run(tmp_path: Path, script: str) -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "train.py")))
    return spec


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        pytest.param(
            TIMM + SGD + LOOP,
            {"model": "timm/resnet50", "micro_batch_size": 32, "image_size": 160, "hyperparameters.num_classes": 10}
            | {"optimizer": "sgd", "hyperparameters.momentum": 0.9, "gradients_kept": False},
            id="timm, a size of the transforms",
        ),
        pytest.param(
            TORCHVISION + SGD + LOOP,
            {"model": "torchvision/resnet50", "hyperparameters.num_classes": 10},
            id="torchvision, a head of its own",
        ),
        pytest.param(
            TIMM + SGD.replace("SGD", "AdamW").partition(", momentum")[0] + ")\n" + LATE,
            {"optimizer": "adamw", "hyperparameters.clears_late": True, "gradients_kept": False},
            id="autocast, the last gradients let go after the forward pass",
        ),
        pytest.param(TIMM + SGD + ZEROS, {"gradients_kept": True}, id="zeros"),
        pytest.param(
            TIMM + SGD + "batch = torch.randn(8, 3, 224, 192)\nlabels = torch.zeros(8).long()\n" + MADE_UP,
            {"micro_batch_size": 8, "image_size": [224, 192]},
            id="a batch of numbers that are made up",
        ),
        pytest.param(
            TIMM + "model.set_grad_checkpointing()\n" + SGD + LOOP, {"checkpointing": "full"}, id="timm's checkpointing"
        ),
    ],
)
def test_a_loop_over_images_is_read(tmp_path: Path, script: str, facts: dict[str, Any]) -> None:
    spec = run(tmp_path, HEAD + script)
    assert (spec.family, spec.architecture, str(spec.unknown_reason)) == ("image-loop", "classifier", "")
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param(TIMM + "model = torch.compile(model)\n" + SGD + LOOP, "compiled classifier", id="compiled"),
        pytest.param(TIMM + "model.half()\n" + SGD + LOOP, "16 bits", id="weights in 16 bits"),
        pytest.param(TIMM.replace("resnet50", "resnet5") + SGD + LOOP, "resnet5", id="a model that timm has not"),
        pytest.param(TORCHVISION.replace(".fc", ".conv1") + SGD + LOOP, ".conv1", id="another layer set"),
        pytest.param(TIMM + SGD.replace("SGD", "LBFGS") + LOOP, "LBFGS", id="an optimizer that is not described"),
    ],
)
def test_what_is_not_described_is_unknown(tmp_path: Path, script: str, reason: str) -> None:
    spec = run(tmp_path, HEAD + script)
    assert reason in str(spec.unknown_reason)


def test_a_model_of_the_repositorys_own_by_a_librarys_name_is_not_the_librarys(tmp_path: Path) -> None:
    head = HEAD.replace("datasets, models, transforms", "datasets, transforms") + "from models import resnet18\n"
    own = "import torch.nn as nn\ndef resnet18(**given):\n    return nn.Sequential(nn.Conv2d(3, 8, 3))\n"
    (tmp_path / "models.py").write_text(own, encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(head + "model = resnet18().to('cuda')\n" + SGD + LOOP, encoding="utf-8")
    found = registry.specs(load(str(tmp_path / "train.py")))
    assert all(spec.unknown_reason or spec.family != "image-loop" for spec in found)


def test_parts_that_are_frozen_leave_a_bound(tmp_path: Path) -> None:
    frozen = "for p in model.parameters():\n    p.requires_grad = False\nmodel.fc.weight.requires_grad = True\n"
    spec = run(tmp_path, HEAD + TIMM + frozen + SGD + LOOP)
    assert spec.unknown_reason


def test_a_batch_that_is_larger_takes_more(tmp_path: Path) -> None:
    peaks = []
    for rows in (32, 64):
        run(tmp_path, HEAD.replace("batch_size=32", f"batch_size={rows}") + TIMM + SGD + LOOP)
        (result,) = check_paths([str(tmp_path / "train.py")], Settings(gpu="a100-80gb")).runs
        assert result.estimate is not None
        peaks.append(result.estimate.allocated_bytes)
    assert peaks[1] > 1.5 * peaks[0]
