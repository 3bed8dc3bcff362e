"""Family nemo-automodel: what recipes say, and what makes them UNKNOWN."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec

CONFIG = (Path(__file__).parents[1] / "hostile/samples/nemo_automodel/run.yaml").read_text(encoding="utf-8")
FULL = (r"peft:\n(  .*\n)+", "")
GIB = 2**30


def run(*changes: tuple[str, str], devices: int = 0) -> TrainingSpec:
    text = CONFIG
    for old, new in changes:
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    [spec] = registry.specs(load("run.yaml", text))
    assert spec.family == "nemo-automodel"
    if devices:
        spec = spec.stating({"device_count": devices, "world_size": devices})
    return spec


FACTS: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "adapters": (
        [],
        {"tuning": "lora", "lora.r": 8, "lora.dtype": "bfloat16", "micro_batch_size": 4, "sequence_length": 512}
        | {"optimizer": "adam", "optimizer_implementation": "foreach", "attention": "sdpa", "outputs_kept": True}
        | {"compute_dtype": "bfloat16", "autocast": False, "checkpointing": "full", "sequence_bound": None}
        | {"checkpointing_modules": ["mlp", "self_attn", "input_layernorm", "post_attention_layernorm"]}
        | {"parallelism.strategy": "fsdp2", "parallelism.reduce_dtype": "float32", "parallelism.last_stays": True},
    ),
    "all weights": ([FULL], {"tuning": None, "lora.r": None, "lora.dtype": None, "parameter_dtype": "bfloat16"}),
    "adapters beside all": (
        [(r"target_modules: '\*_proj'", "match_all_linear: true")],
        {"lora.targets": "all-linear"},
    ),
    "adapters by names": (
        [(r"'\*_proj'", "['*.q_proj', '*.v_proj']")],
        {"lora.targets": ["q_proj", "v_proj"]},
    ),
    "a loss that makes no logits": (
        [("masked_ce.MaskedCrossEntropy", "linear_ce.FusedLinearCrossEntropy")],
        {"loss": "fused", "fused_kernels": ["rms_norm", "cut_cross_entropy"], "outputs_kept": None},
    ),
    "rows that are filled up": (
        [("packed_sequence_size: 0", "packed_sequence_size: 4096")],
        {"sequence_length": 4096, "padding_free": True, "attention": "flash"},
    ),
    "rows as long as their data": ([("  padding: max_length\n", "")], {"sequence_bound": True}),
    "DDP": ([("strategy: fsdp2", "strategy: ddp")], {"parallelism.strategy": "ddp", "compute_dtype": "bfloat16"}),
    "wide weights": (
        [("SmolLM2-135M\n", "SmolLM2-135M\n  torch_dtype: float32\n"), FULL],
        {"parameter_dtype": "float32", "compute_dtype": "bfloat16"},
    ),
    "transformers' own code, with Liger's kernels": (
        [("SmolLM2-135M\n", "SmolLM2-135M\n  force_hf: true\n")],
        {"fused_kernels": ["rotary", "rms_norm", "swiglu"], "checkpointing_modules": None},
    ),
    "a recipe by its class": (
        [("recipe: Train\\w+", "recipe: {_target_: nemo_automodel.recipes.llm.train_ft.X}")],
        {"tuning": "lora"},
    ),
}


@pytest.mark.parametrize(("changes", "facts"), FACTS.values(), ids=FACTS)
def test_what_keys_mean(changes: list[tuple[str, str]], facts: dict[str, Any]) -> None:
    spec = run(*changes, devices=8)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]


UNKNOWN: dict[str, tuple[str, str, str]] = {
    "another recipe": ("recipe: Train", "recipe: KnowledgeDistillation", "what it trains"),
    "another maker": ("from_pretrained", "from_config", "what it makes"),
    "degrees": ("tp_size: 1", "tp_size: 2", "divides this model"),
    "another sharing": ("strategy: fsdp2", "strategy: megatron_fsdp", "shares a run"),
    "compiled": ("compile:\n  enabled: false", "compile:\n  enabled: true", "compiled"),
    "checkpointing by operations": ("checkpointing: true", "checkpointing: selective", "what it keeps"),
    "another loss": ("masked_ce.MaskedCrossEntropy", "te_parallel_ce.TEParallelCrossEntropy", "what it keeps"),
    "another optimizer": ("torch.optim.Adam", "flashoptim.FlashAdamW", "how many states"),
    "adapters that are left out": (r"\*lm_head\*", r"*.q_proj", "without adapters"),
    "adapters by other names": (r"'\*_proj'", "'*.c_attn'", "target_modules"),
    "experts": ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-30B-A3B", "own code"),
    "no length": ("  seq_length: 512\n", "", "seq_length"),
}


@pytest.mark.parametrize(("old", "new", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_described_is_unknown(old: str, new: str, reason: str) -> None:
    assert reason in str(run((old, new)).unknown_reason)


# docs/guides/gradient-checkpointing.mdx at 36044ad: Llama 3.2 1B, 8 rows of 2,048 tokens, eight H100.
LLAMA = ("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.2-1B")
ROWS = [LLAMA, FULL, ("local_batch_size: 4", "local_batch_size: 8"), ("seq_length: 512", "seq_length: 2048")]
PUBLISHED = {
    "FSDP2": ([("activation_checkpointing: true", "activation_checkpointing: false")], 47.59),
    "and checkpointing": ([], 33.06),
    "and no logits": ([("masked_ce.MaskedCrossEntropy", "linear_ce.FusedLinearCrossEntropy")], 7.30),
}


@pytest.mark.parametrize(("changes", "gib"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_peaks(changes: list[tuple[str, str]], gib: float) -> None:
    spec = run(*ROWS, *changes, devices=8)
    assert estimate_spec(spec).allocated_bytes / GIB == pytest.approx(gib, rel=0.1)
