"""Family litgpt: finetuning and pretraining, in a file and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.data import hub
from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell, spell_each
from memlint.documents.load import load
from memlint.fixes.edits import apply_edits
from memlint.fixes.levers import batch_changes
from memlint.models import UnknownModel, record
from memlint.plugin import Run
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

DECODER = "decoder"
FULL = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
devices: 1
data:
  class_path: litgpt.data.JSON
train:
  global_batch_size: 32
  micro_batch_size: 4
  max_seq_length: 1024
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 0.0001
"""
LORA = FULL + "lora_r: 16\nlora_key: true\n"
SCRATCH = """\
model_name: pythia-160m
tokenizer_dir: checkpoints/EleutherAI/pythia-160m
devices: 2
train:
  global_batch_size: 64
  max_tokens: 1000000
"""
OWN = """\
model_config:
  name: small
  n_layer: 4
  n_embd: 256
  n_head: 8
  n_query_groups: 2
  head_size: 32
  vocab_size: 1000
  padding_multiple: 64
  block_size: 512
  intermediate_size: 700
  mlp_class_name: LLaMAMLP
  norm_class_name: RMSNorm
  bias: false
train: {global_batch_size: 8, micro_batch_size: 2}
devices: 1
"""


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", FULL, ["litgpt"], id="a finetuning file"),
        pytest.param("a.yaml", SCRATCH, ["litgpt"], id="a pretraining file"),
        pytest.param("a.yaml", OWN, ["litgpt"], id="sizes of one's own"),
        pytest.param("a.yaml", "checkpoint_dir: x\nseed: 1\n", [], id="a folder of checkpoints says nothing"),
        pytest.param("a.yaml", "train: {micro_batch_size: 1}\n", [], id="nor does a batch without a model"),
        pytest.param("a.sh", "litgpt finetune_lora google/gemma-2b --lora_r 4", ["litgpt"], id="the program"),
        pytest.param("a.sh", "python -m litgpt pretrain pythia-160m --devices 2", ["litgpt"], id="its module"),
        pytest.param("a.sh", "litgpt download google/gemma-2b --access_token x", [], id="a download trains nothing"),
        pytest.param("a.sh", "litgpt generate google/gemma-2b --prompt x", [], id="nor does generation"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("old", "new", "fact", "value"),
    [
        pytest.param("micro_batch_size: 4", "micro_batch_size: 2", "micro_batch_size", 2, id="the micro batch"),
        pytest.param(
            "micro_batch_size: 4", "micro_batch_size: 2", "gradient_accumulation_steps", 16, id="what it leaves"
        ),
        pytest.param("size: 32", "size: 4", "gradient_accumulation_steps", 1, id="nothing to accumulate"),
        pytest.param("length: 1024", "length: 64", "sequence_length", 64, id="the longest sample"),
        pytest.param("bf16-true", "bf16-true", "parameter_dtype", "bfloat16", id="true weights"),
        pytest.param("bf16-true", "bf16-mixed", "parameter_dtype", "float32", id="mixed weights"),
        pytest.param("bf16-true", "bf16-mixed", "autocast", True, id="mixed products"),
        pytest.param("bf16-true", "16-mixed", "loss_scaling", "dynamic", id="float16 scales its loss"),
        pytest.param("bf16-true", "32-true", "compute_dtype", "float32", id="full precision"),
        pytest.param("precision: bf16-true\n", "", "compute_dtype", "bfloat16", id="no precision is mixed"),
        pytest.param("devices: 1", "devices: 4", "parallelism.strategy", "fsdp1", id="several devices shard"),
        pytest.param("devices: 1", "devices: 4", "checkpointing", "full", id="and recompute"),
        pytest.param("devices: 1", "devices: 4", "gradient_accumulation_steps", 2, id="and share the batch"),
        pytest.param("devices: 1", "devices: 2\nnum_nodes: 2", "device_count", 4, id="machines"),
        pytest.param("torch.optim.AdamW", "torch.optim.SGD", "optimizer", "sgd", id="SGD"),
        pytest.param("lr:", "fused: true\n    lr:", "optimizer_implementation", "fused", id="fused"),
        pytest.param("torch.optim.AdamW", "bitsandbytes.optim.AdamW8bit", "optimizer", "adamw_8bit", id="8 bits"),
        pytest.param("JSON", "JSON\n  init_args: {num_workers: 2}", "workers", 2, id="workers"),
        pytest.param("JSON", "JSON", "loss", "full", id="finetuning in full makes whole logits"),
        pytest.param("Llama-3.2-1B", "Llama-3.2-1B\nlora_r: 4", "loss", "chunked", id="LoRA makes them in chunks"),
        pytest.param("Llama-3.2-1B", "Llama-3.2-1B\nlora_r: 4", "loss_chunks", 8, id="of 128 tokens"),
        pytest.param(
            "meta-llama/Llama-3.2-1B", "google/gemma-2-2b", "attention", "eager", id="capped scores are eager"
        ),
    ],
)
def test_a_key_and_its_fact(old: str, new: str, fact: str, value: Any) -> None:
    assert run(FULL.replace(old, new, 1))[fact] == value


def test_a_whole_file_has_all_that_an_estimate_needs() -> None:
    spec = run(FULL)
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert (spec["implementation"], spec.get("tuning", "full")) == ("litgpt", "full")
    assert spec[DECODER].width == 2048
    assert line_of(spec, DECODER) == "checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B"
    assert line_of(spec, "micro_batch_size") == "micro_batch_size: 4"
    assert line_of(spec, "gradient_accumulation_steps") == "global_batch_size: 32"
    assert line_of(spec, "autocast") == "precision: bf16-true"
    assert line_of(spec, "optimizer") == "class_path: torch.optim.AdamW"


def test_the_output_projection_is_not_the_embedding() -> None:
    assert run(FULL)[DECODER].tied is False
    assert run(SCRATCH.replace("train:", "train:\n  tie_embeddings: true"))[DECODER].tied is True


def test_accumulation_has_the_key_of_the_global_batch() -> None:
    spec = run(FULL)
    steps, whole = spec.fact("gradient_accumulation_steps"), spec.fact("global_batch_size")
    assert steps is not None
    assert whole is not None
    assert (steps.value, steps.key) == (8, whole.key)


def test_a_smaller_batch_takes_accumulation_along_without_a_second_edit() -> None:
    spec = run(FULL)
    seen = Run(spec, None, None, lambda changed: pytest.fail("nothing is estimated"), spell_each)
    changes = batch_changes(seen, 1)
    assert changes == {"micro_batch_size": 1, "gradient_accumulation_steps": 32}
    after = run(apply_edits(FULL, seen.edits(**changes)))
    assert {name: after[name] for name in changes} == changes


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        pytest.param(
            "", {"lora.targets": ["q_proj", "k_proj", "v_proj"], "lora.r": 16, "lora.dropout": 0.05}, id="its defaults"
        ),
        pytest.param("lora_query: false\n", {"lora.targets": ["k_proj", "v_proj"]}, id="without queries"),
        pytest.param(
            "lora_projection: true\nlora_mlp: true\nlora_head: true\n",
            {
                "lora.targets": [
                    *("q_proj", "k_proj", "v_proj", "o_proj", "lm_head"),
                    *("gate_proj", "up_proj", "down_proj"),
                ]
            },
            id="everywhere",
        ),
        pytest.param("quantize: bnb.nf4\n", {"quantization.kind": "nf4", "quantization.double": False}, id="NF4"),
        pytest.param("quantize: bnb.nf4-dq\n", {"quantization.bits": 4, "quantization.double": True}, id="double"),
        pytest.param(
            "quantize: bnb.nf4\n", {"optimizer_library": "bitsandbytes", "optimizer_paged": True}, id="paged AdamW"
        ),
    ],
)
def test_adapters(lines: str, facts: dict[str, Any]) -> None:
    spec = run(LORA + lines)
    assert spec.architecture == "language_model"
    assert (spec["tuning"], spec["lora.dtype"]) == ("lora", "bfloat16")
    assert {name: spec.get(name) for name in facts} == facts


def test_modules_have_the_names_of_the_model() -> None:
    spec = run(LORA.replace("meta-llama/Llama-3.2-1B", "EleutherAI/pythia-160m") + "lora_mlp: true\n")
    assert spec["lora.targets"][-2:] == ["dense_h_to_4h", "dense_4h_to_h"]


def test_pretraining_fills_rows_and_shards_within_a_machine() -> None:
    spec = run(SCRATCH)
    assert spec.architecture == "language_model"
    assert (spec["sequence_length"], spec["packing"], spec["pretrained"]) == (2048, True, False)
    assert (spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == (4, 8)
    assert (spec["parallelism.strategy"], spec["parallelism.shard"], spec["parallelism.replicas"]) == ("fsdp1", 2, 1)
    assert (spec["checkpointing"], spec["optimizer_implementation"]) == ("none", "fused")
    assert (spec["compile"], spec["compile_loss"]) == (True, False)


def test_pretraining_takes_every_device_that_there_is() -> None:
    spec = run(SCRATCH.replace("devices: 2\n", ""))
    assert spec.architecture is None
    assert spec.architecture_on_devices == "language_model"


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [
        pytest.param("pythia-160m", 12, 768, id="a name that the hub has, too"),
        pytest.param("micro-llama-300M", 12, 1024, id="MicroLlama"),
        pytest.param("tiny-llama-1.1b", 22, 2048, id="TinyLlama"),
    ],
)
def test_a_name_of_litgpt_s_own_is_a_model(name: str, layers: int, width: int) -> None:
    decoder = run(SCRATCH.replace("pythia-160m", name, 1))[DECODER]
    assert (decoder.layers, decoder.width) == (layers, width)


def test_a_stated_config_goes_before_the_name(tmp_path: Path) -> None:
    contents = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 256}
    contents |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    with hub.stating(hub.Resolved(contents, "--model-config tiny.json")):
        assert run(FULL)[DECODER].layers == 2
    assert run(FULL)[DECODER].layers == 16


def test_sizes_of_one_s_own() -> None:
    spec = run(OWN)
    assert spec.architecture == "language_model"
    assert spec.model_name == "small"
    assert spec["sequence_length"] == 512
    model = spec[DECODER]
    assert (model.norm, model.perceptron, model.key_value_heads, model.intermediate) == ("rms", "gated", 2, 700)
    assert spec["vocabulary_size"] == 1024


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        pytest.param("mlp_class_name: GptNeoxMLP", "perceptron", "fc1 fc2", id="two layers"),
        pytest.param("norm_class_name: LayerNorm", "norm", "layer", id="a layer norm"),
        pytest.param("mlp_class_name: GemmaMLP", "activation", "gelu", id="another gate"),
        pytest.param("norm_qk: true", "query_norm", "head", id="norms of queries and keys"),
        pytest.param("parallel_residual: false", "residual", "pre", id="one after the other"),
        pytest.param("shared_attention_norm: true", "residual", "parallel", id="one norm for both"),
    ],
)
def test_each_switch_of_a_config_is_one_of_the_model(lines: str, field: str, value: str) -> None:
    plain = OWN.replace("  mlp_class_name: LLaMAMLP\n  norm_class_name: RMSNorm\n", "")
    spec = run(plain.replace("  bias: false\n", f"  bias: false\n  {lines}\n"))
    assert spec.architecture == "language_model"
    assert getattr(spec[DECODER], field) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            FULL.replace("  max_seq_length: 1024\n", ""), "train.max_seq_length is not stated", id="no length"
        ),
        pytest.param(
            FULL.replace("meta-llama/Llama-3.2-1B", "nobody/nothing"), "nobody/nothing: neither in", id="a model"
        ),
        pytest.param(
            LORA.replace("true\ndev", "mixed\ndev") + "quantize: bnb.nf4\n", "litgpt refuses it", id="mixed NF4"
        ),
        pytest.param(
            LORA.replace("devices: 1", "devices: 2") + "quantize: bnb.nf4\n",
            "quantize bnb.nf4 on 2 devices: litgpt refuses it",
            id="NF4 on several devices",
        ),
        pytest.param(
            LORA.replace("AdamW", "SGD") + "quantize: bnb.nf4\n",
            "optimizer torch.optim.SGD with quantised weights: litgpt refuses it",
            id="NF4 with another optimizer",
        ),
        pytest.param(
            LORA.replace("bf16-true", "16-true") + "quantize: bnb.int8-training\n",
            "quantize bnb.int8-training: the weights stay in 16 bits",
            id="8 bits that are made in each call",
        ),
        pytest.param(FULL.replace("bf16-true", "transformer-engine"), "transformer-engine is not known", id="float8"),
        pytest.param(FULL.replace("micro_batch_size: 4", "micro_batch_size: ${b}"), "micro_batch_size", id="a batch"),
        pytest.param(
            OWN.replace("  bias: false\n", "  bias: false\n  latent_attention: {q_lora_rank: 8}\n"),
            "model_config.yaml: latent_attention is not known",
            id="another attention",
        ),
    ],
)
def test_what_is_not_known_is_named(text: str, reason: str) -> None:
    spec = run(text)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param("n_head: 8", "n_head: 7", r"n_head 7 is .* model_config\.n_query_groups 2", id="heads"),
        pytest.param(
            "n_query_groups: 2", "n_query_groups: 3", r"n_head 8 is .* model_config\.n_query_groups 3", id="keys"
        ),
    ],
)
def test_sizes_that_do_not_agree_have_litgpt_s_names(old: str, new: str, reason: str) -> None:
    with pytest.raises(UnknownModel, match=reason):
        record(run(OWN.replace(old, new)))


def test_a_command_line_with_dotted_options() -> None:
    text = """\
        litgpt finetune_lora google/gemma-2b --train.micro_batch_size 2 --train.global_batch_size=8 \\
          --precision bf16-true --lora_key true --train.max_seq_length 256 --quantize bnb.nf4
        """
    spec = run(text, "go.sh")
    assert spec.architecture == "language_model"
    assert (spec["micro_batch_size"], spec["gradient_accumulation_steps"], spec["sequence_length"]) == (2, 4, 256)
    assert spec["lora.targets"] == ["q_proj", "k_proj", "v_proj"]
    assert spec.model_name == "gemma-2b, LoRA"
    fact = spec.fact("micro_batch_size")
    assert fact is not None
    assert fact.key == "--train.micro_batch_size"
    after = apply_edits(spec.document.text, spell(spec, "micro_batch_size", 1))
    assert "--train.micro_batch_size 1 --train.global_batch_size=8" in after
    after = apply_edits(spec.document.text, spell(spec, "workers", 0))
    assert "--data.init_args.num_workers 0" in after
    assert run(after, "go.sh")["workers"] == 0


@pytest.mark.parametrize(
    ("command", "tuning"),
    [
        pytest.param("finetune", "lora", id="finetune alone is with LoRA"),
        pytest.param("finetune_full", None, id="in full"),
        pytest.param("finetune full", None, id="in full, as it was called before"),
        pytest.param("finetune_adapter_v2", "adapter", id="LLaMA-Adapter"),
    ],
)
def test_the_command_says_what_trains(command: str, tuning: str | None) -> None:
    spec = run(f"litgpt {command} --checkpoint_dir google/gemma-2b --train.max_seq_length 64", "go.sh")
    assert spec.get("tuning") == tuning
    assert (spec.architecture is None) == (tuning == "adapter")


def test_options_go_before_the_file_that_they_name(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "conf/lora.yaml": LORA,
            "go.sh": "litgpt finetune_lora --config conf/lora.yaml --train.micro_batch_size 8 --lora_r 2\n",
        },
    )
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (spec["micro_batch_size"], spec["lora.r"], spec["sequence_length"]) == (8, 2, 1024)
    assert (spec["gradient_accumulation_steps"], spec.architecture) == (4, "language_model")


def test_a_file_that_is_not_there_is_named() -> None:
    spec = run("litgpt finetune --config https://somewhere/lora.yaml --train.epochs 1", "go.sh")
    assert spec.architecture is None
    assert "no file https://somewhere/lora.yaml" in spec.unknown_reason


def test_a_folder_of_litgpt_s_own_says_the_sizes(tmp_path: Path) -> None:
    sizes = "\n".join(line.strip() for line in OWN.splitlines()[1:14])
    files = {
        "weights/mine/model_config.yaml": sizes,
        "a.yaml": FULL.replace("checkpoints/meta-llama/Llama-3.2-1B", "weights/mine"),
    }
    written(tmp_path, files)
    (spec,) = registry.specs(load(str(tmp_path / "a.yaml")))
    assert spec.architecture == "language_model"
    assert (spec.model_name, spec[DECODER].width) == ("small", 256)


@pytest.mark.parametrize(
    ("text", "fact", "value", "line"),
    [
        pytest.param(FULL, "micro_batch_size", 1, "  micro_batch_size: 1", id="the micro batch"),
        pytest.param(FULL, "sequence_length", 256, "  max_seq_length: 256", id="the longest sample"),
        pytest.param(FULL, "compute_dtype", "float32", 'precision: "32-true"', id="true products"),
        pytest.param(
            FULL.replace("bf16-true", "32-true"),
            "compute_dtype",
            "bfloat16",
            "precision: bf16-mixed",
            id="mixed products",
        ),
        pytest.param(
            FULL.replace("bf16-true", "bf16-mixed"), "parameter_dtype", "bfloat16", "precision: bf16-true", id="weights"
        ),
        pytest.param(FULL, "optimizer", "adamw_8bit", "  class_path: bitsandbytes.optim.AdamW8bit", id="8 bits"),
        pytest.param(LORA, "lora.r", 4, "lora_r: 4", id="a rank"),
    ],
)
def test_a_fix_is_written_in_litgpt_s_words(text: str, fact: str, value: Any, line: str) -> None:
    edits = spell(run(text), fact, value)
    after = apply_edits(text, edits)
    assert line in after.splitlines()
    assert run(after)[fact] == value


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("gradient_accumulation_steps", 2, id="accumulation follows from the global batch"),
        pytest.param("checkpointing", "full", id="no key checkpoints"),
        pytest.param("attention", "flash", id="nor chooses attention"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(FULL), fact, value) == []


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param("bf16-true", "bf16", objections.UNKNOWN_VALUE, "precision", id="half a precision"),
        pytest.param(
            "micro_batch_size: 4",
            "micro_batch_size: 0",
            objections.UNKNOWN_VALUE,
            "train.micro_batch_size",
            id="no sample at all",
        ),
        pytest.param(
            "devices: 1",
            "devices: 1\nquantize: nf4",
            objections.UNKNOWN_VALUE,
            "quantize",
            id="a kind without its library",
        ),
        pytest.param("devices: 1", "devices: 1\nlora_r: many", objections.WRONG_TYPE, "lora_r", id="a rank in words"),
    ],
)
def test_a_wrong_value_is_found_at_its_key(old: str, new: str, kind: str, key: str) -> None:
    found = objections.violations(run(FULL.replace(old, new, 1), "a.yaml"))
    assert [(one.kind, one.node.key_path) for one in found] == [(kind, key)]


def test_real_files_are_recognised_and_have_all_that_they_need() -> None:
    folder = corpus_folder()
    for path in sorted((folder / "litgpt").iterdir()):
        (spec,) = registry.specs(load(str(path)))
        assert (spec.family, spec.architecture) == ("litgpt", "language_model")
