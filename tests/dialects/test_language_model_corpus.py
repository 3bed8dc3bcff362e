"""Real configs of the language-model families: each recognised, none a crash, and what is not known is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from tests.material import corpus_folder

FOLDERS = ("hf_training_args", "trl", "accelerate", "deepspeed", "llava_family")
FAMILIES = ("hf-trainer", "trl", "accelerate", "deepspeed")
# Their command is put together from parts that only a cluster knows, or has an open quote.
NOT_A_COMMAND = ("submit_multicpu.sh",)


@pytest.fixture(scope="module")
def files() -> list[Path]:
    folder = corpus_folder()
    return [path for name in FOLDERS for path in sorted((folder / name).iterdir())]


def test_real_configs_are_recognised_and_say_what_they_lack(files: list[Path]) -> None:
    recognised = estimated = 0
    for path in files:
        specs = registry.specs(load(str(path)))
        recognised += bool(specs)
        for spec in specs:
            assert spec.family in FAMILIES
            assert (spec.architecture is None) == bool(spec.unknown_reason), path
        estimated += any(spec.architecture is not None for spec in specs)
        assert specs or path.name.endswith(NOT_A_COMMAND), path
    print(f"{recognised} of {len(files)} recognised, {estimated} with everything that an estimate needs")
    assert recognised >= 0.95 * len(files)


def test_real_configs_of_other_frameworks_are_not_claimed(files: list[Path]) -> None:
    root = files[0].parent.parent
    others = (
        "axolotl",
        "torchtune",
        "torchtitan",
        "litgpt",
        "gpt_neox",
        "kohya",
        "hydra_trees",
        "openmmlab",
        "yacs_vision",
    )
    claimed = [
        path.name
        for name in others
        for path in sorted((root / name).rglob("*.*"))
        if path.suffix in (".yaml", ".yml", ".json", ".sh")
        and any(spec.family in FAMILIES for spec in registry.specs(load(str(path))))
    ]
    assert claimed == []
