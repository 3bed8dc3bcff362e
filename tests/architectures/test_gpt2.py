"""GPT-2's sizes, as nanoGPT and llm.c name them."""

from __future__ import annotations

import pytest

from memlint.architectures import gpt2
from memlint.architectures.decoder import Decoder
from memlint.facts.spec import UnknownModel
from memlint.models import llm_c
from tests.architectures.counting import parameters

# Of the files of weights that OpenAI published. (Their names say 124M, 355M, 774M and 1558M.)
COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}


def nanogpt(name: str) -> Decoder:
    return gpt2.gpt2(*gpt2.PUBLISHED[name], gpt2.POSITIONS, gpt2.ROWS)


@pytest.mark.parametrize(("name", "count"), COUNTS.items(), ids=COUNTS)
def test_the_published_sizes_have_the_parameters_of_the_published_weights(name: str, count: int) -> None:
    assert parameters(nanogpt(name), "nanogpt") == count
    assert parameters(gpt2.twin(name), "llm_c") == count


@pytest.mark.parametrize(
    ("name", "published"),
    [("d12", "gpt2"), ("d24", "gpt2-medium"), ("gpt2_774M.bin", "gpt2-large"), ("gpt2:d48", "gpt2-xl")],
)
def test_the_program_in_cuda_pads_the_vocabulary_alone(name: str, published: str) -> None:
    made = gpt2.descriptor(name)
    assert llm_c.parameters(made) == COUNTS[published] + (gpt2.PADDED - gpt2.ROWS) * made.width
    assert parameters(made, "llm_c") == llm_c.parameters(made)


@pytest.mark.parametrize("width", [384, 768, 1024, 1536, 2048, 2560, 4096, 12288])
def test_gpt_3_is_named_by_its_width(width: int) -> None:
    made = gpt2.descriptor(f"gpt3:c{width}")
    assert (made.width, made.positions, made.heads * made.head_dim) == (width, 2048, width)


@pytest.mark.parametrize("bias", [True, False], ids=["with biases", "without biases"])
def test_nanogpts_one_switch_is_of_products_and_norms(bias: bool) -> None:
    layers, width = 2, 64
    made = gpt2.gpt2(layers, 4, width, 32, 100, bias=bias)
    biases = layers * (3 + 1 + 4 + 1 + 2) * width + width
    assert parameters(made, "nanogpt") == (100 + 32 + 12 * layers * width + 2 * layers + 1) * width + bias * biases


@pytest.mark.parametrize(
    ("read", "name", "reason"),
    [
        (gpt2.twin, "d13", "--model d13: no size of train_gpt2.py's"),
        (gpt2.descriptor, "d13", "-e d13: the sizes of the model are in that file"),
        (gpt2.descriptor, "gpt3:c100", "-e gpt3:c100: the sizes of the model are in that file"),
        (gpt2.descriptor, "weights.bin", "-e weights.bin: the sizes of the model are in that file"),
    ],
)
def test_a_size_that_is_not_there_is_named(read: object, name: str, reason: str) -> None:
    assert callable(read)
    with pytest.raises(UnknownModel, match=reason):
        read(name)
