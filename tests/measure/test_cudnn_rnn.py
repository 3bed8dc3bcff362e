"""Recurrent layers as cuDNN runs them: what is allocated, kept for backward and given as gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from memlint.measure import cudnn_rnn, trace
from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.cudnn_rnn import GRU, LSTM, TANH, reserve_bytes
from memlint.measure.tracker import SavedTensors, StorageTracker
from tests.measure.training_runs import plain_request

STEPS, BATCH, INPUT, HIDDEN = 10, 4, 32, 64
TOKENS = STEPS * BATCH


@pytest.fixture
def tracker() -> Iterator[StorageTracker]:
    tracker = StorageTracker(granularity_bytes=1)
    with FakeTensorMode(), tracker, CudaSemantics(tracker):
        yield tracker


@pytest.mark.parametrize(
    ("mode", "reported"),
    [pytest.param(LSTM, 736_000_000, id="LSTM"), pytest.param(GRU, 864_000_000, id="GRU")],
)
def test_the_reserve_is_as_large_as_cudnn_said(mode: int, reported: int) -> None:
    """https://github.com/pytorch/pytorch/issues/2895: 4 layers of 320 units, 1,000 steps of 25 sequences, fp32."""
    assert reserve_bytes(mode, 1000 * 25, 320, 320, layers=4, directions=1, itemsize=4) == reported


def test_the_reserve_grows_with_tokens_layers_directions_and_bytes() -> None:
    def size(**changes: int) -> int:
        facts = {"tokens": 10, "hidden_size": 8, "output_size": 8, "layers": 1, "directions": 1, "itemsize": 4}
        return reserve_bytes(TANH, **{**facts, **changes})

    assert size() == 10 * 8 * 4
    assert size(tokens=20) == size(directions=2) == 2 * size()
    assert size(itemsize=2) == size() // 2
    assert size(layers=3) == 5 * size()  # each layer, and the outputs of the two inner ones


def test_an_lstm_keeps_its_reserve_and_its_result(tracker: StorageTracker) -> None:
    layer, x = nn.LSTM(INPUT, HIDDEN), torch.empty(STEPS, BATCH, INPUT)
    before = tracker.live_bytes
    with SavedTensors(layer.parameters(), tracker) as saved:
        out, state = layer(x)
    kept = saved.bytes
    state_bytes = BATCH * HIDDEN * 4
    reserve = 5 * TOKENS * HIDDEN * 4
    assert tracker.live_bytes - before == TOKENS * HIDDEN * 4 + reserve + 4 * state_bytes  # two in, two out
    assert kept == x.numel() * 4 + TOKENS * HIDDEN * 4 + reserve + 2 * state_bytes
    del out, state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_evaluation_reserves_nothing(kind: Callable[..., nn.Module], tracker: StorageTracker) -> None:
    layer, x = kind(INPUT, HIDDEN).eval(), torch.empty(STEPS, BATCH, INPUT)
    tracker.reset_peak()
    before = tracker.live_bytes
    states = 4 if kind is nn.LSTM else 2
    with torch.no_grad():
        layer(x)
    assert tracker.peak_bytes - before == TOKENS * HIDDEN * 4 + states * BATCH * HIDDEN * 4


def test_batch_first_copies_the_input_for_a_moment(tracker: StorageTracker) -> None:
    x = torch.empty(BATCH, STEPS, INPUT)
    peaks = []
    for batch_first, batch in ((False, x.transpose(0, 1).contiguous()), (True, x)):
        layer = nn.GRU(INPUT, HIDDEN, batch_first=batch_first)
        tracker.reset_peak()
        before = tracker.live_bytes
        out, state = layer(batch)
        peaks.append(tracker.peak_bytes - before)
        assert out.transpose(0, 1).is_contiguous() is batch_first
        del out, state
    assert peaks[1] - peaks[0] == x.numel() * 4


def test_gradients_of_the_weights_are_one_storage(tracker: StorageTracker) -> None:
    layer, x = nn.LSTM(INPUT, HIDDEN, num_layers=2), torch.empty(STEPS, BATCH, INPUT)
    layer(x)[0].sum().backward()
    assert len({parameter.grad.untyped_storage()._cdata for parameter in layer.parameters()}) == 1
    assert all(parameter.grad.shape == parameter.shape for parameter in layer.parameters())
    weights = sum(parameter.numel() for parameter in layer.parameters())
    assert layer.weight_ih_l0.grad.untyped_storage().nbytes() == weights * 4


def test_a_layer_without_biases_has_room_for_them(tracker: StorageTracker) -> None:
    layer, x = nn.GRU(INPUT, HIDDEN, bias=False), torch.empty(STEPS, BATCH, INPUT)
    layer(x)[0].sum().backward()
    weights = sum(parameter.numel() for parameter in layer.parameters())
    assert layer.weight_ih_l0.grad.untyped_storage().nbytes() == (weights + 2 * 3 * HIDDEN) * 4


def test_weights_that_are_computed_are_packed_at_each_call(tracker: StorageTracker) -> None:
    """RNN.cpp warns of it: "they need to be compacted at every call"."""
    x = torch.empty(STEPS, BATCH, INPUT)
    plain, computed = nn.GRU(INPUT, HIDDEN), nn.GRU(INPUT, HIDDEN)
    weights = sum(parameter.numel() * 4 for parameter in plain.parameters())
    computed._flat_weights = [weight * 1 for weight in computed._flat_weights]
    added = []
    for layer in (plain, computed):
        before = tracker.live_bytes
        out, state = layer(x)
        added.append(tracker.live_bytes - before)
        del out, state
    assert added[1] - added[0] == weights


def test_autocast_packs_16_bit_weights_at_each_call(tracker: StorageTracker) -> None:
    """AutocastRNN.cpp: into a new flat buffer, past the cache of casts; gradients arrive in fp32, one by one."""
    layer, x = nn.LSTM(INPUT, HIDDEN), torch.empty(STEPS, BATCH, INPUT)
    weights = sum(parameter.numel() for parameter in layer.parameters())
    before = tracker.live_bytes
    with torch.autocast("cpu", torch.bfloat16):
        first = layer(x)[0]
        once = tracker.live_bytes
        second = layer(x)[0]
    states = 2 * BATCH * HIDDEN * 2  # zeros in and results out, of two states
    reserve = 5 * TOKENS * HIDDEN * 2
    assert once - before >= weights * 2 + reserve + TOKENS * HIDDEN * 2 + x.numel() * 2 + states
    assert tracker.live_bytes - once == once - before
    assert first.dtype is torch.float16
    (first.sum() + second.sum()).backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {torch.float32}
    assert len({parameter.grad.untyped_storage()._cdata for parameter in layer.parameters()}) == 4
    del first, second
    assert tracker.live_bytes - before == weights * 4


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True},
    "without biases": {"bias": False},
    "with dropout": {"num_layers": 3, "dropout": 0.2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_results_and_gradients_have_the_cpus_shapes(kind: Any, options: dict[str, Any]) -> None:
    def shapes() -> list[Any]:
        layer = kind(INPUT, HIDDEN, **options)
        x = torch.ones(STEPS, BATCH, INPUT, requires_grad=True)
        out, state = layer(x)
        states = state if isinstance(state, tuple) else (state,)
        out.sum().backward()
        return [t.shape for t in (out, *states, x.grad, *(p.grad for p in layer.parameters()))]

    expected = shapes()
    tracker = StorageTracker(granularity_bytes=1)
    with FakeTensorMode(), tracker, CudaSemantics(tracker):
        assert shapes() == expected
    assert shapes() == expected  # and the CPU's own way is back


def test_a_projection_makes_the_results_smaller(tracker: StorageTracker) -> None:
    layer, x = nn.LSTM(INPUT, HIDDEN, num_layers=2, proj_size=8), torch.empty(STEPS, BATCH, INPUT)
    tracker.reset_peak()
    out, (h, c) = layer(x)
    assert (out.shape[-1], h.shape[-1], c.shape[-1]) == (8, 8, HIDDEN)
    reserves = [size for size in tracker.tape.sizes if size == TOKENS * (2 * 5 * HIDDEN + 8) * 4]
    assert len(reserves) == 1


@pytest.mark.parametrize(("kind", "gates", "kept"), [(nn.LSTMCell, 4, 4), (nn.GRUCell, 3, 5)], ids=["LSTM", "GRU"])
def test_a_cell_keeps_its_workspace_and_its_gates(kind: Any, gates: int, kept: int, tracker: StorageTracker) -> None:
    """native/cuda/RNN.cu: a workspace of four values per unit for an LSTM, five for a GRU; derivatives.yaml keeps the
    gates of input and state besides, for a gradient's gradient."""
    cell, x = kind(INPUT, HIDDEN), torch.empty(BATCH, INPUT)
    with SavedTensors((*cell.parameters(), x), tracker) as saved:
        state = cell(x)
    held = saved.bytes
    out = state[0] if isinstance(state, tuple) else state
    # The zeros that came in (an LSTM's two states share them), and an LSTM's cell.
    states = 2 if kind is nn.LSTMCell else 1
    assert held == (kept + 2 * gates + states) * BATCH * HIDDEN * 4
    out.sum().backward()
    assert cell.weight_ih.grad.shape == (gates * HIDDEN, INPUT)
    assert cell.bias_hh.grad.shape == (gates * HIDDEN,)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.usefixtures("tracker")
def test_autocast_runs_a_cell_in_16_bits(kind: Any) -> None:
    """The AMP documentation's list for float16 has GRUCell, LSTMCell and RNNCell."""
    with torch.autocast("cpu", torch.bfloat16):
        state = kind(INPUT, HIDDEN)(torch.empty(BATCH, INPUT))
    assert (state[0] if isinstance(state, tuple) else state).dtype is torch.bfloat16


MODEL = """
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.rnn = nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 5)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def build_model(config):
    return Tagger()


def make_batch(config, device):
    return torch.zeros(4, 10, dtype=torch.long, device=device)


def training_loss(model, batch):
    return model(batch).square().mean()
"""


def test_a_trace_with_a_recurrent_layer_says_what_it_assumes(tmp_path: Path) -> None:
    sys.modules.pop("memlint_model", None)
    traced = trace.trace(plain_request(tmp_path, {"gradient_accumulation_steps": 2}, model=MODEL))
    assert cudnn_rnn.ASSUMPTION in traced.assumptions
    reserve = TOKENS * 2 * (2 * 5 * 64 + 64) * 4
    labels = [label for size, label in zip(traced.tape.sizes, traced.tape.labels) if size == reserve]
    assert len(labels) == 2  # one per micro-batch
    assert {(label.component, label.module) for label in labels} == {("activations", "rnn")}


def test_gathered_weights_are_packed_at_each_call(tmp_path: Path) -> None:
    """FSDP2 gathers every parameter into a storage of its own, so that they are no flat buffer."""
    packed = (4 * 64 * (32 + 64 + 2) + 4 * 64 * (128 + 64 + 2)) * 2 * 4  # two layers, both directions, fp32
    found = []
    for facts in ({}, {"parallelism.strategy": "fsdp2", "device_count": 2}):
        sys.modules.pop("memlint_model", None)
        tape = trace.trace(plain_request(tmp_path, facts, model=MODEL)).tape
        found.append([label.component for size, label in zip(tape.sizes, tape.labels) if size == packed])
    assert found == [["gradients"], ["activations", "gradients"]]
