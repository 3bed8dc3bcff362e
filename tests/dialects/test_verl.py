"""Family verl: its supervised trainers and its policies on FSDP, by the code of verl 0.1 to 0.9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import plausible
from memlint.check import check_paths
from memlint.data import models
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.models.language import resident
from memlint.settings import Settings
from tests.dialects.language_models import run, written

MODEL = "Qwen/Qwen2.5-0.5B"
RL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path={MODEL} \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 """
ACTOR = "actor_rollout_ref.actor"
UNPADDED = "actor_rollout_ref.model.use_remove_padding=True"
TORCHRUN = "torchrun --nproc_per_node=8 -m verl.trainer."


def learning(options: str = "") -> TrainingSpec:
    return run(f"{RL}{options}\n", "run.sh")


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            f"{TORCHRUN}fsdp_sft_trainer model.partial_pretrain={MODEL}",
            {
                "method": "sft",
                "micro_batch_size": 4,
                "sequence_length": 1024,
                "gradient_accumulation_steps": 8,
                "parallelism.strategy": "fsdp2",
                "device_count": 8,
                "loss": "shifted",
                "padding_free": None,
            },
            id="the older supervised trainer, which pads",
        ),
        pytest.param(
            f"{TORCHRUN}sft_trainer model.path={MODEL}",
            {
                "method": "sft",
                "micro_batch_size": 1,
                "sequence_length": 8192,
                "gradient_accumulation_steps": 4,
                "parallelism.strategy": "fsdp1",
                "log_probabilities": "in_place",
                "padding_free": True,
            },
            id="the newer one, whose passes are filled up",
        ),
        pytest.param(
            RL,
            {
                "method": "grpo",
                "micro_batch_size": 4,
                "sequence_length": 1024,
                "gradient_accumulation_steps": 8,
                "parallelism.strategy": "fsdp1",
                "device_count": 8,
                "log_probabilities": "in_place",
                "engine_share": 0.5,
                "reference_model": "none",
            },
            id="a policy beside its engine",
        ),
    ],
)
def test_what_is_not_written_is_as_the_program_has_it(command: str, facts: dict[str, Any]) -> None:
    spec = run(f"{command}\n", "run.sh")
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts
    assert (spec["parameter_dtype"], spec["compute_dtype"], spec["autocast"]) == ("float32", "bfloat16", True)
    assert (spec["checkpointing"], spec["attention"], spec["optimizer"]) == ("full", "flash", "adamw")
    assert spec["parallelism.reduce_dtype"] == "float32"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            f"{ACTOR}.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=8",
            {"gradient_accumulation_steps": 4},
            id="an update has the answers of its prompts",
        ),
        pytest.param(
            f"{ACTOR}.ppo_micro_batch_size=64",
            {"micro_batch_size": 8},
            id="a micro batch of all devices",
        ),
        pytest.param(
            f"{ACTOR}.ppo_micro_batch_size=64 {ACTOR}.ulysses_sequence_parallel_size=2",
            {"micro_batch_size": 16, "parallelism.ulysses": 2},
            id="devices that share sequences count as one",
        ),
        pytest.param(
            f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=4096",
            {"micro_batch_size": 1, "sequence_length": 4096, "padding_free": True},
            id="passes that are filled up",
        ),
        pytest.param(
            f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=4096 {ACTOR}.ppo_mini_batch_size=8",
            {"micro_batch_size": 1, "sequence_length": 1024},
            id="an update with fewer tokens than a pass may have",
        ),
        pytest.param(
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
            {"evaluation_batch_size": 16, "evaluation_sequence_length": 1024},
            id="more answers are asked for log-probabilities than are learned from",
        ),
        pytest.param(
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
            {"evaluation_batch_size": None},
            id="as many answers are asked for as are learned from",
        ),
        pytest.param(f"{ACTOR}.fsdp_config.fsdp_size=2", {"parallelism.replicas": 4}, id="hybrid sharding"),
        pytest.param(f"{ACTOR}.fsdp_config.fsdp_size=-1", {"parallelism.replicas": None}, id="all devices share"),
        pytest.param(
            f"{ACTOR}.strategy=fsdp2 {ACTOR}.fsdp_config.offload_policy=True",
            {"parallelism.strategy": "fsdp2", "parallelism.cpu_offload": True, "engine_beside": []},
            id="FSDP2's own offloading",
        ),
        pytest.param(
            f"{ACTOR}.entropy_coeff=0.001",
            {"log_probabilities": "with_compiled_entropy"},
            id="the entropy is part of the loss",
        ),
        pytest.param(
            f"{ACTOR}.calculate_entropy=True {ACTOR}.use_torch_compile=False",
            {"log_probabilities": "with_entropy"},
            id="the entropy is logged, and not compiled",
        ),
        pytest.param(
            "actor_rollout_ref.model.lora_rank=16 actor_rollout_ref.model.lora_alpha=32",
            {"tuning": "lora", "lora.targets": "all-linear", "lora.dtype": "float32"},
            id="adapters in the dtype of their model",
        ),
        pytest.param(
            f"{ACTOR}.fsdp_config.model_dtype=bfloat16",
            {"parameter_dtype": "bfloat16", "frozen_dtype": "bfloat16"},
            id="weights in 16 bits",
        ),
        pytest.param(
            f"actor_rollout_ref.model.use_remove_padding=False {ACTOR}.entropy_coeff=0.001",
            {"log_probabilities": "of_copy_with_entropy", "padding_free": None, "sequence_bound": None},
            id="padded answers",
        ),
        pytest.param("trainer.n_gpus_per_node=4 trainer.nnodes=3", {"device_count": 12}, id="machines"),
        pytest.param(
            f"{ACTOR}.optim.optimizer=AdamW8bit {ACTOR}.optim.optimizer_impl=bitsandbytes.optim",
            {"optimizer": "adamw_8bit", "optimizer_library": "bitsandbytes"},
            id="states in 8 bits",
        ),
    ],
)
def test_what_options_mean(options: str, facts: dict[str, Any]) -> None:
    spec = learning(options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "beside"),
    [
        pytest.param("", ["parameters", "optimizer"], id="all of it"),
        pytest.param(f"{ACTOR}.fsdp_config.param_offload=True", ["optimizer"], id="optimizer states"),
        pytest.param(
            f"{ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True", [], id="none of it"
        ),
        pytest.param("actor_rollout_ref.rollout.free_cache_engine=False", None, id="an engine that never sleeps"),
    ],
)
def test_what_stays_on_the_card_while_the_engine_generates(options: str, beside: list[str] | None) -> None:
    spec = learning(options + " actor_rollout_ref.rollout.gpu_memory_utilization=0.8")
    assert spec.get("engine_beside") == beside
    gpu = "a100-40gb x8"
    learns, generates = estimate_spec(spec), estimate_spec(spec, gpu=gpu)
    states = {component.name: component.size_bytes for component in learns.components}
    fixed = sum(size for name, size in states.items() if name in ("context", "workspace"))
    engine = generates.component_bytes("helper_models")
    assert engine > 30e9
    if beside is None:  # the step as a whole stands beside the engine
        assert generates.device_bytes == pytest.approx(learns.device_bytes + engine, rel=0.02)
        return
    kept = sum(size for name, size in states.items() if name in beside)
    assert generates.peak_phase == "generation"
    assert generates.device_bytes - engine - kept - fixed == generates.component_bytes("communication")
    assert generates.reserved_bytes == learns.reserved_bytes


def test_an_engine_that_takes_less_than_learning_does_not_count() -> None:
    spec = learning("actor_rollout_ref.rollout.gpu_memory_utilization=0.1")
    assert estimate_spec(spec, gpu="rtx-3060 x8").peak_phase == "backward"


def test_the_parameters_of_a_model_of_values() -> None:
    """494,032,768 of Qwen2.5 0.5B (transformers on the meta device), whose head is its embedding, and one number for
    each of 896 dimensions."""
    known = models.find(MODEL)
    assert known is not None
    assert resident.values(known.config) == 494_032_768 + 896


@pytest.mark.parametrize(
    ("options", "each"),
    [
        pytest.param("", 12, id="weights and two moments"),
        pytest.param("critic.model.fsdp_config.param_offload=True", 8, id="two moments"),
        pytest.param(
            "critic.model.fsdp_config.param_offload=True critic.model.fsdp_config.optimizer_offload=True",
            0,
            id="nothing",
        ),
    ],
)
def test_a_critic_stays_on_the_card_while_the_policy_learns(options: str, each: int) -> None:
    options = f"algorithm.adv_estimator=gae critic.model.path={MODEL} {options}"
    spec = learning(options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert estimate_spec(spec).component_bytes("helper_models") == -(-494_033_664 // 8 * each // 512) * 512
    assert ("helper_models" in spec["engine_beside"]) == (each > 0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("trainer.device=npu", "not on a GPU", id="no GPU"),
        pytest.param("--config-name=ppo_megatron_trainer", "megatron are not known", id="Megatron, by its config"),
        pytest.param(f"{ACTOR}.strategy=megatron", f"{ACTOR}.strategy megatron", id="Megatron, by its key"),
        pytest.param("--config-name=ours", "a file that is not found", id="a config that is not there"),
        pytest.param(
            f"{ACTOR}.entropy_coeff=0.1 {ACTOR}.entropy_checkpointing=True",
            f"{ACTOR}.entropy_checkpointing",
            id="an entropy that is made twice",
        ),
        pytest.param("actor_rollout_ref.model.use_fused_kernels=True", "use_fused_kernels True", id="a head in pieces"),
        pytest.param(f"{ACTOR}.optim.optimizer=Lion", "torch.optim.Lion", id="an optimizer that is not known"),
        pytest.param("actor_rollout_ref.rollout.name=hf", "rollout.name hf", id="the model itself generates"),
        pytest.param("data.max_prompt_length=$LONG", "data.max_prompt_length is not known", id="a length of the shell"),
        pytest.param("algorithm.adv_estimator=gae", "critic.model.path is not stated", id="a critic that is not named"),
    ],
)
def test_what_is_not_known_is_named(options: str, reason: str) -> None:
    spec = learning(options)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_devices_that_the_shell_counts_are_open() -> None:
    spec = learning("trainer.nnodes=$NODES")
    assert spec.architecture is None
    assert spec.architecture_on_devices == "language_model"
    assert "number of devices" in spec.unknown_reason


def test_the_defaults_of_its_program_are_no_run_where_a_walk_meets_them(tmp_path: Path) -> None:
    """They name whatever model their authors had: the commands that start the program are its runs."""
    config = tmp_path / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    config.parent.mkdir(parents=True)
    program = (
        '@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)\ndef main(c):\n    run(c)\n'
    )
    (config.parent.parent / "main_ppo.py").write_text(program, encoding="utf-8")
    text = f"actor_rollout_ref: {{model: {{path: {MODEL}}}, actor: {{ppo_micro_batch_size_per_gpu: 4}}}}\n"
    config.write_text(text + "algorithm: {adv_estimator: grpo}\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text(RL + "\n", encoding="utf-8")
    (tmp_path / "own.yaml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    walked = check_paths([str(tmp_path)], Settings())
    assert sorted(Path(one.path).name for one in walked.runs) == ["own.yaml", "run.sh"]
    assert [why for path, why in walked.skipped if path == str(config)] != []
    assert len(check_paths([str(config)], Settings()).runs) == 1, "a file that is named is read as a run"


@pytest.mark.parametrize(
    ("options", "share"),
    [
        pytest.param("", 0.7, id="an engine of its own, of which the larger counts"),
        pytest.param("reward_model.use_reward_loop=False", 0.5, id="in host memory"),
        pytest.param("reward_model.enable_resource_pool=True", 0.5, id="on other cards"),
    ],
)
def test_a_model_of_rewards(options: str, share: float) -> None:
    spec = learning(f"reward_model.enable=True reward_model.rollout.gpu_memory_utilization=0.7 {options}")
    assert spec["engine_share"] == share


def test_a_primary_config_of_ones_own_is_read_from_the_folder_beside_the_script(tmp_path: Path) -> None:
    text = (
        'python3 -m verl.trainer.main_ppo --config-path="$HERE/config" --config-name=ours ' + RL.split("main_ppo ")[1]
    )
    config = "defaults: [ppo_trainer, _self_]\ndata: {max_prompt_length: 100, max_response_length: 28}\n"
    written(tmp_path, {"run.sh": f"{text} data.max_response_length=50\n", "config/ours.yaml": config})
    spec = run(f"{text} data.max_response_length=50\n", str(tmp_path / "run.sh"))
    assert spec.architecture == "language_model", spec.unknown_reason
    assert (spec["sequence_length"], spec["micro_batch_size"]) == (150, 4)


# docs/perf/device_tuning.rst of verl, "MaxBatch" on cards of 80 GB with the scripts of examples/tuning: model, cards,
# share of the engine, answers per card of the largest batch that ran and of the smallest one that did not, where that
# is stated (comments of the scripts). Samples of GSM8K are shorter than 1,536 tokens, so an estimate of these is above.
TUNED = [
    ("Qwen/Qwen2.5-0.5B-Instruct", 1, 0.1, 116, None),
    ("Qwen/Qwen2.5-1.5B-Instruct", 1, 0.1, 128, None),
    ("Qwen/Qwen2.5-3B-Instruct", 1, 0.1, 62, None),
    ("Qwen/Qwen2.5-7B-Instruct", 1, 0.2, 16, None),
    ("Qwen/Qwen2.5-14B-Instruct", 2, 0.25, 58, 59),
    ("Qwen/Qwen2.5-32B-Instruct", 4, 0.3, 45, 46),
    ("Qwen/Qwen2.5-72B-Instruct", 8, 0.4, 22, 23),
]


@pytest.mark.parametrize(("model", "cards", "share", "fits", "fails"), TUNED, ids=[row[0] for row in TUNED])
def test_the_largest_batches_that_are_stated_to_fit(
    model: str, cards: int, share: float, fits: int, fails: int | None
) -> None:
    def tried(answers: int) -> list[tuple[int, int]]:
        options = f"""actor_rollout_ref.model.path={model} actor_rollout_ref.model.lora_rank=32 \\
            data.max_prompt_length=512 data.max_response_length=1024 {ACTOR}.ppo_mini_batch_size={answers * cards} \\
            {ACTOR}.ppo_micro_batch_size={answers * cards} {ACTOR}.entropy_coeff=0.001 \\
            {ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True \\
            actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.gpu_memory_utilization={share} \\
            trainer.n_gpus_per_node={cards}"""
        spec = learning(options)
        shorter = plausible.candidates(spec)[0].spec
        return [estimate_spec(one, gpu=f"h100-80gb x{cards}").device_interval for one in (spec, shorter)]

    card = 80 * 2**30
    assert min(low for low, _ in tried(fits)) < card
    if fails is not None:
        assert max(high for _, high in tried(fails)) > card


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param("", False, id="an engine that sleeps"),
        pytest.param("actor_rollout_ref.rollout.free_cache_engine=False", True, id="one that does not"),
    ],
)
def test_only_an_engine_that_keeps_its_share_takes_it_from_training(tmp_path: Path, options: str, said: bool) -> None:
    text = f"{RL} actor_rollout_ref.rollout.gpu_memory_utilization=0.95 {options}\n"
    written(tmp_path, {"run.sh": text})
    (found,) = check_paths([str(tmp_path / "run.sh")], Settings(gpu="a100-40gb x8")).runs
    assert ("MEM706" in {finding.code for finding in found.findings}) == said


@pytest.mark.parametrize(
    ("share", "gpu", "said"),
    [
        pytest.param(0.4, "", False, id="below the engine's share of a card that clusters have"),
        pytest.param(0.4, "a100-80gb x8", False, id="below its share of the card that is named"),
        pytest.param(0.02, "a100-80gb x8", True, id="above it"),
    ],
)
def test_what_scoring_takes_up_to_the_engines_share_is_free(tmp_path: Path, share: float, gpu: str, said: bool) -> None:
    """simpleRL-reason: tests/e2e/run_qwen_gsm8k_function_rm.sh."""
    rollout = "actor_rollout_ref.rollout"
    options = f"{rollout}.log_prob_micro_batch_size_per_gpu=16 {rollout}.gpu_memory_utilization={share}"
    written(tmp_path, {"run.sh": f"{RL}{options} {UNPADDED}\n"})
    report = check_paths([str(tmp_path / "run.sh")], Settings(gpu=gpu) if gpu else Settings())
    found = [one for run in report.runs for one in run.findings if one.code == "MEM701"]
    assert bool(found) is said
    assert all(one.message.startswith("log-probabilities of 16 samples peak at ") for one in found)


# ------------------------------------------------------------------------------------------------------------ EasyR1

EASY = """\
data: {max_prompt_length: 2048, max_response_length: 2048}
algorithm: {adv_estimator: grpo, disable_kl: false}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, enable_gradient_checkpointing: true, lora: {rank: 0}}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, gpu_memory_utilization: 0.6}
  ref: {fsdp: {enable_cpu_offload: true}}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
STARTED = "python3 -m verl.trainer.main config=examples/config.yaml "


def easy(tmp_path: Path, words: str) -> TrainingSpec:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "config.yaml").write_text(EASY, encoding="utf-8")
    return run(STARTED + words + "\n", str(tmp_path / "examples" / "run.sh"))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        pytest.param(
            "worker.actor.padding_free=true",
            {
                **{"micro_batch_size": 1, "sequence_length": 4096, "gradient_accumulation_steps": 80},
                **{
                    "device_count": 8,
                    "engine_share": 0.6,
                    "parameter_dtype": "float32",
                    "log_probabilities": "in_place",
                },
                **{"optimizer_implementation": "fused", "resident_models": None, "evaluation_batch_size": 2},
            },
            id="its file, and what it takes where nothing is written",
        ),
        pytest.param(
            "worker.ref.fsdp.enable_cpu_offload=false worker.actor.micro_batch_size_per_device_for_update=4",
            {"micro_batch_size": 4, "evaluation_batch_size": None, "model": "Qwen/Qwen2.5-7B-Instruct"},
            id="words lie over the file",
        ),
        pytest.param(
            "worker.actor.fsdp.torch_dtype=bf16 worker.actor.optim.strategy=adamw_bf16",
            {"optimizer": "adamw_compensated", "optimizer_library": "EasyR1", "parameter_dtype": "bfloat16"},
            id="its own optimizer, for weights in 16 bits",
        ),
    ],
)
def test_what_easyr1_does(tmp_path: Path, words: str, facts: dict[str, Any]) -> None:
    spec = easy(tmp_path, words)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]
    assert bool(spec.get("resident_models")) is ("enable_cpu_offload=false" in words)


def test_easyr1_fits_the_cards_of_its_table(tmp_path: Path) -> None:
    """README of hiyouga/EasyR1, hardware requirements: GRPO of 7B with AMP on 8 cards of 40 GB."""
    found = estimate_spec(easy(tmp_path, ""))
    assert found.device_interval.high_bytes < 40 * 10**9
    assert found.device_bytes > 16 * 7_615_616_512 // 8  # weights, gradients and two moments, in float32


def test_easyr1_in_16_bits_fits_half_as_many(tmp_path: Path) -> None:
    """The same table: 7B in bfloat16 on 4 cards of 40 GB, with six bytes of state for each weight."""
    halved = "worker.actor.fsdp.torch_dtype=bf16 worker.actor.optim.strategy=adamw_bf16 trainer.n_gpus_per_node=4"
    found = estimate_spec(easy(tmp_path, halved))
    assert 10 * 7_615_616_512 // 4 < found.device_bytes < 40 * 10**9


SEEING = "worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct "


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        pytest.param(
            SEEING,
            {"images_per_sample": 1, "image_size": 2048, "most_image_tokens": 2048, "frozen_parts": None},
            id="an image of a sample, as large as a prompt has room for",
        ),
        pytest.param(
            SEEING + "data.max_pixels=1048576 worker.actor.model.freeze_vision_tower=true",
            {"images_per_sample": 1, "image_size": 1024, "frozen_parts": ["vision_tower", "projector"]},
            id="images are made smaller, and all that sees is left as it is",
        ),
        pytest.param("", {"images_per_sample": None, "most_image_tokens": None}, id="a model that reads alone"),
    ],
)
def test_what_pictures_take_of_a_sample_of_easyr1(tmp_path: Path, words: str, facts: dict[str, Any]) -> None:
    spec = easy(tmp_path, words)
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]
    assert estimate_spec(spec).device_bytes


def test_a_tower_that_does_not_train_has_no_gradients(tmp_path: Path) -> None:
    spec = easy(tmp_path, SEEING)
    frozen = spec.with_facts(frozen_parts=["vision_tower", "projector"])
    one, other = estimate_spec(spec), estimate_spec(frozen)
    assert one.parameters == other.parameters == 8_292_166_656
    assert one.trainable_parameters - other.trainable_parameters == 676_550_144


def test_patches_are_as_many_as_a_prompt_has_room_for(tmp_path: Path) -> None:
    spec = easy(tmp_path, SEEING)
    longer = spec.with_facts(most_image_tokens=4096)
    assert estimate_spec(spec).saved_bytes < estimate_spec(longer).saved_bytes
    smaller = spec.with_facts(image_size=280)
    assert estimate_spec(smaller).saved_bytes < estimate_spec(spec).saved_bytes


def test_several_samples_of_a_row_have_an_image_each() -> None:
    words = "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 "
    words += "data.max_prompt_length=1024 data.max_response_length=1024 actor_rollout_ref.rollout.name=vllm "
    words += "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct algorithm.adv_estimator=grpo "
    spec = run(f"python3 -m verl.trainer.main_ppo {words}trainer.n_gpus_per_node=8\n", "run.sh")
    assert (spec.get("images_per_sample"), spec.get("image_size"), spec.get("most_image_tokens")) == (4, None, 1024)
    assert estimate_spec(spec).device_bytes
