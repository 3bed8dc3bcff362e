"""Loops that train a model of the program's own: what its weights and states take at least."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memlint
from tests.dialects.language_models import written

MODEL = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.table = nn.Embedding(cfg["rows"], cfg["width"])
        self.layers = nn.Sequential(*[Layer(cfg["width"]) for _ in range(cfg["layers"])])
        self.head = nn.Linear(cfg["width"], cfg["rows"], bias=False)

    def forward(self, x):
        return self.head(self.layers(self.table(x)))
"""
LOOP = """\
def main(cfg):
    model = Net(cfg)
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in loader():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main({"rows": 50257, "width": 768, "layers": 12})
"""
PARAMETERS = 2 * 50257 * 768 + 12 * (2 * 4 * 768 * 768 + 4 * 768 + 768 + 2 * 768)


def notebook(*cells: str) -> str:
    made = [
        {"cell_type": "code", "source": cell.splitlines(keepends=True), "metadata": {}, "outputs": []} for cell in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param({"train.py": MODEL + LOOP}, "train.py", id="in one file"),
        pytest.param({"net.py": MODEL, "train.py": "import torch\nfrom net import Net\n" + LOOP}, "train.py", id="two"),
        pytest.param(
            {"a.ipynb": notebook(MODEL, LOOP.replace('if __name__ == "__main__":\n    main', "main"))},
            "a.ipynb",
            id="a notebook",
        ),
    ],
)
def test_weights_gradients_and_states_of_an_own_model_are_a_bound(
    tmp_path: Path, files: dict[str, str], name: str
) -> None:
    (run,) = memlint.check(str(written(tmp_path, files) / name), isolated=True).runs
    assert run.estimate is None
    assert run.partial is not None
    assert run.partial.at_least
    (row,) = run.partial.rows
    assert 16 * PARAMETERS <= row.device_bytes < 21 * PARAMETERS  # and the step's temporaries


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('model.to("cuda")', "model.to(torch.bfloat16)", id="weights in another dtype"),
        pytest.param('model.to("cuda")', "model.head = ours(model)", id="a module that is exchanged"),
        pytest.param('model.to("cuda")', "model.table.requires_grad_(False)", id="a part that does not train"),
        pytest.param("model.parameters()", "model.head.parameters()", id="a part that trains alone"),
        pytest.param("Net(cfg)", "Net(read(cfg))", id="sizes that only running tells"),
    ],
)
def test_what_is_not_known_of_an_own_model_makes_no_bound(tmp_path: Path, old: str, new: str) -> None:
    source = (MODEL + LOOP).replace(old, new)
    assert source != MODEL + LOOP
    report = memlint.check(str(written(tmp_path, {"train.py": source}) / "train.py"), isolated=True)
    assert all(run.partial is None and run.estimate is None for run in report.runs)


def test_a_small_model_met_in_a_walk_is_no_news(tmp_path: Path) -> None:
    small = (MODEL + LOOP).replace("50257", "100").replace("768", "64")
    root = written(tmp_path, {"small.py": small, "large.py": MODEL + LOOP})
    report = memlint.check(str(root), isolated=True)
    assert [Path(run.path).name for run in report.runs] == ["large.py"]
