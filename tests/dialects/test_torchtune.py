"""Family torchtune: recipes and ``tune run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.documents.node import Unresolved
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

DECODER = "decoder"
RECIPE = """\
# our own mix of instructions
model:
  _component_: torchtune.models.llama3_2.llama3_2_1b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: weights/tokenizer.model
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: somebody/instructions
batch_size: 4
gradient_accumulation_steps: 2
optimizer:
  _component_: torch.optim.AdamW
  lr: 1e-5
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
"""
LORA = RECIPE.replace(
    "llama3_2.llama3_2_1b",
    "llama3_2.lora_llama3_2_1b\n  lora_attn_modules: [q_proj, output_proj]",
)
ONE = "mine_single_device.yaml"


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", RECIPE, ["torchtune"], id="a recipe"),
        pytest.param(
            "a.yaml",
            "model: {_component_: mine.models.small}\nbatch_size: 1\n"
            "optimizer: {_component_: torch.optim.SGD}\nloss: {_component_: torchtune.modules.loss.X}\n",
            ["torchtune"],
            id="a model of one's own in torchtune's recipe",
        ),
        pytest.param(
            "a.yaml",
            "model: {_component_: mine.small}\nbatch_size: 1\noptimizer: {_component_: torch.optim.SGD}\n",
            [],
            id="nothing in it is torchtune's",
        ),
        pytest.param(
            "a.yaml",
            "model: {_component_: torchtune.models.llama2.llama2_7b}\ndtype: bf16\ntasks: [mmlu]\nbatch_size: 8\n",
            [],
            id="an evaluation recipe trains nothing",
        ),
        pytest.param(
            "a.sh", "tune run lora_finetune_single_device --config gemma/2B_lora", ["torchtune"], id="tune run"
        ),
        pytest.param("a.sh", "tune cp gemma/2B_lora mine.yaml --make-parents x", [], id="tune cp trains nothing"),
        pytest.param("a.sh", "tune download google/gemma-2b --output-dir x", [], id="nor does tune download"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("old", "new", "fact", "value", "line"),
    [
        pytest.param("batch_size: 4", "batch_size: 3", "micro_batch_size", 3, "batch_size: 3", id="the micro batch"),
        pytest.param("steps: 2", "steps: 8", "gradient_accumulation_steps", 8, None, id="accumulation"),
        pytest.param("len: 4096", "len: 512", "sequence_length", 512, "max_seq_len: 512", id="the longest sample"),
        pytest.param("bf16", "fp32", "parameter_dtype", "float32", "dtype: fp32", id="dtype is the weights'"),
        pytest.param("bf16", "fp32", "compute_dtype", "float32", "dtype: fp32", id="and the products'"),
        pytest.param("bf16", "bf16", "gradient_dtype", "bfloat16", "dtype: bf16", id="and the gradients'"),
        pytest.param("  lr", "  fused: true\n  lr", "optimizer_implementation", "fused", "fused: true", id="fused"),
        pytest.param("  lr", "  foreach: false\n  lr", "optimizer_implementation", "loop", None, id="no foreach"),
        pytest.param("  lr", "  lr", "optimizer_implementation", "foreach", "", id="torch's own default"),
        pytest.param("torch.optim.AdamW", "torch.optim.SGD", "optimizer", "sgd", None, id="SGD"),
        pytest.param(
            "torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit", "optimizer", "adamw_8bit", None, id="8 bits"
        ),
        pytest.param(
            "torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit", "optimizer_paged", True, None, id="paged"
        ),
        pytest.param(
            "torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW", "optimizer", "adamw", None, id="paged in 32 bits"
        ),
        pytest.param(
            "torch.optim.AdamW", "torchao.optim.AdamW8bit", "optimizer_library", "torchao", None, id="torchao"
        ),
        pytest.param("dtype:", "optimizer_in_bwd: true\ndtype:", "optimizer_in_backward", True, None, id="in backward"),
        pytest.param("dtype:", "dtype:", "loss", "chunked", None, id="a chunked loss"),
        pytest.param("dtype:", "dtype:", "loss_chunks", 8, "", id="in eight pieces"),
        pytest.param(
            "LinearCrossEntropyLoss",
            "CEWithChunkedOutputLoss\n  num_output_chunks: 4",
            "loss_chunks",
            4,
            None,
            id="in four",
        ),
        pytest.param("torchtune.modules.loss.Linear", "torch.nn.", "loss", "full", None, id="torch's own loss"),
        pytest.param(
            "dtype:", "enable_activation_checkpointing: true\ndtype:", "checkpointing", "full", None, id="checkpointing"
        ),
        pytest.param("dtype:", "dtype:", "checkpointing", "none", "", id="which is off by default"),
        pytest.param(
            "dtype:",
            "ac_mode: selective\nac_option: 3\ndtype:",
            "checkpointing_every",
            3,
            "ac_option: 3",
            id="every third",
        ),
        pytest.param(
            "dtype:", "ac_mode: selective\nac_option: op\ndtype:", "checkpointing", "selective", None, id="per operator"
        ),
        pytest.param(
            "dtype:",
            "ac_mode: selective\nenable_activation_checkpointing: true\ndtype:",
            "checkpointing",
            "full",
            None,
            id="the older switch goes first",
        ),
        pytest.param(
            "dtype:", "enable_activation_offloading: true\ndtype:", "activation_offloading", True, None, id="offloading"
        ),
        pytest.param("dtype:", "compile: true\ndtype:", "compile", True, None, id="compile"),
        pytest.param("  source", "  packed: true\n  source", "packing", True, "packed: true", id="packed rows"),
        pytest.param("dtype:", "tensor_parallel_dim: 2\ndtype:", "parallelism.tensor", 2, None, id="tensor parallel"),
        pytest.param(
            "dtype:", "fsdp_cpu_offload: true\ndtype:", "parallelism.cpu_offload", True, None, id="CPU offload"
        ),
        pytest.param(
            "dtype:",
            "fsdp_reshard_after_forward: false\ndtype:",
            "parallelism.reshard_after_forward",
            False,
            None,
            id="layers stay gathered",
        ),
        pytest.param(
            "dtype:", "fsdp_cpu_offload: true\ndtype:", "parallelism.strategy", "fsdp2", "", id="a key of FSDP"
        ),
        pytest.param("dtype:", "dtype:", "parallelism.strategy", "none", "", id="none of them"),
        pytest.param("dtype:", "dtype:", "evaluation_batch_size", None, "", id="no evaluation"),
        pytest.param(
            "dtype:",
            "run_val_every_n_steps: 9\ndataset_val: {_component_: x.y}\nbatch_size_val: ${batch_size}\ndtype:",
            "evaluation_batch_size",
            4,
            None,
            id="an evaluation",
        ),
    ],
)
def test_a_key_and_its_fact(old: str, new: str, fact: str, value: Any, line: str | None) -> None:
    spec = run(RECIPE.replace(old, new, 1), "mine.yaml")
    assert spec.get(fact) == value
    if line:
        assert line_of(spec, fact) == line
    elif line is None:
        found = spec.fact(fact)
        assert found is not None
        assert found.span is not None


def test_a_whole_recipe_has_all_that_an_estimate_needs() -> None:
    spec = run(RECIPE, ONE)
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert spec["implementation"] == "torchtune"
    assert (spec[DECODER].layers, spec[DECODER].windows) == (16, ())
    assert spec["vocabulary_size"] == 128256
    assert spec["attention_tokens"] == 4096
    assert line_of(spec, DECODER) == "_component_: torchtune.models.llama3_2.llama3_2_1b"
    assert spec.model_name == "llama3_2_1b"


@pytest.mark.parametrize(
    ("lines", "targets"),
    [
        pytest.param("", ["q_proj", "o_proj"], id="attention alone"),
        pytest.param(
            "\n  apply_lora_to_mlp: true", ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], id="perceptrons"
        ),
        pytest.param("\n  apply_lora_to_output: true", ["q_proj", "o_proj", "lm_head"], id="the output projection"),
    ],
)
def test_adapters(lines: str, targets: list[str]) -> None:
    spec = run(LORA.replace("output_proj]", "output_proj]\n  lora_rank: 32" + lines), ONE)
    assert spec.architecture == "language_model"
    assert spec["tuning"] == "lora"
    assert spec["lora.targets"] == targets
    assert (spec["lora.r"], spec["lora.alpha"], spec["lora.dtype"]) == (32, 16, "bfloat16")
    assert "quantization.bits" not in spec


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        pytest.param(
            LORA.replace(".lora_", ".qlora_"), {"quantization.kind": "nf4", "tuning": "lora"}, id="by its name"
        ),
        pytest.param(
            LORA.replace("output_proj]", "output_proj]\n  quantize_base: true"),
            {"quantization.bits": 4, "quantization.double": True},
            id="by its argument",
        ),
        pytest.param(LORA.replace("output_proj]", "output_proj]\n  use_dora: true"), {"tuning": "dora"}, id="DoRA"),
        pytest.param(RECIPE, {"quantization.bits": None, "lora.r": None, "tuning": None}, id="neither"),
    ],
)
def test_quantised_and_decomposed_adapters(text: str, facts: dict[str, Any]) -> None:
    spec = run(text, ONE)
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        pytest.param("gemma2.gemma2_9b", "residual", "sandwich", id="Gemma 2"),
        pytest.param("phi4.phi4_14b", "projection", "separate", id="Phi has separate projections here"),
        pytest.param("qwen2_5.qwen2_5_7b_instruct", "key_value_heads", 4, id="an instruct model has its base's sizes"),
        pytest.param("mistral.mistral_7b", "windows", (), id="Mistral has no window here"),
        pytest.param("qwen2.qwen2_7b", "context", 32768, id="a shorter rotary table than on the hub"),
        pytest.param("qwen2_5.qwen2_5_7b_base", "context", 131072, id="but not of a base model"),
        pytest.param("llama3_1.llama3_1_405b", "layers", 126, id="the largest LLaMA"),
        pytest.param(
            "qwen2.qwen2\n  vocab_size: 1000\n  num_layers: 2\n  num_heads: 4\n  num_kv_heads: 2\n  embed_dim: 64\n"
            "  intermediate_dim: 96\n  max_seq_len: 128\n  tie_word_embeddings: true",
            "tied",
            True,
            id="sizes of one's own",
        ),
        pytest.param(
            "llama2.llama2\n  vocab_size: 1000\n  num_layers: 2\n  num_heads: 4\n  embed_dim: 384",
            "intermediate",
            1024,
            id="a width that torchtune works out: 2/3 of 4 x 384 in multiples of 256",
        ),
    ],
)
def test_models(model: str, key: str, value: Any) -> None:
    spec = run(RECIPE.replace("llama3_2.llama3_2_1b", model), ONE)
    assert spec.architecture == "language_model"
    assert getattr(spec[DECODER], key) == value


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        pytest.param(
            RECIPE.replace("4096", "null"),
            ONE,
            "tokenizer.max_seq_len is null: the longest sample is the data's",
            id="null",
        ),
        pytest.param(
            RECIPE.replace("  max_seq_len: 4096\n", ""),
            ONE,
            "tokenizer.max_seq_len is not stated",
            id="no length at all",
        ),
        pytest.param(
            RECIPE.replace("torchtune.models.llama3_2.llama3_2_1b", "mine.small"),
            ONE,
            "mine.small is not one of",
            id="model",
        ),
        pytest.param(
            RECIPE.replace("llama3_2.llama3_2_1b", "llama3_2_vision.llama3_2_vision_11b"),
            ONE,
            "image encoder",
            id="vision",
        ),
        pytest.param(RECIPE + "quantizer: {_component_: a.b}\n", ONE, "quantisation-aware", id="fake quantisation"),
        pytest.param(
            RECIPE + "teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n",
            ONE,
            "distillation",
            id="KD",
        ),
        pytest.param(RECIPE.replace("batch_size: 4", "batch_size: ${n}"), ONE, "batch_size is not known", id="a batch"),
        pytest.param(RECIPE + "device: cpu\n", ONE, "no GPU", id="a CPU"),
        pytest.param(
            LORA.replace("  lora_attn_modules: [q_proj, output_proj]\n", ""), ONE, "lora_attn_modules", id="no targets"
        ),
    ],
)
def test_what_is_not_known_is_named(text: str, path: str, reason: str) -> None:
    spec = run(text, path)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("path", "strategy"),
    [
        pytest.param("8B_lora_single_device.yaml", "none", id="a recipe for one device"),
        pytest.param("8B_full.yaml", "fsdp2", id="torchtune's own name of a distributed recipe"),
        pytest.param("7B_full_low_memory.yaml", "none", id="low memory is on one device"),
        pytest.param("config.yaml", "none", id="a name that says nothing"),
        pytest.param("my_lora.yaml", "none", id="a name without a size"),
        pytest.param("mini_lora.yaml", "fsdp2", id="Phi's size is a word"),
    ],
)
def test_the_name_of_a_file_says_the_recipe(path: str, strategy: str) -> None:
    spec = run(RECIPE, path)
    assert spec["parallelism.strategy"] == strategy
    assert (spec.architecture_on_devices == "language_model") == (strategy == "fsdp2")


@pytest.mark.parametrize(
    ("lines", "path", "strategy"),
    [
        pytest.param(
            "#   tune run --nnodes 1 --nproc_per_node 2 full_finetune_distributed --config qwen2_5/7B_full\n",
            *("mine-32b.yaml", "fsdp2"),
            id="the command of the config that it was made from",
        ),
        pytest.param(
            "# tune run lora_finetune_single_device --config a_single_device\n", "mine.yaml", "none", id="one device"
        ),
        pytest.param(
            "metric_logger: {job_type: full_finetune_distributed}\n", "mine.yaml", "fsdp2", id="what a logger is told"
        ),
        pytest.param(
            "# tune run lora_finetune_distributed --config a\n# tune run lora_finetune_single_device --config b\n",
            *("mine.yaml", "none"),
            id="both, which says nothing",
        ),
        pytest.param(
            "# tune run --nproc_per_node 2 full_finetune_distributed --config a\n",
            *("7B_full_low_memory.yaml", "none"),
            id="a file's name goes before",
        ),
    ],
)
def test_a_comment_says_the_recipe_of_a_config_of_any_name(lines: str, path: str, strategy: str) -> None:
    assert run(lines + RECIPE, path)["parallelism.strategy"] == strategy


@pytest.mark.parametrize(
    ("path", "strategy"),
    [
        pytest.param("mine.yaml", "fsdp2", id="a file of a name of one's own is for whichever recipe runs it"),
        pytest.param("8B_lora_single_device.yaml", "none", id="one for a single device stays on it"),
    ],
)
def test_on_several_devices_a_recipe_shards(path: str, strategy: str) -> None:
    spec = run(RECIPE, path)
    assert spec["parallelism.strategy"] == "none"
    several = spec.with_facts(device_count=8, world_size=8)
    assert several["parallelism.strategy"] == strategy
    if strategy == "fsdp2":
        named = run(RECIPE, "8B_full.yaml").with_facts(device_count=8, world_size=8)
        differ = {name: named[name] for name in named if name not in several or several[name] != named[name]}
        # The defaults of keys that only a distributed recipe has, and those of an estimate.
        assert differ == {"parallelism.cpu_offload": False, "parallelism.reshard_after_forward": True}


def test_a_command_its_recipe_its_config_and_its_overrides_are_one_run(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "config.yaml": RECIPE,
            "go.sh": "tune run --nproc_per_node 4 --nnodes 2 full_finetune_distributed \\\n"
            "  --config config.yaml batch_size=2 optimizer.fused=True\n",
        },
    )
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert spec.architecture == "language_model"
    assert (spec["device_count"], spec["machines"]) == (8, 2)
    assert (spec["parallelism.strategy"], spec["parallelism.shard"]) == ("fsdp2", 8)
    assert spec["micro_batch_size"] == 2
    assert spec["optimizer_implementation"] == "fused"
    assert line_of(spec, "micro_batch_size") == "--config config.yaml batch_size=2 optimizer.fused=True"
    assert line_of(spec, "sequence_length") == "max_seq_len: 4096"


def test_a_recipe_that_torchtune_ships_is_not_in_the_repository(tmp_path: Path) -> None:
    written(tmp_path, {"go.sh": "tune run full_finetune_single_device --config llama3_2/1B_full epochs=2\n"})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert spec.architecture is None
    assert spec.unknown_reason == "no file llama3_2/1B_full in this repository"


@pytest.mark.parametrize(("name", "own"), [("LinearCrossEntropyLoss", True), ("CEWithChunkedOutputLoss", None)])
def test_which_loss_makes_the_logits_itself(name: str, own: bool | None) -> None:
    spec = run(RECIPE.replace("LinearCrossEntropyLoss", name))
    assert (spec["loss"], spec.get("head_in_loss")) == ("chunked", own)


def test_preferences_are_pairs() -> None:
    pairs = RECIPE.replace("torchtune.modules.loss.LinearCrossEntropyLoss", "torchtune.rlhf.loss.DPOLoss")
    spec = run(pairs, ONE)
    assert (spec["method"], spec["sequences_per_sample"], spec["reference_model"]) == ("dpo", 2, "copy")
    spec = run(
        pairs.replace("llama3_2.", "llama3_2.lora_", 1).replace("1b\n", "1b\n  lora_attn_modules: [q_proj]\n", 1), ONE
    )
    assert spec["reference_model"] == "adapter_off"


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 1, "batch_size: 1", id="the micro batch"),
        pytest.param("gradient_accumulation_steps", 8, "gradient_accumulation_steps: 8", id="accumulation"),
        pytest.param("sequence_length", 1024, "  max_seq_len: 1024", id="the longest sample"),
        pytest.param("checkpointing", "full", "enable_activation_checkpointing: true", id="checkpointing"),
        pytest.param("compute_dtype", "float32", "dtype: fp32", id="dtype"),
        pytest.param("optimizer", "adamw_8bit", "  _component_: bitsandbytes.optim.AdamW8bit", id="8 bits"),
        pytest.param("optimizer_implementation", "fused", "  fused: true", id="fused"),
        pytest.param("compile", True, "compile: true", id="compile"),
    ],
)
def test_a_fix_is_written_in_torchtune_s_words(fact: str, value: Any, line: str) -> None:
    edits = spell(run(RECIPE, ONE), fact, value)
    assert edits
    after = apply_edits(RECIPE, edits)
    assert line in after.splitlines()
    assert len(after.splitlines()) - len(RECIPE.splitlines()) in (0, 1)
    assert run(after, ONE)[fact] == value


@pytest.mark.parametrize(
    ("text", "fact", "value"),
    [
        pytest.param(RECIPE, "compute_dtype", "float16", id="recipes refuse float16"),
        pytest.param(RECIPE, "autocast", True, id="there is no autocast"),
        pytest.param(RECIPE, "attention", "flash", id="nor a choice of attention"),
        pytest.param(RECIPE, "optimizer_in_backward", True, id="in backward needs single micro batches"),
        pytest.param(RECIPE, "activation_offloading", True, id="offloading needs checkpointing"),
        pytest.param(RECIPE, "evaluation_batch_size", 1, id="no evaluation, no batch for it"),
        pytest.param(
            RECIPE.replace("steps: 2", "steps: 1") + "optimizer_in_bwd: true\n",
            "gradient_accumulation_steps",
            2,
            id="accumulation is refused beside it",
        ),
    ],
)
def test_what_has_no_spelling(text: str, fact: str, value: Any) -> None:
    assert spell(run(text, ONE), fact, value) == []


def test_a_length_that_no_file_states_can_be_given() -> None:
    document = load("a_single_device.yaml", RECIPE.replace("4096", "null"))
    (spec,) = registry.specs(document, ["tokenizer.max_seq_len=2048"])
    assert spec.architecture == "language_model"
    assert spec["sequence_length"] == 2048


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param("dtype: bf16", "dtype: bfloat16", objections.UNKNOWN_VALUE, "dtype", id="a dtype by another name"),
        pytest.param("batch_size: 4", "batch_size: four", objections.WRONG_TYPE, "batch_size", id="a batch in words"),
        pytest.param(
            "dtype:",
            "optimizer_in_bwd: 3\ndtype:",
            objections.WRONG_TYPE,
            "optimizer_in_bwd",
            id="a number, no switch",
        ),
        pytest.param(
            "dtype:",
            "enable_activation_checkpointin: true\ndtype:",
            objections.UNKNOWN_KEY,
            "enable_activation_checkpointin",
            id="a misspelt key",
        ),
    ],
)
def test_a_wrong_value_is_found_at_its_key(old: str, new: str, kind: str, key: str) -> None:
    found = objections.violations(run(RECIPE.replace(old, new, 1), ONE))
    assert [(one.kind, one.node.key_path) for one in found] == [(kind, key)]


def test_real_recipes_are_recognised_and_say_what_they_lack() -> None:
    folder = corpus_folder()
    for path in sorted((folder / "torchtune").iterdir()):
        (spec,) = registry.specs(load(str(path)))
        assert spec.family == "torchtune"
        assert spec.unknown_reason
        assert not any(isinstance(fact.value, Unresolved) for fact in spec.facts.values())


ALPACA = RECIPE.replace("  max_seq_len: 4096\n", "").replace(
    "instruct_dataset\n  source: somebody/instructions", "alpaca_cleaned_dataset"
)


@pytest.mark.parametrize(
    ("release", "more", "length"),
    [
        pytest.param("0.2.1", "", 512, id="before 0.3 alpaca is cut by itself"),
        pytest.param("0.3.0", "", None, id="since then by tokenizers alone"),
        pytest.param("0.2.1", "  max_seq_len: 2048\n", 2048, id="as the data set says"),
        pytest.param("0.2.1", "  max_seq_len: null\n", None, id="or does not"),
    ],
)
def test_data_sets_cut_samples_before_tokenizers_did(
    tmp_path: Path, release: str, more: str, length: int | None
) -> None:
    text = ALPACA.replace("alpaca_cleaned_dataset\n", f"alpaca_cleaned_dataset\n{more}")
    root = written(tmp_path, {"requirements.txt": f"torchtune=={release}\n", ONE: text})
    (spec,) = registry.specs(load(str(root / ONE)))
    assert spec.get("sequence_length") == length
    assert bool(spec.unknown_reason) is (length is None)


def test_a_tokenizer_that_cuts_goes_before_the_data() -> None:
    text = RECIPE.replace("instruct_dataset\n", "instruct_dataset\n  max_seq_len: 2048\n")
    assert run(text, ONE)["sequence_length"] == 4096


@pytest.mark.parametrize(("release", "kept"), [("0.2.1", "float32"), ("0.3.0", None)])
def test_recipes_named_the_logits(tmp_path: Path, release: str, kept: str | None) -> None:
    text = RECIPE.replace("torchtune.modules.loss.LinearCrossEntropyLoss", "torch.nn.CrossEntropyLoss")
    root = written(tmp_path, {"requirements.txt": f"torchtune=={release}\n", ONE: text})
    (spec,) = registry.specs(load(str(root / ONE)))
    assert spec.get("outputs_kept") == kept


@pytest.mark.parametrize(("release", "known"), [("0.1.1", False), ("0.2.0", True)])
def test_weights_that_are_quantised_whole_make_a_run_a_bound(tmp_path: Path, release: str, known: bool) -> None:
    text = LORA.replace("lora_llama3_2_1b", "qlora_llama3_2_1b")
    root = written(tmp_path, {"requirements.txt": f"torchtune=={release}\n", ONE: text})
    (spec,) = registry.specs(load(str(root / ONE)))
    assert (spec.unknown_reason == "") is known or (spec.unknown_reason is None) is known
