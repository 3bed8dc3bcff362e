"""torchtitan's own Llama and loss, against ``memlint.models.language.implementations`` and
``schemas/torchtitan.schema.json``."""

from __future__ import annotations

from typing import Any

import pytest
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import JobConfig
from torchtitan.models.llama3 import llama3_args
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

from tests.libraries.common import CONFIG, LENGTH, hold, spec
from tests.libraries.defaults import stated


def build() -> Any:
    # The width of the perceptron follows from these: 2/3 of 4 x 128, x 1.0, up to a multiple of 352.
    return Transformer(
        TransformerModelArgs(
            dim=CONFIG["hidden_size"],
            n_layers=CONFIG["num_hidden_layers"],
            n_heads=CONFIG["num_attention_heads"],
            n_kv_heads=CONFIG["num_key_value_heads"],
            vocab_size=CONFIG["vocab_size"],
            multiple_of=CONFIG["intermediate_size"],
            max_seq_len=LENGTH,
        )
    )


def loss(model: Any, batch: Any) -> Any:
    """``forward_backward_step`` of torchtitan/train.py."""
    prediction = model(batch["tokens"])
    found = cross_entropy_loss(prediction, batch["labels"])
    del prediction
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_takes_what_ours_takes(dtype: str) -> None:
    hold(spec("torchtitan", dtype), build, dtype, loss)


@pytest.mark.parametrize(("flavor", "ours"), [("8B", "meta-llama/Llama-3.1-8B"), ("405B", "meta-llama/Llama-3.1-405B")])
def test_flavours_have_the_sizes_of_the_catalogue(flavor: str, ours: str) -> None:
    from memlint.data import models

    found = models.find(ours)
    assert found is not None
    theirs, config = llama3_args[flavor], dict(found.config)
    assert (theirs.dim, theirs.n_layers, theirs.n_heads, theirs.n_kv_heads, theirs.vocab_size) == tuple(
        config[name]
        for name in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
        )
    )  # fmt: skip


# What the schema says of a default in other words than the library.
OTHERWISE = {"parallelism.data_parallel_shard_degree": (-1, None)}


def test_defaults_are_those_of_its_job_config() -> None:
    config = JobConfig()
    defaults = stated("torchtitan", "torchtitan 0.2: JobConfig")
    assert len(defaults) > 20
    for key, default in defaults.items():
        theirs: Any = config
        for name in key.split("."):
            theirs = getattr(theirs, name)
        assert (theirs, default) == OTHERWISE.get(key, (default, default)), key
