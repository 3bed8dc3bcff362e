"""Family gpt-neox: config files that a run merges, keys with dashes and underscores alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.architectures.decoder import Decoder
from memlint.dialects import objections, registry
from memlint.dialects.gpt_neox import perceptron_width
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.models import record
from tests.dialects.language_models import line_of, run, runs, written

HYPER = "hyperparameters."

CONFIG = """\
# A decoder of the size of Pythia's 1.4 billion.
{
  "pipe_parallel_size": 0,
  "model_parallel_size": 1,

  # the model
  "num_layers": 24,
  "hidden_size": 2048,
  "num_attention_heads": 16,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "pos_emb": "rotary",
  "rotary_pct": 0.25,
  "no_weight_tying": true,
  "gpt_j_residual": true,
  "attention_config": [[["flash"], 24]],

  "optimizer": {"type": "Adam", "params": {"lr": 0.0002}},
  "zero_optimization": {
    "stage": 1,
    "reduce_bucket_size": 200000000,
    "overlap_comm": True,
  },

  "train_micro_batch_size_per_gpu": 16,
  "gradient_accumulation_steps": 2,
  "checkpoint_activations": true,
  "fp16": {"enabled": true, "loss_scale": 0},
  "num_gpus": 8,
  "vocab_file": "data/20B_tokenizer.json",
  "tokenizer_type": "HFTokenizer",
}
"""


def with_lines(*lines: str, without: str = "") -> TrainingSpec:
    """The config with further lines, which go before, and without the line that holds a text."""
    kept = [line for line in CONFIG.splitlines() if not without or without not in line]
    return run("\n".join([*kept[:-1], *(line + "," for line in lines), "}"]) + "\n", "pythia.yml")


def decoder(spec: TrainingSpec) -> dict[str, Any]:
    found: Decoder = spec["decoder"]
    return found._asdict()


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param("pipe_parallel_size: 1", True, id="the pipeline alone is enough"),
        pytest.param("pipe-parallel-size: 1", True, id="with dashes"),
        pytest.param(
            "{num_layers: 2, hidden_size: 4, train_micro_batch_size_per_gpu: 1}", True, id="a model and a batch"
        ),
        pytest.param("{num_layers: 2, hidden_size: 4}", False, id="a model alone"),
        pytest.param("{zero_optimization: {stage: 1}}", False, id="DeepSpeed's own"),
        pytest.param("{data_path: x, vocab_file: y}", False, id="paths say nothing"),
    ],
)
def test_recognition(text: str, known: bool) -> None:
    found = [spec.family for spec in runs(text + "\n", "a.yml")]
    assert ("gpt-neox" in found) == known
    assert len(found) <= 1


def test_a_whole_file() -> None:
    spec = run(CONFIG, "pythia.yml")
    expected = {
        "implementation": "neox",
        "micro_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "sequence_length": 2048,
        "vocabulary_size": 50304,  # 50277 rows, padded to a multiple of 128
        "parameter_dtype": "float16",
        "compute_dtype": "float16",
        "gradient_dtype": "float16",
        "master_weights": True,
        "autocast": False,
        "loss_scaling": "dynamic",
        "optimizer": "adamw",
        "optimizer_library": "apex",
        "optimizer_implementation": "fused",
        "checkpointing": "full",
        "attention": "flash",
        "device_count": 8,
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 1,
        "parallelism.shard": 8,
        "parallelism.pipeline": 1,
        "parallelism.reduce_bucket_elements": 200_000_000,
        "parallelism.gather_bucket_elements": 500_000_000,
        "parallelism.overlap": True,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert spec["decoder"] == Decoder(
        vocabulary=50304,
        width=2048,
        layers=24,
        heads=16,
        key_value_heads=16,
        head_dim=128,
        intermediate=8192,
        norm="layer",
        residual="parallel_two",
        rotary="partial",
        rotary_dim=32,
        perceptron="fc1 fc2",
        activation="gelu",
        qkv_bias=True,
        output_bias=True,
        perceptron_bias=True,
    )
    assert (spec.architecture, spec.unknown_reason, spec.model_name) == ("language_model", "", "24 layers of 2048")
    assert line_of(spec, "checkpointing") == '"checkpoint_activations": true,'
    assert line_of(spec, "parallelism.strategy") == '"stage": 1,'
    assert line_of(spec, "attention") == '"attention_config": [[["flash"], 24]],'


def test_pythia_s_weights() -> None:
    assert record(run(CONFIG, "pythia.yml").with_facts(device_count=1)).parameters == 1_414_647_808


def test_dashes_and_underscores_are_the_same() -> None:
    top = set(load("a.yml", CONFIG).root.plain())
    text = CONFIG
    for name in top:
        text = text.replace(f'"{name}"', f'"{name.replace("_", "-")}"')
    assert '"checkpoint-activations"' in text
    one, other = run(CONFIG, "a.yml"), run(text, "a.yml")
    assert {name: fact.value for name, fact in one.facts.items()} == {
        name: fact.value for name, fact in other.facts.items()
    }
    assert other.facts["micro_batch_size"].key == "train-micro-batch-size-per-gpu"


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        pytest.param('"precision": "bfloat16"', "parameter_dtype", "bfloat16", id="precision goes before the blocks"),
        pytest.param('"precision": "bfloat16"', "gradient_dtype", "float32", id="bf16 accumulates in fp32"),
        pytest.param('"data_types": {"grad_accum_dtype": "fp32"}', "gradient_dtype", "float32", id="as it is stated"),
        pytest.param('"fp16": {"enabled": true, "type": "bfloat16"}', "compute_dtype", "bfloat16", id="fp16 of a type"),
        pytest.param('"bf16": {"enabled": true}', "compute_dtype", "bfloat16", id="a block of its own"),
        pytest.param('"fp16": {"enabled": true, "loss_scale": 64}', "loss_scaling", 64, id="a fixed loss scale"),
        pytest.param('"precision": "fp32"', "master_weights", False, id="fp32 has no copies"),
        pytest.param('"model_parallel_size": 2', "parallelism.data", 4, id="what model parallelism leaves"),
        pytest.param('"model_parallel_size": 2', "vocabulary_size", 50432, id="padded for both devices"),
        pytest.param('"pipe_parallel_size": 2', "parallelism.schedule", "1f1b", id="a pipeline has a schedule"),
        pytest.param(
            '"pipe_parallel_size": 1', "parallelism.buffered_outputs", "float16", id="one stage is a pipeline"
        ),
        pytest.param('"pipe_parallel_size": 0', "parallelism.buffered_outputs", None, id="and none is not"),
        pytest.param('"num_nodes": 2', "device_count", 16, id="two machines"),
        pytest.param('"checkpoint_num_layers": 2', "checkpointing_chunk", 2, id="chunks of two layers"),
        pytest.param('"checkpoint_activations": false', "checkpointing", "none", id="nothing recomputed"),
        pytest.param('"attention_config": [[["global"], 24]]', "attention", "eager", id="global attention is eager"),
        pytest.param(
            '"attention_config": [[["global", "local"], 12]]', "attention", "global, local", id="two kinds of attention"
        ),
        pytest.param('"rope_fusion": true', "fused_kernels", ["rotary"], id="rotation in one kernel"),
        pytest.param('"checkpoint_in_cpu": true', "activation_offloading", True, id="kept in host memory"),
        pytest.param('"optimizer": {"type": "Lion"}', "optimizer", "lion", id="another optimizer"),
        pytest.param('"zero_optimization": {"stage": 0}', "parallelism.strategy", "ddp", id="nothing divided"),
        pytest.param(
            '"zero_optimization": {"stage": 2, "cpu_offload": true}',
            "parallelism.offload_optimizer",
            True,
            id="states in host memory",
        ),
        pytest.param('"num_workers": 4', "workers", 4, id="loader processes"),
        pytest.param('"padded_vocab_size": 1024', "vocabulary_size", 1024, id="rows as they are stated"),
    ],
)
def test_keys(line: str, fact: str, value: Any) -> None:
    spec = with_lines(line)
    assert spec.get(fact) == value


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ['"norm": "rmsnorm"', '"activation": "swiglu"', '"gpt_j_residual": false', '"rotary_pct": 1'],
            {"norm": "rms", "perceptron": "gated", "intermediate": 2730},
            id="a gate takes two thirds of four times the width",
        ),
        pytest.param(
            [
                *('"norm": "rmsnorm"', '"activation": "swiglu"', '"gpt_j_residual": false', '"rotary_pct": 1'),
                *('"intermediate_size": 16896', '"mlp_multiple_of": 256', '"num_kv_heads": 4'),
                *('"use_bias_in_attn_linear": false', '"use_bias_in_mlp": false'),
            ],
            {"intermediate": 5632, "key_value_heads": 4, "perceptron_bias": False},
            id="as LLaMA's configs state it",
        ),
        pytest.param(
            ['"pos_emb": "learned"', '"gpt_j_residual": false'], {"positions": 2048, "residual": "pre"}, id="GPT-2"
        ),
        pytest.param(['"no_weight_tying": false'], {"tied": True}, id="tied"),
        pytest.param(['"expansion_factor": 3'], {"intermediate": 6144}, id="a multiple of the width"),
        pytest.param(
            ['"use_bias_in_mlp": false'], {"qkv_bias": True, "perceptron_bias": False}, id="biases of attention alone"
        ),
        pytest.param(
            ['"pos_emb": "alibi"'], {"alibi": True, "embedding_norm": False}, id="ALiBi without BLOOM's first norm"
        ),
    ],
)
def test_models(lines: list[str], expected: dict[str, Any]) -> None:
    found = decoder(with_lines(*lines))
    assert {name: found.get(name) for name in expected} == expected


def test_llama_2_s_perceptron() -> None:
    assert perceptron_width(5120, True, 41472, 0.0, 256) == 13824


@pytest.mark.parametrize(
    ("lines", "without", "reason"),
    [
        pytest.param([], "train_micro", "train_micro_batch_size_per_gpu is not stated", id="no batch"),
        pytest.param([], '"seq_length"', "seq_length is not stated", id="no length"),
        pytest.param([], "hidden_size", "hidden_size is not stated", id="no width"),
        pytest.param(
            [], "num_gpus", "the number of devices that share the model is not stated; say --gpu", id="devices"
        ),
        pytest.param(
            ['"model_parallel_size": 3'], "", "share one copy of the model (model_parallel_size 3)", id="degrees"
        ),
        pytest.param(['"pos_emb": "rpe"'], "", "pos_emb rpe is not known", id="other positions"),
        pytest.param(['"train_impl": "dpo"'], "", "train_impl dpo: its loss", id="another loss"),
        pytest.param(['"train-impl": "rm"'], "", "train_impl rm: its loss", id="a head of one row"),
        pytest.param(['"norm": "scalenorm"'], "", "norm scalenorm is not known", id="another norm"),
        pytest.param(['"moe_num_experts": 4'], "", "GPT-NeoX's experts are not known", id="experts"),
        pytest.param(['"te_layernorm_mlp": true'], "", "Transformer Engine are not known", id="fused modules"),
        pytest.param(['"gpt_j_tied": true'], "", "gpt_j_tied", id="a shared norm"),
        pytest.param(['"optimizer": {"type": "sm3"}'], "", "optimizer.type sm3 is not known", id="an optimizer"),
        pytest.param(
            ['"tokenizer_type": "SPMTokenizer"', '"vocab_file": "a.model"'],
            "",
            "vocab_file a.model: how many rows it has is in its file, and padded_vocab_size is not stated",
            id="a vocabulary that is in a file",
        ),
    ],
)
def test_what_is_not_known_is_named(lines: list[str], without: str, reason: str) -> None:
    spec = with_lines(*lines, without=without)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("line", "kind", "key"),
    [
        pytest.param('"num_kv_heads": "two"', "wrong-type", "num_kv_heads", id="no number"),
        pytest.param('"num_workers": -1', "unknown-value", "num_workers", id="less than none"),
        pytest.param('"activation": "gelo"', "unknown-value", "activation", id="an unknown activation"),
        pytest.param('"partition_activation": true', "unknown-key", "partition_activation", id="a misspelt key"),
    ],
)
def test_wrong_values_are_found_where_they_stand(line: str, kind: str, key: str) -> None:
    spec = with_lines(line)
    assert [(one.kind, one.node.key_path) for one in objections.violations(spec)] == [(kind, key)]


def test_a_key_is_no_slip_of_one_that_holds_something_else() -> None:
    assert objections.violations(with_lines('"vocab_size": 50304')) == []


def test_defaults_say_whose_they_are() -> None:
    spec = with_lines(without="attention_config")
    for name in ("workers", "parallelism.context", HYPER + "hidden_dropout"):
        assert (spec.facts[name].origin, spec.facts[name].reason) == (DEFAULT, "GPT-NeoX 2.0")
    assert spec["attention"] == "eager"
    assert "GPT-NeoX 2.0" in spec.facts["attention"].reason


# ------------------------------------------------------------------------------------------------ several files

LOCAL = """\
# where we are
data-path: /data/pile
train-micro-batch-size-per-gpu: 4
vocab-file: /data/gpt2-vocab.json
tokenizer-type: GPT2BPETokenizer
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return written(
        tmp_path,
        {
            "configs/pythia.yml": CONFIG,
            "configs/local_setup.yml": LOCAL,
            "run.sh": "python ./deepy.py train.py -d configs pythia.yml local_setup.yml\n",
            "short.sh": "NAME=pythia\npython deepy.py train.py -d configs $NAME local_setup\n",
            "gone.sh": "python deepy.py train.py -d configs pythia.yml gone.yml\n",
            "none.sh": "python deepy.py train.py -d configs\n",
            "open.sh": "python deepy.py train.py -d configs $CONFIG\n",
        },
    )


@pytest.mark.parametrize("name", ["run.sh", "short.sh"], ids=["with a folder", "without suffixes"])
def test_a_command_merges_its_files_and_the_later_goes_before(repository: Path, name: str) -> None:
    (spec,) = registry.specs(load(str(repository / name)))
    assert (spec.family, spec.architecture) == ("gpt-neox", "language_model")
    assert spec["micro_batch_size"] == 4
    assert spec["vocabulary_size"] == 50304
    assert spec[HYPER + "num_layers"] == 24
    assert line_of(spec, "micro_batch_size") == "train-micro-batch-size-per-gpu: 4"
    assert line_of(spec, HYPER + "num_layers") == '"num_layers": 24,'
    paths = {Path(path).name for path in spec.document.sources}
    assert paths == {name, "pythia.yml", "local_setup.yml"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("gone.sh", "gone.yml", id="a file that is not there"),
        pytest.param("none.sh", "the command names no config file", id="no file at all"),
        pytest.param("open.sh", "CONFIG is not set in the script", id="a file that a variable names"),
    ],
)
def test_a_command_whose_files_are_not_known(repository: Path, name: str, reason: str) -> None:
    (spec,) = registry.specs(load(str(repository / name)))
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_deepy_starts_what_is_no_training_too(repository: Path) -> None:
    script = repository / "say.sh"
    script.write_text("python ./deepy.py ./generate.py -d configs pythia.yml local_setup.yml\n", encoding="utf-8")
    assert registry.specs(load(str(script))) == []


def test_a_text_whose_command_merges_files_of_the_walk_has_a_run_of_its_own(repository: Path) -> None:
    """None of the files is the run by itself, whatever else the text tells."""
    text = "# Start\n\n```sh\n{}\n```\n\nOr\n\n```sh\n{}\n```\n"
    merged = "python deepy.py train.py -d configs pythia.yml local_setup.yml"
    (repository / "README.md").write_text(text.format(merged, "python deepy.py train.py -d configs"), encoding="utf-8")
    assert "README.md" in {Path(run.path).name for run in memlint.check(str(repository)).runs}


def test_a_fix_goes_to_the_file_that_states_the_key(repository: Path) -> None:
    (spec,) = registry.specs(load(str(repository / "run.sh")))
    (edit,) = spell(spec, "micro_batch_size", 2)
    assert Path(edit.span.path).name == "local_setup.yml"
    assert "gpu: 2" in apply_edits(LOCAL, [edit])
    assert spell(spec, "workers", 1) == []  # which of the files would state it?


# ------------------------------------------------------------------------------------------------ fixes


@pytest.mark.parametrize(
    ("without", "fact", "value", "text"),
    [
        pytest.param("", "micro_batch_size", 8, '"train_micro_batch_size_per_gpu": 8', id="a smaller micro batch"),
        pytest.param("", "gradient_accumulation_steps", 4, '"gradient_accumulation_steps": 4', id="more steps"),
        pytest.param(
            "checkpoint_activations", "checkpointing", "full", "checkpoint_activations: true", id="recomputation"
        ),
        pytest.param("attention_config", "attention", "flash", "flash", id="attention in one kernel"),
        pytest.param("", "parallelism.zero_stage", 2, '"stage": 2', id="another stage"),
        pytest.param("", "parallelism.tensor", 2, '"model_parallel_size": 2', id="another degree"),
        pytest.param('"fp16"', "compute_dtype", "bfloat16", "bfloat16", id="16 bits"),
    ],
)
def test_fixes(without: str, fact: str, value: Any, text: str) -> None:
    before = with_lines(without=without)
    after = apply_edits(before.document.text, spell(before, fact, value))
    assert text in after
    assert run(after, "pythia.yml")[fact] == value


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("optimizer_implementation", "foreach", id="an optimizer of torch"),
        pytest.param("sequence_length", 4096, id="more tokens than positions"),
        pytest.param("parallelism.live_parameter_elements", 1, id="a bucket that the schema does not name"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(CONFIG, "a.yml"), fact, value) == []
