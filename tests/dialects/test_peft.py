"""Family peft: training_params.json and adapter_config.json of PEFT's method comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.peft import METHODS, is_bounded
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, WRITTEN, TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written

TRAINING = """\
{
  "model_id": "Qwen/Qwen2.5-0.5B",
  "dtype": "bfloat16",
  "max_seq_length": 512,
  "batch_size": 2,
  "optimizer_type": "AdamW",
  "optimizer_kwargs": {"lr": 0.001}
}
"""
ADAPTER = """\
{
  "peft_type": "LORA",
  "task_type": "CAUSAL_LM",
  "r": 16,
  "target_modules": ["q_proj", "v_proj"]
}
"""
NAME = "training_params.json"


def both(folder: Path, training: str = TRAINING, adapter: str = ADAPTER, checked: str = NAME) -> TrainingSpec:
    root = written(folder, {NAME: training, "adapter_config.json": adapter})
    (found,) = registry.specs(load(str(root / checked)))
    return found


def adapted(text: str = ADAPTER, **keys: Any) -> str:
    return json.dumps({**json.loads(text), **keys}, indent=2)


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param(NAME, TRAINING, ["peft"], id="what the script is given"),
        pytest.param("other.json", TRAINING, ["peft"], id="the same by another name"),
        pytest.param(NAME, '{"optimizer_kwargs": {"lr": 0.1}}', ["peft"], id="one override, by the name of the file"),
        pytest.param("other.json", '{"optimizer_kwargs": {"lr": 0.1}}', [], id="one override says nothing elsewhere"),
        pytest.param(NAME, '{"max_steps": 5, "learning_rate": 1}', [], id="a key that the script refuses"),
        pytest.param("adapter_config.json", ADAPTER, ["peft"], id="an adapter that is to be trained"),
        pytest.param("adapter_config.json", adapted(inference_mode=True), [], id="an adapter that is stored"),
        pytest.param("a.json", '{"model_id": "x", "prompt": "y"}', [], id="another program's model"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param('"batch_size": 2', '"batch_size": 8', "micro_batch_size", 8, id="batch"),
        pytest.param("512", "256", "sequence_length", 256, id="length"),
        pytest.param('"dtype": "bfloat16"', '"dtype": "float32"', "frozen_dtype", "float32", id="dtype of the model"),
        pytest.param('"dtype": "bfloat16"', '"dtype": "float16"', "compute_dtype", "float16", id="dtype of products"),
        pytest.param('"AdamW"', '"SGD"', "optimizer", "sgd", id="optimizer"),
        pytest.param('"AdamW"', '"lora-fa"', "tuning", "lora_fa", id="an optimizer that freezes half of LoRA"),
        pytest.param('"batch_size": 2', '"use_gc": true, "batch_size": 2', "checkpointing", "full", id="checkpointing"),
        pytest.param('"batch_size": 2', '"compile": true, "batch_size": 2', "compile", True, id="compile"),
        pytest.param('"batch_size": 2', '"use_amp": true, "batch_size": 2', "autocast", True, id="autocast"),
        pytest.param(
            '"batch_size": 2', '"use_amp": true, "batch_size": 2', "compute_dtype", "float16", id="in float16"
        ),
        pytest.param(
            '"batch_size": 2', '"attn_implementation": "eager", "batch_size": 2', "attention", "eager", id="attention"
        ),
        pytest.param(
            '"batch_size": 2',
            '"autocast_adapter_dtype": false, "batch_size": 2',
            "lora.dtype",
            "bfloat16",
            id="adapters in the model's dtype",
        ),
    ],
)
def test_each_key_sets_its_fact_where_it_stands(tmp_path: Path, old: str, new: str, fact: str, value: Any) -> None:
    assert old in TRAINING
    spec = both(tmp_path, TRAINING.replace(old, new, 1))
    assert spec[fact] == value
    assert spec.facts[fact].origin == WRITTEN
    assert line_of(spec, fact).strip(",") in TRAINING.replace(old, new, 1)


def test_the_adapter_beside_the_parameters_is_part_of_the_run(tmp_path: Path) -> None:
    spec = both(tmp_path)
    assert (spec["tuning"], spec["lora.r"], spec["lora.targets"]) == ("lora", 16, ["q_proj", "v_proj"])
    assert (spec["parameter_dtype"], spec["frozen_dtype"]) == ("float32", "bfloat16")
    assert line_of(spec, "lora.r") == '"r": 16,'
    assert spec.architecture == "language_model"


def test_the_adapter_is_the_same_run_when_it_is_checked_itself(tmp_path: Path) -> None:
    one, other = both(tmp_path), both(tmp_path, checked="adapter_config.json")
    names = ("model", "micro_batch_size", "sequence_length", "tuning", "lora.r", "parameter_dtype", "optimizer")
    assert [one[name] for name in names] == [other[name] for name in names]


def test_without_an_adapter_the_whole_model_trains(tmp_path: Path) -> None:
    root = written(tmp_path, {NAME: TRAINING})
    (spec,) = registry.specs(load(str(root / NAME)))
    assert (spec["tuning"], spec["parameter_dtype"]) == ("full", "bfloat16")
    assert "lora.dtype" not in spec


def test_an_adapter_in_a_folder_above_is_not_this_run(tmp_path: Path) -> None:
    root = written(tmp_path, {f"full/{NAME}": TRAINING, "adapter_config.json": ADAPTER})
    (spec,) = registry.specs(load(str(root / "full" / NAME)))
    assert spec["tuning"] == "full"


def test_defaults_are_the_scripts_own_file_where_it_is_there(tmp_path: Path) -> None:
    files = {
        "default_training_params.json": TRAINING,
        f"experiments/lora/a/{NAME}": '{"batch_size": 7}',
        "experiments/lora/a/adapter_config.json": ADAPTER,
        "experiments/lora/b/adapter_config.json": ADAPTER,
    }
    root = written(tmp_path, files)
    (spec,) = registry.specs(load(str(root / "experiments/lora/a" / NAME)))
    assert (spec["micro_batch_size"], spec["sequence_length"], spec["model"]) == (7, 512, "Qwen/Qwen2.5-0.5B")
    (spec,) = registry.specs(load(str(root / "experiments/lora/b/adapter_config.json")))
    assert (spec["micro_batch_size"], spec["sequence_length"], spec["lora.r"]) == (2, 512, 16)
    assert spec.architecture == "language_model"


def test_documented_defaults_say_whose_they_are(tmp_path: Path) -> None:
    spec = both(tmp_path, '{"batch_size": 2}')
    assert (spec["model"], spec["sequence_length"], spec["optimizer"]) == ("meta-llama/Llama-3.2-3B", 768, "adamw")
    assert spec.facts["sequence_length"].origin == DEFAULT
    assert "default_training_params.json" in spec.facts["sequence_length"].reason
    assert (spec["padding"], spec["empty_cache_steps"], spec["gradient_accumulation_steps"]) == (True, 10, 1)


@pytest.mark.parametrize("kind", METHODS)
def test_each_method_is_a_way_of_tuning(tmp_path: Path, kind: str) -> None:
    spec = both(tmp_path, adapter=adapted(peft_type=kind, num_virtual_tokens=8, token_indices=[1]))
    assert spec["tuning"] == METHODS[kind].tuning
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("keys", "fact", "value"),
    [
        pytest.param({"peft_type": "ADALORA", "init_r": 24}, "lora.r", 24, id="AdaLoRA's rank at the start"),
        pytest.param({"peft_type": "ADALORA"}, "lora.r", 12, id="AdaLoRA's default, whatever r says"),
        pytest.param({"peft_type": "VERA", "r": 64, "vera_dropout": 0.1}, "lora.dropout", 0.1, id="VeRA's dropout"),
        pytest.param({"peft_type": "FOURIERFT", "n_frequency": 99}, "lora.r", 99, id="FourierFT's frequencies"),
        pytest.param({"use_dora": True}, "tuning", "dora", id="DoRA"),
        pytest.param({"target_modules": "all-linear"}, "lora.targets", "all-linear", id="every linear layer"),
        pytest.param({"target_modules": ".*_proj"}, "lora.targets", ".*_proj", id="a regular expression"),
        pytest.param(
            {"peft_type": "IA3", "feedforward_modules": ["up_proj"]}, "ia3.feedforward", ["up_proj"], id="IA3's inputs"
        ),
        pytest.param({"modules_to_save": ["lm_head"]}, "lora.modules_to_save", ["lm_head"], id="modules beside"),
        pytest.param(
            {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 9}, "adapter.virtual_tokens", 9, id="virtual tokens"
        ),
    ],
)
def test_each_key_of_an_adapter_sets_its_fact(tmp_path: Path, keys: dict[str, Any], fact: str, value: Any) -> None:
    assert both(tmp_path, adapter=adapted(**keys))[fact] == value


@pytest.mark.parametrize(
    ("training", "adapter", "reason"),
    [
        pytest.param(TRAINING, adapted(peft_type="HRA"), "peft_type HRA", id="a method that is not known"),
        pytest.param(TRAINING, adapted(rank_pattern={"q": 4}), "rank_pattern", id="ranks of single modules"),
        pytest.param(TRAINING.replace("AdamW", "riemannian"), ADAPTER, "riemannian", id="an optimizer"),
        pytest.param(TRAINING.replace("bfloat16", "int4"), ADAPTER, "dtype int4", id="a quantised model"),
        pytest.param(TRAINING.replace("Qwen/Qwen2.5-0.5B", "no/model"), ADAPTER, "model_id no/model", id="a model"),
        pytest.param(
            TRAINING.replace("AdamW", "lora-fa"), adapted(peft_type="IA3"), "lora-fa", id="LoRA-FA without LoRA"
        ),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, training: str, adapter: str, reason: str) -> None:
    spec = both(tmp_path, training, adapter)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_an_adapter_alone_states_no_batch() -> None:
    spec = run(adapted(base_model_name_or_path="Qwen/Qwen2.5-0.5B"), "adapter_config.json")
    assert spec.architecture is None
    assert "batch_size is not stated" in spec.unknown_reason
    assert "micro_batch_size" not in spec


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("micro_batch_size", 1, id="batch"),
        pytest.param("sequence_length", 128, id="length"),
        pytest.param("checkpointing", "full", id="checkpointing, a key that is not there yet"),
        pytest.param("frozen_dtype", "float16", id="dtype"),
        pytest.param("attention", "flash", id="attention"),
    ],
)
def test_a_fix_is_spelled_in_the_scripts_words(tmp_path: Path, fact: str, value: Any) -> None:
    spec = both(tmp_path)
    edits = spell(spec, fact, value)
    assert edits
    text = apply_edits(TRAINING, edits)
    assert json.loads(text)
    assert both(tmp_path, text)[fact] == value


def test_nothing_is_added_to_an_adapters_config(tmp_path: Path) -> None:
    assert spell(both(tmp_path, checked="adapter_config.json"), "checkpointing", "full") == []


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        pytest.param(r".*\.(q_proj|v_proj)$", True, id="names behind anything"),
        pytest.param(r"model\.layers\.\d+\.mlp\.(up|down)_proj", True, id="numbered layers"),
        pytest.param(r"(a+)+$", False, id="a repeated group of repetitions"),
        pytest.param(r"(a|aa)*b", False, id="a repeated group of alternatives"),
        pytest.param(r".*.*.*.*x", False, id="many repetitions in a row"),
        pytest.param(r"(a)\1", False, id="a reference back"),
        pytest.param("q_proj(", False, id="no pattern at all"),
        pytest.param("a" * 500, False, id="too long"),
    ],
)
def test_only_patterns_that_match_quickly_are_matched(pattern: str, bounded: bool, tmp_path: Path) -> None:
    assert is_bounded(pattern) == bounded
    spec = both(tmp_path, adapter=adapted(target_modules=pattern))
    assert ("pattern that cannot be matched" in spec.unknown_reason) == (not bounded)


def test_the_scripts_loop_names_the_outputs_and_empties_the_cache(tmp_path: Path) -> None:
    spec = both(tmp_path)
    assert (spec["outputs_kept"], spec["padding"], spec["empty_cache_steps"]) == (True, True, 10)


@pytest.mark.parametrize(
    ("adapter", "key", "expected"),
    [
        pytest.param(
            {"peft_type": "BOFT", "r": None}, "permutation_on_host", True, id="BOFT after the model is placed"
        ),
        pytest.param({"peft_type": "PSOFT"}, "psoft_svd", "full", id="PSOFT decomposes weights in full by default"),
        pytest.param(
            {"peft_type": "PSOFT", "psoft_svd": "lowrank"}, "psoft_svd", "lowrank", id="or only as far as asked"
        ),
        pytest.param({"peft_type": "PSOFT"}, "ab_svd_init", "psoft_init", id="and keeps the vectors as they are"),
    ],
)
def test_options_of_a_method_that_decide_what_stays_on_the_card(
    tmp_path: Path, adapter: dict[str, Any], key: str, expected: Any
) -> None:
    root = written(tmp_path, {NAME: TRAINING, "adapter_config.json": adapted(**adapter)})
    (spec,) = registry.specs(load(str(root / NAME)))
    assert spec["adapter.options"][key] == expected
