"""Encoder-decoders: the static step against transformers' own code, traced with CUDA's semantics."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, masking_utils
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from memlint.meta.tensor import recording
from memlint.models.language import build
from memlint.models.language.quantisation import Linear4bit
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import Comparison, compare, in_meta, in_torch

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "d_model": 128,
    "encoder_layers": 3,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 352,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 256,
    "max_position_embeddings": 256,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}
SOUND = {**SIZES, "num_mel_bins": 20, "max_source_positions": 60, "max_target_positions": 100, "pad_token_id": 0}
DROPPING = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}

# A name of the case -> config.json of a small model; its model type is the name's first word.
CONFIGS: dict[str, dict[str, Any]] = {
    "bart": SIZES,
    "bart with every dropout": {**SIZES, **DROPPING},
    "bart with a table for each half and for the head": {**SIZES, **SHALLOW, "tie_word_embeddings": False},
    "mbart": SIZES,
    "pegasus": SIZES,
    "marian": {**SIZES, "decoder_vocab_size": 1000, "pad_token_id": 0},
    "marian with a table for each half": {
        **SIZES,
        "decoder_vocab_size": 900,
        "pad_token_id": 0,
        "share_encoder_decoder_embeddings": False,
        "decoder_start_token_id": 0,
        "eos_token_id": 0,
    },
    "m2m_100": SIZES,
    "whisper": SOUND,
    "whisper with every dropout": {**SOUND, **DROPPING},
}
T5: dict[str, Any] = {
    "vocab_size": 1000, "d_model": 128, "d_kv": 24, "d_ff": 352, "num_layers": 3, "num_decoder_layers": 4,
    "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
CONFIGS.update(
    {
        "t5": T5,
        "t5 with a gate and a head of its own": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "mt5": T5,
        "t5 with a gate": {**T5, "num_layers": 2, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu"},
        "t5 of two layers": {**T5, "num_layers": 2, "num_decoder_layers": 2},
    }
)
TARGET = 40

WAYS = {
    "in fp32": Setting(),
    "in bfloat16, padded": Setting(dtype="bfloat16", padded=True),
    "under autocast with probabilities": Setting(autocast="float16", attention="eager", padded=True),
    "under autocast with checkpointing": Setting(autocast="bfloat16", every=1),
}


def in_transformers(config: dict[str, Any], setting: Setting) -> SimpleNamespace:
    """What tests.differential.training expects of a reference model."""
    sound = config["model_type"] == "whisper"

    def build_model(_: Any) -> Any:
        made = AutoConfig.for_model(**config)
        made.use_cache = False
        kind = transformers.AutoModelForSpeechSeq2Seq if sound else transformers.AutoModelForSeq2SeqLM
        model = kind.from_config(made, dtype=getattr(torch, setting.dtype), attn_implementation=setting.attention)
        if not config.get("tie_word_embeddings", True) and config["model_type"] == "t5":  # as its checkpoints have it
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        if setting.dtype == "float16":  # from_pretrained keeps them, from_config does not
            for name in getattr(model, "_keep_in_fp32_modules", None) or ():
                for module in model.modules():
                    part = getattr(module, name, None)
                    if isinstance(part, torch.nn.Linear):
                        part.weight = torch.nn.Parameter(torch.empty_like(part.weight, dtype=torch.float32))
        if setting.every:
            model.activation_checkpointing_enable({"use_reentrant": setting.reentrant}, every_n_layers=setting.every)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        labels = torch.zeros((setting.rows, TARGET), dtype=torch.int64)
        if sound:
            shape = (setting.rows, config["num_mel_bins"], 2 * config["max_source_positions"])
            return {"input_features": torch.zeros(shape, dtype=getattr(torch, setting.dtype)), "labels": labels}
        names = ("input_ids", "attention_mask")
        return {
            **{name: torch.zeros((setting.rows, setting.length), dtype=torch.int64) for name in names},
            "labels": labels,
        }

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


def run(monkeypatch: pytest.MonkeyPatch, name: str, setting: Setting) -> Comparison:
    config = {"model_type": name.split()[0], **CONFIGS[name]}
    given = {**setting.facts(config), "model_class": "seq2seq_lm", "target_length": TARGET}
    ours = in_meta(spec_of(given))
    # Fake tensors have no values that would say whether a row is padded, so transformers is told.
    monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_: not setting.padded)
    # Nobody hands a mask for the output, so it is a causal one in any case.
    with values_known(False):
        reference = in_transformers(config, setting)
        truth = in_torch(
            reference, {}, adamw(setting.optimizer), setting.accumulation, autocast=setting.autocast or "float32"
        )
    return compare(f"{config} {setting}", ours, truth, setting.every > 0)


# What differs from BART only in switches is met once plainly and once with all that can go otherwise.
VARIANTS = ("mbart", "pegasus", "marian", "m2m_100", "mt5")
ONCE = ("bart with a table for each half and for the head", "marian with a table for each half")
MET = {"t5 with a gate": (), "t5 of two layers": (), **dict.fromkeys(VARIANTS, (1, 3)), **dict.fromkeys(ONCE, (1,))}
CASES = [(name, way) for name in CONFIGS for number, way in enumerate(WAYS) if number in MET.get(name, range(4))]


@pytest.mark.parametrize(("name", "way"), CASES, ids=[f"{name} {way}" for name, way in CASES])
def test_each_encoder_decoder_takes_the_memory_that_transformers_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = run(monkeypatch, name, WAYS[way])
    assert comparison.worst <= TOLERANCE, str(comparison)


HALF = {
    "t5 of two layers": Setting(dtype="float16", autocast="float16"),
    "t5 with a gate": Setting(dtype="float16", every=1, attention="eager"),
}


@pytest.mark.parametrize("name", HALF)
def test_t5_in_float16_keeps_in_fp32_what_transformers_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = run(monkeypatch, name, HALF[name])
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_t5_in_few_bits_keeps_what_transformers_keeps() -> None:
    """The last layer of each perceptron, in whichever dtype the rest was asked for."""
    config = {"model_type": "t5", **T5}
    with torch.device("meta"):
        reference = transformers.T5ForConditionalGeneration(AutoConfig.for_model(**config))
    kept = HfQuantizer.get_modules_to_not_convert(reference, None, reference._keep_in_fp32_modules)
    linear = {name: part for name, part in reference.named_modules() if isinstance(part, torch.nn.Linear)}
    taken = [part.weight.numel() for name, part in linear.items() if should_convert_module(name, kept)]
    facts = {**Setting(dtype="bfloat16").facts(config), "model_class": "seq2seq_lm", "target_length": TARGET}
    adapter = {"tuning": "lora", "lora.r": 4, "lora.targets": ["q", "v"], "quantization.bits": 4}
    with recording():
        system = build(spec_of({**facts, **adapter, "frozen_dtype": "bfloat16"}))
        ours = [prod(part.sizes) for part in system.model.modules() if isinstance(part, Linear4bit)]
    assert sorted(ours) == sorted(taken)
    assert len(taken) < len(linear) - 1
