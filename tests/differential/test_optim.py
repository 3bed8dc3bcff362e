"""Optimizers over meta tensors against torch's own: bytes of state, and the peak of a steady step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import pytest
import torch
from transformers.optimization import Adafactor

from memlint.meta import optim, optim_narrow
from memlint.meta import tensor as meta
from memlint.meta.optim_libraries import AdamWFp8
from memlint.meta.optimizer import FOREACH, FUSED, LOOP, Optimizer
from tests.differential.oracle import fake_cuda, live_and_peak

Shapes = tuple[tuple[int, ...], ...]
SHAPES: Shapes = ((64, 48), (48,), (7, 5, 3), (1,), (), (130, 2))


class Bytes(NamedTuple):
    """Beyond parameters and gradients.

    state  what the optimizer keeps
    peak   the most that a later step has alive
    """

    state: int
    peak: int


def in_torch(
    create: Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer], dtype: str, shapes: Shapes = SHAPES
) -> Bytes:
    with fake_cuda() as tracker:
        parameters = [torch.empty(s, dtype=getattr(torch, dtype)).requires_grad_() for s in shapes]
        start = tracker.live_bytes
        optimizer = create(parameters)
        state = tracker.live_bytes - start  # Adagrad makes it at once
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        start = tracker.live_bytes - state
        optimizer.step()
        for kept in optimizer.state.values():  # a step counter is the host's, unless the optimizer is fused
            if isinstance(kept.get("step"), torch.Tensor) and not optimizer.defaults.get("fused"):
                tracker.forget(kept["step"])
        state = tracker.live_bytes - start
        tracker.reset_peak()
        optimizer.step()
        assert tracker.live_bytes - start == state
        return Bytes(state, tracker.peak_bytes - start)


def in_meta(create: Callable[[Sequence[meta.Tensor]], Optimizer], dtype: str, shapes: Shapes = SHAPES) -> Bytes:
    with meta.recording() as tape:
        parameters = [meta.empty(s, meta.DTYPES[dtype]).requires_grad_() for s in shapes]
        optimizer = create(parameters)
        for parameter in parameters:
            parameter.grad = meta.empty_like(parameter)
        start, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        state, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        optimizer.step()
        live, peak = live_and_peak(tape, begin)
        assert live == state
        return Bytes(state - start, peak - start)


def adamw(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, **options)


def adam(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.Adam(parameters, **options)


def sgd(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, **options)


def adafactor(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.Adafactor(parameters, **options)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
for name, flags in {
    LOOP: {"foreach": False},
    FOREACH: {"foreach": True},
    FUSED: {"fused": True},
}.items():
    CASES[f"AdamW, {name}"] = adamw(**flags), lambda p, n=name: optim.AdamW(p, n)
    CASES[f"Adam, {name}"] = adam(**flags), lambda p, n=name: optim.AdamW(p, n)
    CASES[f"SGD, {name}"] = sgd(**flags), lambda p, n=name: optim.SGD(p, n)
    CASES[f"SGD with momentum, {name}"] = (
        sgd(momentum=0.9, **flags),
        lambda p, n=name: optim.SGD(p, n, momentum=True),
    )
    CASES[f"SGD with weight decay, {name}"] = (
        sgd(weight_decay=0.1, **flags),
        lambda p, n=name: optim.SGD(p, n, weight_decay=True),
    )
    CASES[f"SGD with momentum and weight decay, {name}"] = (
        sgd(momentum=0.9, weight_decay=0.1, **flags),
        lambda p, n=name: optim.SGD(p, n, momentum=True, weight_decay=True),
    )
    if name != FUSED:
        CASES[f"Adafactor, {name}"] = adafactor(**flags), lambda p, n=name: optim.Adafactor(p, n)

    if name != FUSED:
        for word, options in {"": {}, " with weight decay": {"weight_decay": 0.1}}.items():
            CASES[f"RMSprop{word}, {name}"] = (
                lambda p, o={**flags, **options}: torch.optim.RMSprop(p, **o),
                lambda p, n=name, o=options: optim.RootOfSquares(p, n, weight_decay=bool(o)),
            )
            CASES[f"Adagrad{word}, {name}"] = (
                lambda p, o={**flags, **options}: torch.optim.Adagrad(p, **o),
                lambda p, n=name, o=options: optim.Adagrad(p, n, weight_decay=bool(o)),
            )
CASES["transformers' Adafactor"] = (
    lambda p: Adafactor(p, lr=0.1, scale_parameter=False, relative_step=False),
    optim.WideAdafactor,
)
MATRICES: dict[str, tuple[tuple[int, ...], ...]] = {"Muon": ((64, 48), (130, 2), (20, 300))}
CASES["Muon"] = torch.optim.Muon, optim.Muon


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_state_and_step_are_torchs_to_the_byte(case: str, dtype: str) -> None:
    theirs, ours = CASES[case]
    shapes = MATRICES.get(case, SHAPES)
    assert in_meta(ours, dtype, shapes) == in_torch(theirs, dtype, shapes)


# Bytes of all tensors in ``optimizer.state`` over bfloat16 parameters of these shapes, read off the libraries'
# own optimizers (bitsandbytes 0.50.2, torchao 0.18.0).
KEPT_SHAPES = ((64, 64), (63, 65), (100, 100), (48,), (400, 300))
KEPT: dict[str, tuple[type[Optimizer], int]] = {
    "bitsandbytes' AdamW8bit": (optim_narrow.AdamW8bit, 307584),
    "bitsandbytes' AdamW32bit": (optim_narrow.BitsAndBytes, 1105912),
    "bitsandbytes' Lion8bit": (optim_narrow.OneState8bit, 153792),
    "bitsandbytes' Lion32bit": (optim_narrow.OneStateBitsAndBytes, 552956),
    "bitsandbytes' AdEMAMix8bit": (optim_narrow.AdEMAMix8bit, 460352),
    "bitsandbytes' AdEMAMix": (optim_narrow.AdEMAMix, 1658868),
    "bitsandbytes' LAMB32bit": (optim_narrow.Lamb, 1105932),
    "torchao's AdamW8bit": (optim_narrow.QuantisedAdam, 546940),
    "torchao's AdamW4bit": (optim_narrow.QuantisedAdam4bit, 541052),
}


def state_bytes(kind: type[Optimizer], shapes: Shapes, **options: Any) -> int:
    with meta.recording() as tape:
        optimizer = kind([meta.empty(shape, meta.bfloat16).requires_grad_() for shape in shapes], **options)
        before, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        after, _ = live_and_peak(tape, 0)
    return after - before


@pytest.mark.parametrize(("kind", "kept"), KEPT.values(), ids=KEPT)
def test_optimizers_of_other_libraries_keep_what_those_keep(kind: type[Optimizer], kept: int) -> None:
    assert state_bytes(kind, KEPT_SHAPES) == kept


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        pytest.param("lamb", 5, id="lamb: the last update, a gradient that is clipped, a root, what it is divided to"),
        pytest.param("rmsprop", 4, id="rmsprop: the last average, a gradient that decays, a square and a difference"),
    ],
)
def test_a_step_of_timm_s_goes_over_one_parameter_after_the_other(kind: str, most: int) -> None:
    """Tensors of a parameter that are alive at once (timm 1.0.31: ``_single_tensor_lamb``, ``..._rmsprop_tf``)."""
    optimizer = optim.OPTIMIZERS[optim.known(kind, "timm")]
    found = in_meta(optimizer, "float32", ((64, 32), (64, 32), (64, 32)))
    assert found == Bytes(3 * 2 * 64 * 32 * 4, (3 * 2 + most) * 64 * 32 * 4)


# A parameter of 512 x 300 elements -> bytes of buffers that the compiled step has at once, read off inductor's code for
# it (torch 2.13, torchao 0.18): two scales per block, codes of both moments, and for 4 bits the moments in fp32.
STEPPED = {
    "8 bits": (optim_narrow.QuantisedAdam, 2 * 153_600 + 2 * 4 * 600),
    "4 bits": (optim_narrow.QuantisedAdam4bit, 2 * 153_600 + 2 * 4 * 153_600 + 2 * 4 * 1200),
    "float8": (AdamWFp8, 2 * 4 * 600),
}


@pytest.mark.parametrize(("kind", "most"), STEPPED.values(), ids=STEPPED)
def test_a_compiled_step_of_torchaos_makes_codes_anew(kind: type[Optimizer], most: int) -> None:
    """Blocks of 256 or 128 must divide the count, so that of the second parameter is left alone."""
    shapes = ((512, 300), (401, 299))
    with meta.recording() as tape:
        parameters = [meta.empty(shape, meta.bfloat16).requires_grad_() for shape in shapes]
        optimizer = kind(parameters)
        optimizer.allocate_state()
        for parameter in parameters:
            parameter.grad = meta.empty_like(parameter)
        live, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        optimizer.step()
        after, peak = live_and_peak(tape, begin)
    assert peak - live == most
    assert after == live


@pytest.mark.parametrize("implementation", [FOREACH, LOOP])
def test_a_step_goes_over_one_group_of_parameters_after_the_other(implementation: str) -> None:
    def grouped(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        return torch.optim.AdamW(groups, lr=1e-4, foreach=implementation == FOREACH)

    def ours(parameters: Sequence[meta.Tensor]) -> Optimizer:
        optimizer = optim.AdamW(parameters, implementation)
        optimizer.groups = parameters[:2], parameters[2:]
        return optimizer

    assert in_meta(ours, "float32") == in_torch(grouped, "float32")


def test_paged_states_of_large_parameters_are_not_the_allocators() -> None:
    small, large = (300, 300), (400, 300)  # 100,000 elements lie between them
    alone = state_bytes(optim_narrow.BitsAndBytes, (small,), paged=True)
    assert alone == 2 * 300 * 300 * 4
    assert state_bytes(optim_narrow.BitsAndBytes, (small, large), paged=True) == alone


def test_master_weights_are_one_more_copy_and_gradients_are_copied_for_the_step() -> None:
    count = sum(prod(shape) for shape in SHAPES)
    with meta.recording() as tape:
        parameters = [meta.empty(shape, meta.bfloat16).requires_grad_() for shape in SHAPES]
        before, _ = live_and_peak(tape, 0)
        optimizer = optim.MasterWeights(parameters, optim.PlainAdam, {})
        optimizer.allocate_state()
        kept, _ = live_and_peak(tape, 0)
        assert kept - before == count * (4 + 4 + 4)
        for parameter in parameters:
            parameter.grad = meta.empty_like(parameter)
        start, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        optimizer.step()
        after, peak = live_and_peak(tape, begin)
    assert (after, peak - start) == (start, count * 4)


def test_8_bit_adamw_keeps_what_bitsandbytes_keeps() -> None:
    """Read off ``optimizer.state`` of bitsandbytes 0.50.2 after a step over these parameters."""
    kept = {
        (64, 64): [4096, 4096, 16 * 4, 16 * 4],  # two bytes per element, and a float per 256 of them, twice
        (63, 65): [4095 * 4, 4095 * 4],  # under 4,096 elements: fp32
        (100, 100): [10000, 10000, 40 * 4, 40 * 4],
        (48,): [48 * 4, 48 * 4],
    }
    maps = 2 * 256 * 4  # shared by all parameters
    with meta.recording() as tape:
        optimizer = optim_narrow.AdamW8bit([meta.empty(shape).requires_grad_() for shape in kept])
        before, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        after, _ = live_and_peak(tape, 0)
    assert after - before == sum(sum(sizes) for sizes in kept.values()) + maps
