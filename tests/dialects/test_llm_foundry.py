"""Family llm-foundry: MPT described in the file, or a model of the hub, sharded by Composer's FSDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.architectures.llm_foundry import decoder
from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written

HYPER = "hyperparameters."

MPT = """\
variables:
  length: &length 2048
max_seq_len: ${variables.length}

model:
  name: mpt_causal_lm
  d_model: 1024
  n_heads: 16
  n_layers: 12
  max_seq_len: *length
  vocab_size: 50368
  attn_config:
    attn_impl: flash

tokenizer:
  name: EleutherAI/gpt-neox-20b

train_loader: &loader
  name: text
  dataset:
    max_seq_len: *length
  num_workers: 8

eval_loader:
  <<: *loader

optimizer:
  name: decoupled_adamw
  lr: 6.0e-4

max_duration: 100ba
eval_interval: 10ba
global_train_batch_size: 256
device_eval_batch_size: 4
device_train_microbatch_size: 8
precision: amp_bf16

fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
  activation_checkpointing_reentrant: false
"""

HUB = """\
max_seq_len: 1024
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
  use_flash_attention_2: true
train_loader:
  name: finetuning
  dataset: {packing_ratio: auto}
optimizer: {name: decoupled_lionw, lr: 1.0e-5}
max_duration: 1ep
device_train_batch_size: 8
device_train_microbatch_size: 2
device_eval_batch_size: 2
"""


def launched(folder: Path, config: str, command: str) -> TrainingSpec:
    """The run of a command that names the config ``train.yaml``."""
    root = written(folder, {"train.yaml": config, "run.sh": command + "\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    return spec


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param(MPT, True, id="a whole file"),
        pytest.param("{max_duration: 1ep, train_loader: {}, max_seq_len: 8}", True, id="data, duration and length"),
        pytest.param("{max_duration: 1ep, device_train_microbatch_size: 1}", False, id="OLMo has such keys too"),
        pytest.param("{train_loader: {batch_size: 1}, optimizer: {}}", False, id="data alone says nothing"),
    ],
)
def test_recognition(text: str, known: bool) -> None:
    assert ("llm-foundry" in [spec.family for spec in runs(text + "\n", "a.yaml")]) == known


def test_a_model_that_the_file_describes(tmp_path: Path) -> None:
    spec = launched(tmp_path, MPT, "composer --nproc 8 train.py train.yaml")
    expected = {
        "implementation": "llm_foundry",
        "pretrained": False,
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 4,  # 256 samples over 8 devices, 8 at a time
        "sequence_length": 2048,
        "packing": True,
        "vocabulary_size": 50368,
        "parameter_dtype": "float32",
        "compute_dtype": "bfloat16",
        "autocast": True,
        "optimizer": "adamw",
        "optimizer_implementation": "loop",
        "attention": "flash",
        "fused_kernels": ["cross_entropy"],
        "checkpointing": "full",
        "checkpointing_reentrant": False,
        "device_count": 8,
        "parallelism.strategy": "fsdp1",
        "parallelism.reduce_dtype": "bfloat16",
        "parallelism.reshard_after_forward": True,
        "parallelism.backward_prefetch": "BACKWARD_POST",
        "saves_full_weights": True,
        "evaluation_batch_size": 4,
        "evaluation_sequence_length": 2048,
        "allocator_conf": "expandable_segments:True",
        "workers": 8,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert spec["decoder"] == decoder(
        {"d_model": 1024, "n_heads": 16, "n_layers": 12, "max_seq_len": 2048, "vocab_size": 50368}
    )
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert spec.model_name == "MPT, 12 layers of 1024"
    assert line_of(spec, "micro_batch_size") == "device_train_microbatch_size: 8"
    assert line_of(spec, "parallelism.strategy") == "fsdp_config:"


def test_a_model_of_the_hub() -> None:
    spec = run(HUB, "train.yaml")
    expected = {
        "model": "meta-llama/Llama-3.1-8B",
        "pretrained": True,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "attention": "flash",
        "optimizer": "lion",
        "packing": True,
        "parameter_dtype": "float32",
        "checkpointing": "none",
        "vocabulary_size": 128256,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert spec[HYPER + "config"]["model_type"] == "llama"
    assert "evaluation_batch_size" not in spec  # there is no eval_loader
    assert HYPER + "d_model" not in spec
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("precision: amp_bf16", "precision: amp_fp16", "loss_scaling", "dynamic", id="float16 is scaled"),
        pytest.param("precision: amp_bf16", "precision: fp32", "autocast", False, id="full precision"),
        pytest.param("PURE", "DEFAULT", "parallelism.reduce_dtype", "float32", id="gradients reduced in fp32"),
        pytest.param("FULL_SHARD", "SHARD_GRAD_OP", "parallelism.reshard_after_forward", False, id="weights stay"),
        pytest.param("FULL_SHARD", "NO_SHARD", "parallelism.strategy", "ddp", id="nothing sharded"),
        pytest.param("_checkpointing: true", "_checkpointing: false", "checkpointing", "none", id="nothing recomputed"),
        pytest.param("_reentrant: false", "_reentrant: true", "checkpointing_reentrant", True, id="reentrant"),
        pytest.param("attn_impl: flash", "attn_impl: torch", "attention", "eager", id="torch's attention"),
        pytest.param("name: decoupled_adamw", "name: adamw", "optimizer_implementation", "foreach", id="torch's AdamW"),
        pytest.param("name: text", "name: finetuning", "packing", True, id="samples are padded to the limit"),
        pytest.param("eval_interval: 10ba", "eval_interval: 0", "evaluation_batch_size", None, id="no evaluation"),
        pytest.param(
            "precision: amp_bf16",
            "precision: amp_bf16\nmax_split_size_mb: 512\nexpandable_segments: false",
            "allocator_conf",
            "max_split_size_mb:512",
            id="the allocator",
        ),
        pytest.param(
            "  n_layers: 12", "  n_layers: 12\n  loss_fn: torch_crossentropy", "fused_kernels", None, id="loss"
        ),
    ],
)
def test_keys(tmp_path: Path, old: str, new: str, fact: str, value: Any) -> None:
    assert old in MPT
    spec = launched(tmp_path, MPT.replace(old, new), "composer -n 8 train.py train.yaml")
    assert spec.get(fact) == value


def test_padding_that_is_trimmed() -> None:
    text = HUB.replace("{packing_ratio: auto}", "{allow_pad_trimming: true}")
    assert run(text, "a.yaml")["packing"] is False


def test_an_adapter() -> None:
    lines = "  peft_config:\n    peft_type: LORA\n    r: 16\n    target_modules: [q_proj]\n"
    spec = run(HUB.replace("  use_flash", lines + "  use_flash"), "a.yaml")
    assert (spec["tuning"], spec["lora.r"], spec["lora.targets"]) == ("lora", 16, ["q_proj"])
    assert spec.architecture == "language_model"


def test_entries_of_the_hub_s_config_that_are_changed() -> None:
    lines = "  config_overrides: {num_hidden_layers: 4, rope_scaling: {factor: 2.0}}\n"
    config = run(HUB.replace("  use_flash", lines + "  use_flash"), "a.yaml")[HYPER + "config"]
    assert config["num_hidden_layers"] == 4
    assert config["rope_scaling"]["factor"] == 2.0
    assert config["hidden_size"] == 4096


def test_one_device_does_without_fsdp(tmp_path: Path) -> None:
    spec = launched(tmp_path, MPT, "composer -n 1 train.py train.yaml")
    assert spec["parallelism.strategy"] == "none"
    assert spec["gradient_accumulation_steps"] == 32
    assert spec["checkpointing"] == "none"  # FSDP's wrapper is what recomputes
    assert "parallelism.backward_prefetch" not in spec


def test_several_devices_without_fsdp_exchange_gradients(tmp_path: Path) -> None:
    spec = launched(tmp_path, HUB, "composer -n 4 train.py train.yaml")
    assert (spec["parallelism.strategy"], spec["parallelism.bucket_mb"]) == ("ddp", 25)


@pytest.mark.parametrize(
    ("command", "count"),
    [
        pytest.param("composer -n 2 train.py train.yaml", 2, id="processes of this machine"),
        pytest.param("composer -n 8 --world_size 16 train.py train.yaml", 16, id="processes of all machines"),
        pytest.param("CUDA_VISIBLE_DEVICES=0,1,2 composer train.py train.yaml", 3, id="the devices that are left"),
        pytest.param("composer train.py train.yaml", None, id="all devices that there are"),
        pytest.param("torchrun --nproc_per_node 4 train.py train.yaml", 4, id="torch's launcher"),
    ],
)
def test_launchers(tmp_path: Path, command: str, count: int | None) -> None:
    assert launched(tmp_path, HUB, command).get("device_count") == count


def test_words_of_the_command_change_the_file(tmp_path: Path) -> None:
    spec = launched(tmp_path, MPT, "composer -n 8 train.py train.yaml device_train_microbatch_size=2 model.n_layers=6")
    assert spec["micro_batch_size"] == 2
    assert spec["decoder"].layers == 6


def test_what_the_file_takes_from_a_changed_key_changes_with_it(tmp_path: Path) -> None:
    text = "ours: {length: 512}\n" + HUB.replace("max_seq_len: 1024", "max_seq_len: ${ours.length}")
    assert launched(tmp_path, text, "composer -n 8 train.py train.yaml")["sequence_length"] == 512
    spec = launched(tmp_path, text, "composer -n 8 train.py train.yaml ours.length=256")
    assert spec["sequence_length"] == 256


def test_a_batch_that_is_searched_for_starts_at_the_batch_of_a_device(tmp_path: Path) -> None:
    text = MPT.replace("microbatch_size: 8", "microbatch_size: auto")
    spec = launched(tmp_path, text, "composer -n 8 train.py train.yaml")
    assert (spec["micro_batch_size"], spec["auto_batch_size"]) == (32, True)
    assert spec.architecture == "language_model"
    alone = run(text, "a.yaml")
    assert alone.architecture is None
    assert "device_train_microbatch_size is auto" in alone.unknown_reason
    assert "no launcher says how many devices there are" in alone.unknown_reason


def test_a_micro_batch_above_the_batch_of_a_device_is_cut(tmp_path: Path) -> None:
    text = MPT.replace("microbatch_size: 8", "microbatch_size: 64")
    spec = launched(tmp_path, text, "composer -n 8 train.py train.yaml")
    assert (spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == (32, 1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param("max_seq_len: ${variables.length}", "", "max_seq_len is not stated", id="no length"),
        pytest.param("name: decoupled_adamw", "", "optimizer.name is not stated", id="no optimizer"),
        pytest.param("name: mpt_causal_lm", "name: hf_t5", "model.name hf_t5 is not known", id="another model"),
        pytest.param("name: mpt_causal_lm", "", "model.name is not stated", id="no model"),
        pytest.param("attn_impl: flash", "attn_impl: triton", "attn_impl triton is not known", id="triton"),
        pytest.param("precision: amp_bf16", "precision: amp_fp8", "precision amp_fp8 is not known", id="float8"),
        pytest.param("microbatch_size: 8", "microbatch_size: 0.5", "0.5 is no number of samples", id="half a sample"),
        pytest.param("microbatch_size: 8", "microbatch_size: many", "many is no number of samples", id="a word"),
        pytest.param("_batch_size: 256", "_batch_size: 100", "100 is no multiple of 8 devices", id="uneven batches"),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in MPT
    spec = launched(tmp_path, MPT.replace(old, new), "composer -n 8 train.py train.yaml")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_file_alone_wants_the_number_of_devices() -> None:
    spec = run(MPT, "a.yaml")
    assert (spec.architecture, spec.architecture_on_devices) == (None, "language_model")
    assert "the number of devices that share the model is not stated; say --gpu" in spec.unknown_reason


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param("n_layers: 12", "n_layers: a dozen", "wrong-type", "model.n_layers", id="no number"),
        pytest.param("amp_bf16", "amp_bf61", "unknown-value", "precision", id="a misspelt precision"),
        pytest.param("FULL_SHARD", "FULL_SHRAD", "unknown-value", "fsdp_config.sharding_strategy", id="a strategy"),
        pytest.param(
            "activation_checkpointing: true",
            "activation_checkpoiting: true",
            "unknown-key",
            "fsdp_config.activation_checkpoiting",
            id="a misspelt key",
        ),
    ],
)
def test_wrong_values_are_found_where_they_stand(old: str, new: str, kind: str, key: str) -> None:
    spec = run(MPT.replace(old, new), "a.yaml")
    assert [(one.kind, one.node.key_path) for one in objections.violations(spec)] == [(kind, key)]


def test_defaults_say_whose_they_are() -> None:
    spec = run(HUB, "a.yaml")
    assert (spec.facts["pretrained"].origin, spec.facts["pretrained"].reason) == (DEFAULT, "llm-foundry 0.22")
    assert "llm-foundry 0.22" in spec.facts["allocator_conf"].reason


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        pytest.param("micro_batch_size", 4, "device_train_microbatch_size: 4", id="a smaller micro batch"),
        pytest.param("evaluation_batch_size", 1, "device_eval_batch_size: 1", id="a smaller evaluation"),
        pytest.param("checkpointing", "none", "activation_checkpointing: false", id="no recomputation"),
        pytest.param("checkpointing_reentrant", True, "activation_checkpointing_reentrant: true", id="reentrant"),
        pytest.param("compute_dtype", "float16", "precision: amp_fp16", id="another precision"),
        pytest.param("optimizer", "lion", "name: decoupled_lionw", id="another optimizer"),
        pytest.param("activation_offloading", True, "activation_cpu_offload: true", id="activations to the host"),
        pytest.param("workers", 2, "num_workers: 2", id="loader processes"),
    ],
)
def test_fixes(tmp_path: Path, fact: str, value: Any, text: str) -> None:
    before = launched(tmp_path, MPT, "composer -n 8 train.py train.yaml")
    after = apply_edits(MPT, spell(before, fact, value))
    assert text in after
    assert launched(tmp_path, after, "composer -n 8 train.py train.yaml")[fact] == value


def test_flash_attention_of_either_kind_of_model() -> None:
    mpt = run(MPT.replace("attn_impl: flash", "attn_impl: torch"), "a.yaml")
    assert "attn_impl: flash" in apply_edits(mpt.document.text, spell(mpt, "attention", "flash"))
    hub = run(HUB.replace("2: true", "2: false"), "a.yaml")
    assert "use_flash_attention_2: true" in apply_edits(hub.document.text, spell(hub, "attention", "flash"))


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("gradient_accumulation_steps", 2, id="steps follow from the batch of all devices"),
        pytest.param("optimizer_implementation", "fused", id="an optimizer that decays weights differently"),
        pytest.param("parameter_dtype", "bfloat16", id="weights are always made in fp32"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(MPT, "a.yaml"), fact, value) == []


ENCODER = """\
max_seq_len: 128
model:
  name: hf_bert
  pretrained_model_name: google-bert/bert-base-uncased
  model_config:
    num_hidden_layers: 6
train_loader:
  name: text
optimizer:
  name: decoupled_adamw
max_duration: 100ba
global_train_batch_size: 64
device_train_microbatch_size: 32
precision: amp_bf16
"""


@pytest.mark.parametrize(
    ("text", "task", "layers"),
    [
        pytest.param(ENCODER, "masked_lm", 6, id="pretraining, with settings of its own"),
        pytest.param(
            ENCODER.replace("  model_config:\n    num_hidden_layers: 6", "  num_labels: 3"),
            "sequence_classification",
            12,
            id="classification, as the weights are",
        ),
    ],
)
def test_composer_s_bert_is_transformers_own(text: str, task: str, layers: int) -> None:
    found = run(text)
    assert not found.unknown_reason
    assert found.get("model_class") == task
    assert found[HYPER + "config"]["num_hidden_layers"] == layers


def test_a_model_of_a_repository_s_own_is_said_to_be_one() -> None:
    """AnswerDotAI/ModernBERT at 8c57a0f: yamls/main/flex-bert-base.yaml."""
    found = run(ENCODER.replace("hf_bert", "flex_bert"))
    assert "flex_bert" in found.unknown_reason
    assert "own code" in found.unknown_reason
