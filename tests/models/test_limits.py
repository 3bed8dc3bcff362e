"""Slips of the keyboard: what no run could be is said to be so, at once."""

from __future__ import annotations

import pytest

from memlint.architectures import huggingface
from memlint.architectures.sizes import MOST_LAYERS
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.tape import Label, Tape
from memlint.models import UnknownModel, record
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import AllocatorConf
from tests.effort import counted_lines

LLAMA = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip


def test_layers_are_counted_before_they_are_built() -> None:
    assert huggingface.decoder({**LLAMA, "num_hidden_layers": MOST_LAYERS}).layers == MOST_LAYERS
    with pytest.raises(UnknownModel, match="num_hidden_layers is 987,654,321, not a whole number from 1 to 2,000"):
        huggingface.decoder({**LLAMA, "num_hidden_layers": 987_654_321})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        pytest.param(
            "a.py",
            "n_layer = 99999999999\nn_head = 2\nn_embd = 64\nbatch_size = 1\nblock_size = 8\n",
            " is 99,999,999,999, not a whole number from 1 to 2,000",
            id="layers",
        ),
        pytest.param(
            "a.py",
            "n_layer = 2\nn_head = 2\nn_embd = 64\nbatch_size = 99999999999\nblock_size = 8\n",
            "batch_size is 99,999,999,999",
            id="samples",
        ),
        pytest.param(
            "a.py",
            "n_layer = 2\nn_head = 2\nn_embd = 64\nbatch_size = 1\nblock_size = 99999999999\n",
            "block_size is 99,999,999,999",
            id="tokens",
        ),
        pytest.param(
            "a.sh",
            "torchrun pretrain_gpt.py --num-layers 99999999999 --hidden-size 64 "
            "--num-attention-heads 2 --micro-batch-size 1 --seq-length 8 --vocab-size 100\n",
            " is 99,999,999,999, not a whole number from 1 to 2,000",
            id="Megatron's",
        ),
    ],
)
def test_what_no_run_could_be_is_not_built(name: str, text: str, reason: str) -> None:
    with counted_lines(most=500_000):
        (spec,) = registry.specs(load(name, text))
        with pytest.raises(UnknownModel) as raised:
            record(spec)
    assert reason in str(raised.value)


def test_sizes_beyond_any_card_are_added_up_all_the_same() -> None:
    tape = Tape()
    for _ in range(3):
        tape.allocate(1 << 62, Label("activations", ""))
    assert simulate(tape, AllocatorConf()).allocated_peak_bytes >= 3 << 62
