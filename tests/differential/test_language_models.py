"""Language models: the static step against transformers' own code, traced with CUDA's semantics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils
from transformers.pytorch_utils import Conv1D

from memlint.architectures.huggingface_styles import OWN_CODE
from memlint.facts.spec import Fact, TrainingSpec
from memlint.models import record
from tests.differential.oracle import fake_cuda, live_and_peak
from tests.differential.training import Comparison, compare, in_meta, in_torch, report
from tests.draws import draws

TOLERANCE = 0.001
DRAWN_SETTINGS = draws(25)

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}

LATENT: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

RECURRENT: dict[str, Any] = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 32, "pad_token_id": 0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
}  # fmt: skip

UNEQUAL: dict[str, Any] = {
    **SIZES, "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}  # fmt: skip

TWO = {**SIZES, "num_hidden_layers": 2}

# The same under the names that older configurations have.
FOURFOLD = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8}
SHORT = {"vocab_size": 1000, "hidden_size": 128, "n_layer": 3, "n_head": 8}

# A name of the case -> config.json of a small model; its model type is the name's first word.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "llama with biases and tied embeddings": {
        **SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
    "mistral": {**SIZES, "sliding_window": None, "head_dim": 32},
    "mistral with a window shorter than the rows": {**SIZES, "sliding_window": 32},
    "qwen2": {**SIZES, "tie_word_embeddings": True},
    "qwen2 with windows in its last layers": {
        **SIZES, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1,
    },
    "qwen3": {**SIZES, "head_dim": 32},
    "smollm3": {**SIZES, "num_hidden_layers": 4, "pad_token_id": 0},
    "arcee": SIZES,
    "apertus": {**TWO, "pad_token_id": 0},
    "seed_oss": {**SIZES, "pad_token_id": 0, "head_dim": 16},
    "ministral": {**TWO, "sliding_window": 32, "head_dim": 32},
    "ministral3": {**TWO, "head_dim": 32},
    "exaone4": {**TWO, "sliding_window": 16, "sliding_window_pattern": 2},
    "exaone4 without windows": {**TWO, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "hunyuan_v1_dense": {**TWO, "pad_token_id": 0, "head_dim": 32},
    "ernie4_5": {**TWO, "head_dim": 32, "pad_token_id": 0},
    "granitemoe": {**TWO, "num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid without experts": {
        **TWO, "num_local_experts": 0, "shared_intermediate_size": 160, "position_embedding_type": "rope",
        "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True,
    },
    "granitemoehybrid": {
        **TWO, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 160,
        "layer_types": ["full_attention"] * 2,
    },
    "granitemoehybrid with Mamba's layers and experts": {
        **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 160,
        "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_state": 16,
        "mamba_chunk_size": 32, "mamba_n_groups": 2,
    },
    "granitemoehybrid with Mamba's layers alone": {
        **TWO, "num_local_experts": 0, "shared_intermediate_size": 160, "tie_word_embeddings": True,
        "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_chunk_size": 48, "mamba_proj_bias": True,
    },
    "olmo": SIZES,
    "olmo2": SIZES,
    "olmo3": {**SIZES, "num_hidden_layers": 4, "sliding_window": 16, "pad_token_id": 0},
    "granite": SIZES,
    "phi3": {**SIZES, "pad_token_id": 0},
    "starcoder2": SIZES,
    "nemotron": {**SIZES, "head_dim": 32},
    "stablelm": SIZES,
    "stablelm with a parallel residual": {**SIZES, "use_parallel_residual": True, "use_qkv_bias": True},
    "cohere": SIZES,
    "cohere with normed queries": {**SIZES, "use_qk_norm": True},
    "cohere2": {**SIZES, "num_hidden_layers": 4, "sliding_window": 16},
    "glm4": {**SIZES, "pad_token_id": 0, "head_dim": 16},
    "glm": {**SIZES, "pad_token_id": 0, "head_dim": 16},
    "gemma": {**SIZES, "head_dim": 32},
    "gemma2": {**SIZES, "head_dim": 32},
    "gemma2 with a window shorter than the rows": {**SIZES, "head_dim": 32, "sliding_window": 16},
    "gemma3_text": {**SIZES, "head_dim": 32, "num_hidden_layers": 7, "sliding_window": 16},
    "gemma4_text": {**UNEQUAL, "hidden_size_per_layer_input": 0},
    "gemma4_text with keys for values": {
        **UNEQUAL, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_text with an input of each layer and shared keys": {
        **UNEQUAL, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 500, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
    },
    "gemma4_text with experts": {
        **UNEQUAL, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
        "moe_intermediate_size": 96,
    },
    "gpt2": {"vocab_size": 1000, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 256},
    "opt": {
        **SIZES, "ffn_dim": 352, "word_embed_proj_dim": 128, "max_position_embeddings": 256,
    },
    "gpt_neox": SIZES,
    "gpt_neox without a parallel residual": {**SIZES, "use_parallel_residual": False, "hidden_dropout": 0.1},
    "phi": SIZES,
    "mixtral": {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "phimoe": {
        **TWO, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True,
    },
    "qwen2_moe": {**SIZES, **MIXTURE, "shared_expert_intermediate_size": 160, "decoder_sparse_step": 2},
    "qwen3_moe": {**SIZES, **MIXTURE, "norm_topk_prob": True},
    "olmoe": {**SIZES, "num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v2": {**LATENT, "topk_method": "greedy", "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "glm4_moe_lite": {**LATENT, "num_hidden_layers": 2},
    "glm4_moe": {**LATENT, "head_dim": 32, "use_qk_norm": True, "attention_bias": True, "num_key_value_heads": 2},
    "minimax_m2": {
        **TWO, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16,
    },
    "qwen3_next": {
        **SIZES, **MIXTURE, **RECURRENT, "shared_expert_intermediate_size": 160, "norm_topk_prob": True,
    },
    "qwen3_5_moe_text": {**SIZES, **MIXTURE, **RECURRENT, "shared_expert_intermediate_size": 160},
    "llama4_text": {
        **TWO, "no_rope_layer_interval": 2, "intermediate_size_mlp": 288, "num_local_experts": 4, "head_dim": 32,
        "interleave_moe_layer_step": 2, "pad_token_id": 0,
    },
    "falcon_h1": {
        **TWO, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_state": 16, "mamba_chunk_size": 32, "pad_token_id": 0,
    },
    "falcon_h1 with a norm, in chunks that tokens do not fill": {
        **TWO, "mamba_d_ssm": None, "mamba_n_heads": 8, "mamba_d_state": 12, "mamba_chunk_size": 48,
        "mamba_n_groups": 2, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_proj_bias": True,
        "projectors_bias": True, "tie_word_embeddings": True,
    },
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {
        **SIZES, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    },
    "lfm2 with biases": {
        **SIZES, "full_attn_idxs": [2], "conv_bias": True, "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": False,
    },
    "bloom": {**SHORT, "hidden_dropout": 0.1, "attention_dropout": 0.1},
    "bloom without dropout": SHORT,
    "mpt": {**FOURFOLD, "max_seq_len": 256},
    "mpt with bounds": {**FOURFOLD, "max_seq_len": 256, "attn_config": {"clip_qkv": 6.0}},
    "falcon": {**FOURFOLD, "multi_query": True},
    "falcon with a key for every head, biases and dropout": {
        **FOURFOLD, "multi_query": False, "bias": True, "parallel_attn": False, "hidden_dropout": 0.1,
    },
    "falcon with ALiBi": {**FOURFOLD, "multi_query": False, "alibi": True, "bias": True, "parallel_attn": False},
    "falcon of the newer architecture": {**FOURFOLD, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon of the newer architecture with one norm": {
        **FOURFOLD, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
    },
    "gptj": {**SHORT, "n_positions": 128, "rotary_dim": 8},
    "gptj with dropout": {**SHORT, "n_positions": 128, "rotary_dim": 8, "attn_pdrop": 0.1, "resid_pdrop": 0.1},
    "codegen": {**SHORT, "n_positions": 128, "rotary_dim": 8},
    "gpt_neo": {**FOURFOLD, "max_position_embeddings": 128, "attention_types": [[["global", "local", "global"], 1]]},
    "gpt_bigcode": {**SHORT, "n_positions": 128},
    "gpt_bigcode with a key for every head": {**SHORT, "n_positions": 128, "multi_query": False},
    "opt with norms behind its blocks, and narrow embeddings": {
        **SIZES, "ffn_dim": 352, "word_embed_proj_dim": 64, "max_position_embeddings": 256,
        "do_layer_norm_before": False,
    },
    "stablelm with a norm for every head": {**SIZES, "qk_layernorm": True, "use_parallel_residual": True},
    "gpt_oss": {**SIZES, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}  # fmt: skip


class Setting(NamedTuple):
    """``autocast`` is a 16-bit dtype over the weights', or empty; ``every``: one layer of so many is recomputed."""

    rows: int = 2
    length: int = 64
    dtype: str = "float32"
    autocast: str = ""
    attention: str = "sdpa"
    every: int = 0
    reentrant: bool = False
    padded: bool = False
    optimizer: str = "foreach"
    accumulation: int = 1

    def facts(self, config: dict[str, Any]) -> dict[str, Any]:
        return {
            "hyperparameters.config": config,
            "micro_batch_size": self.rows,
            "sequence_length": self.length,
            "parameter_dtype": self.dtype,
            "compute_dtype": self.autocast or self.dtype,
            "autocast": bool(self.autocast),
            "attention": self.attention,
            "checkpointing": {0: "none", 1: "full"}.get(self.every, "every"),
            "checkpointing_every": self.every,
            "checkpointing_reentrant": self.reentrant,
            "padding": self.padded,
            "optimizer": "adamw",
            "optimizer_implementation": self.optimizer,
            "gradient_accumulation_steps": self.accumulation,
        }


def spec_of(facts: dict[str, Any]) -> TrainingSpec:
    made = {name: Fact(name, value) for name, value in facts.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


@contextmanager
def values_known(padded: bool) -> Iterator[None]:
    """transformers looks at the mask's values to see whether it needs one; fake tensors have none, so they are told.
    Where it asks for autocast of no device it means CUDA's, which the CPU's stands for here."""
    known = {"is_tracing": lambda *_: False, "fast_all": lambda _: not padded}
    saved = {name: getattr(masking_utils, name) for name in known}
    for name, value in known.items():
        setattr(masking_utils, name, value)
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda kind="cpu": asked(kind)  # type: ignore[assignment]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        torch.is_autocast_enabled = asked
        for name, value in saved.items():
            setattr(masking_utils, name, value)


def adamw(implementation: str) -> Any:
    flags: dict[str, Any] = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, **flags[implementation])


def in_transformers(config: dict[str, Any], setting: Setting) -> SimpleNamespace:
    """What tests.differential.training expects of a reference model."""

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache = False  # the Trainer's default
        dtype = getattr(torch, setting.dtype)
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation=setting.attention)
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape = (setting.rows, setting.length)
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def run(name: str, config: dict[str, Any], setting: Setting) -> Comparison:
    config = {"model_type": name.split()[0], **config}
    ours = in_meta(spec_of(setting.facts(config)))
    with values_known(setting.padded):
        reference = in_transformers(config, setting)
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    return compare(f"{config} {setting}", ours, truth, setting.every > 0)


# Two ways to train that differ in everything; between them each model type meets every mechanism once.
WAYS = {
    "in bfloat16": Setting(dtype="bfloat16"),
    "under autocast with checkpointing": Setting(autocast="bfloat16", attention="eager", every=1),
}


# What differs from another case in switches alone is met once.
PLAINLY = (
    "exaone4 without windows",
    "granitemoe",
    "granitemoehybrid",
    "lfm2 with biases",
    "ministral",
)
RECOMPUTED = (
    *("ernie4_5", "exaone4", "glm4_moe_lite", "granitemoehybrid without experts", "hunyuan_v1_dense", "ministral3"),
    *("phimoe", "qwen3_5_moe_text"),
)
MET = {**dict.fromkeys(PLAINLY, ("in bfloat16",)), **dict.fromkeys(RECOMPUTED, ("under autocast with checkpointing",))}
CASES = [(name, way) for name in CONFIGS for way in MET.get(name, WAYS)]


@pytest.mark.parametrize(("name", "way"), CASES, ids=[f"{name} {way}" for name, way in CASES])
def test_each_model_type_takes_the_memory_that_transformers_takes(name: str, way: str) -> None:
    setting = WAYS[way]
    if name.startswith(("gemma2", "gpt_oss", *(kind for kind, kernels in OWN_CODE.items() if "sdpa" not in kernels))):
        setting = setting._replace(attention="eager")  # SDPA has no place for its cap, its sinks, or its scores
    comparison = run(name, CONFIGS[name], setting)
    assert comparison.worst <= TOLERANCE, str(comparison)


SPECIAL = {
    "everything in fp32": ("llama", Setting(every=0)),
    "fp32 with probabilities": ("qwen2", Setting(attention="eager")),
    "the older checkpointing": ("llama", Setting(dtype="bfloat16", every=1, reentrant=True)),
    "the older checkpointing under autocast": ("llama", Setting(autocast="bfloat16", every=1, reentrant=True)),
    "every second layer checkpointed": ("qwen3", Setting(autocast="bfloat16", every=2)),
    "one row shorter than the others": ("llama", Setting(dtype="bfloat16", padded=True)),
    "padded rows, wide heads": ("gemma", Setting(dtype="bfloat16", padded=True, length=50)),
    "the older checkpointing with shared keys": (
        "gemma4_text with an input of each layer and shared keys",
        Setting(dtype="bfloat16", every=1, reentrant=True),
    ),
    "padded rows with heads of two widths": (
        "gemma4_text with keys for values",
        Setting(autocast="bfloat16", padded=True),
    ),
    "padded rows with windows": ("gemma3_text", Setting(autocast="bfloat16", padded=True)),
    "a fused optimizer": ("mistral", Setting(dtype="bfloat16", optimizer="fused")),
    "a looping optimizer, accumulating": ("phi3", Setting(autocast="bfloat16", optimizer="loop", accumulation=2)),
    "float16 under autocast": ("gpt2", Setting(autocast="float16")),
    "experts in fp32": ("mixtral", Setting(every=1)),
}


class LinearCrossEntropy(torch.autograd.Function):
    """What Liger's linear cross entropy allocates, in plain torch: its kernel works in place on a chunk's logits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, vocabulary = x.shape[0], head.shape[0]
        chunk = 1
        while chunk * -(-vocabulary // x.shape[1]) < rows:
            chunk *= 2
        chunk = min(chunk, rows)
        gradient, head_gradient = torch.zeros_like(x), torch.zeros_like(head)
        losses = torch.zeros(rows, dtype=torch.float32)
        plain = not torch.is_autocast_enabled("cpu")
        buffer = torch.empty((chunk, vocabulary), dtype=x.dtype) if plain else None
        for start in range(0, rows, chunk):
            piece, part = x[start : start + chunk], gradient[start : start + chunk]
            if buffer is None:
                logits = piece @ head.t()
                part.copy_(logits @ head)
                cast = piece.to(logits.dtype)  # for a product of two 16-bit matrices that is added in fp32
                del cast
            else:
                logits = buffer[: piece.shape[0]]
                torch.mm(piece, head.t(), out=logits)
                torch.mm(logits, head, out=part)
                torch.addmm(head_gradient, logits.t(), piece, out=head_gradient)
            del logits
        ctx.save_for_backward(gradient, head_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return (*ctx.saved_tensors, None)


def fused_loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    x = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    labels = torch.nn.functional.pad(batch["labels"], (0, 1))[..., 1:].contiguous().view(-1)
    return LinearCrossEntropy.apply(x.view(-1, x.shape[-1]), model.lm_head.weight, labels)


def chunked_loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """torchtune's: logits of every chunk in the weights' dtype, then one cross entropy after the other in fp32."""
    x = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    labels = torch.nn.functional.pad(batch["labels"], (0, 1))[..., 1:].contiguous()
    outputs = [model.lm_head(piece) for piece in x.chunk(8, 1)]
    total: Any = None
    for output, target in zip(outputs, labels.chunk(8, 1)):
        loss = torch.nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]).float(), target.reshape(-1))
        total = loss if total is None else total + loss
    return total / 1.0


LOSSES = {"chunked": chunked_loss, "fused": fused_loss}


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in bfloat16", "under autocast"])
@pytest.mark.parametrize("kind", LOSSES)
def test_each_loss_takes_the_memory_of_its_algorithm(kind: str, autocast: str) -> None:
    config = {"model_type": "llama", **SIZES, "vocab_size": 4000}
    setting = Setting(dtype="float32" if autocast else "bfloat16", autocast=autocast, rows=3, length=80)
    ours = in_meta(spec_of({**setting.facts(config), "loss": kind, "loss_chunks": 8}))
    with values_known(False):
        reference = in_transformers(config, setting)
        reference.training_loss = LOSSES[kind]
        truth = in_torch(reference, {}, adamw("foreach"), autocast=autocast or "float32")
    comparison = compare(f"{kind} {setting}", ours, truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize(("name", "setting"), SPECIAL.values(), ids=SPECIAL)
def test_each_mechanism_takes_the_memory_that_transformers_gives_it(name: str, setting: Setting) -> None:
    comparison = run(name, CONFIGS[name], setting)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_an_evaluation_batch_takes_the_memory_that_transformers_takes(name: str) -> None:
    config = {"model_type": name, **CONFIGS[name]}
    setting = Setting(autocast="bfloat16")
    evaluation = {"evaluation_batch_size": 5, "evaluation_sequence_length": 48}
    tape = record(spec_of({**setting.facts(config), **evaluation})).tape
    [start] = [event for event, phase in tape.marks if phase == "evaluation"]
    held = sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events[:start])
    _, peak = live_and_peak(tape, start)
    with values_known(False), fake_cuda(granularity_bytes=1) as tracker:
        reference = in_transformers(config, setting._replace(rows=5, length=48))
        model = reference.build_model(None).eval()
        tracker.reset_peak()
        base = tracker.live_bytes
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            outputs = model(**reference.make_batch(None))
        outputs.logits = outputs.logits.float()  # accelerate's convert_outputs_to_fp32
        truth = tracker.peak_bytes - base
    assert peak - held == pytest.approx(truth, rel=TOLERANCE)


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def llamas(draw: st.DrawFn) -> tuple[dict[str, Any], Setting]:
    groups, each = draw(one_of(1, 2, 3)), draw(one_of(1, 2, 4))
    config = {
        "vocab_size": draw(st.integers(50, 3000)),
        "hidden_size": draw(one_of(64, 96, 200)),
        "intermediate_size": draw(st.integers(64, 700)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": groups * each,
        "num_key_value_heads": groups,
        "head_dim": draw(one_of(8, 16, 32, 64)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
    }
    dtype = draw(one_of("float32", "bfloat16"))
    setting = Setting(
        rows=draw(st.integers(1, 4)),
        length=draw(st.integers(2, 100)),
        dtype=dtype,
        autocast=draw(one_of("", "bfloat16", "float16")) if dtype == "float32" else "",
        attention=draw(one_of("sdpa", "sdpa", "eager")),
        every=draw(one_of(0, 0, 1, 2)),
        reentrant=draw(st.booleans()),
        padded=draw(st.booleans()),
        optimizer=draw(one_of("foreach", "loop", "fused")),
        accumulation=draw(st.integers(1, 2)),
    )
    return config, setting


def test_drawn_llamas_take_the_memory_that_transformers_takes() -> None:
    comparisons: list[Comparison] = []

    @settings(
        max_examples=DRAWN_SETTINGS,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(llamas())
    def one(drawn: tuple[dict[str, Any], Setting]) -> None:
        comparison = run("llama", *drawn)
        comparisons.append(comparison)
        # Models this small show that the loss, which holds what checkpointed layers were called with, lives on.
        assert comparison.worst <= 0.005, str(comparison)

    one()
    _, median = report(comparisons)
    assert len({comparison.label for comparison in comparisons}) >= DRAWN_SETTINGS * 2 // 3
    assert median <= TOLERANCE


def product(part: Any) -> Any:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.view(-1, x.shape[-1]), part.weight).view(*x.shape[:-1], part.nf)

    return forward


def without_biases(module: torch.nn.Module) -> None:
    """GPT-2 as nanoGPT's ``bias = False`` has it."""
    for part in module.modules():
        if isinstance(part, (torch.nn.LayerNorm, Conv1D)):
            part.bias = None  # type: ignore[assignment]
        if isinstance(part, Conv1D):
            part.forward = product(part)


@pytest.mark.parametrize("way", WAYS)
def test_gpt2_without_biases_takes_the_memory_that_it_takes_in_torch(way: str) -> None:
    config, setting = {"model_type": "gpt2", **CONFIGS["gpt2"]}, WAYS[way]
    ours = in_meta(spec_of(setting.facts({**config, "bias": False})))
    reference = in_transformers(config, setting)
    build = reference.build_model

    def build_model(_: Any) -> Any:
        model = build(_)
        without_biases(model)
        return model

    reference.build_model = build_model
    with values_known(setting.padded):
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(f"{config} {setting}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
