"""Optimizers of libraries of their own, against figures that were read off those libraries' optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from memlint.meta import optim_libraries, optim_low_rank
from memlint.meta import tensor as meta
from memlint.meta.optimizer import Optimizer
from memlint.meta.tape import Label
from memlint.models import language, step
from tests.dialects.language_models import run
from tests.differential.oracle import live_and_peak

# A model of one layer: the path of a parameter, and its shape.
PARAMETERS: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (200, 64),
    "layers.0.self_attn.q_proj.weight": (64, 64),
    "layers.0.self_attn.k_proj.weight": (32, 64),
    "layers.0.mlp.up_proj.weight": (160, 64),
    "layers.0.mlp.down_proj.weight": (64, 160),
    "layers.0.norm.weight": (64,),
    "layers.0.self_attn.q_proj.bias": (64,),
    "lm_head.weight": (200, 64),
}
TARGETS = ["attn", "mlp"]
Make = Callable[[Sequence[meta.Tensor]], Optimizer]


class Bytes(NamedTuple):
    """What is kept, and the most that a step has alive, beyond parameters and gradients."""

    state: int
    peak: int


def parameters(dtype: str, gradients: bool = True) -> list[meta.Tensor]:
    made = []
    for path, shape in PARAMETERS.items():
        module, _, name = path.rpartition(".")
        meta.state.label = Label("parameters", module, name)
        made.append(meta.empty(shape, meta.DTYPES[dtype]).requires_grad_())
        meta.state.tape.labels[made[-1].storage.index] = meta.state.label
    if gradients:
        for parameter in made:
            parameter.grad = meta.empty_like(parameter)
    return made


def targets_last(made: Sequence[meta.Tensor]) -> list[meta.Tensor]:
    """As transformers groups them: those that are not projected go first."""

    def projected(parameter: meta.Tensor) -> bool:
        label = meta.state.tape.labels[parameter.storage.index]
        return label.name == "weight" and any(word in label.module for word in TARGETS)

    return sorted(made, key=projected)


def measured(create: Make, dtype: str) -> Bytes:
    with meta.recording() as tape:
        given = parameters(dtype)
        optimizer = create(given)
        start, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        state, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        optimizer.step()
        live, peak = live_and_peak(tape, begin)
        assert live == state
        return Bytes(state - start, peak - start)


def low_rank(kind: type[optim_low_rank.LowRank]) -> Make:
    return lambda given: kind(targets_last(given), rank=16, targets=TARGETS)


# (our optimizer, theirs in fp32, theirs in bfloat16), read off the second of two steps of the library's optimizer over
# fake tensors of these shapes, each with a rank of 16 and matrices made anew; what a card keeps in host memory is left
# out (GrokAdamW).
CASES: dict[str, tuple[Make, Bytes, Bytes]] = {
    "galore_torch 1.0, AdamW": (low_rank(optim_low_rank.GaLore), Bytes(316416, 456960), Bytes(138752, 275200)),
    "galore_torch 1.0, Adafactor": (
        low_rank(optim_low_rank.GaLoreAdafactor),
        Bytes(57952, 167776),
        Bytes(57952, 263808),
    ),
    "apollo_torch 1.0.3, AdamW": (low_rank(optim_low_rank.Apollo), Bytes(277520, 390804), Bytes(138760, 214536)),
    "adam_mini 1.1.1": (
        lambda given: optim_libraries.AdamMini(given, head_numbers=64 * 64 // 4),
        Bytes(212188, 316988),
        Bytes(106094, 158494),
    ),
    "schedulefree 1.4.1, AdamW": (optim_libraries.ScheduleFree, Bytes(418816, 628224), Bytes(209408, 314112)),
    "schedulefree 1.4.1, SGD": (optim_libraries.ScheduleFreeSGD, Bytes(209408, 209408), Bytes(104704, 104704)),
    "came_pytorch 0.1.3": (optim_libraries.Came, Bytes(219552, 424352), Bytes(219536, 466352)),
    "prodigyopt 1.1.2": (optim_libraries.Prodigy, Bytes(837632, 919552), Bytes(418816, 459776)),
    "dadaptation 3.2, Adam": (optim_libraries.DAdaptAdam, Bytes(628224, 730628), Bytes(314112, 365314)),
    "EasyR1 at b44b311, AnyPrecisionAdamW": (
        optim_libraries.CompensatedAdam,
        Bytes(314112, 416512),
        Bytes(314112, 396032),
    ),
    "grokadamw 0.1.2": (optim_libraries.GrokAdamW, Bytes(0, 256256), Bytes(0, 128128)),
}


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a decomposition makes no copy of its input."""
    monkeypatch.setattr(optim_low_rank, "DECOMPOSITION_COPIES", False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_state_and_step_are_the_librarys_to_the_byte(case: str, dtype: str) -> None:
    ours, wide, narrow = CASES[case]
    assert measured(ours, dtype) == (wide if dtype == "float32" else narrow)


@pytest.mark.parametrize(
    ("kind", "dtype", "theirs"),
    [
        pytest.param(optim_libraries.Lomo, "float32", Bytes(0, 0), id="lomo_optim 0.1.1, LOMO, fp32"),
        pytest.param(optim_libraries.Lomo, "bfloat16", Bytes(0, 76800), id="lomo_optim 0.1.1, LOMO, bfloat16"),
        pytest.param(optim_libraries.AdaLomo, "float32", Bytes(5312, 103456), id="lomo_optim 0.1.1, AdaLOMO, fp32"),
        pytest.param(
            optim_libraries.AdaLomo, "bfloat16", Bytes(5312, 129056), id="lomo_optim 0.1.1, AdaLOMO, bfloat16"
        ),
    ],
)
def test_an_update_inside_of_backward_needs_what_the_librarys_does(
    kind: type[optim_libraries.Lomo], dtype: str, theirs: Bytes
) -> None:
    """One parameter at a time, beside its own gradient (which the update lets go)."""
    with meta.recording() as tape:
        given = parameters(dtype, gradients=False)
        optimizer = kind(given)
        before, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        kept, _ = live_and_peak(tape, 0)
        most = 0
        for parameter in given:
            parameter.grad = meta.empty_like(parameter)
            now, _ = live_and_peak(tape, 0)
            begin = len(tape.events)
            optimizer._step([parameter])
            most = max(most, live_and_peak(tape, begin)[1] - now)
            assert parameter.grad is None
    assert (kept - before, most) == theirs


def test_lomo_keeps_a_gradient_until_the_next_one_is_there() -> None:
    with meta.recording():
        first, second, *_ = given = parameters("bfloat16", gradients=False)
        optimizer = optim_libraries.Lomo(given)
        first.grad = meta.empty_like(first)
        optimizer.step_of(first)
        assert first.grad is not None
        second.grad = meta.empty_like(second)
        optimizer.step_of(second)
        assert first.grad is None
        assert second.grad is not None
        optimizer.step()
        assert second.grad is None


def test_galore_in_8_bits_keeps_a_byte_per_projected_number() -> None:
    """``init_state`` of bitsandbytes over the projected gradient: under 4,096 numbers fp32, else a byte and a float per
    256 of them; over what is not projected as over any parameter; two tables of 256 floats."""
    count = {"q": 64 * 16, "k": 16 * 64, "up": 160 * 16, "down": 16 * 160}
    matrix = {"q": 16 * 64, "k": 32 * 16, "up": 16 * 64, "down": 64 * 16}
    assert all(numbers < 4096 for numbers in count.values())
    low = sum(2 * 4 * count[name] + 2 * matrix[name] for name in count)
    table = 200 * 64
    others = 2 * (2 * (table + -(-table // 256) * 4)) + 2 * 2 * 4 * 64
    with meta.recording() as tape:
        optimizer = low_rank(optim_low_rank.GaLore8bit)(parameters("bfloat16"))
        start, _ = live_and_peak(tape, 0)
        optimizer.allocate_state()
        kept, _ = live_and_peak(tape, 0)
        assert kept - start == low + others + 2 * 256 * 4
        optimizer.step()
        left, _ = live_and_peak(tape, 0)
    shapes = [PARAMETERS[path] for path in PARAMETERS if "layers" in path and len(PARAMETERS[path]) == 2]
    gone = sum(2 * rows * columns for rows, columns in shapes)
    assert kept - left == gone - 2 * sum(count.values())  # projected gradients have taken the gradients' place


@pytest.mark.parametrize(
    ("targets", "path", "meant"),
    [
        pytest.param(["attn", "mlp"], "model.layers.3.self_attn.q_proj", True, id="a part of the path"),
        pytest.param(["attn", "mlp"], "lm_head", False, id="another module"),
        pytest.param(["attention"], "layers.3.self_attn.q_proj", True, id="attention by another of its names"),
        pytest.param(r".*\.\d+\.mlp\..*", "model.layers.11.mlp.up_proj", True, id="a pattern over the whole path"),
        pytest.param(r"mlp", "model.layers.11.mlp.up_proj", True, id="one name"),
        pytest.param("all-linear", "lm_head", True, id="all linear layers are the head, too"),
        pytest.param("inner-linear", "lm_head", False, id="all but the head"),
        pytest.param("inner-linear", "model.layers.0.mlp.up_proj", True, id="all but the head: others"),
    ],
)
def test_targets_are_parts_of_paths_or_patterns(targets: list[str] | str, path: str, meant: bool) -> None:
    assert optim_low_rank.chosen(targets)(path) is meant


@pytest.mark.parametrize(
    ("path", "linear"),
    [("layers.0.mlp.up_proj", True), ("embed_tokens", False), ("transformer.wte", False), ("", False)],
)
def test_a_table_is_no_linear_layer(path: str, linear: bool) -> None:
    assert optim_low_rank.is_linear(path) is linear


CONFIG = """\
model_name_or_path: HuggingFaceTB/SmolLM2-135M
output_dir: out
per_device_train_batch_size: 1
max_seq_length: 64
bf16: true
"""


@pytest.mark.parametrize("name", ["muon", "galore_adamw", "apollo_adamw", "galore_adafactor"])
def test_a_recording_without_names_has_the_same_sizes(name: str) -> None:
    """Which parameters are matrices of layers is known by their names, also where only a total is asked for."""
    spec = run(CONFIG + f"optim: {name}\noptim_target_modules: [attn, mlp]\n")
    named = step.record_step(language.build, spec)
    plain = step.record_step(language.build, spec)
    assert plain.tape.sizes == named.tape.sizes
    assert plain.tape.events == named.tape.events
