"""Family video-llm: from config.yaml to facts, and from facts back to edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry, schema
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.fixes.edits import apply_edits

EXAMPLES = Path(__file__).parents[2] / "examples" / "video_llm"
HYPER = "hyperparameters."


def read(name: str = "config.yaml", *overrides: str) -> TrainingSpec:
    [spec] = registry.specs(load(str(EXAMPLES / name)), overrides)
    return spec


def line_of(spec: TrainingSpec, fact: str) -> str:
    found = spec.fact(fact)
    assert found is not None
    assert found.span is not None
    return Path(found.span.path).read_text().splitlines()[found.span.line - 1].split("#")[0].strip()


@pytest.mark.parametrize("name", ["config.yaml", "config_before.yaml"])
def test_each_example_is_recognised_without_a_gap(name: str) -> None:
    spec = read(name)
    assert (spec.family, spec.architecture, spec.unknown_reason) == ("video-llm", "video_llm", "")
    assert spec.missing == ()
    assert objections.validate(spec.root, schema.load("video-llm")) == []


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("micro_batch_size", 4, "batch_size: 4"),
        ("gradient_accumulation_steps", 8, "gradient_accumulation_steps: 8"),
        ("frames", 100, "max_frames: 100"),
        ("sequence_length", 6656, "max_frames: 100"),
        ("parameter_dtype", "bfloat16", "dtype: bfloat16"),
        ("checkpointing", "full", "use_gradient_checkpointing: true"),
        ("attention", "sdpa", "attn_implementation: sdpa"),
        ("autocast", True, "use_mixed_precision: true"),
        ("compute_dtype", "bfloat16", "use_mixed_precision: true"),
        ("optimizer", "adamw", "optimizer: adamw"),
        ("vocabulary_size", 256_000, "name: google/gemma-2b"),
    ],
)
def test_each_fact_points_at_the_line_that_states_it(fact: str, value: Any, line: str) -> None:
    spec = read()
    assert spec[fact] == value
    assert line_of(spec, fact) == line


@pytest.mark.parametrize(
    ("dtype", "switch", "compute", "scaled"),
    [
        ("bfloat16", "true", "bfloat16", False),
        ("float32", "true", "float16", True),
        ("float16", "true", "float16", True),
        ("float32", "false", "float32", False),
        ("bfloat16", "false", "bfloat16", False),
    ],
)
def test_autocast_follows_the_weights(dtype: str, switch: str, compute: str, scaled: bool) -> None:
    spec = read("config.yaml", f"model.llm.dtype={dtype}", f"training.use_mixed_precision={switch}")
    assert spec["compute_dtype"] == compute
    assert ("loss_scaling" in spec) is scaled


@pytest.mark.parametrize(
    ("word", "name", "implementation"),
    [
        ("adamw", "adamw", "foreach"),
        ("adamw_fused", "adamw", "fused"),
        ("adamw_8bit", "adamw_8bit", None),
        ("adafactor", "adafactor", None),
        ("sgd", "sgd", "foreach"),
    ],
)
def test_one_word_names_optimizer_and_implementation(word: str, name: str, implementation: str | None) -> None:
    spec = read("config.yaml", f"training.optimizer={word}")
    assert (spec["optimizer"], spec.get("optimizer_implementation")) == (name, implementation)


def test_no_limit_on_frames_is_a_fact_of_its_own() -> None:
    spec = read("config_before.yaml")
    fact = spec.fact("frames")
    assert fact is not None
    assert fact.value is None
    assert line_of(spec, "frames") == "max_frames: null"
    assert spec["sequence_length"] == 8192
    assert line_of(spec, "sequence_length") == "max_seq_length: 8192"


def test_without_any_bound_the_gap_is_named() -> None:
    spec = read("config.yaml", "data.max_frames=null")
    assert [gap.key for gap in spec.missing] == ["data.max_frames"]
    assert "max_seq_length" in spec.missing[0].reason


def test_the_limit_cuts_the_frames() -> None:
    assert read("config.yaml", "model.llm.max_seq_length=1000")["sequence_length"] == 1000
    assert read("config.yaml", "model.llm.max_seq_length=9000")["sequence_length"] == 6656


EDITS = [
    ("micro_batch_size", 2),
    ("gradient_accumulation_steps", 16),
    ("frames", 50),
    ("parameter_dtype", "float32"),
    ("checkpointing", "none"),
    ("attention", "eager"),
    ("attention", "flash"),
    ("optimizer", "adamw_8bit"),
    ("optimizer", "adafactor"),
    ("optimizer_implementation", "fused"),
    (HYPER + "max_seq_length", 4096),
    (HYPER + "tokens_per_frame", 16),
]
MADE_OF = {
    "frames": {"sequence_length", "attention_tokens", "sample_bytes"},
    HYPER + "max_seq_length": {"sequence_length", "attention_tokens", "sample_bytes"},
    HYPER + "tokens_per_frame": {"sequence_length", "attention_tokens", "sample_bytes"},
    "parameter_dtype": {"compute_dtype", "loss_scaling"},
    "optimizer": {"optimizer_implementation"},
}


@pytest.mark.parametrize(("fact", "value"), EDITS)
def test_an_edit_changes_its_fact_and_no_other(fact: str, value: Any, tmp_path: Path) -> None:
    text = (EXAMPLES / "config.yaml").read_text()
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


def test_autocast_is_how_fp32_weights_compute_in_half(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = (EXAMPLES / "config_before.yaml").read_text()
    path.write_text(text)
    [spec] = registry.specs(load(str(path)))
    assert spell(spec, "compute_dtype", "bfloat16") == []
    path.write_text(apply_edits(text, spell(spec, "compute_dtype", "float16")))
    [after] = registry.specs(load(str(path)))
    assert (after["autocast"], after["compute_dtype"]) == (True, "float16")


def test_what_no_key_states_has_no_spelling() -> None:
    spec = read()
    assert spell(spec, "sequence_length", 100) == []
    assert spell(spec, "optimizer", "lion") == []
    assert spell(spec, "optimizer_implementation", "loop") == []


def test_another_config_with_a_model_is_not_taken_for_this_family(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("model: {llm: {name: gpt2}}\ntraining: {batch_size: 4}\n")
    assert all(spec.family != "video-llm" for spec in registry.specs(load(str(path))))
