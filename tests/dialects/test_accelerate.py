"""Family accelerate: a config alone, what accelerate launch makes of it, and against accelerate itself."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.dialects import registry
from memlint.dialects.accelerate import accelerate_facts, launched
from memlint.documents.load import load
from tests.dialects.language_models import line_of, run, runs, written

CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
"""


def facts(text: str, path: str = "a.yaml") -> dict[str, Any]:
    found = accelerate_facts(load(path, text).root, path)
    return {name: fact.value for name, fact in found.facts.items()}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param("distributed_type: MULTI_GPU\nnum_processes: 2", True, id="a type and processes"),
        pytest.param(
            "compute_environment: LOCAL_MACHINE\nmixed_precision: fp16", True, id="an environment and a precision"
        ),
        pytest.param("mixed_precision: bf16\nnum_processes: 2", False, id="a precision says nothing"),
        pytest.param("num_processes: 2", False, id="processes say nothing"),
    ],
)
def test_recognition(text: str, known: bool) -> None:
    assert [spec.family for spec in runs(text)] == (["accelerate"] if known else [])


def test_a_config_alone_is_understood_and_names_no_model() -> None:
    spec = run(CONFIG)
    expected = {
        "device_count": 16,
        "machines": 2,
        "parallelism.strategy": "fsdp1",
        "parallelism.shard": 8,
        "compute_dtype": "bfloat16",
        "parallelism.cpu_offload": False,
        "parallelism.reshard_after_forward": True,
        "saves_full_weights": True,
    }
    assert {name: spec[name] for name in expected} == expected
    assert "parallelism.wrap" not in spec
    assert line_of(spec, "parallelism.shard") == "fsdp_sharding_strategy: HYBRID_SHARD"
    assert spec.architecture is None
    assert "names no model; check the launch script" in spec.unknown_reason
    assert spec.missing == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "distributed_type: MULTI_GPU\nnum_processes: 8",
            {"parallelism.strategy": "ddp", "device_count": 8},
            id="data parallel",
        ),
        pytest.param(
            "distributed_type: 'NO'\nnum_processes: 8",
            {"parallelism.strategy": "none", "device_count": 1},
            id="NO is one process",
        ),
        pytest.param("distributed_type: NO\nnum_processes: 8", {"device_count": 1}, id="which YAML reads as false"),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}",
            {"parallelism.strategy": "fsdp2", "parallelism.wrap": None},
            id="the second version, layer by layer",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}",
            {"parallelism.reshard_after_forward": False},
            id="weights stay gathered",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {}", {"parallelism.wrap": "none"}, id="no policy wraps nothing"
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 2000}",
            {"parallelism.wrap_elements": 2000},
            id="by size",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}",
            {"parallelism.reshard_after_forward": False},
            id="a strategy by its number",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: NO_SHARD}",
            {"parallelism.strategy": "ddp"},
            id="nothing is sharded",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: SHARD_GRAD_OP}",
            {"parallelism.reshard_after_forward": False},
            id="the first version under the second's key",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: 'true'}",
            {"parallelism.cpu_offload": True},
            id="true as text",
        ),
        pytest.param(
            "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,"
            " fsdp_transformer_layer_cls_to_wrap: 'A, B'}",
            {"parallelism.wrap": ["A", "B"]},
            id="layers by name",
        ),
        pytest.param(
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_param_device: cpu}",
            {
                "parallelism.zero_stage": 3,
                "parallelism.offload_parameters": True,
                "parallelism.reduce_bucket_elements": 500_000_000,
            },
            id="ZeRO stage 3",
        ),
        pytest.param(
            "distributed_type: DEEPSPEED\ndeepspeed_config: {}", {"parallelism.zero_stage": 2}, id="stage 2 by default"
        ),
        pytest.param(
            "distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_accumulation_steps: 4}",
            {"gradient_accumulation_steps": 4},
            id="accumulation",
        ),
        pytest.param("distributed_type: MULTI_GPU\nmixed_precision: fp8", {"mixed_precision": "fp8"}, id="float8"),
        pytest.param(
            "distributed_type: MULTI_GPU\nmixed_precision: 'no'", {"mixed_precision": None}, id="full precision"
        ),
        pytest.param(
            "distributed_type: MULTI_GPU\ndynamo_config: {dynamo_backend: INDUCTOR}", {"compile": True}, id="compiled"
        ),
        pytest.param(
            "distributed_type: MULTI_GPU\ndynamo_config: {dynamo_backend: 'NO'}", {"compile": None}, id="not compiled"
        ),
        pytest.param(
            "distributed_type: FSDP\n"
            "parallelism_config: {parallelism_config_tp_size: 2, parallelism_config_cp_size: 4}",
            {"parallelism.tensor": 2, "parallelism.context": 4},
            id="degrees",
        ),
    ],
)
def test_values(text: str, expected: dict[str, Any]) -> None:
    found = facts(text + "\n")
    assert {name: found.get(name) for name in expected} == expected


def test_a_kind_that_is_not_known_is_missing() -> None:
    found = accelerate_facts(load("a.yaml", "distributed_type: MEGATRON_LM\nnum_processes: 2\n").root)
    assert [(item.key, item.reason) for item in found.missing] == [("distributed_type", "MEGATRON_LM is not known")]


def test_a_deepspeed_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: nowhere.json}\n"
    root = written(tmp_path, {"a.yaml": text})
    (spec,) = registry.specs(load(str(root / "a.yaml")))
    assert [item.reason for item in spec.missing] == ["no file nowhere.json in this repository"]
    assert spec["parallelism.strategy"] == "zero"


def test_a_program_of_no_family_is_what_accelerate_says_of_it() -> None:
    spec = run("accelerate launch --num_processes 4 --mixed_precision bf16 tools/fit.py --lr 1\n", "fit.sh")
    assert (spec.family, spec["device_count"], spec["parallelism.strategy"]) == ("accelerate", 4, "ddp")
    assert spec.unknown_reason.startswith(
        "tools/fit.py is a program of no known family, whose own code makes the model: "
    )


def test_a_program_that_an_argument_names_is_not_said_to_be_of_no_family() -> None:
    spec = run("accelerate launch --num_processes 4 src/$1.py --lr 1\n", "fit.sh")
    assert spec.unknown_reason == "which program src/$1.py is, is not known: argument 1 of the script"


# ------------------------------------------------------------------------------------------------ against accelerate

TEMPLATES = {
    "ddp.yaml": """\
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        mixed_precision: fp16
        num_machines: 1
        num_processes: 2
        """,
    "fsdp.yaml": CONFIG,
    "fsdp2.yaml": CONFIG.replace(
        "fsdp_config:", "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false"
    ),
    "zero.yaml": """\
        compute_environment: LOCAL_MACHINE
        distributed_type: DEEPSPEED
        mixed_precision: bf16
        num_machines: 1
        num_processes: 4
        deepspeed_config:
          zero_stage: 3
          offload_optimizer_device: cpu
          gradient_accumulation_steps: 2
        """,
}
LAUNCHES = [
    "--config_file ddp.yaml",
    "--config_file ddp.yaml --num_processes 8 --mixed_precision bf16",
    "--config_file fsdp.yaml",
    "--config_file fsdp.yaml --num_processes 32 --num_machines 4",
    "--config-file fsdp.yaml --fsdp_offload_params true",
    "--config_file fsdp2.yaml --mixed_precision no",
    "--config_file zero.yaml",
    "--config_file zero.yaml --num_processes 16 --zero_stage 2 --offload_optimizer_device none",
]


@pytest.mark.parametrize("options", LAUNCHES)
def test_what_the_launcher_hands_on_is_what_accelerate_hands_on(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    root = written(tmp_path, {**TEMPLATES, "train.sh": f"accelerate launch {options} train.py --x 1\n"})
    monkeypatch.chdir(root)
    real, _, _ = _validate_launch_command(launch_command_parser().parse_args([*shlex.split(options), "train.py"]))
    (command,) = load("train.sh").commands
    found = launched(command, "train.sh")
    assert found is not None
    ours = {name: fact.value for name, fact in found.facts.items()}
    assert ours["device_count"] == int(real.num_processes)
    precision = {"bf16": "bfloat16", "fp16": "float16", "no": None}
    assert ours["mixed_precision"] == precision[real.mixed_precision]
    kind = (
        "zero"
        if real.use_deepspeed
        else f"fsdp{real.fsdp_version}"
        if real.use_fsdp
        else "ddp"
        if real.multi_gpu
        else "none"
    )
    assert ours["parallelism.strategy"] == kind
    if real.use_fsdp:
        assert ours["parallelism.cpu_offload"] is (str(real.fsdp_offload_params).lower() == "true")
    if kind == "fsdp2":
        assert ours["parallelism.reshard_after_forward"] is (str(real.fsdp_reshard_after_forward).lower() == "true")
    if real.use_deepspeed:
        assert ours["parallelism.zero_stage"] == int(real.zero_stage)
        assert ours["parallelism.offload_optimizer"] is (real.offload_optimizer_device == "cpu")
        assert ours["gradient_accumulation_steps"] == int(real.gradient_accumulation_steps)


def test_settings_of_a_launcher_that_a_walk_meets_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')
    (tmp_path / "fsdp.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n")
    assert memlint.check(str(tmp_path), isolated=True).runs == ()
    (named,) = memlint.check([str(tmp_path / "fsdp.yaml"), str(tmp_path)], isolated=True).runs
    assert named.family == "accelerate"


def test_settings_of_a_launcher_that_are_wrong_are_reported_wherever_they_are_met(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: many\n"
    )
    (run,) = memlint.check(str(tmp_path), isolated=True).runs
    assert "MEM008" in {finding.code for finding in run.findings}
