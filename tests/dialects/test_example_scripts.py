"""transformers' example scripts, and others that many start: whose they are, what they train, how long a row is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memlint.estimates import estimate_spec
from memlint.facts.spec import ASSUMED, DEFAULT
from tests.dialects.language_models import run

COMMON = " --do_train --per_device_train_batch_size 4 --output_dir out"


def command(script: str, options: str) -> str:
    return f"python {script}.py {options}{COMMON}\n"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        pytest.param(
            "run_qa",
            "--model_name_or_path bert-base-uncased --dataset_name squad --learning_rate 3e-5 --max_seq_length 384",
            id="question answering",
        ),
        pytest.param(
            "run_mlm",
            "--model_name_or_path roberta-base --dataset_name wikitext --max_seq_length 256",
            id="masked language modelling",
        ),
        pytest.param(
            "run_summarization_no_trainer",
            "--model_name_or_path facebook/bart-base --dataset_name xsum --learning_rate 1e-5",
            id="a script without the Trainer",
        ),
        pytest.param(
            "run_speech_recognition_seq2seq",
            "--model_name_or_path openai/whisper-small --dataset_name common_voice --learning_rate 1e-5",
            id="speech recognition",
        ),
    ],
)
def test_keys_that_trl_has_too_leave_an_example_script_transformers(script: str, options: str) -> None:
    spec = run(command(script, options), "train.sh")
    assert spec.family == "hf-trainer"
    assert spec["model_class"] != "causal_lm"
    assert not spec.unknown_reason
    assert estimate_spec(spec).device_bytes > 0


@pytest.mark.parametrize(
    ("script", "options", "facts"),
    [
        pytest.param(
            "run_clm",
            "--model_name_or_path gpt2",
            {"sequence_length": 1024, "packing": True},
            id="all of GPT-2's places",
        ),
        pytest.param(
            "run_clm",
            "--model_name_or_path meta-llama/Llama-2-7b-hf",
            {"sequence_length": 1024},
            id="1,024 of a longer context",
        ),
        pytest.param(
            "run_clm",
            "--model_name_or_path meta-llama/Llama-2-7b-hf --block_size 2048",
            {"sequence_length": 2048},
            id="a stated length",
        ),
        pytest.param(
            "run_mlm",
            "--model_name_or_path FacebookAI/roberta-base",
            {"sequence_length": 512, "packing": True},
            id="RoBERTa's table has rows for padding",
        ),
        pytest.param(
            "run_mlm",
            "--model_name_or_path bert-base-uncased --line_by_line",
            {"sequence_length": 512, "packing": None},
            id="lines are samples",
        ),
        pytest.param(
            "run_summarization",
            "--model_name_or_path google-t5/t5-small",
            {"sequence_length": 1024, "target_length": 128},
            id="a summary's defaults",
        ),
        pytest.param(
            "run_translation",
            "--model_name_or_path google-t5/t5-small --max_source_length 512 --max_target_length 64",
            {"sequence_length": 512, "target_length": 64},
            id="a translation's stated lengths",
        ),
        pytest.param(
            "run_speech_recognition_seq2seq",
            "--model_name_or_path openai/whisper-small --generation_max_length 225",
            {"target_length": 225},
            id="labels as long as what is generated",
        ),
        pytest.param(
            "run_image_classification",
            "--dataset_name beans",
            {"model": "google/vit-base-patch16-224-in21k", "model_class": "image_classification"},
            id="the script's own model",
        ),
    ],
)
def test_what_a_script_takes_where_nothing_is_stated(script: str, options: str, facts: dict[str, Any]) -> None:
    spec = run(command(script, options), "train.sh")
    assert {name: spec.get(name) for name in facts} == facts
    assert not spec.unknown_reason


def test_a_default_length_is_printed_as_an_assumption_on_its_key() -> None:
    fact = run(command("run_clm", "--model_name_or_path gpt2"), "train.sh").facts["sequence_length"]
    assert (fact.origin, fact.key) == (ASSUMED, "block_size")
    assert "run_clm.py" in fact.reason


def test_a_script_for_classes_of_words_still_asks_for_a_length() -> None:
    spec = run(command("run_ner", "--model_name_or_path bert-base-uncased --dataset_name conll2003"), "train.sh")
    assert spec.unknown_reason.startswith("max_seq_length is not stated")


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [
        pytest.param("google/flan-t5-base", "--max_source_length 64 --max_target_length 32", "seq2seq_lm", id="T5"),
        pytest.param("bert-base-uncased", "--max_seq_length 64", "sequence_classification", id="BERT"),
        pytest.param("gpt2", "--max_seq_length 64", "causal_lm", id="a decoder"),
    ],
)
def test_a_script_of_ones_own_trains_what_the_model_is(model: str, options: str, kind: str) -> None:
    spec = run(command("train", f"--model_name_or_path {model} {options} --use_peft false"), "train.sh")
    assert spec["model_class"] == kind
    assert spec.facts["model_class"].origin in (ASSUMED, DEFAULT)
    assert not spec.unknown_reason


# ------------------------------------------------------------------------------------------------ other known scripts

QLORA = (
    "python qlora.py --model_name_or_path huggyllama/llama-7b --bf16 --bits 4 --source_max_len 16 --target_max_len 512"
    " --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --output_dir out\n"
)
ALPACA = (
    "torchrun --nproc_per_node=4 train.py --model_name_or_path huggyllama/llama-7b --data_path alpaca_data.json"
    " --bf16 True --output_dir out --per_device_train_batch_size 4\n"
)
FASTCHAT = (
    "python fastchat/train/train_lora.py --model_name_or_path lmsys/vicuna-7b-v1.5 --data_path a.json --lora_r 8"
    " --fp16 True --q_lora True --output_dir out --per_device_train_batch_size 2\n"
)
LIGER = (
    "torchrun --nproc-per-node=4 training.py --model_name meta-llama/Meta-Llama-3-8B --bf16 --use_liger True"
    " --per_device_train_batch_size 64 --output_dir out\n"
)
LIGER_S_OWN_MODEL = LIGER.replace("--model_name meta-llama/Meta-Llama-3-8B ", "")
UNSLOTH = (
    "python unsloth-cli.py --model_name unsloth/llama-3-8b --max_seq_length 8192 --load_in_4bit --r 64"
    " --per_device_train_batch_size 4 --output_dir out\n"
)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        pytest.param(
            QLORA,
            {
                "sequence_length": 528,
                "lora.r": 64,
                "lora.targets": "all-linear",
                "lora.dtype": "bfloat16",
                "quantization.kind": "nf4",
                "quantization.double": True,
                "optimizer_paged": True,
                "checkpointing": "full",
                "float32_parts": ["norms"],
                "quantization.prepared": None,
            },
            id="qlora.py: what its dataclasses say",
        ),
        pytest.param(
            QLORA.replace("--bf16", "--evaluation_strategy steps --bf16"),
            {"optimizer_paged": True, "transformers_version": "4.45"},
            id="qlora.py's optimizer is its own in older releases, too",
        ),
        pytest.param(
            QLORA.replace("--bf16 ", ""),
            {"quantization.prepared": True, "float32_parts": None},
            id="qlora.py without bf16 leaves everything widened",
        ),
        pytest.param(
            QLORA.replace("--bits 4", "--full_finetune"),
            {"tuning": None, "quantization.bits": None},
            id="qlora.py without an adapter",
        ),
        pytest.param(
            QLORA.replace("qlora.py", "train.py"),
            {"sequence_length": 528},
            id="a program after qlora.py, whose collator cuts a source and its target apart",
        ),
        pytest.param(ALPACA, {"sequence_length": 512, "tuning": None}, id="Alpaca's length"),
        pytest.param(
            ALPACA.replace("--bf16", "--model_max_length 2048 --bf16"),
            {"sequence_length": 2048},
            id="a length that is stated",
        ),
        pytest.param(
            FASTCHAT, {"quantization.prepared": True, "sequence_length": 512}, id="FastChat prepares what it quantises"
        ),
        pytest.param(
            LIGER,
            {"sequence_length": 512, "frozen_dtype": "bfloat16", "loss": "fused"},
            id="Liger-Kernel's example",
        ),
        pytest.param(
            LIGER_S_OWN_MODEL,
            {"sequence_length": 512, "model": "meta-llama/Meta-Llama-3-8B"},
            id="Liger-Kernel's example, its own model",
        ),
        pytest.param(
            UNSLOTH,
            {
                "lora.r": 64,
                "sequence_length": 8192,
                "loss": "in_forward",
                "activation_offloading": True,
                "quantization.double": True,
                "optimizer": "adamw_8bit",
                "checkpointing": "full",
            },
            id="Unsloth's command line",
        ),
    ],
)
def test_what_a_known_script_does_by_itself(text: str, facts: dict[str, Any]) -> None:
    spec = run(text, "train.sh")
    assert spec.family == "hf-trainer"
    assert {name: spec.get(name) for name in facts} == facts
    assert not spec.unknown_reason


@pytest.mark.parametrize("text", [QLORA, FASTCHAT, UNSLOTH], ids=["qlora.py", "FastChat", "Unsloth"])
def test_a_known_script_has_an_estimate(text: str) -> None:
    assert estimate_spec(run(text, "train.sh")).device_bytes > 3 * 2**30


# ------------------------------------------------------------------------------------------------ older releases

LLAMA = "--model_name_or_path meta-llama/Llama-2-7b-hf --block_size 1024 --bf16"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "",
            {"transformers_version": None, "parameter_dtype": "float16", "optimizer_implementation": "fused"},
            id="the newest release keeps the checkpoint's dtype",
        ),
        pytest.param(
            " --warmup_ratio 0.03",
            {"transformers_version": "4.57", "parameter_dtype": "float32", "optimizer_implementation": "fused"},
            id="a key of releases before 5, which load float32",
        ),
        pytest.param(
            " --warmup_ratio 0.03 --evaluation_strategy no",
            {"transformers_version": "4.45", "parameter_dtype": "float32", "optimizer_implementation": "foreach"},
            id="the earliest of several, whose default optimizer is torch's",
        ),
        pytest.param(
            " --evaluation_strategy no --torch_dtype bfloat16 --optim adamw_torch_fused",
            {"parameter_dtype": "bfloat16", "optimizer_implementation": "fused"},
            id="what is stated goes before",
        ),
        pytest.param(
            " --evaluation_strategy no --torch_dtype auto",
            {"parameter_dtype": "float16"},
            id="the checkpoint's dtype is asked for",
        ),
    ],
)
def test_a_key_of_the_past_tells_the_release(options: str, facts: dict[str, Any]) -> None:
    spec = run(command("run_clm", LLAMA + options), "train.sh")
    assert {name: spec.get(name) for name in facts} == facts


HANDBOOK = """\
model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: auto
load_in_4bit: true
use_peft: true
lora_r: 16
lora_target_modules: [q_proj, v_proj]
dataset_mixer: {a/b: 1.0}
bf16: true
max_seq_length: 2048
output_dir: out
per_device_train_batch_size: 4
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        pytest.param(
            HANDBOOK,
            {"lora.dtype": "bfloat16", "float32_parts": ["norms"], "quantization.prepared": None},
            id="norms stay widened in 4 bits",
        ),
        pytest.param(
            HANDBOOK.replace("4bit", "8bit"), {"quantization.prepared": True}, id="everything stays widened in 8 bits"
        ),
        pytest.param(
            HANDBOOK.replace("load_in_4bit: true\n", ""),
            {"quantization.prepared": None, "float32_parts": None},
            id="nothing is widened that is not quantised",
        ),
    ],
)
def test_the_alignment_handbooks_trainers_prepare_what_is_quantised(text: str, facts: dict[str, Any]) -> None:
    spec = run(text, "config_qlora.yaml")
    assert spec.family == "hf-trainer"
    assert {name: spec.get(name) for name in facts} == facts
    assert not spec.unknown_reason


def test_the_alignment_handbooks_older_files_of_pairs_are_dpos() -> None:
    text = HANDBOOK.replace("max_seq_length: 2048", "max_length: 1024\nmax_prompt_length: 512\nbeta: 0.1")
    spec = run(text, "recipes/zephyr/dpo/config_qlora.yaml")
    assert (spec.family, spec["method"]) == ("trl", "dpo")


def test_the_release_is_an_assumption_on_its_key() -> None:
    fact = run(command("run_clm", LLAMA + " --evaluation_strategy no"), "train.sh").facts["transformers_version"]
    assert fact.origin == ASSUMED
    assert fact.span is not None
    assert "evaluation_strategy" in fact.reason


_FIREFLY = {
    "model_name_or_path": "01-ai/Yi-1.5-6B-Chat",
    "train_file": "data.jsonl",
    "template_name": "yi",
    "output_dir": "out",
    "per_device_train_batch_size": 1,
    "max_seq_length": 1024,
    "lora_rank": 32,
    "fp16": True,
}


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        pytest.param(
            {}, {"lora.targets": "all-linear", "lora.r": 32, "quantization.kind": "nf4"}, id="as it is: qlora"
        ),
        pytest.param({}, {"quantization.double": True, "quantization.prepared": True}, id="its codes"),
        pytest.param(
            {"train_mode": "lora"},
            {"lora.targets": "all-linear", "quantization.bits": None, "frozen_dtype": "float16"},
            id="adapters beside weights as they were stored",
        ),
        pytest.param({"train_mode": "full"}, {"tuning": None, "lora.r": None}, id="all weights, whatever the rank"),
        pytest.param(
            {"train_mode": "lora", "task_type": "dpo", "beta": 0.1, "max_prompt_length": 300},
            {"method": "dpo", "lora.targets": "all-linear"},
            id="DPO by TRL",
        ),
        pytest.param(
            {"train_mode": "full", "task_type": "dpo", "beta": 0.1, "max_prompt_length": 300},
            {"method": "dpo", "lora.r": None},
            id="DPO of all weights, whatever the rank",
        ),
    ],
)
def test_fireflys_train_mode_says_what_its_script_makes(keys: dict[str, Any], facts: dict[str, Any]) -> None:
    task = keys.get("task_type", "sft")
    spec = run(json.dumps({**_FIREFLY, **keys}), f"train_args/{task}/a.json")
    assert {name: spec.get(name) for name in facts} == facts
