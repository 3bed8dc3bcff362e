"""Families llm-c and rwkv: options of trainers whose own kernels are not known, and of llm.c's twin in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs
from tests.documents.conftest import shared_folder

TWIN = """\
torchrun --standalone --nproc_per_node=4 train_gpt2.py \\
    --input_bin "data/ours_*.bin" \\
    --model d24 \\
    --batch_size 8 \\
    --sequence_length 512 \\
    --total_batch_size 65536 \\
    --dtype bfloat16 \\
    --compile 1 \\
    --flash 1
"""
CUDA = "mpirun -np 4 ./train_gpt2cu -i data/ours.bin -b 16 -t 512 -d 131072 -r 0 -z 1 -e d12 -x 100\n"
RWKV = """\
BSZ=8
python train.py --my_testing x070 --ctx_len 1024 --micro_bsz $BSZ --n_layer 24 --n_embd 2048 --vocab_size 65536 \\
    --precision bf16 --strategy deepspeed_stage_2 --devices 4 --grad_cp 1
"""


@pytest.mark.parametrize(
    ("text", "families"),
    [
        pytest.param(TWIN, ["llm-c"], id="the twin in PyTorch"),
        pytest.param(CUDA, ["llm-c"], id="the program in CUDA"),
        pytest.param(RWKV, ["rwkv"], id="RWKV"),
        pytest.param("python train.py --batch_size 4 --sequence_length 8", [], id="options that say nothing"),
        pytest.param("make train_gpt2cu USE_CUDNN=1", [], id="building it trains nothing"),
    ],
)
def test_recognition(text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, "go.sh")] == families


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 8, "--batch_size 8 \\", id="the micro batch"),
        pytest.param("sequence_length", 512, "--sequence_length 512 \\", id="the length of a row"),
        pytest.param("gradient_accumulation_steps", 4, "--total_batch_size 65536 \\", id="accumulation, of tokens"),
        pytest.param("compute_dtype", "bfloat16", "--dtype bfloat16 \\", id="products"),
        pytest.param("compile", True, "--compile 1 \\", id="compile"),
        pytest.param("attention", "sdpa", "--flash 1", id="attention"),
        pytest.param("parallelism.strategy", "ddp", None, id="DDP"),
        pytest.param("device_count", 4, None, id="processes"),
    ],
)
def test_options_of_the_twin(fact: str, value: Any, line: str | None) -> None:
    spec = run(TWIN, "go.sh")
    assert spec.architecture == "language_model"
    assert spec["hyperparameters.config"]["num_hidden_layers"] == 24
    assert spec[fact] == value
    if line is not None:
        assert line_of(spec, fact) == line


def test_a_fix_is_written_as_an_option() -> None:
    after = apply_edits(TWIN, spell(run(TWIN, "go.sh"), "micro_batch_size", 2))
    assert "--batch_size 2 \\\n" in after
    assert run(after, "go.sh")["gradient_accumulation_steps"] == 16
    assert spell(run(TWIN, "go.sh"), "checkpointing", "full") == []


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        pytest.param(
            CUDA,
            {"micro_batch_size": 16, "sequence_length": 512, "gradient_accumulation_steps": 4, "master_weights": True},
            "buffers of its own",
            id="llm.c in CUDA",
        ),
        pytest.param(TWIN.replace("--flash", "--zero_stage 1 --flash"), {"device_count": 4}, "zero_stage 1", id="ZeRO"),
        pytest.param(TWIN.replace("d24", "d13"), {}, "--model d13", id="a size that is not there"),
        pytest.param(
            RWKV,
            {
                "micro_batch_size": 8,
                "checkpointing": "full",
                "parallelism.zero_stage": 2,
                "device_count": 4,
                "compute_dtype": "bfloat16",
            },
            "what its time mixing keeps",
            id="RWKV",
        ),
    ],
)
def test_what_is_not_known_is_named(text: str, facts: dict[str, Any], reason: str) -> None:
    spec = run(text, "go.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason
    assert {name: spec[name] for name in facts} == facts


def test_real_scripts_are_recognised() -> None:
    folder = shared_folder()
    if folder is None:
        pytest.skip("no folder of real configs on this machine")
    families = {
        path.name: {spec.family for spec in registry.specs(load(str(path)))}
        for path in sorted((folder / "corpus" / "nanogpt").iterdir())
        if "TinyLlama" not in path.name
    }
    assert all(found and found <= {"llm-c", "rwkv"} for found in families.values()), families
