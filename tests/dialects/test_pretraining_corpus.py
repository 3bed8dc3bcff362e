"""Real configs of the families that pretrain: each recognised, and what is not known is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from tests.material import corpus_folder

FAMILIES = {"megatron": "megatron", "gpt_neox": "gpt-neox", "llm_foundry": "llm-foundry", "nemo": "nemo"}
# A part of a config that another one composes states no run.
PARTS = ("model__generator__v1_44100.yaml",)
# What these files leave to the tokenizer's own file, to the launcher, or to parts of a model that are not known.
REASONS = (
    "is not stated",
    "is not known",
    "are not known",
    "is no language model",
    "composes its config",
    "is not run",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return corpus_folder()


@pytest.mark.parametrize("name", FAMILIES)
def test_real_configs_are_recognised_and_say_what_they_lack(folder: Path, name: str) -> None:
    files = [path for path in sorted((folder / name).iterdir()) if not path.name.endswith(PARTS)]
    assert files
    for path in files:
        (spec,) = registry.specs(load(str(path)))
        assert spec.family == FAMILIES[name]
        assert (spec.architecture is None) == bool(spec.unknown_reason), path
        assert spec.architecture is not None or any(one in spec.unknown_reason for one in REASONS), spec.unknown_reason


def test_parts_and_configs_of_other_frameworks_are_not_claimed(folder: Path) -> None:
    claimed = [
        path.name
        for other in sorted(folder.iterdir())
        if other.is_dir() and other.name not in FAMILIES and other.name != "hydra_trees"
        for path in sorted(other.iterdir())
        if path.suffix in (".yaml", ".yml", ".json", ".sh", ".slurm", ".sbatch")
        and any(spec.family in FAMILIES.values() for spec in registry.specs(load(str(path))))
    ]
    assert claimed == []
    parts = [path for path in (folder / "nemo").iterdir() if path.name.endswith(PARTS)]
    assert [registry.specs(load(str(path))) for path in parts] == [[]]
