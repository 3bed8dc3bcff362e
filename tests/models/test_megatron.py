"""Megatron's layer against the sums of arXiv 2205.05198 (Korthikanti et al., sections 4 and 5)."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.facts.spec import Fact, TrainingSpec
from memlint.models import record
from memlint.models.language import build
from memlint.models.step import record_forward

S, B, H, A, LAYERS, V = 64, 2, 256, 4, 3, 1024
UNIT = S * B * H  # what the paper calls sbh

GPT: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": V, "n_embd": H, "n_layer": LAYERS, "n_head": A, "n_positions": S,
    "activation_function": "gelu", "tie_word_embeddings": True,
}  # fmt: skip
# The paper's model: dropout everywhere, of which each keeps a byte per element.
FACTS: dict[str, Any] = {
    "implementation": "megatron",
    "micro_batch_size": B,
    "sequence_length": S,
    "parameter_dtype": "bfloat16",
    "compute_dtype": "bfloat16",
    "autocast": False,
    "attention": "eager",
    "fused_kernels": ["rms_norm", "swiglu", "rotary"],
    "checkpointing": "none",
}


def spec_of(config: dict[str, Any] = GPT, **facts: Any) -> TrainingSpec:
    stated = {**FACTS, "hyperparameters.config": config, **{n.replace("__", "."): v for n, v in facts.items()}}
    return TrainingSpec("test", None, None, {n: Fact(n, v) for n, v in stated.items()}, "language_model")  # type: ignore[arg-type]


def saved(config: dict[str, Any] = GPT, **facts: Any) -> int:
    return record_forward(build, spec_of(config, **facts))


def of_one_layer(config: dict[str, Any] = GPT, **facts: Any) -> int:
    """What a further layer adds."""
    more = {**config, "n_layer" if "n_layer" in config else "num_hidden_layers": LAYERS + 1}
    return saved(more, **facts) - saved(config, **facts)


# What the paper leaves out as small: two fp32 statistics per token of each norm. (section 4.1)
STATISTICS = 2 * 2 * 4 * S * B

# tensor parallel ranks, sequence parallelism -> the paper's bytes per layer (table 2)
PAPER = {
    "on one device": (1, False, False, UNIT * (34 + 5 * A * S / H)),
    "tensor parallel": (4, False, False, UNIT * (10 + 24 / 4 + 5 * A * S / (H * 4))),
    "tensor and sequence parallel": (4, True, False, UNIT / 4 * (34 + 5 * A * S / H)),
    "selective recomputation on one device": (1, False, True, UNIT * 34),
    "tensor parallel with selective recomputation": (4, False, True, UNIT * (10 + 24 / 4)),
    "all three": (4, True, True, UNIT / 4 * 34),
}


@pytest.mark.parametrize(("tensor", "sequence", "selective", "expected"), PAPER.values(), ids=PAPER)
def test_a_layer_keeps_what_the_paper_says(tensor: int, sequence: bool, selective: bool, expected: float) -> None:
    facts = {"parallelism__tensor": tensor, "parallelism__sequence": sequence}
    found = of_one_layer(**facts, checkpointing="selective" if selective else "none")
    statistics = STATISTICS // (tensor if sequence else 1)
    assert found == pytest.approx(expected + statistics, rel=0.002)


def test_full_recomputation_keeps_the_input_of_each_layer() -> None:
    assert of_one_layer(checkpointing="full") == 2 * UNIT


def test_the_ends_of_the_model_keep_what_the_paper_says() -> None:
    """Dropout's mask, the last norm's and the head's inputs, and logits in fp32: s b h (1 + 2 + 2) + 4 s b v."""
    ends = saved() - LAYERS * of_one_layer()
    small = S * B * (2 * 4 + 1 + 8 + 8 + 8 + 4)  # statistics; masks and numbers of tokens and positions
    assert ends == pytest.approx(5 * UNIT + 4 * S * B * V + small, rel=0.01)


def test_transformer_engines_loss_keeps_the_logits_alone() -> None:
    """In 16 bits: half of the fp32 softmax, and no masks of the tokens beyond this rank's rows."""
    usual, narrow = (saved(fused_kernels=[*FACTS["fused_kernels"], *more]) for more in ([], ["cross_entropy_in_place"]))
    assert usual - narrow == (4 - 2) * S * B * V + S * B * (1 + 8)


def test_a_fused_attention_kernel_keeps_no_scores() -> None:
    expected = UNIT * 34 + STATISTICS + 4 * A * S * B  # and a number per row
    assert of_one_layer(attention="flash") == pytest.approx(expected, rel=0.002)


LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": V, "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": A,
    "num_key_value_heads": 2, "intermediate_size": 3 * H,
}  # fmt: skip


def test_a_gated_layer_keeps_the_inputs_of_its_products_and_of_its_gate() -> None:
    """Norms' and products' inputs 2 + 2 + 2 + 2 + 2; rotated queries and keys, and values in memory of their own, so
    that the joined product goes; gate and value 4 x 3, their product 2 x 3."""
    apart = 2 * (1 + 2 * 2 / 4)
    expected = UNIT * (10 + apart + 12 + 6) + 2 * 4 * S * B + 4 * A * S * B
    assert of_one_layer(LLAMA, attention="flash") == pytest.approx(expected, rel=0.002)


def test_without_fused_gates_their_parts_are_kept_too() -> None:
    """silu's result and its product are in memory: 2 x 3 more than the joined product and what comes of it."""
    fused = of_one_layer(LLAMA, attention="flash")
    plain = of_one_layer(LLAMA, attention="flash", fused_kernels=["rms_norm", "rotary"])
    assert plain - fused == 2 * 3 * UNIT


def test_parameters_are_counted_exactly() -> None:
    per_layer = 12 * H * H + 13 * H
    recording = record(spec_of())
    assert recording.parameters == LAYERS * per_layer + V * H + S * H + 2 * H


MAIN = {
    "optimizer": "adamw", "optimizer_library": "megatron", "master_weights": True, "gradient_dtype": "float32",
    "optimizer_implementation": "fused",
}  # fmt: skip


BLOOM: dict[str, Any] = {
    "model_type": "bloom", "vocab_size": V, "hidden_size": H, "n_layer": LAYERS, "n_head": A,
    "hidden_dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip


def test_a_softmax_in_steps_keeps_its_fp32_result() -> None:
    """4 a s s b in place of 2: of its copy in 16 bits, which dropout reads, nothing is kept."""
    steps = of_one_layer(hyperparameters__no_softmax_fusion=True)
    assert steps - of_one_layer() == (4 - 2) * A * S * S * B


def test_biases_by_distance_cost_a_layer_nothing() -> None:
    """BLOOM in Megatron's code: the same layer, and a norm behind the embedding."""
    assert of_one_layer(BLOOM) == of_one_layer()
    assert record(spec_of(BLOOM)).parameters == LAYERS * (12 * H * H + 13 * H) + V * H + 4 * H


def test_states_take_18_bytes_per_parameter() -> None:
    """Weights in 16 bits, gradients and three states in fp32. (Megatron-LM, docs: distributed optimizer)"""
    recording = record(spec_of(**MAIN))
    tape = recording.tape
    kinds = {"parameters": 2, "gradients": 4, "optimizer": 12}
    start = next(at for at, phase in tape.marks if phase == "optimizer_step")
    alive: dict[str, int] = {}
    for event in tape.events[:start]:
        number = event if event >= 0 else ~event
        kind = tape.labels[number].component
        alive[kind] = alive.get(kind, 0) + (tape.sizes[number] if event >= 0 else -tape.sizes[number])
    for kind, each in kinds.items():
        assert alive[kind] == pytest.approx(each * recording.parameters, rel=0.01), kind


def test_gradients_of_products_are_added_where_they_belong() -> None:
    """The embedding makes one of its own; the layers' products make none."""
    tape = record(spec_of(**MAIN)).tape
    start = next(at for at, phase in tape.marks if phase == "backward")
    made = [tape.labels[event] for event in tape.events[start:] if event >= 0]
    named = {(label.module, label.name) for label in made if label.component == "gradients" and label.name == "weight"}
    assert ("embed_tokens", "weight") in named
    assert not [module for module, _ in named if "linear" in module]


# ---------------------------------------------------------------------------- recomputation of parts and of chunks


def test_two_layers_recomputed_together_keep_one_input() -> None:
    """Four layers in chunks of two keep two inputs of 2 s b h bytes."""
    four = {**GPT, "n_layer": 4}
    ends = saved(four, checkpointing="full") - 4 * 2 * UNIT
    assert saved(four, checkpointing="full", checkpointing_chunk=2) - ends == 2 * 2 * UNIT


def test_layers_that_are_not_recomputed_keep_all() -> None:
    """Of three layers the first keeps its input alone."""
    whole = of_one_layer()
    assert saved(checkpointing="none") - saved(checkpointing="blocks", checkpointing_layers=1) == whole - 2 * UNIT


def test_a_recomputed_perceptron_keeps_its_input_alone() -> None:
    """Of the paper's 19 s b h for the perceptron and 1 for its dropout's mask, 18 go: 2 + 1 stay."""
    kept = of_one_layer(checkpointing="selective", checkpointing_modules=["mlp"])
    assert of_one_layer() - kept == pytest.approx(16 * UNIT, rel=0.002)


# ------------------------------------------------------------------------------------------------------- experts

EXPERTS, K, INNER = 8, 2, 2 * H
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "vocab_size": V, "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": A,
    "num_key_value_heads": A, "intermediate_size": INNER, "num_local_experts": EXPERTS, "num_experts_per_tok": K,
    "sliding_window": None,
}  # fmt: skip
# norms' and attention's inputs 2 + 2 + 2 + 2, queries, keys and values 6, and a number per row
ATTENTION = UNIT * 14 + 2 * 4 * S * B + 4 * A * S * B
# Of every token: scores in fp32 with the chosen ones' places, weights and numbers of the chosen, where they went.
ROUTED = S * B * (4 * EXPERTS + K * (4 + 8 + 8))


def test_experts_keep_the_rows_that_visit_them() -> None:
    """The router's input; of k rows per token what goes into the first product, comes out of it, and goes into the
    second one."""
    expected = ATTENTION + 2 * UNIT + ROUTED + S * B * K * (2 * H + 4 * INNER + 2 * INNER)
    assert of_one_layer(MIXTRAL, attention="flash") == pytest.approx(expected, rel=0.002)


def test_experts_whose_activation_is_not_fused_with_their_scores_keep_its_steps() -> None:
    """Of each row silu's result, its product with the other half, and the score in its order, 2 I + 2 I + 4 bytes."""
    fused = of_one_layer(MIXTRAL, attention="flash")
    plain = of_one_layer(MIXTRAL, attention="flash", fused_kernels=["rms_norm", "rotary"])
    assert plain - fused == S * B * K * (2 * INNER + 2 * INNER + 4) - S * B * K * 4  # the scores as the router has them


def workspace_bytes(**facts: Any) -> int:
    tape = record(spec_of(**facts)).tape
    return sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "workspace")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, 4, id="no card"),
        pytest.param({"compute_capability": "8.0"}, 4, id="an A100"),
        pytest.param({"compute_capability": "9.0"}, 32, id="an H100"),
        pytest.param({"config": MIXTRAL, "compute_capability": "9.0"}, 5 * 32, id="a stream for each of four products"),
        pytest.param({"hyperparameters__transformer_impl": "local"}, 0, id="Megatron's own layers"),
        pytest.param({"fused_kernels": []}, 0, id="those of old"),
    ],
)
def test_transformer_engine_gives_cublas_a_workspace_of_its_own(facts: dict[str, Any], expected: int) -> None:
    assert workspace_bytes(**facts) == expected << 20


QUERIES, KEYS, PLAIN, TURNED, VALUES = 96, 64, 32, 16, 32
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3", "vocab_size": V, "hidden_size": H, "num_hidden_layers": LAYERS,
    "num_attention_heads": A, "num_key_value_heads": A, "intermediate_size": 3 * H, "moe_intermediate_size": INNER,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": K, "n_shared_experts": 1, "first_k_dense_replace": 0,
    "q_lora_rank": QUERIES, "kv_lora_rank": KEYS, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": TURNED,
    "v_head_dim": VALUES,
}  # fmt: skip


def test_latent_attention_keeps_narrow_vectors_and_what_the_kernel_reads() -> None:
    """Per token, two bytes each: both norms' and the narrow products' inputs; the narrow vectors, and what their norms
    make of them; queries, keys, values and the result of each head. Beside experts, and the one that all visit."""
    narrow = QUERIES + (KEYS + TURNED) + QUERIES + KEYS
    heads = A * (2 * (PLAIN + TURNED) + VALUES + VALUES)
    attention = S * B * 2 * (H + H + narrow + heads) + S * B * 4 * A
    experts = S * B * K * (2 * H + 4 * INNER + 2 * INNER) + ROUTED
    shared = S * B * 2 * (2 * INNER + INNER)
    expected = attention + S * B * 2 * (H + H) + experts + shared
    assert of_one_layer(LATENT, attention="flash") == pytest.approx(expected, rel=0.002)


def test_products_upward_that_are_made_again_leave_nothing_for_attention() -> None:
    usual = of_one_layer(LATENT, attention="flash")
    kept = of_one_layer(LATENT, attention="flash", checkpointing="selective", checkpointing_modules=["mla_up_proj"])
    # queries, keys and values, what both norms made, their statistics, and a number per row
    heads = A * (2 * (PLAIN + TURNED) + VALUES)
    assert usual - kept == S * B * (2 * heads + 2 * (QUERIES + KEYS) + 2 * 4 + 4 * A)


def test_an_activation_that_is_made_again_is_not_kept() -> None:
    usual = of_one_layer(MIXTRAL, attention="flash")
    kept = of_one_layer(MIXTRAL, attention="flash", checkpointing="selective", checkpointing_modules=["moe_act"])
    assert usual - kept == S * B * K * 2 * INNER


def test_experts_on_several_ranks_keep_what_balanced_ones_get() -> None:
    """Each rank has a part of the experts, and gets as many rows as it sends."""
    alone = of_one_layer(MIXTRAL, attention="flash")
    spread = of_one_layer(MIXTRAL, attention="flash", parallelism__expert=4, parallelism__data=4)
    assert spread == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(
    ("tensor", "each", "copies"),
    [
        pytest.param(1, 1, 2, id="half of the data parallel ranks have the same experts"),
        pytest.param(2, 2, 2, id="as many where each expert is divided as the layers are"),
        pytest.param(2, 1, 4, id="twice as many where experts are whole"),
    ],
)
def test_states_of_experts_are_on_fewer_ranks(tensor: int, each: int, copies: int) -> None:
    """12 bytes of states per parameter, over eight ranks for what all have, over ``copies`` for experts."""
    data, expert = 8, 4
    facts = {
        "parallelism__strategy": "zero", "parallelism__zero_stage": 1, "parallelism__data": data,
        "parallelism__shard": data, "parallelism__expert": expert, "parallelism__tensor": tensor,
        "parallelism__sequence": tensor > 1, "parallelism__expert_tensor": each,
    }  # fmt: skip
    tape = record(spec_of(MIXTRAL, **MAIN, attention="flash", **facts)).tape
    states = sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "optimizer")
    experts = LAYERS * (EXPERTS // expert) * 3 * H * INNER // each
    dense = (LAYERS * 4 * H * H + 2 * V * H) // tensor
    small = LAYERS * (2 * H + EXPERTS * H) + H
    expected = 12 * (experts / copies + (dense + small) / data)
    assert states == pytest.approx(expected, rel=0.02)


# ---------------------------------------------------------------------------------------------- gradients, states


@pytest.mark.parametrize(
    ("dtype", "gradients", "ranks", "buffer"),
    [
        pytest.param("bfloat16", "float32", 1, 4, id="fp32 beside bfloat16 on one device"),
        pytest.param("bfloat16", "float32", 8, 4, id="fp32 beside bfloat16 on eight, without torch's buckets"),
        pytest.param("float16", "float16", 8, 2, id="float16 in float16"),
        pytest.param("float32", "float32", 8, 4, id="fp32 in fp32"),
    ],
)
@pytest.mark.parametrize("divided", [False, True], ids=["whole states", "divided states"])
def test_gradients_are_one_buffer_that_stays(
    dtype: str, gradients: str, ranks: int, buffer: int, divided: bool
) -> None:
    """And nothing else of the size of the model is there for them before the optimizer's step."""
    facts: dict[str, Any] = {
        **MAIN, "parameter_dtype": dtype, "compute_dtype": dtype, "gradient_dtype": gradients,
        "master_weights": dtype != "float32", "parallelism__data": ranks,
        "parallelism__strategy": "none" if ranks == 1 else "zero" if divided else "ddp", "parallelism__zero_stage": 1,
    }  # fmt: skip
    recording = record(spec_of(**facts))
    tape = recording.tape
    start = next(at for at, phase in tape.marks if phase == "forward")
    early = [event for event in tape.events[:start] if tape.labels[event].component in ("gradients", "communication")]
    assert sum(tape.sizes[event] for event in early) == buffer * recording.parameters


def test_the_precision_aware_optimizer_keeps_six_bytes() -> None:
    """Half of each fp32 copy and two states in 16 bits; 12 bytes otherwise."""
    facts: dict[str, Any] = {
        **MAIN, "parallelism__data": 4, "parallelism__strategy": "zero", "parallelism__zero_stage": 1,
        "gradient_dtype": "bfloat16", "optimizer_precision_aware": True, "optimizer_state_dtype": "bfloat16",
    }  # fmt: skip
    recording = record(spec_of(**facts))
    tape = recording.tape
    states = sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "optimizer")
    assert states == pytest.approx(6 * recording.parameters / 4, rel=0.001)


def test_products_in_float8_keep_one_byte_per_number() -> None:
    """Of the norms' results and the perceptron's activation half, s b h (1 + 1 + 4), is left; attention's own result
    stays for its kernel, so there a byte is added."""
    usual, narrow = (of_one_layer(attention="flash", float8=float8) for float8 in (False, True))
    assert usual - narrow == UNIT * (1 + 1 + 4 - 1)


def test_weights_in_float8_have_two_copies_unless_they_are_float8_themselves() -> None:
    def held(**facts: Any) -> int:
        tape = record(spec_of(float8=True, **facts)).tape
        return sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "buffers")

    assert held() - held(float8_weights=True) == LAYERS * 2 * 12 * H * H


def test_pairs_keep_what_one_pass_keeps_and_a_sum_of_each_token() -> None:
    """The reference is asked first and without gradients; of both passes the losses of tokens are joined, and what is
    left of them is the mask that they are multiplied by."""
    plain = saved(LLAMA, attention="flash")
    pairs = saved(LLAMA, attention="flash", method="dpo", reference_model="copy")
    kto = saved(LLAMA, attention="flash", method="kto", reference_model="copy")
    assert abs(pairs - plain) <= 16 * S * B + 4096
    assert abs(kto - plain) <= 16 * S * B + 4096


def test_a_choice_of_two_words_keeps_no_logits() -> None:
    rows = {"row_output": "choice", "row_loss": "pairs"}
    plain, chosen = saved(LLAMA, attention="flash"), saved(LLAMA, attention="flash", **rows)
    logits = 4 * S * B * V + S * B * (1 + 8)  # in fp32; masks and numbers of tokens
    assert plain - chosen == pytest.approx(logits, rel=0.05)


def test_experts_that_drop_tokens_keep_a_mask_and_padded_ones_all_rows_that_they_may_take() -> None:
    """As many tokens visit as are sent where routing is balanced; a padded expert takes twice as many."""
    facts = {"attention": "flash", "hyperparameters__moe_expert_capacity_factor": 2.0}
    usual, dropping = of_one_layer(MIXTRAL, attention="flash"), of_one_layer(MIXTRAL, **facts)
    assert dropping - usual == S * B * EXPERTS
    padded = of_one_layer(MIXTRAL, **facts, hyperparameters__moe_pad_expert_input_to_capacity=True)
    assert padded - dropping == S * B * K * (2 * H + 4 * INNER + 2 * INNER + 8)
