"""``--trace`` of library models: transformers, diffusers, peft and timm, built from a config's own files.

Oracles: the same class built by the library itself on the meta device (counts) and run with real tensors on the CPU
(what is kept for backward), published parameter counts, and memlint's own static models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memlint.documents.load import load
from memlint.facts.spec import Fact, TrainingSpec
from memlint.measure import trace
from memlint.measure.child import MeasureError
from memlint.measure.factory import workload
from memlint.measure.tracker import SavedTensors
from memlint.models import language
from memlint.models.step import record_step
from memlint.tape.phases import find_peak
from tests.measure.test_trace import memlint
from tests.measure.training_runs import plain_request

transformers: Any = pytest.importorskip("transformers", reason="needs Python 3.11", exc_type=ImportError)
diffusers: Any = pytest.importorskip("diffusers", reason="needs Python 3.11", exc_type=ImportError)

BF16 = {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}
AUTOCAST = {"parameter_dtype": "float32", "compute_dtype": "bfloat16"}


def request_for(folder: Path, contents: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A config that names a local folder with this ``config.json``."""
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "config.json").write_text(json.dumps(contents))
    return plain_request(folder, {"micro_batch_size": 2, **facts}, model="", config="model_name_or_path: checkpoint\n")


def traced(folder: Path, contents: dict[str, Any], **facts: Any) -> trace.Traced:
    return trace.trace(request_for(folder, contents, **facts))


def live_bytes(run: trace.Traced, component: str) -> int:
    """Bytes that ever belonged to a component."""
    return sum(size for size, label in zip(run.tape.sizes, run.tape.labels) if label.component == component)


def operators(run: trace.Traced) -> set[str]:
    return {label.name for label in run.tape.labels}


# -- the classes, small; dropout off, which CPU and CUDA do differently

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = {"sequence_length": 24}
# Which fused kernel takes grouped heads and masks, and how it lays out its result, depends on the device; eager
# attention is the same everywhere.
EAGER_TEXT = {**TEXT, "attention": "eager"}
UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 8,
    "block_out_channels": [16, 32],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 1,
    "cross_attention_dim": 16,
    "norm_num_groups": 8,
    "attention_head_dim": 2,  # the number of heads, in truth
}
SDXL = {
    **UNET,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 72,
    "use_linear_projection": True,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "sample_size": 8,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 16,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 24,
    "pos_embed_max_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "qk_norm": "rms_norm",
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "pooled_projection_dim": 24,
    "axes_dims_rope": [4, 6, 6],
    "in_channels": 16,
    "guidance_embeds": True,
}


def of(model_type: str, class_name: str, **settings: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [class_name], **settings}


LLAMA = of("llama", "LlamaForCausalLM", **DECODER)
MIXTRAL = of("mixtral", "MixtralForCausalLM", **DECODER, num_local_experts=4, num_experts_per_tok=2)
T5 = of(
    *("t5", "T5ForConditionalGeneration"),
    **{"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 100, "dropout_rate": 0.0},
)
VIT = of("vit", "ViTForImageClassification", **SMALL, **NO_DROPOUT, image_size=32, patch_size=8)
CLIP = of(
    *("clip", "CLIPModel"),
    projection_dim=16,
    text_config={**SMALL, "max_position_embeddings": 12},
    vision_config={**SMALL, "image_size": 32, "patch_size": 8},
)
WHISPER = of(
    *("whisper", "WhisperForConditionalGeneration"),
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "vocab_size": 100, "num_mel_bins": 8},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    **{"max_source_positions": 20, "max_target_positions": 10},
)
BERT = {**SMALL, **NO_DROPOUT, "max_position_embeddings": 64}
HEADS = {**DECODER, "head_dim": 8}

CLASSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "BERT, sequence classification": (of("bert", "BertForSequenceClassification", **BERT), TEXT),
    "BERT, masked language model": (of("bert", "BertForMaskedLM", **BERT), TEXT),
    "BERT, question answering": (of("bert", "BertForQuestionAnswering", **BERT), TEXT),
    "GPT-2": (
        of(
            *("gpt2", "GPT2LMHeadModel"),
            **{"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        ),
        TEXT,
    ),
    "LLaMA": (LLAMA, EAGER_TEXT),
    "Qwen2": (of("qwen2", "Qwen2ForCausalLM", **DECODER), EAGER_TEXT),
    "Qwen3": (of("qwen3", "Qwen3ForCausalLM", **HEADS), EAGER_TEXT),
    "Gemma": (of("gemma", "GemmaForCausalLM", **HEADS), EAGER_TEXT),
    "Gemma 2": (of("gemma2", "Gemma2ForCausalLM", **HEADS), EAGER_TEXT),
    "Gemma 3, text": (of("gemma3_text", "Gemma3ForCausalLM", **HEADS), EAGER_TEXT),
    "Mistral, past its window": (of("mistral", "MistralForCausalLM", **DECODER, sliding_window=8), EAGER_TEXT),
    "Mixtral": (MIXTRAL, EAGER_TEXT),
    "T5": (T5, EAGER_TEXT),
    "ViT": (VIT, {}),
    "CLIP": (CLIP, {}),
    "Whisper": (WHISPER, {"attention": "eager"}),
    "UNet of Stable Diffusion": (UNET, {}),
    "UNet of Stable Diffusion XL": (SDXL, {}),
    "SD3's transformer": (SD3, {}),
    "Flux's transformer": (FLUX, {"image_size": 64, "sequence_length": 16}),
    "an unconditional UNet": (
        {
            **{"_class_name": "UNet2DModel", "sample_size": 8, "block_out_channels": [16, 32], "norm_num_groups": 8},
            **{"down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "layers_per_block": 1},
            "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        },
        {},
    ),
    "DiT": (
        {
            **{"_class_name": "DiTTransformer2DModel", "sample_size": 8, "num_layers": 2, "out_channels": 8},
            **{"num_attention_heads": 2, "attention_head_dim": 16},
        },
        {},
    ),
    "PixArt": (
        {
            **{"_class_name": "PixArtTransformer2DModel", "sample_size": 8, "num_layers": 2, "caption_channels": 24},
            **{"num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32},
        },
        {"sequence_length": 16},
    ),
}


def built_by_the_library(contents: dict[str, Any]) -> torch.nn.Module:
    """The class by its own constructor, without memlint and without memory."""
    with torch.device("meta"):
        if "_class_name" in contents:
            model: torch.nn.Module = getattr(diffusers, contents["_class_name"]).from_config(dict(contents))
            return model
        settings = {name: value for name, value in contents.items() if name != "architectures"}
        config = transformers.AutoConfig.for_model(**settings)
        model = getattr(transformers, contents["architectures"][0])(config)
        return model


# What the CPU does its own way: RMSNorm as a chain of operators (Flux), and the layout of its fused attention.
ONLY_ABOUT = {"Flux's transformer": 0.2, "Mixtral": 0.02}


@pytest.mark.parametrize("name", CLASSES)
def test_a_library_class_trains_two_steps_without_a_card(name: str, tmp_path: Path) -> None:
    contents, facts = CLASSES[name]
    request = request_for(tmp_path, contents, **facts)
    run = trace.trace(request)
    expected = built_by_the_library(contents)
    assert run.parameters == sum(parameter.numel() for parameter in expected.parameters())
    assert run.trainable_parameters == sum(p.numel() for p in expected.parameters() if p.requires_grad)
    assert live_bytes(run, "parameters") == 4 * run.parameters
    # Every parameter that trains has a gradient in the end, but for those that this batch does not reach.
    assert 0.95 * 4 * run.trainable_parameters <= live_bytes(run, "gradients") <= 4 * run.trainable_parameters
    moments = [size for size, label in zip(run.tape.sizes, run.tape.labels) if label.name in ("exp_avg", "exp_avg_sq")]
    assert sum(moments) == 2 * live_bytes(run, "gradients")
    # What is kept for backward is alive beside weights and moments when it begins.
    phases = find_peak(run.tape).phases
    assert phases["forward"] >= live_bytes(run, "parameters") + sum(moments) + run.tape.saved_bytes
    assert find_peak(run.tape).phase in ("forward", "backward", "optimizer_step")
    assert run.has_matmul
    assert run.has_convolution == _convolves(contents)
    # The same model and batch with real tensors on the CPU.
    work = workload(request)
    model = work.build().train()
    batch = work.batch("cpu")
    with SavedTensors([*model.parameters(), *model.buffers()]) as saved:
        loss = work.loss(model, batch)
        kept = saved.bytes
    assert loss.requires_grad
    assert run.tape.saved_bytes == pytest.approx(kept, rel=ONLY_ABOUT.get(name, 0.01))


def _convolves(contents: dict[str, Any]) -> bool:
    name = contents.get("_class_name") or contents["architectures"][0]
    return any(part in name for part in ("ViT", "CLIP", "Whisper", "UNet", "SD3", "DiT", "PixArt"))


def test_a_model_in_training_is_seen_as_a_card_sees_it(tmp_path: Path) -> None:
    """An unpadded batch needs no mask, so that attention is FlashAttention's; transformers would not look at a fake
    mask, and build one for another kernel. In fp32 grouped heads leave only plain attention."""
    assert "_scaled_dot_product_flash_attention" in operators(traced(tmp_path / "a", LLAMA, **TEXT, **BF16))
    made = operators(traced(tmp_path / "b", LLAMA, **TEXT))
    assert not any("scaled_dot_product" in name for name in made)
    assert "_softmax_backward_data" in made
    utilities = sys.modules["transformers.utils.import_utils"]
    with torch._subclasses.FakeTensorMode():
        assert utilities.is_fake_tensor(torch.empty(1))  # as before


# -- real sizes, with published counts


def real(
    model_type: str, class_name: str, layers: int, width: int, heads: int, inner: int, **more: Any
) -> dict[str, Any]:
    return of(
        *(model_type, class_name),
        **{"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": inner},
        **more,
    )


LLAMA_8B = real(
    *("llama", "LlamaForCausalLM", 32, 4096, 32, 14336),
    **{"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072},
)
SD15 = {"_class_name": "UNet2DConditionModel", "sample_size": 64, "cross_attention_dim": 768}
QUICK: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "GPT-2": (
        124_439_808,
        of("gpt2", "GPT2LMHeadModel"),
        {"micro_batch_size": 4, "sequence_length": 1024, "vocabulary_size": 50257},
    ),
    "ViT-B/16": (
        86_567_656,
        real("vit", "ViTForImageClassification", 12, 768, 12, 3072, num_labels=1000),
        {"micro_batch_size": 64, **AUTOCAST},
    ),
}
SLOW: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "BERT-base": (
        109_514_298,
        real("bert", "BertForMaskedLM", 12, 768, 12, 3072),
        {"micro_batch_size": 8, "sequence_length": 512, **AUTOCAST},
    ),
    "T5-base": (
        222_903_552,
        of("t5", "T5ForConditionalGeneration", d_model=768, d_ff=3072, num_layers=12, num_heads=12),
        {"micro_batch_size": 8, "sequence_length": 512},
    ),
    "CLIP ViT-B/32": (151_277_313, of("clip", "CLIPModel"), {"micro_batch_size": 64, **AUTOCAST}),
    "Whisper small": (
        241_734_912,
        of(
            *("whisper", "WhisperForConditionalGeneration"),
            **{"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 51865},
            **{"encoder_attention_heads": 12, "decoder_attention_heads": 12},
            **{"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
        ),
        {"micro_batch_size": 8, **AUTOCAST},
    ),
    "LLaMA 3.1 8B": (
        8_030_261_248,
        LLAMA_8B,
        {"micro_batch_size": 1, "sequence_length": 8192, "checkpointing": "full", **BF16},
    ),
    "Qwen3 0.6B": (
        596_049_920,
        real(
            *("qwen3", "Qwen3ForCausalLM", 28, 1024, 16, 3072),
            **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
        ),
        {"micro_batch_size": 1, "sequence_length": 4096, **BF16},
    ),
    "Gemma 3 1B": (
        999_885_952,
        real(
            *("gemma3_text", "Gemma3ForCausalLM", 26, 1152, 4, 6912),
            **{"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512},
        ),
        {"micro_batch_size": 1, "sequence_length": 4096, **BF16},
    ),
    "Mixtral 8x7B": (
        46_702_792_704,
        real(
            *("mixtral", "MixtralForCausalLM", 32, 4096, 32, 14336),
            **{"num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        {"micro_batch_size": 1, "sequence_length": 4096, "checkpointing": "full", **BF16},
    ),
    "UNet of Stable Diffusion 1.5": (859_520_964, SD15, {"micro_batch_size": 4, **AUTOCAST}),
    "SD3 medium": (
        2_028_328_000,
        {
            **{"_class_name": "SD3Transformer2DModel", "num_layers": 24, "num_attention_heads": 24},
            **{"caption_projection_dim": 1536, "pos_embed_max_size": 192},
        },
        {"micro_batch_size": 1, "checkpointing": "full", **BF16},
    ),
    "Flux dev": (
        11_901_408_320,
        {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True},
        {"micro_batch_size": 1, "image_size": 1024, "checkpointing": "full", **BF16},
    ),
}


@pytest.mark.parametrize(
    ("count", "contents", "facts"),
    [
        *(pytest.param(*case, id=name) for name, case in QUICK.items()),
        *(pytest.param(*case, id=name) for name, case in SLOW.items()),
    ],
)
def test_real_sizes_have_their_known_counts(
    count: int, contents: dict[str, Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    run = traced(tmp_path, contents, **facts)
    assert run.parameters == count
    peak = find_peak(run.tape)
    size = 2 if facts.get("parameter_dtype") == "bfloat16" else 4
    # AdamW's step holds weights, gradients and two moments, foreach makes one more copy, and the batch is still there.
    held = size * (count + 4 * run.trainable_parameters)
    assert held <= peak.phases["optimizer_step"] <= 1.03 * held
    assert max(peak.phases.values()) == peak.phases[peak.phase]


# -- beside the static models

STATIC = {
    "LLaMA": LLAMA,
    "Qwen2": CLASSES["Qwen2"][0],
    "Gemma": CLASSES["Gemma"][0],
    "Mistral, past its window": CLASSES["Mistral, past its window"][0],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32 with checkpointing": {"checkpointing": "full"},
    "bf16": BF16,
    "bf16 with checkpointing": {**BF16, "checkpointing": "full"},
    "autocast": AUTOCAST,
    "eager attention": {"attention": "eager"},
    "flash attention": {**BF16, "attention": "flash"},
    "a loop for an optimizer": {"optimizer_implementation": "loop"},
}


@pytest.mark.parametrize("facts", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("contents", STATIC.values(), ids=STATIC)
def test_the_trace_agrees_with_the_static_model(
    contents: dict[str, Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    facts = {"micro_batch_size": 2, "sequence_length": 96, "optimizer_implementation": "foreach", **facts}
    run = traced(tmp_path, contents, **facts)
    document = load(str(tmp_path / "train.yaml"))
    stated = {name: Fact(name, value) for name, value in {**facts, "hyperparameters.config": contents}.items()}
    expected = record_step(language.build, TrainingSpec("", document, document.root, stated, "language_model"))
    assert run.parameters == expected.parameters
    assert run.trainable_parameters == expected.trainable_parameters
    here, there = find_peak(run.tape), find_peak(expected.tape)
    assert max(here.phases.values()) == pytest.approx(max(there.phases.values()), rel=0.01)
    assert here.phase == there.phase
    assert here.phases["backward"] == pytest.approx(there.phases["backward"], rel=0.01)
    assert here.phases["optimizer_step"] == pytest.approx(there.phases["optimizer_step"], rel=0.01)
    if "checkpointing" not in facts:
        assert run.tape.saved_bytes == pytest.approx(expected.tape.saved_bytes, rel=0.01)


# -- attention


@pytest.mark.parametrize(
    "contents", [LLAMA, CLASSES["BERT, masked language model"][0], VIT], ids=["LLaMA", "BERT", "ViT"]
)
def test_flash_attention_keeps_what_sdpa_keeps_in_16_bits(contents: dict[str, Any], tmp_path: Path) -> None:
    flash = traced(tmp_path / "a", contents, **TEXT, **BF16, attention="flash")
    fused = traced(tmp_path / "b", contents, **TEXT, **BF16, attention="sdpa")
    assert find_peak(flash.tape).phases == find_peak(fused.tape).phases
    assert flash.tape.saved_bytes == fused.tape.saved_bytes
    assert any(fact == "attention" and value == "flash" for fact, value, _ in flash.assumptions)


def test_flash_attention_needs_no_mask_for_a_window(tmp_path: Path) -> None:
    mistral = CLASSES["Mistral, past its window"][0]
    flash = traced(tmp_path / "a", mistral, **TEXT, **BF16, attention="flash")
    masked = traced(tmp_path / "b", mistral, **TEXT, **BF16, attention="sdpa")
    whole = traced(tmp_path / "c", LLAMA, **TEXT, **BF16, attention="flash")
    assert flash.tape.saved_bytes == whole.tape.saved_bytes < masked.tape.saved_bytes


def test_flash_attention_under_autocast_casts_queries_as_transformers_does(tmp_path: Path) -> None:
    flash = traced(tmp_path / "a", LLAMA, **TEXT, **AUTOCAST, attention="flash")
    fused = traced(tmp_path / "b", LLAMA, **TEXT, **AUTOCAST, attention="sdpa")
    assert flash.tape.saved_bytes == fused.tape.saved_bytes


def test_a_probe_asks_for_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def build(config: Any, **options: Any) -> None:
        asked.update(options)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "_from_config", build)
    request = request_for(tmp_path, LLAMA, **TEXT, **BF16, attention="flash")
    for kind, expected in (("trace", "memlint_fused"), ("probe", "flash_attention_2")):
        workload({**request, "kind": kind}).build()
        assert asked["attn_implementation"] == expected


# -- experts


def test_experts_take_one_grouped_product_whatever_the_router_says(tmp_path: Path) -> None:
    """Of each projection: tokens x experts per token rows, sorted by expert, in and out."""
    run = traced(tmp_path, MIXTRAL, **TEXT, **BF16)
    rows = 2 * 24 * 2
    forward = {name: at for at, name in run.tape.marks}
    events = run.tape.events[forward["forward"] : forward["backward"]]
    products = [run.tape.sizes[e] for e in events if e >= 0 and run.tape.labels[e].name == "_grouped_mm"]
    assert products == [2 * rows * 2 * 64, 2 * rows * 32] * 2
    assert not any(module.endswith("experts") for module, _, _ in run.assumptions)


def test_experts_in_a_loop_are_answered_with_operator_module_and_way_out(tmp_path: Path) -> None:
    model = """
import transformers, torch

def build_model(config):
    small = transformers.MixtralConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                                       intermediate_size=64, vocab_size=100, num_key_value_heads=2)
    return transformers.MixtralForCausalLM._from_config(small, experts_implementation="eager")

def make_batch(config, device):
    return torch.ones(2, 8, dtype=torch.long, device=device)

def training_loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
"""
    sys.modules.pop("memlint_model", None)
    with pytest.raises(MeasureError) as caught:
        trace.trace(plain_request(tmp_path, model=model))
    assert "module model.layers.0.mlp.experts calls aten::nonzero" in str(caught.value)
    assert "--probe" in str(caught.value)


# -- adapters


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft", reason="needs Python 3.11", exc_type=ImportError)


def test_lora_trains_its_two_factors_and_nothing_else(peft: Any, tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.r": 4, "lora.alpha": 8, "lora.targets": ["q_proj", "v_proj"]}
    full = traced(tmp_path / "a", LLAMA, **TEXT, **BF16)
    run = traced(tmp_path / "b", LLAMA, **TEXT, **BF16, **lora)
    factors = 2 * (4 * (32 + 32) + 4 * (32 + 16))  # per layer: (r x in + out x r) of the two projections
    assert run.trainable_parameters == factors
    assert run.parameters == full.parameters + factors
    # Adapters beside 16-bit weights are fp32, and so are their gradients and moments.
    assert live_bytes(run, "gradients") == 4 * factors
    assert live_bytes(run, "parameters") == 2 * full.parameters + 4 * factors
    moments = [size for size, label in zip(run.tape.sizes, run.tape.labels) if label.name in ("exp_avg", "exp_avg_sq")]
    assert sum(moments) == 8 * factors
    gradients = {label.module.split(".")[-2] for label in run.tape.labels if label.component == "gradients"}
    assert gradients == {"lora_A", "lora_B"}


def test_lora_with_checkpointing_reaches_the_adapters(peft: Any, tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.r": 4, "lora.targets": "all-linear"}
    plain = traced(tmp_path / "a", LLAMA, **TEXT, **BF16, **lora)
    saving = traced(tmp_path / "b", LLAMA, **TEXT, **BF16, **lora, checkpointing="full")
    assert saving.tape.saved_bytes < plain.tape.saved_bytes
    assert live_bytes(saving, "gradients") == live_bytes(plain, "gradients") > 0


@pytest.mark.parametrize(
    ("facts", "more"),
    [
        pytest.param({"tuning": "dora"}, 2 * (32 + 16), id="DoRA adds a magnitude for each output"),
        pytest.param({"lora.modules_to_save": ["lm_head"]}, 100 * 32, id="a head that trains in full"),
        pytest.param({"lora.targets": None}, 0, id="peft's own list of targets"),
    ],
)
def test_kinds_of_lora_count_as_peft_counts_them(peft: Any, facts: dict[str, Any], more: int, tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.r": 4, "lora.targets": ["q_proj", "v_proj"]}
    run = traced(tmp_path, LLAMA, **TEXT, **{**lora, **facts})
    assert run.trainable_parameters == 2 * (4 * (32 + 32) + 4 * (32 + 16)) + more


def test_lora_of_a_denoiser(peft: Any, tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.r": 4, "lora.targets": ["to_q", "to_v"]}
    run = traced(tmp_path, SD3, **lora)
    # Two blocks; every projection maps 32 to 32.
    assert run.trainable_parameters == 2 * 2 * 4 * (32 + 32)


def test_lora_without_peft_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MeasureError, match="tuning = lora wraps the model, which takes peft to build"):
        traced(tmp_path, LLAMA, **TEXT, tuning="lora")


# -- what a batch is made of


def batch_of(folder: Path, contents: dict[str, Any], **facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = workload(request_for(folder, contents, **facts)).batch("cpu")
    return found


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "segments for BERT": (
        CLASSES["BERT, masked language model"][0],
        TEXT,
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "labels"), (2, 24)),
    ),
    "classes for sequences": (
        CLASSES["BERT, sequence classification"][0],
        TEXT,
        {**dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (2, 24)), "labels": (2,)},
    ),
    "no segments for GPT-2": (
        CLASSES["GPT-2"][0],
        TEXT,
        dict.fromkeys(("input_ids", "attention_mask", "labels"), (2, 24)),
    ),
    "images at the model's own size": (VIT, {"image_size": 224}, {"pixel_values": (2, 3, 32, 32), "labels": (2,)}),
    "text as long as CLIP's positions": (
        CLIP,
        TEXT,
        {"input_ids": (2, 12), "attention_mask": (2, 12), "pixel_values": (2, 3, 32, 32)},
    ),
    "a spectrogram of thirty seconds, and as many labels as there are positions": (
        WHISPER,
        {},
        {"input_features": (2, 8, 40), "labels": (2, 10)},
    ),
    "fewer labels where the config says so": (
        WHISPER,
        {"sequence_length": 6},
        {"input_features": (2, 8, 40), "labels": (2, 6)},
    ),
}


@pytest.mark.parametrize(("contents", "facts", "shapes"), SHAPES.values(), ids=SHAPES)
def test_batches_follow_the_class_and_its_config(
    contents: dict[str, Any], facts: dict[str, Any], shapes: dict[str, Any], tmp_path: Path
) -> None:
    batch = batch_of(tmp_path, contents, **facts)
    assert {name: tuple(x.shape) for name, x in batch.items() if isinstance(x, torch.Tensor)} == shapes
    assert batch.get("return_loss", False) is (contents is CLIP)


def test_the_facts_choose_the_class_and_its_head(tmp_path: Path) -> None:
    facts = {"model_class": "sequence_classification", "labels": 7, "vocabulary_size": 104}
    contents = {**LLAMA, "pad_token_id": 0}
    work = workload(request_for(tmp_path, contents, **TEXT, **facts))
    model = work.build()
    assert type(model).__name__ == "LlamaForSequenceClassification"
    assert tuple(model.score.weight.shape) == (7, 32)
    assert model.model.embed_tokens.weight.shape[0] == 104
    assert work.batch("cpu")["labels"].shape == (2,)


def test_a_model_that_only_the_facts_know_is_built_from_them(tmp_path: Path) -> None:
    """A family resolves a hub id through the catalogue; its files need not be there."""
    facts = {"micro_batch_size": 2, **TEXT, "model": "some/model", "hyperparameters.config": LLAMA}
    run = trace.trace(plain_request(tmp_path / "a", facts, model=""))
    assert run.source == "transformers, some/model"
    assert run.parameters == traced(tmp_path / "b", LLAMA, **TEXT).parameters


def test_a_hub_id_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    repository = tmp_path / "cache" / "models--some--model"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    facts = {"micro_batch_size": 2, **TEXT}
    work = workload(plain_request(tmp_path, facts, model="", config="model_name_or_path: some/model\n"))
    assert type(work.build()).__name__ == "LlamaForCausalLM"
    with pytest.raises(
        MeasureError, match=r"another/model is no folder with a config.json, and not in the local cache"
    ):
        workload(plain_request(tmp_path, facts, model="", config="model_name_or_path: another/model\n"))


def pipeline(folder: Path, component: str, contents: dict[str, Any], levels: int) -> None:
    """A pipeline's folder as diffusers saves it, without weights."""
    root = folder / "pipeline"
    for name, text in (
        ("model_index.json", {"_class_name": "SomePipeline"}),
        (f"{component}/config.json", contents),
        ("vae/config.json", {"_class_name": "AutoencoderKL", "block_out_channels": [8] * levels}),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(text))


@pytest.mark.parametrize(
    ("component", "contents", "levels", "shape"),
    [
        pytest.param("unet", UNET, 4, (2, 4, 32, 32), id="a UNet behind a VAE of four levels"),
        pytest.param("unet", UNET, 3, (2, 4, 64, 64), id="a UNet behind a VAE of three levels"),
        pytest.param("transformer", SD3, 4, (2, 4, 32, 32), id="SD3"),
        pytest.param("transformer", FLUX, 4, (2, 16 * 16, 16), id="Flux packs two by two latents"),
    ],
)
def test_a_pipelines_denoiser_is_given_what_its_vae_makes(
    component: str, contents: dict[str, Any], levels: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    pipeline(tmp_path, component, contents, levels)
    facts = {"micro_batch_size": 2, "image_size": 256}
    work = workload(plain_request(tmp_path, facts, model="", config="pretrained_model_name_or_path: pipeline\n"))
    batch = work.batch("cpu")
    assert tuple(batch["latents"].shape) == tuple(batch["noise"].shape) == shape
    assert any(fact == "helper_models" for fact, _, _ in work.notes)
    assert work.source.endswith(contents["_class_name"])


def test_attention_of_a_unet_can_be_eager(tmp_path: Path) -> None:
    fused, eager = traced(tmp_path / "a", UNET), traced(tmp_path / "b", UNET, attention="eager")
    assert eager.tape.saved_bytes > fused.tape.saved_bytes
    assert any("efficient_attention" in name for name in operators(fused) - operators(eager))


@pytest.mark.parametrize("name", ["T5", "ViT", "Whisper", "Flux's transformer"])
def test_checkpointing_keeps_less(name: str, tmp_path: Path) -> None:
    contents, facts = CLASSES[name]
    plain = traced(tmp_path / "a", contents, **facts)
    saving = traced(tmp_path / "b", contents, **facts, checkpointing="full")
    assert saving.tape.saved_bytes < 0.8 * plain.tape.saved_bytes
    assert live_bytes(saving, "gradients") == live_bytes(plain, "gradients")


def test_every_other_layer_can_be_recomputed(tmp_path: Path) -> None:
    kept = [
        traced(tmp_path / str(number), LLAMA, **TEXT, **facts).tape.saved_bytes
        for number, facts in enumerate(
            ({}, {"checkpointing": "every", "checkpointing_every": 2}, {"checkpointing": "full"})
        )
    ]
    assert kept[0] > kept[1] > kept[2]


# -- timm, which the tests do without: its torchvision would replace torch

TIMM = """
import torch
from torch import nn
from types import SimpleNamespace

class layers:
    fused = True
    @staticmethod
    def set_fused_attn(enable):
        layers.fused = enable

class Net(nn.Module):
    def __init__(self, num_classes, img_size):
        super().__init__()
        self.img_size, self.recomputing = img_size, False
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, num_classes)

    def set_grad_checkpointing(self, enable):
        self.recomputing = enable

    def forward(self, images):
        assert self.img_size is None or images.shape[-2:] == self.img_size
        return self.head(self.stem(images).mean((2, 3)))

def is_model(name):
    return name in ("tiny_vit", "tiny_cnn")

def get_pretrained_cfg(name):
    return SimpleNamespace(input_size=(3, 32, 32))

def create_model(name, pretrained=False, num_classes=10, **options):
    assert not pretrained
    if name == "tiny_cnn" and options:
        raise TypeError(f"unexpected {options}")
    return Net(num_classes, options.get("img_size"))
"""


@pytest.fixture
def timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "libraries" / "timm").mkdir(parents=True)
    (tmp_path / "libraries" / "timm" / "__init__.py").write_text(TIMM)
    monkeypatch.syspath_prepend(str(tmp_path / "libraries"))
    yield tmp_path
    sys.modules.pop("timm", None)


@pytest.mark.parametrize(
    ("config", "facts", "size", "classes"),
    [
        pytest.param("model: tiny_vit\n", {}, 32, 10, id="by its name, at its own size"),
        pytest.param("model_name: tiny_cnn\nnum_classes: 5\n", {"image_size": 64}, 64, 5, id="at the config's size"),
        pytest.param("model:\n  name: timm/tiny_vit\n  num_classes: 7\n", {"image_size": 48}, 48, 7, id="in a section"),
    ],
)
def test_a_model_of_timm_is_built_by_its_name(
    timm: Path, config: str, facts: dict[str, Any], size: int, classes: int
) -> None:
    request = plain_request(timm, {"micro_batch_size": 2, **facts}, model="", config=config)
    run = trace.trace(request)
    assert run.parameters == 8 * 3 * 16 + 8 + 8 * classes + classes
    assert run.source.startswith("timm, tiny_")
    images, labels = workload(request).batch("cpu")
    assert tuple(images.shape) == (2, 3, size, size)
    assert tuple(labels.shape) == (2,)


def test_facts_reach_a_model_of_timm(timm: Path) -> None:
    facts = {"micro_batch_size": 2, "checkpointing": "full", "attention": "eager", "parameter_dtype": "bfloat16"}
    model = workload(plain_request(timm, facts, model="", config="model: tiny_vit\n")).build()
    assert model.recomputing
    assert not sys.modules["timm"].layers.fused
    assert model.head.weight.dtype is torch.bfloat16


def test_a_folder_of_timm_is_recognised(timm: Path) -> None:
    contents = {"architecture": "tiny_vit", "num_classes": 4, "pretrained_cfg": {"input_size": [3, 16, 16]}}
    request = request_for(timm, contents)
    assert tuple(workload(request).batch("cpu")[0].shape) == (2, 3, 16, 16)
    assert workload(request).build().head.out_features == 4


def test_without_timm_its_folder_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MeasureError, match="which takes timm to build, and that cannot be imported"):
        traced(tmp_path, {"architecture": "resnet50"})


# -- clear answers

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no batch size": (LLAMA, {"micro_batch_size": None, **TEXT}, "the batch needs micro_batch_size, which the config"),
    "no length": (LLAMA, {}, "the batch needs sequence_length, which the config does not state; set it with -o"),
    "no image size": (FLUX, {}, "the batch needs image_size"),
    "more tokens than positions": (
        CLASSES["GPT-2"][0],
        {"sequence_length": 65},
        "65 tokens are more than the 64 positions that GPT2LMHeadModel has",
    ),
    "images between tokens": (
        of("llava", "LlavaForConditionalGeneration"),
        TEXT,
        "puts images between its tokens, and how many tokens an image takes is its processor's to say",
    ),
    "labels of another kind": (
        of("vit", "ViTForMaskedImageModeling", **SMALL),
        {},
        "the step gave a MaskedImageModelingOutput where a scalar loss is needed",
    ),
    "no class at all": (
        of("vit", "SomethingElse", **SMALL),
        {},
        r"config.json names no class that transformers has \(architectures: \['SomethingElse'\]\)",
    ),
    "a model type that transformers lacks": ({"model_type": "nonesuch"}, TEXT, "checkpoint/config.json: ValueError"),
    "a kernel that only a card has": (LLAMA, {**TEXT, "attention": "xformers"}, "only runs on a card"),
    "flash attention in fp32": (LLAMA, {**TEXT, "attention": "flash"}, "flash takes 16-bit queries"),
    "flash attention for a model without": (T5, {**TEXT, **BF16, "attention": "flash"}, "has no flash attention"),
    "eager attention for a model without": (FLUX, {"image_size": 64, "attention": "eager"}, "no eager attention"),
    "another kind of tuning": (LLAMA, {**TEXT, "tuning": "ia3"}, "only the training code knows"),
    "another kind of checkpointing": (LLAMA, {**TEXT, "checkpointing": "selective"}, "the training code's to set up"),
    "LoRA on layers that are not there": (
        LLAMA,
        {**TEXT, "tuning": "lora", "lora.targets": ["nonesuch"]},
        "Target modules .*nonesuch",
    ),
    "a denoiser of another kind": (
        {"_class_name": "WanTransformer3DModel"},
        {},
        "is a WanTransformer3DModel; batches are known for UNet2DModel",
    ),
    "LoRA of a denoiser without targets": (
        SD3,
        {"tuning": "lora"},
        "which layers of SD3Transformer2DModel get adapters",
    ),
    "a setting that the class refuses": (
        {**UNET, "down_block_types": ["NoSuchBlock", "DownBlock2D"]},
        {},
        "UNet2DConditionModel raised ValueError.*NoSuchBlock",
    ),
}


@pytest.mark.parametrize(("contents", "facts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_traced_is_said(
    contents: dict[str, Any], facts: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(MeasureError, match=said) as caught:
        traced(tmp_path, contents, **facts)
    assert "\n" not in str(caught.value)


def test_a_broken_config_json_is_named(tmp_path: Path) -> None:
    request = request_for(tmp_path, LLAMA, **TEXT)
    path = tmp_path / "checkpoint" / "config.json"
    for text, said in (("{", "config.json: Expecting"), ("[]", "config.json:1: holds a list")):
        path.write_text(text)
        with pytest.raises(MeasureError, match=said):
            workload(request)


def test_a_pipeline_without_a_denoiser_is_named(tmp_path: Path) -> None:
    pipeline(tmp_path, "text_encoder", {}, 4)
    with pytest.raises(
        MeasureError, match=r"is a SomePipeline without a config.json in any of transformer, unet, prior"
    ):
        workload(plain_request(tmp_path, {}, model="", config="pretrained_model_name_or_path: pipeline\n"))


# -- what fake tensors would do otherwise

LOOPING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        nn.init.trunc_normal_(self.layer.weight, std=0.02)

    def forward(self, x):
        x = self.layer(x)
        while (x.detach() > 0).any():
            pass
        return x

def build_model(config):
    return Model()

def make_batch(config, device):
    return torch.rand(2, 4, device=device)

def training_loss(model, batch):
    return model(batch).sum()
"""


@pytest.fixture
def _own_model() -> Iterator[None]:
    yield
    sys.modules.pop("memlint_model", None)


@pytest.mark.usefixtures("_own_model")
def test_drawing_within_bounds_ends(tmp_path: Path) -> None:
    before = torch.nn.init._no_grad_trunc_normal_
    model = LOOPING.replace("while (x.detach() > 0).any():\n            pass\n        ", "")
    assert trace.trace(plain_request(tmp_path, model=model)).parameters == 20
    assert torch.nn.init._no_grad_trunc_normal_ is before


@pytest.mark.usefixtures("_own_model")
def test_a_loop_that_waits_for_a_value_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_READS", 200)
    with pytest.raises(MeasureError, match="a loop that ends when a tensor says so does not end in a trace"):
        trace.trace(plain_request(tmp_path, model=LOOPING))


NORMALISING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 64, bias=False), nn.RMSNorm(64, eps=1e-6)

    def forward(self, x):
        return self.norm(self.layer(x))

def build_model(config):
    return Model().to(getattr(torch, config["dtype"]))

def make_batch(config, device):
    return torch.rand(8, 16, 64, device=device, dtype=getattr(torch, config["dtype"]))

def training_loss(model, batch):
    return model(batch).sum()
"""


@pytest.mark.usefixtures("_own_model")
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_rms_norm_is_one_kernel_on_a_card(dtype: str, size: int, tmp_path: Path) -> None:
    """``torch.nn.functional.rms_norm`` on CUDA keeps its input and one fp32 statistic per row; on the CPU it is a chain
    that keeps fp32 copies."""
    run = trace.trace(plain_request(tmp_path, model=NORMALISING, config=f"dtype: {dtype}\n"))
    rows, width = 8 * 16, 64
    batch, input, statistics, loss = rows * width * size, rows * width * size, rows * 4, size
    assert run.tape.saved_bytes == batch + input + statistics + loss
    begin = {name: at for at, name in run.tape.marks}
    backward = run.tape.events[begin["backward"] : begin["optimizer_step"]]
    made = [run.tape.labels[event] for event in backward if event >= 0 and run.tape.labels[event].module == "norm"]
    assert {label.component for label in made} == {"activations", "gradients"}  # of the input, and of the scale


GROUPED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, groups, width, out):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(groups, width, out))

    def forward(self, x):
        ends = torch.full((self.weight.shape[0],), 6, dtype=torch.int32, device=x.device)
        return nn.functional.grouped_mm(x, self.weight.to(x.dtype), offs=ends)

def build_model(config):
    return Model(4, 32, config["out"]).to(getattr(torch, config["dtype"]))

def make_batch(config, device):
    return torch.rand(24, 32, device=device, dtype=getattr(torch, config["dtype"]))

def training_loss(model, batch):
    return model(batch).float().sum()
"""


@pytest.mark.usefixtures("_own_model")
@pytest.mark.parametrize(
    ("dtype", "out", "row"),
    [
        pytest.param("bfloat16", 48, 48 * 2, id="bf16"),
        pytest.param("float32", 48, 48 * 4, id="fp32, which takes the products one by one"),
        pytest.param("float32", 50, 52 * 4, id="rows are padded to 16 bytes"),
    ],
)
def test_grouped_products_take_every_type_on_a_card(dtype: str, out: int, row: int, tmp_path: Path) -> None:
    run = trace.trace(plain_request(tmp_path, model=GROUPED, config=f"dtype: {dtype}\nout: {out}\n"))
    begin = {name: at for at, name in run.tape.marks}
    forward = run.tape.events[begin["forward"] : begin["backward"]]
    sizes = [run.tape.sizes[event] for event in forward if event >= 0]
    padding = row - out * torch.tensor([], dtype=getattr(torch, dtype)).element_size()
    assert 24 * row - padding in sizes  # the last row needs none


# -- the command


def test_check_traces_a_folder_that_a_config_of_no_known_family_names(tmp_path: Path) -> None:
    """Sizes that no family reads are the config's own keys of the facts' names, or are given with -o."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "train.yaml").write_text("model_name_or_path: checkpoint\nsequence_length: 24\n")
    done = memlint(
        *("check", "--trace", "train.yaml", "-o", "micro_batch_size=2", "--isolated", "--output-format", "json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["files"][0]["measured"]
    expected = find_peak(traced(tmp_path, LLAMA, **TEXT).tape)
    assert measured["allocated_bytes"] == expected.peak_bytes
    assert measured["peak_phase"] == expected.phase


def test_a_symbolic_size_is_a_size(tmp_path: Path) -> None:
    """While a profile is recorded, sizes are torch.SymInt."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    assert isinstance(size, torch.SymInt)
    request = request_for(tmp_path, LLAMA, **TEXT)
    request["facts"]["micro_batch_size"] = size
    with FakeTensorMode(shape_env=size.node.shape_env):
        batch = workload(request).batch("cpu")
    assert batch["input_ids"].shape[0] is size or str(batch["input_ids"].shape[0]) == str(size)
