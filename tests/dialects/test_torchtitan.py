"""Family torchtitan: TOML job configs, functions of a Python registry, and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.architectures.decoder import Experts
from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

DECODER = "decoder"
JOB = """\
[job]
description = "our own run"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 1e-4

[training]
local_batch_size = 2
seq_len = 4096
steps = 10

[parallelism]
data_parallel_shard_degree = 8

[activation_checkpoint]
mode = "full"
"""
REGISTRY = '''\
"""Our own runs."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer

from . import model_registry

LENGTH = 1024 * 2


def helper(size):
    return size * 2


def llama3_ours() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(num_chunks=4),
        model_spec=spec,
        training=TrainingConfig(
            local_batch_size=2,
            seq_len=LENGTH,
        ),
        parallelism=ParallelismConfig(data_parallel_shard_degree=4),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_ours_full() -> Trainer.Config:
    config = llama3_ours()
    config.activation_checkpoint = FullAC.Config()
    config.training.local_batch_size = 1
    config.loss = CrossEntropyLoss.Config()
    config.compile = CompileConfig(enable=True, components=["loss"])
    return config


def llama3_ours_flex() -> "Trainer.Config":
    config = llama3_ours()
    config.model_spec = model_registry("8B", attn_backend="flex")
    return config


def llama3_ours_unknown() -> Trainer.Config:
    config = llama3_ours()
    config.training.local_batch_size = helper(4)
    return config
'''


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.toml", JOB, ["torchtitan"], id="a job"),
        pytest.param(
            "a.toml", "[model]\nflavor = '8B'\n[training]\nsteps = 1\n", ["torchtitan"], id="a size and training"
        ),
        pytest.param(
            "a.toml", "[training]\nbatch_size = 1\n[model]\nname = 'x'\n", [], id="a batch and a name say nothing"
        ),
        pytest.param("a.toml", "[tool.ruff]\nline-length = 110\n", [], id="a project's own settings"),
        pytest.param("config_registry.py", REGISTRY, ["torchtitan"] * 4, id="each function of a registry is a run"),
        pytest.param("a.py", "def f() -> Trainer.Config:\n    return g()\n", [], id="a function that says nothing"),
        pytest.param("a.sh", "torchrun -m torchtitan.train --model.flavor 8B", ["torchtitan"], id="the module"),
        pytest.param("a.sh", "python -m torchtitan.other --model.flavor 8B", [], id="another module"),
        pytest.param("a.sh", "CONFIG_FILE=a.toml NGPU=4 ./run_train.sh", ["torchtitan"], id="its script"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize(
    ("old", "new", "fact", "value", "line"),
    [
        pytest.param("size = 2", "size = 3", "micro_batch_size", 3, "local_batch_size = 3", id="the local batch"),
        pytest.param("local_batch_size", "batch_size", "micro_batch_size", 2, "batch_size = 2", id="its older name"),
        pytest.param("= 4096", "= 64", "sequence_length", 64, "seq_len = 64", id="the length of a row"),
        pytest.param(
            "steps =", "global_batch_size = 64\nsteps =", "gradient_accumulation_steps", 4, None, id="accumulation"
        ),
        pytest.param("steps =", "dtype = 'bfloat16'\nsteps =", "parameter_dtype", "bfloat16", None, id="weights"),
        pytest.param(
            "steps =", "mixed_precision_param = 'float32'\nsteps =", "compute_dtype", "float32", None, id="products"
        ),
        pytest.param(
            "steps =", "enable_cpu_offload = true\nsteps =", "parallelism.cpu_offload", True, None, id="offload"
        ),
        pytest.param(
            "lr =", "implementation = 'foreach'\nlr =", "optimizer_implementation", "foreach", None, id="foreach"
        ),
        pytest.param(
            "lr =", "implementation = 'for-loop'\nlr =", "optimizer_implementation", "loop", None, id="a loop"
        ),
        pytest.param(
            "lr =", "early_step_in_backward = true\nlr =", "optimizer_in_backward", True, None, id="in backward"
        ),
        pytest.param("AdamW", "Adam", "optimizer", "adam", None, id="Adam"),
        pytest.param('"full"', '"none"', "checkpointing", "none", 'mode = "none"', id="nothing is recomputed"),
        pytest.param('"full"', '"selective"', "checkpointing", "every", "", id="every second block by default"),
        pytest.param(
            '"full"', '"selective"\nselective_ac_option = "3"', "checkpointing_every", 3, None, id="every third"
        ),
        pytest.param('"full"', '"selective"\nselective_ac_option = "1"', "checkpointing", "full", None, id="every one"),
        pytest.param(
            '"full"', '"selective"\nselective_ac_option = "op"', "checkpointing", "selective", None, id="per operator"
        ),
        pytest.param(
            "degree = 8", "degree = 8\ntensor_parallel_degree = 2", "parallelism.tensor", 2, None, id="tensor"
        ),
        pytest.param("degree = 8", "degree = 8\ntensor_parallel_degree = 2", "device_count", 16, None, id="devices"),
        pytest.param(
            "degree = 8", "degree = 8\ntensor_parallel_degree = 2", "parallelism.sequence", True, None, id="sequence"
        ),
        pytest.param(
            "degree = 8", "degree = 8\ncontext_parallel_degree = 2", "parallelism.context", 2, None, id="context"
        ),
        pytest.param(
            "degree = 8",
            "degree = 8\nfsdp_reshard_after_forward = 'never'",
            "parallelism.reshard_after_forward",
            False,
            None,
            id="layers stay gathered",
        ),
        pytest.param("degree = 8", "degree = 1", "parallelism.strategy", "none", None, id="one device shares nothing"),
        pytest.param("degree = 8", "degree = 1", "autocast", True, "", id="and has autocast"),
        pytest.param("degree = 8", "degree = 8", "autocast", False, "", id="which FSDP needs not"),
        pytest.param(
            "degree = 8",
            "degree = 1\ndata_parallel_replicate_degree = 4",
            "parallelism.strategy",
            "ddp",
            None,
            id="DDP",
        ),
        pytest.param(
            "degree = 8", "degree = 4\ndata_parallel_replicate_degree = 2", "parallelism.replicas", 2, None, id="hybrid"
        ),
        pytest.param("[act", "[compile]\nenable = true\n[act", "compile", True, None, id="compile"),
        pytest.param(
            "[act", "[compile]\nenable = true\ncomponents = ['loss']\n[act", "compile", False, None, id="the loss alone"
        ),
        pytest.param("[act", "[validation]\nenable = true\n[act", "evaluation_batch_size", 8, "", id="validation"),
        pytest.param("[act", "[act", "evaluation_batch_size", None, "", id="no validation"),
    ],
)
def test_a_key_and_its_fact(old: str, new: str, fact: str, value: Any, line: str | None) -> None:
    spec = run(JOB.replace(old, new, 1), "a.toml")
    assert spec.get(fact) == value
    if line:
        assert line_of(spec, fact) == line
    elif line is None:
        found = spec.fact(fact)
        assert found is not None
        assert found.span is not None


def test_a_whole_job_has_all_that_an_estimate_needs() -> None:
    spec = run(JOB, "a.toml")
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert (spec.model_name, spec["implementation"]) == ("llama3 8B", "torchtitan")
    assert (spec[DECODER].intermediate, spec["vocabulary_size"]) == (14336, 128256)
    assert (spec["device_count"], spec["parallelism.strategy"], spec["parallelism.shard"]) == (8, "fsdp2", 8)
    assert (spec["parameter_dtype"], spec["compute_dtype"], spec["autocast"]) == ("float32", "bfloat16", False)
    assert (spec["parallelism.reduce_dtype"], spec["optimizer_implementation"]) == ("float32", "fused")
    assert (spec["packing"], spec["loss"], spec["attention"]) == (True, "full", "sdpa")
    assert line_of(spec, DECODER) == 'flavor = "8B"'


def test_a_pipeline_cuts_the_local_batch() -> None:
    text = JOB.replace(
        "degree = 8", "degree = 4\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'"
    )
    spec = run(text.replace("size = 2", "size = 8"), "a.toml")
    assert (spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == (1, 8)
    assert (spec["parallelism.pipeline"], spec["parallelism.schedule"]) == (2, "interleaved")
    assert spec["parallelism.reshard_after_forward"] is False
    assert spell(spec, "micro_batch_size", 1) == []
    assert (spec["parallelism.micro_batches"], spec["parallelism.virtual_stages"]) == (8, 2)
    # Embedding and head count as a layer each: 34 on four stages.
    assert spec["parallelism.stage_layers"] == (8, 9, 8, 7)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param({}, (2, 6, 1, (5, 6, 6, 5, 5, 5)), id="as many micro batches as stages"),
        pytest.param({"microbatches": 4}, (3, 4, 1, (5, 6, 6, 5, 5, 5)), id="as many as are stated"),
        pytest.param(
            {"schedule": '"Interleaved1F1B"'},
            (2, 6, 2, (2, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2)),
            id="two stages on each rank",
        ),
        pytest.param({"split_points": "['layers.3']"}, (2, 6, 1, None), id="a model that is cut elsewhere"),
    ],
)
def test_an_experimental_pipeline_counts_its_micro_batches(
    keys: dict[str, Any], expected: tuple[int, int, int, tuple[int, ...] | None]
) -> None:
    """torchtitan of 2024-12, config_manager.py: the default is the number of stages."""
    lines = "".join(f"\npipeline_parallel_{key} = {value}" for key, value in keys.items())
    text = JOB.replace("[parallelism]\ndata_parallel_shard_degree = 8", "")
    text = text.replace("local_batch_size = 2", "batch_size = 12\ndata_parallel_shard_degree = 4")
    spec = run(f"{text}\n[experimental]\npipeline_parallel_degree = 6{lines}\n", "a.toml")
    micro, number, pieces, layers = expected
    assert (spec["micro_batch_size"], spec["parallelism.micro_batches"]) == (micro, number)
    assert spec["gradient_accumulation_steps"] == number
    assert spec.get("parallelism.virtual_stages", 1) == pieces
    assert spec.get("parallelism.stage_layers") == layers


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("steps = 10", "steps = 10", True, id="a local batch is one of release 0.2"),
        pytest.param(
            "[parallelism]", "[compile]\nenable = true\n[parallelism]", True, id="so is a table for compiling"
        ),
        pytest.param("steps = 10", "compile = true", None, id="a switch for compiling is older"),
        pytest.param("local_batch_size", "batch_size", None, id="a batch that is not said to be local is older"),
    ],
)
def test_embedding_and_head_are_units_of_their_own_since_2025_07(old: str, new: str, expected: bool | None) -> None:
    assert run(JOB.replace(old, new), "a.toml").get("parallelism.wrap_ends") is expected


@pytest.mark.parametrize(
    ("old", "new", "release"),
    [
        pytest.param("", "", "torch 2.13", id="of today"),
        pytest.param("local_batch_size", "batch_size", "torch 2.8", id="a batch before June 2025"),
    ],
)
def test_a_key_that_was_renamed_dates_torch(old: str, new: str, release: str) -> None:
    fact = run(JOB.replace(old, new), "a.toml").fact("framework_version")
    assert fact is not None
    assert (fact.value, fact.origin) == (release, ASSUMED)


@pytest.mark.parametrize("disabled", [False, True])
def test_tensor_parallel_ranks_compare_their_shares_of_the_vocabulary(disabled: bool) -> None:
    text = JOB.replace("degree = 8", "degree = 4\ntensor_parallel_degree = 2")
    text = text.replace("tensor_", f"disable_loss_parallel = {str(disabled).lower()}\ntensor_")
    assert run(text, "a.toml")["parallelism.loss"] is not disabled
    assert "parallelism.loss" not in run(JOB, "a.toml")


def test_without_fsdp_tensor_parallel_runs_in_full_precision() -> None:
    spec = run(JOB.replace("degree = 8", "degree = 1\ntensor_parallel_degree = 8"), "a.toml")
    assert (spec["parallelism.strategy"], spec["compute_dtype"], spec["device_count"]) == ("none", "float32", 8)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        pytest.param(("llama3", "debugmodel"), "vocabulary", 2048, id="LLaMA's debug model"),
        pytest.param(("llama3", "8B_flex"), "width", 4096, id="an attention kernel of its own"),
        pytest.param(("llama3", "1B"), "layers", 16, id="LLaMA 3.2"),
        pytest.param(("qwen3", "0.6B"), "head_dim", 128, id="Qwen3"),
        pytest.param(("qwen3", "debugmodel"), "intermediate", 3072, id="Qwen3's debug model"),
        pytest.param(("qwen3", "30B-A3B"), "experts", Experts(128, 8, 768, "qwen"), id="a mixture of experts"),
        pytest.param(("deepseek_v3", "671B"), "layers", 61, id="DeepSeek"),
        pytest.param(("gpt_oss", "20b"), "sinks", True, id="GPT-OSS"),
    ],
)
def test_flavors(model: tuple[str, str], key: str, value: Any) -> None:
    spec = run(JOB.replace('"llama3"', f'"{model[0]}"').replace('"8B"', f'"{model[1]}"'), "a.toml")
    assert spec.architecture == "language_model"
    assert getattr(spec[DECODER], key) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            JOB.replace('"8B"', '"9B"'), "model.flavor 9B: no flavor of llama3", id="a size that is not there"
        ),
        pytest.param(JOB.replace('"llama3"', '"flux"'), "no flavor of flux", id="another kind of model"),
        pytest.param(JOB.replace('"8B"', '"8B"\nconverters = ["float8", "mx"]'), "what mx keeps", id="MX formats"),
        pytest.param(JOB.replace('"full"', '"memory_budget"'), "memory_budget", id="the compiler decides"),
    ],
)
def test_what_is_not_known_is_named(text: str, reason: str) -> None:
    spec = run(text, "a.toml")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_devices_that_no_file_states_can_be_given() -> None:
    spec = run(JOB.replace("degree = 8", "degree = -1"), "a.toml")
    assert (spec.architecture, spec.architecture_on_devices) == (None, "language_model")
    assert "number of devices" in spec.unknown_reason
    assert "parallelism.shard" not in spec


def test_a_registry_is_read_and_not_run() -> None:
    first, full, flex, unknown = runs(REGISTRY, "ours/models/llama3/config_registry.py")
    assert [spec.run for spec in (first, full, flex)] == ["llama3_ours", "llama3_ours_full", "llama3_ours_flex"]
    assert first.architecture == "language_model"
    assert (first.model_name, first["sequence_length"], first["micro_batch_size"]) == ("llama3 8B", 2048, 2)
    assert (first["loss"], first["loss_chunks"], first["checkpointing"]) == ("chunked", 4, "selective")
    assert (first["device_count"], first["parallelism.strategy"], first["autocast"]) == (4, "fsdp2", False)
    assert (full["checkpointing"], full["micro_batch_size"], full["loss"]) == ("full", 1, "full")
    assert full["compile"] is False
    assert (flex["attention"], first["attention"]) == ("flash", "sdpa")
    assert line_of(first, "micro_batch_size") == "local_batch_size=2,"
    assert line_of(full, "micro_batch_size") == "config.training.local_batch_size = 1"
    assert unknown.architecture is None
    assert "helper" in unknown.unknown_reason


def test_a_command_takes_its_config_its_devices_and_its_options(tmp_path: Path) -> None:
    script = (
        "CONFIG_FILE=conf/a.toml\n"
        "torchrun --nproc_per_node=4 --nnodes 2 -m torchtitan.train --job.config_file ${CONFIG_FILE} \\\n"
        "  --training.local_batch_size 5 --compile.enable --parallelism.tensor_parallel_degree=2\n"
    )
    written(tmp_path, {"conf/a.toml": JOB.replace("degree = 8", "degree = -1"), "go.sh": script})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert spec.architecture == "language_model"
    assert (spec["device_count"], spec["parallelism.tensor"], spec["parallelism.shard"]) == (8, 2, 4)
    assert (spec["micro_batch_size"], spec["sequence_length"], spec["compile"]) == (5, 4096, True)
    assert "--training.local_batch_size 5" in line_of(spec, "micro_batch_size")
    edits = spell(spec, "micro_batch_size", 1)
    assert [(Path(edit.span.path).name, edit.text) for edit in edits] == [("go.sh", "1")]


def test_the_script_takes_its_config_from_the_environment(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"a.toml": JOB, "go.sh": "export CONFIG_FILE=./a.toml\nNGPU=8 ./run_train.sh --training.seq_len 128\n"},
    )
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (spec.architecture, spec.model_name, spec["sequence_length"]) == ("language_model", "llama3 8B", 128)
    assert (spec["device_count"], spec["parallelism.shard"]) == (8, 8)


def test_a_config_that_is_not_there_is_named() -> None:
    spec = run("NGPU=8 CONFIG_FILE=./no.toml ./run_train.sh", "go.sh")
    assert spec.architecture is None
    assert spec.unknown_reason == "no file ./no.toml in this repository"


def test_a_function_of_this_repository_and_options_over_it(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node=4 -m torchtitan.train --module ours.llama3 --config llama3_ours_full"
    written(tmp_path, {"ours/llama3/config_registry.py": REGISTRY, "go.sh": command + " --training.seq_len=512\n"})
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert spec.architecture == "language_model"
    assert (spec["micro_batch_size"], spec["sequence_length"], spec["checkpointing"]) == (1, 512, "full")
    assert line_of(spec, "micro_batch_size") == "config.training.local_batch_size = 1"


@pytest.mark.parametrize(
    ("name", "batch", "checkpointing"),
    [
        pytest.param("llama3_8b", 1, "selective", id="LLaMA 8B"),
        pytest.param("qwen3_32b", 2, "full", id="Qwen3 32B"),
    ],
)
def test_functions_that_torchtitan_ships(name: str, batch: int, checkpointing: str) -> None:
    module = name.split("_")[0]
    text = f"torchrun --nproc_per_node=8 -m torchtitan.train --module {module} --config {name}\n"
    spec = run(text, "go.sh")
    assert spec.architecture == "language_model"
    assert (spec["micro_batch_size"], spec["checkpointing"], spec["loss_chunks"]) == (batch, checkpointing, 8)


def test_a_function_that_is_nowhere_is_named() -> None:
    spec = run("torchrun --nproc_per_node=8 -m torchtitan.train --module ours --config mine\n", "go.sh")
    assert spec.unknown_reason == "--config mine: a function of a config registry that is not in this repository"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("a.toml", JOB.replace('"8B"', '"8B"\nconverters = ["float8"]'), id="as a converter"),
        pytest.param("a.toml", JOB + "[float8]\nenable_float8_linear = true\n", id="as an older switch"),
        pytest.param(
            "llama3/config_registry.py",
            "def llama3_x() -> T.Config:\n    return T.Config(\n        training=C(seq_len=64, local_batch_size=1),\n"
            "        parallelism=P(data_parallel_shard_degree=2),\n        model_spec=M(\n"
            "            '8B',\n            converters=[Float8LinearConverter.Config(x=C.y)],\n        ),\n    )\n",
            id="in a registry, with an argument that only running tells",
        ),
    ],
)
def test_linear_layers_in_float8_keep_what_others_keep(path: str, text: str) -> None:
    spec = run(text, path)
    assert (spec.architecture, spec["float8"], spec["compute_dtype"]) == ("language_model", True, "bfloat16")


def test_tokens_in_place_of_samples() -> None:
    lines = "num_tokens_per_microbatch_per_dp_rank = 16384\nmax_context_length = 4096\n"
    spec = run(JOB.replace("local_batch_size = 2\nseq_len = 4096\n", lines), "a.toml")
    assert (spec["micro_batch_size"], spec["sequence_length"]) == (4, 4096)


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 1, "local_batch_size = 1", id="the local batch"),
        pytest.param("sequence_length", 1024, "seq_len = 1024", id="the length of a row"),
        pytest.param("checkpointing", "none", 'mode = "none"', id="checkpointing"),
        pytest.param("compute_dtype", "float32", 'mixed_precision_param = "float32"', id="products"),
        pytest.param("parameter_dtype", "bfloat16", 'dtype = "bfloat16"', id="weights"),
        pytest.param("optimizer_implementation", "foreach", 'implementation = "foreach"', id="foreach"),
        pytest.param("parallelism.cpu_offload", True, "enable_cpu_offload = true", id="offload"),
    ],
)
def test_a_fix_is_written_in_torchtitan_s_words(fact: str, value: Any, line: str) -> None:
    edits = spell(run(JOB, "a.toml"), fact, value)
    after = apply_edits(JOB, edits)
    assert line in after.splitlines()
    assert run(after, "a.toml")[fact] == value


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        pytest.param("", True, id="a step is captured by default"),
        pytest.param("disable_cuda_graphs=True, ", None, id="unless it is switched off"),
        pytest.param("disable_cuda_graphs=False, ", True, id="or is not"),
    ],
)
def test_a_captured_step_keeps_its_gradients(lines: str, kept: bool | None) -> None:
    text = REGISTRY.replace("TrainingConfig(", "TrainingConfig(" + lines, 1)
    assert runs(text, "llama3/config_registry.py")[0].get("gradients_kept") is kept
    assert "gradients_kept" not in run(JOB, "a.toml")  # before there were graphs


def test_a_fix_of_a_registry_changes_the_argument() -> None:
    first = runs(REGISTRY, "llama3/config_registry.py")[0]
    after = apply_edits(REGISTRY, spell(first, "micro_batch_size", 1))
    assert "            local_batch_size=1,\n" in after
    assert runs(after, "llama3/config_registry.py")[0]["micro_batch_size"] == 1


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        pytest.param("gradient_accumulation_steps", 2, id="accumulation follows from the global batch"),
        pytest.param("optimizer", "adamw_8bit", id="torchtitan has no optimizer in 8 bits"),
        pytest.param("compute_dtype", "float16", id="nor float16"),
        pytest.param("attention", "flash", id="nor a choice of attention"),
    ],
)
def test_what_has_no_spelling(fact: str, value: Any) -> None:
    assert spell(run(JOB, "a.toml"), fact, value) == []


@pytest.mark.parametrize(
    ("old", "new", "kind", "key"),
    [
        pytest.param(
            '"full"', '"all"', objections.UNKNOWN_VALUE, "activation_checkpoint.mode", id="a mode that is not there"
        ),
        pytest.param(
            "size = 2", 'size = "2"', objections.WRONG_TYPE, "training.local_batch_size", id="a batch in quotes"
        ),
        pytest.param(
            "degree = 8",
            "degree = 8\ntensor_paralel_degree = 2",
            objections.UNKNOWN_KEY,
            "parallelism.tensor_paralel_degree",
            id="a misspelt key",
        ),
    ],
)
def test_a_wrong_value_is_found_at_its_key(old: str, new: str, kind: str, key: str) -> None:
    found = objections.violations(run(JOB.replace(old, new, 1), "a.toml"))
    assert [(one.kind, one.node.key_path) for one in found] == [(kind, key)]


def test_real_files_are_recognised_and_say_what_they_lack() -> None:
    folder = corpus_folder()
    for path in sorted((folder / "torchtitan").iterdir()):
        (spec,) = registry.specs(load(str(path)))
        assert spec.family == "torchtitan"
        assert (spec.architecture is None) == bool(spec.unknown_reason)


FLAVORS = """\
from torchtitan.models.llama.model import ModelArgs

llama2_configs = {
    "1B": ModelArgs(dim=2048, n_layers=18, n_heads=16),
    "13B": ModelArgs(dim=5120, n_layers=40, n_heads=40),
    "odd": ModelArgs(dim=512, n_layers=4, n_heads=4, n_experts=4),
}
llama3_configs: dict = {
    "debugmodel": ModelArgs(dim=1024, n_layers=16, n_heads=16, rope_theta=500000),
    "8B": ModelArgs(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=1024),
}
"""


@pytest.mark.parametrize(
    ("model", "flavor", "parameters"),
    [
        # Llama 2's paper and its weights: 13,015,864,320 parameters.
        pytest.param("llama2", "13B", 13_015_864_320, id="Llama 2 13B, which torchtitan had until it had Llama 3"),
        pytest.param("llama3", "8B", 8_030_261_248, id="a flavor that torchtitan ships"),
        pytest.param("llama3", "debugmodel", 468_222_976, id="a flavor with other sizes"),
    ],
)
def test_flavors_of_a_repository_s_own_copy_are_its_own(
    tmp_path: Path, model: str, flavor: str, parameters: int
) -> None:
    job = JOB.replace('"llama3"', f'"{model}"').replace('"8B"', f'"{flavor}"')
    root = written(tmp_path, {"torchtitan/models/llama/__init__.py": FLAVORS, "train_configs/a.toml": job})
    report = memlint.check([str(root)])
    assert [one.estimate.parameters for one in report.runs if one.estimate is not None] == [parameters]


def test_a_flavor_with_an_argument_that_torchtitan_has_not_is_told(tmp_path: Path) -> None:
    job = JOB.replace('"llama3"', '"llama2"').replace('"8B"', '"odd"')
    root = written(tmp_path, {"torchtitan/models/llama/__init__.py": FLAVORS, "train_configs/a.toml": job})
    (found,) = registry.specs(load(str(root / "train_configs/a.toml")))
    assert "n_experts" in found.unknown_reason


def test_a_fork_s_own_key_of_the_model_is_no_debugmodel() -> None:
    """fla-org/flame at e11e7be: flame/models/fla.toml states model.config, and its parser's default is its own."""
    job = JOB.replace('name = "llama3"\nflavor = "8B"', 'config = "ours/transformer-340M"')
    assert job != JOB
    found = run(job, "a.toml")
    assert "model.config" in found.unknown_reason
