"""A family reads what its table in the README says, and what is written in two formats is one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.dialects import schema as schemas
from memlint.documents.load import load
from memlint.reports.report import RunReport
from memlint.settings import Settings

pytestmark = pytest.mark.usefixtures("answers_kept")

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "hostile" / "samples"

# family -> a config of it in YAML
YAML = {
    "autotrain": SAMPLES / "autotrain" / "run.yml",
    "axolotl": SAMPLES / "axolotl" / "run.yml",
    "gpt-neox": SAMPLES / "gpt_neox" / "run.yml",
    "litgpt": SAMPLES / "litgpt" / "run.yaml",
    "llamafactory": SAMPLES / "llamafactory" / "run.yaml",
    "llamafactory-v1": SAMPLES / "llamafactory_v1" / "run.yaml",
    "llm-foundry": SAMPLES / "llm_foundry" / "run.yaml",
    "ms-swift": SAMPLES / "ms_swift" / "file.yaml",
    "oumi": SAMPLES / "oumi" / "run.yaml",
    "simpo": SAMPLES / "simpo" / "run.yaml",
    "stdiff": ROOT / "examples" / "stdiff" / "kitti_range_train_config_after.yaml",
    "torchtune": SAMPLES / "torchtune" / "run.yaml",
    "trl": ROOT / "examples" / "language_models" / "sft_trl.yaml",
    "video-llm": ROOT / "examples" / "video_llm" / "config.yaml",
}
# Their YAML is TRL's or a launcher's: the keys of a file alone do not tell.
ALIKE = {"hf-trainer", "accelerate", "deepspeed"}
# Modules of families that are known by their keys, and end without an estimate.
KEYS_ALONE = {"key_facts", "latent_diffusion"}


def checked(path: Path) -> RunReport:
    (run,) = check_paths([str(path)], Settings()).runs
    return run


@pytest.mark.parametrize("family", YAML)
def test_a_config_in_json_is_the_same_run(family: str, tmp_path: Path) -> None:
    one = checked(YAML[family])
    written = tmp_path / f"{YAML[family].stem}.json"  # a name may say which trainer runs
    written.write_text(json.dumps(load(str(YAML[family])).root.plain(), indent=1), encoding="utf-8")
    other = checked(written)
    assert (one.family, other.family) == (family, family)
    assert one.estimate is not None
    assert other.estimate == one.estimate


def test_every_family_that_reads_both_formats_is_tried() -> None:
    answering = {name for name in schemas.families() if "models" in schemas.header(name)}
    both = {name for name in answering if {"yaml", "json"} <= set(schemas.header(name)["formats"])}
    assert both - ALIKE == set(YAML)


def test_the_table_has_every_family_that_ends_in_an_estimate() -> None:
    for name in schemas.families():
        header = schemas.header(name)
        module = registry.dialect(name).module
        known = header.get("module") not in KEYS_ALONE and "trains" not in header.get("signature", {})
        answers = module is not None and known
        assert ("models" in header) == answers, name


TREES = [
    path
    for folder in (SAMPLES, ROOT / "examples", ROOT / "benchmarks" / "accuracy" / "cases")
    for path in sorted(folder.rglob("*"))
    if path.suffix in (".yaml", ".yml", ".json", ".toml", ".py")
]


def test_no_family_is_passed_over_that_would_match() -> None:
    matched = 0
    for path in TREES:
        document = load(str(path), None)
        likely = registry.likely(document)
        left = [one for one in registry.candidates(document.format) if one not in likely]
        assert not [one.family for one in left if one.match(document)], path
        matched += bool(left)
    assert matched > len(TREES) / 2
