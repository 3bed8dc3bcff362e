"""Family openrlhf: its command lines, by the code of OpenRLHF 0.5 to 0.11."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings
from tests.dialects.language_models import run, runs

MODEL = "--model.model_name_or_path meta-llama/Meta-Llama-3-8B"


def started(
    program: str = "train_sft", options: str = "", model: str = MODEL, devices: str = "--num_gpus 8"
) -> TrainingSpec:
    return run(f"deepspeed {devices} --module openrlhf.cli.{program} {model} {options}\n", "run.sh")


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        pytest.param(
            "train_sft",
            {"method": "sft", "micro_batch_size": 8, "sequence_length": 2048, "outputs_kept": "float32"},
            id="SFT",
        ),
        pytest.param(
            "train_dpo",
            {
                "method": "dpo",
                "sequence_length": 512,
                "sequences_per_sample": 2,
                "reference_model": "copy",
                "outputs_kept": None,
            },
            id="DPO beside a copy",
        ),
        pytest.param(
            "train_rm",
            {"method": "reward", "micro_batch_size": 1, "model_class": "sequence_classification", "labels": 1},
            id="a reward model",
        ),
    ],
)
def test_what_is_not_written_is_as_the_program_has_it(program: str, facts: dict[str, Any]) -> None:
    spec = started(program)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts
    assert (spec["parallelism.strategy"], spec["parallelism.zero_stage"], spec["tuning"]) == ("zero", 2, "full")
    assert (spec["parameter_dtype"], spec["master_weights"], spec["checkpointing"]) == ("bfloat16", True, "none")
    assert (spec["optimizer"], spec["optimizer_library"], spec["attention"]) == ("adamw", "deepspeed", "flash")
    assert spec["parallelism.reduce_bucket_elements"] == 500_000_000


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "--ds.lora.rank 16",
            {"tuning": "lora", "lora.r": 16, "lora.targets": "all-linear", "lora.alpha": 16},
            id="adapters",
        ),
        pytest.param(
            "--ds.lora.rank 16 --ds.load_in_4bit",
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True},
            id="on 4 bits, whose scales are quantised too",
        ),
        pytest.param("--ds.packing_samples", {"padding_free": True, "packing": None}, id="one row without padding"),
        pytest.param(
            "--model.gradient_checkpointing_enable",
            {"checkpointing": "full", "checkpointing_reentrant": False},
            id="checkpointing, of torch's newer kind",
        ),
        pytest.param("--ds.ring_attn_size 2", {"parallelism.context": 2}, id="sequences shared in a ring"),
        pytest.param("--ds.adam_offload", {"parallelism.offload_optimizer": True}, id="states in host memory"),
        pytest.param("--ds.grad_accum_dtype fp32", {"gradient_dtype": "float32"}, id="gradients in fp32"),
        pytest.param(
            "--train.batch_size 256 --train.micro_batch_size 4",
            {"gradient_accumulation_steps": 8},
            id="what a step has of samples, over the devices",
        ),
        pytest.param("--ds.use_liger_kernel", {"loss": None}, id="Liger's layers, whose loss nobody asks"),
        pytest.param("--optim muon", {"optimizer": "muon"}, id="another optimizer"),
    ],
)
def test_switches(options: str, facts: dict[str, Any]) -> None:
    spec = started(options=options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_flat_options_are_those_of_older_releases() -> None:
    command = "deepspeed --num_gpus 2 --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --bf16"
    older = run(f"{command} --max_len 4096 --zero_stage 3 --micro_train_batch_size 2\n", "run.sh")
    assert older.architecture == "language_model", older.unknown_reason
    assert (older["sequence_length"], older["parallelism.zero_stage"], older["micro_batch_size"]) == (4096, 3, 2)
    assert older["attention"] == "eager"
    assert run(f"{command} --flash_attn\n", "run.sh")["attention"] == "flash"


@pytest.mark.parametrize(
    ("samples", "of_a_logit"),
    [
        pytest.param(16, 4, id="in one pass, whose peak is when all gradients are there: fp32 logits are still named"),
        pytest.param(256, 4 + 4 + 2, id="in several: named, and gradients in fp32 and bf16 beside them"),
    ],
)
def test_the_peak_is_the_sum_by_hand(samples: int, of_a_logit: int) -> None:
    """ZeRO stage 2 over 8 devices, 2 rows of 2,048 tokens: weights in bf16 whole, and of what is kept in fp32 for each
    (master, two moments) an eighth."""
    options = f"--train.micro_batch_size 2 --train.batch_size {samples} --model.gradient_checkpointing_enable"
    found = estimate_spec(started(options=options))
    assert found.parameters == 8_030_261_248
    parts = {part.name: part.size_bytes for part in found.components}
    assert parts["parameters"] == 2 * found.parameters
    assert parts["optimizer"] == pytest.approx(12 * found.parameters / 8, rel=1e-4)
    assert parts["logits"] == pytest.approx(2 * 2048 * 128_256 * of_a_logit, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "deepspeed --module openrlhf.cli.train_kto --pretrain x",
            "train_kto: what its trainer keeps of a pass",
            id="a program without rollouts",
        ),
        pytest.param(f"deepspeed --module openrlhf.cli.train_sft {MODEL}", "--gpu 'NAME xN'", id="how many devices"),
        pytest.param(
            f"deepspeed --num_gpus 2 --module openrlhf.cli.train_sft {MODEL} --ds.tensor_parallel_size 2",
            "tensor parallelism",
            id="DeepSpeed's tensor parallelism",
        ),
        pytest.param(
            f"deepspeed --num_gpus 2 --module openrlhf.cli.train_dpo {MODEL} --ref.offload",
            "offloaded reference",
            id="a reference elsewhere",
        ),
        pytest.param(
            f"deepspeed --num_gpus 2 --module openrlhf.cli.train_dpo {MODEL} --ds.load_in_4bit --ds.lora.rank 8",
            "quantised reference",
            id="a quantised reference",
        ),
    ],
)
def test_a_reason_names_what_is_not_known(text: str, reason: str) -> None:
    (spec,) = runs(text + "\n", "run.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


ACTOR = (
    "--actor.model_name_or_path Qwen/Qwen2.5-0.5B --reward.remote_url f.py --critic.model_name_or_path Qwen/Qwen2.5-7B"
)
ON_CARDS = f"{ACTOR} --actor.num_nodes 2 --actor.num_gpus_per_node 4 --vllm.num_engines 8 --ds.packing_samples"
TOGETHER = "--train.colocate_all --algo.advantage.estimator group_norm"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "",
            {"device_count": 8, "resident_models": None, "processes_per_device": 1, "engine_share": None},
            id="cards of its own",
        ),
        pytest.param("--train.colocate_actor_ref", {"processes_per_device": 2}, id="beside its reference"),
        pytest.param(
            "--train.colocate_actor_ref --algo.kl.init_coef 0", {"processes_per_device": 1}, id="no reference is asked"
        ),
        pytest.param(
            f"{TOGETHER} --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.5",
            {"processes_per_device": 3, "engine_share": 0.5, "engine_beside": ["parameters", "helper_models"]},
            id="an engine and states that sleep in turns",
        ),
        pytest.param(
            f"{TOGETHER} --vllm.enable_sleep",
            {"engine_share": 0.95, "engine_beside": ["parameters", "helper_models", "optimizer", "gradients"]},
            id="states that stay",
        ),
        pytest.param(TOGETHER, {"engine_share": 0.95, "engine_beside": None}, id="an engine that stays"),
        pytest.param(
            f"{TOGETHER} --train.async_enable",
            {"engine_share": None, "processes_per_device": 2},
            id="engines elsewhere",
        ),
        pytest.param(
            "--train.dynamic_batch_enable --train.max_tokens_per_gpu 8192 --ds.ring_attn_size 2 --data.max_len 4096",
            {"micro_batch_size": 1, "sequence_length": 16384},
            id="a pass of so many tokens on each card",
        ),
        pytest.param(
            "--train.dynamic_batch_enable --train.max_tokens_per_gpu 1024 --data.max_len 4096",
            {"sequence_length": 4096},
            id="one sample that is longer than that",
        ),
        pytest.param(
            "--rollout.micro_batch_size 4 --train.micro_batch_size 2",
            {"evaluation_batch_size": 4, "evaluation_sequence_length": 2048},
            id="more is asked at once than learned",
        ),
        pytest.param(
            "--rollout.micro_batch_size 3 --train.micro_batch_size 2 --ds.enable_sleep",
            {"evaluation_batch_size": None},
            id="while it sleeps there is room for that",
        ),
        pytest.param("--actor.entropy_coef 0.01", {"log_probabilities": "rolled_with_entropy"}, id="an entropy"),
        pytest.param("--actor.entropy_coef 0.0", {"log_probabilities": "rolled_named"}, id="one that is only told"),
    ],
)
def test_what_lies_on_a_card_that_trains_the_policy(options: str, facts: dict[str, Any]) -> None:
    spec = run(f"python3 -m openrlhf.cli.train_ppo_ray {ON_CARDS} {options}\n", "run.sh")
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--train.colocate_all", "a model of values trains on the same cards", id="nothing sleeps"),
        pytest.param(
            "--train.colocate_all --ds.enable_sleep", "larger than the policy", id="a larger one in turns with it"
        ),
        pytest.param("--train.enable_ema", "its moving average", id="a moving average"),
    ],
)
def test_what_may_take_more_than_the_policy_is_not_known(options: str, reason: str) -> None:
    spec = run(f"python3 -m openrlhf.cli.train_ppo_ray {ON_CARDS} {options}\n", "run.sh")
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(("stage", "bytes_"), [(2, 2 * 494_032_768), (3, 2 * 494_032_768 // 8)])
def test_a_reference_is_shared_by_stage_3_alone(stage: int, bytes_: int) -> None:
    command = f"python3 -m openrlhf.cli.train_ppo_ray {ON_CARDS} --ds.zero_stage {stage}"
    alone, beside = (estimate_spec(run(f"{command}{more}\n", "run.sh")) for more in ("", " --train.colocate_actor_ref"))
    (held,) = (one for one in beside.components if one.name == "helper_models")
    assert held.size_bytes == pytest.approx(bytes_, rel=1e-5)
    contexts = [next(one.size_bytes for one in found.components if one.name == "context") for found in (alone, beside)]
    assert contexts[1] == 2 * contexts[0]


FLAT = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --bf16 --flash_attn --actor_num_nodes 1 "
    "--actor_num_gpus_per_node 5 --vllm_num_engines 1 --remote_rm_url http://localhost:1 "
    "--advantage_estimator group_norm --train_batch_size 60 "
)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "",
            {
                "method": "grpo",
                "micro_batch_size": 4,
                "sequence_length": 2048,
                "device_count": 5,
                "gradient_accumulation_steps": 3,
                "log_probabilities": "rolled_named",
                "evaluation_batch_size": 8,
                "resident_models": None,
            },
            id="what the program takes where nothing is written",
        ),
        pytest.param("--prompt_max_len 100", {"sequence_length": 1124}, id="a prompt and the answer of the default"),
        pytest.param("--prompt_max_len 100 --generate_max_len 300", {"sequence_length": 400}, id="both"),
        pytest.param("--max_len 512", {"sequence_length": 512}, id="one length for both"),
        pytest.param("--micro_rollout_batch_size 2", {"evaluation_batch_size": None}, id="fewer that are asked"),
        pytest.param("--packing_samples", {"padding_free": True, "sequence_bound": True}, id="without padding"),
        pytest.param("--colocate_actor_ref", {"processes_per_device": 2}, id="the reference on the same cards"),
        pytest.param("--colocate_actor_ref --init_kl_coef 0", {"processes_per_device": 1}, id="none is asked"),
        pytest.param(
            "--colocate_actor_ref --zero_stage 3 --ref_reward_offload",
            {"processes_per_device": 1},
            id="one in host memory",
        ),
        pytest.param(
            "--colocate_all_models --vllm_enable_sleep --vllm_gpu_memory_utilization 0.3 --deepspeed_enable_sleep",
            {"engine_share": 0.3, "engine_beside": ["parameters", "helper_models"]},
            id="an engine that sleeps",
        ),
        pytest.param("--param_dtype bf16", {"attention": "flash"}, id="the last release of flat options"),
    ],
)
def test_a_policy_by_options_of_before_0_10(options: str, facts: dict[str, Any]) -> None:
    command = FLAT if "param_dtype" not in options else FLAT.replace("--flash_attn ", "").replace("--bf16 ", "")
    spec = run(f"{command}{options}\n", "run.sh")
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_a_batch_is_shared_by_the_cards_that_train_the_policy(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\n{FLAT}\n", encoding="utf-8")
    report = check_paths([str(tmp_path / "run.sh")], Settings())
    assert "MEM404" not in {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--freeze_prefix layers.0", "what of the model trains is not known", id="a part that is frozen"),
        pytest.param("--enable_ema", "its moving average", id="a moving average"),
    ],
)
def test_what_flat_options_leave_open(options: str, reason: str) -> None:
    assert reason in run(f"{FLAT}{options}\n", "run.sh").unknown_reason


def test_a_tower_that_is_frozen_by_its_name_does_not_train() -> None:
    seeing = FLAT.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-VL-7B-Instruct")
    whole, frozen = (run(f"{seeing}{more}\n", "run.sh") for more in ("", "--freeze_prefix visual"))
    assert "whose tower trains too" in whole.unknown_reason
    assert frozen["frozen_parts"] == ["vision_tower"]
    assert "what images take" in frozen.unknown_reason


def test_the_cards_of_a_policy_are_its_own_keys_where_slurm_starts_the_program_once() -> None:
    spec = run(f"srun --nodes=1 --ntasks=1 {FLAT}\n", "run.sh")
    assert (spec["device_count"], spec["world_size"]) == (5, 5)
