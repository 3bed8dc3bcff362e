"""What is said of a run of which only a size is not stated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import memlint
from memlint.check import check_text
from memlint.partial import Row
from memlint.reports import full
from memlint.reports import json as as_json
from memlint.reports.report import Report, RunReport
from memlint.settings import Settings
from memlint.tape.estimate import Estimate, Interval

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))

TUNE = """\
output_dir: /tmp/x
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/t
  max_seq_len: null
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj']
  apply_lora_to_mlp: true
  lora_rank: 64
  lora_alpha: 128
batch_size: 4
gradient_accumulation_steps: 1
enable_activation_checkpointing: false
dtype: bf16
device: cuda
optimizer:
  _component_: torch.optim.AdamW
  fused: true
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
compile: false
"""
SHARED = """\
accelerate launch --use_deepspeed --zero_stage 3 --num_processes $GPUS run_clm.py --do_train \\
    --model_name_or_path gpt2 --per_device_train_batch_size 2 --block_size 256 --output_dir out
"""


def checked(path: str, text: str, budget: str = "") -> Report:
    return check_text(path, text, Settings(budget=budget) if budget else Settings())


def run_of(path: str, text: str, budget: str = "") -> RunReport:
    (run,) = checked(path, text, budget).runs
    return run


def peak_of(found: Row | Estimate) -> tuple[int, Interval]:
    return found.device_bytes, found.device_interval


def test_a_length_that_is_not_stated_leaves_a_table() -> None:
    run = run_of("lora.yaml", TUNE)
    assert run.estimate is None
    assert run.partial is not None
    assert run.partial.names == ("sequence_length",)
    assert run.partial.keys == ("tokenizer.max_seq_len",)
    assert [row.values for row in run.partial.rows] == [(512,), (2048,), (8192,), (32768,)]
    assert run.partial.most is None


def test_each_row_is_the_estimate_of_the_config_that_states_it() -> None:
    partial = run_of("lora.yaml", TUNE).partial
    assert partial is not None
    for row in partial.rows:
        stated = run_of("lora.yaml", TUNE.replace("max_seq_len: null", f"max_seq_len: {row.values[0]}"))
        assert stated.estimate is not None
        assert peak_of(row) == peak_of(stated.estimate)


def test_the_longest_sample_that_fits_fits_and_a_longer_one_does_not() -> None:
    partial = run_of("lora.yaml", TUNE, "24GB").partial
    assert partial is not None
    assert partial.most is not None
    assert partial.most % 256 == 0
    for length, fits in ((partial.most, True), (partial.most + 256, False)):
        run = run_of("lora.yaml", TUNE.replace("max_seq_len: null", f"max_seq_len: {length}"), "24GB")
        assert (run.verdict == "FITS") is fits


@pytest.mark.parametrize(
    ("budget", "most"),
    [pytest.param("1GB", 0, id="none where not even the shortest does"), pytest.param("2000GB", None, id="any")],
)
def test_what_fits_at_either_end(budget: str, most: int | None) -> None:
    partial = run_of("lora.yaml", TUNE, budget).partial
    assert partial is not None
    assert partial.most == most


def test_devices_that_only_the_environment_knows_leave_a_table_of_them() -> None:
    partial = run_of("run.sh", SHARED).partial
    assert partial is not None
    assert partial.names == ("device_count",)
    assert [row.values for row in partial.rows] == [(1,), (2,), (4,), (8,)]
    for row in partial.rows:
        run = run_of("run.sh", SHARED.replace("$GPUS", str(row.values[0])))
        assert run.estimate is not None
        assert peak_of(row) == peak_of(run.estimate)


DEEP = SHARED.replace("--use_deepspeed --zero_stage 3 --num_processes $GPUS", "--num_processes 2")
DEEP = DEEP.rstrip("\n") + " --deepspeed NAME\n"
ZERO = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
OFFLOAD = {"device": "cpu"}


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        pytest.param("scripts/zero3.json", ["ZeRO-3", "offloaded ZeRO-3"], id="a stage in the name"),
        pytest.param("ds_z2_offload_config.json", ["offloaded ZeRO-2"], id="offloading in the name"),
        pytest.param("deepspeed_config_s1.json", ["ZeRO-1", "offloaded ZeRO-1"], id="the stage as a letter"),
        pytest.param(
            "ds_config.json", ["ZeRO-2", "ZeRO-3", "offloaded ZeRO-2", "offloaded ZeRO-3"], id="nothing in the name"
        ),
        pytest.param("$CONFIG", ["ZeRO-2", "ZeRO-3", "offloaded ZeRO-2", "offloaded ZeRO-3"], id="no name at all"),
    ],
)
def test_a_config_of_deepspeed_that_is_not_there_leaves_a_table_of_what_it_may_say(name: str, ways: list[str]) -> None:
    partial = run_of("run.sh", DEEP.replace("NAME", name)).partial
    assert partial is not None
    assert partial.names == ("sharding",)
    assert partial.keys == ("--deepspeed",)
    assert [row.values for row in partial.rows] == [(way,) for way in ways]


@pytest.mark.parametrize(
    ("way", "zero"),
    [
        ("ZeRO-2", {"stage": 2}),
        ("ZeRO-3", {"stage": 3}),
        ("offloaded ZeRO-2", {"stage": 2, "offload_optimizer": OFFLOAD}),
        ("offloaded ZeRO-3", {"stage": 3, "offload_optimizer": OFFLOAD, "offload_param": OFFLOAD}),
    ],
)
def test_each_way_to_share_is_the_estimate_of_the_file_that_says_it(
    tmp_path: Path, way: str, zero: dict[str, object]
) -> None:
    automatic = dict.fromkeys(
        ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
    )
    (tmp_path / "there.json").write_text(json.dumps({**ZERO, "zero_optimization": {**automatic, **zero}}))
    there = run_of(str(tmp_path / "run.sh"), DEEP.replace("NAME", "there.json"))
    partial = run_of(str(tmp_path / "run.sh"), DEEP.replace("NAME", "gone.json")).partial
    assert there.estimate is not None
    assert partial is not None
    (row,) = (row for row in partial.rows if row.values == (way,))
    assert peak_of(row) == peak_of(there.estimate)


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        pytest.param("configs/fsdp_qlora.yaml", ["FSDP"], id="FSDP"),
        pytest.param("deepspeed_zero3.yaml", ["ZeRO-3", "offloaded ZeRO-3"], id="DeepSpeed's stage"),
        pytest.param("deepspeed.yaml", ["ZeRO-2", "ZeRO-3", "offloaded ZeRO-3"], id="DeepSpeed"),
        pytest.param("default_config.yaml", ["DDP", "ZeRO-2", "ZeRO-3", "FSDP"], id="nothing in the name"),
    ],
)
def test_a_config_of_accelerate_that_is_not_there_does_too(name: str, ways: list[str]) -> None:
    text = SHARED.replace("--use_deepspeed --zero_stage 3 --num_processes $GPUS", f"--config_file {name}")
    partial = run_of("run.sh", text).partial
    assert partial is not None
    assert partial.names == ("sharding", "device_count")
    assert [row.values for row in partial.rows] == [(way, count) for way in ways for count in (2, 8)]
    assert partial.rows[0].told(partial.names) == f"under {ways[0]} with 2 devices"


def test_how_many_devices_there_are_does_not_matter_where_none_shares_anything() -> None:
    text = SHARED.replace("--use_deepspeed --zero_stage 3 --num_processes $GPUS", "--config_file multi_gpu.yaml")
    partial = run_of("run.sh", text).partial
    assert partial is not None
    assert [row.told(partial.names) for row in partial.rows] == ["under DDP"]


MODEL_PARALLEL = """\
{"num_layers": 2, "hidden_size": 512, "num_attention_heads": 16, "seq_length": 256, "max_position_embeddings": 256,
 "padded_vocab_size": 50304, "train_micro_batch_size_per_gpu": 1, "model_parallel_size": 4, "pipe_parallel_size": 1,
 "zero_optimization": {"stage": 1}, "precision": "fp16", "optimizer": {"type": "Adam", "params": {"lr": 0.001}}}
"""


@pytest.mark.parametrize(("degree", "devices"), [(4, [4, 8, 16, 32]), (16, [16, 32, 64, 128])])
def test_a_copy_of_the_model_needs_as_many_devices_as_share_it(degree: int, devices: list[int]) -> None:
    text = MODEL_PARALLEL.replace('"model_parallel_size": 4', f'"model_parallel_size": {degree}')
    partial = run_of("a.yml", text).partial
    assert partial is not None
    assert [row.values for row in partial.rows] == [(count,) for count in devices]


NEOX = MODEL_PARALLEL.replace('"padded_vocab_size": 50304', '"tokenizer_type": "HFTokenizer", "global_num_gpus": 8')
MEGATRON = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 16 \\
    --seq-length 256 --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 8 --train-iters 5 --bf16 \\
    --tokenizer-type SentencePieceTokenizer --tokenizer-model tokens.model
"""
NEMO = """\
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 8
  encoder_seq_length: 256
  max_position_embeddings: 256
  num_layers: 2
  hidden_size: 512
  num_attention_heads: 16
  activation: gelu
  optim: {name: fused_adam}
  tokenizer: {library: sentencepiece, type: null, model: tokens.model}
"""


@pytest.mark.parametrize(
    ("path", "text", "stated", "key", "rows"),
    [
        pytest.param(
            *("a.yml", NEOX, lambda rows: NEOX.replace('"num_layers"', f'"padded_vocab_size": {rows}, "num_layers"')),
            *("padded_vocab_size", [32256, 50688, 128512, 256000]),
            id="GPT-NeoX, with four devices to a model",
        ),
        pytest.param(
            *("a.sh", MEGATRON, lambda rows: MEGATRON.replace("--bf16", f"--bf16 --padded-vocab-size {rows}")),
            *("padded-vocab-size", [32000, 64000, 256000]),
            id="Megatron-LM, pieces",
        ),
        pytest.param(
            *("a.yaml", NEMO, lambda rows: NEMO.replace("model:\n", f"model:\n  override_vocab_size: {rows}\n", 1)),
            *("model.override_vocab_size", [32000, 64000, 256000]),
            id="NeMo, pieces",
        ),
    ],
)
def test_a_vocabulary_that_only_its_file_counts_leaves_a_table_of_its_rows(
    path: str, text: str, stated: Callable[[int], str], key: str, rows: list[int]
) -> None:
    run = run_of(path, text)
    assert run.estimate is None
    assert run.partial is not None
    assert (run.partial.names, run.partial.keys) == (("vocabulary_size",), (key,))
    assert [row.values for row in run.partial.rows] == [(count,) for count in rows]
    for row in run.partial.rows:
        alone = run_of(path, stated(row.values[0])).estimate
        assert alone is not None
        assert peak_of(row) == peak_of(alone)
    report = checked(path, text)
    jsonschema.validate(json.loads(as_json.render(report)), SCHEMA)
    assert f"{rows[0]:,} rows of the vocabulary" in full.render(report)
    (finding,) = (one for one in run.findings if one.code == "MEM007")
    assert "is in its file" in finding.message


def test_a_vocabulary_and_the_devices_may_be_open() -> None:
    partial = run_of("a.yml", NEOX.replace(', "global_num_gpus": 8', "")).partial
    assert partial is not None
    assert partial.names == ("vocabulary_size", "device_count")
    assert [row.values for row in partial.rows] == [(32256, 4), (32256, 32), (256000, 4), (256000, 32)]


def test_both_may_be_open() -> None:
    partial = run_of("run.sh", SHARED.replace("--block_size 256 ", "--block_size $N ")).partial
    assert partial is not None
    assert partial.names == ("sequence_length", "device_count")
    assert {row.values[0] for row in partial.rows} == {1024}  # all that GPT-2 takes


OURS = "ours/SmolLM2-135M-sft"  # a checkpoint that only its owner has


@pytest.mark.parametrize(
    ("text", "names", "told"),
    [
        pytest.param("1 {} --block_size 256", ["model"], ["as {}"], id="the model alone"),
        pytest.param(
            "$N {} --block_size 256",
            ["model", "device_count"],
            ["as {} with 1 device", "as {} with 8 devices"],
            id="and the devices",
        ),
        pytest.param(
            "1 {} --block_size $N",
            ["model", "sequence_length"],
            ["as {} with 2,048 tokens", "as {} with 8,192 tokens"],
            id="and the length",
        ),
    ],
)
def test_a_model_that_nobody_knows_is_as_the_one_that_it_is_called_after(
    text: str, names: list[str], told: list[str]
) -> None:
    known = "HuggingFaceTB/SmolLM2-135M"
    line = SHARED.replace("$GPUS run_clm.py", text.split()[0] + " run_clm.py").replace("gpt2", "{}")
    line = line.replace("--block_size 256", text.partition("{} ")[2])
    partial = run_of("run.sh", line.format(OURS)).partial
    assert partial is not None
    assert list(partial.names) == names
    assert [row.told(partial.names) for row in partial.rows] == [one.format(known) for one in told]
    if len(names) == 1:
        stated = run_of("run.sh", line.format(known)).estimate
        assert stated is not None
        assert [row.device_interval for row in partial.rows] == [stated.device_interval]
    report = checked("run.sh", line.format(OURS))
    jsonschema.validate(json.loads(as_json.render(report)), SCHEMA)
    assert f"as {known}" in full.render(report)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("lora_llama3_2_1b", "no_such_builder", id="the model"),
        pytest.param("torch.optim.AdamW", "somebodys.Own", id="the optimizer"),
    ],
)
def test_where_more_is_unknown_there_is_no_table(old: str, new: str) -> None:
    run = run_of("lora.yaml", TUNE.replace(old, new))
    assert run.estimate is None
    assert run.partial is None


def test_what_is_unknown_whatever_the_devices_is_the_reason() -> None:
    text = SHARED.replace("--model_name_or_path gpt2", "--model_name_or_path openai/gpt-oss-20b --fp16")
    text = text.replace("run_clm.py --do_train", "run_clm.py --do_train --use_peft --lora_dropout 0.1")
    run = run_of("run.sh", text)
    assert run.partial is not None
    assert run.partial.at_least
    assert run.unknown.endswith(": lora_r is not stated")


def test_the_finding_says_the_range_and_what_fits() -> None:
    (finding,) = (one for one in run_of("lora.yaml", TUNE, "24GB").findings if one.code == "MEM007")
    assert finding.message.startswith("no single estimate: ")
    assert "with 512 tokens" in finding.message
    assert "with 32,768 tokens" in finding.message
    assert "fits 24.0 GiB up to" in finding.message


def test_the_table_is_in_the_reports() -> None:
    report = checked("lora.yaml", TUNE, "24GB")
    text = full.render(report)
    assert "peak unknown without tokenizer.max_seq_len:" in text
    assert "32,768 tokens" in text
    data = json.loads(as_json.render(report))
    jsonschema.validate(data, SCHEMA)
    (run,) = data["files"]
    assert run["partial"]["open"] == [{"fact": "sequence_length", "key": "tokenizer.max_seq_len"}]
    assert [row["sequence_length"] for row in run["partial"]["rows"]] == [512, 2048, 8192, 32768]


def test_a_run_with_an_estimate_has_no_table() -> None:
    assert memlint.check(str(ROOT / "examples/uni3d_dp/uni3d+dp.yaml")).runs[0].partial is None
