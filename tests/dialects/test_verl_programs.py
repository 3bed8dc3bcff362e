"""Programs of people's own around verl's workers, and the config that a repository with a copy of verl has."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import DEFAULT, OnTop, TrainingSpec
from memlint.settings import Settings

MODEL = "Qwen/Qwen2.5-0.5B"
WORDS = f"algorithm.adv_estimator=grpo actor_rollout_ref.model.path={MODEL} data.train_batch_size=64"
PROGRAM = """\
import hydra
import ray

@hydra.main(config_path='config', config_name='ours', version_base=None)
def main(config):
    from verl.workers.fsdp_workers import ActorRolloutRefWorker
    workers = {{Role.ActorRollout: ray.remote({policy})}}
    pools = {{'pool': [{cards}] * config.trainer.nnodes}}
    workers[Role.RewardModel] = ray.remote({scores})
"""
CONFIG = """\
data:
  max_prompt_length: 300
  max_response_length: 700
  other: ${nobody.gives.this}
actor_rollout_ref:
  actor:
    ppo_micro_batch_size_per_gpu: 2
    ppo_mini_batch_size: ${data.train_batch_size}
    ppo_micro_batch_size: null
  model:
    enable_gradient_checkpointing: False
  rollout:
    n: 5
critic:
  model:
    lora_alpha: 16
algorithm:
  adv_estimator: gae
"""


def repository(
    tmp_path: Path,
    words: str = "",
    policy: str = "ActorRolloutRefWorker",
    cards: str = "config.trainer.n_gpus_per_node",
    scores: str = "RewardModelWorker",
) -> TrainingSpec:
    (tmp_path / ".git").mkdir()
    (tmp_path / "mine" / "config").mkdir(parents=True)
    program = PROGRAM.format(policy=policy, cards=cards, scores=scores)
    (tmp_path / "mine" / "main_mine.py").write_text(program, encoding="utf-8")
    (tmp_path / "mine" / "config" / "ours.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"python3 -m mine.main_mine {WORDS} {words}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


def test_a_program_of_ones_own_that_takes_verls_keys_is_verls_with_the_defaults_of_its_own_config(
    tmp_path: Path,
) -> None:
    spec = repository(tmp_path, "actor_rollout_ref.rollout.n=4")
    assert (spec.family, spec.unknown_reason) == ("verl", "")
    assert (spec["sequence_length"], spec["micro_batch_size"]) == (1000, 2)
    assert spec["checkpointing"] == "none"
    assert spec["gradient_accumulation_steps"] == 64 * 4 // 8 // 2  # ${data.train_batch_size} is the command's
    fact = spec.fact("checkpointing")
    assert fact is not None
    assert (fact.origin, fact.node) == (DEFAULT, None)
    assert fact.reason.endswith("ours.yaml:11")
    assert spec["hyperparameters.adv_estimator"] == "grpo"  # the command's goes before


def test_a_change_is_written_into_the_command_and_not_into_the_programs_own_config(tmp_path: Path) -> None:
    repository(tmp_path)
    report = check_paths([str(tmp_path / "run.sh")], Settings(budget=60 << 30))
    edits = [edit for finding in report.findings for fix in finding.fixes for edit in fix.edits]
    assert {Path(edit.span.path).name for edit in edits} <= {"run.sh"}


@pytest.mark.parametrize(
    ("words", "given", "why"),
    [
        pytest.param("", {"cards": "config.trainer.n_gpus_per_node // 2"}, "divides the cards", id="pools of cards"),
        pytest.param(
            "reward_model.enable=True",
            {"scores": "OurScores"},
            "what OurScores takes",
            id="a model of rewards of its own",
        ),
        pytest.param(
            "reward_model.enable=True reward_model.strategy=verifier",
            {},
            "reward_model.strategy verifier",
            id="a strategy",
        ),
    ],
)
def test_what_else_is_on_the_cards_makes_the_run_a_bound(
    tmp_path: Path, words: str, given: dict[str, str], why: str
) -> None:
    spec = repository(tmp_path, words, **given)
    assert why in spec.unknown_reason
    assert isinstance(spec.unknown_reason, OnTop)
    assert spec.architecture_at_least == "language_model"


def test_a_model_of_rewards_that_is_not_asked_is_none(tmp_path: Path) -> None:
    assert not repository(tmp_path, scores="OurScores").unknown_reason


def test_a_worker_of_its_own_is_told_as_assumed(tmp_path: Path) -> None:
    fact = repository(tmp_path, policy="OurPolicy").fact("method")
    assert fact is not None
    assert fact.origin == "assumed"
    assert "OurPolicy" in fact.reason


def test_a_policy_that_only_answers_is_no_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unpack"):
        repository(tmp_path, "trainer.val_only=True")


def test_a_program_that_is_elsewhere_is_known_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        f"ray job submit -- python -m main_ppo {WORDS} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2\n",
        encoding="utf-8",
    )
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert (spec.family, spec.unknown_reason) == ("verl", "")


def test_what_nobody_chose_is_not_called_unread(tmp_path: Path) -> None:
    repository(tmp_path)
    report = check_paths([str(tmp_path / "run.sh")], Settings())
    assert "MEM805" not in {finding.code for finding in report.findings}


def test_a_batch_of_nothing_is_what_asynchronous_programs_state(tmp_path: Path) -> None:
    repository(tmp_path, "data.train_batch_size=0 actor_rollout_ref.actor.ppo_mini_batch_size=32")
    report = check_paths([str(tmp_path / "run.sh")], Settings())
    assert "MEM008" not in {finding.code for finding in report.findings}


def test_keys_of_the_reference_the_critic_and_the_rewards_are_read(tmp_path: Path) -> None:
    others = (
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size=2 critic.ulysses_sequence_parallel_size=2 "
        "reward_model.model.fsdp_config.param_offload=True actor_rollout_ref.rollout.expert_parallel_size=2"
    )
    command = (
        f"python3 -m verl.trainer.main_ppo {WORDS} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 {others}"
    )
    (tmp_path / "run.sh").write_text(command + "\n", encoding="utf-8")
    report = check_paths([str(tmp_path / "run.sh")], Settings())
    assert "MEM805" not in {finding.code for finding in report.findings}


@pytest.mark.parametrize("before", ["", "srun --nodes=1 --ntasks=1 "])
def test_the_cards_of_a_policy_are_those_of_its_own_keys_whatever_starts_it(tmp_path: Path, before: str) -> None:
    """A script of SLURM's starts the program once, on one of the nodes of a cluster of Ray's."""
    words = f"{WORDS} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.nnodes=2 trainer.n_gpus_per_node=4"
    (tmp_path / "run.sh").write_text(f"{before}python3 -m verl.trainer.main_ppo {words}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert (spec["device_count"], spec["world_size"]) == (8, 8)
