"""Deep models of equal layers, recorded from two shallow ones: the same tape and the same estimate, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.architectures.huggingface_styles import STYLES
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import allocated_bytes, estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.meta.tape import Tape
from memlint.models import UnknownModel, depth, record, saved_bytes
from memlint.tape import folded as pieces
from memlint.tape.phases import packed_bytes
from tests.models.test_language_models import EVERYTHING, LLAMA, spec_of

DEEP = {**LLAMA, "num_hidden_layers": 26, "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672}
SMALL = {**DEEP, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 8}
GPT2 = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257, "n_positions": 1024}
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


NARROW = {**SMALL, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
RECURRENT = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "full_attention_interval": 4,
}
LATENT = {
    **{"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1},
    **{"moe_intermediate_size": 96, "first_k_dense_replace": 3},
}
# Layers that take turns, or that have experts.
TURNS: dict[str, dict[str, Any]] = {
    "gemma2": {**NARROW, "model_type": "gemma2", "sliding_window": 256, "num_hidden_layers": 26},
    "cohere2": {**NARROW, "model_type": "cohere2", "sliding_window": 64, "num_hidden_layers": 43},
    "gpt_oss": {
        **{**NARROW, "model_type": "gpt_oss", "sliding_window": 256, "num_hidden_layers": 36},
        **{"num_local_experts": 4, "num_experts_per_tok": 2},
    },
    "mixtral": {
        **{**NARROW, "model_type": "mixtral", "num_hidden_layers": 32},
        **{"num_local_experts": 4, "num_experts_per_tok": 2},
    },
    "qwen2_moe": {
        **{**NARROW, "model_type": "qwen2_moe", "num_hidden_layers": 28, **MIXTURE},
        **{"shared_expert_intermediate_size": 160, "decoder_sparse_step": 2},
    },
    "deepseek_v3": {**NARROW, "model_type": "deepseek_v3", "num_hidden_layers": 40, **LATENT},
    "falcon_h1": {
        **{**NARROW, "model_type": "falcon_h1", "num_hidden_layers": 36, "mamba_d_ssm": 128, "mamba_n_heads": 4},
        **{"mamba_d_state": 16, "mamba_rms_norm": True},
    },
    "qwen3_5": {**NARROW, "model_type": "qwen3_5_text", "num_hidden_layers": 48, **RECURRENT},
    "qwen3_next": {
        **{**NARROW, "model_type": "qwen3_next", "num_hidden_layers": 48, **MIXTURE, **RECURRENT},
        **{"shared_expert_intermediate_size": 160, "norm_topk_prob": True},
    },
}
IRREGULAR = ["conv" if number % 7 in (0, 3, 4) or number == 20 else "full_attention" for number in range(30)]

ALL_LINEAR = {"lora.targets": "all-linear"}
FOUR_BITS = {"quantization.bits": 4, "quantization.kind": "nf4", "frozen_dtype": "bfloat16"}
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
    "LoRA": run(SMALL, tuning="lora", **TWICE),
    "LoRA over 4 bits, blocks recomputed": run(SMALL, tuning="lora", **FOUR_BITS, **OLDER),
    "LoRA over 4 bits, norms in float32": run(SMALL, tuning="lora", **FOUR_BITS, **FULL, float32_parts=["norms"]),
    "LoRA on FSDP, over 4 bits": run(SMALL, tuning="lora", **FOUR_BITS, **{**ZERO2, "parallelism.strategy": "fsdp1"}),
    "DPO beside a copy of the model": run(SMALL, method="dpo", reference_model="copy", sequences_per_sample=2),
    "compiled": run(SMALL, compile=True),
    "an optimizer inside of backward": run(SMALL, optimizer_in_backward=True),
    "DDP": run(SMALL, **{**ZERO2, "parallelism.strategy": "ddp"}, **TWICE),
    "DDP, whose buckets hold parts of layers": run(DEEP, **{**ZERO2, "parallelism.strategy": "ddp"}),
    "FSDP1": run(SMALL, **{**ZERO2, "parallelism.strategy": "fsdp1"}, **FULL),
    "FSDP2": run(SMALL, **{**ZERO2, "parallelism.strategy": "fsdp2"}, **TWICE),
    "ZeRO 2, whose first step makes the states": run(SMALL, **ZERO2, **TWICE),
    "ZeRO 1": run(GPT2, **{**ZERO2, "parallelism.zero_stage": 1}, **FULL),
    "DeepSpeed without ZeRO": run(SMALL, **{**ZERO2, "parallelism.zero_stage": 0}, **TWICE),
    "embeddings of queries and passages": run(
        SMALL, model_class="embeddings", sequences_per_sample=4, query_length=128, embedding_pooling="last", **TWICE
    ),
    "embeddings in pieces, adapted, recomputed": run(
        SMALL,
        model_class="embeddings",
        sequences_per_sample=3,
        query_length=128,
        sub_batch_size=2,
        tuning="lora",
        embedding_pooling="mean",
        **OLDER,
    ),
    "scores of pairs": run(SMALL, method="rerank", sequences_per_sample=4, padding=True),
    **{f"{name}, layers that repeat": run(config, sequence_length=128, **TWICE) for name, config in TURNS.items()},
    **{
        f"{name} on FSDP2, adapted and recomputed": run(
            TURNS[name],
            sequence_length=128,
            tuning="lora",
            **{**ALL_LINEAR, **OLDER, **ZERO2, "parallelism.strategy": "fsdp2"},
        )
        for name in ("gpt_oss", "qwen3_5")
    },
    **{
        f"{name} on ZeRO 2": run(TURNS[name], sequence_length=128, **ZERO2, **FULL)
        for name in ("gemma2", "deepseek_v3", "qwen2_moe")
    },
}


def same_tape(tape: Tape, whole: Tape) -> None:
    assert tape.events == whole.events
    assert tape.marks == whole.marks
    assert tape.streams == whole.streams
    assert tape.states_late == whole.states_late
    born = [event for event in whole.events if event >= 0]
    assert [tape.sizes[storage] for storage in born] == [whole.sizes[storage] for storage in born]
    component = [label.component for label in whole.labels]
    assert all(tape.labels[storage].component == component[storage] for storage in born)


@pytest.mark.parametrize("spec", RUNS.values(), ids=RUNS)
def test_a_deep_model_is_the_sum_of_its_layers(spec: TrainingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    short = record(spec, folded=True)
    assert short.folded is not None
    whole = record(spec)
    tape = short.folded.unfold()
    same_tape(tape, whole.tape)
    assert short._replace(tape=whole.tape, folded=None, upper=None) == whole._replace(upper=None)
    assert pieces.packed_bytes(short.folded) == packed_bytes(whole.tape)

    estimate, totals, allocated = estimate_spec(spec), estimate_spec(spec), allocated_bytes(spec)
    assert record(spec, symbolic=True, folded=True).folded is not None
    formulas = estimate_spec(spec, symbolic=True)
    monkeypatch.setattr(depth, "WORTHWHILE", 10**6)
    assert estimate == estimate_spec(spec)
    assert formulas == estimate_spec(spec, symbolic=True)
    assert totals == estimate_spec(spec)
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
        same_tape(short.folded.unfold(), whole.tape)
    else:
        assert short.tape.events == whole.tape.events
        assert min(live, prefetch)  # otherwise it could have been folded


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(run({**DEEP, "num_hidden_layers": 15}), id="a model that is not deep"),
        pytest.param(run(SMALL, tuning="freeze", **{"freeze.layers": 8}), id="the last layers train"),
        pytest.param(run(SMALL, tuning="lora", **{"lora.targets": ["layers.3.mlp.up_proj"]}), id="one layer's adapter"),
        pytest.param(run(SMALL, tuning="lora", **{"lora.targets": r".*\.[0-8]\.mlp\..*"}), id="some layers' adapters"),
        pytest.param(
            run(SMALL, tuning="prefix", attention="eager", **{"adapter.virtual_tokens": 20}),
            id="a prefix of all layers",
        ),
        pytest.param(run(SMALL, tuning="lora", **ZERO2), id="an adapter, all of which ZeRO cuts at once"),
        pytest.param(run(TURNS["mixtral"], **ZERO3), id="experts, gathered by ZeRO"),
        pytest.param(run(TURNS["gemma2"], **ZERO3, attention="eager"), id="windows in turns, gathered by ZeRO"),
        pytest.param(
            run({**NARROW, "model_type": "gemma3_text", "sliding_window": 256, "num_hidden_layers": 62}),
            id="six layers in turn",
        ),
        pytest.param(
            run({**SMALL, "model_type": "lfm2", "num_hidden_layers": 30, "layer_types": IRREGULAR}),
            id="layers that take turns without an order",
        ),
        pytest.param(run(SMALL, checkpointing="every", checkpointing_every=2), id="every second layer is recomputed"),
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
    assert record(spec, symbolic=True).folded is None


def test_other_implementations_are_folded_too() -> None:
    for implementation in ("neox", "torchtitan", "litgpt"):
        spec = run(DEEP, **ZERO3, **FULL, implementation=implementation, framework="torch")
        short = record(spec, folded=True)
        assert short.folded is not None, implementation
        assert short.folded.unfold().events == record(spec).tape.events, implementation


# -- whatever a config says

ADAPTERS = ("lora", "dora", "lora_fa", "ia3", "vera", "adalora", "loha", "ln_tuning", "randlora", "gralora")
SPREADS = ("none", "ddp", "fsdp1", "fsdp2", "zero")


@st.composite
def drawn_runs(draw: st.DrawFn) -> TrainingSpec:
    """Any of the switches that runs over equal layers have, with as many layers as are worth it."""
    config = dict(draw(st.sampled_from((SMALL, GPT2, *TURNS.values()))))
    config["n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"] = draw(st.integers(16, 44))
    facts: dict[str, Any] = {
        "checkpointing": draw(st.sampled_from(("none", "full", "selective"))),
        "checkpointing_reentrant": draw(st.booleans()),
        "gradient_accumulation_steps": draw(st.sampled_from((1, 4))),
        "optimizer": draw(st.sampled_from(("adamw", "sgd", "lion", "adafactor", "adamw_8bit", "muon", "ademamix"))),
        "optimizer_implementation": draw(st.sampled_from(("foreach", "fused", "loop"))),
        "optimizer_in_backward": draw(st.booleans()),
        "compile": draw(st.booleans()),
        "attention": draw(st.sampled_from(("flash", "sdpa", "eager"))),
        "loss": draw(st.sampled_from(("full", "chunked", "fused"))),
        "parameter_dtype": draw(st.sampled_from(("bfloat16", "float32"))),
        "float32_parts": draw(st.sampled_from((None, ["norms"], ["norms", "embeddings", "head"]))),
        "evaluation_batch_size": draw(st.sampled_from((None, 4))),
    }
    if config in TURNS.values() or "linear_num_key_heads" in config:
        facts["sequence_length"] = 128  # what recurs is recorded piece by piece
    if draw(st.booleans()):
        facts["tuning"] = draw(st.sampled_from(ADAPTERS))
        facts.update(draw(st.sampled_from(({}, FOUR_BITS))))
        facts["lora.targets"] = draw(st.sampled_from((None, "all-linear")))
        facts["lora.modules_to_save"] = draw(st.sampled_from((None, ["lm_head"])))
    if draw(st.booleans()):
        facts.update(method="dpo", reference_model=draw(st.sampled_from(("none", "copy", "adapter"))))
    strategy = draw(st.sampled_from(SPREADS))
    if strategy != "none":
        facts.update({"parallelism.strategy": strategy, "parallelism.data": 8, "world_size": 8})
        facts["parallelism.reshard_after_forward"] = draw(st.booleans())
        facts["parallelism.bucket_mb"] = draw(st.sampled_from((1, 25, 100)))
        facts["parallelism.gradient_as_bucket_view"] = draw(st.booleans())
    if strategy == "zero":
        facts = {**ZERO3, **facts, "parallelism.zero_stage": draw(st.sampled_from((1, 2, 3)))}
    return run(config, **facts)


@settings(max_examples=40, deadline=None)
@given(drawn_runs())
def test_few_layers_stand_for_all_whatever_a_run_does(spec: TrainingSpec) -> None:
    try:
        whole = record(spec)
    except UnknownModel:
        return  # combinations that libraries refuse
    assert saved_bytes(spec) == whole.tape.saved_bytes
    short = record(spec, folded=True)
    if short.folded is None:
        assert short.tape.events == whole.tape.events
    else:
        same_tape(short.folded.unfold(), whole.tape)
        assert short._replace(tape=whole.tape, folded=None, upper=None) == whole._replace(upper=None)


@pytest.mark.parametrize("model_type", STYLES)
def test_layers_of_every_style(model_type: str) -> None:
    config = {**EVERYTHING, "model_type": model_type, "num_hidden_layers": 17}
    spec = spec_of(config, autocast=True, compute_dtype="bfloat16", checkpointing="full")
    short, whole = record(spec, folded=True), record(spec)
    same_tape(short.tape if short.folded is None else short.folded.unfold(), whole.tape)


@pytest.mark.parametrize("frozen", [True, False], ids=["a frozen decoder", "a decoder that trains"])
@pytest.mark.parametrize("name", ["config.yaml", "config_before.yaml"])
def test_a_video_model_is_the_sum_of_its_decoders_layers(name: str, frozen: bool) -> None:
    example = Path(__file__).parents[2] / "examples" / "video_llm" / name
    (spec,) = registry.specs(load(str(example)))
    spec = spec.with_facts(**{"hyperparameters.freeze": frozen})
    short, whole = record(spec, folded=True), record(spec)
    assert short.folded is not None
    same_tape(short.folded.unfold(), whole.tape)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"row_output": "choice", "row_loss": "group", "sequences_per_sample": 3}, id="which of two words"),
        pytest.param({"row_output": "score", "row_loss": "pairs", "labels": 1, "checkpointing": "full"}, id="scores"),
        pytest.param({"row_output": "vector", "row_loss": "contrast", "sequences_per_sample": 2}, id="vectors"),
        pytest.param(
            {"implementation": "megatron", "method": "dpo", "reference_model": "copy", "sequences_per_sample": 2},
            id="Megatron's reference",
        ),
    ],
)
def test_what_is_asked_of_whole_rows_is_folded_too(facts: dict[str, Any]) -> None:
    spec = run({**NARROW, "num_hidden_layers": 24}, **facts, sequence_length=128)
    few, whole = (allocated_bytes(spec, record(spec, folded=folded)) for folded in (True, False))
    assert few == whole
