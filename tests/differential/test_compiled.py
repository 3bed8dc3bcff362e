"""Compiled layers keep what torch's own partitioner decides to keep for the backward pass."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode

from memlint.models import saved_bytes
from tests.differential.implementations import LAYERS
from tests.differential.test_implementations import CONFIG, spec
from tests.differential.test_language_models import Setting

SMALL = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8, "num_key_value_heads": 2}
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
SIZES = {
    "a small layer": (SMALL, 2, 64),
    "a layer of LLaMA 3 8B": (LARGE, 1, 8192),
    "as many heads of keys as of queries": ({**LARGE, "num_key_value_heads": 32}, 2, 1024),
}


def kept_by_torch(name: str, sizes: dict[str, Any], rows: int, length: int) -> int:
    """Bytes of distinct storages that the compiled forward pass of one layer hands to its backward pass."""
    kept: dict[int, int] = {}

    def forward(graph: Any, _: Any) -> Any:
        def run(*inputs: Any) -> Any:
            results = graph(*inputs)
            weights = {x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.nn.Parameter) or x is table}
            for x in results[1:]:
                if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in weights:
                    kept[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
            return results

        return run

    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.bfloat16)
        layer = LAYERS[name](sizes, name)
        torch.set_default_dtype(torch.float32)
        head = sizes["hidden_size"] // sizes["num_attention_heads"]
        table = torch.empty(length, head // 2, 2)
        if name == "torchtitan":
            table = torch.view_as_complex(table)
        weights = dict(layer.named_parameters())

        def call(weights: Any, x: Any, table: Any) -> Any:
            where = (partial(turn, table), None) if name == "torchtune" else (table,)
            return torch.func.functional_call(layer, weights, (x, *where))

        compiled = aot_function(
            call,
            fw_compiler=forward,
            bw_compiler=lambda graph, _: graph,
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
            decompositions=select_decomp_table(),
        )
        x = torch.empty(rows, length, sizes["hidden_size"], dtype=torch.bfloat16, requires_grad=True)
        compiled(weights, x, table)
    return sum(kept.values())


def turn(table: torch.Tensor, x: torch.Tensor, places: Any) -> torch.Tensor:
    """torchtune's rotation, its table given."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    table = table.view(-1, pairs.size(1), 1, pairs.size(3), 2)
    first, second = pairs[..., 0], pairs[..., 1]
    cosine, sine = table[..., 0], table[..., 1]
    return torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1).flatten(3).type_as(x)


def kept_by_us(name: str, sizes: dict[str, Any], rows: int, length: int) -> int:
    """By one layer more."""
    setting = Setting(dtype="bfloat16", rows=rows, length=length)
    found = []
    for layers in (2, 3):
        made = spec(name, setting, False, 0, compile=True)
        config = {**CONFIG, **sizes, "num_hidden_layers": layers, "max_position_embeddings": length}
        found.append(saved_bytes(made.with_facts(**{"hyperparameters.config": config})))
    return found[1] - found[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["torchtune", "torchtitan"])
def test_a_compiled_layer_keeps_what_the_partitioner_keeps(name: str, size: str) -> None:
    sizes, rows, length = SIZES[size]
    assert kept_by_us(name, sizes, rows, length) == pytest.approx(kept_by_torch(name, sizes, rows, length), rel=0.005)
