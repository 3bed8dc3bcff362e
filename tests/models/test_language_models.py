"""Language models by their config.json: published sizes, published traces, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.architectures import huggingface
from memlint.architectures.huggingface_styles import OWN_CODE, STYLES
from memlint.data import models
from memlint.facts.spec import Fact, TrainingSpec
from memlint.meta.amp import autocast
from memlint.meta.nn import Linear, count
from memlint.meta.tensor import Tensor, bfloat16, default_dtype, recording
from memlint.models import UnknownModel, language, record
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.losses import full
from memlint.models.step import record_step
from memlint.models.system import System
from tests.differential.training import walk

GIB = 2**30

PUBLISHED = {  # elements of the safetensors files on the hub
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2-1.5B": 1_543_714_304,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


def parameters(config: dict[str, Any]) -> int:
    with recording(), default_dtype(bfloat16):
        model = language.language_model(spec_of(config), huggingface.decoder(config), bfloat16, autocast=False)
        return count(model.parameters())


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items(), ids=PUBLISHED)
def test_each_decoder_has_its_published_number_of_parameters(name: str, expected: int) -> None:
    found = models.find(name)
    assert found is not None
    assert parameters(found.config) == expected


def test_decoders_of_the_catalogue_have_the_parameters_that_it_states() -> None:
    counted: dict[str, bool] = {}
    for name in models.names():
        found = models.find(name)
        assert found is not None
        whole = any(word in str(found.config.get("architectures")) for word in ("CausalLM", "LMHead"))
        if found.name in counted or not whole or not huggingface.known(found.config["model_type"]):
            continue
        counted[found.name] = parameters(found.config) == found.parameters
    assert [name for name, equal in counted.items() if not equal] == []
    assert len(counted) >= 150


# ------------------------------------------------------------------------------------------- what configs may say

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SMALL = {**LLAMA, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip

# What any of the model types asks for.
EVERYTHING = {
    **SMALL, "n_positions": 64, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "n_routed_experts": 4, "n_shared_experts": 1,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 2,
    "layers_block_type": ["attention"] * 5, "intermediate_size_mlp": 96, "full_attn_idxs": [1],
    "full_attention_interval": 2, "rotary_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip


def spec_of(config: Any, **facts: Any) -> TrainingSpec:
    stated: dict[str, Any] = {"hyperparameters.config": config, "micro_batch_size": 2, "sequence_length": 32, **facts}
    made = {name: Fact(name, value) for name, value in stated.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


def peak_of(spec: TrainingSpec) -> float:
    return max(walk(record(spec).tape)[0].values())


REFUSED = {
    "a model type outside the table": ({**SMALL, "model_type": "mamba"}, {}, "model type 'mamba'"),
    "no model type at all": ({"hidden_size": 64}, {}, "model type None"),
    "a size that is missing": (
        {key: value for key, value in SMALL.items() if key != "hidden_size"}, {}, "no hidden_size"
    ),
    "a size that is no number": ({**SMALL, "vocab_size": "many"}, {}, "vocab_size is 'many'"),
    "an activation outside the table": ({**SMALL, "hidden_act": "snake"}, {}, "activation 'snake'"),
    "an image encoder beside the decoder": (
        {"model_type": "gemma3", "text_config": SMALL, "vision_config": {}}, {}, "image encoder"
    ),
    "a model without its config": (None, {"model": "nobody/nothing"}, "nobody/nothing"),
    "an attention that nobody has": (SMALL, {"attention": "magic"}, "'magic'"),
    "FlashAttention in fp32": (SMALL, {"attention": "flash"}, "FlashAttention takes"),
    "an optimizer that nobody has": (SMALL, {"optimizer": "magic"}, "optimizer 'magic'"),
    "a head that is not built": (SMALL, {"model_class": "masked_lm"}, "class 'masked_lm'"),
    "an adapter that nobody has": (SMALL, {"tuning": "magic"}, "kind 'magic'"),
    "modules that the model does not have": (SMALL, {"tuning": "lora", "lora.targets": ["c_attn"]}, "c_attn"),
    "a pattern that no module's name is": (
        SMALL, {"tuning": "lora", "lora.targets": "layers.[0-9]+.c_attn"}, r"is called layers\.\[0-9\]\+\.c_attn$"
    ),
    "quantised weights that train": (SMALL, {"quantization.bits": 4}, "quantised"),
    "a quantisation that nobody has": (
        SMALL, {"tuning": "lora", "quantization.bits": 3, "quantization.kind": "magic"}, "'magic'"
    ),
    "a loss that nobody has": (SMALL, {"loss": "magic"}, "'magic'"),
    "a checkpointing that is another family's": (SMALL, {"checkpointing": "blocks"}, "'blocks'"),
    "FlashAttention beside SDPA for equal heads": (
        SMALL, {"attention": "flash_and_sdpa", "parameter_dtype": "bfloat16"}, "for some layers is not known for llama"
    ),
    "Gemma 4 whose tokens all see each other": (
        {**SMALL, "model_type": "gemma4_text", "use_bidirectional_attention": "all"}, {}, "all see each other"
    ),
    "keys that no earlier layer of its kind has made": (
        {**SMALL, "model_type": "gemma4_text", "num_kv_shared_layers": 1}, {}, "num_kv_shared_layers"
    ),
    "rows without a length": (SMALL, {"sequence_length": None}, "length of a sample"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "facts", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_refused_by_name(config: Any, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownModel, match=message):
        record(spec_of(config, **facts))


def test_a_tied_head_is_no_parameter_of_its_own() -> None:
    untied, tied = parameters(SMALL), parameters({**SMALL, "tie_word_embeddings": True})
    assert untied - tied == SMALL["vocab_size"] * SMALL["hidden_size"]


def test_padded_rows_of_the_vocabulary_are_parameters() -> None:
    more = record(spec_of(SMALL, vocabulary_size=576)).parameters - record(spec_of(SMALL)).parameters
    assert more == 2 * 64 * SMALL["hidden_size"]


def test_two_sequences_per_sample_are_twice_the_samples() -> None:
    assert peak_of(spec_of(SMALL, sequences_per_sample=2)) == peak_of(spec_of(SMALL, micro_batch_size=4))


def test_a_multimodal_config_is_read_for_its_text_model() -> None:
    text = {**SMALL, "model_type": "gemma3_text", "head_dim": 16}
    assert parameters({"model_type": "gemma3", "text_config": text}) == parameters(text)


UNEQUAL = {**SMALL, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32,
           "hidden_size_per_layer_input": 0}  # fmt: skip


def test_the_last_layer_of_gemma4_has_no_window_whatever_its_config_says() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 5]
    stated = huggingface.decoder({**UNEQUAL, "layer_types": kinds, "sliding_window": 8})
    assert stated.windows == (0, 8, 8, 8, 8, 0)
    assert huggingface.decoder(UNEQUAL).windows == (512,) * 5 + (0,)


def test_sizes_of_gemma4_s_wide_layers_may_be_written_down_layer_by_layer() -> None:
    """As transformers writes the config of a model that it has read."""
    own = {"per_layer_config": {"5": {"head_dim": 48, "num_key_value_heads": 1}}}
    sizes = huggingface.decoder({**UNEQUAL, **own}).unequal
    assert sizes is not None
    assert (sizes.head_dim, sizes.key_value_heads) == (48, 1)


def test_where_some_heads_are_too_wide_for_flash_attention_only_their_scores_have_a_mask_of_samples() -> None:
    facts = {"attention": "flash_and_sdpa", "parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}
    config = {**UNEQUAL, "layer_types": ["sliding_attention", "full_attention"] * 3, "num_key_value_heads": 4}
    alone, packed = (record(spec_of(config, **facts, padding_free=free)).tape for free in (False, True))
    mask = 2 * 32 * 32 * 2  # (rows, 1, tokens, tokens) in 16 bits
    assert round((packed.saved_bytes - alone.saved_bytes) / mask) == 3


def test_every_model_type_of_the_table_builds() -> None:
    for model_type in STYLES:
        spec = spec_of({**EVERYTHING, "model_type": model_type}, parameter_dtype="bfloat16", compute_dtype="bfloat16")
        assert record(spec).parameters > 50_000, model_type


@pytest.mark.parametrize("loss", ["full", "chunked", "fused"])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash"])
def test_formulas_give_the_sizes_that_numbers_give(attention: str, loss: str) -> None:
    for model_type in STYLES:
        facts = {"attention": attention, "loss": loss, "padding": True, "autocast": True, "compute_dtype": "bfloat16"}
        spec = spec_of({**EVERYTHING, "model_type": model_type}, **facts)
        if attention == "flash" and "flash" not in OWN_CODE.get(model_type, ("flash",)):
            with pytest.raises(UnknownModel, match=f"no FlashAttention for {model_type}"):
                record(spec)
            continue
        assert record(spec, symbolic=True).tape.sizes == record(spec).tape.sizes, model_type


def test_older_releases_of_transformers_repeat_grouped_heads() -> None:
    low = {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}
    old, new = (
        record(spec_of(SMALL, transformers_version=version, **low)).tape.saved_bytes for version in ("4.53.1", "4.54.0")
    )
    one = 2 * 32 * 4 * 16 * 2  # keys of four heads instead of two, and as many values, in each of two layers
    assert old - new == 2 * one


def test_a_linear_layer_can_be_replaced_by_name() -> None:
    with recording():
        model = LanguageModel(huggingface.decoder(SMALL))
        seen: list[str] = []

        def replace(name: str, layer: Linear) -> Linear | None:
            seen.append(name)
            return Linear(SMALL["hidden_size"], 8, bias=False) if name.endswith("layers.1.self_attn.q_proj") else None

        replace_linears(model, replace)
        assert "layers.0.mlp.down_proj" in seen
        assert "lm_head" in seen
        assert model.layers[1].self_attn.q_proj.weight.shape == (8, 64)
        assert model.layers[0].self_attn.q_proj.weight.shape == (64, 64)


# ----------------------------------------------------------------------------------------------------------- losses


def logits_bytes(rows: int = 2, length: int = 32) -> int:
    size: int = rows * length * SMALL["vocab_size"]
    return size


def test_chunked_logits_are_in_fp32_one_chunk_at_a_time() -> None:
    low = {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "sequence_length": 512}
    config = {**SMALL, "vocab_size": 8192}
    whole, pieces = (peak_of(spec_of(config, loss=loss, loss_chunks=8, **low)) for loss in ("full", "chunked"))
    numbers = 2 * 512 * 8192
    # Whole: log-probabilities and two gradients in fp32. In chunks: the log-probabilities, the 16-bit logits, and one
    # chunk in fp32 at the end of the forward pass.
    assert whole - pieces == pytest.approx(numbers * (12 - (4 + 2 + 4 / 8)), rel=0.05)


def test_the_fused_loss_keeps_no_logits_but_the_gradients_of_its_inputs() -> None:
    low = {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}
    whole, fused = (record(spec_of(SMALL, loss=loss, **low)).tape for loss in ("full", "fused"))
    head, states = SMALL["vocab_size"] * SMALL["hidden_size"] * 2, 2 * 32 * SMALL["hidden_size"] * 2
    # The head's product no longer keeps its input (the last norm's result), nor cross entropy its labels and weight.
    labels = 2 * 32 * 8
    assert whole.saved_bytes - fused.saved_bytes == logits_bytes() * 4 + labels + 4 + states - head - states


# --------------------------------------------------------------------------------------- published op-level traces

# GiB at the peak of Llama-3.1-8B, one row of 4,096 tokens, AdamW: traced once with torch's MemTracker under fake
# tensors on a CPU, from code that repeats keys and values for all heads and computes its loss outside of autocast.
# (weights, autocast, checkpointing, optimizer, accumulation) -> GiB
TRACED = {
    "autocast, loop": ("float32", True, "none", "loop", 1, 140.8),
    "autocast, loop, checkpointing": ("float32", True, "full", "loop", 1, 123.6),
    "autocast, foreach, checkpointing": ("float32", True, "full", "foreach", 1, 149.6),
    "autocast, fused, checkpointing": ("float32", True, "full", "fused", 1, 119.7),
    "autocast, loop, accumulation": ("float32", True, "none", "loop", 2, 170.7),
    "autocast, loop, accumulation, checkpointing": ("float32", True, "full", "loop", 2, 136.8),
    "bfloat16, loop": ("bfloat16", False, "none", "loop", 1, 76.9),
    "bfloat16, loop, checkpointing": ("bfloat16", False, "full", "loop", 1, 61.8),
}


def llama_8b(dtype: str, cast: bool, checkpointing: str, optimizer: str, accumulation: int) -> TrainingSpec:
    return spec_of(
        LLAMA,
        micro_batch_size=1,
        sequence_length=4096,
        parameter_dtype=dtype,
        compute_dtype="bfloat16",
        autocast=cast,
        checkpointing=checkpointing,
        optimizer="adamw",
        optimizer_implementation=optimizer,
        gradient_accumulation_steps=accumulation,
        transformers_version="4.50.0",
    )


def with_its_loss_outside_of_autocast(spec: TrainingSpec) -> System:
    system = language.build(spec)
    model, compute = system.model, system.autocast
    assert isinstance(model, LanguageModel)

    def loss(batch: Any) -> Tensor:
        with autocast(compute):
            logits = model.logits(model.hidden(batch.tokens))
        return full(logits, batch.labels)

    return system._replace(loss=loss, autocast=None)


@pytest.mark.parametrize(
    ("dtype", "cast", "checkpointing", "optimizer", "accumulation", "traced"), TRACED.values(), ids=TRACED
)
def test_published_traces_of_an_8b_model_are_reproduced(
    dtype: str, cast: bool, checkpointing: str, optimizer: str, accumulation: int, traced: float
) -> None:
    spec = llama_8b(dtype, cast, checkpointing, optimizer, accumulation)
    recording_ = record_step(with_its_loss_outside_of_autocast, spec)
    assert recording_.parameters == 8_030_261_248
    peak = max(walk(recording_.tape)[0].values()) / GIB
    print(f"\n{peak:.2f} GiB, traced {traced} ({peak / traced - 1:+.2%})")
    assert peak == pytest.approx(traced, rel=0.01)


@pytest.mark.parametrize(("strategy", "widened"), [("zero", False), ("none", True)], ids=["DeepSpeed", "no engine"])
def test_deepspeed_brings_what_was_widened_back_to_16_bits(strategy: str, widened: bool) -> None:
    """PEFT widens what is not quantised, and the engine then casts the whole module."""
    facts = {"tuning": "lora", "lora.targets": ["q_proj"], "quantization.bits": 4, "quantization.kind": "nf4"}
    facts |= {"compute_dtype": "float16", "frozen_dtype": "float16", "parameter_dtype": "float16"}
    facts |= {"parallelism.strategy": strategy, "parallelism.zero_stage": 2, "master_weights": strategy == "zero"}
    plain, prepared = (peak_of(spec_of(SMALL, **facts, **{"quantization.prepared": how})) for how in (False, True))
    assert (prepared > plain) is widened
