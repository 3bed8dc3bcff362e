"""Forks of nanoGPT: whose defaults, model and optimizer are their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.reports.report import RunReport
from tests.dialects.language_models import written
from tests.differential.own_models import GPT, LLAMA, TRAIN

PROGRAM = TRAIN.format(
    config="GPTConfig",
    model="GPT",
    more="dropout=dropout, bias=bias, written_out=extra",
    call="logits, loss = model(X, Y)",
)
REST = "grad = 1\ngradient_accumulation_steps = 5\neval_iters = 0\ndtype = 'bfloat16'\nexec("
FORK = PROGRAM.replace("exec(", REST, 1)
OTHER = (
    TRAIN.format(config="Sizes", model="Model", more="n_kv=2", call="logits = model(X, Y)\n    loss = model.last_loss")
    .replace("exec(", REST, 1)
    .replace("block_size = 128", "max_seq_len = 64")
    .replace("block_size=block_size", "block_size=max_seq_len")
)
CONFIG = "batch_size = 4\nblock_size = 128\nn_layer = 2\nn_head = 4\nn_embd = 128\ngradient_accumulation_steps = 2\n"


def checked(folder: Path, files: dict[str, str], path: str) -> RunReport:
    (run,) = memlint.check(str(written(folder, files) / path), isolated=True).runs
    return run


def parameters(layers: int, width: int = 128, length: int = 128) -> int:
    """Of GPT above, by hand: tied tables, four products and two norms a layer, no biases."""
    return 50_304 * width + length * width + layers * (12 * width * width + 2 * width) + width


@pytest.mark.parametrize(
    ("config", "layers", "rows"),
    [
        pytest.param(CONFIG, 2, 4, id="what the file says goes before the program"),
        pytest.param("init_from = 'scratch'\nbatch_size = 8\nblock_size = 128\n", 4, 8, id="the program's defaults"),
    ],
)
def test_a_model_of_its_own_is_followed(tmp_path: Path, config: str, layers: int, rows: int) -> None:
    files = {"train.py": FORK, "model.py": GPT, "config/small.py": config}
    run = checked(tmp_path, files, "config/small.py")
    assert run.estimate is not None
    assert run.estimate.parameters == parameters(layers)
    assert run.facts["micro_batch_size"].value == rows


def test_a_command_without_a_word_trains_what_the_program_assigns(tmp_path: Path) -> None:
    files = {"train.py": FORK, "model.py": GPT, "README.md": "```sh\ntorchrun --nproc_per_node=2 train.py\n```\n"}
    run = checked(tmp_path, files, "README.md")
    assert run.estimate is not None
    assert run.estimate.parameters == parameters(4)


def test_attention_that_is_written_out_is_what_the_code_says(tmp_path: Path) -> None:
    """Liuhong99/Sophia at a7e1572: model.py makes the scores, which nanoGPT's own does not since torch 2."""
    line = "python train.py --batch_size=4 --compile=False --n_layer=2"
    files = {"train.py": FORK, "model.py": GPT, "a.sh": f"{line}\n", "b.sh": f"{line} --extra=True\n"}
    fused, plain = (checked(tmp_path, files, name).estimate for name in ("a.sh", "b.sh"))
    assert fused is not None
    assert plain is not None
    scores = 4 * 4 * 128 * 128
    assert plain.saved_bytes - fused.saved_bytes > 2 * 2 * scores


def test_a_row_may_be_called_otherwise(tmp_path: Path) -> None:
    run = checked(tmp_path, {"train.py": OTHER, "model.py": LLAMA, "a.sh": "python train.py --batch_size=4\n"}, "a.sh")
    assert run.estimate is not None
    assert run.facts["sequence_length"].value == 64


@pytest.mark.parametrize(
    ("files", "why"),
    [
        pytest.param(
            {"train.py": FORK.replace("dataset =", "optimizer_name = 'ours'\ndataset =")}, "ours", id="a name"
        ),
        pytest.param(
            {"train.py": FORK.replace("model.configure_optimizers(0.1)", "Ours(model)")}, "Ours", id="another class"
        ),
        pytest.param({"model.py": GPT.replace("self.out(y)", "odd(y)")}, "odd is not known", id="code of nobody's"),
        pytest.param({"train.py": FORK.replace("batch_size", "rows")}, "batch_size", id="no batch"),
        pytest.param({"train.py": "x = 1\n"}, "said elsewhere", id="no program that takes the file"),
    ],
)
def test_what_is_not_known_of_a_fork_is_told(tmp_path: Path, files: dict[str, str], why: str) -> None:
    run = checked(tmp_path, {"train.py": FORK, "model.py": GPT, "config/small.py": CONFIG, **files}, "config/small.py")
    assert run.estimate is None
    assert why in run.unknown


def test_a_file_that_says_a_model_by_a_name_of_its_own_is_another_program_s(tmp_path: Path) -> None:
    """chongwei730/nanoGPT: config/train_llama_1b.py has llama_config_path, and train.py knows of none."""
    files = {"train.py": FORK, "model.py": GPT, "config/l.py": CONFIG + "llama_config_path = 'llama_1b.json'\n"}
    run = checked(tmp_path, files, "config/l.py")
    assert run.estimate is None
    assert "llama_config_path" in run.unknown


def test_a_program_in_a_folder_of_another_machine_is_found_by_its_name(tmp_path: Path) -> None:
    files = {"train.py": "x = 1\n", "other.py": FORK, "model.py": GPT}
    files["a.sh"] = "python /scratch/ours/other.py --n_layer=2 --n_head=4 --n_embd=128 --batch_size=4\n"
    run = checked(tmp_path, files, "a.sh")
    assert run.estimate is not None
    assert run.estimate.parameters == parameters(2)


def test_an_optimizer_that_is_called_adamw_is_one(tmp_path: Path) -> None:
    """FengMingquan-sjtu/nanoGPT: train.py has model.configure_AdamW_optimizer."""
    program = FORK.replace("configure_optimizers", "configure_AdamW_optimizer")
    files = {"train.py": program, "model.py": GPT, "config/small.py": CONFIG}
    assert checked(tmp_path, files, "config/small.py").estimate is not None


@pytest.mark.parametrize("on", [False, True])
def test_which_optimizer_is_made_a_switch_may_say(tmp_path: Path, on: bool) -> None:
    made = "optimizer = model.configure_optimizers(0.1)"
    assert made in FORK
    program = FORK.replace(made, f"if not ours:\n    {made}\nelse:\n    optimizer = Ours(model)")
    program = program.replace("dataset =", f"ours = {on}\ndataset =")
    files = {"train.py": program, "model.py": GPT, "config/small.py": CONFIG}
    assert (checked(tmp_path, files, "config/small.py").estimate is None) is on


@pytest.mark.parametrize("made", ["GPT(gptconf)", "AutoModelForCausalLM.from_pretrained(path)"])
def test_another_model_beside_is_told(tmp_path: Path, made: str) -> None:
    """FengMingquan-sjtu/nanoGPT: train.py asks a reference as well."""
    program = FORK.replace("optimizer = model", f"reference = {made}\noptimizer = model")
    run = checked(tmp_path, {"train.py": program, "model.py": GPT, "config/small.py": CONFIG}, "config/small.py")
    assert run.estimate is None
    assert "another model" in run.unknown


def test_a_config_that_a_module_imports_from_another_is_found(tmp_path: Path) -> None:
    """klei22/nanoGPT: model.py has its GPTConfig from gpt_conf.py, with fields of its own."""
    parts = GPT.split("@dataclass\nclass GPTConfig:")
    config, rest = parts[1].split("class GPT(nn.Module)")
    conf = "from dataclasses import dataclass\nfrom typing import Optional\n\n@dataclass\nclass GPTConfig:" + config
    model = f"from gpt_conf import GPTConfig\n{parts[0]}class GPT(nn.Module){rest}"
    files = {"train.py": FORK, "model.py": model, "gpt_conf.py": conf, "config/small.py": CONFIG}
    run = checked(tmp_path, files, "config/small.py")
    assert run.model_name == "a model of the repository's own"
    assert run.estimate is not None
    assert run.estimate.parameters == parameters(2)
