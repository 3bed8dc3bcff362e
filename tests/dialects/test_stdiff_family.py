"""Family stdiff: from a training config or its launch script to facts, and from facts back to edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry, schema
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, WRITTEN, TrainingSpec
from memlint.fixes.edits import apply_edits

EXAMPLES = Path(__file__).parents[2] / "examples" / "stdiff"
BEFORE = "kitti_range_train_config.yaml"
HYPER = "hyperparameters."


def read(name: str = BEFORE, *overrides: str) -> TrainingSpec:
    [spec] = registry.specs(load(str(EXAMPLES / name)), overrides)
    return spec


def changed(tmp_path: Path, *replacements: tuple[str, str]) -> TrainingSpec:
    """The example with pieces of its text replaced."""
    text = (EXAMPLES / BEFORE).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "changed.yaml"
    path.write_text(text)
    [spec] = registry.specs(load(str(path)))
    return spec


def line_of(spec: TrainingSpec, fact: str) -> str:
    found = spec.fact(fact)
    assert found is not None
    assert found.span is not None
    return Path(found.span.path).read_text().splitlines()[found.span.line - 1].split("#")[0].strip()


@pytest.mark.parametrize("name", [BEFORE, "kitti_range_train_config_after.yaml", "train.sh"])
def test_each_example_is_recognised_without_a_gap(name: str) -> None:
    spec = read(name)
    assert (spec.family, spec.architecture, spec.unknown_reason) == ("stdiff", "stdiff", "")
    assert spec.missing == ()
    assert spec.conflicts == ()
    assert objections.validate(spec.root, schema.load("stdiff")) == []


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("micro_batch_size", 2, "batch_size: 2"),
        ("observation_steps", 5, "num_observed_frames: 5"),
        ("predicted_frames", 5, "rand_Tp: 5"),
        ("image_size", (64, 2048), "sample_size: [64, 2048]"),
        ("attention", "eager", "use_xformers: false"),
        ("checkpointing", "none", "gradient_checkpointing: false"),
        ("compute_dtype", "float32", 'mixed_precision: "no"'),
        ("gradient_accumulation_steps", 2, "gradient_accumulation_steps: 2"),
        ("ema", True, "use_ema: true"),
        ("workers", 4, "num_workers: 4"),
        ("attention_tokens", 32 * 1024, "sample_size: [64, 2048]"),
    ],
)
def test_each_fact_points_at_the_line_that_states_it(fact: str, value: Any, line: str) -> None:
    spec = read()
    assert spec[fact] == value
    assert line_of(spec, fact) == line


def test_absent_keys_take_the_documented_default() -> None:
    spec = read()
    assert spec["optimizer"] == "adamw"
    assert spec.facts["optimizer"].origin == DEFAULT
    assert spec[HYPER + "norm_num_groups"] == 32
    assert spec["parameter_dtype"] == "float32"


def test_frames_come_from_the_count_that_the_loader_uses() -> None:
    assert read(BEFORE, "Dataset.rand_Tp=2")["predicted_frames"] == 2
    all_of_them = read(BEFORE, "Dataset.rand_Tp=2", "Dataset.rand_predict=false")
    assert all_of_them["predicted_frames"] == 5
    assert all_of_them.facts["predicted_frames"].key == "Dataset.num_predict_frames"


def test_half_the_frame_rate_is_half_the_frames() -> None:
    spec = read(BEFORE, "Dataset.half_fps=true")
    assert (spec["observation_steps"], spec["predicted_frames"]) == (3, 3)


def test_one_number_is_a_square_image(tmp_path: Path) -> None:
    spec = changed(tmp_path, ("[64, 2048]", "64"))
    assert spec["image_size"] == (64, 64)
    assert spec.conflicts == ()


def test_only_range_images_come_with_masks(tmp_path: Path) -> None:
    assert read()[HYPER + "masks"] is True
    assert changed(tmp_path, ("name: KITTI_RANGE", "name: BAIR"))[HYPER + "masks"] is False


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("mixed_precision", {'"no"': "float32", "fp16": "float16", "bf16": "bfloat16"}),
        ("gradient_checkpointing", {"true": "blocks", "all": "full", "false": "none"}),
        ("attention", {"plain": "eager", "sdpa": "sdpa", "xformers": "xformers"}),
    ],
)
def test_each_value_of_a_key_has_its_meaning(key: str, values: dict[str, str]) -> None:
    fact = {"mixed_precision": "compute_dtype", "gradient_checkpointing": "checkpointing"}.get(key, key)
    for text, meaning in values.items():
        assert (
            read(BEFORE, f"+Training.{key}={text}" if key == "attention" else f"Training.{key}={text}")[fact] == meaning
        )


def test_the_attention_key_goes_before_use_xformers() -> None:
    spec = read(BEFORE, "Training.use_xformers=true", "+Training.attention=plain")
    assert spec["attention"] == "eager"


def test_the_script_names_the_processes_and_the_config() -> None:
    spec = read("train.sh")
    assert spec["world_size"] == spec["device_count"] == 1
    assert line_of(spec, "world_size").startswith(("GPUS=1", "--num_processes"))
    assert line_of(spec, "micro_batch_size") == "batch_size: 2"


def test_processes_of_accelerates_own_config_count_where_the_command_is_silent(tmp_path: Path) -> None:
    (tmp_path / "accelerate_config.yaml").write_text("num_processes: 4\nmixed_precision: bf16\n")
    text = (EXAMPLES / BEFORE).read_text().replace('  mixed_precision: "no"\n', "")
    (tmp_path / "config.yaml").write_text(text)
    script = tmp_path / "train.sh"
    script.write_text(
        "accelerate launch --config_file accelerate_config.yaml train_stdiff.py --train_config config.yaml\n"
    )
    [spec] = registry.specs(load(str(script)))
    assert (spec["world_size"], spec["compute_dtype"]) == (4, "bfloat16")


@pytest.mark.parametrize(
    ("replacements", "key", "words"),
    [
        ([("  image_size: [64, 2048]   #", "  image_size: [64, 512]   #")], "image_size", "frames are resized"),
        ([("      in_channels: 2", "      in_channels: 3")], "in_channels", "the UNet gets 2"),
        ([("num_channels: 1 ", "num_channels: 3 "), ("in_channels: 2", "in_channels: 6")], "in_channels", "3 channels"),
        ([("rand_Tp: 5 ", "rand_Tp: 7 ")], "rand_Tp", "cannot be drawn from 5"),
    ],
    ids=["another stored size", "other input channels", "other encoder channels", "more drawn than there are"],
)
def test_keys_that_contradict_each_other_are_found(
    replacements: list[tuple[str, str]], key: str, words: str, tmp_path: Path
) -> None:
    conflicts = changed(tmp_path, *replacements).conflicts
    assert [conflict.key.rsplit(".", 1)[-1] for conflict in conflicts] == [key]
    assert words in conflicts[0].message


@pytest.mark.parametrize(
    ("replacement", "words"),
    [
        (("  batch_size: 2\n", ""), "Dataset.batch_size is not stated"),
        (("  batch_size: 2\n", "  batch_size: ${oc.env:BATCH}\n"), "Dataset.batch_size is not known"),
        (("attention_head_dim: [null, 128, 128, 128, 128]", "attention_head_dim: [null, 128]"), "attention_head_dim"),
        (("[128, 256, 256, 512, 512]", "[128, 250, 250, 512, 512]"), "multiples of 32"),
    ],
    ids=["no batch size", "a batch size from the environment", "too few head dimensions", "odd widths"],
)
def test_a_run_that_cannot_be_estimated_says_why(replacement: tuple[str, str], words: str, tmp_path: Path) -> None:
    spec = changed(tmp_path, replacement)
    assert spec.architecture is None
    assert words in spec.unknown_reason


EDITS = [
    ("micro_batch_size", 1),
    ("predicted_frames", 3),
    ("attention", "xformers"),
    ("checkpointing", "blocks"),
    ("compute_dtype", "bfloat16"),
    ("compute_dtype", "float16"),
    ("gradient_accumulation_steps", 4),
    ("ema", False),
    ("workers", 2),
]
MADE_OF = {  # facts that follow from the one that is edited
    "predicted_frames": {HYPER + "rand_Tp"},
    "compute_dtype": {"autocast", "loss_scaling"},
    "checkpointing": {"checkpointed_layers"},
}


@pytest.mark.parametrize(("fact", "value"), EDITS)
def test_an_edit_changes_its_fact_and_no_other(fact: str, value: Any, tmp_path: Path) -> None:
    text = (EXAMPLES / BEFORE).read_text()
    path = tmp_path / "config.yaml"
    path.write_text(text)
    [before] = registry.specs(load(str(path)))
    edits = spell(before, fact, value)
    assert edits
    path.write_text(apply_edits(text, edits))
    [after] = registry.specs(load(str(path)))
    assert after[fact] == value
    others = MADE_OF.get(fact, set()) | {fact}
    assert {name: after.get(name) for name in before if name not in others} == {
        name: before[name] for name in before if name not in others
    }


def test_keys_that_only_other_code_reads_are_not_proposed() -> None:
    spec = read()
    assert spell(spec, "checkpointing", "full") == []
    assert spell(spec, "attention", "sdpa") == []


def test_an_absent_flag_is_added_under_the_key_that_the_fork_reads(tmp_path: Path) -> None:
    spec = changed(tmp_path, ("  use_xformers: false\n", ""), ("  gradient_checkpointing: false\n", ""))
    text = (tmp_path / "changed.yaml").read_text()
    for fact, value, line in (
        ("attention", "xformers", "  use_xformers: true"),
        ("checkpointing", "blocks", "  gradient_checkpointing: true"),
    ):
        assert line in apply_edits(text, spell(spec, fact, value)).splitlines()


def test_facts_remember_that_they_were_written() -> None:
    assert read().facts["predicted_frames"].origin == WRITTEN


def test_another_diffusion_config_is_not_taken_for_this_family(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("model: {unet_config: {sample_size: 64}}\nTraining: {mixed_precision: bf16}\n")
    assert all(spec.family != "stdiff" for spec in registry.specs(load(str(path))))
