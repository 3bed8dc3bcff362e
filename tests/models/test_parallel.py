"""One rank's part of a run: closed forms of ZeRO, FSDP1 and what splits the model, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.data import models
from memlint.facts.spec import Fact, TrainingSpec
from memlint.meta.tape import Tape
from memlint.models import Recording, UnknownModel, record
from memlint.models.parallel import ddp
from memlint.models.split import FIRST, LAST, in_flight
from tests.differential.test_parallel import build, spec_of
from tests.differential.training import walk
from tests.effort import counted_lines

GIB = 2**30
RANKS, ROWS, LENGTH = 4, 2, 64
WIDTH, INNER, HEADS, LAYERS, WORDS = 128, 384, 8, 4, 1000

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 4,
    "head_dim": WIDTH // HEADS,
}
LAYER = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * INNER + 2 * WIDTH
TABLE = WORDS * WIDTH
TOTAL = LAYERS * LAYER + 2 * TABLE + WIDTH
BUCKET = 50_000

GATHERED = ("communication", "unsharded")
HALF = {"compute_dtype": "bfloat16", "parameter_dtype": "bfloat16", "autocast": False}
ZERO = {
    **HALF,
    "parallelism.strategy": "zero",
    "parallelism.reduce_bucket_elements": BUCKET,
    "optimizer_implementation": "fused",
    "device_count": RANKS,
}
FSDP1 = {"parallelism.strategy": "fsdp1", "compute_dtype": "bfloat16", "device_count": RANKS}
FSDP2 = {**FSDP1, "parallelism.strategy": "fsdp2"}


def run(config: dict[str, Any] | None = None, **facts: Any) -> TrainingSpec:
    stated = {
        "hyperparameters.config": config or CONFIG,
        "micro_batch_size": ROWS,
        "sequence_length": LENGTH,
        **{name.replace("__", "."): value for name, value in facts.items()},
    }
    made = {name: Fact(name, value) for name, value in stated.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


def made(facts: dict[str, Any], config: dict[str, Any] | None = None) -> Recording:
    return record(run(config, **facts))


def storages(tape: Tape, component: str, name: str | None = None) -> list[int]:
    return [
        size
        for size, label in zip(tape.sizes, tape.labels)
        if label.component == component and name in (None, label.name)
    ]


def held(tape: Tape, phase: str) -> dict[str, int]:
    """Bytes by component when a phase last begins."""
    end = [at for at, name in tape.marks if name == phase][-1]
    alive: dict[str, int] = {}
    for event in tape.events[:end]:
        storage = event if event >= 0 else ~event
        component = tape.labels[storage].component
        alive[component] = alive.get(component, 0) + (tape.sizes[storage] if event >= 0 else -tape.sizes[storage])
    return {component: size for component, size in alive.items() if size}


def most_alive(tape: Tape, phase: str, component: str, but: str = "") -> int:
    """The most bytes of a component that are alive at once when a phase runs for the last time."""
    begin = [at for at, name in tape.marks if name == phase][-1]
    end = min([at for at, _ in tape.marks if at > begin], default=len(tape.events))
    alive = most = 0
    for number, event in enumerate(tape.events[:end]):
        storage = event if event >= 0 else ~event
        label = tape.labels[storage]
        if label.component == component and label.name != but:
            alive += tape.sizes[storage] if event >= 0 else -tape.sizes[storage]
        most = max(most, alive if number >= begin else 0)
    return most


def peaks(tape: Tape) -> dict[str, int]:
    return walk(tape)[0]


# -- ZeRO: the paper's sums (arXiv 1910.02054, section 3), with what DeepSpeed adds to them


def test_stage_0_has_fp32_copies_of_everything_and_of_all_gradients_twice() -> None:
    """FP16_Optimizer: one flat copy of the weights; gradients go to fp32 one by one, then into one piece."""
    tape = made({**ZERO, "parallelism.zero_stage": 0}).tape
    before = held(tape, "optimizer_step")
    assert before["parameters"] == before["gradients"] == 2 * TOTAL
    assert before["optimizer"] == (4 + 8) * TOTAL + 4
    assert sum(storages(tape, "gradients", "fp32 copies")) == (4 + 4) * TOTAL
    assert most_alive(tape, "optimizer_step", "gradients") == (2 + 4 + 4) * TOTAL
    assert storages(tape, "communication", "reduced gradients") == [2 * TOTAL]
    assert "communication" not in before


def test_stage_0_on_one_device_reduces_nothing() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 0, "device_count": 1, "parallelism.shard": 1, "parallelism.data": 1}
    tape = made(facts).tape
    assert held(tape, "optimizer_step")["optimizer"] == 12 * TOTAL + 4
    assert not storages(tape, "communication", "reduced gradients")


def test_zero_1_keeps_weights_and_gradients_and_shares_the_rest() -> None:
    tape = made({**ZERO, "parallelism.zero_stage": 1}).tape
    share = -(-TOTAL // (2 * RANKS)) * 2
    before = held(tape, "optimizer_step")
    assert before["parameters"] == 2 * TOTAL
    assert before["gradients"] == 2 * TOTAL
    assert before["optimizer"] == (4 + 8) * share + 4  # master weights, two moments, and the step's number
    assert storages(tape, "communication", "reduce bucket") == [2 * BUCKET]
    # What is reduced: the share's gradients in 16 bits, twice while they are put in one piece, and in fp32.
    assert storages(tape, "gradients", "fp32 partition") == [2 * share, 4 * share]


def test_zero_2_shares_gradients_too() -> None:
    tape = made({**ZERO, "parallelism.zero_stage": 2}).tape
    share = -(-TOTAL // (2 * RANKS)) * 2
    before = held(tape, "optimizer_step")
    assert before["gradients"] == 2 * share
    assert before["optimizer"] == 12 * share + 4
    assert "communication" not in before  # the buckets go when the backward pass ends


def test_zero_2_that_overlaps_has_two_buckets() -> None:
    tape = made({**ZERO, "parallelism.zero_stage": 2, "parallelism.overlap": True}).tape
    assert storages(tape, "communication", "reduce bucket") == [2 * BUCKET] * 2


def test_gradients_of_zero_2_wait_one_at_a_time() -> None:
    """Each goes into the bucket as soon as it is there, so at most one of a product's two is beside it."""
    waiting = most_alive(made({**ZERO, "parallelism.zero_stage": 2}).tape, "backward", "gradients", but="partition")
    assert waiting <= 2 * TABLE + 2 * WIDTH


def test_zero_3_shares_everything() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0}
    tape = made({**facts, "parallelism.reuse_distance_elements": 0}).tape
    before = held(tape, "optimizer_step")
    shares = TOTAL // RANKS  # every size is divisible
    assert before["parameters"] == 2 * shares
    assert before["gradients"] == 2 * shares
    assert before["optimizer"] == 12 * shares + 4
    assert before["communication"] == 2 * BUCKET
    gathered = storages(tape, "communication", "unsharded")
    # Twice: forward and backward. The embedding, the layers, and the head with the last norm.
    assert sum(gathered) == 2 * 2 * TOTAL


def test_small_parameters_of_zero_3_stay() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": WIDTH}
    tape = made(facts).tape
    assert storages(tape, "parameters", "persistent") == [2 * WIDTH] * (2 * LAYERS + 1)
    # The head is gathered all the same, where the last norm is called.
    gathered = [module for component, module, name in tape.labels if (component, name) == GATHERED]
    assert gathered.count("lm_head") == gathered.count("embed_tokens") == 1


def test_a_tied_embedding_stays_from_the_forward_to_the_backward_pass() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.reuse_distance_elements": 0}
    tape = made(facts, {**CONFIG, "tie_word_embeddings": True}).tape
    gathered = [module for component, module, name in tape.labels if (component, name) == GATHERED]
    assert gathered.count("embed_tokens") == 1
    assert held(tape, "backward")["communication"] >= 2 * TABLE


def test_near_reuse_keeps_what_zero_3_gathered() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0}
    kept = made({**facts, "parallelism.reuse_distance_elements": 10 * TOTAL}).tape
    assert sum(storages(kept, "communication", "unsharded")) == 2 * TOTAL  # gathered once
    assert held(kept, "backward")["communication"] == 2 * TOTAL + 2 * BUCKET
    part = made({**facts, "parallelism.reuse_distance_elements": 2 * (TABLE + WIDTH) + 1}).tape
    # The head, and the last layer, whose next use comes right behind the head's two.
    assert held(part, "backward")["communication"] == 2 * (TABLE + WIDTH + LAYER) + 2 * BUCKET


def test_prefetching_fills_a_bucket() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0}
    facts = {**facts, "parallelism.reuse_distance_elements": 0}
    none = made({**facts, "parallelism.prefetch_bucket_elements": 0}).tape
    some = made({**facts, "parallelism.prefetch_bucket_elements": 2 * WIDTH * WIDTH}).tape
    assert peaks(some)["forward"] >= peaks(none)["forward"]
    assert sum(storages(some, "communication", "all_gather")) == sum(storages(none, "communication", "all_gather"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_on_the_host_leaves_no_state(stage: int) -> None:
    found = made({**ZERO, "parallelism.zero_stage": stage, "parallelism.offload_optimizer": True})
    before = held(found.tape, "optimizer_step")
    assert "optimizer" not in before
    assert before.get("gradients", 0) == (2 * TOTAL if stage == 1 else 0)
    share = -(-TOTAL // (2 * RANKS)) * 2 if stage < 3 else TOTAL // RANKS
    assert found.host_bytes == (12 + 2) * share


def test_parameters_on_the_host_leave_none() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0}
    found = made({**facts, "parallelism.offload_optimizer": True, "parallelism.offload_parameters": True})
    assert "parameters" not in held(found.tape, "forward")
    assert found.host_bytes == (12 + 2 + 2) * TOTAL // RANKS


def test_sub_groups_are_updated_one_at_a_time() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3}
    tape = made({**facts, "parallelism.sub_group_elements": TOTAL // RANKS // 4}).tape
    assert sorted(storages(tape, "gradients", "fp32 partition"))[-4:] == [TOTAL // RANKS] * 4


@pytest.mark.parametrize(("group", "ranks", "expected"), [(2, RANKS, 2), (8, RANKS, RANKS), (8, 1, 1), (1, RANKS, 0)])
def test_zero_plus_plus_has_a_second_partition_over_near_ranks(group: int, ranks: int, expected: int) -> None:
    """Of one rank, a copy of all weights; in host memory where the first one is."""
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.secondary_shard": group, "device_count": ranks}
    found = storages(made(facts).tape, "parameters", "secondary partition")
    assert found == ([2 * TOTAL // expected] if expected else [])
    offloaded = made({**facts, "parallelism.offload_parameters": True})
    assert not storages(offloaded.tape, "parameters", "secondary partition")
    without = made({**facts, "parallelism.offload_parameters": True, "parallelism.secondary_shard": 1})
    assert offloaded.host_bytes - without.host_bytes == sum(found)


def test_zero_3_keeps_gradients_in_the_dtype_that_they_are_added_up_in() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "parallelism.persistence_elements": 0}
    narrow, wide = (made({**facts, "gradient_dtype": dtype}).tape for dtype in ("bfloat16", "float32"))
    [share] = storages(narrow, "gradients", "partition")
    assert storages(wide, "gradients", "partition") == [2 * share]
    assert sorted(storages(narrow, "gradients", "fp32 partition")) == [share, 2 * share]
    assert storages(wide, "gradients", "fp32 partition") == [2 * share]
    second = {**ZERO, "parallelism.zero_stage": 2}
    assert peaks(made({**second, "gradient_dtype": "float32"}).tape) == peaks(made(second).tape)


def test_all_weights_are_on_each_device_on_their_way_to_an_engine() -> None:
    facts = {**ZERO, "parallelism.zero_stage": 3, "engine_gets_whole_model": True}
    tape = made(facts).tape
    assert most_alive(tape, "generation", "communication", but="reduce bucket") == 2 * TOTAL
    assert "generation" not in peaks(made({**facts, "parallelism.zero_stage": 2}).tape)


def test_megatrons_distributed_optimizer_keeps_gradients_in_fp32() -> None:
    tape = made({**ZERO, "parallelism.zero_stage": 1, "gradient_dtype": "float32"}).tape
    before = held(tape, "optimizer_step")
    share = -(-TOTAL // (2 * RANKS)) * 2
    # 6 + 12 / N bytes a parameter (Megatron-LM, theoretical_memory_usage.py)
    assert before["parameters"] + before["gradients"] == 6 * TOTAL
    assert before["optimizer"] == 12 * share + 4


# -- FSDP1: flat parameters


def test_fsdp1_shards_flat_units() -> None:
    tape = made(FSDP1).tape
    before = held(tape, "optimizer_step")
    assert before["parameters"] == 4 * TOTAL // RANKS
    assert before["gradients"] == 4 * TOTAL // RANKS
    assert before["optimizer"] == 8 * TOTAL // RANKS
    gathered = storages(tape, "communication", "unsharded")
    root = 2 * (2 * TABLE + WIDTH)
    # The root once; every layer in the forward and in the backward pass.
    assert sorted(gathered) == sorted([2 * LAYER] * 2 * LAYERS + [root])
    assert storages(tape, "communication", "cast") == [size // RANKS for size in gathered]


def test_fsdp1_without_mixed_precision_gathers_what_is_stored() -> None:
    autocast = {"compute_dtype": "bfloat16", "autocast": True, "checkpointing": "full"}
    tape = made({**FSDP1, **autocast, "parallelism.as_stored": True}).tape
    root = 4 * (2 * TABLE + WIDTH)
    assert sorted(storages(tape, "communication", "unsharded")) == sorted([4 * LAYER] * 2 * LAYERS + [root])
    assert not storages(tape, "communication", "cast")
    # Autocast keeps its copies of weights until the forward pass ends, and those of views in no pass (``cached_cast``).
    whole = made(autocast).tape
    kept, left = (most_alive(one, "forward", "activations", "none of them") for one in (whole, tape))
    assert kept - left >= 2 * (LAYERS - 1) * (LAYER - 2 * WIDTH)


def test_fsdp1_prefetches_the_next_unit_where_it_is_told_to() -> None:
    root, layer = 2 * (2 * TABLE + WIDTH), 2 * LAYER
    gathered = "communication"
    plain, ahead = made(FSDP1).tape, made({**FSDP1, "parallelism.forward_prefetch": True}).tape
    assert most_alive(plain, "forward", gathered) == root + layer + layer // RANKS
    assert most_alive(ahead, "forward", gathered) == root + 2 * layer + layer // RANKS
    after = made({**FSDP1, "parallelism.backward_prefetch": "BACKWARD_POST"}).tape
    # Before: this unit, and the next as it is gathered; after: this unit is let go of first.
    assert most_alive(plain, "backward", gathered) == root + 2 * layer + layer // RANKS
    assert most_alive(after, "backward", gathered) == root + layer + layer // RANKS
    # What was gathered ahead is let go of once the unit before it has been through backward as well.
    assert most_alive(ahead, "backward", gathered) == root + 3 * layer + layer // RANKS


def test_fsdp1_gathers_no_unit_ahead_where_one_is_recomputed() -> None:
    recomputed = {**FSDP1, "checkpointing": "full", "checkpointing_reentrant": True}
    plain, ahead = made(recomputed).tape, made({**recomputed, "parallelism.forward_prefetch": True}).tape
    found = [most_alive(tape, "backward", "communication") for tape in (plain, ahead)]
    assert found[0] == found[1]


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_the_trainer_keeps_whole_gradients_until_the_last_micro_batch(strategy: str) -> None:
    facts = {**FSDP2, "parallelism.strategy": strategy, "gradient_accumulation_steps": 4}
    plain, trainer = made(facts), made({**facts, "parallelism.reduces_last_only": True})
    assert held(plain.tape, "forward")["gradients"] == 4 * TOTAL // RANKS
    assert held(trainer.tape, "forward")["gradients"] == 2 * TOTAL


def test_states_on_the_host_leave_none_of_fsdp() -> None:
    found = made({**FSDP2, "parallelism.cpu_offload": True})
    assert {"buffers"} >= set(held(found.tape, "forward"))
    assert found.host_bytes == (4 + 8) * TOTAL // RANKS


FREQUENCIES = 2 * WIDTH // HEADS // 2 * 4  # two buffers of rotary frequencies, which nothing shards
REFERENCE = {"method": "dpo", "reference_model": "copy", "sequences_per_sample": 2}


@pytest.mark.parametrize(
    "facts", [FSDP1, FSDP2, {**ZERO, "parallelism.zero_stage": 3}], ids=["FSDP1", "FSDP2", "ZeRO-3"]
)
def test_a_reference_model_is_sharded_as_the_policy_is(facts: dict[str, Any]) -> None:
    facts = {**facts, "parallelism.persistence_elements": 0, "parallelism.reuse_distance_elements": 0}
    tape = made({**facts, **REFERENCE}).tape
    alive = held(tape, "optimizer_step")
    assert alive["helper_models"] == alive["parameters"] + FREQUENCIES
    gathered = sum(storages(tape, "communication", "unsharded"))  # once more, for the reference's forward pass
    assert gathered == pytest.approx(1.5 * sum(storages(made(facts).tape, "communication", "unsharded")), rel=0.2)


def test_a_reference_model_beside_whole_weights_is_whole() -> None:
    tape = made({**ZERO, "parallelism.zero_stage": 2, **REFERENCE}).tape
    assert held(tape, "optimizer_step")["helper_models"] == 2 * TOTAL + FREQUENCIES


def test_what_is_thrown_away_while_a_model_is_built_is_no_peak() -> None:
    facts = {
        **HALF,
        "tuning": "lora",
        "lora.r": 4,
        "lora.targets": "all-linear",
        "quantization.bits": 4,
        "quantization.kind": "nf4",
    }
    for spread in ({}, {"parallelism.strategy": "fsdp2", "device_count": RANKS}):
        tape = made({**facts, **spread}).tape
        assert peaks(tape)["setup"] == min(peaks(tape).values())
        assert peaks(tape)["setup"] < 2 * TOTAL  # the weights before they were quantised


def test_large_modules_are_units_where_the_policy_goes_by_size() -> None:
    tape = made({**FSDP2, "parallelism.wrap_elements": LAYER // 2}).tape
    modules = {label.module for label in tape.labels if label.name == "all_gather"}
    assert "embed_tokens" in modules
    assert "lm_head" not in modules  # the model multiplies by its weight without a call
    assert {f"layers.{number}.mlp" for number in range(LAYERS)} <= modules


def test_shards_of_a_hybrid_run_lie_within_a_group() -> None:
    tape = made({**FSDP2, "device_count": 8, "parallelism.replicas": 2}).tape
    assert held(tape, "optimizer_step")["parameters"] == 4 * TOTAL // 4


# -- what splits the model


def test_tensor_parallel_ranks_have_a_share_of_every_matrix() -> None:
    found = made({**HALF, "parallelism.tensor": 2, "device_count": 2})
    norms = (2 * LAYERS + 1) * WIDTH
    assert held(found.tape, "forward")["parameters"] == 2 * ((TOTAL - norms) // 2 + norms)
    assert found.parameters == TOTAL
    assert found.process_groups == (("tensor", 2),)


def test_sequence_parallelism_keeps_a_share_of_the_tokens_outside_of_matrices() -> None:
    facts = {**HALF, "parallelism.tensor": 4, "device_count": 4, "checkpointing": "full"}
    plain, shared = made(facts), made({**facts, "parallelism.sequence": True})
    row = ROWS * LENGTH * WIDTH * 2
    # The inputs of recomputed layers.
    assert plain.tape.saved_bytes - shared.tape.saved_bytes >= LAYERS * row * 3 // 4
    assert held(plain.tape, "forward")["parameters"] == held(shared.tape, "forward")["parameters"]


@pytest.mark.parametrize("kind", ["context", "ulysses"])
def test_ranks_that_share_a_sequence_share_states_as_well(kind: str) -> None:
    facts = {**FSDP2, "device_count": 8}
    plain, shared = made(facts), made({**facts, f"parallelism.{kind}": 2})
    assert held(plain.tape, "optimizer_step")["parameters"] == held(shared.tape, "optimizer_step")["parameters"]
    assert shared.tape.saved_bytes < 0.6 * plain.tape.saved_bytes
    assert (kind, 2) in shared.process_groups


def test_a_ring_holds_the_keys_and_values_of_all_ranks() -> None:
    tape = made({**HALF, "parallelism.context": 2, "device_count": 2}).tape
    sent = 2 * ROWS * LENGTH // 2 * WIDTH // 2 * 2  # half as many heads, 16 bits
    queries, pairs = ROWS * LENGTH // 2 * WIDTH * 4, 2 * sent  # in fp32
    forward = [2 * sent, queries, queries // 2, queries // 2, queries]
    backward = [2 * sent, queries, queries // 2, queries, pairs, pairs, pairs, sent]
    assert sorted(storages(tape, "communication", "ring")) == sorted([*forward, *backward] * LAYERS)


def test_pipeline_stages_have_a_share_of_the_layers() -> None:
    found = made({**HALF, "parallelism.pipeline": 2, "device_count": 2, "gradient_accumulation_steps": 8})
    assert found.parameters == TOTAL
    [(fact, value, _)] = found.assumptions
    assert fact == "rank"
    assert value in ("the first of 2 stages", "the last of 2 stages")
    stage = TABLE + LAYERS // 2 * LAYER + (WIDTH if value.startswith("the last") else 0)
    assert held(found.tape, "forward")["parameters"] == 2 * stage


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    facts = {**HALF, "parallelism.pipeline": 4, "device_count": 4, "gradient_accumulation_steps": 8}
    long = record(run(**{**facts, "sequence_length": 1024}))
    assert long.assumptions[0][1] == "the first of 4 stages"
    alive = held(long.tape, "backward")["activations"]
    alone = held(record(run(**{**HALF, "sequence_length": 1024})).tape, "backward")["activations"]
    # One layer of four, four times over; embeddings and the last norm are the rest.
    assert alive == pytest.approx(alone, rel=0.12)


FLIGHTS = {
    "1F1B, the first stage": ({"parallelism.pipeline": 4}, FIRST, 4),
    "1F1B, the last stage": ({"parallelism.pipeline": 4}, LAST, 1),
    "no more than there are": ({"parallelism.pipeline": 8, "gradient_accumulation_steps": 3}, FIRST, 3),
    "GPipe": (
        {"parallelism.pipeline": 4, "parallelism.schedule": "gpipe", "gradient_accumulation_steps": 16},
        FIRST,
        16,
    ),
    "interleaved": (
        {"parallelism.pipeline": 4, "parallelism.schedule": "interleaved", "parallelism.virtual_stages": 2},
        FIRST,
        6,  # 2 * 3 + 4 + 1 pieces of half a stage
    ),
    "no pipeline": ({}, "", 1),
}


@pytest.mark.parametrize(("facts", "stage", "expected"), FLIGHTS.values(), ids=FLIGHTS)
def test_micro_batches_in_flight(facts: dict[str, Any], stage: str, expected: int) -> None:
    assert in_flight(run(**facts), stage) == expected


EXPERTS = {
    **CONFIG,
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}


def test_expert_parallel_ranks_have_a_share_of_the_experts_and_send_rows_round() -> None:
    facts = {**FSDP2, "device_count": 4}
    plain = record(run(EXPERTS, **facts))
    shared = record(run(EXPERTS, **{**facts, "parallelism.expert": 4}))
    # Experts are shared by four as experts instead of as shards; routers are replicated in our sum.
    ours, theirs = (held(found.tape, "optimizer_step")["parameters"] for found in (shared, plain))
    assert ours == pytest.approx(theirs, rel=0.01)
    layer = max(size for size in storages(plain.tape, "communication", "all_gather"))
    assert max(storages(shared.tape, "communication", "all_gather")) < layer
    assert shared.parameters == plain.parameters
    assert ("expert", 4) in shared.process_groups


# -- laws


SPREADS: dict[str, dict[str, Any]] = {
    "FSDP1": FSDP1,
    "FSDP2": FSDP2,
    "FSDP2, units by size": {**FSDP2, "parallelism.wrap_elements": LAYER // 3},
    "ZeRO-1": {**ZERO, "parallelism.zero_stage": 1},
    "ZeRO-2": {**ZERO, "parallelism.zero_stage": 2},
    "ZeRO-3": {**ZERO, "parallelism.zero_stage": 3},
    "tensor and sequence": {**FSDP2, "device_count": 8, "parallelism.tensor": 2, "parallelism.sequence": True},
    "context": {**FSDP2, "device_count": 8, "parallelism.context": 2},
    "ulysses": {**FSDP2, "device_count": 8, "parallelism.ulysses": 2},
    "pipeline": {**FSDP2, "device_count": 8, "parallelism.pipeline": 2},
    "reentrant": {**FSDP2, "checkpointing_reentrant": True},
}


@pytest.mark.parametrize("facts", SPREADS.values(), ids=SPREADS)
def test_what_is_freed_was_alive(facts: dict[str, Any]) -> None:
    alive: set[int] = set()
    for event in made({**facts, "checkpointing": "full"}).tape.events:
        if event >= 0:
            assert event not in alive
            alive.add(event)
        else:
            alive.remove(~event)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_more_devices_need_no_more_each(stage: int) -> None:
    sizes = [
        max(peaks(made({**ZERO, "parallelism.zero_stage": stage, "device_count": ranks}).tape).values())
        for ranks in (2, 4, 8, 16)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_an_evaluation_gathers_too() -> None:
    tape = made({**FSDP2, "evaluation_batch_size": 2}).tape
    begin = next(at for at, name in tape.marks if name == "evaluation")
    labels = [tape.labels[event] for event in tape.events[begin:] if event >= 0]
    assert len([label for label in labels if label.name == "all_gather"]) == LAYERS + 1


def test_a_sharded_model_of_126_layers_costs_a_few_lines_an_event() -> None:
    found = models.find("meta-llama/Llama-3.1-405B")
    assert found is not None
    facts = {**ZERO, "parallelism.zero_stage": 3, "device_count": 64, "checkpointing": "full", "sequence_length": 8192}
    record(run(dict(found.config), **facts), folded=True)  # modules are loaded
    with counted_lines() as lines:
        folded = record(run(dict(found.config), **facts), folded=True).folded
    assert folded is not None
    tape = folded.unfold()
    assert lines.ran < 10 * len(tape.events)
    assert found.parameters is not None
    assert held(tape, "optimizer_step")["optimizer"] == pytest.approx(12 * found.parameters / 64, rel=0.001)


# -- what is refused


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a strategy without a name": ({"parallelism.strategy": "magic"}, "how 'magic' spreads a run"),
    "a stage that is none": ({**ZERO, "parallelism.zero_stage": 4}, "stages 0 to 3, not 4"),
    "shards that do not divide the ranks": ({**FSDP2, "parallelism.shard": 3}, "shard = 3 does not divide the 4"),
    "heads that cannot be divided": (
        {"parallelism.tensor": 3},
        "parallelism.tensor 3 does not divide num_attention_heads 8",
    ),
    "experts of a model without": ({"parallelism.expert": 2}, "the model has none"),
    "more stages than layers": ({"parallelism.pipeline": 5}, "parallelism.pipeline 5 is more than num_hidden_layers 4"),
    "sequence parallelism with eager attention": (
        {"parallelism.tensor": 2, "parallelism.sequence": True, "attention": "eager"},
        "eager attention is not known",
    ),
}


@pytest.mark.parametrize(("facts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_spread_is_refused(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownModel, match=said):
        made(facts)


def test_models_of_which_only_one_device_is_known_are_not_split() -> None:
    from memlint.models.step import record_step

    with pytest.raises(UnknownModel, match=r"parallelism\.tensor: how it splits this model is not known"):
        record_step(build, spec_of({"parallelism.tensor": 2}))


@pytest.mark.parametrize(
    ("sizes", "cap", "expected"),
    [
        pytest.param([4] * 14, 25, [4, 28, 24], id="one of 1 MiB, then 25 MiB each"),
        pytest.param([1, 1, 1], 25, [1, 2], id="what is left is a bucket"),
    ],
)
def test_a_bucket_is_closed_once_it_holds_its_cap(sizes: list[int], cap: int, expected: list[int]) -> None:
    from memlint.meta.tensor import Tensor, float32, recording

    with recording():
        weights = [Tensor((size * 2**18,), float32) for size in sizes]
        assert ddp.bucket_bytes(weights, cap * 2**20) == [size * 2**20 for size in expected]
