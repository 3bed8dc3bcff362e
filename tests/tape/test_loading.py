"""What a model takes while it is loaded, beside what its steps take."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.data.catalogue import parse_gpu
from memlint.meta.tape import Label, Tape
from memlint.models import Recording, language, record
from memlint.models.step import record_step
from memlint.tape.allocator import simulate
from memlint.tape.phases import find_peak
from memlint.tape.summary import LEFT_BY_LOADER_BYTES, Device, estimate
from tests.models.test_parallel import CONFIG, RANKS, ZERO, made, run, storages
from tests.models.test_sharded_adapters import LINEAR, PACKED, STAGE3

MIB = 1 << 20
WHOLE = {**STAGE3, **PACKED, "parallelism.loaded_whole": True}


def step(activations: int) -> Tape:
    tape = Tape()
    tape.mark("setup")
    tape.allocate(4 * MIB, Label("parameters", "layer", "weight"))
    tape.allocate(2 * MIB, Label("buffers", "layer", "scale"))
    tape.mark("forward")
    held = tape.allocate(activations, Label("activations", "layer", "x"))
    tape.mark("backward")
    tape.free(held)
    return tape


def loaded(size: int) -> Tape:
    tape = Tape()
    tape.mark("setup")
    tape.allocate(size, Label("parameters", "layer", "weight"))
    return tape


def test_what_is_taken_before_the_first_weight_is_like_a_block_that_comes_and_goes() -> None:
    written = Tape()
    written.mark("setup")
    written.free(written.allocate(64 * MIB, Label("parameters", "", "")))
    rest = step(8 * MIB)
    written.sizes += rest.sizes
    written.events += [event + 1 if event >= 0 else event - 1 for event in rest.events]
    written.labels += rest.labels
    once, again = simulate(written), simulate(rest, warmed_bytes=64 * MIB)
    assert again.reserved_peak_bytes == once.reserved_peak_bytes == 64 * MIB, "the weights and the step fit into it"
    assert again.segments == once.segments


def test_a_loader_takes_no_more_than_half_of_what_a_card_has_free() -> None:
    wanted = 32 << 30
    made = Recording(step(8 * MIB), 1, 1, warmed_bytes=wanted)
    assert estimate(made).reserved_bytes == wanted
    t4, _ = parse_gpu("t4")
    taken = estimate(made, Device(t4)).reserved_bytes
    assert taken < wanted
    assert 0 < t4.usable_bytes - 2 * taken - LEFT_BY_LOADER_BYTES < 1 << 30, "its context"


def test_a_loader_takes_nothing_at_once_of_a_card_that_has_no_more_than_it_leaves() -> None:
    made = Recording(step(8 * MIB), 1, 1, warmed_bytes=32 << 30)
    small = Device(parse_gpu("t4")[0]._replace(usable_bytes=LEFT_BY_LOADER_BYTES))
    assert estimate(made, small) == estimate(made._replace(warmed_bytes=0), small)


QLORA = {
    **{"tuning": "lora", "lora.rank": 8, "lora.targets": "all-linear", "quantization.bits": 4},
    **{"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": True},
}


ROWS_OF_VOCABULARY = 65_536


@pytest.mark.parametrize(
    ("keys", "item_sizes"),
    [
        pytest.param({}, [], id="what is not quantised stays in 16 bits"),
        pytest.param({"quantization.prepared": True}, [2, 2], id="fp32 comes while the 16 bits are there"),
        pytest.param(
            {"quantization.prepared_and_back": True}, [2, 2, 4, 4], id="all of it is fp32 before it goes back"
        ),
    ],
)
def test_what_is_brought_to_fp32_leaves_gaps_while_a_model_is_loaded(
    keys: dict[str, Any], item_sizes: list[int]
) -> None:
    """PEFT's prepare_model_for_kbit_training, and behind it TRL's peft_module_casting_to_bf16, cast one parameter after
    the other. Norms are too small to count."""
    config = {**CONFIG, "vocab_size": ROWS_OF_VOCABULARY, "tie_word_embeddings": False}
    tape = made({**QLORA, **keys}, config).tape
    begin = next(at for at, phase in tape.marks if phase != "setup")
    gone = [tape.sizes[~event] for event in tape.events[:begin] if event < 0]
    assert gone == [size * ROWS_OF_VOCABULARY * CONFIG["hidden_size"] for size in item_sizes]


@pytest.mark.parametrize(
    ("activations", "loading", "phase", "peak"),
    [
        pytest.param(8 * MIB, 0, "forward", 14 * MIB, id="nothing is known of how it was loaded"),
        pytest.param(8 * MIB, 10 * MIB, "forward", 14 * MIB, id="a step takes more than loading"),
        pytest.param(8 * MIB, 64 * MIB, "setup", 64 * MIB, id="loading takes more than a step"),
    ],
)
def test_the_peak_is_that_of_loading_or_of_a_step(activations: int, loading: int, phase: str, peak: int) -> None:
    before = loaded(loading) if loading else None
    found = estimate(Recording(step(activations), 1, 1, loading=before))
    assert (found.peak_phase, found.allocated_bytes) == (phase, peak)
    assert found.phases[phase] == peak
    assert found.reserved_bytes >= max(loading, found.allocated_bytes)
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
    for interval, of in (
        (found.allocated_interval, found.allocated_bytes),
        (found.reserved_interval, found.reserved_bytes),
        (found.device_interval, found.device_bytes),
    ):
        assert interval.low_bytes <= of <= interval.high_bytes
    assert found.reserved_interval.low_bytes >= loading


def test_while_it_is_loaded_there_are_whole_parameters_and_buffers() -> None:
    found = estimate(Recording(step(8 * MIB), 1, 1, loading=loaded(64 * MIB)))
    sizes = {component.name: component.size_bytes for component in found.components}
    assert (sizes["parameters"], sizes["buffers"]) == (62 * MIB, 2 * MIB)
    assert "activations" not in sizes
    assert "fragmentation" not in sizes


def test_a_quantised_model_stands_whole_on_each_card_before_zero_3_shards_it() -> None:
    recording = made(WHOLE)
    assert recording.loading is not None
    packed = sum(count // 2 for count in LINEAR) * 4
    scales = sum(storages(recording.tape, "buffers"))
    stays = packed + scales + 2 * max(LINEAR)  # the largest weight in bfloat16 while it is packed
    assert stays < find_peak(recording.loading).peak_bytes < stays + 1_500_000
    again = made({**WHOLE, "device_count": 2 * RANKS}).loading
    assert again is not None
    assert again.sizes == recording.loading.sizes
    assert made({**STAGE3, **PACKED}).loading is None


def test_a_weight_is_there_as_it_was_until_it_and_its_scales_are_packed() -> None:
    tape = made(WHOLE).loading
    assert tape is not None
    wide = [number for number, size in enumerate(tape.sizes) if size == 2 * LINEAR[0]]
    assert wide
    for number in wide:
        born, gone = tape.events.index(number), tape.events.index(~number)
        between = [tape.sizes[event] for event in tape.events[born + 1 : gone] if event >= 0]
        assert between[0] == LINEAR[0] // 2
        assert LINEAR[0] // 64 in between


@pytest.mark.parametrize("layers", [90, 97])
def test_deep_models_are_as_if_each_layer_were_written_down(layers: int) -> None:
    wide = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "head_dim": 128}
    config: dict[str, Any] = {**run()["hyperparameters.config"], **wide, "num_hidden_layers": layers}
    whole = {"parallelism.zero_stage": 3, "parallelism.loaded_whole": True, "checkpointing": "full"}
    spec = run(config, **{**ZERO, **whole})
    deep = record(spec, folded=True)
    whole = record_step(language.build, spec)
    assert deep.loading is not None
    assert whole.loading is not None
    assert deep.loading.sizes == whole.loading.sizes


def test_embeddings_that_are_resized_are_made_beside_the_old_ones() -> None:
    plain, resized = made(WHOLE).loading, made({**WHOLE, "embeddings_resized": True}).loading
    assert plain is not None
    assert resized is not None
    more = len(resized.sizes) - len(plain.sizes)
    assert more == 2  # the input's and the output's
    assert len(set(resized.sizes[-more:])) == 1
    last = len(plain.sizes)
    assert [event >= 0 for event in resized.events[-2 * more :]] == [True, False] * more
    assert resized.events[-2 * more] == last
