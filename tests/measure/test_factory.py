"""What is instantiated for a config, and what is said where that is not clear."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.measure.child import MeasureError
from memlint.measure.factory import default_loss, workload
from memlint.measure.request import plain, request_for
from memlint.settings import Allowance, Settings
from tests.measure.training_runs import MODEL, plain_request


@pytest.fixture(autouse=True)
def _imports() -> Iterator[None]:
    """What a test imports from its folder is forgotten afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.split(".")[0] in ("user_package", "user_model", "memlint_model", "model"):
            del sys.modules[name]


SETTINGS = """
[probe]
model = "user_package.models:build"
batch = "user_package.data:batch"
step = "user_package.models:Steps.loss"
"""
PACKAGE = {
    "models.py": """
from torch import nn

def build(config):
    config["seen"] = True
    return nn.Linear(config["width"], 3)

class Steps:
    @staticmethod
    def loss(model, batch):
        return model(batch).sum()
""",
    "data.py": """
import torch

def batch(config, device):
    assert "seen" not in config
    return torch.rand(config["batch"], config["width"], device=device)
""",
    "constants.py": "answer = 42\n",
    "needy.py": "import no_such_library\n",
    "broken.py": "raise ValueError('not today')\n",
}


def package(folder: Path) -> None:
    (folder / "user_package").mkdir(parents=True)
    (folder / "user_package" / "__init__.py").write_text("")
    for name, text in PACKAGE.items():
        (folder / "user_package" / name).write_text(text)


def test_the_settings_come_first(tmp_path: Path) -> None:
    package(tmp_path)
    work = workload(plain_request(tmp_path, settings=SETTINGS))  # there is a model.py as well
    model = work.build()
    assert (model.in_features, model.out_features) == (64, 3)
    batch = work.batch("cpu")  # a new config at every call: what build wrote into its own is not there
    assert batch.shape == (4, 64)
    assert work.loss(model, batch).dim() == 0
    assert work.source == '[probe] model = "user_package.models:build"'


def test_a_model_beside_the_config_needs_no_settings(tmp_path: Path) -> None:
    work = workload(plain_request(tmp_path))
    assert work.source.endswith("model.py")
    assert work.loss(work.build(), work.batch("cpu")).dim() == 0


def test_a_hydra_target_is_instantiated_with_its_arguments(tmp_path: Path) -> None:
    package(tmp_path)
    config = "batch: 2\nwidth: 5\nmodel:\n  _target_: torch.nn.Linear\n  in_features: 5\n  out_features: 2\n"
    settings = '[probe]\nbatch = "user_package.data:batch"\n'
    work = workload(plain_request(tmp_path, model="", config=config, settings=settings))
    assert work.build().weight.shape == (2, 5)
    assert work.batch("cpu").shape == (2, 5)


def test_a_model_py_of_another_kind_is_passed_over(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="nothing says how to build the model"):
        workload(plain_request(tmp_path, model="raise SystemExit('this is not run')\n"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing at all": ({"model": ""}, r"nothing says how to build the model: write \[probe\] model, batch and step"),
    "a model.py that lacks functions": (
        {"model": "def build_model(config): ..."},
        r"model.py: lacks make_batch and training_loss; it needs",
    ),
    "a model.py that does not import": (
        {"model": MODEL + "\nimport no_such_library\n"},
        "importing it needs no_such_library, which is not installed",
    ),
    "a model.py that raises": ({"model": MODEL + "\n1 / 0\n"}, r"raised ZeroDivisionError: .*model.py:\d+"),
    "no colon": ({"settings": SETTINGS.replace(":build", "")}, 'write it as "package.module:function"'),
    "no such module": (
        {"settings": SETTINGS.replace("user_package.models:build", "user_packages.models:build")},
        r"memlint.toml: \[probe\] model = .*: there is no module user_packages",
    ),
    "no such function": (
        {"settings": SETTINGS.replace(":build", ":built")},
        r"user_package.models has no 'built', did you mean 'build'\?",
    ),
    "not a function": (
        {"settings": SETTINGS.replace("models:build", "constants:answer")},
        "answer is a int, not a function",
    ),
    "a module that needs another": (
        {"settings": SETTINGS.replace("models:build", "needy:build")},
        "importing it needs no_such_library, which is not installed",
    ),
    "a module that raises": (
        {"settings": SETTINGS.replace("models:build", "broken:build")},
        "importing it raised ValueError: not today",
    ),
    "no batch": (
        {"settings": '[probe]\nmodel = "user_package.models:build"\n'},
        r"has no batch to go with it: write batch = ",
    ),
    "a Hydra target without a batch": (
        {"model": "", "config": "model:\n  _target_: torch.nn.Linear\n"},
        r"model._target_ = torch.nn.Linear builds the model, but nothing says what it is fed",
    ),
}


@pytest.mark.parametrize(("parts", "said"), WRONG.values(), ids=WRONG)
def test_what_is_missing_is_said(parts: dict[str, Any], said: str, tmp_path: Path) -> None:
    package(tmp_path)
    with pytest.raises(MeasureError, match=said):
        workload(plain_request(tmp_path, **parts))


def test_a_hydra_target_that_fails_says_why(tmp_path: Path) -> None:
    package(tmp_path)
    config = "model:\n  _target_: torch.nn.Linear\n  in_features: 5\n"
    settings = '[probe]\nbatch = "user_package.data:batch"\n'
    work = workload(plain_request(tmp_path, model="", config=config, settings=settings))
    with pytest.raises(MeasureError, match=r"model._target_ = torch.nn.Linear raised TypeError.*out_features"):
        work.build()


class Output:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


LOSS = torch.tensor(3.0)
OUTPUTS = {
    "the loss itself": LOSS,
    "an attribute": Output(LOSS),
    "an entry": {"logits": torch.zeros(2), "loss": LOSS},
    "the first of several": (LOSS, torch.zeros(2)),
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("batch", [torch.zeros(1), {"x": torch.zeros(1)}, (torch.zeros(1),)], ids=["x", "**", "*"])
def test_the_loss_is_found_in_what_the_model_returns(output: Any, batch: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            assert x.shape == (1,)
            return output

    assert default_loss(Model(), batch) is LOSS


def test_unresolved_values_reach_factories_as_their_text(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("root: ${oc.env:HOME}\nsizes: [1, 2.5, null, true]\n")
    document = load(str(path))
    spec = TrainingSpec("", document, document.root, {}, None)
    sent = request_for("trace", spec, Settings(), Allowance(None, "", "", None))
    assert json.loads(json.dumps(sent))["config"]["sizes"] == [1, 2.5, None, True]
    assert sent["config"]["root"] == "${oc.env:HOME}"
    assert plain({"a": (1, 2)}) == {"a": [1, 2]}
