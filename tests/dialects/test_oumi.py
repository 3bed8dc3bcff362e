"""Family oumi: its files and command lines, by the code of its ``TrainingConfig``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from tests.dialects.language_models import line_of, run, written
from tests.differential.test_multimodal import GEMMA, QWEN2, QWEN3, QWEN35

TABLES = """\
model:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  model_max_length: 4096
  torch_dtype_str: bfloat16
{model}
data:
  train:
    datasets: [{{dataset_name: ours}}]
training:
  trainer_type: {trainer}
  per_device_train_batch_size: 2
{training}
{more}
"""


def config(training: str = "", more: str = "", model: str = "", trainer: str = "TRL_SFT") -> TrainingSpec:
    return run(TABLES.format(training=training, more=more, model=model, trainer=trainer), "train.yaml")


def test_what_is_not_written_is_as_oumi_has_it() -> None:
    spec = config()
    assert spec.architecture == "language_model", spec.unknown_reason
    assert (spec.family, spec["method"], spec.get("tuning", "full")) == ("oumi", "sft", "full")
    assert (spec["parameter_dtype"], spec["compute_dtype"], spec["autocast"]) == ("bfloat16", "bfloat16", False)
    assert (spec["optimizer"], spec["optimizer_implementation"], spec["checkpointing"]) == ("adamw", "foreach", "none")
    assert (spec["loss"], spec["sequence_length"], spec["sequence_bound"]) == ("full", 4096, True)
    assert line_of(spec, "method") == "trainer_type: TRL_SFT"


@pytest.mark.parametrize(
    ("tables", "facts"),
    [
        pytest.param(
            {"training": "  use_peft: true", "more": "peft: {lora_target_modules: [q_proj, v_proj]}"},
            {"tuning": "lora", "lora.r": 8, "lora.alpha": 8, "lora.dropout": 0.0, "lora.targets": ["q_proj", "v_proj"]},
            id="adapters",
        ),
        pytest.param(
            {"training": "  use_peft: true", "more": "peft: {q_lora: true, bnb_4bit_quant_type: nf4}"},
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.prepared": True},
            id="on 4 bits",
        ),
        pytest.param({"trainer": "TRL_DPO"}, {"method": "dpo", "reference_model": "copy"}, id="DPO by its trainer"),
        pytest.param({"model": "  enable_liger_kernel: true"}, {"loss": "fused"}, id="Liger's loss"),
        pytest.param({"training": "  mixed_precision_dtype: BF16"}, {"autocast": True}, id="autocast"),
        pytest.param(
            {
                "training": "  enable_gradient_checkpointing: true",
                "more": "fsdp: {enable_fsdp: true, auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
                "transformer_layer_cls: transformers.models.llama.LlamaDecoderLayer}",
            },
            {
                "parallelism.strategy": "fsdp1",
                "checkpointing": "full",
                "parallelism.wrap": ["LlamaDecoderLayer"],
                "parameter_dtype": "bfloat16",
            },
            id="FSDP, where accelerate recomputes",
        ),
        pytest.param(
            {"more": "fsdp: {enable_fsdp: true, sharding_strategy: SHARD_GRAD_OP, cpu_offload: true}"},
            {
                "parallelism.reshard_after_forward": False,
                "parallelism.cpu_offload": True,
                "parallelism.wrap": "none",
            },
            id="FSDP of the whole model as one",
        ),
    ],
)
def test_tables(tables: dict[str, str], facts: dict[str, Any]) -> None:
    spec = config(**tables)
    assert spec.architecture or spec.architecture_on_devices, spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_the_step_is_that_of_trl_with_the_same_settings(tmp_path: Path) -> None:
    """Oumi is TRL inside, of the release that it asks for: TRL's own keys make the same tape, to the byte."""
    keys = """
    model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
    dtype: bfloat16
    bf16: false
    fp16: false
    attn_implementation: sdpa
    optim: adamw_torch
    gradient_checkpointing: false
    per_device_train_batch_size: 2
    max_length: 4096
    """
    pins = "trl==1.4.0\ntransformers==5.9.0\ntorch==2.12.0\n"
    root = written(
        tmp_path,
        {
            "sft.yaml": keys,
            "requirements.txt": pins,
            "oumi/train.yaml": TABLES.format(training="", more="", model="", trainer="TRL_SFT"),
        },
    )
    theirs, ours = (
        [spec] for name in ("sft.yaml", "oumi/train.yaml") for spec in registry.specs(load(str(root / name)))
    )
    found = [estimate_spec(spec) for spec in (*theirs, *ours)]
    assert [spec.family for spec in (*theirs, *ours)] == ["trl", "oumi"]
    assert found[0].allocated_bytes == found[1].allocated_bytes
    assert found[0].parameters == found[1].parameters == 8_030_261_248


def test_a_command_names_its_file_and_changes_it(tmp_path: Path) -> None:
    text = TABLES.format(training="", more="", model="", trainer="TRL_SFT")
    command = "oumi train -c train.yaml --training.per_device_train_batch_size 4\n"
    root = written(tmp_path, {"run.sh": command, "train.yaml": text})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.family, spec["micro_batch_size"], spec["sequence_length"]) == ("oumi", 4, 4096)


def test_a_job_names_a_recipe_from_the_root_of_oumis_repository(tmp_path: Path) -> None:
    job = "resources:\n  cloud: gcp\nrun: |\n  oumi distributed torchrun -m oumi train -c oumi://configs/train.yaml\n"
    text = TABLES.format(training="", more="", model="", trainer="TRL_SFT")
    root = written(tmp_path, {"configs/job.yaml": job, "configs/train.yaml": text, ".git/HEAD": ""})
    (spec,) = registry.specs(load(str(root / "configs/job.yaml")))
    assert (spec.family, spec["sequence_length"]) == ("oumi", 4096)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        pytest.param({"trainer": "OUMI"}, "Oumi's own loop", id="its own loop"),
        pytest.param({"trainer": "VERL_GRPO"}, "verl's loop", id="verl"),
        pytest.param({"trainer": "TRL_GOLD"}, "its teacher", id="a teacher"),
        pytest.param({"trainer": "null"}, "its Trainer's loss", id="no trainer"),
        pytest.param({"model": "  freeze_layers: [lm_head]"}, "which weights train", id="some weights"),
        pytest.param({"more": "deepspeed: {enable_deepspeed: true}"}, "DeepSpeed's config", id="DeepSpeed"),
        pytest.param({"more": "fsdp: {enable_fsdp: true}"}, "--gpu 'NAME xN'", id="how many devices"),
    ],
)
def test_a_reason_names_what_is_not_known(tables: dict[str, str], reason: str) -> None:
    spec = config(**tables)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize("config", [QWEN2, QWEN3, QWEN35, GEMMA], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("outer", ["", "model."], ids=["by itself", "within the model"])
def test_modules_that_are_frozen_by_name_are_those_that_transformers_has(
    tmp_path: Path, config: dict[str, Any], outer: str
) -> None:
    """What :func:`getattr` finds by the names is frozen, and a name that it does not find is passed over."""
    names = ["vision_tower", "multi_modal_projector"] if config["model_type"] == "gemma3" else ["visual"]
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config))
    for name in names:
        module = getattr(model.model if outer else model, name, None)
        if module is not None:
            module.requires_grad_(False)
    listed = ", ".join(outer + name for name in names)
    text = TABLES.format(training="", more="", model=f"  freeze_layers: [{listed}]", trainer="TRL_SFT")
    text = text.replace("meta-llama/Llama-3.1-8B-Instruct", "./model").replace("4096", "256")
    root = written(tmp_path, {"train.yaml": text, "model/config.json": json.dumps(config), ".git/HEAD": ""})
    (spec,) = registry.specs(load(str(root / "train.yaml")))
    assert spec.architecture == "language_model", spec.unknown_reason
    trained = sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)
    assert estimate_spec(spec).trainable_parameters == trained


def test_what_is_frozen_below_adapters_is_frozen_anyway() -> None:
    seeing = TABLES.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2-VL-2B-Instruct")
    keys = {"training": "  use_peft: true", "more": "peft: {lora_target_modules: [q_proj]}", "trainer": "TRL_SFT"}
    frozen, plain = (
        run(seeing.format(model=model, **keys), "train.yaml") for model in ("  freeze_layers: [model.visual]", "")
    )
    assert (frozen.architecture, frozen.get("frozen_parts")) == ("language_model", None)
    assert {name: fact.value for name, fact in frozen.facts.items()} == {
        name: fact.value for name, fact in plain.facts.items()
    }


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("f32", "float32"), ("float", "float32"), ("BF16", "bfloat16"), ("half", "float16"), ("F16", "float16")],
)
def test_a_dtype_goes_by_any_name_that_oumi_takes(word: str, dtype: str) -> None:
    """src/oumi/utils/torch_utils.py: get_torch_dtype, whatever the case."""
    text = TABLES.replace("torch_dtype_str: bfloat16", f"torch_dtype_str: {word}")
    spec = run(text.format(training="", more="", model="", trainer="TRL_SFT"), "train.yaml")
    assert spec["parameter_dtype"] == dtype
