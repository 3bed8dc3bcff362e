"""Family deepspeed: a config alone, and as a companion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.dialects import registry
from memlint.dialects.deepspeed import AUTO, deepspeed_facts
from memlint.documents.load import load
from memlint.plugin import Finding
from tests.dialects.language_models import line_of, run, runs, written

CONFIG = """\
{
  // comments are common in these files
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "train_batch_size": 64,
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "allgather_bucket_size": 2e8,
    "reduce_bucket_size": 5e7
  },
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
"""


def facts(text: str) -> dict[str, Any]:
    found = deepspeed_facts(load("zero.json", text).root)
    return {name: fact.value for name, fact in found.facts.items()}


@pytest.mark.parametrize(
    ("path", "text", "known"),
    [
        pytest.param("z.json", '{"zero_optimization": {"stage": 3}}', True, id="ZeRO alone is enough"),
        pytest.param("z.yaml", '{"zero_optimization": {"stage": 3}}', True, id="in a YAML file"),
        pytest.param(
            "z.json", '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}', True, id="a batch and bf16"
        ),
        pytest.param("z.json", '{"train_batch_size": 8}', False, id="a batch alone says nothing"),
        pytest.param("z.json", '{"optimizer": {"type": "AdamW"}, "batch": 1}', False, id="an optimizer says nothing"),
        pytest.param(
            "z.yaml",
            "zero_optimization: {stage: 1}\nnum_layers: 12\npipe_parallel_size: 1",
            False,
            id="GPT-NeoX embeds it",
        ),
        pytest.param(
            "z.json", '{"zero_optimization": {"stage": 3}, "model_name_or_path": "x"}', False, id="a trainer embeds it"
        ),
    ],
)
def test_recognition(path: str, text: str, known: bool) -> None:
    assert ("deepspeed" in [spec.family for spec in runs(text, path)]) == known


def test_a_config_alone_is_understood_and_names_no_model() -> None:
    spec = run(CONFIG, "zero.json")
    expected = {
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 64,
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 2,
        "parallelism.offload_optimizer": True,
        "parallelism.offload_parameters": False,
        "parallelism.gather_bucket_elements": 200_000_000,
        "parallelism.reduce_bucket_elements": 50_000_000,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
        "master_weights": True,
        "optimizer": "adamw",
        "optimizer_library": "deepspeed",
        "optimizer_implementation": "fused",
    }
    assert {name: spec[name] for name in expected} == expected
    assert line_of(spec, "parallelism.zero_stage") == '"stage": 2,'
    assert line_of(spec, "master_weights").startswith('"bf16"')
    assert spec.architecture is None
    assert "names no model; check the script" in spec.unknown_reason
    assert (spec.missing, spec.conflicts) == ((), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("{}", {"parallelism.zero_stage": 0, "deepspeed_dtype": "float32"}, id="nothing"),
        pytest.param('{"zero_optimization": true}', {"parallelism.zero_stage": 1}, id="a bare true is stage 1"),
        pytest.param(
            '{"zero_optimization": {"stage": 3}}',
            {
                "parallelism.reduce_bucket_elements": 500_000_000,
                "parallelism.prefetch_bucket_elements": 50_000_000,
                "parallelism.persistence_elements": 100_000,
                "parallelism.live_parameter_elements": 1_000_000_000,
                "parallelism.sub_group_elements": 1_000_000_000,
            },
            id="DeepSpeed's defaults",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 2, "cpu_offload": true}}',
            {"parallelism.offload_optimizer": True},
            id="the older spelling of offload",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}',
            {"parallelism.offload_parameters": True},
            id="weights on a disk",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "auto"}}}',
            {"parallelism.offload_parameters": False},
            id="a device that is left to DeepSpeed",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}}',
            {"parallelism.offload_parameters": False},
            id="none is on the card",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 3, "max_live_parameters": 0}}',
            {"parallelism.live_parameter_elements": 0},
            id="names without the stage",
        ),
        pytest.param(
            '{"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}',
            {"parallelism.reduce_bucket_elements": AUTO},
            id="auto is left to the trainer",
        ),
        pytest.param(
            '{"fp16": {"enabled": true, "loss_scale": 0}}',
            {"deepspeed_dtype": "float16", "loss_scaling": "dynamic"},
            id="fp16 with dynamic scaling",
        ),
        pytest.param('{"fp16": {"enabled": true, "loss_scale": 128}}', {"loss_scaling": 128}, id="a fixed scale"),
        pytest.param(
            '{"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}', {"deepspeed_dtype": AUTO}, id="either"
        ),
        pytest.param(
            '{"fp16": {"enabled": "auto"}, "bf16": {"enabled": true}}',
            {"deepspeed_dtype": "bfloat16"},
            id="bf16 in any case",
        ),
        pytest.param('{"bf16": {"enabled": false}}', {"deepspeed_dtype": "float32"}, id="switched off"),
        pytest.param(
            '{"optimizer": {"type": "AdamW", "params": {"torch_adam": true}}}',
            {"optimizer": "adamw", "optimizer_library": "torch", "optimizer_implementation": "foreach"},
            id="torch's Adam",
        ),
        pytest.param('{"optimizer": {"type": "OneBitAdam"}}', {"optimizer": "onebit_adam"}, id="1-bit Adam"),
        pytest.param(
            '{"data_types": {"grad_accum_dtype": "fp32"}}', {"gradient_dtype": "float32"}, id="gradients in fp32"
        ),
        pytest.param(
            '{"communication_data_type": "fp32"}', {"parallelism.reduce_dtype": "float32"}, id="reduction in fp32"
        ),
        pytest.param('{"tensor_parallel": {"autotp_size": 4}}', {"parallelism.tensor": 4}, id="tensor parallelism"),
    ],
)
def test_values(text: str, expected: dict[str, Any]) -> None:
    found = facts(text)
    assert {name: found.get(name) for name in expected} == expected


def test_a_value_that_no_reader_takes_is_missing() -> None:
    found = deepspeed_facts(load("zero.json", '{"zero_optimization": {"stage": 7}}').root)
    assert [item.key for item in found.missing] == ["zero_optimization.stage"]


@pytest.mark.parametrize("value", ["0", "-1", "[]", "1024"])
def test_a_switch_of_the_wrong_type_is_missing_and_nothing_else_is(value: str) -> None:
    found = deepspeed_facts(load("zero.json", CONFIG.replace('"enabled": true', f'"enabled": {value}')).root)
    assert [item.key for item in found.missing] == ["bf16.enabled"]
    assert found.facts["parallelism.zero_stage"].value == 2


def test_the_key_that_comes_last_counts_and_the_first_is_a_finding(tmp_path: Any) -> None:
    text = '{"zero_optimization": {"stage": 3,\n "reduce_bucket_size": 1,\n "reduce_bucket_size": 2}}\n'
    root = written(tmp_path, {"zero.json": text})
    report = memlint.check(str(root / "zero.json"))
    (entry,) = report.runs
    doubled: list[Finding] = [finding for finding in entry.findings if finding.code == "MEM006"]
    assert [finding.span.line for finding in doubled] == [3]
    assert entry.facts["parallelism.reduce_bucket_elements"].value == 2


def test_what_is_wrong_in_a_file_that_a_run_reads_is_said(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2, "overlap_com": true}}')
    (tmp_path / "train.yaml").write_text(
        "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nmax_length: 128\nlearning_rate: 0.1\n"
        "deepspeed: zero.json\noutput_dir: out\ndataset_name: d\n"
    )
    report = memlint.check(str(tmp_path), isolated=True)
    said = [finding.message for finding in report.findings if Path(finding.span.path).name == "zero.json"]
    assert any("overlap_com" in message for message in said)


MODEL = "HuggingFaceTB/SmolLM2-135M"
LAUNCH = f"accelerate launch --use_deepspeed --deepspeed_config_file {{}} run_clm.py --model_name_or_path {MODEL}"


def test_a_file_whose_suffix_says_nothing_is_read_as_the_key_that_names_it_means_it(tmp_path: Path) -> None:
    script = LAUNCH.format("stage3.conf") + " --block_size 64\n"
    root = written(tmp_path, {"run.sh": script, "stage3.conf": '{"zero_optimization": {"stage": 3}}\n'})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec["parallelism.strategy"], spec["parallelism.zero_stage"]) == ("zero", 3)


def test_what_the_trainer_fills_in_is_filled_in_where_accelerate_names_the_file(tmp_path: Path) -> None:
    zero = '{"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": true}}'
    root = written(tmp_path, {"run.sh": LAUNCH.format("z.json") + " --block_size 64\n", "z.json": zero})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec["parallelism.reduce_bucket_elements"] == 576 * 576


def test_a_file_that_cannot_be_read_is_no_empty_config(tmp_path: Path) -> None:
    script = LAUNCH.format("stage3.conf") + " --block_size 64\n"
    root = written(tmp_path, {"run.sh": script, "stage3.conf": "stage = 3\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec.architecture is None
    assert [item.reason for item in spec.missing if "not a kind of file that memlint reads" in item.reason]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            '{"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}}',
            "compression_training.weight_quantization.shared_parameters.enabled True: what its compressed layers keep",
            id="a compressed model",
        ),
        pytest.param(
            '{"compression_training": {"layer_reduction": {"enabled": false}}}', "", id="compression that is off"
        ),
        pytest.param(
            '{"data_efficiency": {"enabled": true, "data_routing": {"random_ltd": {"enabled": true}}}}',
            "data_efficiency.data_routing.random_ltd.enabled True: how many tokens a layer sees changes",
            id="layers that see some of the tokens",
        ),
    ],
)
def test_what_has_another_model_trained_is_named(tmp_path: Path, text: str, why: str) -> None:
    root = written(tmp_path, {"run.sh": LAUNCH.format("z.json") + " --block_size 64\n", "z.json": text})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec.unknown_reason.startswith(why) if why else "compression" not in spec.unknown_reason
    (alone,) = registry.specs(load(str(root / "z.json"))) or [spec]
    assert alone.family != "deepspeed" or "names no model" in alone.unknown_reason


def test_a_size_that_is_null_is_one_that_deepspeed_finds_of_the_others(tmp_path: Path) -> None:
    """DeepSpeed 0.17, runtime/config_utils.py: ``get_scalar_param`` takes a null for what is not there."""
    sizes = '"train_batch_size": 128, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": null'
    text = f'{{{sizes}, "bf16": {{"enabled": true}}}}'
    (tmp_path / "ds.json").write_text(text, encoding="utf-8")
    assert not [one.code for one in memlint.check([str(tmp_path / "ds.json")]).findings if one.code == "MEM008"]
