"""Family build-nanogpt: a train_gpt2.py that takes no options, read by its own constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import record
from tests.dialects.language_models import written

# The words by which the program is told, and no more of it.
PROGRAM = """\
class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)

class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768

class GPT(nn.Module):
    def __init__(self, config):
        self.transformer.wte.weight = self.lm_head.weight

total_batch_size = 2**19
B = 4 * 4
T = 1024
model = GPT(GPTConfig(vocab_size=50304))
use_compile = False
optimizer = torch.optim.AdamW(groups, fused=use_fused)
with torch.autocast(device_type=device_type, dtype=torch.bfloat16):
    logits, loss = model(x, y)
loss = loss / grad_accum_steps
"""
ALONE, EIGHT = "python train_gpt2.py\n", "torchrun --standalone --nproc_per_node=8 train_gpt2.py\n"


def read(folder: Path, program: str, command: str = ALONE) -> TrainingSpec:
    written(folder, {"train_gpt2.py": program, "go.sh": command})
    (spec,) = registry.specs(load(str(folder / "go.sh")))
    return spec


@pytest.mark.parametrize(
    ("program", "command", "family"),
    [
        pytest.param(PROGRAM, ALONE, "build-nanogpt", id="its constants"),
        pytest.param(PROGRAM, "python train_gpt2.py --lr 1\n", "program", id="a program that is given options"),
        pytest.param(PROGRAM.replace("B = ", "size = "), ALONE, "program", id="no rows"),
        pytest.param("import argparse\n" + PROGRAM, ALONE, "program", id="a program that takes options"),
        pytest.param(PROGRAM.replace("GPTConfig", "Config"), ALONE, "program", id="another config"),
    ],
)
def test_recognition(tmp_path: Path, program: str, command: str, family: str) -> None:
    assert read(tmp_path, program, command).family == family


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("B = 4 * 4", "B = 64", "micro_batch_size", 64, id="rows"),
        pytest.param("B = 4 * 4", "B = 4 * 4", "micro_batch_size", 16, id="rows as a product"),
        pytest.param("T = 1024", "T = 256", "sequence_length", 256, id="tokens"),
        pytest.param("= False", "= True", "compile", True, id="compiled"),
        pytest.param("= False", "= False", "compile", False, id="not compiled"),
        pytest.param("2**19", "2**19", "gradient_accumulation_steps", 32, id="accumulation"),
        pytest.param("50304", "50257", "vocabulary_size", 50257, id="the vocabulary"),
    ],
)
def test_a_constant_and_its_fact(tmp_path: Path, old: str, new: str, fact: Any, value: Any) -> None:
    spec = read(tmp_path, PROGRAM.replace(old, new))
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert spec[fact] == value


def test_processes_share_the_tokens_of_a_step(tmp_path: Path) -> None:
    spec = read(tmp_path, PROGRAM, EIGHT)
    assert (spec["parallelism.strategy"], spec["device_count"], spec["gradient_accumulation_steps"]) == ("ddp", 8, 4)


@pytest.mark.parametrize(
    ("made", "count"),
    [
        pytest.param("GPTConfig(vocab_size=50257)", 124_439_808, id="OpenAI's smallest"),
        pytest.param("GPTConfig(vocab_size=50304)", 124_475_904, id="with 47 rows more of 768 numbers"),
    ],
)
def test_the_published_size_has_the_parameters_of_the_published_weights(tmp_path: Path, made: str, count: int) -> None:
    spec = read(tmp_path, PROGRAM.replace("GPTConfig(vocab_size=50304)", made))
    assert record(spec).parameters == count


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        pytest.param("F.scaled", "attend", "writes its scores", id="attention written out"),
        pytest.param("torch.autocast(", "plainly(", "no autocast", id="fp32"),
        pytest.param("nn.Linear(", "nn.Conv1d(", "CausalSelfAttention has Conv1d", id="another layer"),
        pytest.param("class GPT(", "class MoE(nn.Module):\n    pass\n\nclass GPT(", "a class MoE", id="a class more"),
        pytest.param("    n_head: int = 12\n", "    n_kv: int = 4\n", "sizes of its model", id="a field more"),
        pytest.param("T = 1024", "T = 2048", "block_size 1,024, which the model refuses", id="rows that are too long"),
    ],
)
def test_a_program_that_does_otherwise_is_unknown_by_what_it_does(tmp_path: Path, old: str, new: str, why: str) -> None:
    spec = read(tmp_path, PROGRAM.replace(old, new))
    assert spec.architecture is None
    assert why in spec.unknown_reason
