"""Family nanogpt: files of assignments, and options of train.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written

DECODER = "decoder"
SMALL = """\
# a small one, from scratch
out_dir = 'out-ours'
dataset = 'ours'

batch_size = 16
block_size = 512  # context
gradient_accumulation_steps = 4 * 8

n_layer = 4
n_head = 4
n_embd = 256
dropout = 0.1
"""
TUNE = """\
init_from = 'gpt2-medium'
dataset = 'ours'
batch_size = 2
gradient_accumulation_steps = 16
"""


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.py", SMALL, ["nanogpt"], id="a model from scratch"),
        pytest.param("a.py", TUNE, ["nanogpt"], id="a size of GPT-2"),
        pytest.param("a.py", "batch_size = 1\nlearning_rate = 1\n", [], id="a batch says nothing"),
        pytest.param("a.py", SMALL + "model = dict(type='X')\n", [], id="another project's module"),
        pytest.param(
            "a.py", "init_from = 'gpt2'\nbatch_size = 8\nblock_size = 8\neval_only = True\n", [], id="an evaluation"
        ),
        pytest.param("a.sh", "python train.py --n_layer=2 --n_head=2 --n_embd=8", ["nanogpt"], id="options alone"),
        pytest.param("a.sh", "python train.py --batch_size=8 --lr=1", ["program"], id="options that say nothing"),
        pytest.param("a.sh", "python train.py config/x.py", ["program"], id="a module that is not there"),
        pytest.param("a.sh", "python train.py --batch_size=32 --compile=False", ["nanogpt"], id="two of its own"),
        pytest.param("a.sh", "python train.py --block_size=64 --wandb_log=True", ["nanogpt"], id="a row's length"),
        pytest.param("a.sh", "python train.py --batch_size=32 --device=cuda", ["program"], id="two of anyone's"),
        pytest.param("a.sh", "python train.py --block_size=64", ["program"], id="one of its own"),
        pytest.param("a.sh", "python train.py --batch_size=32 --compile=False --model=x", ["program"], id="one more"),
        pytest.param("a.sh", "python train.py --batch_size 32 --compile False", ["program"], id="without a sign"),
        pytest.param("a.sh", "python main.py --batch_size=32 --compile=False", [], id="another program"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("= 16", "= 3", "micro_batch_size", 3, id="the micro batch"),
        pytest.param("= 512", "= 64", "sequence_length", 64, id="the length of a row"),
        pytest.param("= 4 * 8", "= 5", "gradient_accumulation_steps", 5, id="accumulation"),
        pytest.param("= 4 * 8", "= 4 * 8", "gradient_accumulation_steps", 32, id="as a product"),
        pytest.param("dropout", "dtype = 'float16'\ndropout", "compute_dtype", "float16", id="float16"),
        pytest.param("dropout", "dtype = 'float16'\ndropout", "loss_scaling", "dynamic", id="which scales its loss"),
        pytest.param("dropout", "dtype = 'float32'\ndropout", "autocast", False, id="float32"),
        pytest.param("dropout", "dropout", "compute_dtype", "bfloat16", id="bfloat16 by default"),
        pytest.param("dropout", "compile = False\ndropout", "compile", False, id="not compiled"),
        pytest.param("dropout", "dropout", "compile", True, id="compiled by default"),
        pytest.param("'ours'", "'shakespeare_char'", "vocabulary_size", 65, id="characters"),
        pytest.param("'ours'", "'ours'", "vocabulary_size", 50304, id="GPT-2's tokens, padded"),
        pytest.param("dropout", "eval_iters = 0\ndropout", "evaluation_batch_size", None, id="no evaluation"),
        pytest.param("dropout", "dropout", "evaluation_batch_size", 16, id="evaluation has training's batch"),
    ],
)
def test_a_key_and_its_fact(old: str, new: str, fact: str, value: Any) -> None:
    assert run(SMALL.replace(old, new, 1), "config/small.py").get(fact) == value


def test_a_file_of_assignments_has_all_that_an_estimate_needs() -> None:
    spec = run(SMALL, "config/small.py")
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    model = spec[DECODER]
    assert (model.layers, model.heads, model.width) == (4, 4, 256)
    assert (model.intermediate, model.qkv_bias, model.residual_dropout) == (1024, False, 0.1)
    assert (spec["optimizer"], spec["optimizer_implementation"], spec["attention"]) == ("adamw", "fused", "sdpa")
    assert (spec["parameter_dtype"], spec["autocast"], spec["implementation"]) == ("float32", True, "nanogpt")
    assert line_of(spec, "sequence_length") == "block_size = 512"
    assert line_of(spec, DECODER) == "n_layer = 4"


def test_a_size_of_gpt_2_goes_before_layers_and_width() -> None:
    spec = run(TUNE + "n_layer = 2\n", "config/tune.py")
    model = spec[DECODER]
    assert (model.layers, model.width, model.vocabulary) == (24, 1024, 50257)
    assert (model.qkv_bias, spec["pretrained"], spec["sequence_length"]) == (True, True, 1024)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(SMALL + "device = 'cpu'\n", "not on a CUDA device", id="a CPU"),
        pytest.param(SMALL.replace("= 256", "= 250"), "n_embd 250 is no multiple of n_head 4", id="a width"),
        pytest.param(SMALL.replace("= 16", "= int(open('b').read())"), "batch_size", id="a batch that a file holds"),
    ],
)
def test_what_is_not_known_is_named(text: str, reason: str) -> None:
    spec = run(text, "config/small.py")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


READS = "exec(open('configurator.py').read())\n"
PROGRAM = "import torch\nfrom model import GPTConfig, GPT\nn_layer = 12\n" + READS
MODEL = """\
class MLP(nn.Module):
    def __init__(self, config):
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)

class GPTConfig:
    block_size: int = 1024
    n_layer: int = 12

class GPT(nn.Module):
    def __init__(self, config):
        self.transformer = nn.ModuleDict(dict(h=nn.ModuleList([Block(config)])))
"""


@pytest.mark.parametrize(
    ("program", "model", "why"),
    [
        pytest.param(PROGRAM, MODEL, "", id="nanoGPT's"),
        pytest.param(PROGRAM, "", "", id="a module that is not read"),
        pytest.param(
            PROGRAM, MODEL.replace("n_layer: int", "n_kv_head: int"), "GPTConfig has n_kv_head", id="a field more"
        ),
        pytest.param(PROGRAM, MODEL.replace("nn.Linear", "MoE"), "MLP has MoE", id="another layer"),
        pytest.param(PROGRAM.replace(READS, ""), MODEL, "reads no words of its command", id="a program without words"),
        pytest.param("n_layer = 12\n" + READS, MODEL, "train.py makes no GPTConfig", id="a program of another model"),
    ],
)
def test_the_model_of_a_fork_is_not_nanogpts(tmp_path: Path, program: str, model: str, why: str) -> None:
    files = {
        "train.py": program,
        "config/small.py": SMALL,
        "go.sh": "python train.py --n_layer=2 --n_head=2 --n_embd=8\n",
    }
    written(tmp_path, files | ({"model.py": model} if model else {}))
    for name in ("config/small.py", "go.sh"):
        (spec,) = registry.specs(load(str(tmp_path / name)))
        assert spec.family == "nanogpt"
        assert why in spec.unknown_reason if why else not spec.unknown_reason


def test_options_go_before_the_module_that_they_stand_beside(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"config/small.py": SMALL, "go.sh": "python train.py config/small.py --batch_size=2 --compile=False\n"},
    )
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (spec["micro_batch_size"], spec["sequence_length"], spec["compile"]) == (2, 512, False)
    assert line_of(spec, "sequence_length") == "block_size = 512"
    assert [edit.text for edit in spell(spec, "micro_batch_size", 1)] == ["1"]


def test_options_beside_a_module_that_is_not_there_are_not_all_that_is_set(tmp_path: Path) -> None:
    written(tmp_path, {"go.sh": "python train.py config/away.py --n_layer=2 --n_head=2 --n_embd=8\n"})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (spec.family, spec.architecture) == ("nanogpt", None)
    assert spec.unknown_reason == "no file config/away.py in this repository"


def test_an_option_is_written_as_its_program_reads_them() -> None:
    command = "python train.py --n_layer=2 --n_head=2 --n_embd=8 --batch_size=8"
    spec = run(command, "go.sh")
    assert apply_edits(command, spell(spec, "compute_dtype", "float16")) == command + " --dtype=float16"


def test_more_devices_than_a_file_states_share_its_accumulation() -> None:
    spec = run(SMALL, "config/small.py").with_facts(device_count=8)
    assert (spec["parallelism.strategy"], spec["gradient_accumulation_steps"]) == ("ddp", 4)
    assert spec.with_facts(device_count=1)["parallelism.strategy"] == "none"


def test_processes_share_the_accumulation(tmp_path: Path) -> None:
    command = "torchrun --standalone --nproc_per_node=8 train.py config/small.py\n"
    written(tmp_path, {"config/small.py": SMALL, "go.sh": command})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (spec["device_count"], spec["parallelism.strategy"]) == (8, "ddp")
    assert spec["gradient_accumulation_steps"] == 4
    after = apply_edits(SMALL, spell(spec, "gradient_accumulation_steps", 8))
    assert "gradient_accumulation_steps = 64\n" in after


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 1, "batch_size = 1", id="the micro batch"),
        pytest.param("sequence_length", 128, "block_size = 128  # context", id="the length of a row"),
        pytest.param("gradient_accumulation_steps", 64, "gradient_accumulation_steps = 64", id="accumulation"),
        pytest.param("compile", False, "compile = False", id="not compiled"),
        pytest.param("compute_dtype", "float16", 'dtype = "float16"', id="float16"),
    ],
)
def test_a_fix_is_written_as_an_assignment(fact: str, value: Any, line: str) -> None:
    edits = spell(run(SMALL, "config/small.py"), fact, value)
    after = apply_edits(SMALL, edits)
    assert line in after.replace("'", '"').splitlines()
    assert run(after, "config/small.py")[fact] == value


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("checkpointing", "full", id="nanoGPT cannot checkpoint"),
        pytest.param("optimizer", "adamw_8bit", id="nor take another optimizer"),
        pytest.param("parameter_dtype", "bfloat16", id="nor cast its weights"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(SMALL, "config/small.py"), fact, value) == []


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param(
            "dropout", "dtype = 'bf16'\ndropout", objections.UNKNOWN_VALUE, "dtype", id="a dtype by another name"
        ),
        pytest.param("= 16", "= '16'", objections.WRONG_TYPE, "batch_size", id="a batch in quotes"),
    ],
)
def test_a_wrong_value_is_found_at_its_key(old: str, new: str, kind: str, key: str) -> None:
    found = objections.violations(run(SMALL.replace(old, new, 1), "config/small.py"))
    assert [(one.kind, one.node.key_path) for one in found] == [(kind, key)]
