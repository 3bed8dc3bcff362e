"""Family open-instruct: its command lines and files, by the code of ``finetune.py``, ``dpo_tune_cache.py`` and
``grpo_fast.py``."""

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
        pytest.param("grpo", ["open-instruct"], id="GRPO on olmo-core, which has no estimate"),
    ],
)
def test_what_trains_is_recognised(program: str, families: list[str]) -> None:
    found = runs(f"python open_instruct/{program}.py {MODEL} --lora_model x\n", "a.sh")
    assert [spec.family for spec in found] == families
    assert all(spec.architecture is None and program in spec.unknown_reason for spec in found)


# ---------------------------------------------------------------------------------------------- GRPO's learners


def learns(options: str = "--deepspeed_stage 3 --num_learners_per_node 8 8", before: str = "") -> TrainingSpec:
    model = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --pack_length 4096"
    joined = "source setup.sh \\&\\& python open_instruct/grpo_fast.py"
    return run(f"{before}python mason.py --num_nodes 4 --gpus 8 -- {joined} {model} {options}\n", "a.sh")


def test_a_learner_is_as_the_code_has_it() -> None:
    """The whole model, whatever the options of other programs say; vLLM's engines are on other cards."""
    spec = learns("--deepspeed_stage 3 --num_learners_per_node 8 8 --use_peft --dtype float32 --beta 0.0")
    assert spec.architecture == "language_model", spec.unknown_reason
    expected = {
        "method": "grpo", "tuning": "full", "device_count": 16, "parameter_dtype": "bfloat16", "master_weights": True,
        "gradient_dtype": "float32", "checkpointing": "full", "attention": "flash", "optimizer": "adamw",
        "optimizer_library": "torch", "optimizer_implementation": "fused", "log_probabilities": "of_quotient",
        "reference_model": "copy", "reference_dtype": "bfloat16", "parallelism.secondary_shard": 8,
        "engine_gets_whole_model": True, "engine_share": None, "sequence_length": 4096, "sequence_bound": True,
        "parallelism.reduce_bucket_elements": 500_000_000, "gradient_accumulation_steps": 1, "padding": None,
    }  # fmt: skip
    assert {name: spec.get(name) for name in expected} == expected  # type: ignore[arg-type]


STAGE_2 = "--deepspeed_stage 2 --num_learners_per_node 6"


@pytest.mark.parametrize(
    ("options", "before", "facts"),
    [
        pytest.param("--deepspeed_stage 2", "", {"device_count": 1}, id="one learner"),
        pytest.param("--deepspeed_stage 2 --actor_num_gpus_per_node 6", "", {"device_count": 6}, id="an older name"),
        pytest.param(
            STAGE_2,
            "",
            {"parallelism.secondary_shard": None, "engine_gets_whole_model": None},
            id="weights that nobody shares",
        ),
        pytest.param(f"{STAGE_2} --load_ref_policy false", "", {"reference_model": "none"}, id="no reference"),
        pytest.param(
            f"{STAGE_2} --record_entropy", "", {"log_probabilities": "of_quotient_with_entropy"}, id="beside an entropy"
        ),
        pytest.param(
            STAGE_2,
            "export TORCH_COMPILE_DISABLE=1\n",
            {"log_probabilities": "of_quotient_in_steps"},
            id="nothing compiled",
        ),
        pytest.param(
            "--deepspeed_stage 2 --single_gpu_mode --vllm_gpu_memory_utilization 0.3",
            "",
            {"engine_share": 0.3, "processes_per_device": 2, "engine_beside": None},
            id="an engine on the same card",
        ),
        pytest.param(f"{STAGE_2} --attn_implementation torch", "", {"attention": "sdpa", "padding": True}, id="a mask"),
        pytest.param(
            "--deepspeed_stage 3 --num_learners_per_node 8 --sequence_parallel_size 4",
            "",
            {"parallelism.ulysses": 4},
            id="rows that devices share",
        ),
        pytest.param(
            "--deepspeed_stage 3 --num_learners_per_node 2 --deepspeed_offload_param --gather_whole_model False",
            "",
            {"parallelism.offload_parameters": True, "engine_gets_whole_model": False},
            id="weights in host memory",
        ),
        pytest.param(
            f"{STAGE_2} --num_unique_prompts_rollout 96 --num_samples_per_prompt_rollout 8 --max_prompt_token_length "
            "2048 --response_length 2048 --num_mini_batches 2",
            "",
            {"gradient_accumulation_steps": 64},
            id="half of what a rollout fills",
        ),
    ],
)
def test_switches_of_a_learner(options: str, before: str, facts: dict[str, Any]) -> None:
    spec = learns(options, before)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("", "deepspeed_stage 0", id="no stage"),
        pytest.param(f"{STAGE_2} --deepspeed_offload_optimizer", "torch's AdamW in host memory", id="offloaded states"),
        pytest.param(f"{STAGE_2} --sequence_parallel_size 2", "it is refused with deepspeed_stage 2", id="whole rows"),
        pytest.param(
            "--deepspeed_stage 3 --num_learners_per_node 16 --sequence_parallel_size 16",
            "num_key_value_heads 8",
            id="more devices than heads of keys",
        ),
        pytest.param(
            "--deepspeed_stage 3 --num_learners_per_node 3 --sequence_parallel_size 2", "3 learners", id="one is left"
        ),
        pytest.param(
            "--deepspeed_stage 3 --num_learners_per_node 6 6", "does not divide 12", id="a group that is left"
        ),
        pytest.param(f"{STAGE_2} --response_length 4096", "4,352 tokens", id="rows that are too short"),
    ],
)
def test_a_learner_s_reason_names_what_is_not_known(options: str, reason: str) -> None:
    spec = learns(options)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_what_a_learner_holds_is_the_sum_by_hand() -> None:
    """ZeRO stage 3 over 16: for each weight 12 bytes in the optimizer and 4 of a gradient in fp32, shared by all; 2 of
    the weight and of the reference's, shared too, and a second copy over groups of 8. Backward there are three tensors
    of the size of the logits; before it, all weights at once."""
    found = estimate_spec(learns())
    count = found.parameters // 2
    assert count == 8_030_261_248
    parts = {part.name: part.size_bytes for part in found.components}
    assert found.peak_phase == "generation"
    assert parts["optimizer"] == pytest.approx(12 * count / 16, rel=1e-3)
    assert parts["gradients"] == pytest.approx(4 * count / 16, rel=1e-3)
    assert parts["helper_models"] == pytest.approx(2 * count / 16, rel=1e-3)
    assert parts["parameters"] == pytest.approx(2 * count / 16 + 2 * count / 8, rel=1e-3)
    assert parts["communication"] > 2 * count
    long = estimate_spec(learns("--deepspeed_stage 3 --num_learners_per_node 8 8 --pack_length 32768"))
    parts = {part.name: part.size_bytes for part in long.components}
    assert long.peak_phase == "backward"
    assert parts["logits"] == pytest.approx(3 * 2 * 32_768 * 128_256, rel=1e-3)
