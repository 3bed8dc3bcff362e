"""Programs of people's own around verl's workers: which of its parts they put on which cards.

Who changes verl copies its ``main_ppo.py``, which names the worker of each role and shares the cards out between them
(verl 0.2: trainer/main_ppo.py; examples/split_placement and recipe/prime do otherwise).
"""

from __future__ import annotations

import re

from memlint.facts.spec import HYPER, OnTop, TrainingSpec

# A pool of cards that is a part of them: [config.trainer.n_gpus_per_node // 2] * config.trainer.nnodes.
_PART = re.compile(r"\b(?:n_gpus_per_node|nnodes)\s*(?://|-)\s*\w")
_SCORES = re.compile(r"Role\.RewardModel\]?\s*[:=]\s*ray\.remote\((\w+)\)")
_POLICY = re.compile(r"Role\.ActorRollout(?:Ref)?\]?\s*[:=]\s*ray\.remote\((\w+)\)")
_OF_VERL = ("RewardModelWorker", "ActorRolloutRefWorker", "AsyncActorRolloutRefWorker", "actor_rollout_cls")
_STRATEGIES = ("", "None", "fsdp", "fsdp2", "megatron")


def doubt(spec: TrainingSpec) -> str:
    """What a program of its own has on the cards beside the policy that it trains, or which cards those are."""
    scoring = spec.fact(HYPER + "reward_strategy")
    scores = spec.fact(HYPER + "reward_model")
    has_scores = scores is not None and bool(scores.value)
    if has_scores and scoring is not None and str(scoring.value or "") not in _STRATEGIES:
        return OnTop(f"{scoring.key} {scoring.value}: what it takes of the cards is not known")
    text = _text(spec)
    if _PART.search(text) is not None:
        return OnTop(f"{_name(spec)} divides the cards between its models in a way of its own")
    other = next((name for name in _SCORES.findall(text) if name not in _OF_VERL), "")
    return OnTop(f"{_name(spec)}: what {other} takes of the cards is not known") if has_scores and other else ""


def own_policy(spec: TrainingSpec) -> str:
    """The class of a program's own that trains the policy in the place of verl's worker; "" where verl's does."""
    return next((name for name in _POLICY.findall(_text(spec)) if name not in _OF_VERL), "")


def _name(spec: TrainingSpec) -> str:
    return "" if spec.launch is None else spec.launch.called


def _text(spec: TrainingSpec) -> str:
    """The program that a command starts, where that is in the repository; "" elsewhere. Raises OutOfWork."""
    if spec.launch is None:
        return ""
    from memlint.dialects import own_code, scripts

    path = scripts.file_of(spec.launch, spec.document)
    found = None if path is None else own_code.module(path)
    return "" if found is None else found.text
