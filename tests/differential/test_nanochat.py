"""nanochat's compiled decoder keeps what torch's own partitioner decides to keep of the same layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta.autograd import saved_storages
from memlint.meta.tensor import bfloat16, empty, int64, recording
from memlint.models import record
from memlint.models.nanochat import Nanochat, Sizes
from tests.differential.nanochats import Reference
from tests.differential.test_compiled import compiling
from tests.differential.test_language_models import TOLERANCE, spec_of
from tests.differential.training import in_meta, in_torch

ROWS, LENGTH = 4, 128
RELEASES = {
    "as it was published": frozenset[str](),
    "with scales in front of each layer": frozenset(("padded", "lambdas")),
    "with embeddings for values": frozenset(("padded", "lambdas", "values")),
    "with a token that takes of the one before": frozenset(("padded", "lambdas", "values", "smear")),
}


def kept_by_torch(sizes: Sizes) -> int:
    with compiling() as kept:
        model = Reference(sizes, LENGTH)
        kept.exclude(model)
        tokens = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
        torch.compile(model, backend=kept.backend(), dynamic=False)(tokens, tokens.clone())
    return sum(kept.bytes.values())


def kept_by_us(sizes: Sizes) -> int:
    with recording() as tape:
        model = Nanochat(sizes, LENGTH, bfloat16, True)
        loss = model(empty((ROWS, LENGTH), int64), empty((ROWS, LENGTH), int64))
        found = saved_storages(loss)
        return sum(size for index, size in found.items() if tape.labels[index].component not in _WEIGHTS)


_WEIGHTS = ("parameters", "buffers")


@pytest.mark.parametrize("features", RELEASES.values(), ids=RELEASES)
def test_each_two_layers_of_a_release_keep_what_the_partitioner_keeps(features: frozenset[str]) -> None:
    """And all of a small model within a hundredth: what is before and behind its layers is kept once."""
    small, large = (Sizes(layers, 256, 2, 1000, features) for layers in (4, 6))
    theirs, ours = (kept_by_torch(small), kept_by_torch(large)), (kept_by_us(small), kept_by_us(large))
    assert ours[1] - ours[0] == pytest.approx(theirs[1] - theirs[0], rel=0.003)
    assert ours == pytest.approx(theirs, rel=0.01)


def run(features: frozenset[str], **more: Any) -> TrainingSpec:
    facts: dict[Any, Any] = {
        **{"micro_batch_size": ROWS, "sequence_length": LENGTH, "vocabulary_size": 1000, "compute_dtype": "bfloat16"},
        **{HYPER + "depth": 4, HYPER + "width": 256, HYPER + "head_width": 128, HYPER + "features": sorted(features)},
        **{"compile": False, "optimizer_library": "nanochat", **more},
    }
    made = spec_of(facts)
    made.architecture = "nanochat"
    return made


@pytest.mark.parametrize("features", RELEASES.values(), ids=RELEASES)
def test_without_a_compiler_a_release_takes_what_its_layers_take_in_torch(features: frozenset[str]) -> None:
    """Beside states, which are another optimizer's."""
    sizes = Sizes(4, 256, 2, 1000, features)
    reference: Any = SimpleNamespace(
        build_model=lambda _: Reference(sizes, LENGTH).train(),
        make_batch=lambda _: torch.zeros(2, ROWS, LENGTH, dtype=torch.int64),
        training_loss=lambda model, batch: model(batch[0], batch[1]),
    )
    theirs = in_torch(reference, {}, lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False))
    ours, states = in_meta(run(features)), states_of(run(features))
    assert (ours.parameters, ours.saved) == (theirs.parameters, theirs.saved)
    for phase in ("forward", "backward"):
        assert ours.phases[phase] - states == pytest.approx(theirs.phases[phase], rel=TOLERANCE)


def states_of(spec: TrainingSpec) -> int:
    """Bytes of the optimizer's states, each in blocks of 512."""
    tape = record(spec).tape
    setup = list(tape.events[: {name: at for at, name in reversed(tape.marks)}["forward"]])
    held = [number for number in setup if number >= 0 and tape.labels[number].component == "optimizer"]
    return sum(-(-tape.sizes[number] // 512) * 512 for number in held)


@pytest.mark.parametrize(
    ("ranks", "stacked"),
    [(1, True), (8, True), (1, False), (8, False)],
    ids=["alone", "of 8", "at first", "at first of 8"],
)
def test_states_of_a_rank(ranks: int, stacked: bool) -> None:
    """By hand, from optim.py: two moments of a slice of embedding (bfloat16) and head (fp32); a momentum of so many
    whole matrices of each shape, and a number for each of their rows or columns; before 2026-01-11 zeros of each shape
    instead."""
    width, rows, layers = 256, 1000, 4
    tables = 2 * (rows // ranks) * width * (2 + 4)
    shapes = {(width, width): 4 * layers, (4 * width, width): layers, (width, 4 * width): layers}
    matrices = 0
    for (high, wide), count in shapes.items():
        share = -(-count // ranks)
        matrices += 4 * share * high * wide
        matrices += 4 * share * max(high, wide) if stacked else 4 * high * wide * (ranks > 1)
    spec = run(frozenset(), world_size=ranks, **{HYPER + "stacked": stacked})
    assert states_of(spec) == pytest.approx(tables + matrices, abs=8 * 512)


def test_a_compiled_backward_pass_hands_all_gradients_on_at_its_end() -> None:
    """With rows so short that nothing else counts, each parameter has two when the second micro-batch is through."""
    spec = run(frozenset(), micro_batch_size=1, sequence_length=8, compile=True, gradient_accumulation_steps=2)
    tape, peak = record(spec).tape, in_meta(spec).phases["backward"]
    weights = sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "parameters")
    assert peak - states_of(spec) >= 3 * weights
    apart = in_meta(spec.replaced({"compile": False})).phases["backward"]
    assert apart - states_of(spec) < 3 * weights
