"""Which releases run a config, from what its project pins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memlint.dialects import registry, software
from memlint.documents.load import load

CONFIG = """\
model_name_or_path: gpt2
dataset_name: wikitext
output_dir: out
per_device_train_batch_size: 4
"""


TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_2.llama3_2_1b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 1024
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torch.nn.CrossEntropyLoss
batch_size: 2
dtype: bf16
"""


def releases(folder: Path) -> dict[str, str]:
    return {package: pin.release for package, pin in software.pins(str(folder)).items()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    return tmp_path


FILES = {
    "a pin of requirements.txt": ("requirements.txt", "torch==2.1.0\n", {"torch": "2.1.0"}),
    "its local version and marker": (
        "requirements.txt",
        "# torch==1.0\ntorch == 2.1.0+cu118 ; python_version < '3.12'\n",
        {"torch": "2.1.0+cu118"},
    ),
    "what a Dockerfile installs": (
        "Dockerfile",
        "FROM ubuntu\nRUN pip install -U torch==2.1.0 'trl[peft]==0.12.0' \\\n"
        "  transformers==4.46.3&& pip cache purge\n",
        {"torch": "2.1.0", "trl": "0.12.0", "transformers": "4.46.3"},
    ),
    "the image that a Dockerfile begins with": (
        "Dockerfile",
        "FROM pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime AS base\n",
        {"pytorch": "2.3.1"},
    ),
    "what a Dockerfile says of variables, bounds and in comments": (
        "Dockerfile",
        "# RUN pip install torch==1.0.0\nARG V=2.1\nRUN pip install torch==${V} 'transformers>=4.40'\n",
        {},
    ),
    "an extra": ("requirements.txt", "transformers[torch]==4.36.2\n", {"transformers": "4.36.2"}),
    "a lower bound is no pin": ("requirements.txt", "torch>=2.1\ntransformers~=4.36.2\n", {}),
    "a package of a longer name is another": ("requirements.txt", "torchaudio==2.1.0\ntorch-ema==0.3.1\n", {}),
    "pins that disagree say nothing": ("requirements.txt", "torch==2.1.0; a\ntorch==2.4.0; b\n", {}),
    "pins that differ in the build agree": (
        "requirements.txt",
        "torch==2.1.0; a\ntorch==2.1.0+cpu; b\n",
        {"torch": "2.1.0"},
    ),
    "conda's environment": (
        "environment.yml",
        "name: a\ndependencies:\n  - python=3.8\n  - pytorch=1.10.1=py3.8_cuda11.3_cudnn8.2.0_0\n  - pip:\n"
        "    - transformers==4.15.0\n",
        {"pytorch": "1.10.1", "transformers": "4.15.0"},
    ),
    "uv's lock": (
        "uv.lock",
        '[[package]]\nname = "torch"\nversion = "2.6.0"\nsource = { registry = "https://example.org" }\n\n'
        '[[package]]\nname = "torchvision"\nversion = "0.21.0"\n',
        {"torch": "2.6.0", "torchvision": "0.21.0"},
    ),
    "poetry's lock": ("poetry.lock", '[[package]]\nname = "jax"\nversion = "0.4.30"\n', {"jax": "0.4.30"}),
    "pipenv's lock": (
        "Pipfile.lock",
        json.dumps({"default": {"torch": {"hashes": ["sha256:0"], "version": "==2.2.1"}}}, indent=4),
        {"torch": "2.2.1"},
    ),
    "dependencies of pyproject.toml": (
        "pyproject.toml",
        '[project]\nname = "a"\ndependencies = ["torch==2.3.1", "transformers>=4"]\n'
        '[project.optional-dependencies]\ntest = ["transformers==4.40.0"]\n',
        {"torch": "2.3.1"},
    ),
    "dependencies of Poetry": (
        "pyproject.toml",
        '[tool.poetry.dependencies]\ntorch = "2.3.1"\ntransformers = "^4.40"\n',
        {"torch": "2.3.1"},
    ),
    "what a setup.py lists": (
        "setup.py",
        '_deps = [\n    "deepspeed==0.15.4",\n    # "trl==0.1.0",\n    "torch==2.5.1",\n'
        '    "trl @ git+https://example.org/trl.git@69ad852",\n    "transformers>=4.49.0",\n]\n',
        {"torch": "2.5.1"},
    ),
    "a setup.py whose lists disagree": ("setup.py", 'a = ["torch==2.5.1"]\nb = ["torch==2.6.0"]\n', {}),
    "what a setup.cfg asks for": (
        "setup.cfg",
        "[options]\ninstall_requires =\n    torch==2.5.1\n    trl>=0.9\n",
        {"torch": "2.5.1"},
    ),
    "what is no TOML": ("pyproject.toml", "torch = = 1\n", {}),
}


@pytest.mark.parametrize(("name", "text", "expected"), FILES.values(), ids=FILES)
def test_a_file_pins(project: Path, name: str, text: str, expected: dict[str, str]) -> None:
    (project / name).write_text(text)

    assert releases(project / "configs") == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param(
            "requirements.txt",
            "torch>=2.1\ntransformers~=4.36.2\ntrl>0.9\npeft<1.0\n",
            {"torch": "2.1", "transformers": "4.36.2"},
            id="requirements",
        ),
        pytest.param("requirements.txt", "trl>=0.9; a\ntrl>=0.7; b\n", {"trl": "0.7"}, id="the least of several"),
        pytest.param("requirements.txt", "# trl>=0.9\ntrl==0.8.6\n", {}, id="a pin, and a comment"),
        pytest.param("setup.py", '_deps = ["trl>=0.19.1", "torch==2.5.1"]\n', {"trl": "0.19.1"}, id="setup.py"),
        pytest.param(
            "pyproject.toml",
            '[project]\ndependencies = [\n  "transformers>=4.56.2",\n  # "trl>=1.0",\n]\n'
            '[project.optional-dependencies]\npeft = ["peft>=0.8.0"]\n',
            {"transformers": "4.56.2"},
            id="pyproject.toml, without its extras",
        ),
        pytest.param("environment.yml", "dependencies:\n  - pytorch>=1.10.1\n", {"pytorch": "1.10.1"}, id="conda"),
    ],
)
def test_a_file_says_what_is_no_older(project: Path, name: str, text: str, expected: dict[str, str]) -> None:
    (project / name).write_text(text)
    found = software.bounds(str(project / "configs"))
    assert {package: pin.release for package, pin in found.items()} == expected


def test_the_nearest_file_goes_first_and_a_lock_before_what_was_asked_for(project: Path) -> None:
    (project / "requirements.txt").write_text("torch==1.13.1\ntransformers==4.30.0\n")
    (project / "configs" / "requirements.txt").write_text("torch==2.0.1\n")
    (project / "configs" / "uv.lock").write_text('name = "torch"\nversion = "2.0.2"\n')

    assert releases(project / "configs") == {"torch": "2.0.2", "transformers": "4.30.0"}


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        pytest.param("verl/version/version", "0.1\n", {"verl": "0.1"}, id="a copy of verl"),
        pytest.param(
            "src/peft/__init__.py", '"""PEFT"""\n__version__ = "0.3.0.dev0"\n', {"peft": "0.3.0.dev0"}, id="PEFT"
        ),
        pytest.param("trl/__init__.py", "from .version import __version__\n", {}, id="a package that does not say"),
        pytest.param("torch/version.py", "__version__ = '2.1.0'\n", {}, id="a folder of that name"),
    ],
)
def test_a_library_of_the_repository_goes_before_what_it_asks_for(
    project: Path, path: str, text: str, expected: dict[str, str]
) -> None:
    """Search-R1, Logic-RL and simpleRL-reason hold verl 0.1."""
    (project / path).parent.mkdir(parents=True)
    (project / path).write_text(text, encoding="utf-8")
    assert releases(project / "configs") == expected
    (project / "requirements.txt").write_text("verl==0.9.0\npeft==0.12.0\n", encoding="utf-8")
    assert releases(project / "configs") == {"verl": "0.9.0", "peft": "0.12.0", **expected}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("trl", {"trl": "1.10.0.dev0"}, id="the library itself"),
        pytest.param("mine", {}, id="a project with a copy of it, whose release that is"),
    ],
)
def test_a_release_that_stands_beside_the_package_is_that_of_the_project(
    project: Path, name: str, expected: dict[str, str]
) -> None:
    (project / "trl").mkdir()
    (project / "trl" / "__init__.py").write_text('__version__ = version("trl")\n', encoding="utf-8")
    (project / "VERSION").write_text("1.10.0.dev0\n", encoding="utf-8")
    (project / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n', encoding="utf-8")
    assert releases(project / "configs") == expected


def test_no_file_outside_of_the_repository_is_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==1.0.0\n")
    inner = tmp_path / "project"
    (inner / ".git").mkdir(parents=True)
    assert releases(inner) == {}

    (inner / "requirements.txt").symlink_to(tmp_path / "requirements.txt")
    assert releases(inner) == {}


def test_a_run_knows_its_releases_and_where_they_stand(project: Path) -> None:
    config = project / "configs" / "run.yaml"
    config.write_text(CONFIG)
    (project / "requirements.txt").write_text("# what we train with\ntorch==2.1.0\ntransformers==4.36.2\njax==0.4.1\n")

    (spec,) = registry.specs(load(str(config)))

    version, loop = spec.fact("framework_version"), spec.fact("transformers_version")
    assert version is not None
    assert loop is not None
    assert version.span is not None
    assert (version.value, loop.value) == ("torch 2.1.0", "4.36.2")
    assert (version.origin, version.span[1:]) == ("written", (2, 8, 2, 13))
    assert Path(version.span.path).resolve() == (project / "requirements.txt").resolve()


def test_torchtunes_own_release_is_one_of_torchtunes_runs_alone(project: Path) -> None:
    config = project / "configs" / "run.yaml"
    config.write_text(CONFIG)
    (project / "requirements.txt").write_text("torchtune==0.4.0\ntorch==2.5.1\n")
    (spec,) = registry.specs(load(str(config)))
    assert "implementation_version" not in spec

    config.write_text(TORCHTUNE)
    (spec,) = registry.specs(load(str(config)))
    assert (spec["implementation"], spec["implementation_version"]) == ("torchtune", "0.4.0")
    assert spec["framework_version"] == "torch 2.5.1"


def test_without_a_pin_the_family_s_release_is_assumed(project: Path) -> None:
    config = project / "configs" / "run.yaml"
    config.write_text(CONFIG)

    (spec,) = registry.specs(load(str(config)))

    version = spec.fact("framework_version")
    assert version is not None
    assert version.origin == "assumed"
    assert "transformers_version" not in spec


def test_a_link_to_nothing_in_a_copy_of_a_library_costs_itself_alone(tmp_path: Path) -> None:
    package = tmp_path / "trl"
    package.mkdir()
    (tmp_path / ".git").mkdir()
    (package / "a.py").symlink_to(tmp_path / "gone.py")
    (package / "b.py").write_text("KINDS = ('ours',)\n")
    assert software.copy_says(str(tmp_path / "run.yaml"), "trl", "ours")
    assert not software.copy_says(str(tmp_path / "run.yaml"), "trl", "theirs")


def test_no_more_of_a_copy_is_looked_into_than_a_few_hundred_files(tmp_path: Path) -> None:
    package = tmp_path / "trl"
    package.mkdir()
    (tmp_path / ".git").mkdir()
    for number in range(software.MAX_MODULES + 1):
        (package / f"m{number:04}.py").write_text("")
    (package / f"m{software.MAX_MODULES:04}.py").write_text("KINDS = ('ours',)\n")
    assert not software.copy_says(str(tmp_path / "run.yaml"), "trl", "ours")


def test_a_notebook_installs_a_release_or_none_older_than_one(project: Path) -> None:
    cells = [
        "!pip install -q 'trl>=0.19.1' transformers==4.57.6\n",
        "from trl import SFTConfig, SFTTrainer\n",
        "SFTTrainer('Qwen/Qwen2.5-0.5B', SFTConfig(output_dir='o', max_length=512), train_dataset=data).train()\n",
    ]
    entries = [
        {"cell_type": "code", "source": [cell], "metadata": {}, "outputs": [], "execution_count": None}
        for cell in cells
    ]
    notebook = {"cells": entries, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (project / "train.ipynb").write_text(json.dumps(notebook))
    (spec,) = registry.specs(load(str(project / "train.ipynb")))
    assert spec["oldest_releases"] == {"trl": "0.19.1"}
    assert spec["transformers_version"] == "4.57.6"
