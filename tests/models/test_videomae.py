"""VideoMAE's models against the repository's own modules, traced under fake tensors."""

from __future__ import annotations

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import record
from memlint.settings import Settings
from tests.differential.training import walk

FINE = "python run_class_finetuning.py --nb_classes 174 --batch_size 1 --num_frames 16 --data_set SSV2"
PRETRAIN = "python run_mae_pretraining.py --mask_type tube --batch_size 2 --num_frames 16"


def run_of(command: str, path: str = "run.sh") -> TrainingSpec:
    (spec,) = registry.specs(load(path, f"{command}\n"))
    return spec


# modeling_finetune.py and modeling_pretrain.py of MCG-NJU/VideoMAE 14ef8d8 in steps as its engines take them (fake
# tensors with CUDA's semantics, AdamW with foreach, timm 0.4.12's dropped paths): parameters, peak, held, saved. Where
# tubes are hidden, numbers stand for the places that a mask of yes and no has. The tables of positions are on the host,
# and were on the card there.
POSITIONS = 1568 * (384 + 192) * 4


@pytest.mark.parametrize(
    ("command", "truth"),
    [
        pytest.param(
            f"{FINE} --model vit_small_patch16_224 --fc_drop_rate 0.5",
            (21_946_926, 3_077_859_328, 2_983_569_920, 2_698_500_688),
            id="a classifier",
        ),
        pytest.param(
            f"{PRETRAIN} --model pretrain_videomae_small_patch16_224 --mask_ratio 0.9",
            (24_029_376, 1_017_768_448 - POSITIONS, 990_374_912 - POSITIONS, 612_628_096),
            id="an autoencoder",
        ),
        pytest.param(
            f"{PRETRAIN} --model pretrain_videomae_small_patch16_224 --decoder_depth 2 --use_checkpoint",
            (23_140_032, 567_213_568 - POSITIONS, 423_256_064 - POSITIONS, 57_649_920),
            id="recomputed",
        ),
    ],
)
def test_a_step_takes_what_the_repository_s_own_takes(command: str, truth: tuple[int, ...]) -> None:
    made = record(run_of(command))
    phases, held = walk(made.tape)
    parameters, peak, truly_held, saved = truth
    assert made.parameters == parameters
    assert made.tape.saved_bytes == pytest.approx(saved, rel=0.001)
    assert held == pytest.approx(truly_held, rel=0.002)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(peak, rel=0.005)


def test_deepspeed_trains_in_half_precision_with_whole_states() -> None:
    spec = run_of(f"{FINE} --model vit_base_patch16_224 --enable_deepspeed --num_sample 2")
    assert spec["parallelism.zero_stage"] == 0
    assert (spec["parameter_dtype"], spec["master_weights"]) == ("float16", True)
    assert spec.architecture == "videomae"


def test_the_programs_say_what_a_command_leaves_out() -> None:
    spec = run_of("torchrun --nproc_per_node 4 run_class_finetuning.py --num_sample 2 --num_frames 16 --batch_size 3")
    assert (spec["model"], spec["world_size"], spec["hyperparameters.drop_path"]) == ("vit_base_patch16_224", 4, 0.1)
    assert run_of(f"{PRETRAIN} --num_frames 16")["model"] == "pretrain_videomae_base_patch16_224"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"{FINE} --model pretrain_videomae_base_patch16_224", "is none of VideoMAE's own"),
        (f"{FINE} --input_size 220", "no whole number of tubes"),
        (f"{FINE} --opt lamb", "timm's optimizer"),
        (f"{FINE} --use_cls", "before the first one is taken"),
        (f"{FINE} --with_checkpoint", "--with_checkpoint is no option of VideoMAE's own"),
        (f"{PRETRAIN} --num_frames 32", "has positions for 16 frames"),
    ],
    ids=["another program's model", "a side", "an optimizer", "the first tube", "a copy's option", "positions"],
)
def test_what_is_not_known_is_said(command: str, reason: str) -> None:
    assert reason in run_of(command).unknown_reason


def test_another_program_of_the_name_is_no_run_of_it() -> None:
    command = "python run_class_finetuning.py --model beit_base_patch16_224 --num_frames 16 --batch_size 64"
    found = registry.specs(load("run.sh", f"{command}\n"))
    assert [one.family for one in found] != ["videomae"]


def test_an_evaluation_is_no_run_of_it() -> None:
    found = registry.specs(load("run.sh", f"{FINE} --model vit_base_patch16_224 --eval\n"))
    assert [one.family for one in found] != ["videomae"]


def test_the_sample_has_an_estimate() -> None:
    (found,) = check_paths(["tests/hostile/samples/videomae/run.sh"], Settings()).runs
    assert found.estimate is not None
