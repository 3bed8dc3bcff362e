"""Commands of DeiT's program: what they say, what they leave out, and what is not known."""

from __future__ import annotations

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings

MAIN = "python -m torch.distributed.launch --nproc_per_node=4 --use_env main.py --data-path data"
JOB = "python run_with_submitit.py --data-path data"


def run_of(command: str) -> TrainingSpec:
    (spec,) = registry.specs(load("run.sh", f"{command}\n"))
    return spec


def test_the_program_says_what_a_command_leaves_out() -> None:
    spec = run_of(f"{MAIN} --model deit_small_patch16_224")
    assert (spec["micro_batch_size"], spec["world_size"], spec["image_size"]) == (64, 4, 224)
    assert (spec["compute_dtype"], spec["parameter_dtype"], spec["optimizer"]) == ("float16", "float32", "adamw")
    assert (spec["ema"], spec["hyperparameters.drop_path"], spec["hyperparameters.num_classes"]) == (True, 0.1, 1000)


def test_a_copy_of_the_weights_is_on_the_card_unless_it_is_said() -> None:
    for option in ("--no-model-ema", "--model-ema-force-cpu"):
        assert not run_of(f"{MAIN} --model deit_small_patch16_224 {option}")["ema"]


def test_classes_are_the_data_set_s() -> None:
    spec = run_of(f"{MAIN} --model deit_tiny_patch16_224 --data-set CIFAR")
    assert spec["hyperparameters.num_classes"] == 100


def test_a_job_of_submitit_says_its_devices() -> None:
    spec = run_of(f"{JOB} --model deit_base_patch16_224 --batch 32")
    assert (spec["device_count"], spec["parallelism.strategy"], spec["micro_batch_size"]) == (16, "ddp", 32)
    assert run_of(f"{JOB} --model deit_base_patch16_224 --nodes 1 --ngpus 4")["device_count"] == 4


# Touvron et al., arXiv 2012.12877, table 1: 5, 22 and 86 million, as timm counts them.
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("deit_tiny_patch16_224", 5_717_416),
        ("deit_small_patch16_224", 22_050_664),
        ("deit_base_patch16_224", 86_567_656),
    ],
)
def test_a_model_has_as_many_parameters_as_are_known(model: str, parameters: int) -> None:
    from memlint.models import record

    assert record(run_of(f"{MAIN} --model {model}")).parameters == parameters


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--model deit_base_distilled_patch16_224", "follows a teacher"),
        ("--model deit_base_patch16_224 --distillation-type hard", "follows a teacher"),
        ("--model deit_large_patch16_LS", "is none of models.py's"),
        ("--model deit_base_patch16_224 --cosub", "two submodels"),
        ("--model deit_base_patch16_224 --bce-loss", "a binary loss"),
        ("--model deit_base_patch16_224 --opt madgrad", "timm's optimizer is not known"),
        ("--model deit_base_patch16_224 --data-set INAT", "how many classes"),
        ("--model deit_base_patch16_224 --input-size 230", "takes patches of 16 pixels"),
        ("--model deit_base_patch16_224 --token-drop 0.1", "is no option of DeiT's own program"),
    ],
)
def test_what_is_not_known_is_said(options: str, reason: str) -> None:
    assert reason in run_of(f"{MAIN} {options}").unknown_reason


@pytest.mark.parametrize("options", ["--model resnet50", "--model deit_base_patch16_224 --eval"])
def test_another_model_or_an_evaluation_is_no_run_of_it(options: str) -> None:
    assert "deit" not in [one.family for one in registry.specs(load("run.sh", f"{MAIN} {options}\n"))]


def test_the_sample_has_an_estimate() -> None:
    (found,) = check_paths(["tests/hostile/samples/deit/run.sh"], Settings()).runs
    assert found.estimate is not None
