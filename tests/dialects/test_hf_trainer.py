"""Family hf-trainer: TrainingArguments as YAML, JSON and command lines, against transformers' own parser."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from memlint import estimates
from memlint.dialects import hf_trainer, registry
from memlint.dialects import language_model as lm
from memlint.dialects import schema as schemas
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written

YAML = """\
model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 4
max_seq_length: 2048
output_dir: out
"""
GPT2 = "--model_name_or_path gpt2 --per_device_train_batch_size 1 --max_seq_length 8"
HYPER = "hyperparameters."


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", "per_device_train_batch_size: 1", ["hf-trainer"], id="the batch key alone is enough"),
        pytest.param("a.json", '{"per_device_train_batch_size": 1}', ["hf-trainer"], id="JSON as well"),
        pytest.param("a.yaml", "per_device_train_batch_size: 1\ndo_train: false", [], id="an evaluation"),
        pytest.param(
            "a.yaml",
            "model_name_or_path: gpt2\noutput_dir: x\nnum_train_epochs: 1",
            ["hf-trainer"],
            id="three weaker keys together",
        ),
        pytest.param(
            "a.yaml", "learning_rate: 1\nbatch_size: 4", [], id="a learning rate and a batch size say nothing"
        ),
        pytest.param("a.yaml", "output_dir: x\nnum_train_epochs: 1", [], id="two weak keys say nothing"),
        pytest.param(
            "a.yaml",
            "base_model: x\nmicro_batch_size: 1\nper_device_train_batch_size: 1",
            ["axolotl"],
            id="another trainer's keys",
        ),
        pytest.param("a.sh", "python train.py --per_device_train_batch_size 4", ["hf-trainer"], id="an option"),
        pytest.param("a.sh", "python train.py --per-device-train-batch-size 4", ["hf-trainer"], id="with hyphens"),
        pytest.param("a.sh", "python run_clm.py --do_train", ["hf-trainer"], id="an example script of transformers"),
        pytest.param("a.sh", "python my_run_clm.py --do_train", ["program"], id="a program whose name only ends alike"),
        pytest.param("a.sh", "swift sft --per_device_train_batch_size 4", ["ms-swift"], id="another family's program"),
        pytest.param("a.sh", "python train.py --batch_size 4 --lr 1", ["program"], id="options of anybody"),
        pytest.param(
            "a.sh",
            "python train.py --per_device_train_batch_size 4\npython train.py --per_device_train_batch_size 8",
            ["hf-trainer", "hf-trainer"],
            id="two commands are two runs",
        ),
    ],
)
def test_what_is_a_run(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text + "\n", path)] == families


# ------------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        ("gradient_accumulation_steps: 8", "gradient_accumulation_steps", 8),
        ("gradient_checkpointing: true", "checkpointing", "full"),
        ("activation_checkpointing: true", "checkpointing", "full"),
        ("gradient_checkpointing: false", "checkpointing", "none"),
        ("dtype: bfloat16", "parameter_dtype", "bfloat16"),
        ("torch_dtype: float16", "parameter_dtype", "float16"),
        ("dtype: fp32", "frozen_dtype", "float32"),
        ("bf16: true", "compute_dtype", "bfloat16"),
        ("bf16: true", "autocast", True),
        ("fp16: true", "compute_dtype", "float16"),
        ("fp16: true", "loss_scaling", "dynamic"),
        ("attn_implementation: eager", "attention", "eager"),
        ("attn_implementation: flash_attention_2", "attention", "flash"),
        ("attn_implementation: kernels-community/flash-attn2", "attention", "flash"),
        ("use_flash_attention_2: true", "attention", "flash"),
        ("use_liger_kernel: true", "loss", "fused"),
        ("use_liger_kernel: true", "fused_kernels", ["rotary", "rms_norm", "swiglu", "linear_cross_entropy"]),
        ("torch_compile: true", "compile", True),
        ("torch_compile_backend: inductor", "compile", True),
        ("torch_compile_mode: reduce-overhead", "compile", True),
        ("optim: adamw_torch", "optimizer_implementation", "foreach"),
        ("optim: adamw_torch_fused", "optimizer_implementation", "fused"),
        ("optim: paged_adamw_8bit", "optimizer", "adamw_8bit"),
        ("optim: paged_adamw_8bit", "optimizer_paged", True),
        ("optim: paged_adamw_32bit", "optimizer", "adamw"),
        ("optim: adamw_torch_4bit", "optimizer_library", "torchao"),
        ("optim: lion_8bit", "optimizer", "lion_8bit"),
        ("optim: adafactor", "optimizer", "adafactor"),
        ("optim: sgd", "optimizer", "sgd"),
        ("dataloader_num_workers: 4", "workers", 4),
        ("dataloader_prefetch_factor: 8", "prefetch_factor", 8),
        ("dataloader_pin_memory: false", "pin_memory", False),
        ("auto_find_batch_size: true", "auto_batch_size", True),
        ("torch_empty_cache_steps: 4", "empty_cache_steps", 4),
        ("packing: true", "packing", True),
        ("max_seq_length: 2048", "sequence_length", 2048),
        ("max_seq_length: 2048", "attention_tokens", 2048),
        ("model_name_or_path: meta-llama/Llama-3.1-8B", "vocabulary_size", 128256),
        ("model_name_or_path: meta-llama/Llama-3.1-8B", "model", "meta-llama/Llama-3.1-8B"),
    ],
    ids=lambda value: str(value).replace("\n", "; "),
)
def test_a_key_sets_its_fact_and_the_fact_points_at_it(lines: str, fact: str, value: Any) -> None:
    name = lines.partition(":")[0]
    text = lines + "\n" + "".join(line + "\n" for line in YAML.splitlines() if not line.startswith(name + ":"))
    spec = run(text)
    assert spec[fact] == value
    assert spec.facts[fact].origin == WRITTEN
    assert line_of(spec, fact) == lines
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        pytest.param(
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}",
            "checkpointing_reentrant",
            True,
            id="the reentrant kind",
        ),
        pytest.param(
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {every_n_layers: 3}",
            "checkpointing",
            "every",
            id="every third layer",
        ),
        pytest.param(
            "gradient_checkpointing: true\nactivation_checkpointing_kwargs: {every_n_layers: 3}",
            "checkpointing_every",
            3,
            id="under its newer name",
        ),
        pytest.param(
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {every_n_layers: 1}",
            "checkpointing",
            "full",
            id="every layer is all of them",
        ),
        pytest.param(
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {selective: true}",
            "checkpointing",
            "selective",
            id="selective",
        ),
        pytest.param(
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {offload: true}",
            "activation_offloading",
            True,
            id="to host memory",
        ),
        pytest.param(
            "gradient_checkpointing: false\ngradient_checkpointing_kwargs: {every_n_layers: 3}",
            "checkpointing",
            "none",
            id="off stays off",
        ),
        pytest.param(
            "use_liger_kernel: true\nliger_kernel_config: {fused_linear_cross_entropy: false, cross_entropy: true}",
            "fused_kernels",
            ["rotary", "rms_norm", "swiglu", "cross_entropy"],
            id="some of Liger's kernels",
        ),
        pytest.param(
            "use_liger_kernel: true\nlabel_smoothing_factor: 0.1", "loss", "full", id="label smoothing needs the logits"
        ),
        pytest.param("bf16: true\ndtype: float32", "parameter_dtype", "float32", id="autocast leaves weights alone"),
        pytest.param(
            "dtype: bfloat16", "compute_dtype", "bfloat16", id="without autocast products have the weights' dtype"
        ),
        pytest.param("dtype: auto", "parameter_dtype", "bfloat16", id="auto is the checkpoint's dtype"),
        pytest.param("use_peft: true\nlora_r: 8", "tuning", "lora", id="LoRA"),
        pytest.param("lora_enable: true\nlora_r: 8\nuse_dora: true", "tuning", "dora", id="DoRA"),
        pytest.param("use_peft: false\nlora_r: 8", "tuning", None, id="a rank beside a switch that is off"),
        pytest.param("lora_r: 8", "tuning", "lora", id="a rank alone"),
        pytest.param("lora_r: 8", "lora.targets", ["q_proj", "v_proj"], id="PEFT's targets"),
        pytest.param(
            "lora_r: 8\nlora_target_modules: 'q_proj, o_proj'",
            "lora.targets",
            ["q_proj", "o_proj"],
            id="targets in one word",
        ),
        pytest.param(
            "lora_r: 8\nlora_target_modules: [all-linear]", "lora.targets", "all-linear", id="all linear layers"
        ),
        pytest.param(
            "lora_r: 8\nlora_modules_to_save: [lm_head]",
            "lora.modules_to_save",
            ["lm_head"],
            id="modules that train in full",
        ),
        pytest.param("lora_r: 8\ndtype: bfloat16", "parameter_dtype", "float32", id="adapters are in float32"),
        pytest.param("lora_r: 8\ndtype: bfloat16", "frozen_dtype", "bfloat16", id="beside weights in bfloat16"),
        pytest.param("lora_r: 8\nload_in_4bit: true", "quantization.bits", 4, id="4 bits"),
        pytest.param("lora_r: 8\nload_in_4bit: true", "quantization.kind", "fp4", id="in bitsandbytes' default code"),
        pytest.param(
            "lora_r: 8\nload_in_4bit: true\nbnb_4bit_quant_type: nf4", "quantization.kind", "nf4", id="in NF4"
        ),
        pytest.param(
            "lora_r: 8\nload_in_4bit: true\ndouble_quant: true", "quantization.double", True, id="scales quantised"
        ),
        pytest.param("lora_r: 8\nload_in_8bit: true", "quantization.kind", "int8", id="8 bits"),
        pytest.param("lora_r: 8\nbits: 4", "quantization.bits", 4, id="bits as a number"),
        pytest.param("lora_r: 8\nbits: 16", "quantization.bits", None, id="16 bits are no quantisation"),
        pytest.param("eval_strategy: steps", "evaluation_batch_size", 8, id="evaluation at its default batch"),
        pytest.param(
            "eval_strategy: steps\nper_device_eval_batch_size: 2", "evaluation_batch_size", 2, id="evaluation"
        ),
        pytest.param(
            "eval_strategy: no\nper_device_eval_batch_size: 2",
            "evaluation_batch_size",
            None,
            id="no evaluation, though YAML reads no as false",
        ),
        pytest.param("per_device_eval_batch_size: 2", "evaluation_batch_size", None, id="evaluation is off by default"),
        pytest.param(
            "evaluation_strategy: epoch\neval_accumulation_steps: 4",
            "evaluation_accumulates",
            False,
            id="predictions move to the host",
        ),
        pytest.param("max_source_length: 512\nmax_target_length: 64", "target_length", 64, id="an output length"),
    ],
)
def test_keys_together(lines: str, fact: str, value: Any) -> None:
    text = YAML.replace("max_seq_length: 2048\n", "") if "max_source" in lines else YAML
    assert run(text + lines + "\n").get(fact) == value


def test_defaults_say_whose_they_are() -> None:
    spec = run(YAML)
    for name, value in (("gradient_accumulation_steps", 1), ("checkpointing", "none"), ("attention", "sdpa")):
        assert spec[name] == value
        assert spec.facts[name].origin == DEFAULT
        assert "transformers 5" in spec.facts[name].reason
    assert spec.facts["parameter_dtype"].reason == "transformers 5: from_pretrained keeps the checkpoint's dtype"
    assert (spec["parameter_dtype"], spec["optimizer_implementation"]) == ("bfloat16", "fused")
    assert spec.model_name == "Llama-3.1-8B"
    assert spec[HYPER + "config"]["num_hidden_layers"] == 32


def test_the_batch_that_is_not_stated_is_8() -> None:
    spec = run(YAML.replace("per_device_train_batch_size: 4\n", "num_train_epochs: 3\n"))
    fact = spec.facts["micro_batch_size"]
    assert (fact.value, fact.origin, fact.reason) == (8, DEFAULT, "transformers 5: TrainingArguments")


# ------------------------------------------------------------------------------------------------ against transformers


def fields() -> dict[str, Any]:
    from transformers import TrainingArguments

    return {field.name: field for field in dataclasses.fields(TrainingArguments)}


def test_the_schema_has_transformers_defaults() -> None:
    stated = fields()
    checked = 0
    for key in schemas.keys(schemas.load("hf-trainer")):
        annotation = key.annotation
        if len(key.path) != 1 or not annotation.get("default_of", "").startswith("transformers 5: TrainingArguments"):
            continue
        default = annotation["default"]
        meanings = {text: meaning for text, meaning in annotation.get("values", {}).items() if meaning == default}
        real = stated[key.path[0]].default
        if meanings:
            assert str(bool(real)).lower() in meanings, key.dotted  # None means False
        else:
            assert default == getattr(real, "value", real), key.dotted
        checked += 1
    assert checked >= 11


def test_every_optimizer_of_the_trainer_is_known() -> None:
    from transformers.training_args import OptimizerNames

    other_devices = ("xla", "npu")
    names = {name.value for name in OptimizerNames if not any(word in name.value for word in other_devices)}
    assert {name.removesuffix("_layerwise") for name in names} <= set(lm.OPTIMIZERS)


@pytest.mark.parametrize("family", ["hf-trainer", "trl", "llamafactory"])
def test_every_optimizer_name_of_the_trainer_is_one_that_its_key_takes(family: str) -> None:
    from transformers.training_args import OptimizerNames

    taken = schemas.load(family)["properties"]["optim"]["enum"]
    assert {name.value for name in OptimizerNames} <= set(taken)


COMMANDS = [
    "--per_device_train_batch_size 4 --bf16 True",
    "--per_device_train_batch_size 4 --bf16",
    "--per-device-train-batch-size 4 --bf16=True --fp16 False",
    "--per_device_train_batch_size=4 --fp16 --gradient_accumulation_steps 16",
    "--per_device_train_batch_size 2 --activation_checkpointing --optim adafactor",
    "--per_device_train_batch_size 2 --gradient_checkpointing True --optim=paged_adamw_8bit",
    "--per_device_train_batch_size 2 --gradient_checkpointing no --dataloader_num_workers 3",
    "--per_device_train_batch_size 2 --no_dataloader_pin_memory --torch_compile",
    "--per_device_train_batch_size 2 --dataloader-pin-memory false --use_liger_kernel yes",
    "--per_device_train_batch_size 2 --per_device_train_batch_size 16 --eval_strategy steps --eval_steps 10",
    "--bf16 --per_device_train_batch_size 1 --dataloader_prefetch_factor 4 --dataloader_num_workers 1",
    "--per_device_train_batch_size 2 --gradient_checkpointing"
    " --gradient_checkpointing_kwargs '{\"use_reentrant\": true}'",
    "--per_device_train_batch_size 2 --torch_empty_cache_steps 4 --ddp_bucket_cap_mb 100 --auto_find_batch_size",
]


@pytest.mark.parametrize("options", COMMANDS)
def test_options_are_read_as_transformers_reads_them(options: str, tmp_path: Path) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)
    words = [*shlex.split(options), "--output_dir", str(tmp_path), "--use_cpu"]
    (real,) = parser.parse_args_into_dataclasses(words)
    spec = run(f"python train.py {options}\n", "train.sh")
    assert spec["micro_batch_size"] == real.per_device_train_batch_size
    assert spec["gradient_accumulation_steps"] == real.gradient_accumulation_steps
    assert lm.switched(spec, "bf16") is bool(real.bf16)
    assert lm.switched(spec, "fp16") is bool(real.fp16)
    assert (spec["checkpointing"] == "full") is bool(real.gradient_checkpointing)
    assert spec[HYPER + "optim"] == real.optim.value
    assert spec["workers"] == real.dataloader_num_workers
    assert spec.get("prefetch_factor") == real.dataloader_prefetch_factor
    assert spec["compile"] is bool(real.torch_compile)
    assert lm.switched(spec, "use_liger_kernel") is bool(real.use_liger_kernel)
    assert str(spec[HYPER + "eval_strategy"]) == real.eval_strategy.value
    assert spec.get("empty_cache_steps") == real.torch_empty_cache_steps
    assert bool(spec.get("auto_batch_size")) is bool(real.auto_find_batch_size)
    kwargs = real.gradient_checkpointing_kwargs or {}
    assert spec["checkpointing_reentrant"] is kwargs.get("use_reentrant", False)
    if "no_dataloader" not in options:  # transformers has no negated form of an optional flag, other parsers do
        assert spec["pin_memory"] is bool(real.dataloader_pin_memory) or real.use_cpu


def test_yaml_and_json_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    settings = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 5,
        "bf16": False,
        "optim": "adamw_torch",
        "gradient_checkpointing": True,
        "dataloader_num_workers": 2,
    }
    (real,) = HfArgumentParser(TrainingArguments).parse_dict(dict(settings))
    path = tmp_path / "args.json"
    path.write_text(json.dumps(settings))
    (spec,) = registry.specs(load(str(path)))
    assert spec["micro_batch_size"] == real.per_device_train_batch_size
    assert spec["gradient_accumulation_steps"] == real.gradient_accumulation_steps
    assert spec[HYPER + "optim"] == real.optim.value
    assert (spec["checkpointing"] == "full") is real.gradient_checkpointing
    assert spec["workers"] == real.dataloader_num_workers
    assert spec.unknown_reason == "use_cpu: the run is not on a GPU"


def test_the_switch_of_a_negated_option_is_false() -> None:
    assert run("python t.py --per_device_train_batch_size 1 --no_bf16\n", "t.sh")[HYPER + "bf16"] is False
    assert (
        run("python t.py --per_device_train_batch_size 1 --no_dataloader_pin_memory\n", "t.sh")["pin_memory"] is False
    )


# ------------------------------------------------------------------------------------------------ scripts


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            "run_clm.py --block_size 512", {"sequence_length": 512, "packing": True}, id="language modelling fills rows"
        ),
        pytest.param(
            "run_clm.py --block_size 4096", {"sequence_length": 1024}, id="a block is cut to the model's positions"
        ),
        pytest.param(
            "train.py --block_size 4096", {"sequence_length": 4096}, id="an unknown script may do as it likes"
        ),
        pytest.param(
            "run_glue.py",
            {"model_class": "sequence_classification", "sequence_length": 128},
            id="a length of the script",
        ),
        pytest.param(
            "run_qa.py", {"model_class": "question_answering", "sequence_length": 384}, id="question answering"
        ),
        pytest.param("run_glue.py --pad_to_max_length False", {"packing": False}, id="padding only to the batch"),
        pytest.param(
            "run_clm_no_trainer.py --block_size 512",
            {"optimizer_implementation": "foreach", "outputs_kept": "float32"},
            id="without the Trainer",
        ),
    ],
)
def test_transformers_example_scripts(command: str, facts: dict[str, Any]) -> None:
    text = f"python {command} --model_name_or_path gpt2 --per_device_train_batch_size 4\n"
    spec = run(text, "run.sh")
    assert {name: spec[name] for name in facts} == facts
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param("google/gemma-3-4b-it", ("vision_language", 0), id="all of Gemma 3, and no image"),
        pytest.param("google/gemma-3-1b-it", ("causal_lm", None), id="a Gemma 3 of words alone"),
        pytest.param("Qwen/Qwen3.5-4B", ("causal_lm", None), id="the decoder of Qwen3.5"),
    ],
)
def test_what_a_class_for_text_makes_of_a_model_that_sees(model: str, expected: tuple[str, int | None]) -> None:
    spec = run(f"python run_clm.py --model_name_or_path {model} --block_size 512\n", "run.sh")
    assert (spec["model_class"], spec.get("images_per_sample")) == expected


def test_types_whose_causal_lm_sees_are_transformers_own() -> None:
    from transformers.models.auto import modeling_auto

    seeing = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    reading = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    same = {name for name, made in seeing.items() if reading.get(name) == made}
    assert set(hf_trainer._SEEING_WITH_TEXT) <= same
    assert not {"llava", "llama4", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"} & same


def test_a_class_that_no_script_names_is_an_assumption() -> None:
    assert run(YAML).facts["model_class"].origin == ASSUMED
    assert run("python run_clm.py --per_device_train_batch_size 1\n", "a.sh").facts["model_class"].origin == DEFAULT


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        pytest.param("python", {"parallelism.strategy": None, "device_count": None}, id="one process"),
        pytest.param("torchrun --nproc_per_node 8", {"parallelism.strategy": "ddp", "device_count": 8}, id="torchrun"),
        pytest.param("torchrun --nproc-per-node=4 --nnodes=2", {"device_count": 8}, id="torchrun on two machines"),
        pytest.param(
            "torchrun --nproc_per_node 1", {"parallelism.strategy": None, "device_count": 1}, id="torchrun, one process"
        ),
        pytest.param("python -m torch.distributed.launch --nproc_per_node=2", {"device_count": 2}, id="its old name"),
        pytest.param("python -m torch.distributed.run --nproc_per_node=2", {"device_count": 2}, id="its module"),
        pytest.param("deepspeed --num_gpus 4", {"parallelism.strategy": "ddp", "device_count": 4}, id="deepspeed"),
        pytest.param("deepspeed --num_gpus 4 --num_nodes 2", {"device_count": 8}, id="deepspeed on two machines"),
        pytest.param("deepspeed --include localhost:0,1,3", {"device_count": 3}, id="deepspeed with a list"),
        pytest.param("deepspeed --include localhost:", {"device_count": None}, id="deepspeed with an empty list"),
        pytest.param("deepspeed --include one@two:0,1", {"device_count": None}, id="deepspeed with a whole machine"),
        pytest.param("CUDA_VISIBLE_DEVICES=0,1 deepspeed", {"device_count": 2}, id="deepspeed with what it sees"),
        pytest.param("srun --ntasks=16 --ntasks-per-node=8 python", {"device_count": 16}, id="srun"),
        pytest.param("srun --nodes=2 --ntasks-per-node=8 python", {"device_count": 16}, id="srun by machine"),
        pytest.param(
            "srun --nodes=2 torchrun --nnodes 2 --nproc_per_node 8",
            {"device_count": 16},
            id="the inner launcher counts",
        ),
        pytest.param("mpirun -np 4 python", {"device_count": 4}, id="mpirun"),
        pytest.param(
            "accelerate launch --num_processes 4", {"parallelism.strategy": "ddp", "device_count": 4}, id="accelerate"
        ),
        pytest.param(
            "accelerate launch --multi_gpu --num_processes 4 --mixed_precision bf16",
            {"compute_dtype": "bfloat16", "autocast": True},
            id="accelerate's precision",
        ),
        pytest.param(
            "accelerate launch --use_fsdp --num_processes 4 --fsdp_version 2",
            {"parallelism.strategy": "fsdp2", "device_count": 4},
            id="FSDP by accelerate's options",
        ),
        pytest.param(
            "accelerate launch --use_deepspeed --zero_stage 3 --num_processes 4",
            {"parallelism.strategy": "zero", "parallelism.zero_stage": 3},
            id="ZeRO by accelerate's options",
        ),
    ],
)
def test_launchers(script: str, facts: dict[str, Any]) -> None:
    text = f"{script} train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --max_seq_length 512\n"
    spec = run(text, "run.sh")
    assert {name: spec.get(name) for name in facts} == facts
    assert spec.get("world_size") == spec.get("device_count")
    assert spec.architecture == "language_model", spec.unknown_reason


def test_a_number_of_processes_that_only_the_shell_knows_is_missing() -> None:
    text = f"torchrun --nproc_per_node $GPUS train.py {GPT2}\n"
    spec = run(text, "run.sh")
    assert [(item.key, item.reason) for item in spec.missing] == [("--nproc_per_node", "GPUS is not set in the script")]
    assert "device_count" not in spec
    assert spec["parallelism.strategy"] == "ddp"
    assert spec.architecture == "language_model"


# ------------------------------------------------------------------------------------------------ companions

ZERO3 = """\
{
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto",
                        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
  "bf16": {"enabled": "auto"},
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto"
}
"""
FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
"""


def test_a_script_a_config_and_a_deepspeed_file_are_one_run(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        {
            "scripts/train.sh": (
                "export BATCH=2\n"
                "torchrun --nproc_per_node 8 train.py configs/args.yaml --per_device_train_batch_size $BATCH\n"
            ),
            "configs/args.yaml": YAML + "bf16: true\ndeepspeed: configs/zero3.json\n",
            "configs/zero3.json": ZERO3,
        },
    )
    (spec,) = registry.specs(load(str(root / "scripts" / "train.sh")))
    expected = {
        "micro_batch_size": 2,
        "device_count": 8,
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 3,
        "parallelism.offload_optimizer": True,
        "parameter_dtype": "bfloat16",
        "master_weights": True,
        "autocast": False,
        "parallelism.reduce_bucket_elements": 4096 * 4096,
        "parallelism.prefetch_bucket_elements": int(0.9 * 4096 * 4096),
        "parallelism.persistence_elements": 40960,
        "sequence_length": 2048,
    }
    assert {name: spec[name] for name in expected} == expected
    node = spec.facts["micro_batch_size"].node
    assert node is not None
    assert (Path(node.span.path).name, node.span.line) == ("train.sh", 1)
    assert line_of(spec, "parallelism.zero_stage").startswith('"zero_optimization"')
    assert sorted(Path(name).name for name in spec.document.sources) == ["args.yaml", "train.sh", "zero3.json"]
    assert (spec.missing, spec.conflicts, spec.architecture) == ((), (), "language_model")


def test_a_script_and_an_accelerate_file_are_one_run(tmp_path: Path) -> None:
    command = (
        "accelerate launch --config_file fsdp.yaml --num_processes 32 train.py --model_name_or_path"
        " meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --max_seq_length 4096\n"
    )
    root = written(tmp_path, {"train.sh": command, "fsdp.yaml": FSDP})
    (spec,) = registry.specs(load(str(root / "train.sh")))
    expected = {
        "device_count": 32,
        "parallelism.strategy": "fsdp2",
        "parallelism.wrap": ["LlamaDecoderLayer"],
        "checkpointing": "full",
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
        "parallelism.reduce_dtype": "bfloat16",
    }
    assert {name: spec[name] for name in expected} == expected
    assert line_of(spec, "checkpointing") == "fsdp_activation_checkpointing: true"
    assert (spec.facts["device_count"].key, spec.facts["checkpointing"].key) == (
        "--num_processes",
        "fsdp_config.fsdp_activation_checkpointing",
    )
    assert any(name.endswith("fsdp.yaml") for name in spec.document.sources)


def test_an_accelerate_file_may_name_a_deepspeed_file(tmp_path: Path) -> None:
    config = """\
        compute_environment: LOCAL_MACHINE
        distributed_type: DEEPSPEED
        deepspeed_config: {deepspeed_config_file: zero3.json}
        num_processes: 4
        """
    command = f"accelerate launch --config_file a.yaml train.py --bf16 {GPT2}\n"
    root = written(tmp_path, {"train.sh": command, "a.yaml": config, "zero3.json": ZERO3})
    (spec,) = registry.specs(load(str(root / "train.sh")))
    assert (spec["parallelism.zero_stage"], spec["parameter_dtype"], spec["device_count"]) == (3, "bfloat16", 4)
    assert len(spec.document.sources) == 3


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        pytest.param("fsdp: true", {"parallelism.strategy": "fsdp2"}, id="switched on"),
        pytest.param('fsdp: "full_shard auto_wrap"', {"parallelism.strategy": "fsdp2"}, id="in words"),
        pytest.param(
            "fsdp: full_shard\nevaluation_strategy: steps",
            {"parallelism.strategy": "fsdp1"},
            id="before transformers 5, as another key says",
        ),
        pytest.param(
            "fsdp: [shard_grad_op, offload]",
            {"parallelism.reshard_after_forward": False, "parallelism.cpu_offload": True},
            id="as a list",
        ),
        pytest.param(
            "fsdp: full_shard\nfsdp_config: {version: 1, transformer_layer_cls_to_wrap: [LlamaDecoderLayer]}",
            {"parallelism.strategy": "fsdp1", "parallelism.wrap": ["LlamaDecoderLayer"]},
            id="its first version",
        ),
        pytest.param(
            "fsdp: true\nfsdp_config: {fsdp_activation_checkpointing: true, reshard_after_forward: false}",
            {"checkpointing": "full", "parallelism.reshard_after_forward": False},
            id="with checkpointing of its own",
        ),
        pytest.param(
            "fsdp: full_shard\nfsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer",
            {"parallelism.wrap": ["LlamaDecoderLayer"]},
            id="the layers under their old key",
        ),
        pytest.param("fsdp: ''", {"parallelism.strategy": "ddp"}, id="empty is off"),
    ],
)
def test_transformers_own_fsdp(entry: str, facts: dict[str, Any], tmp_path: Path) -> None:
    root = written(tmp_path, {"c.yaml": YAML + entry + "\n", "t.sh": "torchrun --nproc_per_node 4 train.py c.yaml\n"})
    (spec,) = registry.specs(load(str(root / "t.sh")))
    assert {name: spec.get(name) for name in facts} == facts
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("word", "facts"),
    [
        pytest.param("full_shard auto_wrap offload", {"parallelism.cpu_offload": True}, id="offloaded"),
        pytest.param("shard_grad_op auto_wrap", {"parallelism.reshard_after_forward": False}, id="gradients alone"),
        pytest.param("full_shard", {"parallelism.strategy": "fsdp2"}, id="one of them"),
    ],
)
def test_one_word_of_a_command_has_all_words_of_fsdp(word: str, facts: dict[str, Any], tmp_path: Path) -> None:
    command = f'torchrun --nproc_per_node 4 train.py {GPT2} --fsdp "{word}"\n'
    (spec,) = registry.specs(load(str(written(tmp_path, {"t.sh": command}) / "t.sh")))
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param('{"use_reentrant": "True"}', True, id="true in quotes"),
        pytest.param('{"use_reentrant": "false"}', False, id="false in quotes"),
        pytest.param('{"use_reentrant": true}', True, id="as JSON has it"),
    ],
)
def test_words_in_a_json_option_have_the_types_of_their_keys(text: str, kind: bool, tmp_path: Path) -> None:
    command = f"python train.py {GPT2} --gradient_checkpointing --gradient_checkpointing_kwargs='{text}'\n"
    (spec,) = registry.specs(load(str(written(tmp_path, {"t.sh": command}) / "t.sh")))
    assert spec["checkpointing_reentrant"] is kind, spec.missing


@pytest.mark.parametrize(
    ("switch", "section", "dtype"),
    [
        pytest.param("bf16: true", "", "bfloat16", id="what the file leaves out the trainer fills in"),
        pytest.param("fp16: true", ', "fp16": {"enabled": "auto"}', "float16", id="auto likewise"),
        pytest.param("bf16: false", ', "bf16": {"enabled": true}', "bfloat16", id="what the file states counts"),
        pytest.param("bf16: false", "", "float32", id="neither says so"),
    ],
)
def test_deepspeed_casts_the_model(switch: str, section: str, dtype: str, tmp_path: Path) -> None:
    zero = '{"zero_optimization": {"stage": 2}' + section + "}\n"
    config = YAML + f"dtype: float32\n{switch}\ndeepspeed: z.json\n"
    root = written(
        tmp_path, {"t.sh": "torchrun --nproc_per_node 2 train.py c.yaml\n", "c.yaml": config, "z.json": zero}
    )
    (spec,) = registry.specs(load(str(root / "t.sh")))
    assert (spec["parameter_dtype"], spec["compute_dtype"], spec["autocast"]) == (dtype, dtype, False)
    assert spec.get("master_weights", False) is (dtype != "float32")
    assert spec.get("loss_scaling") == ("dynamic" if dtype == "float16" else None)


def test_sizes_that_two_files_state_differently_are_a_conflict(tmp_path: Path) -> None:
    zero = '{"zero_optimization": {"stage": 2},\n "train_micro_batch_size_per_gpu": 8}\n'
    root = written(tmp_path, {"c.yaml": YAML + "deepspeed: z.json\n", "z.json": zero})
    (spec,) = registry.specs(load(str(root / "c.yaml")))
    (conflict,) = spec.conflicts
    assert conflict.message == (
        "per_device_train_batch_size is 4, but train_micro_batch_size_per_gpu is 8: the two must agree"
    )
    assert (conflict.span.line, conflict.related[0].path.endswith("z.json")) == (2, True)
    assert spell(spec, "micro_batch_size", 2) == []


def test_who_names_the_devices_has_the_architecture(tmp_path: Path) -> None:
    root = written(tmp_path, {"c.yaml": YAML + "deepspeed: z.json\nbf16: true\n", "z.json": ZERO3})
    (spec,) = registry.specs(load(str(root / "c.yaml")))
    assert spec.architecture is None
    assert spec.architecture_on_devices == "language_model"
    assert spec.unknown_reason.startswith("the number of devices that share the model is not stated")


# ------------------------------------------------------------------------------------------------ what is not known


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "per_device_train_batch_size: 1\nmax_seq_length: 8", "model_name_or_path is not stated", id="no model"
        ),
        pytest.param(
            "per_device_train_batch_size: 1\nmax_seq_length: 8\nmodel_name_or_path: nobody/has-this",
            "model_name_or_path nobody/has-this: not in the catalogue",
            id="a model that nobody knows",
        ),
        pytest.param(
            "per_device_train_batch_size: 1\nmax_seq_length: 8\nmodel_name_or_path: ${oc.env:MODEL}",
            "model_name_or_path is not known: ",
            id="a model from the environment",
        ),
        pytest.param(
            "per_device_train_batch_size: 1\nmodel_name_or_path: gpt2", "max_seq_length is not stated", id="no length"
        ),
        pytest.param(
            YAML + "deepspeed: nowhere.json",
            "deepspeed: no file nowhere.json in this repository",
            id="no DeepSpeed file",
        ),
        pytest.param(YAML + "bf16: ${oc.env:HALF}", "bf16 is not known: ", id="a precision that is not known"),
        pytest.param(YAML + "lora_enable: true", "lora_r is not stated", id="adapters without a rank"),
        pytest.param(
            YAML.replace("meta-llama/Llama-3.1-8B", "microsoft/phi-4") + "lora_r: 8",
            "lora_target_modules is not stated, and PEFT has no default for phi3",
            id="adapters without targets",
        ),
        pytest.param(
            YAML + "vision_tower: openai/clip-vit-large-patch14",
            "vision_tower openai/clip-vit-large-patch14: ",
            id="a vision tower",
        ),
        pytest.param(
            "per_device_train_batch_size: 1\nmodel_type: gpt2",
            "model_type gpt2: a model from scratch",
            id="from scratch",
        ),
        pytest.param(
            YAML.replace("meta-llama/Llama-3.1-8B", "BAAI/bge-m3") + "train_group_size: 8\nquery_max_len: 512",
            "--train_group_size: the script compares queries and passages",
            id="queries and their passages",
        ),
        pytest.param(YAML + "use_cpu: true", "use_cpu: ", id="on the CPU"),
        pytest.param(
            YAML + "model: {_target_: models.llama.Llama.from_pretrained}",
            "model._target_ models.llama.Llama.from_pretrained: a class of the program's own makes the model",
            id="a class of the program's own",
        ),
        pytest.param(
            YAML.replace("size: 4", "size: many"),
            "per_device_train_batch_size is not known: ",
            id="a batch of the wrong type",
        ),
    ],
)
def test_what_is_not_stated_is_named(text: str, reason: str) -> None:
    spec = run(text + "\n")
    assert spec.architecture is None
    assert spec.unknown_reason.startswith(reason), spec.unknown_reason


@pytest.mark.parametrize(
    ("script", "known"),
    [
        pytest.param("examples/finetune.py", True, id="tuning"),
        pytest.param("examples/reward_modeling.py", False, id="a reward model"),
        pytest.param("src/train_rm.py", False, id="a reward model in short"),
        pytest.param("dpo_align.py", False, id="preferences"),
        pytest.param("train_embedding.py", False, id="embeddings"),
        pytest.param("train_arm_robot_logs.py", True, id="letters within a word"),
        pytest.param("run_clm.py", True, id="transformers' own"),
    ],
)
def test_a_script_is_no_causal_lm_s_whose_name_says_otherwise(script: str, known: bool) -> None:
    text = f"python {script} --model_name_or_path gpt2 --per_device_train_batch_size 4 --max_seq_length 512\n"
    spec = run(text, "run.sh")
    assert (spec.architecture == "language_model") == known, spec.unknown_reason
    assert known or "by its name" in spec.unknown_reason


def test_a_variable_that_is_not_set_is_named() -> None:
    text = "python train.py --model_name_or_path $MODEL --per_device_train_batch_size 1 --max_seq_length 8\n"
    assert run(text, "t.sh").unknown_reason == "--model_name_or_path is not known: MODEL is not set in the script"


@pytest.mark.parametrize(
    ("named", "model"),
    [
        pytest.param('"$HOME/models/opt-125m"', "facebook/opt-125m", id="a folder at home"),
        pytest.param("${ROOT}/facebook/opt-125m", "facebook/opt-125m", id="a folder with the whole id"),
        pytest.param("$(pwd)/opt-125m/", "facebook/opt-125m", id="a folder beside"),
        pytest.param("$HOME/models/mine", None, id="a name of no model"),
        pytest.param("$NAME-opt-125m", None, id="a name that begins with what is not known"),
        pytest.param("facebook/opt-$SIZE", None, id="a name that ends with what is not known"),
    ],
)
def test_a_folder_of_which_the_last_name_is_known_is_the_model_of_that_name(named: str, model: str | None) -> None:
    spec = run(
        f"python train.py --model_name_or_path {named} --per_device_train_batch_size 1 --max_seq_length 8\n", "t.sh"
    )
    assert spec.get("same_model_as") == model
    if model is None:
        assert spec.unknown_reason.startswith("--model_name_or_path is not known: ")
    else:
        assert spec.facts["same_model_as"].origin == ASSUMED
        assert (spec.facts["model"].origin, spec.facts["vocabulary_size"].origin) == (WRITTEN, WRITTEN)
        assert spec.architecture is not None
        assert not spec.missing


def test_a_model_in_a_folder_is_read(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "vocab_size": 1000, "num_hidden_layers": 2}
    root = written(
        tmp_path,
        {
            "model/config.json": json.dumps(config),
            "c.yaml": "model_name_or_path: ./model\nper_device_train_batch_size: 1\nmax_seq_length: 8\n",
        },
    )
    (spec,) = registry.specs(load(str(root / "c.yaml")))
    assert spec[HYPER + "config"]["hidden_size"] == 64
    assert (spec["vocabulary_size"], spec["parameter_dtype"], spec.architecture) == (1000, "float32", "language_model")


def test_accumulation_that_only_the_shell_knows_is_an_assumption() -> None:
    text = f"python train.py {GPT2} --gradient_accumulation_steps $N\n"
    spec = run(text, "t.sh")
    assert spec.architecture == "language_model"
    fact = spec.facts["gradient_accumulation_steps"]
    assert (fact.value, fact.origin) == (1, ASSUMED)
    assert "N is not set" in fact.reason


# ------------------------------------------------------------------------------------------------ fixes

SCRIPT = """\
python train.py \\
  --model_name_or_path meta-llama/Llama-3.1-8B \\
  --per_device_train_batch_size 8 \\
  --max_seq_length 2048 --dtype float32 \\
  --bf16 True
"""


@pytest.mark.parametrize("path", ["c.yaml", "t.sh", "c.json"])
@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("micro_batch_size", 2),
        ("gradient_accumulation_steps", 4),
        ("checkpointing", "full"),
        ("optimizer", "adamw_8bit"),
        ("optimizer", "adafactor"),
        ("optimizer", "lion_8bit"),
        ("optimizer_implementation", "foreach"),
        ("compute_dtype", "float16"),
        ("compute_dtype", "float32"),
        ("parameter_dtype", "bfloat16"),
        ("loss", "fused"),
        ("sequence_length", 1024),
        ("workers", 2),
        ("compile", True),
    ],
)
def test_a_fact_is_written_in_transformers_keys(fact: str, value: Any, path: str) -> None:
    text = SCRIPT
    if path != "t.sh":
        text = YAML + "dtype: float32\nbf16: true\n"
    if path == "c.json":
        entries = {**dict(line.split(": ") for line in YAML.splitlines()), "dtype": "float32", "bf16": True}
        entries.update(per_device_train_batch_size=4, max_seq_length=2048)
        text = json.dumps(entries, indent=2) + "\n"
    before = run(text, path)
    edits = spell(before, fact, value)
    assert edits
    after = run(apply_edits(text, edits), path)
    assert after[fact] == value
    follows = {
        "optimizer": {"optimizer_implementation", "optimizer_library"},
        "compute_dtype": {"autocast", "loss_scaling"},
        "parameter_dtype": {"frozen_dtype"},
        "loss": {"fused_kernels"},
        "sequence_length": {"attention_tokens", "sample_bytes"},
    }.get(fact, set())
    others = {name for name in (*before, *after) if not name.startswith(HYPER)} - follows - {fact}
    assert {name: after.get(name) for name in others} == {name: before.get(name) for name in others}


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        pytest.param("", "attention", "flash", id="a key that not every script has is not added"),
        pytest.param("", "parameter_dtype", "bfloat16", id="nor is the dtype"),
        pytest.param("", "compute_dtype", "float32", id="weights in bfloat16 compute in it without autocast"),
        pytest.param("", "evaluation_batch_size", 1, id="no evaluation, no batch of it"),
        pytest.param("optim: adafactor", "optimizer_implementation", "fused", id="only AdamW has implementations"),
        pytest.param("lora_r: 8\ndtype: float32", "parameter_dtype", "bfloat16", id="PEFT decides the adapters' dtype"),
        pytest.param("", "ema", False, id="what transformers does not have"),
    ],
)
def test_what_has_no_spelling(lines: str, fact: str, value: Any) -> None:
    assert spell(run(YAML + lines + "\n"), fact, value) == []


EACH = "fsdp: full_shard\naccelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: {}\n"


@pytest.mark.parametrize(
    ("more", "last"),
    [
        pytest.param("fsdp: full_shard\n", True, id="FSDP keeps gradients whole until the last micro-batch"),
        pytest.param("", None, id="one device reduces nothing"),
        pytest.param(EACH.format("true"), None, id="unless each one is asked to be reduced"),
        pytest.param(EACH.format("false"), True, id="or is not, in so many words"),
    ],
)
def test_when_gradients_are_reduced(more: str, last: bool | None) -> None:
    assert run(YAML + "gradient_accumulation_steps: 4\n" + more).get("parallelism.reduces_last_only") is last


def test_whole_gradients_are_as_large_as_the_model_between_micro_batches() -> None:
    """As large in each of four ranks as in one: nothing of them is a shard's."""
    base = f"torchrun --nproc_per_node {{}} train.py {GPT2} --fsdp full_shard --gradient_accumulation_steps {{}}\n"

    def peak_bytes(devices: int, micro_batches: int) -> int:
        estimate = estimates.estimate_spec(run(base.format(devices, micro_batches), "run.sh"))
        return estimate.allocated_bytes

    assert peak_bytes(4, 2) > peak_bytes(4, 1)
    assert peak_bytes(4, 2) == peak_bytes(4, 8)


def test_an_option_that_changes_what_the_models_own_code_makes_is_no_plain_run() -> None:
    """ChatGLM's ptuning/main.py writes it into the config: a prefix trains, and nothing else."""
    command = "python main.py --do_train --model_name_or_path THUDM/chatglm2-6b --output_dir out --max_steps 9"
    command += " --max_source_length 64 --max_target_length 128 --per_device_train_batch_size 1 --learning_rate 2e-2"
    [plain], [prefixed] = runs(command, "train.sh"), runs(f"{command} --pre_seq_len 128", "train.sh")
    assert "pre_seq_len" not in plain["hyperparameters.config"]
    assert str(prefixed["hyperparameters.config"]["pre_seq_len"]) == "128"
