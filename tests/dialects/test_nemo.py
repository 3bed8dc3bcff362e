"""Family nemo: language models as Megatron's, and the key facts of what is none."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.architectures.decoder import Decoder
from memlint.dialects import objections
from memlint.dialects.spelling import spell
from memlint.estimates import record
from memlint.facts.spec import DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs

HYPER = "hyperparameters."

GPT = """\
name: small_gpt
trainer:
  devices: 8
  num_nodes: 2
  accelerator: gpu
  precision: bf16
exp_manager:
  exp_dir: null
model:
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 16
  hidden_dropout: 0.0
  attention_dropout: 0.0
  megatron_amp_O2: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  tokenizer:
    library: megatron
    type: GPT2BPETokenizer
  data:
    seq_length: ${model.encoder_seq_length}
    num_workers: 4
  optim:
    name: fused_adam
"""

PRODUCT = GPT.replace("8192", "${multiply:4, ${.hidden_size}}")

SPEECH = """\
name: FastConformer-small
trainer:
  devices: -1
  precision: 16-mixed
model:
  train_ds:
    manifest_filepath: ???
    batch_size: 24
    num_workers: 6
  validation_ds:
    batch_size: 8
  encoder:
    d_model: 256
  optim:
    name: adamw
"""


def changed(old: str, new: str) -> TrainingSpec:
    assert old in GPT
    return run(GPT.replace(old, new), "gpt.yaml")


@pytest.mark.parametrize(
    ("path", "text", "known"),
    [
        pytest.param("a.yaml", GPT, True, id="a language model"),
        pytest.param("a.yaml", SPEECH, True, id="a speech model"),
        pytest.param("a.yaml", "trainer: {}\nmodel: {}\nexp_manager: {}\n", True, id="its three sections"),
        pytest.param("a.yaml", "trainer: {max_epochs: 1}\nmodel: {lr: 1}\n", False, id="Lightning alone"),
        pytest.param("a.yaml", "model: {hidden_size: 1, num_layers: 2}\n", False, id="a model alone"),
        pytest.param(
            "a.sh",
            "python examples/megatron_gpt_pretraining.py model.micro_batch_size=1\n",
            True,
            id="a program of NeMo",
        ),
        pytest.param("a.sh", "python text_classification.py model.batch=1\n", False, id="another program"),
    ],
)
def test_recognition(path: str, text: str, known: bool) -> None:
    assert ("nemo" in [spec.family for spec in runs(text, path)]) == known


def test_a_language_model() -> None:
    spec = run(GPT, "gpt.yaml")
    expected = {
        "implementation": "megatron",
        "micro_batch_size": 2,
        "global_batch_size": 64,
        "gradient_accumulation_steps": 4,
        "sequence_length": 2048,
        "device_count": 16,
        "machines": 2,
        "parallelism.tensor": 2,
        "parallelism.data": 8,
        "parallelism.strategy": "ddp",
        "parameter_dtype": "bfloat16",
        "gradient_dtype": "float32",
        "master_weights": True,
        "optimizer": "adamw",
        "optimizer_library": "apex",
        "optimizer_implementation": "fused",
        "checkpointing": "full",
        "attention": "eager",
        "vocabulary_size": 50432,
        "packing": True,
        "ema": False,
        "workers": 4,
    }
    assert {name: spec.get(name) for name in expected} == expected
    decoder: Decoder = spec["decoder"]
    assert (decoder.width, decoder.intermediate, decoder.positions, decoder.norm) == (2048, 8192, 2048, "layer")
    assert (spec.architecture, spec.unknown_reason, spec.model_name) == ("language_model", "", "24 layers of 2048")
    assert line_of(spec, "checkpointing") == "activations_checkpoint_granularity: full"
    assert line_of(spec, "device_count") == "devices: 8"


def test_a_product_that_nemo_s_resolver_makes_is_the_number_itself() -> None:
    spec, plain = run(PRODUCT, "gpt.yaml"), run(GPT, "gpt.yaml")
    assert {name: fact.value for name, fact in spec.facts.items()} == {
        name: fact.value for name, fact in plain.facts.items()
    }


def test_another_resolver_is_not_followed_and_says_so() -> None:
    spec = run(PRODUCT.replace("multiply", "as_many_as"), "gpt.yaml")
    assert [item.key for item in spec.missing] == ["model.ffn_hidden_size"]
    assert spec.unknown_reason == "model.ffn_hidden_size is not known: the resolver as_many_as is not run"


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("megatron_amp_O2: true", "megatron_amp_O2: false", "autocast", True, id="autocast without O2"),
        pytest.param("megatron_amp_O2: true", "bias: true", "parameter_dtype", "float32", id="O2 is off by default"),
        pytest.param("precision: bf16", "precision: 16", "loss_scaling", "dynamic", id="float16 is scaled"),
        pytest.param("precision: bf16", "precision: 32", "compute_dtype", "float32", id="full precision"),
        pytest.param(
            "precision: bf16", "precision: bf16-mixed", "compute_dtype", "bfloat16", id="Lightning's newer name"
        ),
        pytest.param(
            "name: fused_adam", "name: distributed_fused_adam", "parallelism.zero_stage", 2, id="apex divides"
        ),
        pytest.param(
            "name: fused_adam", "name: mcore_distributed_optim", "parallelism.zero_stage", 1, id="Megatron divides"
        ),
        pytest.param("devices: 8", "devices: [0, 1]", "device_count", 4, id="a list of devices"),
        pytest.param("encoder_seq_length: 2048", "encoder_seq_length: 512", "sequence_length", 512, id="tokens"),
        pytest.param(
            "  num_layers: 24", "  num_layers: 24\n  use_flash_attention: true", "attention", "flash", id="flash"
        ),
        pytest.param(
            "  num_layers: 24", "  num_layers: 24\n  mcore_gpt: true", "attention", "flash", id="Megatron core"
        ),
        pytest.param("  num_layers: 24", "  num_layers: 24\n  fsdp: true", "parallelism.strategy", "fsdp1", id="FSDP"),
        pytest.param(
            "granularity: full",
            "granularity: selective",
            "checkpointing",
            "selective",
            id="attention's scores recomputed",
        ),
        pytest.param("num_layers: 1\n", "num_layers: 2\n", "checkpointing_chunk", 2, id="chunks of two layers"),
        pytest.param(
            "pipeline_model_parallel_size: 1",
            "pipeline_model_parallel_size: 2",
            "parallelism.schedule",
            "1f1b",
            id="a pipeline",
        ),
        pytest.param("exp_dir: null", "ema: {enable: true}", "ema", True, id="a moving average"),
        pytest.param(
            "  num_layers: 24", "  num_layers: 24\n  override_vocab_size: 512", "vocabulary_size", 512, id="rows"
        ),
    ],
)
def test_keys(old: str, new: str, fact: str, value: Any) -> None:
    assert changed(old, new)[fact] == value


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            "normalization: rmsnorm\n  activation: fast-swiglu\n  position_embedding_type: rope\n  bias: false\n"
            "  num_query_groups: 4\n  share_embeddings_and_output_weights: false",
            {"norm": "rms", "key_value_heads": 4, "tied": False, "perceptron_bias": False},
            id="Llama",
        ),
        pytest.param("position_embedding_type: rope", {"norm": "layer", "rotary": "half"}, id="rotary positions"),
    ],
)
def test_models(lines: str, expected: dict[str, Any]) -> None:
    decoder: Decoder = changed("  num_layers: 24", "  num_layers: 24\n  " + lines)["decoder"]
    assert {name: getattr(decoder, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param("micro_batch_size: 2\n", "seed: 1\n", "model.micro_batch_size is not stated", id="no batch"),
        pytest.param("  hidden_size: 2048", "", "model.hidden_size is not stated", id="no width"),
        pytest.param("global_batch_size: 64", "global_batch_size: 60", "is no multiple of", id="uneven batches"),
        pytest.param(
            "tensor_model_parallel_size: 2", "tensor_model_parallel_size: 3", "no multiple of 3", id="degrees"
        ),
        pytest.param(
            "  num_layers: 24", "  num_layers: 24\n  fp8: true", "without Transformer Engine", id="float8 of no engine"
        ),
        pytest.param("  num_layers: 24", "  num_layers: 24\n  num_moe_experts: 4", "num_moe_experts", id="experts"),
        pytest.param("precision: bf16", "precision: 64-true", "trainer.precision 64-true is not known", id="precision"),
        pytest.param(
            "  num_layers: 24",
            "  num_layers: 24\n  peft: {peft_scheme: lora}",
            "peft_scheme lora is not known",
            id="LoRA",
        ),
        pytest.param(
            "type: GPT2BPETokenizer",
            "type: Custom",
            "model.override_vocab_size is not stated, and how many rows Custom has is in its file",
            id="a vocabulary that is in a file",
        ),
        pytest.param("name: fused_adam", "lr: 1", "model.optim.name is not stated", id="no optimizer"),
    ],
)
def test_what_is_not_known_is_named(old: str, new: str, reason: str) -> None:
    spec = changed(old, new)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_speech_model_gives_its_key_facts() -> None:
    spec = run(SPEECH, "asr.yaml")
    expected = {
        "micro_batch_size": 24,
        "workers": 6,
        "compute_dtype": "float16",
        "autocast": True,
        "optimizer": "adamw",
        "gradient_accumulation_steps": 1,
        "implementation": None,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert (spec.architecture, spec.model_name) == (None, "FastConformer-small")
    assert spec.unknown_reason == "FastConformer-small is no language model that is known"
    assert spell(spec, "micro_batch_size", 1) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "srun python examples/asr/speech_to_text_ctc.py model.train_ds.batch_size=8\n",
            "check the YAML that --config-path and --config-name say",
            id="a config that Hydra composes",
        ),
        pytest.param(
            "torchrun nemo/collections/diffusion/train.py --factory big --yes\n",
            "recipe in Python (--factory), which is not run",
            id="a recipe in Python",
        ),
    ],
)
def test_a_command_says_where_its_config_is(text: str, reason: str) -> None:
    spec = run(text, "a.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param("num_layers: 24", "num_layers: [24]", "wrong-type", "model.num_layers", id="no number"),
        pytest.param(
            "method: uniform", "method: even", "unknown-value", "model.activations_checkpoint_method", id="word"
        ),
        pytest.param("micro_batch_size", "micro_batchsize", "unknown-key", "model.micro_batchsize", id="misspelt"),
    ],
)
def test_wrong_values_are_found_where_they_stand(old: str, new: str, kind: str, key: str) -> None:
    spec = changed(old, new)
    assert [(one.kind, one.node.key_path) for one in objections.violations(spec)] == [(kind, key)]


def test_defaults_say_whose_they_are() -> None:
    spec = run(GPT, "gpt.yaml")
    for name in ("parallelism.context", HYPER + "normalization"):
        assert (spec.facts[name].origin, spec.facts[name].reason) == (DEFAULT, "NeMo 1.23")


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        pytest.param("micro_batch_size", 1, "micro_batch_size: 1", id="a smaller micro batch"),
        pytest.param("attention", "flash", "use_flash_attention: true", id="attention in one kernel"),
        pytest.param("parallelism.tensor", 4, "tensor_model_parallel_size: 4", id="another degree"),
        pytest.param("sequence_length", 1024, "encoder_seq_length: 1024", id="shorter samples"),
    ],
)
def test_fixes(fact: str, value: Any, text: str) -> None:
    after = apply_edits(GPT, spell(run(GPT, "gpt.yaml"), fact, value))
    assert text in after
    assert run(after, "gpt.yaml")[fact] == value


def test_recomputation_takes_three_keys() -> None:
    kept = "\n".join(line for line in GPT.splitlines() if "activations_checkpoint" not in line) + "\n"
    spec = run(kept, "gpt.yaml")
    assert spec["checkpointing"] == "none"
    after = apply_edits(kept, spell(spec, "checkpointing", "full"))
    assert run(after, "gpt.yaml")["checkpointing"] == "full"
    for line in ("granularity: full", "method: uniform", "num_layers: 1"):
        assert f"activations_checkpoint_{line}" in after


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("gradient_accumulation_steps", 2, id="steps follow from the global batch"),
        pytest.param("optimizer", "adamw_8bit", id="an optimizer that NeMo has not"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(GPT, "gpt.yaml"), fact, value) == []


def test_products_in_float8_are_transformer_engine_s() -> None:
    spec = changed("  num_layers: 24", "  num_layers: 24\n  fp8: true\n  transformer_engine: true")
    assert (spec.unknown_reason, spec["float8"]) == ("", True)


LLAMA_2_7B = """\
trainer: {devices: 8, num_nodes: 1, precision: bf16}
exp_manager: {exp_dir: null}
model:
  micro_batch_size: 1
  global_batch_size: 8
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  override_vocab_size: 32000
  megatron_amp_O2: true
  optim: {name: fused_adam}
"""


def test_the_sizes_of_a_published_model_have_the_parameters_of_its_weights() -> None:
    assert record(run(LLAMA_2_7B, "megatron_gpt_config.yaml")).parameters == 6_738_415_616
