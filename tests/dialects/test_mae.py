"""Commands of MAE's programs: what they say, what they leave out, and what is not known."""

from __future__ import annotations

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings

PRETRAIN = "python main_pretrain.py --mask_ratio 0.75 --batch_size 8"
FINE = "python main_finetune.py --accum_iter 1 --batch_size 8"


def run_of(command: str) -> TrainingSpec:
    (spec,) = registry.specs(load("run.sh", f"{command}\n"))
    return spec


def test_the_programs_say_what_a_command_leaves_out() -> None:
    spec = run_of("torchrun --nproc_per_node 4 main_finetune.py --accum_iter 2 --batch_size 3")
    assert (spec["model"], spec["world_size"], spec["hyperparameters.drop_path"]) == ("vit_large_patch16", 4, 0.1)
    assert (spec["compute_dtype"], spec["parameter_dtype"], spec["optimizer"]) == ("float16", "float32", "adamw")
    assert run_of(PRETRAIN)["model"] == "mae_vit_large_patch16"


@pytest.mark.parametrize(
    ("options", "devices"),
    [("", 16), ("--nodes 8", 64), ("--nodes 1 --ngpus 4", 4)],
    ids=["as it is", "machines", "machines and devices"],
)
def test_jobs_of_submitit_say_their_devices(options: str, devices: int) -> None:
    spec = run_of(f"python submitit_pretrain.py --norm_pix_loss --batch_size 64 {options}")
    assert (spec["device_count"], spec["parallelism.strategy"]) == (devices, "ddp")


# Of the paper and its repository: https://arxiv.org/abs/2111.06377, ViT-B/16, ViT-L/16, ViT-H/14 with 1,000 classes as
# timm counts them, and with the classifier's norm over the mean of all tokens.
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("vit_base_patch16", 86_567_656),
        ("vit_large_patch16", 304_326_632),
        ("vit_huge_patch14", 632_045_800),
        ("mae_vit_base_patch16", 111_907_840),
        ("mae_vit_large_patch16", 329_541_888),
        ("mae_vit_huge_patch14", 657_074_508),
    ],
)
def test_a_model_has_as_many_parameters_as_are_known(model: str, parameters: int) -> None:
    from memlint.models import record

    command = PRETRAIN if model.startswith("mae") else FINE
    assert record(run_of(f"{command} --model {model}")).parameters == parameters


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"{FINE} --model mae_vit_base_patch16", "is none of MAE's own"),
        (f"{FINE} --input_size 384", "has positions for images of 224"),
        (f"{FINE} --task messidor", "--task is no option of MAE's own program"),
        ("python main_linprobe.py --accum_iter 1 --blr 0.1", "trained by LARS"),
        (f"{FINE} --model $MODEL", "--model is not known"),
    ],
    ids=["another program's model", "a side", "a copy's option", "a last layer alone", "a variable"],
)
def test_what_is_not_known_is_said(command: str, reason: str) -> None:
    assert reason in run_of(command).unknown_reason


@pytest.mark.parametrize("options", ["--model beit_base_patch16_224", "--model vit_base_patch16 --eval"])
def test_another_model_or_an_evaluation_is_no_run_of_it(options: str) -> None:
    found = registry.specs(load("run.sh", f"{FINE} {options}\n"))
    assert [one.family for one in found] != ["mae"]


def test_the_sample_has_an_estimate() -> None:
    (found,) = check_paths(["tests/hostile/samples/mae/run.sh"], Settings()).runs
    assert found.estimate is not None
