"""Family nanochat: options of scripts.base_train, and what the repository's own code says of its release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.nanochat import NEWEST
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.models import record
from tests.dialects.language_models import line_of, run, runs, written

NOW = "torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --device-batch-size=16 --fp8\n"
THEN = "torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=20 --device_batch_size=32\n"
# What decides in a repository's own code, in a few lines of the same words.
MODEL = """\
class GPTConfig:
    n_layer: int = 12
    n_embd: int = 768

class MLP(nn.Module):
    def __init__(self, config):
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        return F.relu(x).square()

class GPT(nn.Module):
    def __init__(self, config):
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
"""
REPOSITORY = {
    "nanochat/gpt.py": MODEL,
    "nanochat/muon.py": "class Muon(Optimizer):\n    pass\n",
    "scripts/base_train.py": "depth = 20 # layers\ndevice_batch_size = 32\ntotal_batch_size = 524288\n",
    "scripts/tok_train.py": "parser.add_argument('--vocab_size', type=int, default=65536)\n",
}


@pytest.mark.parametrize(
    ("text", "families"),
    [
        pytest.param(NOW, ["nanochat"], id="a model by its depth"),
        pytest.param("python scripts/base_train.py --depth=4 --device-batch-size=1", ["nanochat"], id="by its path"),
        pytest.param("python -m scripts.base_train --config a.yaml", ["program"], id="another's module of that name"),
        pytest.param("python -m scripts.base_train --depth=4", ["program"], id="a depth is anyone's"),
        pytest.param("python -m scripts.base_eval --device-batch-size=1 --depth=4", [], id="an evaluation"),
        pytest.param("python train.py --depth=4 --device-batch-size=1", ["program"], id="another program"),
    ],
)
def test_recognition(text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, "go.sh")] == families


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 16, NOW.strip(), id="the micro batch"),
        pytest.param("sequence_length", 2048, None, id="the length of a row, by default"),
        pytest.param("vocabulary_size", 32768, None, id="the tokenizer's rows"),
        pytest.param("device_count", 8, None, id="processes"),
        pytest.param("parallelism.zero_stage", 2, None, id="states that ranks share"),
        pytest.param("gradient_accumulation_steps", 4, None, id="a batch that the depth asks for"),
        pytest.param(HYPER + "width", 1536, None, id="the width"),
        pytest.param(HYPER + "fp8", True, None, id="products in 8 bits"),
        pytest.param("compile", True, None, id="compiled"),
    ],
)
def test_options_of_the_newest_release(fact: Any, value: Any, line: str | None) -> None:
    spec = run(NOW, "go.sh")
    assert (spec.architecture, spec.unknown_reason) == ("nanochat", "")
    assert spec[fact] == value
    if line is not None:
        assert line_of(spec, fact) == line


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(THEN, 560_988_160, id="d20 of the first release, as its README has it: 561M"),
        pytest.param(THEN.replace("=20", "=32"), 1_879_048_192, id="d32: 1.88B"),
        pytest.param(
            "python -m scripts.base_train --depth=12 --device-batch-size=8 --total-batch-size=65536",
            286_261_730,
            id="d12 of 2026, as a log of a run has it: 286,261,730",
        ),
    ],
)
def test_a_depth_has_the_parameters_that_are_published(text: str, count: int) -> None:
    assert record(run(text, "go.sh")).parameters == count


def in_repository(folder: Path, command: str, model: str = MODEL) -> TrainingSpec:
    written(folder, {**REPOSITORY, "nanochat/gpt.py": model, "go.sh": command})
    (spec,) = registry.specs(load(str(folder / "go.sh")))
    return spec


def test_the_spelling_of_options_tells_releases_apart_where_nothing_else_does() -> None:
    now, then = run(NOW, "go.sh"), run(THEN, "go.sh")
    assert (now[HYPER + "features"], now[HYPER + "stacked"]) == (list(NEWEST), True)
    assert (then[HYPER + "features"], then[HYPER + "stacked"]) == ([], False)
    assert (then["vocabulary_size"], then["gradient_accumulation_steps"]) == (65536, 1)


@pytest.mark.parametrize(
    ("words", "features"),
    [
        pytest.param("", [], id="none of them"),
        pytest.param("        self.resid_lambdas = nn.Parameter(x)\n", ["lambdas"], id="scales"),
        pytest.param("        self.smear_gate = nn.Linear(24, 1)\n", ["smear"], id="a token that takes of another"),
        pytest.param("        # pad_vocab_size_to\n", ["padded"], id="rows in multiples of 64"),
    ],
)
def test_the_model_is_that_of_the_repository_s_own_code(tmp_path: Path, words: str, features: list[str]) -> None:
    spec = in_repository(tmp_path, NOW, MODEL + words)
    assert (spec[HYPER + "features"], spec.unknown_reason) == (features, "")
    assert (spec["vocabulary_size"], spec["gradient_accumulation_steps"]) == (65536, 2)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        pytest.param("n_embd: int", "n_experts: int", "GPTConfig has n_experts", id="a field more"),
        pytest.param("self.c_fc", "self.c_gate", "MLP has c_gate", id="another layer"),
        pytest.param("class MLP", "class MoE", "a class MoE", id="a class more"),
        pytest.param("F.relu(x).square()", "F.silu(x)", "without the square of relu", id="another activation"),
    ],
)
def test_a_fork_that_changes_the_model_is_unknown_by_what_it_changes(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    spec = in_repository(tmp_path, NOW, MODEL.replace(old, new))
    assert spec.architecture is None
    assert why in spec.unknown_reason


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(
            "python -m scripts.chat_rl --device-batch-size=8", "scripts.chat_rl samples answers", id="it samples"
        ),
        pytest.param("python -m scripts.mid_train", "a checkpoint whose depth", id="a checkpoint of any depth"),
        pytest.param("python -m scripts.chat_sft", "as long as it is", id="rows of any length"),
        pytest.param(NOW.replace("--fp8", "--device-type=cpu"), "not on a CUDA device", id="a CPU"),
        pytest.param(NOW.replace("--fp8", "--fp8 --fp8-recipe=rowwise"), "fp8-recipe rowwise", id="scales by rows"),
        pytest.param(NOW.replace("=24", "=$d"), "depth", id="a depth that a loop says"),
        pytest.param(NOW.replace("=16", "=24"), "is no multiple of", id="a batch that does not divide the step's"),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, command: str, why: str) -> None:
    spec = in_repository(tmp_path, command)
    assert spec.architecture is None
    assert why in spec.unknown_reason


def test_what_trains_a_model_further_has_the_depth_of_its_script(tmp_path: Path) -> None:
    written(tmp_path, {**REPOSITORY, "go.sh": THEN + "torchrun --nproc_per_node=8 -m scripts.mid_train -- --run=a\n"})
    found = registry.specs(load(str(tmp_path / "go.sh")))
    assert all(spec.architecture == "nanochat" and spec[HYPER + "depth"] == 20 for spec in found)


def test_the_tokenizer_that_a_script_trains_says_how_many_rows_there_are() -> None:
    script = "python -m scripts.tok_train --vocab-size=50000\n" + NOW
    assert [spec["vocabulary_size"] for spec in runs(script, "go.sh")] == [50000]


def test_a_fix_is_written_in_the_spelling_that_is_there() -> None:
    assert "--device-batch-size=8" in apply_edits(NOW, spell(run(NOW, "go.sh"), "micro_batch_size", 8))
    assert "--device_batch_size=8" in apply_edits(THEN, spell(run(THEN, "go.sh"), "micro_batch_size", 8))
