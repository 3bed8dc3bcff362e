"""Family dit3d: from a class of constants to facts, and from facts back to edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry, schema
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits

EXAMPLES = Path(__file__).parents[2] / "examples" / "dit3d"
BEFORE = (EXAMPLES / "config_before.py").read_text()


def read(text: str = BEFORE) -> TrainingSpec:
    document = load("config.py", text)
    assert not document.faults
    [spec] = registry.specs(document)
    return spec


def constants(*lines: str) -> TrainingSpec:
    base = ("BATCH_SIZE = 2", 'MODEL_ARCHITECTURE = "dit3d"', 'DIT_MODEL_SIZE = "DiT3D-S/4"')
    stated = {line.split(" =")[0] for line in lines}
    kept = [line for line in base if line.split(" =")[0] not in stated]
    if "INPUT_SHAPE" not in stated:
        kept.append("INPUT_SHAPE = (3, 16, 64, 64)")
    return read("class Config:\n" + "".join(f"    {line}\n" for line in (*kept, *lines)))


def text_at(spec: TrainingSpec, fact: str) -> str:
    found = spec.fact(fact)
    assert found is not None
    assert found.span is not None
    return spec.document.text.splitlines()[found.span.line - 1].split("#")[0].strip()


@pytest.mark.parametrize("name", ["config.py", "config_before.py"])
def test_each_example_is_recognised_without_a_gap(name: str) -> None:
    spec = read((EXAMPLES / name).read_text())
    assert (spec.family, spec.architecture, spec.unknown_reason) == ("dit3d", "dit3d", "")
    assert spec.missing == ()
    assert spec.conflicts == ()
    assert objections.validate(spec.root, schema.load("dit3d")) == []


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("micro_batch_size", 2, "BATCH_SIZE = 2"),
        ("frames", 28, "DIT_VIDEO_SIZE = (28, 128, 128)"),
        ("image_size", [128, 128], "DIT_VIDEO_SIZE = (28, 128, 128)"),
        ("patch_size", [2, 16, 16], "DIT_PATCH_SIZE = (2, 16, 16)"),
        ("encoder_frozen", False, "DIT_FREEZE_BACKBONE = False"),
        ("hyperparameters.size", "XL", 'DIT_MODEL_SIZE = "DiT3D-XL/2"'),
        ("hyperparameters.text_encoder", "distilbert-base-uncased", 'TEXT_ENCODER_MODEL = "distilbert-base-uncased"'),
        ("hyperparameters.learn_sigma", True, "DIT_LEARN_SIGMA = True"),
        ("compute_dtype", "float32", "USE_AMP = False"),
        ("gradient_accumulation_steps", 1, "GRADIENT_ACCUMULATION_STEPS = 1"),
        ("evaluation_batch_size", 2, "NUM_SAMPLES = 2"),
    ],
)
def test_each_fact_points_at_the_line_that_states_it(fact: str, value: Any, line: str) -> None:
    spec = read()
    assert spec[fact] == value
    assert text_at(spec, fact) == line


def test_constants_made_of_other_constants_are_followed() -> None:
    spec = read((EXAMPLES / "config.py").read_text())
    node = spec.facts["frames"].node
    assert spec["frames"] == 16
    assert node is not None
    assert node.span.line == next(
        number for number, line in enumerate(spec.document.text.splitlines(), 1) if "INPUT_SHAPE =" in line
    )


@pytest.mark.parametrize(
    ("lines", "patch", "tokens"),
    [
        (("DIT_PATCH_SIZE = (4, 16, 16)",), [4, 16, 16], 4 * 4 * 4),
        (("DIT_PATCH_SIZE = 8",), 8, 64),
        (("DIT_PATCH_SIZE = None",), 4, 256),
        ((), 4, 256),
        (('DIT_MODEL_SIZE = "DiT3D-S"',), 2, 1024),
    ],
    ids=[
        "three numbers are native tokens",
        "one number is per frame",
        "None leaves the name's patch",
        "no key leaves the name's patch",
        "no patch anywhere is two",
    ],
)
def test_patch_size_decides_the_form(lines: tuple[str, ...], patch: Any, tokens: int) -> None:
    spec = constants(*lines)
    assert spec["patch_size"] == patch
    assert spec["attention_tokens"] == tokens
    assert ("frames_in_batch" in spec) == isinstance(patch, int)


def test_text_encoder_none_and_absent_are_not_the_same() -> None:
    assert constants("TEXT_ENCODER_MODEL = None")["hyperparameters.text_encoder"] == "none"
    fact = constants().facts["hyperparameters.text_encoder"]
    assert (fact.value, fact.origin) == ("distilbert-base-uncased", DEFAULT)


def test_only_a_size_with_published_weights_has_an_encoder_to_freeze() -> None:
    assert "encoder_frozen" not in constants("DIT_FREEZE_BACKBONE = True")
    assert constants("DIT_FREEZE_BACKBONE = True")["hyperparameters.backbone_frozen"] is True
    assert constants('DIT_MODEL_SIZE = "DiT3D-XL/2"')["encoder_frozen"] is False


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        (
            ("INPUT_SHAPE = (3, 32, 224, 224)", "DIT_VIDEO_SIZE = (16, 64, 64)"),
            "INPUT_SHAPE",
            "INPUT_SHAPE has (frames, height, width) (32, 224, 224), DIT_VIDEO_SIZE (16, 64, 64)",
        ),
        (("DIT_VIDEO_SIZE = (16, 64, 64)", "IMAGE_SIZE = 128"), "IMAGE_SIZE", "128, but DIT_VIDEO_SIZE has 64 x 64"),
        (("DIT_VIDEO_SIZE = (16, 64, 64)", "NUM_FRAMES = 28"), "NUM_FRAMES", "28, but DIT_VIDEO_SIZE has 16"),
        (("IMAGE_SIZE = 128",), "IMAGE_SIZE", "IMAGE_SIZE 128, but INPUT_SHAPE has 64"),
        (("DIT_PATCH_SIZE = (3, 16, 16)",), "DIT_PATCH_SIZE", "3 does not divide the frames"),
        (("DIT_PATCH_SIZE = (4, 16, 24)",), "DIT_PATCH_SIZE", "24 does not divide the width"),
        (("DIT_PATCH_SIZE = 7",), "DIT_PATCH_SIZE", "patches of 7 do not divide"),
    ],
)
def test_shapes_that_contradict_each_other_are_found(lines: tuple[str, ...], key: str, words: str) -> None:
    [conflict] = constants(*lines).conflicts
    assert conflict.key == key
    assert words in conflict.message
    line = constants(*lines).document.text.splitlines()[conflict.span.line - 1]
    assert line.strip().startswith(key)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('MODEL_ARCHITECTURE = "vit3d"', "MODEL_ARCHITECTURE vit3d"),
        ('DIT_MODEL_SIZE = "DiT3D-XXL/2"', "DIT_MODEL_SIZE"),
        ('TEXT_ENCODER_MODEL = "t5-small"', "TEXT_ENCODER_MODEL t5-small"),
        ("BATCH_SIZE = int(input())", "BATCH_SIZE"),
        ("DIT_PATCH_SIZE = choose()", "DIT_PATCH_SIZE"),
    ],
)
def test_a_run_that_cannot_be_estimated_says_why(line: str, words: str) -> None:
    spec = constants(line)
    assert spec.architecture is None
    assert words in spec.unknown_reason


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("micro_batch_size", 1),
        ("gradient_accumulation_steps", 2),
        ("patch_size", [4, 32, 32]),
        ("encoder_frozen", True),
        ("checkpointing", "full"),
        ("attention", "sdpa"),
        ("compute_dtype", "float16"),
        ("frames", 14),
        ("image_size", [64, 64]),
        ("hyperparameters.text_frozen", False),
        ("evaluation_batch_size", 1),
    ],
)
def test_an_edit_changes_its_fact_and_no_other(fact: str, value: Any) -> None:
    spec = read()
    edits = spell(spec, fact, value)
    assert edits
    after = read(apply_edits(BEFORE, edits))
    assert after[fact] == value
    derived = {fact, "attention_tokens", "sample_bytes"}
    if fact == "image_size":
        derived |= {"hyperparameters.height", "hyperparameters.width"}
    assert {name: after[name] for name in after if name not in derived} == {
        name: spec[name] for name in spec if name not in derived
    }


def test_a_patch_from_the_models_name_becomes_a_key_of_its_own() -> None:
    spec = constants()
    after = read(apply_edits(spec.document.text, spell(spec, "patch_size", 8)))
    assert after["patch_size"] == 8
    assert after["hyperparameters.model_size"] == "DiT3D-S/4"


def test_keys_that_only_the_reference_model_reads_are_not_added() -> None:
    spec = constants()
    assert spell(spec, "checkpointing", "full") == []
    assert spell(spec, "attention", "sdpa") == []


def test_keys_of_other_architectures_are_marked_as_ignored() -> None:
    marked = {key.dotted for key in schema.keys(schema.load("dit3d")) if key.annotation.get("ignored")}
    assert {"UNET_DIM", "UNET_DIM_MULTS", "VIT_EMBED_DIM", "VIT_FREEZE_BACKBONE"} <= marked


def test_other_config_classes_are_not_taken_for_this_family() -> None:
    assert registry.specs(load("config.py", "class Config:\n    BATCH_SIZE = 2\n    LEARNING_RATE = 1e-4\n")) == []
