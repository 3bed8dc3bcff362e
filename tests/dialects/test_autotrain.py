"""Family autotrain: AutoTrain's config files, and ``autotrain llm`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.models import record
from tests.dialects.language_models import line_of, run, runs, written

QLORA = """\
task: llm-sft
base_model: HuggingFaceTB/SmolLM2-135M
project_name: ours
log: none
backend: local
data:
  path: our/chats
  train_split: train
  valid_split: null
  chat_template: tokenizer
  column_mapping:
    text_column: messages
params:
  block_size: 512
  model_max_length: 2048
  batch_size: 2
  peft: true
  quantization: int4
  target_modules: all-linear
  lora_r: 8
  optimizer: paged_adamw_8bit
  gradient_accumulation: 8
  mixed_precision: bf16
"""
FULL = """\
task: llm
base_model: HuggingFaceTB/SmolLM2-135M
project_name: ours
log: none
backend: local
data: {path: x, train_split: train, valid_split: null, chat_template: null, column_mapping: {text_column: text}}
params:
  trainer: sft
  batch_size: 1
"""
SCRIPT = """\
autotrain llm --train \\
    --model HuggingFaceTB/SmolLM2-135M \\
    --data-path data \\
    --trainer sft \\
    --peft --quantization int8 --lora-r 4 \\
    --batch-size 4 \\
    --block-size 256 \\
    --mixed-precision fp16
"""


def changed(text: str, old: str, new: str, path: str = "config.yaml") -> TrainingSpec:
    assert old in text
    return run(text.replace(old, new), path)


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yml", QLORA, ["autotrain"], id="a config file"),
        pytest.param("a.yml", FULL, ["autotrain"], id="one that says little"),
        pytest.param("a.sh", SCRIPT, ["autotrain"], id="the program"),
        pytest.param("a.yml", "base_model: x\nmicro_batch_size: 1\ndatasets: []\n", ["axolotl"], id="Axolotl's keys"),
        pytest.param("a.yml", "task: llm\nname: x\n", [], id="a task alone says nothing"),
        pytest.param("a.sh", "autotrain app --port 8080", [], id="its web page trains nothing"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("model", "HuggingFaceTB/SmolLM2-135M", "base_model: HuggingFaceTB/SmolLM2-135M", id="model"),
        pytest.param("method", "sft", "task: llm-sft", id="the task names the trainer"),
        pytest.param("micro_batch_size", 2, "batch_size: 2", id="micro batch"),
        pytest.param("sequence_length", 512, "block_size: 512", id="tokens of a row"),
        pytest.param("gradient_accumulation_steps", 8, "gradient_accumulation: 8", id="accumulation"),
        pytest.param("optimizer", "adamw_8bit", "optimizer: paged_adamw_8bit", id="optimizer"),
        pytest.param("optimizer_library", "bitsandbytes", "optimizer: paged_adamw_8bit", id="its library"),
        pytest.param("optimizer_paged", True, "optimizer: paged_adamw_8bit", id="pages"),
        pytest.param("tuning", "lora", "peft: true", id="LoRA"),
        pytest.param("lora.r", 8, "lora_r: 8", id="its rank"),
        pytest.param("lora.targets", "all-linear", "target_modules: all-linear", id="what it adapts"),
        pytest.param("quantization.bits", 4, "quantization: int4", id="bits"),
        pytest.param("quantization.prepared", True, "quantization: int4", id="norms are widened"),
        pytest.param("compute_dtype", "bfloat16", "mixed_precision: bf16", id="autocast"),
        pytest.param("autocast", True, "mixed_precision: bf16", id="it is autocast"),
        pytest.param("quantization.kind", "nf4", "quantization: int4", id="NF4"),
        pytest.param("frozen_dtype", "float16", None, id="float16 beside codes"),
        pytest.param("lora.dtype", "float32", None, id="adapters in float32"),
        pytest.param("checkpointing", "full", None, id="recomputed unless told otherwise"),
        pytest.param("checkpointing_reentrant", True, None, id="the older way beside codes"),
        pytest.param("packing", True, None, id="rows are filled"),
        pytest.param("loss", "full", None, id="whole logits"),
    ],
)
def test_a_config_file(fact: str, value: Any, line: str | None) -> None:
    spec = run(QLORA)
    assert spec.architecture == "language_model"
    assert spec[fact] == value
    if line is not None:
        assert line_of(spec, fact) == line


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("sequence_length", 1024, id="rows of 1024 tokens"),
        pytest.param("gradient_accumulation_steps", 4, id="four micro batches"),
        pytest.param("optimizer", "adamw", id="AdamW"),
        pytest.param("parameter_dtype", "float32", id="transformers 4 loads float32"),
        pytest.param("compute_dtype", "float32", id="and computes in it"),
        pytest.param("checkpointing_reentrant", False, id="the newer way"),
        pytest.param("quantization.bits", None, id="no codes without an adapter, although int4 is the default"),
        pytest.param("tuning", None, id="everything trains"),
        pytest.param("attention", None, id="attention is transformers' own choice"),
        pytest.param("evaluation_batch_size", None, id="no evaluation"),
    ],
)
def test_what_is_not_stated(fact: str, value: Any) -> None:
    assert run(FULL).get(fact) == value


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("block_size: 512", "block_size: 4096", "sequence_length", 2048, id="cut to the tokenizer's limit"),
        pytest.param("block_size: 512", "block_size: -1", "sequence_length", 1024, id="-1 is 1024"),
        pytest.param("  block_size: 512\n  model_max_length: 2048", "  model_max_length: 300", "sequence_length", 300,
                     id="or the limit, where that is less"),
        pytest.param("int4", "int8", "quantization.kind", "int8", id="int8"),
        pytest.param("int4", "none", "quantization.bits", None, id="an adapter without codes"),
        pytest.param("int4", "null", "frozen_dtype", "float32", id="then the model is in float32"),
        pytest.param("peft: true", "peft: true\n  disable_gradient_checkpointing: true", "checkpointing", "none",
                     id="nothing recomputed"),
        pytest.param("peft: true", "peft: true\n  use_flash_attention_2: true", "attention", "flash", id="flash"),
        pytest.param("llm-sft", "llm-dpo", "sequences_per_sample", 2, id="DPO's two answers"),
        pytest.param("llm-sft", "llm-dpo", "reference_model", "adapter_off", id="the reference is the model itself"),
        pytest.param("llm-sft", "llm-orpo", "reference_model", None, id="ORPO has none"),
        pytest.param("llm-sft", "llm-sft", "lora.dropout", 0.05, id="dropout of adapters"),
        pytest.param("llm-sft", "llm-dpo", "lora.dropout", 0.0, id="DPO switches dropout off"),
        pytest.param("llm-sft", "llm-orpo", "lora.dropout", 0.0, id="so does ORPO"),
        pytest.param("llm-sft", "llm-reward", "lora.dropout", 0.05, id="a reward model keeps it"),
        pytest.param("llm-sft", "llm-dpo", "packing", False, id="pairs are padded"),
        pytest.param("llm-sft", "llm-reward", "model_class", "sequence_classification", id="a reward model"),
        pytest.param("llm-sft", "llm-generic", "method", "default", id="the Trainer"),
        pytest.param("valid_split: null", "valid_split: test", "evaluation_batch_size", 2, id="evaluation"),
        pytest.param("peft: true", "peft: true\n  distributed_backend: deepspeed", "parallelism.zero_stage", 3,
                     id="ZeRO"),
    ],
)  # fmt: skip
def test_changes(old: str, new: str, fact: str, value: Any) -> None:
    assert changed(QLORA, old, new).get(fact) == value


def test_dpo_without_an_adapter_has_a_copy() -> None:
    assert changed(FULL, "trainer: sft", "trainer: dpo")["reference_model"] == "copy"


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("model", "HuggingFaceTB/SmolLM2-135M", id="model"),
        pytest.param("micro_batch_size", 4, id="micro batch"),
        pytest.param("sequence_length", 256, id="tokens of a row"),
        pytest.param("quantization.bits", 8, id="bits"),
        pytest.param("lora.r", 4, id="rank"),
        pytest.param("compute_dtype", "float16", id="autocast"),
        pytest.param("method", "sft", id="trainer"),
        pytest.param("gradient_accumulation_steps", 4, id="a default"),
    ],
)
def test_the_command_line(fact: str, value: Any) -> None:
    spec = run(SCRIPT, "go.sh")
    assert spec.architecture == "language_model"
    assert spec[fact] == value


def test_a_script_that_names_a_config_file_is_its_run(tmp_path: Path) -> None:
    root = written(tmp_path, {"go.sh": "autotrain --config ours.yml\n", "ours.yml": QLORA})
    (spec,) = registry.specs(load(str(root / "go.sh")))
    assert (spec.family, spec["sequence_length"], spec["lora.r"]) == ("autotrain", 512, 8)
    place = spec.facts["lora.r"].span
    assert place is not None
    assert place.path == str(root / "ours.yml")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param(
            "base_model: HuggingFaceTB/SmolLM2-135M", "base_model: our/own", "base_model our/own", id="a model"
        ),
        pytest.param("llm-sft", "text_classification", "task text_classification", id="another task"),
        pytest.param("llm-sft", "llm-grpo", "trainer grpo", id="generation"),
        pytest.param("peft: true", "peft: true\n  unsloth: true", "unsloth", id="Unsloth"),
        pytest.param(
            "peft: true",
            "peft: true\n  distributed_backend: deepspeed",
            "the number of devices that share the model is not stated",
            id="devices that share states",
        ),
    ],
)
def test_what_is_not_known_is_named(old: str, new: str, reason: str) -> None:
    spec = changed(QLORA, old, new)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 1, "  batch_size: 1", id="a smaller batch"),
        pytest.param("sequence_length", 256, "  block_size: 256", id="shorter rows"),
        pytest.param("checkpointing", "none", "  disable_gradient_checkpointing: true", id="nothing recomputed"),
        pytest.param("attention", "flash", "  use_flash_attention_2: true", id="FlashAttention"),
        pytest.param("compute_dtype", "float16", "  mixed_precision: fp16", id="the other half"),
    ],
)
def test_fixes_are_written_in_its_own_words(fact: str, value: Any, line: str) -> None:
    spec = run(QLORA)
    after = apply_edits(QLORA, spell(spec, fact, value) or [])
    assert line in after.splitlines()
    assert run(after)[fact] == value


def test_wrong_values_are_found_where_they_stand() -> None:
    spec = changed(QLORA, "mixed_precision: bf16", "mixed_precision: bf17")
    assert [(one.kind, one.node.key_path) for one in objections.violations(spec)] == [
        ("unknown-value", "params.mixed_precision")
    ]


def test_its_own_keys_are_no_misspelt_ones() -> None:
    assert objections.violations(run(QLORA)) == []


def test_defaults_say_whose_they_are() -> None:
    fact = run(FULL).facts["gradient_accumulation_steps"]
    assert (fact.origin, fact.reason) == (DEFAULT, "AutoTrain Advanced 0.8: LLMTrainingParams")


def test_the_model_is_built() -> None:
    """LoRA of rank 8 beside every linear layer but the head: r (inputs + outputs) each."""
    width, kept, inner, layers = 576, 192, 1536, 30
    pairs = [
        (width, width),
        (width, kept),
        (width, kept),
        (width, width),
        (width, inner),
        (width, inner),
        (inner, width),
    ]
    recording = record(run(QLORA))
    assert recording.trainable_parameters == layers * 8 * sum(a + b for a, b in pairs)
