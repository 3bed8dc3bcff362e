"""Decoders of other training libraries: the static step against torch models that compute as those do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from memlint.architectures import gpt2
from memlint.facts.spec import TrainingSpec
from memlint.meta import checkpoint
from tests.architectures.counting import llama_of
from tests.differential import implementations
from tests.differential.implementations import (
    immediate_loss,
    litgpt_pretraining_loss,
    nanogpt_reference,
    reference,
    twin_reference,
)
from tests.differential.test_adapters import Thirds
from tests.differential.test_language_models import SIZES, TOLERANCE, Setting, adamw, spec_of
from tests.differential.training import compare, in_meta, in_torch

CONFIG: dict[str, Any] = {"model_type": "llama", **SIZES, "max_position_embeddings": 256}
LIBRARIES = ("torchtune", "torchtitan", "litgpt")
CHUNKED = ("torchtune", "litgpt")

# A name -> the setting, selective checkpointing, chunks of the loss.
WAYS: dict[str, tuple[Setting, bool, int]] = {
    "in bfloat16": (Setting(dtype="bfloat16"), False, 0),
    "in fp32": (Setting(rows=3, length=50), False, 0),
    "with checkpointing": (Setting(dtype="bfloat16", every=1), False, 0),
    "every second layer checkpointed, in chunks": (Setting(dtype="bfloat16", every=2, accumulation=2), False, 8),
    "in chunks of rows longer than a piece": (Setting(dtype="bfloat16", length=200, optimizer="fused"), False, 8),
    "keeping every other product": (Setting(dtype="bfloat16", every=1), True, 0),
}


def spec(name: str, setting: Setting, selective: bool, chunks: int, **more: Any) -> TrainingSpec:
    facts = {**setting.facts(CONFIG), "implementation": name, "loss": "chunked" if chunks else "full"}
    if selective:
        facts["checkpointing"] = "selective"
    facts |= {"loss_chunks": chunks, **more}
    return spec_of({"decoder": llama_of(name, facts["hyperparameters.config"]), **facts})


RUNS = [(name, way) for name in LIBRARIES for way, (_, _, chunks) in WAYS.items() if name in CHUNKED or not chunks]


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_each_library_takes_the_memory_that_its_way_to_compute_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, selective, chunks = WAYS[way]
    monkeypatch.setattr("memlint.models.language.EVERY_OTHER_PRODUCT", checkpoint.Policy(2, attention=False))
    ours = in_meta(spec(name, setting, selective, chunks))
    model = reference(name, CONFIG, setting, False, selective, chunks)
    truth = in_torch(model, {}, adamw(setting.optimizer), setting.accumulation)
    comparison = compare(f"{name} {way}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("release", ["0.4.0", "0.7.0.dev20250601"])
@pytest.mark.parametrize("way", ["in bfloat16", "with checkpointing"])
def test_the_norm_of_other_releases_of_torchtune_scales_what_is_rounded(
    release: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, _, _ = WAYS[way]
    monkeypatch.setattr(implementations, "CastNorm", implementations.RoundedNorm)
    ours = in_meta(spec("torchtune", setting, False, 0, implementation_version=release))
    truth = in_torch(reference("torchtune", CONFIG, setting, False, False, 0), {}, adamw(setting.optimizer))
    comparison = compare(f"torchtune {release} {way}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("way", ["in bfloat16", "with checkpointing"])
def test_torchtunes_qwen3_norms_what_it_rotates_by_halves(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, _, _ = WAYS[way]
    monkeypatch.setattr(implementations, "TorchtuneAttention", implementations.TorchtuneNormedAttention)
    monkeypatch.setattr(implementations, "Rotation", implementations.HalvesRotation)
    monkeypatch.setattr(implementations, "CastNorm", implementations.RoundedNorm)
    given = spec("torchtune", setting, False, 0, implementation_version="0.7.0.dev20250601")
    described = given["decoder"]._replace(rotary="half", query_norm="head_after")
    ours = in_meta(given.replaced({"decoder": described}))
    truth = in_torch(reference("torchtune", CONFIG, setting, False, False, 0), {}, adamw(setting.optimizer))
    comparison = compare(f"torchtune's Qwen 3 {way}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in bfloat16", "under autocast"])
def test_litgpts_pretraining_makes_no_copy_of_its_logits(autocast: str) -> None:
    setting = Setting(dtype="float32" if autocast else "bfloat16", autocast=autocast, rows=3, length=50)
    ours = in_meta(spec("litgpt", setting, False, 0, packing=True))
    model = reference("litgpt", CONFIG, setting, False, False, 0)
    model.training_loss = litgpt_pretraining_loss
    truth = in_torch(model, {}, adamw(setting.optimizer), autocast=autocast or "float32")
    comparison = compare(f"litgpt {setting}", ours, truth)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)


@pytest.mark.parametrize("thirds", [("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj")], ids=["two", "three"])
@pytest.mark.parametrize("groups", [2, 8], ids=["of grouped heads", "of equal size"])
def test_litgpts_one_product_keeps_what_its_adapter_makes_of_its_thirds(thirds: tuple[str, ...], groups: int) -> None:
    config = {**CONFIG, "num_key_value_heads": groups}
    setting = Setting(dtype="bfloat16", length=200)
    facts = {
        "tuning": "lora",
        "lora.r": 4,
        "lora.targets": thirds,
        "lora.dtype": "bfloat16",
        "frozen_dtype": "bfloat16",
    }
    ours = in_meta(spec("litgpt", setting, False, 2, **{**facts, "hyperparameters.config": config}))
    base = reference("litgpt", config, setting, False, False, 2)

    def build_model(given: Any) -> Any:
        model = base.build_model(given).requires_grad_(False)
        torch.set_default_dtype(torch.bfloat16)
        for layer in model.layers:
            adapted = tuple(third in thirds for third in ("q_proj", "k_proj", "v_proj"))
            sizes = tuple(layer.attention.sizes)
            layer.attention.qkv = Thirds(sizes, adapted, 0.0, config["hidden_size"])
        torch.set_default_dtype(torch.float32)
        return model

    model = SimpleNamespace(build_model=build_model, make_batch=base.make_batch, training_loss=base.training_loss)
    comparison = compare(f"{thirds} {groups}", ours, in_torch(model, {}, adamw(setting.optimizer)))
    assert comparison.worst <= TOLERANCE, str(comparison)


class Directed(torch.nn.Module):
    """A frozen linear layer whose rows are given another length, by the steps of torchtune's DoRA."""

    def __init__(self, base: torch.nn.Linear, dropout: float) -> None:
        super().__init__()
        outputs, inputs = base.weight.shape
        self.base = base.requires_grad_(False)
        self.first, self.second = torch.nn.Linear(inputs, 4, bias=False), torch.nn.Linear(4, outputs, bias=False)
        self.magnitude, self.dropout = torch.nn.Parameter(torch.empty(outputs)), torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frozen = self.base(x)
        x = self.dropout(x)
        adapted = self.second(self.first(x))
        identity = torch.eye(self.first.weight.shape[1], dtype=x.dtype)
        product = self.second(self.first(identity)).T
        whole = self.base.weight + 2.0 * product.detach()
        norm = torch.linalg.norm(whole, dim=1).to(whole.dtype).detach()
        del whole
        scale = (self.magnitude / norm).view(1, -1)
        moved = (scale - 1) * frozen + scale * adapted * 2.0
        return moved + frozen


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["without dropout", "with dropout"])
@pytest.mark.parametrize("way", ["in bfloat16", "with checkpointing"])
def test_torchtunes_dora_names_all_that_it_makes(way: str, dropout: float) -> None:
    setting, _, _ = WAYS[way]
    facts = {"tuning": "dora", "lora.r": 4, "lora.dropout": dropout, "lora.dtype": "bfloat16"}
    facts |= {"lora.targets": ["v_proj", "down_proj"], "frozen_dtype": "bfloat16"}
    ours = in_meta(spec("torchtune", setting, False, 0, **facts))
    base = reference("torchtune", CONFIG, setting, False, False, 0)

    def build_model(given: Any) -> Any:
        model = base.build_model(given).requires_grad_(False)
        torch.set_default_dtype(torch.bfloat16)
        for layer in model.layers:
            layer.attention.v = Directed(layer.attention.v, dropout)
            layer.perceptron.down = Directed(layer.perceptron.down, dropout)
        torch.set_default_dtype(torch.float32)
        return model

    model = SimpleNamespace(build_model=build_model, make_batch=base.make_batch, training_loss=base.training_loss)
    truth = in_torch(model, {}, adamw(setting.optimizer))
    comparison = compare(f"{way} {dropout}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)


def test_packed_rows_look_up_their_places_in_a_table() -> None:
    """Two tables of (B, S, d / 2, 2) fp32 numbers per layer are kept; flex_attention keeps what flash does, without
    the two numbers of its random state (16 and 8 bytes)."""
    setting = Setting(dtype="bfloat16")
    plain = in_meta(spec("torchtune", setting, False, 0))
    packed = in_meta(spec("torchtune", setting, False, 0, packing=True))
    layers, head = CONFIG["num_hidden_layers"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    tables = 2 * setting.rows * setting.length * head * 4
    assert packed.saved - plain.saved == layers * (tables - 24)


def test_a_selectively_checkpointed_layer_keeps_every_other_product_and_attention() -> None:
    """The layer's input; the products for queries, values, gate and down; attention's result and its row sums."""
    setting = Setting(dtype="bfloat16", every=1)
    full = in_meta(spec("torchtitan", setting, False, 0))
    selective = in_meta(spec("torchtitan", setting, True, 0))
    tokens, width = setting.rows * setting.length, CONFIG["hidden_size"]
    heads = CONFIG["num_attention_heads"]
    values = width // heads * CONFIG["num_key_value_heads"]
    kept = tokens * (3 * width + values + CONFIG["intermediate_size"]) * 2 + tokens * heads * 4 + 24
    assert selective.saved - full.saved == CONFIG["num_hidden_layers"] * kept


@pytest.mark.parametrize("way", ["in bfloat16", "with checkpointing", "keeping every other product"])
def test_the_one_product_for_queries_keys_and_values(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torchtitan 0.3. Heads of keys are as many as of queries: grouping is left to SDPA."""
    config = {**CONFIG, "num_key_value_heads": CONFIG["num_attention_heads"]}
    setting, selective, _ = WAYS[way]
    monkeypatch.setattr(implementations, "TorchtitanAttention", implementations.TorchtitanJoinedAttention)
    monkeypatch.setattr("memlint.models.language.EVERY_OTHER_PRODUCT", checkpoint.Policy(2, attention=False))
    facts = {"implementation_version": "0.3", "hyperparameters.config": config}
    ours = in_meta(spec("torchtitan", setting, selective, 0, **facts))
    truth = in_torch(reference("torchtitan", config, setting, False, selective, 0), {}, adamw(setting.optimizer))
    comparison = compare(f"{way}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)


def test_a_compiled_layer_does_not_keep_a_product_that_nothing_reads() -> None:
    setting = Setting(dtype="bfloat16", every=1)
    eager = in_meta(spec("torchtitan", setting, True, 0))
    compiled = in_meta(spec("torchtitan", setting, True, 0, compile=True, compile_loss=False))
    tokens = setting.rows * setting.length
    down = tokens * CONFIG["hidden_size"] * 2
    assert eager.saved - compiled.saved == CONFIG["num_hidden_layers"] * down


NANOGPT = {
    "model_type": "gpt2", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "activation_function": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in fp32", "under autocast"])
@pytest.mark.parametrize("bias", [True, False], ids=["with biases", "without biases"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["without dropout", "with dropout"])
def test_nanogpt_takes_the_memory_that_its_way_to_compute_takes(autocast: str, bias: bool, dropout: float) -> None:
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
    setting = Setting(autocast=autocast, rows=3, accumulation=2)
    facts = {**setting.facts({**NANOGPT, **dropouts, "bias": bias}), "implementation": "nanogpt"}
    truth = in_torch(
        nanogpt_reference(NANOGPT, setting, bias, dropout), {}, adamw("foreach"), 2, autocast=autocast or "float32"
    )
    comparison = compare(f"nanogpt {setting}", in_meta(spec_of(facts)), truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("flash", [True, False], ids=["by one kernel", "by scores that are written out"])
@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in fp32", "under autocast"])
def test_llm_c_s_twin_writes_out_what_nanogpt_leaves_to_kernels(autocast: str, flash: bool) -> None:
    setting = Setting(autocast=autocast, rows=3, accumulation=2)
    made = gpt2.gpt2(3, 4, 128, 64, 1000, activation="gelu_new")
    facts = {**setting.facts({}), "decoder": made, "implementation": "llm_c", "attention": "sdpa" if flash else "eager"}
    truth = in_torch(twin_reference(NANOGPT, setting, flash), {}, adamw("foreach"), 2, autocast=autocast or "float32")
    comparison = compare(f"llm.c {setting}", in_meta(spec_of(facts)), truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("rows", [1, 3])
def test_each_chunk_of_torchtitans_loss_is_done_with_before_the_next(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of keys are as many as of queries: grouping is left to SDPA, which other tests compare. What is kept
    differs in name: the head's gradient is there before the backward pass, which we let hand it out."""
    config = {**CONFIG, "num_key_value_heads": CONFIG["num_attention_heads"], "vocab_size": 20_000}
    setting = Setting(dtype="bfloat16", rows=rows, length=160, optimizer="fused")
    monkeypatch.setattr(implementations, "TorchtitanAttention", implementations.TorchtitanJoinedAttention)
    made = spec("torchtitan", setting, False, 4, implementation_version="0.3", **{"hyperparameters.config": config})
    model = reference("torchtitan", config, setting, False, False, 4)
    model.training_loss = immediate_loss
    ours, truth = in_meta(made), in_torch(model, {}, adamw("fused"))
    comparison = compare(f"{rows} rows", ours, truth, checkpointed=True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)
    assert ours.saved - truth.saved == config["vocab_size"] * config["hidden_size"] * 2
