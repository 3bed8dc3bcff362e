"""Replay: the tape is the same, event for event, whether calls are simulated or written from templates."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from memlint.dialects import registry
from memlint.dialects.spec import Fact, TrainingSpec
from memlint.documents.load import load
from memlint.meta import autograd, replay
from memlint.meta import functional as F
from memlint.meta.amp import autocast
from memlint.meta.autograd import backward, no_grad, saved_storages
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Module, parameter
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import Tensor, bfloat16, empty, recording
from memlint.models import record, saved_bytes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """And no garbage collector: a graph that is dropped with a reentrant checkpoint in it is a cycle."""
    replay.forget()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    replay.forget()
    replay.ENABLED = True


def simulated(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    replay.ENABLED = False
    try:
        return function(*args, **options)
    finally:
        replay.ENABLED = True


def assert_same_tapes(ours: Tape, truth: Tape) -> None:
    for name in set(Tape.__slots__) - {"paid"}:  # how far work is paid for is no part of what was recorded
        assert getattr(ours, name) == getattr(truth, name), name


def assert_same(spec: TrainingSpec) -> None:
    """With and without names, from no template and from all of them."""
    for named in (False, True):
        truth = simulated(record, spec, named=named)
        for _ in range(3):
            ours = record(spec, named=named)
            assert_same_tapes(ours.tape, truth.tape)
            assert ours[1:] == truth[1:]
    expected = simulated(saved_bytes, spec)
    assert saved_bytes(spec) == expected


# -- the examples

CONFIGS = [
    "uni3d_dp/uni3d+dp.yaml",
    "uni3d_dp/uni3d+dp_after.yaml",
    "uni3d_dp/uni3d+dp_balanced.yaml",
    "uni3d_dp/uni3d+dp_ultra_low.yaml",
    "uni3d_dp/uni3d+dp_upstream_default.yaml",
    "stdiff/kitti_range_train_config.yaml",
    "stdiff/kitti_range_train_config_after.yaml",
    "dit3d/config.py",
    "dit3d/config_before.py",
    "video_llm/config.yaml",
    "video_llm/config_before.yaml",
]
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "another micro batch": {"micro_batch_size": 3},
    "checkpointing": {"checkpointing": "full"},
    "checkpointing of some blocks": {"checkpointing": "blocks"},
    "bfloat16 autocast": {"compute_dtype": "bfloat16", "autocast": True},
    "bfloat16 autocast and checkpointing": {"compute_dtype": "bfloat16", "autocast": True, "checkpointing": "full"},
    "float16 autocast": {"compute_dtype": "float16", "autocast": True},
    "bfloat16 parameters": {"parameter_dtype": "bfloat16"},
    "no accumulation": {"gradient_accumulation_steps": 1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "accumulation and checkpointing": {"gradient_accumulation_steps": 2, "checkpointing": "full"},
    "an average of the weights": {"ema": True},
    "no average of the weights": {"ema": False},
    "a frozen encoder": {"encoder_frozen": True},
    "dropped patches": {"hyperparameters.patch_dropout": 0.5},
    "dropped paths": {"hyperparameters.drop_path_rate": 0.2},
    "eager attention": {"attention": "eager"},
    "fused attention": {"attention": "sdpa"},
    "xformers": {"attention": "xformers"},
    "a fused optimizer": {"optimizer_implementation": "fused"},
}


def first_spec(config: str) -> TrainingSpec:
    path = EXAMPLES / config
    spec: TrainingSpec = next(
        spec for spec in registry.specs(load(str(path), path.read_text(encoding="utf-8"))) if spec.architecture
    )
    return spec


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of a block leaves a template or is written from one, however rare the block is."""
    monkeypatch.setattr(replay, "_likely", lambda module, args: True)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("config", CONFIGS)
def test_an_example_has_the_same_tape_whatever_is_changed(config: str) -> None:
    """Every other change meets what the one before it left, the rest nothing."""
    spec = first_spec(config)
    for number, changes in enumerate(CHANGES.values()):
        if number % 2 == 0:
            replay.forget()
        before = replay.statistics()["replays"]
        assert_same(spec.with_facts(**changes))
        assert replay.statistics()["replays"] > before


@pytest.mark.parametrize("config", CONFIGS)
def test_an_example_has_the_same_tape_with_each_blocks_own_threshold(config: str) -> None:
    assert_same(first_spec(config))


def test_runs_that_alternate_do_not_disturb_each_other() -> None:
    specs = [first_spec(config) for config in CONFIGS]
    truths = [simulated(record, spec) for spec in specs]
    for _ in range(2):
        for spec, truth in zip(specs, truths):
            assert_same_tapes(record(spec).tape, truth.tape)


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TEMPLATES", 5)
    for batch in range(1, 8):
        assert_same(first_spec("dit3d/config.py").with_facts(micro_batch_size=batch))
        assert replay.statistics()["templates"] <= 5


def test_a_symbolic_recording_is_simulated() -> None:
    spec = first_spec("dit3d/config.py")
    truth = simulated(record, spec, symbolic=True)
    record(spec)
    assert_same_tapes(record(spec, symbolic=True).tape, truth.tape)


def test_a_memo_saves_most_of_the_simulation() -> None:
    """What the memo is for: a first recording does not simulate every block, and a later one hardly any."""
    spec = first_spec("uni3d_dp/uni3d+dp.yaml")

    def simulations() -> int:
        calls = 0
        original = autograd.record

        def counted(*args: Any) -> None:
            nonlocal calls
            calls += 1
            original(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "record", counted)
            record(spec)
        return calls

    full = simulated(simulations)
    cold, *_, warm = (simulations() for _ in range(6))
    assert cold < 0.6 * full
    assert warm < 0.3 * full


# -- settings as the comparison with torch draws them


def differential(name: str) -> ModuleType:
    folder = ROOT / "tests" / "differential"
    spec = importlib.util.spec_from_file_location(f"settings_of_{name}", folder / f"test_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("family", ["uni3d_dp", "stdiff", "dit3d", "video_llm"])
def test_drawn_settings_have_the_same_tape(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = differential(family)
    if family == "video_llm":
        known = module.decoders.find
        monkeypatch.setattr(module.decoders, "find", lambda name: module.SMALL.get(name) or known(name))
    strategy = module.DRAWN if hasattr(module, "DRAWN") else module.drawn()
    file = "drawn.py" if family == "dit3d" else "drawn.yaml"

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(setting: Any) -> None:
        assume(family != "dit3d" or module.divides(setting))
        if family == "video_llm" and setting.optimizer == "loop":  # as in its own test
            spec, _ = module.read(file, setting._replace(optimizer="adamw").config())
        else:
            spec, _ = module.read(file, setting.config())
        if family != "uni3d_dp" and setting.optimizer in ("foreach", "loop"):
            spec = spec.with_facts(optimizer_implementation=setting.optimizer)
        assert_same(spec)

    one()


# -- drawn networks of drawn blocks


class Op(NamedTuple):
    """``first`` and ``second`` choose among what the block has made so far, counted from the end."""

    name: str
    first: int
    second: int


WIDTH = 8


class Block(Module):
    """(4, 8) tensors in, one or two (4, 8) tensors out."""

    replay_after = 0

    def __init__(self, ops: tuple[Op, ...], results: int) -> None:
        self.ops = ops
        self.results = results
        self.weight = parameter(WIDTH, WIDTH)
        self.bias = parameter(WIDTH)
        self.scale = parameter(4, WIDTH)

    def forward(self, *inputs: Tensor) -> Any:
        made = list(inputs)
        for name, first, second in self.ops:
            x, y = made[-1 - first % len(made)], made[-1 - second % len(made)]
            made.append(self.apply(name, x, y))
        outs = made[-self.results :]
        return outs[0] if self.results == 1 or len(outs) == 1 else tuple(outs)

    def apply(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor
        if name == "linear":
            out = F.linear(x, self.weight, self.bias)
        elif name == "norm":
            out = F.layer_norm(x, self.bias, self.bias)
        elif name == "scale":
            out = x * self.scale
        elif name == "shift":
            out = x + self.scale
        elif name == "turned":
            out = F.linear(x.transpose(0, 1).contiguous().view(4, WIDTH), self.weight)
        elif name == "halves":
            left, right = F.chunk(x, 2, -1)
            out = F.cat((right, left), -1)
        elif name == "beside":
            out = F.cat((x, y), 0)[:4]
        elif name == "viewed":
            out = x.view(2, 16).view(4, WIDTH)
        elif name == "relu_":
            out = F.relu(x, inplace=True)
        elif name == "lost":
            F.exp(x)
            out = x * 1.0
        elif name in ("add", "sub", "mul"):
            out = getattr(F, name)(x, y)
        else:
            out = getattr(F, name)(x)
        return out


NAMES = (
    "linear", "linear", "norm", "scale", "shift", "turned", "halves", "beside", "viewed", "relu_", "lost", "add",
    "add", "sub", "mul", "tanh", "gelu", "exp",
)  # fmt: skip
OPS = st.builds(Op, st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 3))
BLOCKS = st.tuples(st.lists(OPS, min_size=1, max_size=6).map(tuple), st.sampled_from((1, 1, 1, 2)))


class Wiring(NamedTuple):
    """How a block is called: what it gets, and what happens with its result."""

    block: int
    inputs: tuple[int, ...]
    joined: str
    checkpointed: str


WIRINGS = st.builds(
    Wiring,
    st.integers(0, 1),
    st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple),
    st.sampled_from(("alone", "alone", "residual", "residual first", "beside", "product", "dropped")),
    st.sampled_from(("", "", "", "", "kept", "reentrant")),
)


class Network(Module):
    def __init__(self, blocks: list[Any], wirings: list[Wiring], shared: bool) -> None:
        self.wirings = wirings
        made = [Block(*block) for block in blocks]
        self.blocks = [made[wiring.block] if shared else Block(*blocks[wiring.block]) for wiring in wirings]

    def forward(self, x: Tensor) -> Tensor:
        made = [F.linear(x, self.blocks[0].weight), x * 1.0]
        for wiring, block in zip(self.wirings, self.blocks):
            inputs = [made[-1 - number % len(made)] for number in wiring.inputs]
            out: Any
            if wiring.checkpointed:
                out = checkpoint(block, *inputs, use_reentrant=wiring.checkpointed == "reentrant")
            else:
                out = block(*inputs)
            outs = [out] if isinstance(out, Tensor) else list(out)
            first = inputs[0]
            if wiring.joined == "residual":
                outs[0] = outs[0] + first
            elif wiring.joined == "residual first":
                outs[0] = first + outs[0]
            elif wiring.joined == "product":
                outs[0] = outs[0] * first
            elif wiring.joined == "beside":
                outs[0] = F.cat((outs[0], first), 0)[:4]
            if wiring.joined != "dropped":
                made += outs
            del out, outs, inputs, first
        return F.mean(made[-1] + made[-2])


class Setting(NamedTuple):
    blocks: list[Any]
    wirings: list[Wiring]
    shared: bool
    passes: int
    autocast: bool
    frozen: tuple[bool, bool]
    evaluated: bool
    in_place: bool
    trains: bool


NETWORKS = st.builds(
    Setting,
    st.lists(BLOCKS, min_size=2, max_size=2),
    st.lists(WIRINGS, min_size=1, max_size=5),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from((False, False, True)),
    st.tuples(st.sampled_from((False, False, True)), st.sampled_from((False, False, True))),
    st.booleans(),
    st.sampled_from((True, True, True, False)),
    st.booleans(),
)


def run(setting: Setting) -> tuple[Tape, int]:
    with recording() as tape:
        network = Network(setting.blocks, setting.wirings, setting.shared)
        network.name("network")
        for block in network.blocks:
            block.weight.requires_grad, block.bias.requires_grad = (not frozen for frozen in setting.frozen)
        saved = 0
        for _ in range(setting.passes):
            tape.mark("forward")
            with autocast(bfloat16 if setting.autocast else None):
                x = empty((4, WIDTH)).requires_grad_(setting.trains)
                loss = network(x)
                saved += sum(saved_storages(loss).values())
            tape.mark("backward")
            backward(loss)
        del loss
        if setting.evaluated:
            tape.mark("evaluation")
            with no_grad(), autocast(bfloat16 if setting.autocast else None):
                network(x)
        for parameter_ in network.parameters():
            parameter_.grad = None
        del x
    return tape, saved


@settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(NETWORKS)
def test_drawn_networks_have_the_same_tape(setting: Setting) -> None:
    replay.forget()
    autograd.ACCUMULATE_IN_PLACE = setting.in_place
    try:
        truth, saved = simulated(run, setting)
        for _ in range(2):
            ours, ours_saved = run(setting)
            assert_same_tapes(ours, truth)
            assert ours_saved == saved
    finally:
        autograd.ACCUMULATE_IN_PLACE = True


# -- what has no template


def test_a_block_that_keeps_a_tensor_is_simulated() -> None:
    class Keeping(Module):
        replay_after = 0

        def forward(self, x: Tensor) -> Tensor:
            kept.append(F.exp(x))
            return x * 1.0

    kept: list[Tensor] = []

    def go() -> Tape:
        with recording() as tape:
            block, x = Keeping(), empty((4, 4))
            for _ in range(3):
                x = block(x)
            kept.clear()
        return tape

    truth = simulated(go)
    assert_same_tapes(go(), truth)
    assert_same_tapes(go(), truth)


def test_a_changed_hyperparameter_is_another_structure() -> None:
    class Wide(Module):
        replay_after = 0

        def __init__(self, times: int) -> None:
            self.times = times

        def forward(self, x: Tensor) -> Tensor:
            return F.repeat(x, self.times)

    with recording() as tape:
        x = empty((4,))
        results = [Wide(times)(x).shape for times in (1, 2, 3, 2)]
    assert results == [(4,), (8,), (12,), (8,)]
    assert tape.sizes == [16, 16, 32, 48, 32]


def test_a_block_under_two_names_gets_each_ones_labels() -> None:
    class Two(Module):
        replay_after = 0

        def __init__(self) -> None:
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out * 1.0

    class Inner(Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.exp(x)

    with recording() as tape:
        x = empty((2,))
        for path in ("first", "second.0"):
            block = Two()
            block.name(path)
            block(x)
    assert tape.labels[1:] == [
        Label("activations", "first.inner"),
        Label("activations", "first"),
        Label("activations", "second.0.inner"),
        Label("activations", "second.0"),
    ]


# -- decoders whose layers are checkpointed, whole or in parts

DECODER: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ZERO_3 = {
    "parallelism.strategy": "zero",
    "parallelism.zero_stage": 3,
    "parallelism.persistence_elements": 0,
    "device_count": 4,
}
HALF = {"compute_dtype": "bfloat16", "parameter_dtype": "bfloat16"}
DECODERS: dict[str, dict[str, Any]] = {
    "on one device": {},
    "with rows of other lengths": {"micro_batch_size": 3, "sequence_length": 48},
    "with plain attention": {"attention": "eager"},
    "under autocast": {"compute_dtype": "bfloat16", "autocast": True},
    "in half precision": HALF,
    "with a bias and tied words": {"tied": True},
    "with ZeRO-3": {**HALF, **ZERO_3},
    "with ZeRO-3 and gathered weights that stay": {**HALF, **ZERO_3, "parallelism.persistence_elements": 5000},
    "with ZeRO-3 and one micro batch": {**HALF, **ZERO_3, "gradient_accumulation_steps": 1},
    "with ZeRO-2": {**HALF, **ZERO_3, "parallelism.zero_stage": 2},
    "with FSDP1": {"parallelism.strategy": "fsdp1", "compute_dtype": "bfloat16", "device_count": 4},
    "with FSDP2": {"parallelism.strategy": "fsdp2", "compute_dtype": "bfloat16", "device_count": 4},
    "with adapters": {**HALF, "tuning": "lora", "lora.r": 4},
    "with checkpoints kept in host memory": {"activation_offloading": True},
}


def decoder(facts: dict[str, Any]) -> TrainingSpec:
    config = {**DECODER, "attention_bias": True, "tie_word_embeddings": True} if "tied" in facts else DECODER
    stated = {
        "hyperparameters.config": config,
        "micro_batch_size": 2,
        "sequence_length": 64,
        "gradient_accumulation_steps": 2,
        "checkpointing": "full",
        **facts,
    }
    stated.pop("tied", None)
    made = {name: Fact(name, value) for name, value in stated.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


@pytest.mark.parametrize("reentrant", [False, True], ids=["kept graphs", "reentrant"])
@pytest.mark.parametrize("facts", DECODERS.values(), ids=DECODERS)
def test_a_checkpointed_decoder_has_the_same_tape(facts: dict[str, Any], reentrant: bool) -> None:
    before = replay.statistics()["replays"]
    assert_same(decoder({**facts, "checkpointing_reentrant": reentrant}))
    assert replay.statistics()["replays"] > before


@pytest.mark.parametrize("facts", [HALF, {**HALF, **ZERO_3}], ids=["on one device", "with ZeRO-3"])
def test_most_checkpointed_layers_run_backward_from_a_program(facts: dict[str, Any]) -> None:
    """Their nodes are not made, not even when they are recomputed."""
    made = 0
    original = replay._nodes

    def counted(*args: Any) -> Any:
        nonlocal made
        found = original(*args)
        made += len(found)
        return found

    def nodes(layers: int) -> int:
        nonlocal made
        replay.forget()
        made = 0
        config = {**DECODER, "num_hidden_layers": layers}
        spec = decoder({**facts, "checkpointing_reentrant": False, "hyperparameters.config": config})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay, "_nodes", counted)
            record(spec)
        return made

    assert nodes(40) == nodes(20) > 0
