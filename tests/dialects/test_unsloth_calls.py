"""What a program says by Unsloth's calls: in a script, and in the cells of a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memlint import check
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.trainers import unsloth

IMPORTS = """\
from unsloth import FastLanguageModel, FastVisionModel, UnslothTrainer, UnslothTrainingArguments
from trl import DPOTrainer, SFTConfig, SFTTrainer
"""
MODEL = "model, tokens = FastLanguageModel.from_pretrained(model_name = 'unsloth/Llama-3.2-1B')\n"
ADAPTERS = "model = FastLanguageModel.get_peft_model(model, r = 8)\n"
TRAINER = (
    "trainer = SFTTrainer(model = model, args = SFTConfig(per_device_train_batch_size = 2, optim = 'adamw_8bit'))\n"
)


def program(tmp_path: Path, text: str) -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(IMPORTS + text, encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "train.py")))
    return spec


def notebook(tmp_path: Path, *cells: str) -> Path:
    sources = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in (IMPORTS, *cells)]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": sources, "nbformat": 4}, indent=1), encoding="utf-8")
    (tmp_path / ".git").mkdir(exist_ok=True)
    return path


def test_its_defaults_are_the_runs(tmp_path: Path) -> None:
    spec = program(tmp_path, MODEL + ADAPTERS + TRAINER)
    assert (spec.family, spec["model"], spec["tuning"]) == ("hf-trainer", "unsloth/Llama-3.2-1B", "lora")
    assert (spec["sequence_length"], spec["lora.r"], spec["quantization.kind"]) == (2048, 8, "nf4")
    assert spec["lora.targets"] == unsloth.ADAPTERS["target_modules"]
    assert (spec["checkpointing"], spec["activation_offloading"], spec["compute_dtype"]) == ("full", True, "bfloat16")


@pytest.mark.parametrize(
    ("model", "fact", "value"),
    [
        pytest.param("max_seq_length = 512", "sequence_length", 512, id="a length"),
        pytest.param("load_in_4bit = False", "quantization.kind", None, id="weights in 16 bits"),
        pytest.param("load_in_4bit = False, load_in_8bit = True", "quantization.bits", 8, id="weights in 8 bits"),
    ],
)
def test_what_the_call_for_the_model_says(tmp_path: Path, model: str, fact: str, value: object) -> None:
    call = MODEL.replace(")\n", f", {model})\n")
    assert program(tmp_path, call + ADAPTERS + TRAINER).get(fact) == value  # type: ignore[call-overload]


def test_an_embedding_that_is_a_target_trains_whole(tmp_path: Path) -> None:
    adapters = (
        "model = FastLanguageModel.get_peft_model(model, target_modules = ['q_proj', 'embed_tokens', 'lm_head'])\n"
    )
    spec = program(tmp_path, MODEL + adapters + TRAINER)
    assert spec["lora.targets"] == ["q_proj"]
    assert spec["lora.modules_to_save"] == ["embed_tokens", "lm_head"]


def test_without_its_checkpointing_nothing_is_offloaded(tmp_path: Path) -> None:
    adapters = ADAPTERS.replace("r = 8", "r = 8, use_gradient_checkpointing = False")
    spec = program(tmp_path, MODEL + adapters + TRAINER)
    assert (spec.get("checkpointing"), spec.get("activation_offloading")) == ("none", None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            MODEL + ADAPTERS + "DPOTrainer(model = model, args = SFTConfig())\n", "DPOTrainer", id="another trainer"
        ),
        pytest.param(MODEL + TRAINER, "without adapters", id="all weights"),
        pytest.param(
            MODEL + ADAPTERS.replace("r = 8", "r = 8, qat_scheme = 'int4'") + TRAINER,
            "qat_scheme",
            id="rounded weights",
        ),
        pytest.param(
            MODEL.replace("Language", "Vision") + ADAPTERS.replace("Language", "Vision") + TRAINER,
            "images",
            id="images",
        ),
        pytest.param(
            MODEL.replace("Llama-3.2-1B", "gpt-oss-20b") + ADAPTERS + TRAINER, "gpt_oss", id="layers in other kernels"
        ),
        pytest.param(
            MODEL.replace("unsloth/Llama-3.2-1B", "Qwen/Qwen3-30B-A3B") + ADAPTERS + TRAINER,
            "qwen3_moe's experts",
            id="experts in 4 bits",
        ),
    ],
)
def test_what_is_not_described_is_named(tmp_path: Path, text: str, why: str) -> None:
    program(tmp_path, text)
    (run,) = check([str(tmp_path / "train.py")], isolated=True).runs
    assert run.estimate is None
    assert any(why in finding.message for finding in run.findings)


def test_a_notebook_is_the_program_of_its_cells(tmp_path: Path) -> None:
    path = notebook(tmp_path, "%%capture\n!pip install unsloth\n", MODEL + ADAPTERS, "%%bash\nls\n", TRAINER)
    (spec,) = registry.specs(load(str(path)))
    assert (spec["model"], spec["micro_batch_size"]) == ("unsloth/Llama-3.2-1B", 2)
    (run,) = check([str(path)], isolated=True).runs
    assert run.estimate is not None
    rows = spec.fact("micro_batch_size")
    assert rows is not None
    assert rows.node is not None
    line = path.read_text(encoding="utf-8").split("\n")[rows.node.span.line - 1]
    assert line[rows.node.span.column - 1 : rows.node.span.end_column - 1] == "2"


def test_what_a_notebook_installs_is_what_runs_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==4.40.0\npeft==0.10.0\n", encoding="utf-8")
    installed = '!pip install "transformers==4.56.2" trl==0.22.2\n# !pip install peft==0.18.0\n'
    (spec,) = registry.specs(load(str(notebook(tmp_path, installed, MODEL + ADAPTERS, TRAINER))))
    assert (spec["transformers_version"], spec["release.peft"]) == ("4.56.2", "0.10.0")


def test_evaluation_makes_no_logits_where_training_makes_none(tmp_path: Path) -> None:
    trainer = TRAINER.replace("optim", "eval_strategy = 'steps', per_device_eval_batch_size = 2, optim")
    assert program(tmp_path, MODEL + ADAPTERS + trainer)["evaluation_loss"] == "as_trained"


@pytest.mark.parametrize(
    ("tokens", "bounded", "bytes_per_logit", "pieces"),
    [
        pytest.param(32768, False, 4, 1, id="half of what is free is more than all logits"),
        pytest.param(4096, True, 4, 1, id="2 GiB of logits"),
        pytest.param(32768, True, 4, 4, id="16 GiB of logits"),
        pytest.param(2048, True, 16, 1, id="4 GiB of what the loss makes"),
        pytest.param(4096, True, 16, 4, id="8 GiB of what the loss makes"),
    ],
)
def test_pieces_of_the_loss(tokens: int, bounded: bool, bytes_per_logit: int, pieces: int) -> None:
    assert unsloth.pieces(tokens, 131072, bounded, bytes_per_logit) == pieces


def test_a_walk_lists_a_notebook_that_has_no_estimate(tmp_path: Path) -> None:
    notebook(tmp_path, MODEL.replace("Llama-3.2-1B", "nobody-knows-it") + ADAPTERS, TRAINER)
    (run,) = check([str(tmp_path)], isolated=True).runs
    assert run.estimate is None


def test_what_a_call_makes_is_no_value_of_the_wrong_type(tmp_path: Path) -> None:
    program(tmp_path, MODEL + ADAPTERS.replace("r = 8", "r = rank(model), target_modules = found(model)") + TRAINER)
    findings = check([str(tmp_path / "train.py")], isolated=True).findings
    assert "MEM008" not in {finding.code for finding in findings}
    assert any("lora_r is not known: what rank makes" in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("release", "attention"),
    [
        pytest.param("4.57.1", "sdpa", id="where transformers has SDPA for the model"),
        pytest.param("4.35.2", "sdpa", id="where it has none, for the layers are its own"),
    ],
)
def test_its_layers_never_run_on_eager_attention(tmp_path: Path, release: str, attention: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"transformers=={release}\n", encoding="utf-8")
    assert program(tmp_path, MODEL + ADAPTERS + TRAINER)["attention"] == attention


@pytest.mark.parametrize(
    ("adapters", "kernels"),
    [
        pytest.param("r = 8", ["lora_mlp", "lora_qkv", "lora_o", "lora_in_place"], id="adapters without dropout"),
        pytest.param("r = 8, lora_dropout = 0.1", [], id="with dropout PEFT computes them"),
    ],
)
def test_its_kernels_for_adapters_are_those_of_its_release(tmp_path: Path, adapters: str, kernels: list[str]) -> None:
    spec = program(tmp_path, MODEL + ADAPTERS.replace("r = 8", adapters) + TRAINER)
    assert [name for name in spec["fused_kernels"] if name.startswith("lora_")] == kernels
