"""Family open-instruct: its command lines and files, by the code of ``finetune.py`` and ``dpo_tune_cache.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from tests.dialects.language_models import run, runs, written

MODEL = "--model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096"
ZERO = '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}'


def started(program: str = "finetune", options: str = "", launcher: str = "--num_processes 1") -> TrainingSpec:
    return run(
        f"accelerate launch --mixed_precision bf16 {launcher} open_instruct/{program}.py {MODEL} {options}\n", "a.sh"
    )


def test_what_is_not_written_is_as_the_code_has_it() -> None:
    spec = started()
    assert spec.architecture == "language_model", spec.unknown_reason
    assert (spec["method"], spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == ("sft", 8, 1)
    assert (spec["parameter_dtype"], spec["compute_dtype"], spec["autocast"]) == ("bfloat16", "bfloat16", True)
    assert (spec["optimizer"], spec["optimizer_implementation"], spec["checkpointing"]) == ("adamw", "fused", "none")
    assert (spec["tuning"], spec["attention"], spec.get("outputs_kept")) == ("full", "flash", None)


@pytest.mark.parametrize(
    ("program", "options", "facts"),
    [
        pytest.param(
            "finetune",
            "--use_lora",
            {"tuning": "lora", "lora.r": 64, "lora.alpha": 16, "lora.dropout": 0.1},
            id="adapters",
        ),
        pytest.param(
            "finetune",
            "--use_lora --use_qlora",
            {
                "quantization.bits": 4,
                "quantization.kind": "nf4",
                "quantization.prepared": True,
                "optimizer_paged": True,
            },
            id="on 4 bits, with a paged optimizer",
        ),
        pytest.param("finetune", "--packing", {"padding_free": True}, id="one row without padding"),
        pytest.param("finetune", "--use_liger_kernel", {"loss": "fused"}, id="Liger's loss"),
        pytest.param("dpo_tune_cache", "--use_liger_kernel", {"loss": None}, id="which DPO leaves off"),
        pytest.param(
            "dpo_tune_cache",
            "",
            {
                "method": "dpo",
                "sequences_per_sample": 2,
                "reference_model": "precomputed",
                "log_probabilities": "uncut",
            },
            id="DPO, whose reference was asked before",
        ),
        pytest.param("dpo_tune_cache", "--loss_type simpo", {"reference_model": "none"}, id="SimPO needs none"),
        pytest.param(
            "dpo_tune_cache", "--activation_memory_budget 0.5", {"checkpointing": "full"}, id="a budget for activations"
        ),
        pytest.param(
            "dpo_tune_cache",
            "--zero_stage 3 --offload_optimizer",
            {
                "parallelism.zero_stage": 3,
                "parallelism.reduce_bucket_elements": 4096 * 4096,
                "parallelism.offload_optimizer": True,
            },
            id="a stage of DeepSpeed's",
        ),
    ],
)
def test_switches(program: str, options: str, facts: dict[str, Any]) -> None:
    spec = started(program, options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_mason_multiplies_the_processes_by_its_nodes(tmp_path: Path) -> None:
    """mason.py writes ``--num_processes`` anew; states in fp32 are shared by all of them."""
    launch = "accelerate launch --mixed_precision bf16 --num_processes 8 --use_deepspeed --deepspeed_config_file z.conf"
    script = f"python mason.py --num_nodes 8 --gpus 8 -- {launch} open_instruct/finetune.py {MODEL}"
    options = "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --gradient_checkpointing"
    root = written(tmp_path, {"run.sh": f"{script} {options}\n", "z.conf": ZERO})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec["device_count"], spec["parallelism.zero_stage"]) == (64, 3)
    found = estimate_spec(spec)
    assert found.parameters == 8_030_261_248
    parts = {part.name: part.size_bytes for part in found.components}
    assert parts["optimizer"] == pytest.approx(12 * found.parameters / 64, rel=1e-3)
    assert parts["parameters"] == pytest.approx(2 * found.parameters / 64, rel=0.03)  # small ones are whole on each


@pytest.mark.parametrize(
    ("lines", "method"),
    [
        pytest.param("dataset_mixer: {ours: 1.0}\nwith_tracking: true", "sft", id="a file of finetune.py"),
        pytest.param("dataset_mixer: {ours: 1.0}\nwith_tracking: true\nloss_type: dpo_norm", "dpo", id="one of DPO"),
        pytest.param(
            "use_slow_tokenizer: true\nwith_tracking: true\nnum_epochs: 1", "dpo", id="which counts its epochs"
        ),
    ],
)
def test_files_tell_their_program_by_its_options(lines: str, method: str) -> None:
    spec = run(f"model_name_or_path: meta-llama/Llama-3.1-8B\nmax_seq_length: 2048\n{lines}\n", "a.yaml")
    assert (spec.family, spec["method"]) == ("open-instruct", method)
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("program", "families"),
    [
        pytest.param("merge_lora", [], id="merging"),
        pytest.param("benchmark_generators", [], id="a benchmark"),
        pytest.param("grpo_fast", ["open-instruct"], id="GRPO, which has no estimate"),
    ],
)
def test_what_trains_is_recognised(program: str, families: list[str]) -> None:
    found = runs(f"python open_instruct/{program}.py {MODEL} --lora_model x\n", "a.sh")
    assert [spec.family for spec in found] == families
    assert all(spec.architecture is None and program in spec.unknown_reason for spec in found)
