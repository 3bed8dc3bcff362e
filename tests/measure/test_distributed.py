"""DDP and FSDP2 through a fake process group: what one rank holds, by arithmetic and beside PyTorch's own tracker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from memlint.measure import distributed, trace, training
from memlint.measure.child import MeasureError
from memlint.measure.request import estimate_from
from memlint.meta.tape import Tape
from memlint.tape.phases import find_peak
from tests.measure.training_runs import plain_request

LAYERS, WIDTH, BATCH, RANKS = 6, 128, 4, 4
WEIGHT = WIDTH * WIDTH * 4  # bytes of a layer's only parameter
SHARD = WEIGHT // RANKS
ROWS = BATCH * WIDTH * 4  # bytes of an activation

STACK = f"""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear({WIDTH}, {WIDTH}, bias=False)

    def forward(self, x):
        return self.linear(x)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range({LAYERS}))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def build_model(config):
    return Stack()


def make_batch(config, device):
    return torch.rand({BATCH}, {WIDTH}, device=device)


def training_loss(model, batch):
    return model(batch).sum()
"""

DDP = {"optimizer": "sgd", "parallelism.strategy": "ddp", "device_count": RANKS}
FSDP2 = {"optimizer": "sgd", "parallelism.strategy": "fsdp2", "device_count": RANKS}
HELD = ("parameters", "gradients", "communication")  # all but activations


def run(folder: Path, facts: dict[str, Any], model: str = STACK) -> trace.Traced:
    sys.modules.pop("memlint_model", None)
    return trace.trace(plain_request(folder, facts, model=model))


def storages(tape: Tape, component: str, name: str | None = None) -> list[int]:
    """Sizes in the order of allocation."""
    return [
        size
        for size, label in zip(tape.sizes, tape.labels)
        if label.component == component and name in (None, label.name)
    ]


def most(tape: Tape, phase: str, components: tuple[str, ...] = ()) -> int:
    """The most bytes that were alive at once in a phase, of some components or of all; nothing is rounded."""
    begins = [at for at, _ in tape.marks] + [len(tape.events)]
    spans = [(at, end) for (at, name), end in zip(tape.marks, begins[1:]) if name == phase]
    live = found = 0
    for number, event in enumerate(tape.events):
        if any(begin == number for begin, _ in spans):
            found = max(found, live)
        storage = event if event >= 0 else ~event
        if not components or tape.labels[storage].component in components:
            live += tape.sizes[storage] if event >= 0 else -tape.sizes[storage]
        if any(begin <= number < end for begin, end in spans):
            found = max(found, live)
    return found


# -- DDP


def test_ddps_buckets_are_a_second_copy_of_all_gradients(tmp_path: Path) -> None:
    """PyTorch PR 41954: without gradient_as_bucket_view there are gradients, and buckets of the same size."""
    alone, spread = run(tmp_path / "a", {"optimizer": "sgd"}), run(tmp_path / "b", DDP)
    weights = LAYERS * WEIGHT
    assert sum(storages(spread.tape, "parameters")) == weights
    assert sum(storages(spread.tape, "gradients")) == weights
    assert sum(storages(spread.tape, "communication", "bucket")) == weights
    for phase in ("setup", "forward", "backward", "optimizer_step"):
        assert most(spread.tape, phase) - most(alone.tape, phase) == weights, phase


def test_gradients_as_views_of_the_buckets_are_one_copy(tmp_path: Path) -> None:
    alone = run(tmp_path / "a", {"optimizer": "sgd"})
    spread = run(tmp_path / "b", {**DDP, "parallelism.gradient_as_bucket_view": True})
    weights = LAYERS * WEIGHT
    assert storages(spread.tape, "communication") == []
    assert sum(storages(spread.tape, "gradients")) == weights
    assert most(spread.tape, "optimizer_step") == most(alone.tape, "optimizer_step")
    # The buckets stay, where gradients alone would go with zero_grad().
    assert most(spread.tape, "setup") - most(alone.tape, "setup") == weights
    # One gradient at a time is beside its place in the bucket: the first comes with the inputs of all layers, the
    # gradient of its own layer's input, the packed copy of the output's (a number, expanded), the loss, its gradient.
    assert most(spread.tape, "backward") == 2 * weights + WEIGHT + (LAYERS + 2) * ROWS + 2 * 4


@pytest.mark.parametrize("views", [False, True], ids=["copies", "views"])
def test_accumulation_adds_nothing_to_ddp(views: bool, tmp_path: Path) -> None:
    facts = {**DDP, "parallelism.gradient_as_bucket_view": views}
    once, twice = run(tmp_path / "a", facts), run(tmp_path / "b", {**facts, "gradient_accumulation_steps": 4})
    assert most(twice.tape, "optimizer_step") == most(once.tape, "optimizer_step")
    kept = 0 if views else LAYERS * WEIGHT  # gradients of the first micro-batch, and its loss
    assert most(twice.tape, "forward") - most(once.tape, "forward") == kept + 4
    assert any(name == "gradient synchronisation" for name, _, _ in twice.assumptions)


MIB = 1 << 20
BUCKETS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "one of 1 MiB, then 25 MiB each": ({}, [4 * MIB, 28 * MIB, 24 * MIB]),
    "one of 1 MiB, then of what the config says": (
        {"parallelism.bucket_mb": 8},
        [4 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 4 * MIB],
    ),
}


@pytest.mark.parametrize(("facts", "expected"), BUCKETS.values(), ids=BUCKETS)
def test_a_bucket_is_closed_once_it_is_as_large_as_its_cap(
    facts: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    """14 weights of 4 MiB: a bucket takes parameters until it holds its cap (reducer.cpp, bucket_size_limits)."""
    model = STACK.replace(f"range({LAYERS})", "range(14)").replace(str(WIDTH), "1024")
    traced = run(tmp_path, {**DDP, **facts}, model)
    assert sorted(storages(traced.tape, "communication", "bucket")) == sorted(expected)


def test_a_frozen_layer_has_no_place_in_a_bucket(tmp_path: Path) -> None:
    model = STACK.replace("return Stack()", "m = Stack()\n    m.layers[0].requires_grad_(False)\n    return m")
    traced = run(tmp_path, DDP, model)
    assert sum(storages(traced.tape, "communication", "bucket")) == (LAYERS - 1) * WEIGHT


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_parameter_without_a_gradient_has_its_place_all_the_same(accumulation: int, tmp_path: Path) -> None:
    model = STACK.replace("in self.layers:", "in self.layers[:-1]:")
    traced = run(tmp_path, {**DDP, "gradient_accumulation_steps": accumulation}, model)
    assert sum(storages(traced.tape, "communication", "bucket")) == LAYERS * WEIGHT
    assert sum(storages(traced.tape, "gradients")) == (LAYERS - 1) * WEIGHT
    [note] = [entry for entry in traced.assumptions if entry[0] == "find_unused_parameters"]
    assert note[2].startswith("1 parameters get no gradient")


def test_ddp_sees_a_loss_that_calls_another_method_and_sends_buffers_round(tmp_path: Path) -> None:
    model = STACK.replace("model(batch).sum()", "model.loss(batch)").replace(
        "    def forward(self, x):\n        for",
        "    def loss(self, x):\n        return self.norm(self(x)).sum()\n\n    def forward(self, x):\n        for",
    )
    model = model.replace(
        "        self.layers =", f"        self.norm = nn.BatchNorm1d({WIDTH})\n        self.layers ="
    )
    traced = run(tmp_path, DDP, model)
    assert sum(storages(traced.tape, "communication", "bucket")) == LAYERS * WEIGHT + 2 * WIDTH * 4
    assert sum(storages(traced.tape, "buffers")) == 2 * WIDTH * 4 + 8


# -- FSDP2


def test_fsdp2_keeps_a_shard_of_everything(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "optimizer": "adamw"})
    assert traced.parameters == LAYERS * WEIGHT // 4
    assert sum(storages(traced.tape, "parameters")) == LAYERS * SHARD
    assert sum(storages(traced.tape, "gradients", "shard")) == LAYERS * SHARD
    for state in ("exp_avg", "exp_avg_sq"):
        assert sum(storages(traced.tape, "optimizer", state)) == LAYERS * SHARD
    # Weights, gradients, two moments, and the foreach implementation's copy.
    assert most(traced.tape, "optimizer_step", (*HELD, "optimizer")) == 5 * LAYERS * SHARD


@pytest.mark.parametrize(("rows", "ranks", "kept"), [(10, 4, 3), (3, 8, 1), (16, 4, 4), (1, 2, 1)])
def test_a_shard_is_padded_to_whole_rows(rows: int, ranks: int, kept: int, tmp_path: Path) -> None:
    model = STACK.replace(f"nn.Linear({WIDTH}, {WIDTH}, bias=False)", f"nn.Linear({WIDTH}, {rows}, bias=False)")
    model = model.replace("x = layer(x)", f"x = layer(x).sum(-1, keepdim=True).expand(-1, {WIDTH})")
    traced = run(tmp_path, {**FSDP2, "device_count": ranks}, model)
    assert storages(traced.tape, "parameters") == [kept * WIDTH * 4] * LAYERS
    gathered = storages(traced.tape, "communication", "all_gather")
    assert set(gathered) == {ranks * kept * WIDTH * 4}


def test_the_forward_pass_holds_three_units(tmp_path: Path) -> None:
    """A unit's weights, the buffer that they were gathered into, and the one before, which wait_for_unshard (in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) lets go of when it returns."""
    traced = run(tmp_path, FSDP2)
    held = LAYERS * SHARD + 3 * WEIGHT
    assert most(traced.tape, "forward", HELD) == held
    # At that moment there is the input of every layer.
    assert most(traced.tape, "forward") == held + LAYERS * ROWS


def test_the_backward_pass_holds_four_units(tmp_path: Path) -> None:
    """The unit's weights and their gradient, the next unit as it is gathered, and what the last one scatters from.
    Before the first unit there is no next one, so the most is held at the second."""
    traced = run(tmp_path, FSDP2)
    scattered = (LAYERS - 2) * SHARD
    assert most(traced.tape, "backward", HELD) == LAYERS * SHARD + scattered + 4 * WEIGHT
    # Inputs of the first two layers, what the second gets and gives as gradients; the loss, and its gradient.
    assert most(traced.tape, "backward") == LAYERS * SHARD + scattered + 4 * WEIGHT + 4 * ROWS + 2 * 4


def test_kept_weights_stay_until_the_backward_pass(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "parallelism.reshard_after_forward": False})
    # Gathered weights of all, and the two buffers that are alive where the last is copied out.
    assert most(traced.tape, "forward", HELD) == LAYERS * SHARD + LAYERS * WEIGHT + 2 * WEIGHT
    assert traced.tape.saved_bytes == LAYERS * ROWS + 4  # gathered weights are not activations; the loss is alive


def test_one_unit_is_gathered_at_once_and_kept(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "parallelism.wrap": "none"})
    assert most(traced.tape, "forward", HELD) == LAYERS * SHARD + 2 * LAYERS * WEIGHT
    assert storages(traced.tape, "communication", "all_gather") == [LAYERS * WEIGHT]
    assert ("parallelism.wrap", "the whole model at once") in [entry[:2] for entry in traced.assumptions]


def test_mixed_precision_gathers_and_reduces_in_16_bits(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "compute_dtype": "bfloat16"})
    assert set(storages(traced.tape, "communication", "all_gather")) == {WEIGHT // 2}
    assert set(storages(traced.tape, "communication", "cast")) == {SHARD // 2}
    assert set(storages(traced.tape, "communication", "reduce_scatter")) == {WEIGHT // 2}
    assert set(storages(traced.tape, "communication", "reduced")) == {SHARD // 2}
    assert sum(storages(traced.tape, "gradients", "shard")) == LAYERS * SHARD
    assert most(traced.tape, "forward", HELD) == LAYERS * SHARD + 3 * WEIGHT // 2
    assert "_to_copy" in {label.name for label in traced.tape.labels}  # of the batch: no autocast, inputs are cast


def test_gradients_may_be_reduced_in_another_dtype(tmp_path: Path) -> None:
    facts = {**FSDP2, "compute_dtype": "bfloat16", "parallelism.reduce_dtype": "float32"}
    traced = run(tmp_path, facts)
    assert set(storages(traced.tape, "gradients", "unsharded")) == {WEIGHT // 2}
    assert set(storages(traced.tape, "communication", "reduce_scatter")) == {WEIGHT}
    assert storages(traced.tape, "communication", "reduced") == []  # the gradients are what was reduced


def test_hybrid_sharding_shards_within_a_group(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "device_count": 8, "parallelism.shard": 2})
    assert storages(traced.tape, "parameters") == [WEIGHT // 2] * LAYERS


def test_accumulation_reduces_every_micro_batch(tmp_path: Path) -> None:
    once = run(tmp_path / "a", FSDP2)
    twice = run(tmp_path / "b", {**FSDP2, "gradient_accumulation_steps": 2})
    assert most(twice.tape, "forward", HELD) - most(once.tape, "forward", HELD) == LAYERS * SHARD
    assert most(twice.tape, "optimizer_step") == most(once.tape, "optimizer_step")


def test_an_ema_of_a_sharded_model_is_sharded(tmp_path: Path) -> None:
    traced = run(tmp_path, {**FSDP2, "ema": True})
    assert sum(storages(traced.tape, "ema")) == LAYERS * SHARD


def test_checkpointing_gathers_again_and_keeps_one_input_each(tmp_path: Path) -> None:
    model = STACK.replace("x = layer(x)", "x = checkpoint(layer, x, use_reentrant=False)").replace(
        "import torch\n", "import torch\nfrom torch.utils.checkpoint import checkpoint\n"
    )
    traced = run(tmp_path, FSDP2, model)
    assert traced.tape.saved_bytes == LAYERS * ROWS + 4
    assert most(traced.tape, "forward", HELD) == LAYERS * SHARD + 3 * WEIGHT


POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp32": ({}, {}),
    "bf16": ({"compute_dtype": "bfloat16"}, {"param_dtype": torch.bfloat16}),
    "bf16, reduced in fp32": (
        {"compute_dtype": "bfloat16", "parallelism.reduce_dtype": "float32"},
        {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
    ),
}


@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize(("facts", "policy"), POLICIES.values(), ids=POLICIES)
def test_fsdp2_agrees_with_pytorchs_own_tracker(
    facts: dict[str, Any], policy: dict[str, Any], reshard: bool, tmp_path: Path
) -> None:
    """torch.distributed._tools.fsdp2_mem_tracker over real tensors, on the same stack with the same optimizer."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    run_facts = {**FSDP2, **facts, "optimizer": "adam", "optimizer_implementation": "foreach"}
    traced = run(tmp_path, {**run_facts, "parallelism.reshard_after_forward": reshard})
    ours = max(most(traced.tape, phase) for phase in ("forward", "backward", "optimizer_step"))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        mesh = init_device_mesh("cpu", (RANKS,))
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        for layer in model:
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy), reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        tracker = FSDPMemTracker(model, optimizer)
        for _ in range(2):
            batch = torch.rand(BATCH, WIDTH)
            tracker.track_inputs((batch,))
            with tracker:
                tracker.reset_mod_stats()
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    finally:
        dist.destroy_process_group()
    assert ours == theirs - LAYERS * 4  # Adam counts its steps on the host


# -- units


def blocks() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    model = nn.Module()
    model.embedding = nn.Embedding(4, 4)
    model.layers = nn.ModuleList(Block() for _ in range(3))
    model.head = nn.Linear(4, 4)
    model._no_split_modules = ["Block", "AbsentBlock"]
    return model


UNITS: dict[str, tuple[tuple[str, ...] | None, list[str]]] = {
    "what the model says": (None, ["layers.0", "layers.1", "layers.2"]),
    "what the config says": (("Embedding",), ["embedding"]),
    "inner ones first": (
        ("Block", "Linear"),
        ["layers.0.inner", "layers.1.inner", "layers.2.inner", "layers.0", "layers.1", "layers.2", "head"],
    ),
    "none": ((), []),
}


@pytest.mark.parametrize(("wrap", "paths"), UNITS.values(), ids=UNITS)
def test_units_are(wrap: tuple[str, ...] | None, paths: list[str]) -> None:
    assert [path for path, _ in distributed.units_of(blocks(), wrap)] == paths


def test_without_a_word_the_blocks_of_a_list_are_units() -> None:
    model = blocks()
    del model._no_split_modules
    assert [path for path, _ in distributed.units_of(model, None)] == ["layers.0", "layers.1", "layers.2"]


# -- the group, and what is refused


@pytest.mark.parametrize("facts", [DDP, FSDP2], ids=["ddp", "fsdp2"])
def test_nothing_of_a_run_is_left_behind(facts: dict[str, Any], tmp_path: Path) -> None:
    before = run(tmp_path / "a", {"optimizer": "sgd"})
    resize, assign = torch.UntypedStorage.resize_, dist._compute_bucket_assignment_by_size
    run(tmp_path / "b", facts)
    with pytest.raises(MeasureError, match="KeyError"):
        run(tmp_path / "c", facts, STACK.replace("x = layer(x)", "raise KeyError('x')"))
    assert not dist.is_initialized()
    assert torch.UntypedStorage.resize_ is resize
    assert dist._compute_bucket_assignment_by_size is assign
    after = run(tmp_path / "d", {"optimizer": "sgd"})
    assert (after.tape.sizes, after.tape.events) == (before.tape.sizes, before.tape.events)
    other = run(tmp_path / "e", {**facts, "device_count": 2})
    again = run(tmp_path / "f", facts)
    assert find_peak(other.tape).phases != find_peak(again.tape).phases or facts is DDP


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DeepSpeed": ({"parallelism.strategy": "zero"}, "strategy = zero: a trace follows ddp and fsdp2"),
    "FSDP1": ({"parallelism.strategy": "fsdp1"}, "strategy = fsdp1: a trace follows ddp and fsdp2"),
    "tensor parallelism": ({**FSDP2, "parallelism.tensor": 2}, "tensor = 2 splits layers over several processes"),
    "offloading": ({**FSDP2, "parallelism.cpu_offload": True}, "cpu_offload = True moves states to the host"),
    "ranks that are not the devices": (
        {**FSDP2, "parallelism.data": 3},
        "data = 3 does not fit device_count = 4: .* the number of ranks",
    ),
    "shards that do not divide the ranks": ({**FSDP2, "parallelism.shard": 3}, "shard = 3 does not divide the 4 ranks"),
    "a number of devices that is none": ({**DDP, "device_count": "auto"}, "device_count = auto: a number of devices"),
    "a dtype that is none": ({**FSDP2, "parallelism.reduce_dtype": "half16"}, "half16 is not a dtype"),
    "a class that is not there": (
        {**FSDP2, "parallelism.wrap": ["LlamaDecoderLayer"]},
        "no module of class LlamaDecoderLayer to shard by .*: the model has Layer, Linear, ModuleList, Stack",
    ),
    "a sharded model in one process": ({"parallelism.zero_stage": 1}, "zero_stage = 1 shards states"),
}


@pytest.mark.parametrize(("facts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_spread_is_refused(facts: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=said):
        run(tmp_path, facts)
    assert not dist.is_initialized()


def test_a_group_that_exists_already_is_not_touched(tmp_path: Path) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(MeasureError, match="a process group exists already"):
            run(tmp_path, DDP)
        assert dist.get_world_size() == 2
    finally:
        dist.destroy_process_group()


def test_a_pytorch_without_distributed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(MeasureError, match=r"strategy = ddp needs torch\.distributed, which this PyTorch lacks"):
        run(tmp_path, DDP)


def test_one_process_does_not_show_a_sharded_run() -> None:
    with pytest.raises(MeasureError, match="strategy = fsdp2 spreads the run over several processes"):
        training.plan_of({"facts": FSDP2, "keys": {}})


def test_the_report_names_communication_and_how_the_run_was_spread(tmp_path: Path) -> None:
    sys.modules.pop("memlint_model", None)
    answer = trace.answer(plain_request(tmp_path, FSDP2, model=STACK))
    estimate = estimate_from(json.loads(json.dumps(answer))["estimate"])
    assert estimate.component_bytes("communication") >= 3 * WEIGHT
    assert sum(component.size_bytes for component in estimate.components) == estimate.device_bytes
    said = {fact: value for fact, value, _ in estimate.assumptions}
    assert said["parallelism.strategy"] == "fsdp2"
    assert said["parallelism.wrap"] == f"{LAYERS} x Layer"
    assert "world_size" not in said
