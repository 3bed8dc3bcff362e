"""Every combination of the switches of Megatron's layer is a model, and has the weights that torch counts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from memlint.architectures.decoder import Decoder
from memlint.architectures.megatron import decoder
from memlint.facts.spec import TrainingSpec
from memlint.models import record
from tests.dialects.language_models import run

WIDTH, HEADS, LAYERS, ROWS, LENGTH, INNER = 64, 4, 2, 128, 32, 128


class Switches(NamedTuple):
    norm: str
    gated: bool
    positions: str
    biased: bool
    qkv_biased: bool
    query_norm: bool
    parallel: bool
    grouped: bool
    dropout: bool

    @property
    def decoder(self) -> Decoder:
        return decoder(**self.options)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "layers": LAYERS,
            "width": WIDTH,
            "heads": HEADS,
            "groups": 2 if self.grouped else HEADS,
            "inner": INNER,
            "vocabulary": ROWS,
            "length": LENGTH,
            "positions": self.positions,
            "norm": self.norm,
            "gated": self.gated,
            "activation": "silu" if self.gated else "gelu",
            "biased": self.biased,
            "qkv_biased": self.qkv_biased,
            "query_norm": self.query_norm,
            "parallel": self.parallel,
            "hidden_dropout": 0.1 * self.dropout,
            "attention_dropout": 0.1 * self.dropout,
        }

    @property
    def arguments(self) -> str:
        """As Megatron-LM's command line says it, which has no parallel layer."""
        words = {
            "--normalization RMSNorm": self.norm == "rms",
            "--swiglu": self.gated,
            "--disable-bias-linear": not self.biased,
            "--add-qkv-bias": self.qkv_biased,
            "--qk-layernorm": self.query_norm,
            "--group-query-attention --num-query-groups 2": self.grouped,
            "--hidden-dropout 0 --attention-dropout 0": not self.dropout,
        }
        kind = {"learned": "learned_absolute"}.get(self.positions, self.positions)
        return " ".join((f"--position-embedding-type {kind}", *(word for word, said in words.items() if said)))


def switches() -> Iterator[Switches]:
    two = (False, True)
    yield from itertools.starmap(
        Switches,
        itertools.product(("layer", "rms"), two, ("learned", "rope", "alibi"), two, two, two, two, two, two),
    )


ALL = tuple(switches())


def weights(chosen: Switches) -> int:
    """Of the same layers, as anybody would write them in torch."""
    from torch import nn

    def norm(width: int) -> Any:
        return nn.LayerNorm(width) if chosen.norm == "layer" else nn.RMSNorm(width)

    head = WIDTH // HEADS
    groups = 2 if chosen.grouped else HEADS
    parts: list[Any] = [nn.Embedding(ROWS, WIDTH, device="meta"), norm(WIDTH)]
    if chosen.positions == "learned":
        parts.append(nn.Embedding(LENGTH, WIDTH, device="meta"))
    for _ in range(LAYERS):
        parts += [norm(WIDTH), norm(WIDTH)]
        parts.append(nn.Linear(WIDTH, (HEADS + 2 * groups) * head, bias=chosen.biased or chosen.qkv_biased))
        parts.append(nn.Linear(WIDTH, WIDTH, bias=chosen.biased))
        parts.append(nn.Linear(WIDTH, 2 * INNER if chosen.gated else INNER, bias=chosen.biased))
        parts.append(nn.Linear(INNER, WIDTH, bias=chosen.biased))
        if chosen.query_norm:
            parts += [norm(head), norm(head)]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def spec_of(chosen: Switches) -> TrainingSpec:
    """The same run with the combination in place of the one that is written."""
    text = f"torchrun --nproc_per_node 1 pretrain_gpt.py --bf16 {SIZES}\n"
    return run(text, "train.sh").with_facts(decoder=chosen.decoder)


SIZES = (
    f"--num-layers {LAYERS} --hidden-size {WIDTH} --num-attention-heads {HEADS} --ffn-hidden-size {INNER} "
    f"--padded-vocab-size {ROWS} --seq-length {LENGTH} --max-position-embeddings {LENGTH} --micro-batch-size 2"
)


def test_there_are_768_combinations_and_each_has_an_estimate() -> None:
    assert len(ALL) == 768
    for chosen in ALL:
        assert record(spec_of(chosen)).tape.sizes, chosen


@pytest.mark.parametrize("chosen", random.Random(7).sample(ALL, 100), ids=str)
def test_the_weights_are_those_that_torch_counts(chosen: Switches) -> None:
    assert record(spec_of(chosen)).parameters == weights(chosen)


def test_each_combination_that_a_command_line_can_state_is_the_one_that_it_states() -> None:
    for chosen in ALL:
        if not chosen.parallel:
            spec = run(f"torchrun --nproc_per_node 1 pretrain_gpt.py --bf16 {SIZES} {chosen.arguments}\n", "train.sh")
            assert spec.unknown_reason == "", chosen.arguments
            assert spec["decoder"] == chosen.decoder, chosen.arguments


@pytest.mark.parametrize("norm", [False, True], ids=["ALiBi", "ALiBi and a norm of embeddings, as BLOOM has it"])
def test_a_norm_of_embeddings_is_there_where_it_is_asked_for(norm: bool) -> None:
    options = {**ALL[0].options, "positions": "alibi", "embedding_norm": norm}
    made = record(spec_of(ALL[0]).with_facts(decoder=decoder(**options)))
    plain = record(spec_of(ALL[0])).parameters - LENGTH * WIDTH  # which has learned positions
    assert ALL[0].positions == "learned"
    assert made.parameters == plain + norm * 2 * WIDTH
