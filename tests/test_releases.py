"""Behaviour by release: on either side of each border a pin changes what a run is, as the row says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memlint import releases
from memlint.dialects import registry
from memlint.dialects.spec import ASSUMED, TrainingSpec
from memlint.documents.load import load
from memlint.models import record

ROOT = Path(__file__).parent.parent
BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "dataset_name": "x",
    "max_length": 512,
    "per_device_train_batch_size": 2,
    "bf16": "true",
}
QUANTISED = {"load_in_4bit": "true", "use_peft": "true"}


def pinned(tmp_path: Path, method: str, release: str, **keys: Any) -> TrainingSpec:
    """A run of one of TRL's trainers, whose project pins a release; "" for none."""
    config = tmp_path / method / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    (tmp_path / ".git").mkdir(exist_ok=True)
    stated = {**BASE, **keys}
    if "max_seq_length" in keys:
        del stated["max_length"]
    config.write_text("".join(f"{key}: {value}\n" for key, value in stated.items()))
    if release:
        (tmp_path / "requirements.txt").write_text(f"trl=={release}\n")
    [spec] = registry.specs(load(str(config)))
    return spec


BORDERS = [
    # behaviour, trainer, its keys, the release before and the first with (or without) it, a fact and its two values
    ("sft_loss_in_chunks", "sft", {}, "1.6.0", "1.7.0", "loss", "full", "chunked"),
    ("sft_loss_in_tiles", "sft", {"loss_type": "nll"}, "1.14.0", "1.15.0", "loss", "full", "chunked"),
    ("dpo_loss_in_tiles", "dpo", {}, "1.13.0", "1.14.0", "loss_tile", None, (4096, 32768)),
    ("rloo_loss_in_tiles", "rloo", {}, "1.14.0", "1.15.0", "loss_tile", None, (4096, 32768)),
    ("log_probabilities_in_a_kernel", "orpo", {}, "1.13.0", "1.14.0", "log_probabilities", "rows", "kernel"),
    ("log_probabilities_row_by_row", "dpo", {}, "0.14.0", "0.15.0", "log_probabilities", "whole", "rows"),
    ("sft_prepares_quantised_models", "sft", QUANTISED, "0.25.1", "0.26.0", "float32_parts", ["norms"], None),
    ("dpo_prepares_quantised_models", "dpo", QUANTISED, "0.28.0", "0.29.0", "float32_parts", ["norms"], None),
    (
        *("adapters_of_quantised_models_in_bfloat16_early", "sft", QUANTISED, "0.8.6", "0.9.4"),
        *("lora.dtype", "bfloat16", "float32"),
    ),
    ("checkpoints_by_default", "sft", {}, "0.19.1", "0.20.0", "checkpointing", "none", "full"),
    ("grpo_asks_a_reference", "grpo", {}, "0.18.2", "0.19.0", "reference_model", "copy", "none"),
]


@pytest.mark.parametrize(
    ("behaviour", "method", "keys", "before", "after", "fact", "old", "new"), BORDERS, ids=[row[0] for row in BORDERS]
)
def test_a_pin_on_either_side_says_what_the_run_is(
    tmp_path: Path,
    behaviour: str,
    method: str,
    keys: dict[str, Any],
    before: str,
    after: str,
    fact: str,
    old: Any,
    new: Any,
) -> None:
    assert f"trl.{behaviour}" in releases.BEHAVIOURS
    assert pinned(tmp_path, method, before, **keys).get(fact) == old
    assert pinned(tmp_path, method, after, **keys).get(fact) == new


QLORA = """\
checkpoint_dir: checkpoints/EleutherAI/pythia-160m
quantize: bnb.nf4
precision: bf16-true
devices: 1
lora_r: 8
lora_query: true
lora_value: true
train: {micro_batch_size: 1, global_batch_size: 4, max_seq_length: 512}
"""


def test_litgpts_embedding_of_a_quantised_model_grew_with_a_release(tmp_path: Path) -> None:
    assert "litgpt.stable_embedding" in releases.BEHAVIOURS

    def parameters(release: str) -> int:
        (tmp_path / "requirements.txt").write_text(f"litgpt=={release}\n")
        [spec] = registry.specs(load(str(tmp_path / "config.yaml")))
        return record(spec, named=False).parameters

    (tmp_path / ".git").mkdir()
    (tmp_path / "config.yaml").write_text(QLORA)
    rows, width = 50_304, 768
    # a norm, and an embedding of its own beside the one that it stands in for
    assert parameters("0.5.0") == parameters("0.4.13") + rows * width + 2 * width


def test_every_row_has_its_border_tested() -> None:
    assert {f"trl.{row[0]}" for row in BORDERS} | {"litgpt.stable_embedding"} == set(releases.BEHAVIOURS)


@pytest.mark.parametrize(
    ("keys", "release", "loss"),
    [
        pytest.param({}, "1.16", "chunked", id="nothing says: the newest"),
        pytest.param({"max_seq_length": 512}, "0.19", "full", id="a key that was taken away"),
    ],
)
def test_without_a_pin_the_release_is_assumed_and_said(
    tmp_path: Path, keys: dict[str, Any], release: str, loss: str
) -> None:
    spec = pinned(tmp_path, "sft", "", **keys)
    stated = spec.facts["release.trl"]
    assert (stated.value, stated.origin, spec["loss"]) == (release, ASSUMED, loss)
    assert stated.reason


@pytest.mark.parametrize(
    ("release", "kind", "loss"),
    [
        ("1.6.0", "chunked_nll", "chunked"),
        ("1.6.0", "nll", "full"),
        ("1.12.0", "nll", "full"),
        ("1.12.0", "dft", "full"),
        ("1.16.0", "nll", "chunked"),
    ],
)
def test_a_loss_that_is_named_goes_before_the_releases_default(
    tmp_path: Path, release: str, kind: str, loss: str
) -> None:
    assert pinned(tmp_path, "sft", release, loss_type=kind)["loss"] == loss


def test_a_quantised_model_whose_weights_devices_share_is_left_as_it_is(tmp_path: Path) -> None:
    shared = {**QUANTISED, "fsdp": "full_shard"}
    spec = pinned(tmp_path, "sft", "0.22.0", **shared)
    assert (spec.get("float32_parts"), spec["lora.dtype"]) == (None, "bfloat16")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        pytest.param("1.7.0", (1, 7), id="a release"),
        pytest.param("torch 2.6", (2, 6), id="with its framework's name"),
        pytest.param("2.1.0+cu118", (2, 1), id="a local build"),
        pytest.param("1.8.0.dev0", (1, 8), id="a development version"),
        pytest.param("main", None, id="no numbers"),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_series_of_a_release(release: str | None, expected: tuple[int, int] | None) -> None:
    assert releases.series(release) == expected


def test_no_release_is_the_newest() -> None:
    for name, row in releases.BEHAVIOURS.items():
        assert releases.does(name, None) is (row.until is None) is releases.does(name, releases.NEWEST[row.library])


def test_the_page_of_releases_is_made_of_the_table() -> None:
    done = subprocess.run([sys.executable, "docs/releases.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run python docs/releases.py"
