"""Deep models of equal layers, recorded from two shallow ones: the same tape and the same estimate, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects.spec import TrainingSpec
from memlint.estimates import allocated_bytes, estimate_spec
from memlint.models import depth, record
from memlint.tape import folded as pieces
from memlint.tape.phases import packed_bytes
from tests.models.test_language_models import LLAMA, spec_of

DEEP = {**LLAMA, "num_hidden_layers": 40, "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672}
SMALL = {**DEEP, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 8}
GPT2 = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 36, "n_head": 16, "vocab_size": 50257, "n_positions": 1024}
# DeepSpeed's settings as trainers fill them in
ZERO3: dict[str, Any] = {
    "parallelism.strategy": "zero",
    "parallelism.zero_stage": 3,
    "parallelism.data": 64,
    "world_size": 64,
    "parallelism.prefetch_bucket_elements": 60_397_977,
    "parallelism.persistence_elements": 81_920,
    "parallelism.live_parameter_elements": 0,
    "parallelism.reuse_distance_elements": 0,
}
ZERO2 = {"parallelism.strategy": "zero", "parallelism.zero_stage": 2, "parallelism.data": 8, "world_size": 8}


def run(config: dict[str, Any], **facts: Any) -> TrainingSpec:
    usual = {
        "micro_batch_size": 2,
        "sequence_length": 1024,
        "compute_dtype": "bfloat16",
        "parameter_dtype": "bfloat16",
        "attention": "flash",
        "transformers_version": "4.50.0",
        "framework": "transformers",
    }
    return spec_of(config, **{**usual, **facts})


FULL = {"checkpointing": "full"}
OLDER = {"checkpointing": "full", "checkpointing_reentrant": True}
TWICE = {"gradient_accumulation_steps": 2}

RUNS = {
    "ZeRO 3, blocks recomputed": run(DEEP, **ZERO3, **FULL),
    "ZeRO 3, torch's older checkpointing, two micro-batches": run(DEEP, **ZERO3, **OLDER, **TWICE),
    "ZeRO 3 with an evaluation": run(DEEP, **ZERO3, **OLDER, evaluation_batch_size=4),
    "ZeRO 3 without recomputation, states in 8 bits": run(DEEP, **ZERO3, optimizer="adamw_8bit"),
    "ZeRO 3 that keeps the last layers": run(
        {**DEEP, "num_hidden_layers": 60}, **{**ZERO3, "parallelism.reuse_distance_elements": 10**9}, **FULL
    ),
    "ZeRO 3 with a bound for what is alive": run(
        {**DEEP, "num_hidden_layers": 90}, **{**ZERO3, "parallelism.live_parameter_elements": 10**9}, **OLDER
    ),
    "ZeRO 3 that may not have more than a layer": run(
        DEEP, **{**ZERO3, "parallelism.live_parameter_elements": 4 * 10**8}, **OLDER, **TWICE
    ),
    "ZeRO 3, everything offloaded": run(
        DEEP, **ZERO3, **FULL, **{"parallelism.offload_optimizer": True, "parallelism.offload_parameters": True}
    ),
    "one device, foreach": run(SMALL, optimizer_implementation="foreach", **TWICE),
    "one device, one parameter after the other": run(SMALL, optimizer_implementation="loop", **FULL),
    "one device, GPT-2 with factored states": run(GPT2, optimizer="adafactor", attention="eager", **TWICE),
}


@pytest.mark.parametrize("spec", RUNS.values(), ids=RUNS)
def test_a_deep_model_is_the_sum_of_its_layers(spec: TrainingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    short = record(spec, folded=True)
    assert short.folded is not None
    whole = record(spec)
    tape = short.folded.unfold()
    assert tape.sizes == whole.tape.sizes
    assert tape.events == whole.tape.events
    assert tape.marks == whole.tape.marks
    assert tape.streams == whole.tape.streams
    assert short._replace(tape=whole.tape, folded=None) == whole
    assert pieces.packed_bytes(short.folded) == packed_bytes(whole.tape)

    estimate, totals, allocated = estimate_spec(spec), estimate_spec(spec, detailed=False), allocated_bytes(spec)
    monkeypatch.setattr(depth, "WORTHWHILE", 10**6)
    assert estimate == estimate_spec(spec)
    assert totals == estimate_spec(spec, detailed=False)
    assert allocated == estimate.allocated_bytes


@pytest.mark.parametrize("live", [0, 4 * 10**8, 10**9, 3 * 10**9])
@pytest.mark.parametrize("reuse", [0, 10**9, 3 * 10**9])
@pytest.mark.parametrize("prefetch", [0, 60_397_977, 5 * 10**8])
def test_whatever_zero_3_fetches_ahead_and_keeps(live: int, reuse: int, prefetch: int) -> None:
    bounds = {"live_parameter_elements": live, "reuse_distance_elements": reuse, "prefetch_bucket_elements": prefetch}
    facts = {**ZERO3, **{f"parallelism.{name}": value for name, value in bounds.items()}}
    spec = run({**DEEP, "num_hidden_layers": 48}, **facts, **(OLDER if reuse else FULL))
    short, whole = record(spec, folded=True), record(spec)
    if short.folded is not None:
        tape = short.folded.unfold()
        assert (tape.sizes, tape.events, tape.streams) == (whole.tape.sizes, whole.tape.events, whole.tape.streams)
    else:
        assert short.tape.events == whole.tape.events
        assert min(live, prefetch)  # otherwise it could have been folded


MIXTRAL = {**DEEP, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA2 = {**DEEP, "model_type": "gemma2", "head_dim": 256}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(run({**DEEP, "num_hidden_layers": 20}, **ZERO3), id="a model that is not deep"),
        pytest.param(run(GEMMA2, attention="eager"), id="layers with a window in turns"),
        pytest.param(run(MIXTRAL), id="experts"),
        pytest.param(run(SMALL, checkpointing="every", checkpointing_every=2), id="every second layer is recomputed"),
        pytest.param(run(SMALL, **{**ZERO2, "parallelism.strategy": "ddp"}), id="buckets that layers share"),
        pytest.param(run(SMALL, **ZERO2, **TWICE), id="ZeRO 2, whose first step makes the states"),
        pytest.param(run(GPT2, **{**ZERO2, "parallelism.zero_stage": 1}, **FULL), id="ZeRO 1 as well"),
        pytest.param(run(SMALL, compile=True), id="a compiled model"),
        pytest.param(run(SMALL, tuning="lora"), id="an adapter"),
        pytest.param(
            run(
                DEEP,
                **{
                    **ZERO3,
                    "parallelism.prefetch_bucket_elements": 10**11,
                    "parallelism.live_parameter_elements": 10**11,
                },
            ),
            id="a bucket as large as the model",
        ),
        pytest.param(run(SMALL, **{**ZERO3, "parallelism.persistence_elements": 10**6}), id="layers that stay in part"),
    ],
)
def test_what_layers_have_to_do_with_each_other_is_recorded_in_full(spec: TrainingSpec) -> None:
    assert record(spec, folded=True).folded is None


def test_who_does_not_ask_for_it_gets_every_layer() -> None:
    spec = RUNS["ZeRO 3, blocks recomputed"]
    assert record(spec).folded is None
    assert record(spec, symbolic=True, folded=True).folded is None


def test_other_implementations_are_folded_too() -> None:
    for implementation in ("neox", "torchtitan", "litgpt"):
        spec = run(DEEP, **ZERO3, **FULL, implementation=implementation, framework="torch")
        short = record(spec, folded=True)
        assert short.folded is not None, implementation
        assert short.folded.unfold().events == record(spec).tape.events, implementation
