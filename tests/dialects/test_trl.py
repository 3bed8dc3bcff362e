"""Family trl: recipes and command lines of TRL's trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint import check
from memlint.dialects import registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, DEFAULT
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written

SFT = """\
model_name_or_path: Qwen/Qwen2.5-7B
dataset_name: somebody/conversations
learning_rate: 2.0e-5
"""
HYPER = "hyperparameters."
LORA = "use_peft: true\nlora_r: 32\nlora_target_modules: all-linear\n"


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", SFT, ["trl"], id="a short recipe"),
        pytest.param(
            "a.yaml", "per_device_train_batch_size: 1\nmax_length: 8", ["trl"], id="a key of TRL beside the batch"
        ),
        pytest.param("a.yaml", "per_device_train_batch_size: 1\nbeta: 0.1", ["trl"], id="a preference trainer's key"),
        pytest.param(
            "a.yaml", "per_device_train_batch_size: 1\nlearning_rate: 1", ["hf-trainer"], id="the Trainer's keys alone"
        ),
        pytest.param(
            "a.yaml", "dataset_name: x\nlearning_rate: 1", [], id="a data set and a learning rate say nothing"
        ),
        pytest.param(
            "a.yaml",
            "model_name_or_path: x\nstage: dpo\nfinetuning_type: lora\nper_device_train_batch_size: 1\nbeta: 1",
            ["llamafactory"],
            id="LLaMA-Factory has keys of that name too",
        ),
        pytest.param("a.sh", "trl sft --model_name_or_path gpt2", ["trl"], id="the program"),
        pytest.param("a.sh", "python -m trl.scripts.dpo --model_name_or_path gpt2", ["trl"], id="its module"),
        pytest.param(
            "a.sh", "accelerate launch trl/scripts/sft.py --model_name_or_path gpt2", ["trl"], id="its script"
        ),
        pytest.param("a.sh", "trl vllm-serve --model gpt2", [], id="its server trains nothing"),
        pytest.param(
            "a.sh", "python x.py --per_device_train_batch_size 2 --max_length 8 --packing", ["trl"], id="options alone"
        ),
        pytest.param(
            "a.sh",
            "swift rlhf --per_device_train_batch_size 2 --max_length 8",
            ["ms-swift"],
            id="another family's program",
        ),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text + "\n", path)] == families


def test_what_is_not_written_is_trl_s_default() -> None:
    spec = run(SFT)
    expected = {
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "sequence_length": 1024,
        "checkpointing": "full",
        "compute_dtype": "bfloat16",
        "autocast": True,
        "parameter_dtype": "float32",
        "loss": "chunked",
        "loss_tile": (4096, 32768),
        "packing": False,
        "padding_free": False,
        "optimizer": "adamw",
        "optimizer_implementation": "fused",
        "reference_model": "none",
        "checkpointing_reentrant": False,
    }
    assert {name: spec[name] for name in expected} == expected
    assert {spec.facts[name].origin for name in expected} == {DEFAULT}
    for name in ("sequence_length", "checkpointing", "parameter_dtype", "loss"):
        assert spec.facts[name].reason.startswith("TRL 1.16")
    assert (spec["method"], spec.facts["method"].origin) == ("sft", ASSUMED)
    assert (spec.architecture, spec.missing) == ("language_model", ())


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        ("max_length: 4096", "sequence_length", 4096),
        ("max_seq_length: 512", "sequence_length", 512),
        ("packing: true", "packing", True),
        ("packing: true", "padding_free", True),
        ("padding_free: true", "padding_free", True),
        ("gradient_checkpointing: false", "checkpointing", "none"),
        ("bf16: false", "autocast", None),
        ("fp16: true", "compute_dtype", "float16"),
        ("torch_dtype: bfloat16", "parameter_dtype", "bfloat16"),
        ("dtype: float16", "parameter_dtype", "float16"),
        ("attn_implementation: flash_attention_2", "attention", "flash"),
        ("activation_offloading: true", "activation_offloading", True),
        ("use_liger_kernel: true", "fused_kernels", ["rotary", "rms_norm", "swiglu"]),
        ("label_smoothing_factor: 0.1", "loss", "full"),
        ("optim: adamw_bnb_8bit", "optimizer", "adamw_8bit"),
        ("per_device_train_batch_size: 2", "micro_batch_size", 2),
    ],
    ids=lambda value: str(value),
)
def test_a_key_sets_its_fact_and_the_fact_points_at_it(lines: str, fact: str, value: Any) -> None:
    spec = run(SFT + lines + "\n")
    if value is None:
        assert spec[fact] is False
        return
    assert spec[fact] == value
    assert line_of(spec, fact) == lines


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("torch_dtype: null", {"parameter_dtype": "bfloat16"}, id="null is the checkpoint's dtype"),
        pytest.param(
            "model_init_kwargs: {dtype: float16, attn_implementation: eager}",
            {"parameter_dtype": "float16", "attention": "eager"},
            id="arguments of from_pretrained",
        ),
        pytest.param(
            "packing: true\npacking_strategy: wrapped", {"padding_free": False}, id="wrapped rows are not concatenated"
        ),
        pytest.param(
            LORA,
            {
                "tuning": "lora",
                "lora.r": 32,
                "lora.targets": "all-linear",
                "lora.dtype": "float32",
                "frozen_dtype": "float32",
                "lora.dropout": 0.05,
                "lora.alpha": 32,
            },
            id="LoRA",
        ),
        pytest.param("use_peft: true", {"lora.r": 16, "lora.targets": ["q_proj", "v_proj"]}, id="LoRA's defaults"),
        pytest.param(
            LORA + "load_in_4bit: true\ndtype: bfloat16",
            {
                "quantization.bits": 4,
                "quantization.kind": "nf4",
                "quantization.double": False,
                "lora.dtype": "bfloat16",
                "parameter_dtype": "bfloat16",
                "frozen_dtype": "bfloat16",
            },
            id="QLoRA",
        ),
        pytest.param(
            LORA + "load_in_4bit: true\nbnb_4bit_quant_storage: bfloat16",
            {"frozen_dtype": "bfloat16"},
            id="other weights have the dtype that codes are stored in",
        ),
        pytest.param("lora_r: 8", {"tuning": None}, id="without the switch nothing is adapted"),
        pytest.param("use_liger_kernel: true", {"loss": "chunked"}, id="TRL's own loss stands beside Liger's layers"),
        pytest.param(
            "use_liger_kernel: true\nmax_seq_length: 512",
            {"loss": "fused", "loss_tile": None},
            id="Liger's has no tiles",
        ),
        pytest.param(
            "eval_strategy: steps", {"evaluation_batch_size": 8, "evaluation_sequence_length": 1024}, id="evaluation"
        ),
        pytest.param("do_eval: false", {"evaluation_batch_size": None}, id="no evaluation"),
    ],
)
def test_keys_together(lines: str, expected: dict[str, Any]) -> None:
    spec = run(SFT + ("" if "use_peft" in lines or "lora_r" not in lines else "use_peft: false\n") + lines + "\n")
    assert {name: spec.get(name) for name in expected} == expected
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("command", "lines", "expected"),
    [
        pytest.param(
            "trl dpo",
            "",
            {"method": "dpo", "sequences_per_sample": 2, "reference_model": "copy", "loss": "chunked"},
            id="DPO",
        ),
        pytest.param("trl dpo", LORA, {"reference_model": "adapter_off"}, id="DPO with adapters"),
        pytest.param("trl dpo", LORA, {"lora.dropout": 0.0}, id="DPO switches dropout off, that of adapters too"),
        pytest.param(
            "trl dpo",
            LORA + "disable_dropout: false\nlora_dropout: 0.1",
            {"lora.dropout": 0.1},
            id="unless it is told not to",
        ),
        pytest.param("trl kto", LORA, {"lora.dropout": 0.0}, id="KTO does, too"),
        pytest.param(
            "trl kto",
            "loss_type: apo_zero_unpaired\n",
            {"mismatched_completions": False},
            id="and asks for no other completions with the loss that needs none",
        ),
        pytest.param(
            "python -m trl.experimental.orpo",
            "",
            {"log_probabilities": "kernel", "likelihood_of_chosen": True},
            id="ORPO asks how likely what was chosen is",
        ),
        pytest.param("trl reward", LORA + "lora_dropout: 0.1", {"lora.dropout": 0.0}, id="so do reward models"),
        pytest.param("trl grpo", LORA, {"lora.dropout": 0.05}, id="GRPO leaves dropout on"),
        pytest.param(
            "trl grpo", LORA + "disable_dropout: true", {"lora.dropout": 0.0}, id="GRPO, where it is switched off"
        ),
        pytest.param("trl grpo", "use_vllm: true", {"engine_share": 0.3}, id="an engine takes its share of the card"),
        pytest.param(
            "trl grpo",
            "use_vllm: true\nvllm_device: auto\nvllm_gpu_memory_utilization: 0.7",
            {"engine_share": None, "release.trl": "0.15", "transformers_version": "4.46"},
            id="one with a device of its own is of releases that let it share none",
        ),
        pytest.param(
            "trl grpo",
            "use_vllm: true\nvllm_device: 'cuda:0'\nvllm_gpu_memory_utilization: 0.4",
            {"engine_share": 0.4, "release.trl": "0.15"},
            id="unless its device is one that trains",
        ),
        pytest.param(
            "trl grpo",
            "use_vllm: true\nvllm_device: 'cuda:1'",
            {"engine_share": None},
            id="another device than the one that trains",
        ),
        pytest.param(
            "accelerate launch --num_processes 1000000000000000000 trl/scripts/grpo.py",
            "use_vllm: true\nvllm_device: 'cuda:1'",
            {"engine_share": 0.9, "device_count": 10**18},
            id="one of so many that nobody lists them",
        ),
        pytest.param(
            "trl grpo",
            "use_vllm: true\nvllm_mode: colocate\nmax_prompt_length: 512",
            {"engine_share": 0.3, "release.trl": "0.27"},
            id="what is written goes by no release",
        ),
        pytest.param(
            "trl dpo", "max_prompt_length: 256", {"release.trl": "0.28", "loss": None}, id="a key tells the release"
        ),
        pytest.param(
            "trl dpo",
            "max_prompt_length: 256\nuse_liger_loss: false",
            {"release.trl": "0.27"},
            id="of several keys the one that went first",
        ),
        pytest.param(
            "trl dpo", "padding_free: true", {"padding_free": False}, id="DPO pads, whatever padding_free says"
        ),
        pytest.param(
            "trl dpo",
            "padding_free: true\nmax_prompt_length: 256",
            {"padding_free": True},
            id="before TRL 0.29 it did not",
        ),
        pytest.param(
            "trl dpo", "precompute_ref_log_probs: true", {"reference_model": "precomputed"}, id="DPO, computed before"
        ),
        pytest.param(
            "trl reward",
            "",
            {"model_class": "sequence_classification", "labels": 1, "sequences_per_sample": 2, "loss": None},
            id="a reward model",
        ),
        pytest.param(
            "python scripts/orpo.py",
            "beta: 0.1",
            {"method": "orpo", "reference_model": "none", "loss": None},
            id="ORPO",
        ),
    ],
)
def test_methods_by_their_program(command: str, lines: str, expected: dict[str, Any], tmp_path: Path) -> None:
    root = written(tmp_path, {"r.yaml": SFT + lines + "\n", "run.sh": f"{command} --config r.yaml\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert {name: spec.get(name) for name in expected} == expected
    assert spec.architecture == "language_model", spec.unknown_reason
    assert spec["sample_bytes"] == 24 * 1024 * spec.get("sequences_per_sample", 1)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param("examples/scripts/prm.py", "PRM: its model scores each token", id="PRM"),
        pytest.param("examples/scripts/gold.py", "GOLD: its teacher", id="GOLD"),
        pytest.param("examples/scripts/online_dpo.py", "ONLINE_DPO: the model that judges", id="online DPO is no DPO"),
        pytest.param("examples/scripts/sdpo.py", "SDPO: how it keeps its own teacher", id="SDPO"),
    ],
)
def test_a_trainer_that_is_not_described_is_taken_for_no_other(program: str, reason: str, tmp_path: Path) -> None:
    written(tmp_path, {"r.yaml": SFT, "run.sh": f"python {program} --config r.yaml --num_generations 8\n"})
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert spec.unknown_reason.startswith(reason)


@pytest.mark.parametrize(
    ("path", "lines", "method", "reason"),
    [
        pytest.param("recipes/zephyr/dpo/config.yaml", "beta: 0.1", "dpo", "", id="the folder of a recipe"),
        pytest.param("recipes/zephyr/orpo/config.yaml", "beta: 0.1", "orpo", "", id="another folder"),
        pytest.param(
            "config.yaml",
            "num_generations: 8",
            "grpo",
            "",
            id="a key of trainers that generate",
        ),
        pytest.param(
            "config.yaml",
            "beta: 0.1",
            None,
            "beta is a key of several of TRL's trainers",
            id="a key of several trainers",
        ),
        pytest.param("config.yaml", "", "sft", "", id="no key of another trainer"),
    ],
)
def test_methods_of_a_recipe(path: str, lines: str, method: str | None, reason: str, tmp_path: Path) -> None:
    root = written(tmp_path / "files", {path: SFT + lines + "\n"})
    (spec,) = registry.specs(load(str(root / path)))
    assert spec.get("method") == method
    assert spec.unknown_reason.startswith(reason)
    assert (spec.architecture is None) is bool(reason)


@pytest.mark.parametrize(
    ("device", "share"),
    [
        pytest.param("", 0.9, id="the only one"),
        pytest.param(", vllm_device='cuda:1', vllm_gpu_memory_utilization=0.7", None, id="one of its own"),
    ],
)
def test_the_engine_of_a_notebook_is_on_its_only_device(tmp_path: Path, device: str, share: float | None) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    cell = (
        "from trl import GRPOConfig, GRPOTrainer\n"
        f"args = GRPOConfig(output_dir='o', use_vllm=True, max_prompt_length=256{device})\n"
        "GRPOTrainer('Qwen/Qwen2.5-0.5B', reward, args, train_dataset=data).train()\n"
    )
    entry = {"cell_type": "code", "source": [cell], "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"cells": [entry], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "grpo.ipynb").write_text(json.dumps(notebook))
    (spec,) = registry.specs(load(str(tmp_path / "grpo.ipynb")))
    assert (spec.get("method"), spec.get("engine_share")) == ("grpo", share)


def test_grpo_says_what_it_can() -> None:
    lines = "num_generations: 8\nmax_prompt_length: 256\nmax_completion_length: 1024\nuse_vllm: true\n"
    assert "engine_share" not in run(SFT + lines)  # with prompts that are cut TRL had a server
    lines += "vllm_mode: colocate\n"
    spec = run(SFT + lines)
    assert (spec["sequence_length"], spec["engine_share"], spec["reference_model"]) == (1280, 0.3, "none")
    assert run(SFT + lines + "beta: 0.04\n")["reference_model"] == "copy"
    assert "engine_share" not in run(SFT + lines.replace("colocate", "server"))
    assert "engine_share" not in run(SFT + lines.replace("use_vllm: true\n", ""))
    evaluates = run(SFT + lines + "eval_strategy: steps\n")
    assert evaluates["evaluation_loss"] == "as_trained"  # GRPOTrainer.prediction_step


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        pytest.param("1.7.1", 1025, id="logits of completions and of the token before them"),
        pytest.param("1.16.0", None, id="none at all where the head runs in tiles"),
    ],
)
def test_grpo_makes_logits_of_completions_alone(release: str, expected: int | None, tmp_path: Path) -> None:
    lines = "num_generations: 8\nmax_prompt_length: 256\nmax_completion_length: 1024\n"
    root = written(tmp_path, {"grpo.yaml": SFT + lines, "requirements.txt": f"trl=={release}\n"})
    (spec,) = registry.specs(load(str(root / "grpo.yaml")))
    assert spec["release.trl"] == release
    assert spec.get("logits_to_keep") == expected


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        pytest.param("gradient_accumulation_steps: 4\n", 32, id="as many as an optimizer step takes"),
        pytest.param("gradient_accumulation_steps: 4\nsteps_per_generation: 2\n", 16, id="stated steps"),
        pytest.param("generation_batch_size: 64\n", 64, id="a stated number"),
        pytest.param("use_vllm: true\n", None, id="an engine samples"),
    ],
)
def test_how_many_completions_a_device_samples_at_once(lines: str, rows: int | None) -> None:
    text = SFT + "per_device_train_batch_size: 8\n"
    spec = run(text + "num_generations: 8\nmax_prompt_length: 256\nmax_completion_length: 512\n" + lines)
    assert spec.get("generated_rows") == rows
    assert spec["completion_length"] == 512
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("lines", "changes", "rows"),
    [
        pytest.param("", {"micro_batch_size": 2}, 8, id="a smaller batch"),
        pytest.param("", {"gradient_accumulation_steps": 8}, 64, id="more steps"),
        pytest.param("", {"micro_batch_size": 2, "gradient_accumulation_steps": 16}, 32, id="one for the other"),
        pytest.param("steps_per_generation: 2\n", {"micro_batch_size": 4}, 8, id="a smaller batch in stated steps"),
        pytest.param("steps_per_generation: 2\n", {"gradient_accumulation_steps": 8}, 16, id="the steps are stated"),
        pytest.param("generation_batch_size: 64\n", {"micro_batch_size": 2}, 64, id="the number is stated"),
    ],
)
def test_completions_that_are_sampled_at_once_follow_what_they_are_made_of(
    lines: str, changes: dict[str, Any], rows: int
) -> None:
    text = SFT + "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\nnum_generations: 8\n"
    assert run(text + lines).with_facts(**changes)["generated_rows"] == rows


def test_prompts_without_a_stated_length_are_an_assumption() -> None:
    fact = run(SFT + "num_generations: 8\nmax_completion_length: 256\n").facts["sequence_length"]
    assert (fact.value, fact.origin, fact.key) == (768, "assumed", "max_prompt_length")


def test_a_length_of_null_has_no_bound() -> None:
    spec = run(SFT + "max_length: null\n")
    assert spec["sequence_length"] is None
    assert (spec.architecture, spec.unknown_reason) == (None, "max_length is null: no limit")


ZERO = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
deepspeed_config:
  zero_stage: 3
"""


def test_a_launch_a_recipe_and_an_accelerate_file_are_one_run(tmp_path: Path) -> None:
    command = (
        "accelerate launch --config_file recipes/accelerate/zero3.yaml scripts/sft.py \\\n"
        "  --config recipes/model/sft/config.yaml --gradient_accumulation_steps=4 --packing\n"
    )
    root = written(
        tmp_path,
        {
            "jobs/train.sh": command,
            "recipes/accelerate/zero3.yaml": ZERO,
            "recipes/model/sft/config.yaml": SFT + LORA + "per_device_train_batch_size: 2\n",
        },
    )
    (spec,) = registry.specs(load(str(root / "jobs" / "train.sh")))
    expected = {
        "method": "sft",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "packing": True,
        "device_count": 8,
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 3,
        "parameter_dtype": "bfloat16",
        "master_weights": True,
        "lora.dtype": "bfloat16",
        "checkpointing_reentrant": True,
        "tuning": "lora",
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert sorted(Path(name).name for name in spec.document.sources) == ["config.yaml", "train.sh", "zero3.yaml"]
    assert line_of(spec, "micro_batch_size") == "per_device_train_batch_size: 2"
    assert line_of(spec, "parallelism.zero_stage") == "zero_stage: 3"
    assert spec.architecture == "language_model", spec.unknown_reason
    edits = spell(spec, "micro_batch_size", 1)
    assert [(Path(edit.span.path).name, edit.text) for edit in edits] == [("config.yaml", "1")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero2", {"parallelism.zero_stage": 2, "device_count": 8}),
        ("fsdp2", {"parallelism.strategy": "fsdp2", "parameter_dtype": "float32"}),
        ("multi_gpu", {"parallelism.strategy": "ddp"}),
        ("single_gpu", {"device_count": 1}),
    ],
)
def test_the_accelerate_configs_that_trl_ships(name: str, expected: dict[str, Any]) -> None:
    spec = run(f"trl sft --accelerate_config {name} --model_name_or_path gpt2 --dataset_name x\n", "a.sh")
    assert {key: spec.get(key) for key in expected} == expected


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = written(tmp_path, {"run.sh": "trl sft --config nowhere.yaml --output_dir x\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.family, spec.unknown_reason) == ("trl", "no file nowhere.yaml in this repository")


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("micro_batch_size", 4, "per_device_train_batch_size: 4"),
        ("gradient_accumulation_steps", 8, "gradient_accumulation_steps: 8"),
        ("sequence_length", 512, "max_length: 512"),
        ("parameter_dtype", "bfloat16", "dtype: bfloat16"),
        ("attention", "flash", "attn_implementation: flash_attention_2"),
        ("optimizer", "adamw_8bit", "optim: adamw_bnb_8bit"),
        ("optimizer_implementation", "foreach", "optim: adamw_torch"),
        ("checkpointing", "none", "gradient_checkpointing: false"),
        ("compute_dtype", "float16", "fp16: true"),
        ("packing", True, "packing: true"),
    ],
)
def test_a_fact_that_is_a_default_is_written_in_trl_s_keys(fact: str, value: Any, line: str) -> None:
    edits = spell(run(SFT), fact, value)
    after = apply_edits(SFT, edits)
    assert line in after.splitlines()
    assert run(after)[fact] == value


def test_the_loss_needs_no_fix() -> None:
    assert spell(run(SFT), "loss", "fused") == []


@pytest.mark.parametrize("said", ['{"skip_prepare_dataset": True}', "dict(skip_prepare_dataset=True)"])
def test_samples_that_a_program_takes_as_they_are_are_neither_cut_nor_packed(said: str, tmp_path: Path) -> None:
    config = (
        "model_name_or_path: gpt2\ndataset_name: ours\nmax_length: 64\npacking: true\nper_device_train_batch_size: 1\n"
    )
    program = "trainer = SFTTrainer(model=model, args=args, data_collator=collate)\ntrainer.train()\n"
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.sh").write_text("accelerate launch sft.py --config ours.yaml\n", encoding="utf-8")
    (tmp_path / "ours.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "sft.py").write_text(program, encoding="utf-8")
    (run,) = check(str(tmp_path / "ours.yaml"), isolated=True).runs
    assert run.estimate is not None
    (tmp_path / "sft.py").write_text(f"args.dataset_kwargs = {said}\n{program}", encoding="utf-8")
    (run,) = check(str(tmp_path / "ours.yaml"), isolated=True).runs
    assert run.partial is not None
    assert run.partial.names == ("sequence_length",)
    assert "max_length: the program has skip_prepare_dataset" in run.unknown


def test_a_sweep_over_weights_is_one_run_and_a_weight_of_nothing_another(tmp_path: Path) -> None:
    """A reference is asked for any distance to it, however much that counts."""
    command = "trl grpo --model_name_or_path gpt2 --per_device_train_batch_size 2 --max_completion_length 64 --beta"
    text = f"for beta in 0.01 0.1 0.5; do\n  {command} $beta\ndone\n{command} 0\n"
    root = written(tmp_path / "files", {"sweep.sh": text})
    weights = [spec["hyperparameters.beta"] for spec in registry.specs(load(str(root / "sweep.sh")))]
    assert weights == [0.01, 0]
