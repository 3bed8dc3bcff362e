"""``-o key=value`` goes before all that a run is stated by: its file, and the options beside that."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from tests.dialects.language_models import written

TRAINER = """\
model_name_or_path: gpt2
per_device_train_batch_size: 4
block_size: 128
output_dir: out
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 128
"""


@pytest.mark.parametrize(
    ("command", "override", "batch"),
    [
        pytest.param("run_clm.py a.yaml", "per_device_train_batch_size=1", 1, id="a file's key"),
        pytest.param(
            "run_clm.py a.yaml --per_device_train_batch_size 2",
            "per_device_train_batch_size=1",
            1,
            id="an option over a file's key",
        ),
        pytest.param(
            "torchtitan/train.py --job.config_file a.toml --training.local_batch_size 2",
            "training.local_batch_size=1",
            1,
            id="an option that leads into the file",
        ),
        pytest.param(
            "torchtitan/train.py --job.config_file a.toml --training.local_batch_size=2",
            "~training.local_batch_size",
            8,
            id="one that is removed leaves the default",
        ),
        pytest.param(
            "torchtitan/train.py --job.config_file a.toml --training.local_batch_size 2",
            "training.seq_len=64",
            2,
            id="and leaves other options alone",
        ),
    ],
)
def test_a_file_and_options(command: str, override: str, batch: int, tmp_path: Path) -> None:
    written(tmp_path, {"a.yaml": TRAINER, "a.toml": TITAN, "go.sh": f"torchrun --nproc_per_node 8 {command}\n"})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")), [override])
    assert spec["micro_batch_size"] == batch


@pytest.mark.parametrize(
    ("options", "override", "fact", "value"),
    [
        pytest.param("--train.micro_batch_size 8", "train.micro_batch_size=2", "micro_batch_size", 2, id="as written"),
        pytest.param("--train.micro_batch_size 8", "--train.micro_batch_size=2", "micro_batch_size", 2, id="dashes"),
        pytest.param("--train.micro_batch_size 8", "train.max_seq_length=64", "sequence_length", 64, id="beside it"),
        pytest.param(
            "--precision bf16-true", "train.max_seq_length=64", "sequence_length", 64, id="a table of its own"
        ),
    ],
)
def test_options_that_are_a_tree(options: str, override: str, fact: str, value: int) -> None:
    (spec,) = registry.specs(load("go.sh", f"litgpt pretrain pythia-160m {options}\n"), [override])
    assert spec[fact] == value


@pytest.mark.parametrize("flag", ["bf16", "use-distributed-optimizer", "sequence-parallel"])
def test_a_flag_that_is_set_to_false_is_as_good_as_left_out(flag: str) -> None:
    command = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 2 --vocab-size 32000 --sequence-parallel "
        "--tensor-model-parallel-size 2 --tokenizer-type NullTokenizer --bf16 --use-distributed-optimizer\n"
    )
    (off,) = registry.specs(load("go.sh", command), [f"{flag}=false"])
    (out,) = registry.specs(load("go.sh", command.replace(f" --{flag}", "")))
    (on,) = registry.specs(load("go.sh", command))
    assert {name: off[name] for name in off} == {name: out[name] for name in out}
    assert {name: on[name] for name in on} != {name: out[name] for name in out}
