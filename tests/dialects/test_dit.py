"""Commands of DiT's program and of its copies: what they say, what they leave out, and what is not known."""

from __future__ import annotations

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings
from tests.differential.training import walk

TORCHRUN = "torchrun --nnodes=1 --nproc_per_node=8 train.py --data-path data"
AUTOENCODER = 83_653_863  # of the weights on the hub: stabilityai/sd-vae-ft-ema
FAST = "accelerate launch --num_processes 2 train.py --feature-path data"


def run_of(command: str) -> TrainingSpec:
    (spec,) = registry.specs(load("run.sh", f"{command}\n"))
    return spec


def test_the_program_says_what_a_command_leaves_out() -> None:
    spec = run_of(f"{TORCHRUN} --model DiT-B/4")
    assert (spec["micro_batch_size"], spec["world_size"], spec["parallelism.strategy"]) == (32, 8, "ddp")
    assert (spec["image_size"], spec["compute_dtype"], spec["optimizer"], spec["ema"]) == (
        256,
        "float32",
        "adamw",
        True,
    )
    assert (spec["hyperparameters.features"], spec.get("checkpointing", "none")) == (False, "none")
    assert run_of(f"{TORCHRUN} --global-batch-size 64")["model"] == "DiT-XL/2"


def test_under_accelerate_it_is_the_copy_that_checkpoints_and_reads_features() -> None:
    spec = run_of(f"{FAST.replace('launch', 'launch --mixed_precision fp16')} --model DiT-B/4")
    assert (spec["hyperparameters.features"], spec["checkpointing"]) == (True, "full")
    assert (spec["compute_dtype"], spec["micro_batch_size"]) == ("float16", 128)
    assert run_of(f"{FAST} --model DiT-B/4")["compute_dtype"] == "float32"


@pytest.mark.parametrize(("program", "checkpointing"), [("train_original", "none"), ("train_baseline", "full")])
def test_a_program_s_name_says_whose_blocks_it_has(program: str, checkpointing: str) -> None:
    spec = run_of(TORCHRUN.replace("train.py", f"train_options/{program}.py") + " --model DiT-B/4")
    assert (spec.family, spec.get("checkpointing", "none"), spec["compute_dtype"]) == ("dit", checkpointing, "float32")


# Peebles and Xie, arXiv 2212.09748, table 1, in millions.
@pytest.mark.parametrize(
    ("model", "millions"), [("DiT-S/2", 33), ("DiT-B/2", 130), ("DiT-L/2", 458), ("DiT-XL/2", 675)]
)
def test_a_model_has_as_many_parameters_as_are_published(model: str, millions: int) -> None:
    found = parameters(f"{FAST} --model {model}")
    assert found == pytest.approx(millions * 1e6, abs=0.6e6)


def test_the_largest_has_as_many_as_its_program_prints() -> None:
    """chuanyangjin/fast-DiT dbe04f6: performance/A100/train.out."""
    assert parameters(f"{FAST} --model DiT-XL/2") == 675_129_632


def parameters(command: str) -> int:
    from memlint.models import record

    return record(run_of(command)).parameters - AUTOENCODER


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"{TORCHRUN} --model DiT-B-MOE/4", "is none of DiT's own"),
        (f"{TORCHRUN} --model DiT-B/4 --batch-size 8", "--batch-size is no option of DiT's own program"),
        (f"{TORCHRUN} --model DiT-B/8 --image-size 224", "takes patches of 64 pixels"),
        (f"{TORCHRUN} --model DiT-B/4 --global-batch-size 30", "no multiple of 8 devices"),
        (f"{TORCHRUN} --model SiT-B/4 --prediction noise", "its loss is not known"),
        (f"{TORCHRUN} --model $MODEL --global-batch-size 32", "--model is not known"),
        (f"{TORCHRUN.replace('=8', '=N')} --model DiT-B/4", "how many devices share --global-batch-size 256"),
    ],
)
def test_what_is_not_known_is_said(command: str, reason: str) -> None:
    assert reason in run_of(command).unknown_reason


@pytest.mark.parametrize(
    "command", ["python train.py --model resnet50 --data-path data", "python sample.py --model DiT-B/4"]
)
def test_another_program_or_model_is_no_run_of_it(command: str) -> None:
    assert [one.family for one in registry.specs(load("run.sh", f"{command}\n"))] != ["dit"]


def test_images_that_are_drawn_keep_the_decoder_s_graph() -> None:
    """willisma/SiT issue 11: eight A100 with 80 GB each are out of memory after the first images."""
    sit, dit = (held(f"{TORCHRUN} --global-batch-size 16 --model {kind}-S/4") for kind in ("SiT", "DiT"))
    assert sit - dit > 2 * 2**30


def held(command: str) -> int:
    from memlint.models import record

    _, found = walk(record(run_of(command)).tape)
    return found


def test_the_sample_has_an_estimate() -> None:
    (found,) = check_paths(["tests/hostile/samples/dit/run.sh"], Settings()).runs
    assert found.estimate is not None
