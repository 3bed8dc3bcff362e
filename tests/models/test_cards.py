"""What a run takes on a card that FlashAttention does not run on."""

from __future__ import annotations

from pathlib import Path

import pytest

import memlint
from memlint.meta import tensor as meta
from memlint.meta.ops.attention import _attention_backend

CHATTING = "trl sft --model_name_or_path {model} --max_length 2048 --fp16 --gradient_checkpointing --output_dir out\n"
MEGATRON = (
    "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16"
    " --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --vocab-size 32000 --fp16"
    " --tokenizer-type NullTokenizer {more}\n"
)


def peak(tmp_path: Path, command: str, gpu: str) -> int:
    (tmp_path / "run.sh").write_text(command, encoding="utf-8")
    return memlint.estimate(tmp_path / "run.sh", gpu=gpu).allocated_bytes


@pytest.mark.parametrize(
    ("heads", "dtype", "before", "since"),
    [
        pytest.param(4, "float16", "efficient", "flash", id="equal heads in float16"),
        pytest.param(
            2, "float16", "math", "flash", id="grouped heads, which the memory-efficient kernel does not take"
        ),
        pytest.param(4, "bfloat16", "math", "flash", id="bfloat16, which it does not take there"),
        pytest.param(4, "float32", "efficient", "efficient", id="float32"),
    ],
)
def test_which_kernel_computes_attention(heads: int, dtype: str, before: str, since: str) -> None:
    with meta.recording():
        query = meta.empty((1, 4, 64, 64), meta.DTYPES[dtype])
        key = meta.empty((1, heads, 64, 64), meta.DTYPES[dtype])
        for old, kernel in ((True, before), (False, since)):
            meta.state.without_flash = old
            assert _attention_backend(query, key, key) == kernel


@pytest.mark.parametrize("gpu", ["t4x1", "v100-32gbx1", "rtx2080tix1"])
def test_grouped_heads_write_their_scores_out_before_ampere(tmp_path: Path, gpu: str) -> None:
    grouped = CHATTING.format(model="Qwen/Qwen2.5-0.5B")
    assert peak(tmp_path, grouped, gpu) > peak(tmp_path, grouped, "a100-40gbx1")


def test_equal_heads_have_a_fused_kernel_before_ampere(tmp_path: Path) -> None:
    equal = CHATTING.format(model="EleutherAI/pythia-160m")
    assert peak(tmp_path, equal, "t4x1") == pytest.approx(peak(tmp_path, equal, "a100-40gbx1"), rel=0.01)


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        pytest.param("", True, id="Transformer Engine's choice"),
        pytest.param("--attention-backend unfused", False, id="scores that are written out on any card"),
    ],
)
def test_megatron_writes_its_scores_out_before_ampere(tmp_path: Path, more: str, differs: bool) -> None:
    command = MEGATRON.format(more=more)
    assert (peak(tmp_path, command, "v100-32gbx1") > peak(tmp_path, command, "a100-40gbx1")) is differs


def test_a_card_of_another_maker_has_no_capability_to_compare(tmp_path: Path) -> None:
    grouped = CHATTING.format(model="Qwen/Qwen2.5-0.5B")
    assert peak(tmp_path, grouped, "mi300xx1") == peak(tmp_path, grouped, "a100-40gbx1")
